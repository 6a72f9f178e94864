/* SPDX-License-Identifier: Apache-2.0 */
/* One exchange is one object, which is freed when the last of its handles is closed. It outlives its owner. */

#include "agent/pairs/pairs.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/pairs/exchange.h"
#include "common/endpoint.h"
#include "common/mem.h"
#include "common/net/socket.h"
#include "common/system/log.h"

enum { BLOCK = 65536 };

struct peer {
  uv_tcp_t tcp; /* first */
  struct run *run;
  struct peer *next; /* older */
  bool open;
  struct exchange exchange;
};

/* One exchange. */
struct run {
  struct pairs *of; /* NULL: nobody wants its result any more */
  struct pairs_options o;
  int64_t serial, limit_ms;
  uv_timer_t timer;
  uv_tcp_t listener;
  uv_connect_t connect;
  bool listens, connected;
  unsigned handles;
  struct peer *peers; /* the newest first; one, if this end connects */
  unsigned char secret[EXCHANGE_SECRET];
  int64_t bytes_max;
};

struct pairs {
  struct pairs_options o;
  struct run *run; /* NULL: none */
};

struct sending {
  uv_write_t write;
  unsigned char head[EXCHANGE_SECRET / 2];
};

/* Whatever is sent and read beside heads. */
static char block[BLOCK];

static uint64_t now_us(void) {
  return uv_hrtime() / 1000;
}

/* The end. --------------------------------------------------------------------------------------------------------- */

static void on_closed(uv_handle_t *handle) {
  struct run *r = handle->data;
  if (--r->handles == 0) free(r);
}

static void on_peer_closed(uv_handle_t *handle) {
  struct peer *peer = (struct peer *)(void *)handle, **at = &peer->run->peers;
  while (*at != peer) at = &(*at)->next;
  *at = peer->next;
  on_closed(handle);
  free(peer);
}

static void close_peer(struct peer *peer) {
  if (!peer->open) return;
  peer->open = false;
  uv_close((uv_handle_t *)&peer->tcp, on_peer_closed);
}

static void close_peers(const struct run *r, const struct peer *but) {
  for (struct peer *peer = r->peers; peer; peer = peer->next)
    if (peer != but) close_peer(peer);
}

static void end(struct run *r) {
  if (r->of) r->of->run = NULL;
  r->of = NULL;
  close_peers(r, NULL);
  if (r->listens && !uv_is_closing((uv_handle_t *)&r->listener)) uv_close((uv_handle_t *)&r->listener, on_closed);
  if (!uv_is_closing((uv_handle_t *)&r->timer)) uv_close((uv_handle_t *)&r->timer, on_closed);
}

static void send_paired(const struct run *r, const struct exchange_times *t, uint16_t port, const char *why) {
  char secret[PAIR_SECRET_HEX + 1] = "";
  struct msg m;
  msg_init(&m, MSG_PAIRED);
  m.paired.serial = r->serial;
  m.paired.text = why;
  m.paired.port = port;
  if (port) m.paired.secret = sodium_bin2hex(secret, sizeof secret, r->secret, sizeof r->secret);
  if (t) {
    m.paired.bytes = t->bytes;
    m.paired.out_us = t->out_us;
    m.paired.in_us = t->in_us;
    m.paired.rtt_us = t->rtt_us;
  }
  r->o.send(r->o.ctx, &m);
}

static void end_with(struct run *r, const struct exchange_times *t, const char *why) {
  if (r->of) send_paired(r, t, 0, why);
  end(r);
}

static void on_time_over(uv_timer_t *timer) {
  struct run *r = timer->data;
  char why[REASON_MAX + 1];
  struct exchange_times t = {.bytes = 0};
  if (!r->listens && r->connected) t = exchange_end(&r->peers->exchange, now_us());
  if (r->listens) { /* the other end says what it has measured */
    end(r);
  } else if (t.bytes) {
    end_with(r, &t, "");
  } else {
    snprintf(why, sizeof why, "%s in %.1f s", r->connected ? "next to nothing came" : "no connection",
             (double)r->limit_ms / 1000);
    end_with(r, NULL, why);
  }
}

