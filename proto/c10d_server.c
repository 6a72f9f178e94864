/* A store's server: who may come in, and what is due when.
 *
 * Accepting. One wake takes up to ACCEPTS_PER_TURN connections. The options of a connection (no delay, keepalive) are set on
 * the listening socket, from which every accepted one has them without a system call. When descriptors run out the listener is not
 * polled any more, or it would be ready for ever; a connection that ends, or a second, brings it back, and until then the
 * kernel's backlog keeps those who want in.
 *
 * Time. There are five queues, each in the order of its deadlines because all in it have the same one: connections that said nothing
 * yet, that do not take what they asked for, that linger after our end, that were granted room for a large request and say no more, of which one request is to be read again (c10d_place.c). With the store's own deadline and the listener's pause they
 * share one timer, which is set only while one of them is there, and never moved forward: it may fire too early and find
 * nothing due, so that a request costs no timer at all. A process that was stopped finds its deadlines passed before it has looked at its
 * sockets; so the socket is asked once more before anybody is dropped (c10d_conn_expire).
 *
 * Log lines about peers are rationed per address, like the daemon's: a stranger must not fill the log. */

#include "proto/c10d_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/clock.h"
#include "common/deadline.h"
#include "common/log.h"
#include "common/mem.h"
#include "proto/c10d_conn.h"

enum {
  ACCEPTS_PER_TURN = 256,
  FORGET_AT_ONCE = 200000, /* keys: about a tenth of a second */
  PAUSE_MS = 1000,
  KEEPALIVE_IDLE_S = 15,
  KEEPALIVE_INTERVAL_S = 5,
  KEEPALIVE_COUNT = 3,
  USER_TIMEOUT_MS =
      C10D_STALL_MS + 5000, /* data that is never acknowledged; a slow reader is ours to name before */
};

struct c10d_listening {
  uv_poll_t poll; /* first */
  struct c10d_server *server;
  struct c10d_listening *next;
  int fd;
};

union address {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  struct sockaddr_storage room;
};

uint64_t c10d_now_ms(void) {
  return monotonic_ms();
}

/* Names and lines ---------------------------------------------------------------------------------------------------- */

static void format_address(const struct ipaddr *addr, char out[INET6_ADDRSTRLEN]) {
  if (addr->family == 0)
    snprintf(out, INET6_ADDRSTRLEN, "local socket");
  else
    inet_ntop(addr->family == 4 ? AF_INET : AF_INET6, addr->bytes, out, INET6_ADDRSTRLEN);
}

static void read_address(const union address *a, struct ipaddr *addr, uint16_t *port) {
  static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  *addr = (struct ipaddr){0};
  *port = 0;
  if (a->any.sa_family == AF_INET) {
    addr->family = 4;
    memcpy(addr->bytes, &a->v4.sin_addr, 4);
    *port = ntohs(a->v4.sin_port);
  } else if (a->any.sa_family == AF_INET6) {
    bool is_v4 = memcmp(&a->v6.sin6_addr, mapped, sizeof(mapped)) == 0;
    addr->family = is_v4 ? 4 : 6;
    memcpy(addr->bytes, a->v6.sin6_addr.s6_addr + (is_v4 ? 12 : 0), is_v4 ? 4 : 16);
    *port = ntohs(a->v6.sin6_port);
  }
}

void c10d_server_say(struct c10d_server *s, const struct ipaddr *addr, uint16_t port, enum log_level level,
                     const char *fmt, ...) {
  if (level > log_max_level()) return;
  char text[ERR_TEXT_MAX + 64], shown[INET6_ADDRSTRLEN];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  format_address(addr, shown);
  addresses_log(&s->addresses, shown, c10d_now_ms(), level,
                addr->family == 6 ? "%s: [%s]:%d: %s" : "%s: %s:%d: %s", s->name, shown, port, text);
}

/* Deadlines ---------------------------------------------------------------------------------------------------------- */

void c10d_queue_drop(struct c10d_conn *c) {
  struct c10d_queue *q = c->queue;
  if (!q) return;
  *(c->due_prev ? &c->due_prev->due_next : &q->first) = c->due_next;
  *(c->due_next ? &c->due_next->due_prev : &q->last) = c->due_prev;
  c->due_prev = c->due_next = NULL;
  c->queue = NULL;
}

