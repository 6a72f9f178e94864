/* Collectives on a ring of TCP connections. ring_op.c knows which bytes go where; this file moves them.
 *
 * Each rank has two sockets: `prev`, from which data comes, and `next`, to which data goes. Data is cut
 * into frames of some ten to hundred KB as it becomes ready, so that all links of the ring are busy at the
 * same time, and so that a word can be put in between. The other direction of each socket carries no data,
 * only such words:
 *
 *   DATA     the next bytes of the collective that is under way
 *   WAITING  "I am alive, but have nothing to send, because I wait for rank R": each second to the next
 *            rank. So when the deadline passes, everybody names the rank that is silent, and not merely
 *            the neighbour.
 *   ABORT    "I give up, because of rank R", with a sentence; to both neighbours, who pass it on.
 *   BYE      "I have all I needed": what follows on this socket is its end, and no failure.
 *
 * Everything happens in pump(): take what is there, send what is ready, a frame's worth of each in turn, so
 * that bytes are still in the cache when they are passed on and neighbours work at the same time; and only
 * if neither moved anything, poll. The deadline counts from the last byte that moved, so it needs no guess
 * about sizes. Collectives are worked off in order.
 *
 * Received sums go through a scratch buffer (frames do not end where floats do), all else goes straight to
 * its place. */

#include "agent/trainer/coll_tcp.h"

#include "agent/trainer/coll/ring_op.h"
#include "common/buf.h"
#include "common/mem.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
  HEAD = 8,
  TEXT_MAX = 400,        /* bytes of an ABORT's sentence */
  FRAME_MIN = 16 * 1024, /* less is not worth a frame, unless it ends a segment */
  FRAME_MAX = 256 * 1024,
  SCRATCH = 256 * 1024,
  NOTE_MS = 1000,    /* between two WAITING; less where the deadlines are short */
  NOTE_FRESH = 3,    /* so many of these long is one believed */
  FAREWELL_MS = 200, /* how long last words may take */
};

enum frame { FRAME_DATA = 1, FRAME_WAITING, FRAME_ABORT, FRAME_BYE };

/* The receiving end of one connection. A head is {type, code, le16 text length or number of the
 * collective, le32 bytes or rank}. */
struct inbox {
  int fd, peer;
  uint8_t head[HEAD];
  size_t head_n;
  uint32_t data_left; /* of a DATA frame */
  char text[TEXT_MAX + 1];
  size_t text_n, text_want;
  bool bye, closed;
};

struct ring {
  struct coll base;
  uint64_t timeout_ms, stop_wait_ms, stop_seen_ms, note_ms;
  const volatile sig_atomic_t *stop;
  struct inbox prev, next;
  struct ring_op ops[COLL_TICKETS_MAX]; /* number k is ops[k % COLL_TICKETS_MAX] */
  uint64_t begun, done;
  uint8_t tx_head[HEAD];
  size_t tx_head_left, tx_left; /* of the frame that is on its way to next */
  const uint8_t *tx_data;
  bool tx_note, tx_full;
  int told;                             /* the rank that prev waits for, or -1 */
  uint64_t told_ms, moved_ms, noted_ms; /* when: prev told so, a byte of data moved, we told next */
  struct err failed;
  size_t carry; /* bytes of an incomplete element at the beginning of scratch */
  uint8_t scratch[SCRATCH] __attribute__((aligned(64)));
};

static struct ring_op *current(struct ring *r) {
  return r->done < r->begun ? &r->ops[r->done % COLL_TICKETS_MAX] : NULL;
}

static void put_head(uint8_t h[HEAD], enum frame type, uint8_t code, uint16_t number, uint32_t value) {
  h[0] = (uint8_t)type;
  h[1] = code;
  le16_put(h + 2, number);
  le32_put(h + 4, value);
}

/* Bytes that must go before we do, for FAREWELL_MS at most. */
static bool send_last(int fd, const void *data, size_t n) {
  uint64_t end = coll_now_ms() + FAREWELL_MS;
  for (const char *p = data; n > 0;) {
    ssize_t k = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k > 0) {
      p += k;
      n -= (size_t)k;
      continue;
    }
    uint64_t now = coll_now_ms();
    if ((errno != EAGAIN && errno != EINTR) || now >= end) return false;
    struct pollfd out = {.fd = fd, .events = POLLOUT};
    poll(&out, 1, (int)(end - now));
  }
  return true;
}

