/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to the round's store: PyTorch's protocol over one socket that never blocks.
 *
 * The first use connects, as PyTorch's client does: VALIDATE and PING go in one packet, and the nonce comes back. Until
 * that has worked, every failure is retried until the deadline, because the store may be about to open. After that
 * nothing is retried: a second store at the same address would be that of another round.
 *
 * `due` lists the answers that the store owes, in the order in which they will come. A call whose deadline passes
 * leaves its entries there, and its unsent bytes in `out`. The next call first finishes them within its own deadline.
 * So a late answer is never taken for another's, at most one call is left over, and nothing blocks.
 *
 * A wait is the one request that is answered out of turn: at once, later, or never. If it is given up, CANCEL_WAIT
 * follows. Then comes either the answer to the cancellation (1), or first the answer to the wait (0) that was on its
 * way. The entry is done when the 1 has come. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
  READ_MIN = 16384,
  KEEP_MAX = 1024 * 1024, /* an empty buffer larger than this is freed */
  RETRY_MS = 20,          /* between the first two attempts to connect; the pause then doubles */
  RETRY_MAX_MS = 500,
};

/* Bytes ------------------------------------------------------------------------------------------------------------ */

char *rdzv_bytes_reserve(struct rdzv_bytes *b, size_t more) {
  if (more > SIZE_MAX / 2 - b->len) return NULL;
  size_t cap = b->cap ? b->cap : 4096;
  while (cap - b->len < more) cap *= 2;
  if (cap == b->cap) return b->data + b->len;
  char *data = realloc(b->data, cap);
  if (!data) return NULL;
  b->data = data;
  b->cap = cap;
  return data + b->len;
}

void rdzv_bytes_drop(struct rdzv_bytes *b, size_t n) {
  if (n == 0 || !b->data) return;
  b->len -= n;
  if (b->len > 0)
    memmove(b->data, b->data + n, b->len);
  else if (b->cap > KEEP_MAX)
    rdzv_bytes_free(b);
}

void rdzv_bytes_free(struct rdzv_bytes *b) {
  free(b->data);
  *b = (struct rdzv_bytes){0};
}

/* End -------------------------------------------------------------------------------------------------------------- */

static int fail_lost(struct rdzv *r) {
  return rdzv_store_fail(r, r->conn.lost_code, "%s", r->conn.lost_text);
}

static int close_lost(struct rdzv *r, int code, const char *why) {
  struct rdzv_conn *c = &r->conn;
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
  c->lost_code = code;
  if (why)
    snprintf(c->lost_text, sizeof(c->lost_text), "%s", why);
  else
    snprintf(c->lost_text, sizeof(c->lost_text),
             "the store closed the connection: the round is over, or node rank 0 (%s) is gone", r->is.head_addr);
  return fail_lost(r);
}

/* The socket has failed. The kernel's error would not help the caller. */
static int close_failed(struct rdzv *r) {
  return close_lost(r, -ECONNRESET, NULL);
}

/* Waits for `events`. Errors: -ETIMEDOUT, -ECANCELED, -EINTR, or the agent is lost. */
static int wait_io(struct rdzv *r, short events, uint64_t deadline) {
  for (;;) {
    /* Before the wait too: an earlier call may have received the request. */
    if (rdzv_must_rejoin(r))
      return rdzv_store_fail(r, -ECANCELED, "the round is ending; rdzv_rejoin waits for the next one");
    if (r->waits && rdzv_is_interrupted(r)) return rdzv_store_fail(r, -EINTR, "interrupted");
    struct pollfd p[2] = {{.fd = r->conn.fd, .events = events}, {.fd = r->fd, .events = POLLIN}};
    int ms = rdzv_poll_ms(r, deadline), n = poll(p, 2, ms);
    if (n > 0 && p[1].revents) {
      int rc = rdzv_hear_agent(r);
      if (rc) return rc;
      continue;
    }
    if (n > 0 && p[0].revents) return 0;
    if (n == 0 && ms == 0) return rdzv_store_fail(r, -ETIMEDOUT, "the store did not answer in time");
    if (n < 0 && errno != EINTR) return rdzv_store_fail(r, -errno, "%s", strerror(errno));
  }
}

