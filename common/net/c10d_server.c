/* SPDX-License-Identifier: Apache-2.0 */
/* The server of a c10d store: sockets in front of c10d_session and common/store.
 *
 *   readable -> ready list -> its turn: recv -> whole requests -> c10d_session_feed -> replies -> send
 *                                                                     '-> released waiters -> send
 *
 * The server reads into one buffer and answers from another; all connections share both, because only one has its turn
 * at a time. A connection has its own buffers only for the beginning of a request (`in`) and for replies that its socket
 * did not take (`out`). So ten thousand idle connections hold no buffer.
 *
 * Turns. The loop also carries the heartbeats of the agent's job, or of all the daemon's jobs. One request may cost a
 * tenth of a second (a MULTI_GET of 256 MiB, a WAIT for 131,072 keys). So an event only puts its connection at the end
 * of the ready list. After each poll of the loop, connections have their turns for TURN_NS; then timers and all other
 * sockets come first again. A turn is one recv, and replies until C10D_OUT_SOFT of them wait.
 *
 * Memory. If replies that wait take half of max_buffered, the server is crowded: a request for a large reply is parked
 * until readers have taken theirs. A request of more than CHUNK is read only when a quarter of max_buffered has room
 * for all of it; until then the kernel and its sender keep it.
 *
 * The end. A peer that closes is served to the end first: a process may set a key and exit. A connection that this side
 * ends (a malformed request, a limit) gets the replies that are due; then writing is shut down and input is dropped for
 * a while, since closing with unread input would send a reset that overtakes those replies.
 *
 * Admission. PyTorch's protocol has no authentication, so the owner decides by what the kernel knows of a connection. A
 * caller that waits for the decision is a descriptor and an address, of which nothing is read. Callers count for their
 * own limits, so those of a stranger take no place of a client.
 *
 * Deadlines. Each list of deadlines has one timeout, so it is in order. All share one timer, which is never moved to a
 * later time. A process that was stopped finds its deadlines passed before it has read its sockets; so every socket is
 * looked at once more before its connection is dropped. */

#include "common/net/c10d_server.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/chain.h"
#include "common/system/clock.h"
#include "common/deadline.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "common/map.h"
#include "common/mem.h"
#include "common/system/rationed_log.h"
#include "common/net/acceptor.h"
#include "proto/c10d_session.h"
#include "common/net/socket.h"

enum {
  CHUNK = 64 * 1024,          /* bytes of one recv */
  BIG_CHUNK = 1024 * 1024,    /* of one recv inside a large request */
  KEEP_OUT = 256 * 1024,      /* the shared buffer of replies is freed beyond this */
  TURN_NS = 10 * 1000 * 1000, /* the time of all turns together in one turn of the loop */
  FORGET_AT_ONCE = 200000,    /* keys: freeing them takes about a tenth of a second */
  FIRST_AMBIGUOUS = 7,        /* the operation number from which 1.13 and 2.1 differ */
};

/* Connections with a deadline timeout_ms after they came, in that order. */
struct deadline_list {
  struct chain conns;
  unsigned timeout_ms;
};

/* A peer address, as long as it has connections. */
struct origin {
  struct ipaddr addr;
  size_t n_conns;
  size_t n_old; /* connections in a numbering before 2.2 */
  size_t n_callers;
  size_t n_silent; /* connections that have sent nothing; n_kept of them have outlived their deadline */
  size_t n_kept;
  uint64_t silent_since_ms; /* when n_silent became 1 */
  struct chain kept;        /* the oldest first */
};

/* Why a connection is in a turn list. Several events may come before its turn. */
enum due {
  DUE_READ = 1,
  DUE_WRITE = 2,
  DUE_OWN = 4,    /* requests in `in` are to be looked at */
  DUE_FAILED = 8, /* the socket has an error */
};

/* Waits for the owner's decision. */
struct waiting_caller {
  struct c10d_caller is;
  struct chain of_server;
  uint64_t since_ms;
  int fd;
};

enum conn_state {
  CONN_OPEN,
  CONN_ENDING,    /* no more requests; the replies that wait are written, then it lingers */
  CONN_LINGERING, /* writing was shut down; input is dropped until the peer's end */
  CONN_CLOSED,
};

struct c10d_conn {
  uv_poll_t poll; /* first: the handle is the connection */
  struct c10d_server *server;
  struct origin *origin;
  struct chain of_server, of_turns, of_deadlines, of_kept;
  struct chain *turns;             /* the server's `ready`, `parked` or `wanting`, or NULL */
  struct deadline_list *deadlines; /* one of the server's, or NULL */
  uint64_t since_ms;               /* when it came into `deadlines` */
  struct c10d_session session;     /* it is a client once session.requests > 0 */
  struct buf in;                   /* the beginning of a request; whole requests too if `held` */
  struct buf out;                  /* [out_at, len): replies that wait */
  size_t out_at;
  size_t granted; /* bytes of room for the large request in `in` */
  int fd;
  int events; /* polled for */
  uint16_t port;
  uint8_t state; /* enum conn_state */
  uint8_t due;   /* enum due */
  bool silent;   /* has sent nothing */
  bool kept;     /* silent, and may stay so */
  bool held;     /* requests stay in `in` because replies wait */
  bool broken;   /* nothing can be sent; requests that came before are still served */
};