void c10d_queue_put(struct c10d_queue *q, struct c10d_conn *c, uint64_t now_ms) {
  c10d_queue_drop(c);
  c->queue = q;
  c->since_ms = now_ms;
  c->due_prev = q->last;
  *(q->last ? &q->last->due_next : &q->first) = c;
  q->last = c;
  if (q->first == c) c10d_server_arm(c->server, now_ms + q->timeout_ms);
}

static uint64_t queue_deadline(const struct c10d_queue *q) {
  return q->first ? q->first->since_ms + q->timeout_ms : UINT64_MAX;
}

static void expire(struct c10d_queue *q, uint64_t now_ms) {
  while (now_ms >= queue_deadline(q)) c10d_conn_expire(q->first, now_ms);
}

static void resume(struct c10d_server *s);

static void on_timer(uv_timer_t *timer) {
  struct c10d_server *s = timer->data;
  uint64_t now = c10d_now_ms();
  s->timer_at = UINT64_MAX;
  expire(&s->silent, now);
  expire(&s->stalled, now);
  expire(&s->lingering, now);
  expire(&s->unclear, now);
  expire(&s->filling, now);
  if (s->paused && now >= s->resume_at_ms) resume(s);
  if (now >= store_deadline(s->store)) store_expire(s->store, now);
  uint64_t at = earliest(queue_deadline(&s->silent), queue_deadline(&s->stalled));
  at = earliest(at, earliest(queue_deadline(&s->lingering), queue_deadline(&s->unclear)));
  at = earliest(at, queue_deadline(&s->filling));
  at = earliest(at, store_deadline(s->store));
  c10d_server_arm(s, s->paused ? earliest(at, s->resume_at_ms) : at);
  if (s->tell_empty && s->n_conns == 0) s->config.on_empty(s->config.ctx);
}

void c10d_server_arm(struct c10d_server *s, uint64_t at_ms) {
  if (s->closing || at_ms >= s->timer_at) return;
  s->timer_at = at_ms;
  uint64_t now = c10d_now_ms();
  uv_update_time(s->loop);
  uv_timer_start(&s->timer, on_timer, at_ms > now ? at_ms - now : 0, 0);
}

void c10d_server_conn_gone(struct c10d_server *s) {
  if (s->closing) return;
  if (s->paused) resume(s);
  s->tell_empty = s->n_conns == 0 && s->config.on_empty;
  c10d_server_arm(s, s->tell_empty ? c10d_now_ms() : store_deadline(s->store));
}

/* Accepting ---------------------------------------------------------------------------------------------------------- */

/* A kernel in a sandbox may not know them all, and a unix socket (in a test) knows none; none is vital. */
static void set_options(int fd) {
  static const struct {
    int level, option, value;
  } options[] = {
      {IPPROTO_TCP, TCP_NODELAY, 1},
      {SOL_SOCKET, SO_KEEPALIVE, 1},
      {IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_S},
      {IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S},
      {IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_COUNT},
      {IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS},
  };
  for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
    setsockopt(fd, options[i].level, options[i].option, &options[i].value, sizeof(options[i].value));
}

static int check_allowed(const struct c10d_server *s, int fd, const struct ipaddr *peer, struct err *e) {
  if (!s->config.allow) return 0;
  union address a = {.room = {0}};
  socklen_t len = sizeof(a);
  struct ipaddr local;
  uint16_t port;
  if (getsockname(fd, &a.any, &len) < 0) a.any.sa_family = AF_UNSPEC;
  read_address(&a, &local, &port);
  if (s->config.allow(s->config.ctx, peer, &local)) return 0;
  return err_set(e, -EACCES, "%s", s->allowed);
}

static int check_limits(const struct c10d_server *s, const struct ipaddr *peer, struct err *e) {
  size_t max = s->config.max_connections, per_address = s->config.max_per_address;
  if (max && s->n_conns >= max)
    return err_set(e, -EMFILE, "there are %zu connections already, which is the limit", s->n_conns);
  if (!per_address) return 0;
  const struct c10d_place *p = c10d_place_find(s, peer);
  if (p && p->n_conns >= per_address)
    return err_set(e, -EMFILE, "there are %zu connections of its address already, which is the limit",
                   p->n_conns);
  return 0;
}