/* The peer is gone, or wrong. */
static void drop(struct peer *peer, const char *what, const char *why) {
  struct run *r = peer->run;
  char text[REASON_MAX + 1];
  snprintf(text, sizeof text, "%s%s", what, why);
  if (!r->listens)
    end_with(r, NULL, text);
  else if (peer->exchange.known)
    end(r);
  else
    close_peer(peer);
}

/* Bytes. ----------------------------------------------------------------------------------------------------------- */

static void on_written(uv_write_t *write, int status) {
  struct peer *peer = write->data;
  free(write);
  if (status < 0 && status != UV_ECANCELED && peer->open) drop(peer, "connection lost: ", uv_strerror(status));
}

static void send_bytes(struct peer *peer, const struct exchange_send *out) {
  if (!out->n_head && !out->fill) return;
  struct sending *s = xcalloc(1, sizeof *s);
  size_t n = 0, cap = (size_t)(out->fill / BLOCK) + 2;
  uv_buf_t *v = xcalloc(cap, sizeof *v);
  memcpy(s->head, out->head, out->n_head);
  s->write.data = peer;
  if (out->n_head) v[n++] = uv_buf_init((char *)s->head, (unsigned)out->n_head);
  for (int64_t left = out->fill; left > 0; left -= BLOCK)
    v[n++] = uv_buf_init(block, (unsigned)(left < BLOCK ? left : BLOCK));
  int rc = uv_write(&s->write, (uv_stream_t *)&peer->tcp, v, (unsigned)n, on_written);
  free(v);
  if (rc == 0) return;
  free(s);
  drop(peer, "connection lost: ", uv_strerror(rc));
}

static void get_room(uv_handle_t *handle, size_t size, uv_buf_t *buf) {
  *buf = uv_buf_init(block, BLOCK);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
  struct peer *peer = (struct peer *)(void *)stream;
  struct run *r = peer->run;
  struct exchange_send out;
  struct err e = ERR_INIT;
  if (n == 0) return;
  if (n < 0) {
    drop(peer, "connection lost: ", n == UV_EOF ? "the other agent closed it" : uv_strerror((int)n));
    return;
  }
  bool was_known = peer->exchange.known;
  if (exchange_take(&peer->exchange, (const unsigned char *)buf->base, (size_t)n, now_us(), &out, &e) < 0) {
    log_debug("an exchange with another node: %s", e.text);
    drop(peer, "", e.text);
    return;
  }
  if (r->listens && peer->exchange.known && !was_known) { /* strangers are not waited for any longer */
    uv_close((uv_handle_t *)&r->listener, on_closed);
    close_peers(r, peer);
  }
  if (peer->exchange.over) {
    struct exchange_times t = exchange_end(&peer->exchange, now_us());
    end_with(r, &t, "");
    return;
  }
  send_bytes(peer, &out);
}

/* The beginning. --------------------------------------------------------------------------------------------------- */

static struct peer *open_peer(struct run *r) {
  struct peer *peer = xcalloc(1, sizeof *peer);
  uv_tcp_init(r->o.loop, &peer->tcp);
  peer->tcp.data = r;
  peer->run = r;
  peer->open = true;
  peer->next = r->peers;
  r->peers = peer;
  r->handles++;
  return peer;
}

/* Beyond the limit the oldest peer goes: the right one shows the secret at once. */
static void on_connection(uv_stream_t *server, int status) {
  struct run *r = server->data;
  struct peer *oldest = NULL;
  int n = 0;
  if (status < 0) return;
  struct peer *peer = open_peer(r);
  exchange_listen(&peer->exchange, r->secret, r->bytes_max);
  int rc = uv_accept(server, (uv_stream_t *)&peer->tcp);
  if (rc == 0) rc = uv_tcp_nodelay(&peer->tcp, 1);
  if (rc == 0) rc = uv_read_start((uv_stream_t *)&peer->tcp, get_room, on_read);
  if (rc < 0) close_peer(peer);
  for (struct peer *one = r->peers; one; one = one->next) {
    if (!one->open) continue;
    oldest = one;
    n++;
  }
  if (n > PAIRS_PEERS_MAX) close_peer(oldest);
}