struct c10d_server {
  uv_loop_t *loop;
  struct c10d_server_config config;
  char *name;
  struct store *store;
  struct acceptor acceptor;
  struct chain conns;
  size_t n_conns;
  uint64_t n_accepted;          /* ever */
  struct chain waiting_callers; /* in the order of their deadlines */
  struct map callers;           /* by id */
  uint64_t last_caller_id;
  struct chain ready;   /* connections that wait for a turn */
  struct chain parked;  /* those that wait until the server is not crowded */
  struct chain wanting; /* those that wait for room for a large request */
  uv_check_t check;
  uv_idle_t idle;
  struct map origins;
  struct rations log_lines;       /* per peer address, so that a stranger cannot fill the log */
  struct deadline_list silent;    /* no whole request yet */
  struct deadline_list stalled;   /* does not take its replies */
  struct deadline_list lingering; /* has not closed after our end */
  struct deadline_list unclear;   /* one request is to be read again (see "Origins") */
  struct deadline_list filling;   /* was granted room for a large request and sends no more */
  size_t buffered;                /* bytes in the connections' own buffers */
  size_t buffered_out;            /* those of them that are replies */
  size_t granted;                 /* of all connections */
  char *chunk;                    /* the connection that has its turn reads into it */
  struct buf out;                 /* its replies; empty between turns */
  struct err err;
  uv_timer_t timer;
  uint64_t timer_at; /* UINT64_MAX: not set */
  size_t open_handles;
  struct store *forgotten; /* closing: the store, until it is freed */
  uv_work_t forgetting;
  bool report_empty; /* the timer is to call on_empty */
  bool closing;
  void (*on_closed)(void *ctx);
  void *on_closed_ctx;
};

static void close_conn(struct c10d_conn *c);
static void serve_turn(struct c10d_conn *c, unsigned due);

/* Log lines -------------------------------------------------------------------------------------------------------- */