/* fd becomes a connection or is closed. */
static int admit(struct c10d_server *s, int fd, const union address *a, struct c10d_conn **out,
                 struct err *e) {
  struct ipaddr peer;
  uint16_t port;
  read_address(a, &peer, &port);
  int rc = check_allowed(s, fd, &peer, e);
  if (rc == 0) rc = check_limits(s, &peer, e);
  if (rc == 0) return c10d_conn_create(s, fd, &peer, port, out, e);
  close(fd);
  return rc;
}

static void on_listening(uv_poll_t *poll, int status, int events);

static void pause_listening(struct c10d_server *s, int code) {
  if (code == -EMFILE || code == -ENFILE)
    addresses_log(&s->addresses, "accept", c10d_now_ms(), LOG_WARN,
                  "%s: no descriptors for more connections (%s): new ones wait", s->name, strerror(-code));
  else
    addresses_log(&s->addresses, "accept", c10d_now_ms(), LOG_ERROR, "%s: accept: %s", s->name,
                  strerror(-code));
  for (struct c10d_listening *l = s->listening; l; l = l->next) uv_poll_stop(&l->poll);
  s->paused = true;
  s->resume_at_ms = c10d_now_ms() + PAUSE_MS;
  c10d_server_arm(s, s->resume_at_ms);
}

static void resume(struct c10d_server *s) {
  s->paused = false;
  for (struct c10d_listening *l = s->listening; l; l = l->next)
    uv_poll_start(&l->poll, UV_READABLE, on_listening);
}

/* 1: accepted, perhaps closed again; 0: nobody is there. */
static int accept_one(struct c10d_listening *l) {
  struct c10d_server *s = l->server;
  union address a = {.room = {0}};
  socklen_t len = sizeof(a);
  int fd = accept4(l->fd, &a.any, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0)
    return errno == EAGAIN ? 0 : errno == EINTR || errno == ECONNABORTED || errno == EPROTO ? 1 : -errno;
  struct c10d_conn *c;
  if (admit(s, fd, &a, &c, &s->err) == 0) {
    c10d_conn_start(c, NULL, 0);
    return 1;
  }
  struct ipaddr peer;
  uint16_t port;
  read_address(&a, &peer, &port);
  c10d_server_say(s, &peer, port, LOG_WARN, "refused: %s", s->err.text);
  return 1;
}

static void on_listening(uv_poll_t *poll, int status, int events) {
  struct c10d_listening *l = (struct c10d_listening *)poll;
  int rc = 1;
  for (int i = 0; i < ACCEPTS_PER_TURN && rc > 0; i++) rc = accept_one(l);
  if (rc < 0) pause_listening(l->server, rc);
}

/* For the owner ------------------------------------------------------------------------------------------------------ */

int c10d_server_create(uv_loop_t *loop, const struct c10d_server_config *config, struct c10d_server **out,
                       struct err *e) {
  struct c10d_server *s = xcalloc(1, sizeof(*s));
  uv_timer_init(loop, &s->timer);
  s->loop = loop;
  c10d_turns_init(s);
  s->timer.data = s;
  s->timer_at = UINT64_MAX;
  s->config = *config;
  s->name = xstrdup(config->name);
  s->allowed = xstrdup(config->allowed ? config->allowed : "this store is not for its address");
  if (!s->config.max_buffered) s->config.max_buffered = C10D_BUFFERED_MAX;
  s->store = store_create(&config->store);
  map_init(&s->places, config->store.seed);
  addresses_init(&s->addresses, config->store.seed);
  s->silent.timeout_ms = config->silent_ms ? config->silent_ms : C10D_SILENT_MS;
  s->stalled.timeout_ms = config->stall_ms ? config->stall_ms : C10D_STALL_MS;
  s->filling.timeout_ms = s->stalled.timeout_ms;
  s->lingering.timeout_ms = C10D_LINGER_MS;
  s->unclear.timeout_ms = C10D_SETTLE_MS + 5;
  s->chunk = xmalloc(C10D_CHUNK);
  s->open_handles = 3;
  *out = s;
  return 0;
}

