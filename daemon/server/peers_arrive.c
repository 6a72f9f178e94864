/* SPDX-License-Identifier: Apache-2.0 */
/* From accept to the first bytes: a connection gets a name and a place, or is refused. Its first bytes show where it
 * belongs. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/user.h"
#include "daemon/server/control_socket.h"
#include "daemon/server/peers_internal.h"

enum { FIRST_BYTES = 4096 };

/* A connection whose protocol is not known yet. */
struct arrival {
  uv_poll_t poll; /* first */
  struct peer *peer;
  int fd;
};

/* Names and limits ------------------------------------------------------------------------------------------------- */

static bool is_administrator(const struct peer *p) {
  return p->local && (p->uid == 0 || p->uid == (int64_t)geteuid());
}

/* Of one source, without those that have said who they are. */
static size_t max_of_source(const struct peer *p) {
  size_t quarter = p->peers->max / 4;
  if (p->local && !is_administrator(p)) return PEERS_PER_USER_MAX;
  if (quarter < PEERS_PER_ADDRESS_MIN) return PEERS_PER_ADDRESS_MIN;
  return quarter < PEERS_PER_ADDRESS_MAX ? quarter : PEERS_PER_ADDRESS_MAX;
}

static int make_room(const struct peer *p, struct err *e) {
  struct peers *ps = p->peers;
  /* A user cannot take the last places from the administrator. */
  size_t more = !p->local ? 0 : is_administrator(p) ? PEERS_CONTROL_MORE : PEERS_CONTROL_MORE / 2;
  size_t max = p->peers->max + more;
  char why[96], too_many[96];
  size_t most = max_of_source(p);
  snprintf(too_many, sizeof(too_many), "%zu connections of this %s have not said who they are", most,
           p->local            ? "user"
           : p->ip.family == 6 ? "network"
                               : "address");
  while (room_of(&ps->unrecognized, p->where) + room_of(&ps->framed, p->where) >= most)
    if (!peer_push_out(room_oldest_of(&ps->unrecognized, p->where), too_many))
      peer_push_out(room_oldest_of(&ps->framed, p->where), too_many);
  if (ps->closed) return err_sys(e, -ESHUTDOWN, "this daemon is stopping");
  if (ps->n_held + (ps->store ? c10d_server_connections(ps->store) : 0) <= max) return 0; /* with p */
  snprintf(why, sizeof(why), "there are %zu connections, which is the limit (ulimit -n)", max);
  if (peer_push_out(room_crowded_out(&ps->unrecognized), why) || peer_push_out(room_crowded_out(&ps->framed), why))
    return 0;
  return err_set(e, -EMFILE, "there are %zu connections already, which is the limit (ulimit -n)", max);
}

/* Arrivals --------------------------------------------------------------------------------------------------------- */

static void on_arrival_closed(uv_handle_t *handle) {
  struct arrival *a = (struct arrival *)handle;
  if (a->peer) peer_free(a->peer);
  free(a);
}

/* Its descriptor, which libuv polls no more. */
static int end_arrival(struct peer *p) {
  struct arrival *a = p->arrival;
  p->arrival = NULL;
  a->peer = NULL;
  uv_close((uv_handle_t *)&a->poll, on_arrival_closed);
  return a->fd;
}

void peer_drop_arrival(struct peer *p) {
  uv_close((uv_handle_t *)&p->arrival->poll, on_arrival_closed);
  close(p->arrival->fd);
  peers_resume(p->peers);
}

/* The store's clients never say who they are, so they must leave room. */
static void hand_over(struct peer *p) {
  const struct peers *ps = p->peers;
  struct err e = ERR_INIT;
  peer_leave_slot(p);
  int fd = end_arrival(p);
  size_t n = ps->store ? c10d_server_connections(ps->store) : 0;
  if (!ps->store)
    err_set(&e, -EPROTONOSUPPORT,
            "it is a client of PyTorch's TCPStore (torchrun?), and this rdzvd serves none: start rdzvd with "
            "--c10d, or rdzv-agent instead of torchrun");
  else if (2 * n >= ps->max)
    err_set(&e, -EMFILE, "the common store has %zu connections already, which is its half of the limit (ulimit -n)", n);
  if (e.code) {
    close(fd);
    peers_resume(p->peers);
  } else {
    log_debug("%s: is a client of the common store", p->name);
    c10d_server_adopt(ps->store, fd, &p->ip, p->port, p->first.data, p->first.len, &e);
  }
  if (e.code < 0) say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
  peer_free(p);
}