static void log_peer(struct c10d_server *s, const struct ipaddr *addr, uint16_t port, enum log_level level,
                     const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static void log_peer(struct c10d_server *s, const struct ipaddr *addr, uint16_t port, enum log_level level,
                     const char *fmt, ...) {
  if (level > log_max_level()) return;
  char text[ERR_TEXT_MAX + 64], shown[INET6_ADDRSTRLEN];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  socket_format(addr, shown);
  if (!*shown) strcpy(shown, "local socket");
  rations_log(&s->log_lines, shown, monotonic_ms(), level, addr->family == 6 ? "%s: [%s]:%d: %s" : "%s: %s:%d: %s",
              s->name, shown, port, text);
}

#define log_conn(c, level, ...) log_peer((c)->server, &(c)->origin->addr, (c)->port, level, __VA_ARGS__)

/* Deadlines -------------------------------------------------------------------------------------------------------- */

static void on_timer(uv_timer_t *timer);

/* The timer fires at at_ms or before. */
static void arm_timer(struct c10d_server *s, uint64_t at_ms) {
  if (s->closing || at_ms >= s->timer_at) return;
  s->timer_at = at_ms;
  uint64_t now = monotonic_ms();
  uv_update_time(s->loop);
  uv_timer_start(&s->timer, on_timer, at_ms > now ? at_ms - now : 0, 0);
}

static void drop_deadline(struct c10d_conn *c) {
  chain_remove(&c->of_deadlines);
  c->deadlines = NULL;
}

static struct c10d_conn *first_due(const struct deadline_list *list) {
  return CHAIN_FIRST(&list->conns, struct c10d_conn, of_deadlines);
}

/* Its one deadline from now on. */
static void set_deadline(struct c10d_conn *c, struct deadline_list *list, uint64_t now_ms) {
  assert(list);
  drop_deadline(c);
  c->deadlines = list;
  c->since_ms = now_ms;
  chain_append(&list->conns, &c->of_deadlines);
  if (first_due(list) == c) arm_timer(c->server, now_ms + list->timeout_ms);
}

static uint64_t first_deadline(const struct deadline_list *list) {
  const struct c10d_conn *c = first_due(list);
  return c ? c->since_ms + list->timeout_ms : UINT64_MAX;
}

/* Turns ------------------------------------------------------------------------------------------------------------ */

static void enter_turns(struct chain *list, struct c10d_conn *c) {
  chain_remove(&c->of_turns);
  chain_append(list, &c->of_turns);
  c->turns = list;
}

static void drop_turn(struct c10d_conn *c) {
  chain_remove(&c->of_turns);
  c->turns = NULL;
  c->due = 0;
}

/* It waits for memory: it is not read, and only a writable or failed socket gives it a turn. */
static bool waits_for_memory(const struct c10d_conn *c) {
  return c->turns == &c->server->parked || c->turns == &c->server->wanting;
}

static bool is_crowded(const struct c10d_server *s) {
  return s->buffered_out > s->config.max_buffered / 2;
}

/* A single request always fits, or it could never be read. */
static bool has_room(const struct c10d_server *s, size_t need) {
  return s->granted == 0 || s->granted + need <= s->config.max_buffered / 4;
}

static struct c10d_conn *next_turn(const struct c10d_server *s) {
  struct c10d_conn *wants = CHAIN_FIRST(&s->wanting, struct c10d_conn, of_turns);
  if (!chain_is_alone(&s->parked) && !is_crowded(s)) return CHAIN_FIRST(&s->parked, struct c10d_conn, of_turns);
  if (wants && has_room(s, wants->session.need)) return wants;
  return CHAIN_FIRST(&s->ready, struct c10d_conn, of_turns);
}

static void grant_room(struct c10d_conn *c, size_t need) {
  c->server->granted += need - c->granted;
  c->granted = need;
}

/* Keeps the loop from sleeping while connections wait for turns. */
static void on_idle(uv_idle_t *idle) {}

static void on_check(uv_check_t *check) {
  struct c10d_server *s = check->data;
  uint64_t end = uv_hrtime() + TURN_NS;
  for (struct c10d_conn *c; (c = next_turn(s));) {
    unsigned due = c->due;
    if (c->turns == &s->wanting) grant_room(c, c->session.need);
    drop_turn(c);
    serve_turn(c, due);
    if (uv_hrtime() >= end) return;
  }
  uv_check_stop(&s->check);
  uv_idle_stop(&s->idle);
}

static void start_turns(struct c10d_server *s) {
  if (s->closing) return;
  uv_check_start(&s->check, on_check);
  uv_idle_start(&s->idle, on_idle);
}

static void want_turn(struct c10d_conn *c, unsigned due) {
  struct c10d_server *s = c->server;
  c->due |= (uint8_t)due;
  if (c->turns == &s->ready || due == 0 || (waits_for_memory(c) && !(due & (DUE_WRITE | DUE_FAILED)))) return;
  enter_turns(&s->ready, c);
  start_turns(s);
}

/* Memory was freed: a connection that waits for it may have a turn. */
static void wake_waiting(struct c10d_server *s) {
  if (next_turn(s)) start_turns(s);
}

static void release_room(struct c10d_conn *c) {
  struct c10d_server *s = c->server;
  if (c->granted == 0) return;
  s->granted -= c->granted;
  c->granted = 0;
  if (c->deadlines == &s->filling) drop_deadline(c);
  wake_waiting(s);
}

/* For the rest of the request in `in`. If it is large and does not fit, the connection waits. A list (MULTI_SET) shows
 * its size bit by bit, so one that was begun goes on. */
static void ask_for_room(struct c10d_conn *c) {
  struct c10d_server *s = c->server;
  size_t need = c->session.need > c->in.len ? c->session.need : 0;
  if (need <= CHUNK) {
    release_room(c);
    return;
  }
  if (c->granted == 0 && (!chain_is_alone(&s->wanting) || !has_room(s, need))) {
    enter_turns(&s->wanting, c);
    return;
  }
  if (need > c->granted) grant_room(c, need);
  if (!c->deadlines || c->deadlines == &s->filling) set_deadline(c, &s->filling, monotonic_ms());
}

/* Origins ---------------------------------------------------------------------------------------------------------- */

/* A PyTorch 1.13 client opens two connections and sends nothing on the second, on which it could be notified of changed
 * keys. The server sees only that both come from one address. So an address may keep as many silent connections as it
 * has connections in an old numbering. When one of those ends, the silent one that was kept longest goes as well.
 *
 * The same fact tells 1.13 from 2.1, whose operation numbers differ only from FIRST_AMBIGUOUS on: 2.1 opens no second
 * connection. Every connection is silent for a moment after its accept (eight ranks of 2.1 start on one host at once),
 * so silence counts only after C10D_SETTLE_MS. A 1.13 client that is younger may send operation 8, of which 2.1's
 * reading is not whole; then that request is read again when its companion has settled. */

static struct origin *find_origin(const struct c10d_server *s, const struct ipaddr *addr) {
  return map_get_n(&s->origins, addr, sizeof(*addr));
}

static struct origin *make_origin(struct c10d_server *s, const struct ipaddr *addr) {
  struct origin *o = find_origin(s, addr);
  if (o) return o;
  o = xcalloc(1, sizeof(*o));
  o->addr = *addr;
  chain_init(&o->kept);
  map_put_n(&s->origins, addr, sizeof(*addr), o);
  return o;
}

static void drop_unused_origin(struct c10d_server *s, struct origin *o) {
  if (o->n_conns > 0 || o->n_callers > 0) return;
  map_remove_n(&s->origins, &o->addr, sizeof(o->addr));
  free(o);
}

static void keep_silent(struct c10d_conn *c) {
  chain_append(&c->origin->kept, &c->of_kept);
  c->kept = true;
  c->origin->n_kept++;
}

static void end_silence(struct c10d_conn *c) {
  struct origin *o = c->origin;
  if (!c->silent) return;
  c->silent = false;
  o->n_silent--;
  if (!c->kept) return;
  chain_remove(&c->of_kept);
  c->kept = false;
  o->n_kept--;
}

static bool may_keep_silent(const struct origin *o) {
  return o->n_kept < o->n_old;
}

/* It is a client in a numbering before 2.2. */
static bool is_old_client(const struct c10d_conn *c) {
  return c->session.requests > 0 && c->session.dialect != C10D_SINCE_2_2;
}

/* Returns the silent connection that has lost its client by this, or NULL. */
static struct c10d_conn *leave_origin(struct c10d_conn *c) {
  struct origin *o = c->origin;
  end_silence(c);
  if (is_old_client(c)) o->n_old--;
  c->origin = NULL;
  if (--o->n_conns > 0) return o->n_kept > o->n_old ? CHAIN_FIRST(&o->kept, struct c10d_conn, of_kept) : NULL;
  drop_unused_origin(c->server, o);
  return NULL;
}

static bool has_companion(const struct c10d_conn *c) {
  const struct c10d_server *s = c->server;
  const struct origin *o = c->origin;
  if (o->n_kept > 0 || (o->n_silent > 0 && monotonic_ms() - o->silent_since_ms >= C10D_SETTLE_MS)) return true;
  return s->config.silent_beside && s->config.silent_beside(s->config.ctx, &o->addr);
}

/* A connection's buffers ------------------------------------------------------------------------------------------- */

static size_t pending(const struct c10d_conn *c) {
  return c->out.len - c->out_at;
}

/* The capacity of b, one of c's, has changed from cap_before. */
static void account(struct c10d_conn *c, const struct buf *b, size_t cap_before) {
  c->server->buffered += b->cap - cap_before;
  if (b != &c->out) return;
  c->server->buffered_out += b->cap - cap_before;
  wake_waiting(c->server);
}

static void finish_buf(struct c10d_conn *c, struct buf *b) {
  size_t before = b->cap;
  buf_finish(b);
  account(c, b, before);
}

static void append(struct c10d_conn *c, struct buf *b, const char *data, size_t len) {
  size_t before = b->cap;
  buf_append(b, data, len);
  account(c, b, before);
}

static void on_event(uv_poll_t *poll, int status, int events) {
  struct c10d_conn *c = (struct c10d_conn *)poll;
  if (status < 0)
    want_turn(c, DUE_FAILED);
  else
    want_turn(c, ((events & UV_READABLE) ? DUE_READ : 0) | ((events & UV_WRITABLE) ? DUE_WRITE : 0));
}

/* Polls for what its state can use. */
static void update_polling(struct c10d_conn *c) {
  bool reads = c->state == CONN_LINGERING ||
               (c->state == CONN_OPEN && !c->held && !waits_for_memory(c) && pending(c) <= C10D_OUT_SOFT);
  int events = (reads ? UV_READABLE : 0) | (pending(c) > 0 || c->held ? UV_WRITABLE : 0);
  if (c->state == CONN_CLOSED || events == c->events) return;
  c->events = events;
  if (uv_poll_start(&c->poll, events, on_event) < 0) close_conn(c);
}

/* The end of a connection ------------------------------------------------------------------------------------------ */

static void handle_closed(struct c10d_server *s) {
  if (--s->open_handles > 0) return;
  void (*on_closed)(void *ctx) = s->on_closed;
  void *ctx = s->on_closed_ctx;
  map_finish(&s->origins);
  map_finish(&s->callers);
  rations_finish(&s->log_lines);
  buf_finish(&s->out);
  free(s->chunk);
  free(s->name);
  free(s);
  if (on_closed) on_closed(ctx);
}

/* Accepting may have been paused for want of descriptors: here, and at the owner. */
static void close_descriptor(struct c10d_server *s, int fd) {
  close(fd);
  acceptor_resume(&s->acceptor);
  if (s->config.on_descriptor_closed) s->config.on_descriptor_closed(s->config.ctx);
}

static void on_conn_closed(uv_handle_t *handle) {
  struct c10d_conn *c = (struct c10d_conn *)handle;
  struct c10d_server *s = c->server;
  free(c);
  handle_closed(s);
}

static void close_conn(struct c10d_conn *c) {
  if (c->state == CONN_CLOSED) return;
  struct c10d_server *s = c->server;
  if (c->state == CONN_OPEN) c10d_session_finish(&c->session, monotonic_ms());
  c->state = CONN_CLOSED;
  c->held = false;
  drop_turn(c);
  release_room(c);
  drop_deadline(c);
  finish_buf(c, &c->in);
  finish_buf(c, &c->out);
  chain_remove(&c->of_server);
  s->n_conns--;
  struct c10d_conn *silent = leave_origin(c);
  uv_close((uv_handle_t *)&c->poll, on_conn_closed);
  close_descriptor(s, c->fd);
  if (silent) close_conn(silent);
  if (s->closing) return;
  s->report_empty = s->n_conns == 0 && s->config.on_empty;
  arm_timer(s, s->report_empty ? monotonic_ms() : store_deadline(s->store));
}

static void linger(struct c10d_conn *c) {
  c->state = CONN_LINGERING;
  if (shutdown(c->fd, SHUT_WR) < 0) {
    close_conn(c);
    return;
  }
  set_deadline(c, &c->server->lingering, monotonic_ms());
}

/* No more requests. Replies that wait are still written. */
static void end_conn(struct c10d_conn *c) {
  c->state = CONN_ENDING;
  c->held = false;
  finish_buf(c, &c->in);
  if (waits_for_memory(c)) drop_turn(c);
  release_room(c);
  drop_deadline(c);
  c10d_session_finish(&c->session, monotonic_ms());
  if (pending(c) == 0)
    linger(c);
  else
    set_deadline(c, &c->server->stalled, monotonic_ms());
}

static void end_because(struct c10d_conn *c, const char *why) {
  if (c->state != CONN_OPEN) return;
  log_conn(c, LOG_WARN, "closed: %s", why);
  end_conn(c);
}

/* Its buffers have grown. */
static void check_buffered(struct c10d_conn *c) {
  struct c10d_server *s = c->server;
  if (c->state != CONN_OPEN || s->buffered <= s->config.max_buffered) return;
  finish_buf(c, &c->out);
  c->out_at = 0;
  char why[128];
  snprintf(why, sizeof(why), "the unfinished requests and waiting replies of all connections exceed %zu MiB",
           s->config.max_buffered >> 20);
  end_because(c, why);
}

/* Writing ---------------------------------------------------------------------------------------------------------- */

/* How many bytes are done with: those that were sent, or all if nothing more can be sent. */
static size_t send_some(struct c10d_conn *c, const char *data, size_t len) {
  if (c->broken) return len;
  ssize_t n;
  do n = send(c->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n >= 0) return (size_t)n;
  if (errno == EAGAIN) return 0;
  c->broken = true; /* reading finds the reason, behind the requests that came before */
  return len;
}

/* Sends the replies in the shared buffer. The rest, if the socket does not take all, becomes the connection's. */
static void send_shared(struct c10d_conn *c) {
  struct c10d_server *s = c->server;
  if (s->out.len == 0) return;
  size_t n = send_some(c, s->out.data, s->out.len);
  if (n < s->out.len && s->out.cap > KEEP_OUT) { /* large: the memory itself instead of a copy */
    c->out = s->out;
    c->out_at = n;
    s->out = (struct buf)BUF_INIT;
    account(c, &c->out, 0);
  } else if (n < s->out.len) {
    append(c, &c->out, s->out.data + n, s->out.len - n);
  }
  if (pending(c) > 0) set_deadline(c, &s->stalled, monotonic_ms());
  if (s->out.cap > KEEP_OUT)
    buf_finish(&s->out);
  else
    buf_clear(&s->out);
}

/* The buffer for the next reply: the shared one only if no reply waits in front of it. */
static struct buf *begin_replies(struct c10d_conn *c) {
  if (pending(c) == 0) return &c->server->out;
  if (c->out_at > pending(c)) { /* so that a byte behind a large reply does not move it each time */
    buf_consume(&c->out, c->out_at);
    c->out_at = 0;
  }
  return &c->out;
}

static void end_replies(struct c10d_conn *c, struct buf *out, size_t cap_before) {
  if (out == &c->server->out)
    send_shared(c);
  else
    account(c, out, cap_before);
  check_buffered(c);
}

static void write_waiting(struct c10d_conn *c) {
  if (c->state == CONN_LINGERING) return;
  size_t n = pending(c) > 0 ? send_some(c, c->out.data + c->out_at, pending(c)) : 0;
  c->out_at += n;
  if (n > 0) set_deadline(c, &c->server->stalled, monotonic_ms());
  if (pending(c) > 0) return;
  finish_buf(c, &c->out);
  c->out_at = 0;
  drop_deadline(c);
  if (c->state == CONN_ENDING) linger(c);
}

/* Requests --------------------------------------------------------------------------------------------------------- */

/* Answers the waiters that the last request has released, in the order of their release. This comes before the next
 * request of any client: a client that gives up its wait must find the answer to the wait in front of the answer to
 * CANCEL_WAIT. */
static void answer_released(struct c10d_server *s) {
  struct store_client *client;
  while ((client = store_next_released(s->store))) {
    struct c10d_conn *c = store_client_owner(client);
    struct buf *out = begin_replies(c);
    size_t cap = out->cap;
    c10d_session_released(&c->session, out);
    end_replies(c, out, cap);
    update_polling(c);
  }
}

/* Serves whole requests at the front of data; returns how many bytes they took. */
static size_t feed(struct c10d_conn *c, const char *data, size_t len) {
  struct c10d_server *s = c->server;
  bool was_client = c->session.requests > 0;
  if (!was_client || is_old_client(c)) c->session.companion = has_companion(c);
  size_t used = 0;
  struct buf *out = begin_replies(c);
  size_t cap = out->cap;
  c->session.crowded = !c->broken && is_crowded(s);
  int rc = c10d_session_feed(&c->session, data, len, &used, out, C10D_OUT_SOFT, &s->err);
  bool full = out->len > C10D_OUT_SOFT;
  if (!was_client && c->session.requests == 0) { /* each piece gives its first request time for the next piece */
    set_deadline(c, &s->silent, monotonic_ms());
  } else if (!was_client) {
    drop_deadline(c);
    if (is_old_client(c)) c->origin->n_old++;
  }
  end_replies(c, out, cap);
  if (rc < 0) end_because(c, s->err.text);
  bool open = c->state == CONN_OPEN; /* else `data` may be gone: it may have been `in` */
  bool ambiguous = open && c->session.dialect != C10D_SINCE_2_2 && used < len && (uint8_t)data[used] >= FIRST_AMBIGUOUS;
  if (ambiguous && !c->session.companion && (!c->deadlines || c->deadlines == &s->silent))
    set_deadline(c, &s->unclear, monotonic_ms());
  c->held = open && full && used < len;
  if (open && c->session.waits) {
    /* Until the server is not crowded. Its request is whole. */
    release_room(c);
    enter_turns(&c->server->parked, c);
    c->due |= DUE_OWN;
  }
  answer_released(s);
  return used;
}

static void feed_own(struct c10d_conn *c) {
  if (c->deadlines == &c->server->unclear) drop_deadline(c);
  size_t used = feed(c, c->in.data, c->in.len);
  if (c->state != CONN_OPEN) return; /* `in` is gone */
  if (used == c->in.len) {
    finish_buf(c, &c->in);
    return;
  }
  buf_consume(&c->in, used);
  if (c->in.cap <= BIG_CHUNK || c->in.len > CHUNK || c->granted == 0) return;
  struct buf rest = BUF_INIT; /* frees the memory of the large request in front */
  buf_append(&rest, c->in.data, c->in.len);
  finish_buf(c, &c->in);
  c->in = rest;
  account(c, &c->in, 0);
}

/* Reading ---------------------------------------------------------------------------------------------------------- */

static ssize_t receive(struct c10d_conn *c, void *at, size_t room) {
  ssize_t n;
  do n = recv(c->fd, at, room, MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  return n;
}

/* The rest of a large request goes directly into `in`. */
static ssize_t receive_large(struct c10d_conn *c, size_t room) {
  size_t before = c->in.cap;
  size_t all = c->granted > c->in.len ? c->granted - c->in.len : 0;
  ssize_t n = receive(c, buf_reserve(&c->in, all > room ? all : room), room);
  account(c, &c->in, before);
  if (n <= 0) return n;
  buf_commit(&c->in, (size_t)n);
  if (c->deadlines == &c->server->silent) set_deadline(c, c->deadlines, monotonic_ms());
  if (c->in.len >= c->session.need) feed_own(c);
  check_buffered(c);
  return n;
}

static ssize_t receive_requests(struct c10d_conn *c) {
  size_t missing = c->session.need > c->in.len ? c->session.need - c->in.len : 0;
  if (c->in.len > 0 && missing > CHUNK) return receive_large(c, missing < BIG_CHUNK ? missing : BIG_CHUNK);
  const char *data = c->server->chunk;
  ssize_t n = receive(c, c->server->chunk, CHUNK);
  if (n <= 0) return n;
  end_silence(c);
  if (c->in.len > 0) {
    append(c, &c->in, data, (size_t)n);
    feed_own(c);
  } else {
    size_t used = feed(c, data, (size_t)n);
    if (c->state == CONN_OPEN && used < (size_t)n) append(c, &c->in, data + used, (size_t)n - used);
  }
  check_buffered(c);
  return n;
}

/* True: there may be more. */
static bool read_once(struct c10d_conn *c) {
  ssize_t n = c->state == CONN_OPEN ? receive_requests(c) : receive(c, c->server->chunk, CHUNK);
  if (n > 0) return c->state != CONN_CLOSED;
  if (n < 0 && errno == EAGAIN) return false;
  if (n < 0)
    log_conn(c, LOG_DEBUG, "closed: %s", strerror(errno));
  else
    log_conn(c, LOG_DEBUG, "closed by the peer%s", c->in.len > 0 ? " in the middle of a request" : "");
  if (n == 0 && c->state == CONN_OPEN && pending(c) > 0)
    end_conn(c); /* it may have closed one direction only */
  else
    close_conn(c);
  return false;
}

static void serve_turn(struct c10d_conn *c, unsigned due) {
  if (due & DUE_FAILED) {
    /* The socket has an error, and libuv polls it no more. Requests that were received before are still served. */
    c->events = 0;
    c->broken = true;
    if (c->state == CONN_OPEN && !c->held && !c->session.waits)
      while (read_once(c) && !c->held && !c->session.waits) {
      }
    close_conn(c);
    return;
  }
  if (due & DUE_WRITE) write_waiting(c);
  if ((due & DUE_OWN) && c->state == CONN_OPEN) c->held = true;
  if (c->held && pending(c) <= C10D_OUT_SOFT) feed_own(c);
  bool reads = (c->events & UV_READABLE) && c->state != CONN_CLOSED && !c->held && !waits_for_memory(c);
  if ((due & DUE_READ) && reads) read_once(c);
  if (c->state == CONN_OPEN && !waits_for_memory(c) && !c->held) ask_for_room(c);
  update_polling(c);
}

/* Time ------------------------------------------------------------------------------------------------------------- */

/* The socket holds something that the loop has not come to yet. */
static bool has_input(const struct c10d_conn *c) {
  char byte;
  return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

static void expire_silent(struct c10d_conn *c, uint64_t now_ms) {
  assert(c->deadlines); /* it is on the list whose deadline has passed */
  if (c->due || has_input(c)) {
    set_deadline(c, c->deadlines, now_ms);
  } else if (c->silent && may_keep_silent(c->origin)) {
    drop_deadline(c);
    keep_silent(c);
  } else {
    log_conn(c, LOG_WARN, "closed: it sent %s within %u ms", c->silent ? "nothing" : "no whole request",
             c->deadlines->timeout_ms);
    close_conn(c);
  }
}

/* In 2.1's numbering the request is not whole. It is read once more, now that its companion, if it has one, has
 * settled. */
static void expire_unclear(struct c10d_conn *c) {
  if (c->session.requests > 0)
    drop_deadline(c);
  else
    set_deadline(c, &c->server->silent, monotonic_ms());
  if (c->in.len == 0 || c->held || !has_companion(c)) return;
  c->session.need = 0;
  want_turn(c, DUE_OWN);
}

/* Its request has stopped; that does no harm until others want the room. */
static void expire_filling(struct c10d_conn *c, uint64_t now_ms) {
  if (chain_is_alone(&c->server->wanting) || has_input(c)) {
    set_deadline(c, c->deadlines, now_ms);
    return;
  }
  log_conn(c, LOG_WARN, "closed: its request of %zu bytes stopped for %u ms, and others wait for its memory",
           c->granted, c->deadlines->timeout_ms);
  close_conn(c);
}

static void expire_stalled(struct c10d_conn *c, uint64_t now_ms) {
  write_waiting(c); /* it may have become writable while this process slept */
  if (c->state == CONN_CLOSED || c->deadlines != &c->server->stalled || c->since_ms >= now_ms) {
    update_polling(c);
    return;
  }
  log_conn(c, LOG_WARN, "closed: it does not read: it took none of %zu bytes for %u ms", pending(c),
           c->deadlines->timeout_ms);
  close_conn(c);
}

static struct waiting_caller *first_caller(const struct c10d_server *s) {
  return CHAIN_FIRST(&s->waiting_callers, struct waiting_caller, of_server);
}

static uint64_t caller_deadline(const struct c10d_server *s) {
  const struct waiting_caller *w = first_caller(s);
  return w ? w->since_ms + s->config.decide_ms : UINT64_MAX;
}

static void on_timer(uv_timer_t *timer) {
  struct c10d_server *s = timer->data;
  uint64_t now = monotonic_ms();
  s->timer_at = UINT64_MAX;
  while (now >= first_deadline(&s->silent)) expire_silent(first_due(&s->silent), now);
  while (now >= first_deadline(&s->stalled)) expire_stalled(first_due(&s->stalled), now);
  while (now >= first_deadline(&s->lingering)) close_conn(first_due(&s->lingering));
  while (now >= first_deadline(&s->unclear)) expire_unclear(first_due(&s->unclear));
  while (now >= first_deadline(&s->filling)) expire_filling(first_due(&s->filling), now);
  while (now >= caller_deadline(s)) {
    struct err why = ERR_INIT;
    snprintf(why.text, sizeof(why.text), "no answer within %u ms whether it may come in", s->config.decide_ms);
    const struct c10d_caller *caller = &first_caller(s)->is;
    if (s->config.on_undecided) s->config.on_undecided(s->config.ctx, caller, &why);
    c10d_server_refuse(s, caller->id, why.text);
  }
  if (now >= store_deadline(s->store)) store_expire(s->store, now);
  const struct deadline_list *lists[] = {&s->silent, &s->stalled, &s->lingering, &s->unclear, &s->filling};
  uint64_t at = earliest(store_deadline(s->store), caller_deadline(s));
  for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) at = earliest(at, first_deadline(lists[i]));
  arm_timer(s, at);
  if (s->report_empty && s->n_conns == 0) s->config.on_empty(s->config.ctx);
}

/* New connections -------------------------------------------------------------------------------------------------- */

/* Silent so far. In case of an error fd is closed. */
static int create_conn(struct c10d_server *s, int fd, const struct ipaddr *peer, uint16_t port, struct c10d_conn **out,
                       struct err *e) {
  struct c10d_conn *c = xcalloc(1, sizeof(*c));
  int rc = uv_poll_init(s->loop, &c->poll, fd);
  if (rc < 0) {
    free(c);
    close_descriptor(s, fd);
    return err_sys(e, rc, "cannot poll a connection");
  }
  c->server = s;
  c->fd = fd;
  c->port = port;
  c10d_session_init(&c->session, s->store, c);
  struct origin *o = make_origin(c->server, peer);
  o->n_conns++;
  if (o->n_silent++ == 0) o->silent_since_ms = monotonic_ms();
  c->silent = true;
  c->origin = o;
  chain_append(&s->conns, &c->of_server);
  chain_init(&c->of_turns);
  chain_init(&c->of_deadlines);
  chain_init(&c->of_kept);
  s->n_conns++;
  s->n_accepted++;
  s->open_handles++;
  *out = c;
  return 0;
}

int c10d_server_adopt(struct c10d_server *s, int fd, const struct ipaddr *peer, uint16_t port, const char *data,
                      size_t len, struct err *e) {
  size_t max = s->config.max_connections, per_address = s->config.max_per_address;
  const struct origin *o = per_address ? find_origin(s, peer) : NULL;
  int rc = 0;
  if (max && s->n_conns >= max)
    rc = err_set(e, -EMFILE, "there are %zu connections already, which is the limit", s->n_conns);
  else if (o && o->n_conns >= per_address)
    rc = err_set(e, -EMFILE, "there are %zu connections from its address already, which is the limit", o->n_conns);
  if (rc < 0) {
    close_descriptor(s, fd);
    return rc;
  }
  struct c10d_conn *c;
  rc = create_conn(s, fd, peer, port, &c, e);
  if (rc < 0) return rc;
  set_deadline(c, &s->silent, monotonic_ms());
  if (len > 0) {
    end_silence(c);
    append(c, &c->in, data, len);
    want_turn(c, DUE_OWN);
  }
  update_polling(c);
  return 0;
}

bool c10d_server_adopt_silent(struct c10d_server *s, int fd, const struct ipaddr *peer, uint16_t port) {
  const struct origin *o = find_origin(s, peer);
  if (!o || !may_keep_silent(o)) return false;
  struct c10d_conn *c;
  if (create_conn(s, fd, peer, port, &c, &s->err) == 0) {
    keep_silent(c);
    update_polling(c);
  }
  return true;
}

/* Callers ---------------------------------------------------------------------------------------------------------- */

static int check_callers(const struct c10d_server *s, const struct ipaddr *peer, struct err *e) {
  const struct origin *o = find_origin(s, peer);
  if (s->callers.count >= s->config.max_callers)
    return err_set(e, -EMFILE, "%zu connections wait already to be let in, which is the limit", s->callers.count);
  if (o && o->n_callers >= C10D_CALLERS_PER_ADDRESS_MAX)
    return err_set(e, -EMFILE, "%zu connections from its address wait already to be let in, which is the limit",
                   o->n_callers);
  return 0;
}

/* Its descriptor is the caller's of this function. */
static int take_caller(struct c10d_server *s, struct waiting_caller *w) {
  struct origin *o = find_origin(s, &w->is.from);
  int fd = w->fd;
  chain_remove(&w->of_server);
  map_remove_n(&s->callers, &w->is.id, sizeof(w->is.id));
  o->n_callers--;
  drop_unused_origin(s, o);
  free(w);
  return fd;
}

static void log_refusal(struct c10d_server *s, const struct c10d_caller *c, const char *why) {
  bool says = why && *why;
  log_peer(s, &c->from, c->from_port, says ? LOG_WARN : LOG_DEBUG, "refused: %s", says ? why : "it is gone");
}

/* The owner has been told who has these addresses and ports now. That is not the caller if it was reset meanwhile. */
static void serve_caller(struct c10d_server *s, const struct c10d_caller *caller, int fd) {
  if (s->config.admit && socket_was_reset(fd)) {
    log_refusal(s, caller, NULL);
    close_descriptor(s, fd);
  } else if (c10d_server_adopt(s, fd, &caller->from, caller->from_port, NULL, 0, &s->err) < 0) {
    log_refusal(s, caller, s->err.text);
  }
}

void c10d_server_admit(struct c10d_server *s, uint64_t id) {
  struct waiting_caller *w = map_get_n(&s->callers, &id, sizeof(id));
  if (!w) return;
  struct c10d_caller caller = w->is;
  serve_caller(s, &caller, take_caller(s, w));
}

void c10d_server_refuse(struct c10d_server *s, uint64_t id, const char *why) {
  struct waiting_caller *w = map_get_n(&s->callers, &id, sizeof(id));
  if (!w) return;
  log_refusal(s, &w->is, why);
  close_descriptor(s, take_caller(s, w));
}

static void on_accept(void *ctx, int fd, bool local, const struct ipaddr *peer, uint16_t port) {
  struct c10d_server *s = ctx;
  struct c10d_caller caller = {.id = ++s->last_caller_id, .from = *peer, .from_port = port};
  struct err why = ERR_INIT;
  enum c10d_admission may = C10D_ADMIT;
  socket_local(fd, &caller.to, &caller.to_port);
  if (s->config.admit) may = s->config.admit(s->config.ctx, &caller, &why);
  if (may == C10D_ADMIT) {
    serve_caller(s, &caller, fd);
  } else if (may == C10D_LATER && check_callers(s, peer, &why) == 0) {
    struct waiting_caller *w = xcalloc(1, sizeof(*w));
    w->is = caller;
    w->fd = fd;
    w->since_ms = monotonic_ms();
    chain_append(&s->waiting_callers, &w->of_server);
    map_put_n(&s->callers, &w->is.id, sizeof(w->is.id), w);
    make_origin(s, &caller.from)->n_callers++;
    arm_timer(s, caller_deadline(s));
  } else {
    log_refusal(s, &caller, why.text);
    close_descriptor(s, fd);
  }
}

static void on_pause(void *ctx, int code) {
  struct c10d_server *s = ctx;
  if (code == -EMFILE || code == -ENFILE)
    rations_log(&s->log_lines, "accept", monotonic_ms(), LOG_WARN,
                "%s: no descriptors for more connections (%s): new ones wait", s->name, strerror(-code));
  else
    rations_log(&s->log_lines, "accept", monotonic_ms(), LOG_ERROR, "%s: accept: %s", s->name, strerror(-code));
}

/* The server ------------------------------------------------------------------------------------------------------- */

static void on_acceptor_closed(void *ctx) {
  handle_closed(ctx);
}

static void on_own_closed(uv_handle_t *handle) {
  handle_closed(handle->data);
}

int c10d_server_create(uv_loop_t *loop, const struct c10d_server_config *config, struct c10d_server **out,
                       struct err *e) {
  static const struct acceptor_callbacks callbacks = {on_accept, on_pause, on_acceptor_closed};
  struct c10d_server *s = xcalloc(1, sizeof(*s));
  s->loop = loop;
  uv_timer_init(loop, &s->timer);
  uv_check_init(loop, &s->check);
  uv_idle_init(loop, &s->idle);
  s->timer.data = s->check.data = s->idle.data = s;
  acceptor_init(&s->acceptor, loop, &callbacks, s);
  s->open_handles = 4;
  s->timer_at = UINT64_MAX;
  s->config = *config;
  s->name = xstrdup(config->name);
  if (!s->config.decide_ms) s->config.decide_ms = C10D_DECIDE_MS;
  if (!s->config.max_callers) s->config.max_callers = C10D_CALLERS_MAX;
  if (!s->config.max_buffered) s->config.max_buffered = C10D_BUFFERED_MAX;
  s->store = store_create(&config->store);
  map_init(&s->origins, config->store.seed);
  map_init(&s->callers, config->store.seed);
  rations_init(&s->log_lines, config->store.seed);
  s->silent.timeout_ms = config->silent_ms ? config->silent_ms : C10D_SILENT_MS;
  s->stalled.timeout_ms = config->stall_ms ? config->stall_ms : C10D_STALL_MS;
  s->filling.timeout_ms = s->stalled.timeout_ms;
  s->lingering.timeout_ms = C10D_LINGER_MS;
  s->unclear.timeout_ms = C10D_SETTLE_MS + 5;
  s->chunk = xmalloc(CHUNK);
  struct chain *lists[] = {&s->conns,         &s->waiting_callers, &s->ready,         &s->parked,
                           &s->wanting,       &s->silent.conns,    &s->stalled.conns, &s->lingering.conns,
                           &s->unclear.conns, &s->filling.conns};
  for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) chain_init(lists[i]);
  *out = s;
  return 0;
}

int c10d_server_listen(struct c10d_server *s, int fd, struct err *e) {
  int rc = acceptor_listen(&s->acceptor, fd, false, C10D_USER_TIMEOUT_MS, e);
  return rc < 0 ? err_wrap(e, "%s", s->name) : 0;
}

size_t c10d_server_callers(const struct c10d_server *s) {
  return s->callers.count;
}

size_t c10d_server_connections(const struct c10d_server *s) {
  return s->n_conns;
}

uint64_t c10d_server_accepted(const struct c10d_server *s) {
  return s->n_accepted;
}

const struct store *c10d_server_store(const struct c10d_server *s) {
  return s->store;
}

void c10d_server_shut(struct c10d_server *s) {
  if (s) acceptor_shut(&s->acceptor);
}

static void free_store(uv_work_t *work) { /* in a thread of the pool */
  const struct c10d_server *s = work->data;
  store_destroy(s->forgotten);
}

static void on_store_freed(uv_work_t *work, int status) {
  handle_closed(work->data);
}

void c10d_server_close(struct c10d_server *s, void (*on_closed)(void *ctx), void *ctx) {
  if (!s || s->closing) return;
  s->closing = true;
  s->on_closed = on_closed;
  s->on_closed_ctx = ctx;
  for (struct c10d_conn *c; (c = CHAIN_FIRST(&s->conns, struct c10d_conn, of_server));) close_conn(c);
  for (struct waiting_caller *w; (w = first_caller(s));) close(take_caller(s, w));
  s->forgotten = s->store;
  s->store = NULL;
  s->forgetting.data = s;
  /* Freeing millions of keys takes seconds, in which an agent would be taken for lost. */
  if (store_count(s->forgotten) > FORGET_AT_ONCE && loop_start_pool(s->loop, LOOP_POOL_DAEMON, NULL) == 0 &&
      uv_queue_work(s->loop, &s->forgetting, free_store, on_store_freed) == 0)
    s->open_handles++;
  else
    store_destroy(s->forgotten);
  acceptor_close(&s->acceptor);
  uv_close((uv_handle_t *)&s->timer, on_own_closed);
  uv_close((uv_handle_t *)&s->check, on_own_closed);
  uv_close((uv_handle_t *)&s->idle, on_own_closed);
}