/* Traffic ---------------------------------------------------------------------------------------------------------- */

/* Sends all of `out`. */
static int flush(struct rdzv *r, uint64_t deadline) {
  struct rdzv_conn *c = &r->conn;
  size_t sent = 0;
  int rc = 0;
  while (rc == 0 && sent < c->out.len) {
    ssize_t n = send(c->fd, c->out.data + sent, c->out.len - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n >= 0)
      sent += (size_t)n;
    else if (errno == EAGAIN || errno == EWOULDBLOCK)
      rc = wait_io(r, POLLOUT, deadline);
    else if (errno != EINTR)
      return close_failed(r);
  }
  rdzv_bytes_drop(&c->out, sent);
  return rc;
}

/* Reads some bytes into `in`; at least `need` are expected in all. */
static int receive(struct rdzv *r, size_t need, uint64_t deadline) {
  struct rdzv_conn *c = &r->conn;
  size_t room = need > c->in.len + READ_MIN ? need - c->in.len : READ_MIN;
  char *at = rdzv_bytes_reserve(&c->in, room);
  if (!at) return rdzv_store_fail(r, -ENOMEM, "out of memory for %zu bytes", need);
  for (;;) {
    ssize_t n = recv(c->fd, at, c->in.cap - c->in.len, MSG_DONTWAIT);
    if (n > 0) return c->in.len += (size_t)n, 0;
    if (n == 0) return close_failed(r);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return close_failed(r);
    int rc = wait_io(r, POLLIN, deadline);
    if (rc) return rc;
  }
}

/* Looks for the answer to d at in[at..]. 1: it takes *size bytes. 0: more are needed, *size in all. Negative: the
 * connection is lost. */
static int parse(struct rdzv *r, const struct rdzv_due *d, size_t at, struct c10d_progress *p,
                 struct c10d_reply *answer, size_t *size) {
  const struct rdzv_bytes *in = &r->conn.in;
  size_t left = in->len - at;
  *size = 1;
  if (left == 0 || !in->data) return 0;
  const char *bytes = in->data + at, *why = "";
  if (d->cancelled) {
    *size += bytes[0] == 0; /* the wait had been answered already */
    if (left < *size) return 0;
    return bytes[*size - 1] == 1
               ? 1
               : close_lost(r, -EPROTO, "the peer is not a store: it did not confirm the cancelled wait");
  }
  int rc = c10d_parse_reply(d->op, d->count, bytes, left, p, answer, size, &why);
  if (rc >= 0) return rc;
  char text[sizeof(r->conn.lost_text)];
  snprintf(text, sizeof(text), "the store's answer is malformed: %s", why);
  return close_lost(r, -EPROTO, text);
}

/* Reads until all answers that are due are there, and stores them. answers NULL: discards them. The second pass parses
 * again, because `in` may move while it grows. */
static int collect(struct rdzv *r, struct c10d_reply *answers, uint64_t deadline) {
  struct rdzv_conn *c = &r->conn;
  struct c10d_reply unused;
  size_t size = 0, at = 0;
  while (c->n_seen < c->n_due) {
    int rc = parse(r, &c->due[c->n_seen], c->seen, &c->progress, &unused, &size);
    if (rc == 0)
      rc = receive(r, c->seen + size, deadline);
    else if (rc == 1) {
      c->seen += size;
      c->n_seen++;
      c->progress = (struct c10d_progress){0};
      rc = 0;
    }
    if (rc) return rc;
  }
  for (size_t i = 0; answers && i < c->n_due; i++, at += size)
    parse(r, &c->due[i], at, &(struct c10d_progress){0}, &answers[i], &size);
  c->taken = c->seen;
  c->seen = c->n_seen = c->n_due = 0;
  return 0;
}

static int due_add(struct rdzv_conn *c, enum c10d_op op, uint64_t count) {
  if (c->n_due == c->cap_due) {
    size_t cap = c->cap_due ? c->cap_due * 2 : 8;
    struct rdzv_due *due = realloc(c->due, cap * sizeof(*due));
    if (!due) return -ENOMEM;
    c->due = due;
    c->cap_due = cap;
  }
  c->due[c->n_due++] = (struct rdzv_due){.op = op, .count = count};
  return 0;
}