bool peer_is_silent(const struct peer *p) {
  return p->arrival && p->first.len == 0;
}

bool peer_hand_over_silent(struct peer *p) {
  if (!p->peers->store || !peer_is_silent(p)) return false;
  uv_poll_stop(&p->arrival->poll);
  if (!c10d_server_adopt_silent(p->peers->store, p->arrival->fd, &p->ip, p->port)) return false;
  peer_leave_slot(p);
  end_arrival(p);
  peer_free(p);
  return true;
}

/* First bytes ------------------------------------------------------------------------------------------------------ */

/* The connection becomes a struct conn. fd is its own, or closed. */
static int open_conn(struct peer *p, int fd, struct err *e) {
  if (p->local)
    conn_init_pipe(&p->conn, p->peers->loop, &peer_conn_callbacks, p, true);
  else
    conn_init_tcp(&p->conn, p->peers->loop, &peer_conn_callbacks, p, true);
  int rc = p->local ? uv_pipe_open(&p->conn.pipe, fd) : uv_tcp_open(&p->conn.tcp, fd);
  if (rc == 0) return conn_start(&p->conn, PEERS_IDENTIFY_MS, e);
  close(fd);
  return err_sys(e, rc, "cannot open a connection");
}

/* With a status below 0 libuv polls the descriptor no more: what has come must decide, or the connection ends. */
static void on_first_bytes(uv_poll_t *poll, int status, int events) {
  struct peer *p = ((struct arrival *)poll)->peer;
  enum frame_protocol protocol = FRAME_PROTOCOL_MORE;
  if (p->turn.source) { /* more has come while it waits for its turn */
    uv_poll_stop(poll);
    return;
  }
  while (protocol == FRAME_PROTOCOL_MORE) {
    char data[FIRST_BYTES];
    ssize_t n = recv(p->arrival->fd, data, sizeof(data), MSG_DONTWAIT);
    bool nothing = n < 0 && (errno == EAGAIN || errno == EINTR);
    if (nothing && status >= 0) return;
    if (n <= 0) {
      const char *why = n == 0 ? "closed by the peer" : nothing ? "its socket has failed" : strerror(errno);
      say(p, LOG_DEBUG, "%s: closed: %s", p->name, why);
      peer_drop_and_tell(p, false);
      return;
    }
    buf_append(&p->first, data, (size_t)n);
    explicit_bzero(data, (size_t)n);
    protocol = frame_detect(p->first.data, p->first.len);
    if (protocol == FRAME_PROTOCOL_MORE && status >= 0) return;
  }
  peer_wait(p);
}

void peer_arrive(struct peer *p) {
  enum frame_protocol protocol = frame_detect(p->first.data, p->first.len);
  if (protocol == FRAME_PROTOCOL_C10D || protocol == FRAME_PROTOCOL_C10D_OLD) {
    hand_over(p);
    return;
  }
  struct err e = ERR_INIT;
  struct buf first = p->first;
  p->first = (struct buf)BUF_INIT;
  if (open_conn(p, end_arrival(p), &e) < 0) {
    say(p, LOG_WARN, "%s: closed: %s", p->name, e.text);
    peer_drop_and_tell(p, false);
  } else {
    conn_feed(&p->conn, first.data, first.len);
  }
  buf_wipe(&first);
}

/* In case of an error fd is the caller's. */
static int begin_arrival(struct peer *p, int fd, struct err *e) {
  struct arrival *a = xcalloc(1, sizeof(*a));
  int rc = uv_poll_init(p->peers->loop, &a->poll, fd);
  if (rc < 0) {
    free(a);
    return err_sys(e, rc, "cannot poll a connection");
  }
  a->peer = p;
  a->fd = fd;
  p->arrival = a;
  rc = uv_poll_start(&a->poll, UV_READABLE, on_first_bytes);
  if (rc == 0) return 0;
  end_arrival(p);
  return err_sys(e, rc, "cannot poll a connection");
}

