/* One connection of a store's server: the way of bytes.
 *
 *   readable -> in line -> recv -> whole requests -> c10d_session_feed -> replies -> send -> waiters that it released -> send
 *
 * A request costs two system calls, and with pipelining two for many: everything is read into one buffer of the server and answered
 * from another, both shared by all connections, because only one has its turn at a time. A connection has buffers of its own only while something
 * lies in between: the beginning of a request whose end has not come (`in`), replies that the socket did not take (`out`). So
 * ten thousand connections at rest hold no buffer at all. What all of them hold together is limited; who asks for much waits for room (c10d_turn.c), and who would exceed it all the same goes.
 *
 * A turn (c10d_turn.c) is one recv: C10D_CHUNK bytes of requests, or C10D_BIG_CHUNK inside one large request, and replies until
 * C10D_OUT_SOFT of them wait. The rest is left to its next turn, behind everybody else's. Requests that were read
 * already are then `held`: they lie in `in`, and nothing is read, until the socket is writable again.
 *
 * Whom a request released is answered before the next request of anybody is looked at: a client that gives up its wait must find the
 * answer, if there is one, in front of the answer to its giving up. That is not split over turns: it is one small send for each.
 *
 * The end comes in two ways. The peer's end, or an error of the socket: what it sent before is still obeyed (a process may set a
 * key and exit), then the connection goes at once. Our end, because of what it said: what was answered before is written, then the direction is
 * shut down and what still comes is dropped for a while; to close with unread bytes would be a reset that overtakes those answers. */

#include "proto/c10d_conn.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/log.h"
#include "common/mem.h"

enum { FIRST_AMBIGUOUS = 7 }; /* of the old numbers: see c10d_place.c */

#define say(c, level, ...) c10d_server_say((c)->server, &(c)->place->addr, (c)->port, level, __VA_ARGS__)

static size_t pending(const struct c10d_conn *c) {
  return c->out.len - c->out_at;
}

static bool is_parked(const struct c10d_conn *c) {
  return c->line == &c->server->parked || c->line == &c->server->wanting;
}

/* Buffers of its own ----------------------------------------------------------------------------------------------- */