int c10d_server_listen(struct c10d_server *s, int fd, struct err *e) {
  struct c10d_listening *l = xcalloc(1, sizeof(*l));
  int rc = uv_poll_init(s->loop, &l->poll, fd);
  if (rc < 0) {
    free(l);
    close(fd);
    return err_sys(e, rc, "%s: cannot poll the listening socket", s->name);
  }
  l->server = s;
  l->fd = fd;
  l->next = s->listening;
  s->listening = l;
  s->open_handles++;
  set_options(fd);
  if (listen(fd, SOMAXCONN) < 0) return err_sys(e, -errno, "%s: cannot listen", s->name);
  rc = uv_poll_start(&l->poll, UV_READABLE, on_listening);
  return rc < 0 ? err_sys(e, rc, "%s: cannot poll the listening socket", s->name) : 0;
}

int c10d_server_adopt(struct c10d_server *s, int fd, const char *data, size_t len, struct err *e) {
  union address a = {.room = {0}};
  socklen_t size = sizeof(a);
  if (getpeername(fd, &a.any, &size) < 0) a.any.sa_family = AF_UNSPEC;
  set_options(fd);
  struct c10d_conn *c;
  int rc = admit(s, fd, &a, &c, e);
  if (rc == 0) c10d_conn_start(c, data, len);
  return rc;
}

bool c10d_server_adopt_silent(struct c10d_server *s, int fd) {
  union address a = {.room = {0}};
  socklen_t size = sizeof(a);
  struct ipaddr peer;
  uint16_t port;
  if (getpeername(fd, &a.any, &size) < 0) return false;
  read_address(&a, &peer, &port);
  const struct c10d_place *p = c10d_place_find(s, &peer);
  struct c10d_conn *c;
  if (!p || !c10d_place_may_keep(p)) return false;
  set_options(fd);
  if (c10d_conn_create(s, fd, &peer, port, &c, &s->err) == 0) c10d_conn_keep(c);
  return true;
}

size_t c10d_server_connections(const struct c10d_server *s) {
  return s->n_conns;
}

const struct store *c10d_server_store(const struct c10d_server *s) {
  return s->store;
}

/* Closing ------------------------------------------------------------------------------------------------------------ */

void c10d_server_handle_closed(struct c10d_server *s) {
  if (--s->open_handles > 0) return;
  void (*on_closed)(void *ctx) = s->on_closed;
  void *ctx = s->on_closed_ctx;
  map_finish(&s->places);
  addresses_finish(&s->addresses);
  buf_finish(&s->out);
  free(s->chunk);
  free(s->name);
  free(s->allowed);
  free(s);
  if (on_closed) on_closed(ctx);
}

static void on_listening_closed(uv_handle_t *handle) {
  struct c10d_listening *l = (struct c10d_listening *)handle;
  struct c10d_server *s = l->server;
  free(l);
  c10d_server_handle_closed(s);
}

static void on_own_closed(uv_handle_t *handle) {
  c10d_server_handle_closed(handle->data);
}

void c10d_server_shut(struct c10d_server *s) {
  while (s && s->listening) {
    struct c10d_listening *l = s->listening;
    s->listening = l->next;
    uv_close((uv_handle_t *)&l->poll, on_listening_closed);
    close(l->fd);
  }
}

static void on_forget(uv_work_t *work) { /* in a thread of the pool */
  const struct c10d_server *s = work->data;
  store_destroy(s->forgotten);
}

static void on_forgot(uv_work_t *work, int status) {
  c10d_server_handle_closed(work->data);
}

/* Nobody can reach the keys any more. Freeing millions of them takes seconds, in which an agent would be taken for lost: elsewhere. */
static void forget(struct c10d_server *s) {
  s->forgotten = s->store;
  s->store = NULL;
  s->forgetting.data = s;
  if (store_count(s->forgotten) > FORGET_AT_ONCE &&
      uv_queue_work(s->loop, &s->forgetting, on_forget, on_forgot) == 0)
    s->open_handles++;
  else
    store_destroy(s->forgotten);
}

void c10d_server_close(struct c10d_server *s, void (*on_closed)(void *ctx), void *ctx) {
  if (!s || s->closing) return;
  s->closing = true;
  s->on_closed = on_closed;
  s->on_closed_ctx = ctx;
  c10d_server_shut(s);
  while (s->first) c10d_conn_close(s->first);
  forget(s);
  uv_close((uv_handle_t *)&s->timer, on_own_closed);
  uv_close((uv_handle_t *)&s->check, on_own_closed);
  uv_close((uv_handle_t *)&s->idle, on_own_closed);
}