int peers_adopt(struct peers *ps, int fd, const char *addr, struct err *e) {
  struct sockaddr_storage other = {.ss_family = AF_UNSPEC};
  socklen_t len = sizeof other;
  if (getpeername(fd, (struct sockaddr *)&other, &len) < 0 || other.ss_family != AF_UNIX) {
    close(fd);
    return err_set(e, -ENOTSOCK, "it must be a connected unix socket");
  }
  struct peer *p = xcalloc(1, sizeof(*p));
  p->peers = ps;
  p->uid = ps->key ? (int64_t)geteuid() : -1;
  snprintf(p->addr, sizeof(p->addr), "%s", addr);
  snprintf(p->where, sizeof(p->where), "the agent's socket");
  snprintf(p->local_addr, sizeof(p->local_addr), "%s", addr);
  p->name = xstrdup("the agent that started this daemon");
  ps->n_held++;
  peer_take_slot(p);
  peer_enter_room(p, &ps->unrecognized);
  conn_init_pipe(&p->conn, ps->loop, &peer_conn_callbacks, p, true);
  conn_skip_preface(&p->conn);
  int rc = uv_pipe_open(&p->conn.pipe, fd);
  if (rc) {
    close(fd);
    err_sys(e, rc, "it cannot be opened");
  }
  if (rc == 0) rc = conn_start(&p->conn, PEERS_IDENTIFY_MS, e);
  if (rc)
    peer_drop(p, false);
  else
    peer_begin_framed(p);
  return rc;
}

/* Accepting -------------------------------------------------------------------------------------------------------- */

static void on_accept(void *ctx, int fd, bool local, const struct ipaddr *ip, uint16_t port) {
  struct peer *p = xcalloc(1, sizeof(*p));
  struct err e = ERR_INIT;
  p->peers = ctx;
  p->local = local;
  p->uid = -1;
  p->ip = *ip;
  p->port = port;
  p->peers->n_held++;
  if (!p->local) {
    struct ipaddr ours, network = ipaddr_network(ip);
    uint16_t our_port;
    char text[INET6_ADDRSTRLEN];
    socket_local(fd, &ours, &our_port);
    socket_format(&ours, p->local_addr);
    socket_format(ip, p->addr);
    p->name = xasprintf(ip->family == 6 ? "[%s]:%d" : "%s:%d", p->addr, port);
    socket_format(&network, text);
    snprintf(p->where, sizeof(p->where), network.family == 6 ? "%s/64" : "%s", text);
  }
  int rc = 0;
  if (p->local) { /* any user may connect: each request is checked later */
    pid_t pid = 0;
    uid_t uid = (uid_t)-1;
    rc = control_socket_peer(fd, &pid, &uid, &e);
    if (rc == 0 && user_is_known(uid)) p->uid = (int64_t)uid;
    snprintf(p->where, sizeof(p->where), "control socket, uid %u", (unsigned)uid);
    p->name = xasprintf("control socket (pid %d, uid %u)", (int)pid, (unsigned)uid);
  }
  if (rc == 0) rc = make_room(p, &e);
  if (rc == 0 && !p->local) rc = begin_arrival(p, fd, &e);
  if (rc < 0) {
    say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
    close(fd);
    peer_free(p);
    return;
  }
  peer_take_slot(p);
  peer_enter_room(p, &p->peers->unrecognized);
  if (p->local && open_conn(p, fd, &e) < 0) {
    say(p, LOG_WARN, "%s: refused: %s", p->name, e.text);
    peer_drop(p, false);
    return;
  }
  log_debug("%s: is connection %llu", p->name, (unsigned long long)p->id);
}

static void on_accept_pause(void *ctx, int code) {
  struct peers *ps = ctx;
  rations_log(&ps->rations, "accept", boot_ms(), LOG_ERROR, "accept: %s", strerror(-code));
}

static void on_acceptor_closed(void *ctx) {}

const struct acceptor_callbacks peers_acceptor_callbacks = {on_accept, on_accept_pause, on_acceptor_closed};

int peers_listen(struct peers *ps, int fd, bool control, struct err *e) {
  return acceptor_listen(&ps->acceptor, fd, control, C10D_USER_TIMEOUT_MS, e);
}
