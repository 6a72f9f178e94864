/* SPDX-License-Identifier: Apache-2.0 */
/* One exchange is one object, which is freed when the last of its handles is closed. It outlives its owner. */

#include "agent/pairs/pairs.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/pairs/exchange.h"
#include "common/endpoint.h"
#include "common/mem.h"
#include "common/net/socket.h"
#include "common/system/helper.h"
#include "common/system/log.h"

enum { BLOCK = 65536, LINE_MAX_BYTES = PAIR_IDS_HEX + REASON_MAX };

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
  /* Over NCCL. */
  struct helper *helper;
  bool killed; /* its time was over */
  struct ipaddr addr;
  struct exchange_times times;
  int64_t gpu;
  struct buf lacks, why;
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
  if (--r->handles > 0) return;
  buf_finish(&r->lacks);
  buf_finish(&r->why);
  free(r);
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
  helper_destroy(r->helper);
  r->helper = NULL;
  close_peers(r, NULL);
  if (r->listener.data && !uv_is_closing((uv_handle_t *)&r->listener)) uv_close((uv_handle_t *)&r->listener, on_closed);
  if (!uv_is_closing((uv_handle_t *)&r->timer)) uv_close((uv_handle_t *)&r->timer, on_closed);
}

static void send_paired(const struct run *r, const struct exchange_times *t, uint16_t port, const char *why) {
  char secret[PAIR_SECRET_HEX + 1] = "";
  struct msg m;
  msg_init(&m, MSG_PAIRED);
  m.paired.serial = r->serial;
  m.paired.text = why;
  m.paired.lacks = buf_text(&r->lacks);
  m.paired.port = port;
  if (port) m.paired.secret = sodium_bin2hex(secret, sizeof secret, r->secret, sizeof r->secret);
  if (t) {
    m.paired.bytes = t->bytes;
    m.paired.out_us = t->out_us;
    m.paired.in_us = t->in_us;
    m.paired.rtt_us = t->rtt_us;
    m.paired.gpu = r->gpu;
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

static void listen_for_peer(struct run *r) {
  static const struct ipaddr all, all_v4 = {.family = 4};
  const struct ipaddr *const places[] = {&r->addr, &all,
                                         &all_v4}; /* others may know this node by an address that is not its own */
  struct ipaddr bound;
  uint16_t port = 0;
  int fd = -EADDRNOTAVAIL;
  for (int i = 0; i < 3 && (fd == -EADDRNOTAVAIL || fd == -EAFNOSUPPORT); i++) {
    union socket_address a = socket_address_make(places[i], 0);
    fd = socket_bind(&a, SOCKET_LISTEN);
  }
  randombytes_buf(r->secret, sizeof r->secret);
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

static void connect_to_peer(struct run *r, uint16_t port) {
  struct peer *peer = open_peer(r);
  union socket_address a = socket_address_make(&r->addr, port);
  r->connect.data = peer;
  int rc = r->addr.family ? uv_tcp_connect(&r->connect, &peer->tcp, &a.any, on_connect) : UV_EINVAL;
  if (rc < 0) drop(peer, "no connection: ", uv_strerror(rc));
}

/* Over NCCL. ------------------------------------------------------------------------------------------------------- */

/* It has done nothing yet. */
static void go_without_nccl(struct run *r, const char *why) {
  helper_destroy(r->helper);
  r->helper = NULL;
  buf_clear(&r->lacks);
  buf_append(&r->lacks, why, strnlen(why, REASON_MAX));
  if (r->listens) {
    uv_timer_start(&r->timer, on_time_over, (uint64_t)r->limit_ms, 0);
    listen_for_peer(r);
  } else {
    end_with(r, NULL, "");
  }
}

static void send_ids(const struct run *r, const char *ids) {
  struct msg m;
  msg_init(&m, MSG_PAIRED);
  m.paired.serial = r->serial;
  m.paired.ids = ids;
  r->o.send(r->o.ctx, &m);
}

static void on_line(void *ctx, enum helper_stream from, const char *line, size_t len) {
  struct run *r = ctx;
  struct buf text = BUF_INIT;
  struct exchange_times *t = &r->times;
  if (from == HELPER_ERR) { /* NCCL's own */
    buf_put_escaped(&text, line, len, len);
    log_info("rdzv-nccl: %s", buf_text(&text));
  } else {
    buf_append(&text, line, len);
    const char *s = buf_text(&text);
    if (strncmp(s, "ids ", 4) == 0)
      send_ids(r, s + 4);
    else if (strncmp(s, "lacks ", 6) == 0)
      go_without_nccl(r, s + 6);
    else if (strncmp(s, "failed ", 7) == 0)
      buf_clear(&r->why), buf_append(&r->why, s + 7, strnlen(s + 7, REASON_MAX));
    else if (sscanf(s, "times %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64, &r->gpu, &t->bytes, &t->out_us,
                    &t->in_us, &t->rtt_us) != 5)
      log_debug("rdzv-nccl: %s", s);
  }
  buf_finish(&text);
}

static void on_helper_late(uv_timer_t *timer) {
  struct run *r = timer->data;
  r->killed = true;
  helper_signal(r->helper, SIGKILL);
}

/* Time that is over is for the end that connects to say. */
static void on_helper_end(void *ctx, const struct helper_end *end_of) {
  struct run *r = ctx;
  struct err e = ERR_INIT;
  bool said = r->times.bytes || r->why.len || (r->killed && r->listens);
  if (!said && r->killed)
    buf_printf(&r->why, "nothing came over NCCL in %.1f s", (double)r->limit_ms / 1000);
  else if (!said && (end_of->status || end_of->signo))
    buf_puts(&r->why, (helper_explain_end(r->helper, end_of, &e), e.text));
  end_with(r, r->times.bytes ? &r->times : NULL, buf_text(&r->why));
}

static void start_helper(struct run *r, const struct pair_msg *ask) {
  char program[] = "rdzv-nccl", pair[] = "pair", role[8], first[24], gpus[24], bytes[24], limit[24];
  char *library = r->o.nccl_library ? xstrdup(r->o.nccl_library) : NULL;
  char *argv[] = {program, pair, role, first, gpus, bytes, limit, library, NULL};
  struct buf why = BUF_INIT;
  struct err e = ERR_INIT;
  int n = r->o.count_gpus ? r->o.count_gpus(r->o.ctx, &why) : 0;
  snprintf(role, sizeof role, "%s", ask->ids[0] ? "connect" : "listen");
  snprintf(first, sizeof first, "%lld", (long long)r->o.first_gpu);
  snprintf(gpus, sizeof gpus, "%lld", (long long)(n < ask->gpus ? n : ask->gpus));
  snprintf(bytes, sizeof bytes, "%lld", (long long)r->bytes_max);
  snprintf(limit, sizeof limit, "%lld", (long long)r->limit_ms);
  const struct helper_options o = {
      .loop = r->o.loop,
      .argv = argv,
      .env = r->o.env,
      .input = true,
      .deadline_ms = (uint32_t)r->limit_ms + HELPER_DEATH_MS, /* it hangs in the kernel */
      .output = {{.line_max = LINE_MAX_BYTES}, {.line_max = REASON_MAX}},
      .on_line = on_line,
      .on_end = on_helper_end,
      .ctx = r,
  };
  r->listens = !ask->ids[0];
  if (n <= 0 || helper_start(&o, &r->helper, &e)) {
    if (n > 0) buf_puts(&why, e.text);
    go_without_nccl(r, why.len ? buf_text(&why) : "its agent knows no GPU of its workers");
  } else {
    struct buf ids = BUF_INIT;
    uv_timer_start(&r->timer, on_helper_late, (uint64_t)r->limit_ms, 0);
    buf_printf(&ids, "%s\n", ask->ids);
    if (!r->listens) helper_send(r->helper, &ids);
    buf_finish(&ids);
  }
  free(library);
  buf_finish(&why);
}

void pairs_ask(struct pairs *p, const struct pair_msg *ask) {
  pairs_stop(p);
  struct run *r = p->run = xcalloc(1, sizeof *r);
  size_t len;
  r->of = p;
  r->o = p->o;
  r->addr = ipaddr_parse(ask->addr);
  r->serial = ask->serial;
  r->limit_ms = ask->limit_ms;
  r->bytes_max = ask->bytes;
  uv_timer_init(p->o.loop, &r->timer);
  r->timer.data = r;
  r->handles++;
  uv_update_time(p->o.loop);
  if (ask->gpus) {
    start_helper(r, ask);
    return;
  }
  uv_timer_start(&r->timer, on_time_over, (uint64_t)ask->limit_ms, 0);
  if (!ask->port) {
    listen_for_peer(r);
  } else if (sodium_hex2bin(r->secret, sizeof r->secret, ask->secret, strlen(ask->secret), NULL, &len, NULL) < 0 ||
             len != sizeof r->secret) {
    end_with(r, NULL, "the daemon's secret is not one");
  } else {
    connect_to_peer(r, (uint16_t)ask->port);
  }
}

void pairs_stop(struct pairs *p) {
  if (p->run) end(p->run);
}

void pairs_leave_gpus(struct pairs *p) {
  if (p->run && p->run->helper) end(p->run);
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