static void on_connect(uv_connect_t *connect, int status) {
  struct peer *peer = connect->data;
  struct run *r = peer->run;
  struct exchange_send out;
  if (!peer->open) return;
  r->connected = status == 0;
  if (status == 0) status = uv_tcp_nodelay(&peer->tcp, 1);
  if (status == 0) status = uv_read_start((uv_stream_t *)&peer->tcp, get_room, on_read);
  if (status < 0) {
    drop(peer, "no connection: ", uv_strerror(status));
    return;
  }
  exchange_connect(&peer->exchange, r->secret, r->bytes_max, &out);
  send_bytes(peer, &out);
}

static void listen_for_peer(struct run *r, const struct ipaddr *addr) {
  static const struct ipaddr all, all_v4 = {.family = 4};
  const struct ipaddr *const places[] = {addr, &all,
                                         &all_v4}; /* others may know this node by an address that is not its own */
  struct ipaddr bound;
  uint16_t port = 0;
  int fd = -EADDRNOTAVAIL;
  for (int i = 0; i < 3 && (fd == -EADDRNOTAVAIL || fd == -EAFNOSUPPORT); i++) {
    union socket_address a = socket_address_make(places[i], 0);
    fd = socket_bind(&a, SOCKET_LISTEN);
  }
  r->listens = true;
  uv_tcp_init(r->o.loop, &r->listener);
  r->listener.data = r;
  r->handles++;
  int rc = fd < 0 ? fd : uv_tcp_open(&r->listener, fd);
  if (rc == 0) rc = uv_listen((uv_stream_t *)&r->listener, PAIRS_PEERS_MAX, on_connection);
  if (rc < 0) {
    char why[REASON_MAX + 1];
    snprintf(why, sizeof why, "cannot listen: %s", uv_strerror(rc));
    end_with(r, NULL, why);
    return;
  }
  socket_local(fd, &bound, &port);
  send_paired(r, NULL, port, "");
}

static void connect_to_peer(struct run *r, const struct ipaddr *addr, uint16_t port) {
  struct peer *peer = open_peer(r);
  union socket_address a = socket_address_make(addr, port);
  r->connect.data = peer;
  int rc = addr->family ? uv_tcp_connect(&r->connect, &peer->tcp, &a.any, on_connect) : UV_EINVAL;
  if (rc < 0) drop(peer, "no connection: ", uv_strerror(rc));
}

void pairs_ask(struct pairs *p, const struct pair_msg *ask) {
  pairs_stop(p);
  struct run *r = p->run = xcalloc(1, sizeof *r);
  struct ipaddr addr = ipaddr_parse(ask->addr);
  size_t len;
  r->of = p;
  r->o = p->o;
  r->serial = ask->serial;
  r->limit_ms = ask->limit_ms;
  r->bytes_max = ask->bytes;
  uv_timer_init(p->o.loop, &r->timer);
  r->timer.data = r;
  r->handles++;
  uv_update_time(p->o.loop);
  uv_timer_start(&r->timer, on_time_over, (uint64_t)ask->limit_ms, 0);
  if (!ask->port) {
    randombytes_buf(r->secret, sizeof r->secret);
    listen_for_peer(r, &addr);
  } else if (sodium_hex2bin(r->secret, sizeof r->secret, ask->secret, strlen(ask->secret), NULL, &len, NULL) < 0 ||
             len != sizeof r->secret) {
    end_with(r, NULL, "the daemon's secret is not one");
  } else {
    connect_to_peer(r, &addr, (uint16_t)ask->port);
  }
}

void pairs_stop(struct pairs *p) {
  if (p->run) end(p->run);
}

struct pairs *pairs_create(const struct pairs_options *o) {
  struct pairs *p = xcalloc(1, sizeof *p);
  p->o = *o;
  return p;
}

void pairs_destroy(struct pairs *p) {
  if (p) pairs_stop(p);
  free(p);
}