/* Appends requests to `out`: all or none. */
static int encode(struct rdzv *r, const struct c10d_request *q, size_t n) {
  struct rdzv_conn *c = &r->conn;
  size_t len = c->out.len;
  for (size_t i = 0; i < n; i++) {
    size_t size = c10d_encode(C10D_SINCE_2_2, &q[i], NULL, 0);
    char *at = rdzv_bytes_reserve(&c->out, size);
    if (!at || (c10d_has_reply(q[i].op) && due_add(c, q[i].op, q[i].count))) {
      c->out.len = len;
      c->n_due = 0;
      return rdzv_store_fail(r, -ENOMEM, "out of memory for %zu bytes", size);
    }
    c->out.len += c10d_encode(C10D_SINCE_2_2, &q[i], at, size);
  }
  return 0;
}

/* Drops the memory of the last answers. */
static void forget(struct rdzv_conn *c) {
  rdzv_bytes_drop(&c->in, c->taken);
  c->taken = 0;
}

/* The deadline has passed, or the call was interrupted. The answers stay due, and a wait is cancelled. */
static void give_up(struct rdzv *r) {
  struct rdzv_conn *c = &r->conn;
  struct rdzv_due *last = c->n_due ? &c->due[c->n_due - 1] : NULL;
  if (!last || last->cancelled || (last->op != C10D_WAIT && last->op != C10D_BARRIER)) return;
  struct c10d_request cancel = {.op = C10D_CANCEL_WAIT};
  size_t size = c10d_encode(C10D_SINCE_2_2, &cancel, NULL, 0);
  char *at = rdzv_bytes_reserve(&c->out, size);
  if (!at) {
    close_lost(r, -ENOMEM, "out of memory");
    return;
  }
  c->out.len += c10d_encode(C10D_SINCE_2_2, &cancel, at, size);
  last->cancelled = true;
  flush(r, 0);
}

/* Connecting ------------------------------------------------------------------------------------------------------- */

static void hang_up(struct rdzv_conn *c) {
  if (c->fd >= 0) close(c->fd);
  c->fd = -1;
  c->n_due = c->n_seen = c->seen = c->taken = 0;
  c->progress = (struct c10d_progress){0};
  rdzv_bytes_drop(&c->out, c->out.len);
  rdzv_bytes_drop(&c->in, c->in.len);
}