/* b has changed since its capacity was `before`. */
static void account(struct c10d_conn *c, const struct buf *b, size_t before) {
  c->server->buffered += b->cap - before;
  if (b != &c->out) return;
  c->server->buffered_out += b->cap - before;
  c10d_turn_room(c->server);
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

/* What is polled for ----------------------------------------------------------------------------------------------- */

static void on_event(uv_poll_t *poll, int status, int events);

static void watch(struct c10d_conn *c) {
  bool reads = c->state == C10D_CONN_LINGERING ||
               (c->state == C10D_CONN_OPEN && !c->held && !is_parked(c) && pending(c) <= C10D_OUT_SOFT);
  int events = (reads ? UV_READABLE : 0) | (pending(c) > 0 || c->held ? UV_WRITABLE : 0);
  if (c->state == C10D_CONN_CLOSED || events == c->events) return;
  c->events = events;
  if (uv_poll_start(&c->poll, events, on_event) < 0) c10d_conn_close(c);
}

/* The end ---------------------------------------------------------------------------------------------------------- */

static void on_handle_closed(uv_handle_t *handle) {
  struct c10d_conn *c = (struct c10d_conn *)handle;
  struct c10d_server *s = c->server;
  free(c);
  c10d_server_handle_closed(s);
}

void c10d_conn_close(struct c10d_conn *c) {
  if (c->state == C10D_CONN_CLOSED) return;
  struct c10d_server *s = c->server;
  if (c->state == C10D_CONN_OPEN) c10d_session_finish(&c->session, c10d_now_ms());
  c->state = C10D_CONN_CLOSED;
  c->held = false;
  c10d_turn_drop(c);
  c10d_room_release(c);
  c10d_queue_drop(c);
  finish_buf(c, &c->in);
  finish_buf(c, &c->out);
  *(c->prev ? &c->prev->next : &s->first) = c->next;
  if (c->next) c->next->prev = c->prev;
  s->n_conns--;
  struct c10d_conn *silent = c10d_place_leave(c);
  uv_close((uv_handle_t *)&c->poll, on_handle_closed);
  close(c->fd);
  if (silent) c10d_conn_close(silent);
  c10d_server_conn_gone(s);
}

static void linger(struct c10d_conn *c) {
  c->state = C10D_CONN_LINGERING;
  if (shutdown(c->fd, SHUT_WR) < 0) {
    c10d_conn_close(c);
    return;
  }
  c10d_queue_put(&c->server->lingering, c, c10d_now_ms());
}

/* No more requests; what was answered is still written. */
static void end(struct c10d_conn *c) {
  c->state = C10D_CONN_ENDING;
  c->held = false;
  finish_buf(c, &c->in);
  if (is_parked(c)) c10d_turn_drop(c);
  c10d_room_release(c);
  c10d_queue_drop(c);
  c10d_session_finish(&c->session, c10d_now_ms());
  if (pending(c) == 0)
    linger(c);
  else
    c10d_queue_put(&c->server->stalled, c, c10d_now_ms());
}

static void end_because(struct c10d_conn *c, const char *why) {
  if (c->state != C10D_CONN_OPEN) return;
  say(c, LOG_WARN, "closed: %s", why);
  end(c);
}

/* Its buffers have grown. */
static void check_buffered(struct c10d_conn *c) {
  struct c10d_server *s = c->server;
  if (c->state != C10D_CONN_OPEN || s->buffered <= s->config.max_buffered) return;
  finish_buf(c, &c->out);
  c->out_at = 0;
  char why[128];
  snprintf(why, sizeof(why),
           "requests that are not whole and replies that wait, of all connections, exceed %zu MiB",
           s->config.max_buffered >> 20);
  end_because(c, why);
}

static void end_of_stream(struct c10d_conn *c, ssize_t n) {
  if (n < 0)
    say(c, LOG_DEBUG, "closed: %s", strerror(errno));
  else
    say(c, LOG_DEBUG, "closed by the peer%s", c->in.len > 0 ? " in the middle of a request" : "");
  if (n == 0 && c->state == C10D_CONN_OPEN && pending(c) > 0)
    end(c); /* it may have closed one direction only */
  else
    c10d_conn_close(c);
}

/* Writing ---------------------------------------------------------------------------------------------------------- */

/* How many bytes need not be thought of any more: all of them, if nobody can have them. */
static size_t send_some(struct c10d_conn *c, const char *data, size_t len) {
  if (c->broken) return len;
  ssize_t n;
  do n = send(c->fd, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  if (n >= 0) return (size_t)n;
  if (errno == EAGAIN) return 0;
  c->broken = true; /* reading tells why, after what was sent before */
  return len;
}

/* The shared buffer's bytes from `at` on become the connection's. */
static void keep_rest(struct c10d_conn *c, size_t at) {
  struct c10d_server *s = c->server;
  if (s->out.cap > C10D_KEEP_OUT) { /* large: the memory itself, instead of a copy */
    c->out = s->out;
    c->out_at = at;
    s->out = (struct buf)BUF_INIT;
    account(c, &c->out, 0);
  } else {
    append(c, &c->out, s->out.data + at, s->out.len - at);
  }
  c10d_queue_put(&s->stalled, c, c10d_now_ms());
}

/* Sends what was appended to the shared buffer. */
static void send_shared(struct c10d_conn *c) {
  struct c10d_server *s = c->server;
  if (s->out.len == 0) return;
  size_t n = send_some(c, s->out.data, s->out.len);
  if (n < s->out.len) keep_rest(c, n);
  if (s->out.cap > C10D_KEEP_OUT)
    buf_finish(&s->out);
  else
    buf_clear(&s->out);
}

/* Where the next reply goes: directly to the socket only if nothing waits in front of it. */
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

/* Whoever was released by the request before, in the order of the releases. */
static void answer_released(struct c10d_server *s) {
  struct store_client *client;
  while ((client = store_next_released(s->store))) {
    struct c10d_conn *c = store_client_owner(client);
    struct buf *out = begin_replies(c);
    size_t cap = out->cap;
    c10d_session_released(&c->session, out);
    end_replies(c, out, cap);
    watch(c);
  }
}

/* Requests --------------------------------------------------------------------------------------------------------- */

/* It may be 1.13's, and its companion too young to be told from any client that has just connected. */
static void look_again(struct c10d_conn *c) {
  bool may = !c->queue || c->queue == &c->server->silent;
  if (may && !c->session.companion) c10d_queue_put(&c->server->unclear, c, c10d_now_ms());
}

/* A first byte is soon said: it is a client when its first request is whole. Until then each piece gives it time for the next. */
static void note_identity(struct c10d_conn *c) {
  if (c->known) return;
  if (c->session.requests == 0) {
    c10d_queue_put(&c->server->silent, c, c10d_now_ms());
    return;
  }
  c->known = true;
  c10d_queue_drop(c);
  if (c->session.dialect != C10D_SINCE_2_2) c10d_place_is_old(c);
}

/* Obeys whole requests at the front of data; returns how many bytes they took. */
static size_t feed(struct c10d_conn *c, const char *data, size_t len) {
  struct c10d_server *s = c->server;
  if (!c->known || c->old) c->session.companion = c10d_place_has_companion(c);
  size_t used = 0;
  struct buf *out = begin_replies(c);
  size_t cap = out->cap;
  c->session.crowded = !c->broken && c10d_is_crowded(s);
  int rc = c10d_session_feed(&c->session, data, len, &used, out, C10D_OUT_SOFT, &s->err);
  bool full = out->len > C10D_OUT_SOFT;
  note_identity(c);
  end_replies(c, out, cap);
  if (rc < 0) end_because(c, s->err.text);
  bool open = c->state == C10D_CONN_OPEN; /* else data may be gone, if it was `in` */
  bool is_old = c->session.known && c->session.dialect != C10D_SINCE_2_2;
  if (open && is_old && used < len && (uint8_t)data[used] >= FIRST_AMBIGUOUS) look_again(c);
  c->held = open && full && used < len;
  if (open && c->session.waits) c10d_turn_park(c);
  answer_released(s);
  return used;
}

static void feed_own(struct c10d_conn *c) {
  if (c->queue == &c->server->unclear) c10d_queue_drop(c);
  size_t used = feed(c, c->in.data, c->in.len);
  if (c->state != C10D_CONN_OPEN) return; /* and `in` is gone */
  if (used == c->in.len) {
    finish_buf(c, &c->in);
    return;
  }
  buf_consume(&c->in, used);
  if (c->in.cap <= C10D_BIG_CHUNK || c->in.len > C10D_CHUNK || c->granted == 0) return;
  struct buf rest = BUF_INIT; /* behind a large request */
  buf_append(&rest, c->in.data, c->in.len);
  finish_buf(c, &c->in);
  c->in = rest;
  account(c, &c->in, 0);
}

static void feed_chunk(struct c10d_conn *c, const char *data, size_t len) {
  if (c->silent) c10d_place_spoke(c);
  if (c->in.len > 0) {
    append(c, &c->in, data, len);
    feed_own(c);
  } else {
    size_t used = feed(c, data, len);
    if (c->state == C10D_CONN_OPEN && used < len) append(c, &c->in, data + used, len - used);
  }
  check_buffered(c);
}

/* Reading ---------------------------------------------------------------------------------------------------------- */

static ssize_t receive(struct c10d_conn *c, void *at, size_t room) {
  ssize_t n;
  do n = recv(c->fd, at, room, MSG_DONTWAIT);
  while (n < 0 && errno == EINTR);
  return n;
}

/* The rest of a large request goes where it is needed, without the shared buffer. */
static ssize_t receive_large(struct c10d_conn *c, size_t room) {
  size_t before = c->in.cap;
  size_t all = c->granted > c->in.len ? c->granted - c->in.len : 0;
  ssize_t n = receive(c, buf_reserve(&c->in, all > room ? all : room), room);
  account(c, &c->in, before);
  if (n <= 0) return n;
  buf_commit(&c->in, (size_t)n);
  if (c->queue == &c->server->silent) c10d_queue_put(c->queue, c, c10d_now_ms());
  if (c->in.len >= c->session.need) feed_own(c);
  check_buffered(c);
  return n;
}

static ssize_t receive_requests(struct c10d_conn *c) {
  size_t missing = c->session.need > c->in.len ? c->session.need - c->in.len : 0;
  if (c->in.len > 0 && missing > C10D_CHUNK)
    return receive_large(c, missing < C10D_BIG_CHUNK ? missing : C10D_BIG_CHUNK);
  ssize_t n = receive(c, c->server->chunk, C10D_CHUNK);
  if (n > 0) feed_chunk(c, c->server->chunk, (size_t)n);
  return n;
}

/* True: there may be more. */
static bool take(struct c10d_conn *c) {
  ssize_t n = c->state == C10D_CONN_OPEN ? receive_requests(c) : receive(c, c->server->chunk, C10D_CHUNK);
  if (n > 0) return c->state != C10D_CONN_CLOSED;
  if (n < 0 && errno == EAGAIN) return false;
  end_of_stream(c, n);
  return false;
}

/* The socket has an error; what was received before it is still to be obeyed. libuv polls no more. */
static void take_last(struct c10d_conn *c) {
  c->events = 0;
  c->broken = true; /* replies need not wait */
  if (c->state == C10D_CONN_OPEN && !c->held && !c->session.waits)
    while (take(c) && !c->held && !c->session.waits) {
    }
  c10d_conn_close(c);
}

static void write_waiting(struct c10d_conn *c) {
  if (c->state == C10D_CONN_LINGERING) return;
  size_t n = pending(c) > 0 ? send_some(c, c->out.data + c->out_at, pending(c)) : 0;
  c->out_at += n;
  if (n > 0) c10d_queue_put(&c->server->stalled, c, c10d_now_ms());
  if (pending(c) > 0) return;
  finish_buf(c, &c->out);
  c->out_at = 0;
  c10d_queue_drop(c);
  if (c->state == C10D_CONN_ENDING) linger(c);
}

static void on_event(uv_poll_t *poll, int status, int events) {
  struct c10d_conn *c = (struct c10d_conn *)poll;
  if (status < 0)
    c10d_turn_put(c, C10D_DUE_FAILED);
  else
    c10d_turn_put(c, ((events & UV_READABLE) ? C10D_DUE_READ : 0) |
                         ((events & UV_WRITABLE) ? C10D_DUE_WRITE : 0));
}

void c10d_conn_serve(struct c10d_conn *c, unsigned due) {
  if (due & C10D_DUE_FAILED) {
    take_last(c);
    return;
  }
  if (due & C10D_DUE_WRITE) write_waiting(c);
  if ((due & C10D_DUE_OWN) && c->state == C10D_CONN_OPEN) c->held = true;
  if (c->held && pending(c) <= C10D_OUT_SOFT) feed_own(c);
  bool reads = (c->events & UV_READABLE) && c->state != C10D_CONN_CLOSED && !c->held && !is_parked(c);
  if ((due & C10D_DUE_READ) && reads) take(c);
  if (c->state == C10D_CONN_OPEN && !is_parked(c) && !c->held) c10d_room_ask(c);
  watch(c);
}

/* Beginning and deadlines ------------------------------------------------------------------------------------------ */

int c10d_conn_create(struct c10d_server *s, int fd, const struct ipaddr *addr, uint16_t port,
                     struct c10d_conn **out, struct err *e) {
  struct c10d_conn *c = xcalloc(1, sizeof(*c));
  int rc = uv_poll_init(s->loop, &c->poll, fd);
  if (rc < 0) {
    free(c);
    close(fd);
    return err_sys(e, rc, "cannot poll a connection");
  }
  c->server = s;
  c->fd = fd;
  c->port = port;
  c10d_session_init(&c->session, s->store, c);
  c10d_place_enter(c, addr, c10d_now_ms());
  c->next = s->first;
  if (s->first) s->first->prev = c;
  s->first = c;
  s->n_conns++;
  s->open_handles++;
  *out = c;
  return 0;
}

void c10d_conn_start(struct c10d_conn *c, const char *data, size_t len) {
  c10d_queue_put(&c->server->silent, c, c10d_now_ms());
  if (len > 0) {
    c10d_place_spoke(c);
    append(c, &c->in, data, len);
    c10d_turn_put(c, C10D_DUE_OWN);
  }
  watch(c);
}

void c10d_conn_keep(struct c10d_conn *c) {
  c10d_queue_drop(c);
  c10d_place_keep(c);
  watch(c);
}

/* Something lies in the socket that the loop has not come to yet. */
static bool is_about_to_speak(const struct c10d_conn *c) {
  char byte;
  return recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

static void expire_silent(struct c10d_conn *c, uint64_t now_ms) {
  if (c->due || is_about_to_speak(c)) {
    c10d_queue_put(c->queue, c, now_ms);
  } else if (c->silent && c10d_place_may_keep(c->place)) {
    c10d_conn_keep(c);
  } else {
    say(c, LOG_WARN, "closed: it %s within %u ms", c->silent ? "said nothing" : "did not say what it is",
        c->queue->timeout_ms);
    c10d_conn_close(c);
  }
}

/* Read as 2.1's the request is not whole; once more, now that its companion, if it has one, can be seen. Once. */
static void expire_unclear(struct c10d_conn *c) {
  if (c->known)
    c10d_queue_drop(c);
  else
    c10d_queue_put(&c->server->silent, c, c10d_now_ms());
  if (c->in.len == 0 || c->held || !c10d_place_has_companion(c)) return;
  c->session.need = 0;
  c10d_turn_put(c, C10D_DUE_OWN);
}

/* Its request has not gone on; that hurts nobody until others want the room. */
static void expire_filling(struct c10d_conn *c, uint64_t now_ms) {
  if (!c->server->wanting.first || is_about_to_speak(c)) {
    c10d_queue_put(c->queue, c, now_ms);
    return;
  }
  say(c, LOG_WARN,
      "closed: nothing more came of a request of %zu bytes for %u ms, and others wait for its room",
      c->granted, c->queue->timeout_ms);
  c10d_conn_close(c);
}

void c10d_conn_expire(struct c10d_conn *c, uint64_t now_ms) {
  if (c->queue == &c->server->silent) {
    expire_silent(c, now_ms);
    return;
  }
  if (c->queue == &c->server->unclear) {
    expire_unclear(c);
    return;
  }
  if (c->queue == &c->server->filling) {
    expire_filling(c, now_ms);
    return;
  }
  if (c->queue == &c->server->stalled) {
    write_waiting(c); /* it may have become writable while this process slept */
    if (c->state == C10D_CONN_CLOSED || c->queue != &c->server->stalled || c->since_ms >= now_ms) {
      watch(c);
      return;
    }
    say(c, LOG_WARN, "closed: it does not read: it took none of %zu bytes for %u ms", pending(c),
        c->queue->timeout_ms);
  }
  c10d_conn_close(c);
}