/* Last words to both neighbours. A frame that is half sent has to be ended first: its bytes are there. */
static void farewell(struct ring *r, const uint8_t *words, size_t n) {
  send_last(r->prev.fd, words, n);
  if (r->next.closed) return;
  bool ok = send_last(r->next.fd, r->tx_head + HEAD - r->tx_head_left, r->tx_head_left);
  if (ok && r->tx_left) ok = send_last(r->next.fd, r->tx_data, r->tx_left);
  r->tx_head_left = r->tx_left = 0;
  if (ok) send_last(r->next.fd, words, n);
}

/* The end of this ring: remembered, told to the neighbours, and given to the caller. */
static int give_up(struct ring *r, int code, int lost, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
static int give_up(struct ring *r, int code, int lost, struct err *e, const char *fmt, ...) {
  uint8_t words[HEAD + TEXT_MAX];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(r->failed.text, TEXT_MAX, fmt, ap);
  va_end(ap);
  r->failed.code = code;
  r->base.lost = lost;
  size_t n = strlen(r->failed.text);
  put_head(words, FRAME_ABORT, 0, (uint16_t)n, (uint32_t)lost);
  memcpy(words + HEAD, r->failed.text, n);
  farewell(r, words, HEAD + n);
  return err_set(e, code, "%s", r->failed.text);
}

static int closed_by(struct ring *r, const struct inbox *in, struct err *e) {
  if (in->bye) return give_up(r, -ECONNRESET, in->peer, e, "rank %d has left the run already", in->peer);
  return give_up(r, -ECONNRESET, in->peer, e,
                 "lost contact with rank %d: its connection closed (seen by rank %d)", in->peer,
                 r->base.rank);
}

static int bad_frame(struct ring *r, const struct inbox *in, struct err *e) {
  return give_up(r, -EPROTO, in->peer, e,
                 "rank %d sent what does not belong into this collective (seen by rank %d)", in->peer,
                 r->base.rank);
}

static int got_abort(struct ring *r, struct inbox *in, struct err *e) {
  uint32_t lost = le32_get(in->head + 4);
  for (size_t i = 0; i < in->text_n; i++)
    if ((unsigned char)in->text[i] < ' ' || in->text[i] == 127) in->text[i] = '?';
  in->text[in->text_n] = 0;
  if (lost >= (uint32_t)r->base.world) return bad_frame(r, in, e);
  return give_up(r, -ECONNABORTED, (int)lost, e, "%s", in->text);
}

/* A whole head is there. */
static int got_head(struct ring *r, struct inbox *in, struct err *e) {
  uint32_t value = le32_get(in->head + 4), number = le16_get(in->head + 2);
  switch ((enum frame)in->head[0]) {
  case FRAME_DATA:
    if (in != &r->prev || value == 0 || value > FRAME_MAX || number != (uint16_t)r->done)
      return bad_frame(r, in, e);
    in->data_left = value;
    break;
  case FRAME_WAITING:
    if (in != &r->prev || value >= (uint32_t)r->base.world) return bad_frame(r, in, e);
    r->told = (int)value;
    r->told_ms = coll_now_ms();
    break;
  case FRAME_ABORT:
    if (number > TEXT_MAX) return bad_frame(r, in, e);
    in->text_want = number;
    in->text_n = 0;
    if (number == 0) return got_abort(r, in, e);
    return 0; /* the head stays until the text is there */
  case FRAME_BYE: in->bye = true; break;
  default: return bad_frame(r, in, e);
  }
  in->head_n = 0;
  return 0;
}

/* recv: > 0 bytes, 0 nothing there now (also at the end, which sets closed). */
static size_t take(struct inbox *in, void *to, size_t max) {
  ssize_t n = recv(in->fd, to, max, MSG_DONTWAIT);
  if (n > 0) return (size_t)n;
  if (n == 0 || (errno != EAGAIN && errno != EINTR)) in->closed = true;
  return 0;
}

/* Heads and texts, up to the next data. True while there may be more. */
static int take_words(struct ring *r, struct inbox *in, bool *more, struct err *e) {
  size_t n;
  *more = false;
  if (in->head_n < HEAD) {
    n = take(in, in->head + in->head_n, HEAD - in->head_n);
    in->head_n += n;
    *more = n > 0;
    return in->head_n == HEAD ? got_head(r, in, e) : 0;
  }
  n = take(in, in->text + in->text_n, in->text_want - in->text_n); /* only an ABORT keeps its head */
  in->text_n += n;
  *more = n > 0;
  return in->text_n == in->text_want ? got_abort(r, in, e) : 0;
}

static int take_data(struct ring *r, struct ring_op *op, bool *moved, struct err *e) {
  struct inbox *in = &r->prev;
  uint8_t *at = NULL;
  size_t room = ring_op_in(op, &at), n;
  if (in->data_left + r->carry > op->total_in - op->in) return bad_frame(r, in, e);
  if (!ring_op_reduces(op)) {
    n = take(in, at, in->data_left < room ? in->data_left : room);
    ring_op_stored(op, n);
  } else {
    size_t max = (room < SCRATCH ? room : SCRATCH) - r->carry;
    n = take(in, r->scratch + r->carry, in->data_left < max ? in->data_left : max);
    size_t have = r->carry + n, rest = have % op->elem_size;
    ring_op_add(op, r->scratch, have - rest);
    memmove(r->scratch, r->scratch + have - rest, rest);
    r->carry = rest;
  }
  in->data_left -= (uint32_t)n;
  *moved |= n > 0;
  return 0;
}

/* From prev, as long as the collective wants input, up to a frame's worth. */
static int receive(struct ring *r, bool *moved, struct err *e) {
  struct ring_op *op = current(r);
  size_t enough = op->in + FRAME_MAX < op->total_in ? op->in + FRAME_MAX : op->total_in;
  int rc = 0;
  while (rc == 0 && op->in < enough && !r->prev.closed) {
    bool more = false;
    if (r->prev.data_left)
      rc = take_data(r, op, &more, e);
    else {
      rc = take_words(r, &r->prev, &more, e);
      if (more) continue;
    }
    *moved |= more;
    if (!more) break;
  }
  if (rc == 0 && op->in < op->total_in && r->prev.closed) rc = closed_by(r, &r->prev, e);
  return rc;
}

/* From next come only words. */
static int listen_to_next(struct ring *r, struct err *e) {
  bool more = !r->next.closed;
  int rc = 0;
  while (rc == 0 && more) rc = take_words(r, &r->next, &more, e);
  if (rc || !r->next.closed) return rc;
  struct ring_op *op = current(r);
  return !r->next.bye || (op && op->out < op->total_out) ? closed_by(r, &r->next, e) : 0;
}

/* The rank that the current collective waits for, as far as we know. */
static int blame(struct ring *r) {
  struct ring_op *op = current(r);
  if (op->in == op->total_in) return r->next.peer;
  bool fresh =
      r->told >= 0 && r->told != r->base.rank && coll_now_ms() - r->told_ms < NOTE_FRESH * r->note_ms;
  return fresh ? r->told : r->prev.peer;
}

/* The next frame, if there is something to say. */
static bool next_frame(struct ring *r, struct ring_op *op) {
  if (r->tx_note) {
    r->tx_note = false;
    put_head(r->tx_head, FRAME_WAITING, 0, 0, (uint32_t)blame(r));
  } else {
    r->tx_left = ring_op_out(op, FRAME_MIN, FRAME_MAX, &r->tx_data);
    if (r->tx_left == 0) return false;
    put_head(r->tx_head, FRAME_DATA, 0, (uint16_t)r->done, (uint32_t)r->tx_left);
  }
  r->tx_head_left = HEAD;
  return true;
}

/* What is left of the frame that is on its way, else the next one. */
static int transmit(struct ring *r, bool *moved, struct err *e) {
  struct ring_op *op = current(r);
  r->tx_full = false;
  if (!r->tx_head_left && !r->tx_left && !next_frame(r, op)) return 0;
  while (r->tx_head_left || r->tx_left) {
    uint8_t *data = (uint8_t *)(uintptr_t)r->tx_data; /* iovec is not const */
    struct iovec v[2] = {{r->tx_head + HEAD - r->tx_head_left, r->tx_head_left}, {data, r->tx_left}};
    struct msghdr msg = {.msg_iov = v, .msg_iovlen = 2};
    ssize_t n = sendmsg(r->next.fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      r->tx_full = true;
      return 0;
    }
    if (n < 0) { /* it may have told us why */
      int rc = listen_to_next(r, e);
      r->next.closed = true;
      return rc ? rc : closed_by(r, &r->next, e);
    }
    size_t head = (size_t)n < r->tx_head_left ? (size_t)n : r->tx_head_left, data_n = (size_t)n - head;
    r->tx_head_left -= head;
    r->tx_data += data_n;
    r->tx_left -= data_n;
    if (data_n) ring_op_sent(op, data_n);
    *moved |= data_n > 0;
  }
  return 0;
}

/* Until when to wait for the next byte. */
static uint64_t deadline(struct ring *r) {
  uint64_t at = r->moved_ms + r->timeout_ms;
  if (!r->stop || !*r->stop) return at;
  if (!r->stop_seen_ms) r->stop_seen_ms = coll_now_ms();
  uint64_t from = r->stop_seen_ms > r->moved_ms ? r->stop_seen_ms : r->moved_ms;
  return from + r->stop_wait_ms < at ? from + r->stop_wait_ms : at;
}

static int wait_for_bytes(struct ring *r, struct err *e) {
  struct ring_op *op = current(r);
  uint64_t now = coll_now_ms(), end = deadline(r);
  if (now >= end) {
    int who = blame(r);
    return give_up(r, -ETIMEDOUT, who, e,
                   "lost contact with rank %d: it sent nothing for %.1f s in %s %llu (rank %d waited)", who,
                   (double)(now - r->moved_ms) / 1000, op->name, (unsigned long long)r->done, r->base.rank);
  }
  uint64_t note = (r->noted_ms > r->moved_ms ? r->noted_ms : r->moved_ms) + r->note_ms;
  if (now >= note && op->in < op->total_in) {
    r->noted_ms = now;
    r->tx_note = true;
    return 0;
  }
  if (note > now && note < end) end = note;
  struct pollfd p[2] = {
      {.fd = op->in < op->total_in ? r->prev.fd : -1, .events = POLLIN},
      {.fd = r->next.closed ? -1 : r->next.fd, .events = (short)(POLLIN | (r->tx_full ? POLLOUT : 0))},
  };
  uint64_t ms = end - now < NOTE_MS ? end - now : NOTE_MS;
  int n = poll(p, 2, (int)ms);
  if (n < 0 && errno != EINTR)
    return give_up(r, -errno, r->base.rank, e, "rank %d gave up: poll: %s", r->base.rank, strerror(errno));
  return n > 0 && (p[1].revents & ~POLLOUT) ? listen_to_next(r, e) : 0;
}

/* Works until `upto` collectives are done, or, without `block`, as long as something moves. */
static int pump(struct ring *r, uint64_t upto, bool block, struct err *e) {
  if (r->failed.code) return err_set(e, r->failed.code, "%s", r->failed.text);
  if (block && r->done < upto) r->moved_ms = coll_now_ms();
  while (r->done < upto) {
    bool moved = false;
    int rc = receive(r, &moved, e);
    if (rc == 0) rc = transmit(r, &moved, e);
    if (rc) return rc;
    if (ring_op_done(current(r)) && r->tx_head_left == 0) {
      r->done++;
      continue;
    }
    if (moved) {
      r->moved_ms = coll_now_ms();
      continue;
    }
    if (!block) return 0;
    rc = wait_for_bytes(r, e);
    if (rc) return rc;
  }
  return 0;
}

static int begin(struct ring *r, struct ring_op op, struct coll_ticket *t, struct err *e) {
  if (r->failed.code) return err_set(e, r->failed.code, "%s", r->failed.text);
  if (r->begun - r->done == COLL_TICKETS_MAX) {
    int rc = pump(r, r->done + 1, true, e);
    if (rc) return rc;
  }
  r->ops[r->begun++ % COLL_TICKETS_MAX] = op;
  t->n = r->begun;
  return pump(r, r->begun, false, e);
}

static int finish_one(struct ring *r, struct ring_op op, struct err *e) {
  struct coll_ticket t = {0};
  int rc = begin(r, op, &t, e);
  return rc ? rc : pump(r, t.n, true, e);
}

static int tcp_begin(struct coll *l, struct compute *c, struct span s, struct coll_ticket *t, struct err *e) {
  struct ring *r = (struct ring *)l;
  float *data = compute_host(c, s);
  if (!data) return err_set(e, -ENOTSUP, "the TCP ring needs gradients in host memory");
  return begin(r, ring_all_reduce(data, s.n, RING_F32, l->rank, l->world), t, e);
}

static int tcp_wait(struct coll *l, struct coll_ticket t, struct err *e) {
  return pump((struct ring *)l, t.n, true, e);
}

static int tcp_progress(struct coll *l, struct err *e) {
  struct ring *r = (struct ring *)l;
  return pump(r, r->begun, false, e);
}

static int tcp_sum(struct coll *l, double *v, size_t n, struct err *e) {
  if (n > COLL_SUM_MAX) return err_set(e, -EINVAL, "sum of %zu numbers; at most %d", n, COLL_SUM_MAX);
  return finish_one((struct ring *)l, ring_all_reduce(v, n, RING_F64, l->rank, l->world), e);
}

static int tcp_broadcast(struct coll *l, void *data, size_t n, int root, struct err *e) {
  return finish_one((struct ring *)l, ring_broadcast(data, n, root, l->rank, l->world), e);
}

static void tcp_abort(struct coll *l, const char *why) {
  struct ring *r = (struct ring *)l;
  if (!r->failed.code) give_up(r, -ECONNABORTED, l->rank, NULL, "rank %d gave up: %s", l->rank, why);
}

static void tcp_destroy(struct coll *l) {
  struct ring *r = (struct ring *)l;
  uint8_t bye[HEAD];
  put_head(bye, FRAME_BYE, 0, 0, 0);
  if (!r->failed.code) farewell(r, bye, HEAD);
  shutdown(r->prev.fd, SHUT_WR);
  shutdown(r->next.fd, SHUT_WR);
  close(r->prev.fd);
  close(r->next.fd);
  free(r);
}

static const struct coll_ops tcp_ops = {
    .name = "tcp",
    .destroy = tcp_destroy,
    .all_reduce_begin = tcp_begin,
    .wait = tcp_wait,
    .progress = tcp_progress,
    .sum = tcp_sum,
    .broadcast = tcp_broadcast,
    .abort = tcp_abort,
};

int coll_tcp_create(const struct coll_tcp_config *cfg, struct coll **out, struct err *e) {
  int prev, next, lost;
  int rc = coll_tcp_meet(cfg, &prev, &next, &lost, e);
  if (rc) return rc;
  struct ring *r = aligned_alloc(64, (sizeof *r + 63) & ~(size_t)63);
  if (!r) abort();
  memset(r, 0, offsetof(struct ring, scratch));
  r->base = (struct coll){.ops = &tcp_ops, .rank = cfg->rank, .world = cfg->world, .lost = -1};
  r->timeout_ms = cfg->timeout_ms;
  r->stop_wait_ms = cfg->stop_wait_ms;
  r->stop = cfg->stop;
  uint64_t shortest = cfg->stop && cfg->stop_wait_ms < cfg->timeout_ms ? cfg->stop_wait_ms : cfg->timeout_ms;
  r->note_ms = shortest / 4 > NOTE_MS ? NOTE_MS : shortest / 4 + 1;
  r->told = -1;
  r->prev = (struct inbox){.fd = prev, .peer = (cfg->rank + cfg->world - 1) % cfg->world};
  r->next = (struct inbox){.fd = next, .peer = (cfg->rank + 1) % cfg->world};
  *out = &r->base;
  return 0;
}