/* Connects a socket. -EAGAIN: *sys is an error that may pass. */
static int connect_to(struct rdzv *r, const struct addrinfo *ai, uint64_t deadline, int *sys) {
  struct rdzv_conn *c = &r->conn;
  c->fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (c->fd < 0) return rdzv_store_fail(r, -errno, "no socket: %s", strerror(errno));
  int one = 1, idle = 10, every = 5, times = 3;
  setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
  setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
  setsockopt(c->fd, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
  if (connect(c->fd, ai->ai_addr, ai->ai_addrlen) == 0) return 0;
  *sys = errno;
  if (errno != EINPROGRESS && errno != EINTR) return -EAGAIN;
  int rc = wait_io(r, POLLOUT, deadline);
  if (rc) return rc;
  socklen_t len = sizeof(*sys);
  getsockopt(c->fd, SOL_SOCKET, SO_ERROR, sys, &len);
  return *sys ? -EAGAIN : 0;
}

/* VALIDATE and PING, as one packet. */
static int greet(struct rdzv *r, uint64_t deadline, int *sys) {
  int64_t nonce = (int64_t)(uint32_t)getpid();
  struct c10d_request q[2] = {{.op = C10D_VALIDATE, .number = C10D_VALIDATE_MAGIC}, {.op = C10D_PING, .number = nonce}};
  struct c10d_reply pong = {0};
  int rc = encode(r, q, 2);
  if (!rc) rc = flush(r, deadline);
  if (!rc) rc = collect(r, &pong, deadline);
  forget(&r->conn);
  if (rc == -ECONNRESET && r->conn.lost_code) { /* not accepted yet, or no longer */
    r->conn.lost_code = 0;
    *sys = ECONNRESET;
    return -EAGAIN;
  }
  if (!rc && (uint32_t)pong.number != (uint32_t)nonce)
    rc = close_lost(r, -EPROTO, "the peer is not a store: it did not return the greeting");
  return rc;
}

static int connect_store(struct rdzv *r, const struct addrinfo *ai, uint64_t deadline) {
  uint64_t pause = RETRY_MS;
  for (;;) {
    int sys = 0, rc = connect_to(r, ai, deadline, &sys);
    if (rc == 0) rc = greet(r, deadline, &sys);
    if (rc == 0) return 0;
    hang_up(&r->conn);
    if (rc != -EAGAIN && rc != -ETIMEDOUT) return rc;
    uint64_t now = rdzv_now_ms();
    if (rc == -ETIMEDOUT || now >= deadline) {
      if (sys == 0 || sys == EINPROGRESS)
        return rdzv_store_fail(r, -ETIMEDOUT, "no answer from %s port %u in time", r->is.head_addr, r->is.store_port);
      return rdzv_store_fail(r, -sys, "%s port %u: %s; the round is over, or node rank 0 is gone", r->is.head_addr,
                             r->is.store_port, strerror(sys));
    }
    rc = wait_io(r, 0, now + pause < deadline ? now + pause : deadline);
    if (rc != -ETIMEDOUT) return rc ? rc : -EPROTO;
    pause = pause * 2 < RETRY_MAX_MS ? pause * 2 : RETRY_MAX_MS;
  }
}

static int open_store(struct rdzv *r, uint64_t deadline) {
  struct addrinfo hint = {.ai_family = AF_UNSPEC,
                          .ai_socktype = SOCK_STREAM,
                          .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV},
                  *ai;
  char port[8];
  if (r->is.store_port == 0)
    return rdzv_store_fail(r, -ENOTSUP, "this job has no store: its agents run with --store worker");
  snprintf(port, sizeof(port), "%u", r->is.store_port & 0xffff);
  int rc = getaddrinfo(r->is.head_addr, port, &hint, &ai);
  if (rc)
    return rdzv_store_fail(r, -EPROTO, "the agent reports that the store is at \"%s\": %s", r->is.head_addr,
                           gai_strerror(rc));
  rc = connect_store(r, ai, deadline);
  freeaddrinfo(ai);
  return rc;
}

/* Requests --------------------------------------------------------------------------------------------------------- */

/* Afterwards the connection is open, with nothing to send and nothing due. */
static int finish_old_calls(struct rdzv *r, uint64_t deadline) {
  struct rdzv_conn *c = &r->conn;
  int rc = rdzv_hear_agent(r);
  if (rc) return rc;
  if (c->lost_code) return fail_lost(r);
  forget(c);
  if (c->fd < 0) return open_store(r, deadline);
  rc = flush(r, deadline);
  if (!rc) rc = collect(r, NULL, deadline);
  if (rc) return rc;
  forget(c);
  /* Nothing is due: the store must be there and silent. */
  char byte;
  ssize_t n = recv(r->conn.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  bool nothing = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
  if (n > 0 || r->conn.in.len) return close_lost(r, -EPROTO, "the store sent an answer that was not due");
  return nothing ? 0 : close_failed(r);
}

int rdzv_conn_ask(struct rdzv *r, const struct c10d_request *q, size_t n, struct c10d_reply *answers,
                  uint64_t deadline) {
  int rc = finish_old_calls(r, deadline);
  if (!rc) rc = encode(r, q, n);
  if (rc) return rc;
  rc = flush(r, deadline);
  if (!rc) rc = collect(r, answers, deadline);
  if (rc == -ETIMEDOUT || rc == -EINTR) give_up(r);
  return rc;
}

void rdzv_conn_reset(struct rdzv *r) {
  struct rdzv_conn *c = &r->conn;
  hang_up(c);
  free(c->due);
  rdzv_bytes_free(&c->out);
  rdzv_bytes_free(&c->in);
  *c = (struct rdzv_conn){.fd = -1};
}

/* With unread answers the kernel would reset the connection, and our last requests might be lost. */
void rdzv_conn_finish(struct rdzv *r) {
  r->waits = false;
  if (r->conn.fd >= 0) finish_old_calls(r, rdzv_deadline_in(RDZV_LATE_MS));
  rdzv_conn_reset(r);
}
