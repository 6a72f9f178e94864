/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives on a ring of TCP connections. ring_op.c knows which bytes go where; this file moves them.
 *
 * Each rank has two sockets. Data comes from `prev` and goes to `next`, in frames of at most 256 KB as it becomes
 * ready. So all links of the ring work at the same time, and other frames fit in between. The reverse direction of each
 * socket carries no data:
 *
 *   DATA      the next bytes of the current collective
 *   WAITING   "I am alive but have nothing to send, because I wait for rank R": each second to the next rank. So at the
 *             deadline every rank names the silent one, and not merely its neighbour.
 *   ABORT     "I give up because of rank R", with a message: to both neighbours, which forward it
 *   BYE       "I need nothing more": the end of this socket that follows is not a failure
 *
 * pump() does all the work: it receives what is there and sends what is ready, one frame of each in turn, so that bytes
 * are still in the cache when they are forwarded. The deadline counts from the last byte that moved, so it does not
 * depend on sizes. Received sums go through a scratch buffer, because frames do not end where floats do.
 *
 * The ring forms by one rdzv_exchange ("coll_tcp"): every rank gives its address, its port and a secret of 16 random
 * bytes. Then it connects to the next rank with a hello that holds the next rank's secret, and accepts the rank before
 * it.
 *
 *   hello    "RDZVRING" version rank world round secret      40 bytes
 *   answer   "RDZVOKAY"                                      8 bytes
 *
 * For some milliseconds anybody can connect to that port. A connection that does not send the whole hello with our
 * secret within HELLO_MS is closed, and at most NEWCOMERS_MAX of them exist at a time. */

#include "agent/trainer/coll/coll.h"

#include "agent/trainer/coll/ring_op.h"
#include "common/buf.h"
#include "common/system/clock.h"
#include "common/mem.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* Forming the ring. ------------------------------------------------------------------------------------------------ */

enum { SECRET = 16, HELLO = 40, ANSWER = 8, VERSION = 1, HELLO_MS = 5000, NEWCOMERS_MAX = 16, ADDR_MAX = 64 };

static const char hello_magic[8] = {'R', 'D', 'Z', 'V', 'R', 'I', 'N', 'G'};
static const char answer_magic[ANSWER] = {'R', 'D', 'Z', 'V', 'O', 'K', 'A', 'Y'};

/* A rank's card for the others: bytes only, so there is no padding. */
struct card {
  char addr[ADDR_MAX];
  uint8_t port[2]; /* little-endian */
  uint8_t secret[SECRET];
};

struct newcomer {
  int fd;
  uint64_t since_ms;
  size_t got;
  uint8_t hello[HELLO];
};

enum next_state { NEXT_CONNECTING, NEXT_SENT, NEXT_UP };

struct meet {
  const struct coll_config *cfg;
  int listener, prev, next;
  enum next_state state;
  struct card mine, *cards;
  size_t answered; /* bytes of the answer received */
  struct newcomer newcomers[NEWCOMERS_MAX];
  int n_newcomers;
};

static int rank_next(const struct meet *m) {
  return (m->cfg->rank + 1) % m->cfg->world;
}
static int rank_prev(const struct meet *m) {
  return (m->cfg->rank + m->cfg->world - 1) % m->cfg->world;
}

static int resolve_numeric(const char *addr, uint16_t port, bool any, struct addrinfo **out, struct err *e) {
  char service[8];
  struct addrinfo hint = {
      .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
  snprintf(service, sizeof service, "%u", port);
  if (any) hint.ai_flags |= AI_PASSIVE;
  int rc = getaddrinfo(addr, service, &hint, out);
  return rc ? err_set(e, -EINVAL, "'%s' is not a numeric address: %s", addr, gai_strerror(rc)) : 0;
}

/* Listens at the node's address, or on any address if that one is not local (behind address translation, as in some
 * containers). */
static int listen_at(struct meet *m, struct err *e) {
  struct addrinfo *ai;
  int rc = resolve_numeric(m->cfg->node_addr, 0, false, &ai, e);
  if (rc) return rc;
  struct sockaddr_storage sa = {0};
  socklen_t len = ai->ai_addrlen;
  memcpy(&sa, ai->ai_addr, len);
  freeaddrinfo(ai);
  int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return err_sys(e, -errno, "socket for the ring");
  m->listener = fd;
  rc = bind(fd, (struct sockaddr *)&sa, len);
  if (rc < 0 && errno == EADDRNOTAVAIL) {
    struct sockaddr_storage any = {.ss_family = sa.ss_family}; /* all zero is the wildcard of both families */
    rc = bind(fd, (struct sockaddr *)&any, len);
  }
  if (rc < 0 || listen(fd, NEWCOMERS_MAX) < 0) return err_sys(e, -errno, "cannot listen at %s", m->cfg->node_addr);
  len = sizeof sa;
  if (getsockname(fd, (struct sockaddr *)&sa, &len) < 0) return err_sys(e, -errno, "getsockname");
  uint16_t port = sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&sa)->sin6_port
                                           : ((struct sockaddr_in *)(void *)&sa)->sin_port;
  le16_put(m->mine.port, ntohs(port));
  return 0;
}

static void make_hello(const struct meet *m, const uint8_t *secret, uint32_t rank, uint8_t out[HELLO]) {
  memcpy(out, hello_magic, 8);
  le32_put(out + 8, VERSION);
  le32_put(out + 12, rank);
  le32_put(out + 16, (uint32_t)m->cfg->world);
  le32_put(out + 20, m->cfg->round);
  memcpy(out + 24, secret, SECRET);
}

static int next_error(const struct meet *m, int code, const char *what, struct err *e) {
  const struct card *c = &m->cards[rank_next(m)];
  return err_sys(e, code, "%s rank %d at %.*s port %u", what, rank_next(m), ADDR_MAX - 1, c->addr, le16_get(c->port));
}

static int connect_next(struct meet *m, struct err *e) {
  struct card *c = &m->cards[rank_next(m)];
  struct addrinfo *ai;
  c->addr[ADDR_MAX - 1] = 0;
  int rc = resolve_numeric(c->addr, le16_get(c->port), false, &ai, e), one = 1;
  if (rc) return err_wrap(e, "address of rank %d", rank_next(m));
  m->next = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (m->next < 0)
    rc = err_sys(e, -errno, "socket for the ring");
  else if (connect(m->next, ai->ai_addr, ai->ai_addrlen) < 0 && errno != EINPROGRESS && errno != EINTR)
    rc = next_error(m, -errno, "cannot connect to", e);
  if (m->next >= 0) setsockopt(m->next, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  freeaddrinfo(ai);
  return rc;
}

/* The connection to the next rank can be written or read. */
static int on_next_ready(struct meet *m, struct err *e) {
  int code = 0;
  socklen_t len = sizeof code;
  if (m->state == NEXT_CONNECTING) {
    uint8_t hello[HELLO];
    getsockopt(m->next, SOL_SOCKET, SO_ERROR, &code, &len);
    if (code) return next_error(m, -code, "cannot connect to", e);
    make_hello(m, m->cards[rank_next(m)].secret, (uint32_t)m->cfg->rank, hello);
    if (send(m->next, hello, HELLO, MSG_NOSIGNAL) != HELLO) return next_error(m, -errno, "cannot send a hello to", e);
    m->state = NEXT_SENT;
    return 0;
  }
  char answer[ANSWER];
  ssize_t n = recv(m->next, answer, ANSWER - m->answered, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) return next_error(m, n < 0 ? -errno : -ECONNRESET, "no answer from", e);
  if (memcmp(answer, answer_magic + m->answered, (size_t)n) != 0)
    return next_error(m, -EPROTO, "an unexpected answer from", e);
  m->answered += (size_t)n;
  if (m->answered == ANSWER) m->state = NEXT_UP;
  return 0;
}

/* 1: this is the rank before us. 0: not known yet. -1: drop it. */
static int read_hello(struct meet *m, struct newcomer *s) {
  uint8_t want[HELLO];
  ssize_t n = recv(s->fd, s->hello + s->got, HELLO - s->got, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) return -1;
  s->got += (size_t)n;
  make_hello(m, m->mine.secret, (uint32_t)rank_prev(m), want);
  if (memcmp(s->hello, want, s->got < 24 ? s->got : 24) != 0) return -1;
  if (s->got < HELLO) return 0;
  unsigned differ = 0; /* in constant time, so the duration reveals nothing of the secret */
  for (int i = 24; i < HELLO; i++) differ |= (unsigned)(s->hello[i] ^ want[i]);
  return differ ? -1 : 1;
}

static int poll_sockets(struct meet *m, struct err *e) {
  struct pollfd p[2 + NEWCOMERS_MAX];
  bool room = m->prev < 0 && m->n_newcomers < NEWCOMERS_MAX;
  int n = m->n_newcomers;
  p[0] = (struct pollfd){.fd = room ? m->listener : -1, .events = POLLIN};
  p[1] = (struct pollfd){.fd = m->state == NEXT_UP ? -1 : m->next,
                         .events = m->state == NEXT_CONNECTING ? POLLOUT : POLLIN};
  for (int i = 0; i < n; i++) p[2 + i] = (struct pollfd){.fd = m->newcomers[i].fd, .events = POLLIN};
  if (poll(p, (nfds_t)(2 + n), COLL_ASK_MS) < 0) return errno == EINTR ? 0 : err_sys(e, -errno, "poll");
  uint64_t now = monotonic_ms();
  int kept = 0;
  for (int i = 0; i < n; i++) {
    struct newcomer *s = &m->newcomers[i];
    int who = p[2 + i].revents ? read_hello(m, s) : 0;
    if (who == 1 && m->prev < 0 && send(s->fd, answer_magic, ANSWER, MSG_NOSIGNAL) == ANSWER)
      m->prev = s->fd;
    else if (who != 0 || now - s->since_ms > HELLO_MS)
      close(s->fd);
    else
      m->newcomers[kept++] = *s;
  }
  m->n_newcomers = kept;
  while (p[0].revents && m->n_newcomers < NEWCOMERS_MAX) {
    int one = 1, fd = accept4(m->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) break;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    m->newcomers[m->n_newcomers++] = (struct newcomer){.fd = fd, .since_ms = monotonic_ms()};
  }
  return p[1].revents ? on_next_ready(m, e) : 0;
}

/* Two connected, non-blocking sockets: m->prev was accepted from rank-1, m->next was made to rank+1. */
static int form_ring(struct meet *m, struct err *e) {
  const struct coll_config *cfg = m->cfg;
  struct card *mine = &m->mine;
  int rc = listen_at(m, e), before = rank_prev(m), next = rank_next(m);
  if (rc) return rc;
  if (strlen(cfg->node_addr) >= sizeof mine->addr)
    return err_set(e, -EINVAL, "'%s' is too long for an address", cfg->node_addr);
  memcpy(mine->addr, cfg->node_addr, strlen(cfg->node_addr));
  if (getrandom(mine->secret, SECRET, 0) != SECRET) return err_sys(e, -errno, "getrandom");
  m->cards = xcalloc((size_t)cfg->world, sizeof *m->cards);
  rc = cfg->exchange(cfg->exchange_ctx, "coll_tcp", mine, sizeof *mine, m->cards, (int)cfg->timeout_ms, e);
  if (rc) return err_wrap(e, "the ranks could not exchange their addresses");

  uint64_t deadline_ms = monotonic_ms() + cfg->timeout_ms;
  unsigned long long seconds = cfg->timeout_ms / 1000;
  rc = connect_next(m, e);
  while (rc == 0 && (m->prev < 0 || m->state != NEXT_UP)) {
    rc = poll_sockets(m, e);
    if (rc == 0 && monotonic_ms() > deadline_ms) {
      if (m->prev < 0 && m->state != NEXT_UP && before != next)
        return err_set(e, -ETIMEDOUT, "neither rank %d nor rank %d was there to form the ring within %llu s", before,
                       next, seconds);
      return err_set(e, -ETIMEDOUT, "rank %d was not there to form the ring within %llu s", m->prev < 0 ? before : next,
                     seconds);
    }
    if (rc == 0 && cfg->stop && *cfg->stop) rc = err_set(e, -ECANCELED, "stopped while the ring was forming");
    if (rc == 0 && cfg->asked && (rc = cfg->asked(cfg->asked_ctx, e))) return rc;
  }
  return rc;
}

/* The collectives. ------------------------------------------------------------------------------------------------- */

enum {
  HEAD = 8,
  TEXT_MAX = 400,        /* bytes of the message of an ABORT */
  FRAME_MIN = 16 * 1024, /* shorter frames are sent only at the end of a segment */
  FRAME_MAX = 256 * 1024,
  SCRATCH = 256 * 1024,
  NOTE_MS = 1000,    /* between two WAITING; shorter if the deadlines are short */
  NOTE_FRESH = 3,    /* a WAITING is believed for this many NOTE_MS */
  FAREWELL_MS = 200, /* how long an ABORT or a BYE may take */
};

enum frame { FRAME_DATA = 1, FRAME_WAITING, FRAME_ABORT, FRAME_BYE };

/* The receiving end of one connection. A head is {type, code, le16 text length or number of the collective, le32 bytes
 * or rank}. */
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
  struct coll_config cfg;
  uint64_t stop_seen_ms, note_ms;
  struct inbox prev, next;
  struct ring_op ops[COLL_TICKETS_MAX]; /* collective k is ops[k % COLL_TICKETS_MAX] */
  uint64_t begun, done;
  uint8_t tx_head[HEAD];
  size_t tx_head_left, tx_left; /* of the frame being sent to next */
  const uint8_t *tx_data;
  bool tx_note, tx_full;
  int prev_waits_for;     /* the rank that prev waits for, or -1 */
  uint64_t prev_waits_ms; /* when prev sent that */
  uint64_t moved_ms;      /* when a byte of data last moved */
  uint64_t noted_ms;      /* when we last sent WAITING to next */
  uint64_t asked_ms;
  struct err failed;
  size_t carry; /* bytes of an incomplete element at the start of scratch */
  uint8_t scratch[SCRATCH] __attribute__((aligned(64)));
};

static struct ring_op *current_op(struct ring *r) {
  return r->done < r->begun ? &r->ops[r->done % COLL_TICKETS_MAX] : NULL;
}

static void put_head(uint8_t h[HEAD], enum frame type, uint8_t code, uint16_t number, uint32_t value) {
  h[0] = (uint8_t)type;
  h[1] = code;
  le16_put(h + 2, number);
  le32_put(h + 4, value);
}

/* Sends these bytes before the connection closes, for FAREWELL_MS at most. */
static bool send_last(int fd, const void *data, size_t n) {
  uint64_t end = monotonic_ms() + FAREWELL_MS;
  for (const char *p = data; n > 0;) {
    ssize_t k = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (k > 0) {
      p += k;
      n -= (size_t)k;
      continue;
    }
    uint64_t now = monotonic_ms();
    if ((errno != EAGAIN && errno != EINTR) || now >= end) return false;
    struct pollfd out = {.fd = fd, .events = POLLOUT};
    poll(&out, 1, (int)(end - now));
  }
  return true;
}

/* Sends a final frame to both neighbours. A half-sent frame is finished first, because its receiver waits for the
 * rest. */
static void send_farewell(struct ring *r, const uint8_t *words, size_t n) {
  send_last(r->prev.fd, words, n);
  if (r->next.closed) return;
  bool ok = send_last(r->next.fd, r->tx_head + HEAD - r->tx_head_left, r->tx_head_left);
  if (ok && r->tx_left) ok = send_last(r->next.fd, r->tx_data, r->tx_left);
  r->tx_head_left = r->tx_left = 0;
  if (ok) send_last(r->next.fd, words, n);
}

/* Ends the ring: remembers the failure, sends it to the neighbours, and returns it to the caller. */
__attribute__((format(printf, 5, 6))) static int give_up(struct ring *r, int code, int lost, struct err *e,
                                                         const char *fmt, ...) {
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
  send_farewell(r, words, HEAD + n);
  return err_set(e, code, "%s", r->failed.text);
}

static int closed_by(struct ring *r, const struct inbox *in, struct err *e) {
  if (in->bye) return give_up(r, -ECONNRESET, in->peer, e, "rank %d has left the run already", in->peer);
  return give_up(r, -ECONNRESET, in->peer, e, "lost contact with rank %d: its connection closed (seen by rank %d)",
                 in->peer, r->base.rank);
}

static int bad_frame(struct ring *r, const struct inbox *in, struct err *e) {
  return give_up(r, -EPROTO, in->peer, e, "rank %d sent an unexpected frame (seen by rank %d)", in->peer, r->base.rank);
}

static int on_abort(struct ring *r, struct inbox *in, struct err *e) {
  uint32_t lost = le32_get(in->head + 4);
  for (size_t i = 0; i < in->text_n; i++)
    if ((unsigned char)in->text[i] < ' ' || in->text[i] == 127) in->text[i] = '?';
  in->text[in->text_n] = 0;
  if (lost >= (uint32_t)r->base.world) return bad_frame(r, in, e);
  return give_up(r, -ECONNABORTED, (int)lost, e, "%s", in->text);
}

/* A complete head was received. */
static int on_head(struct ring *r, struct inbox *in, struct err *e) {
  uint32_t value = le32_get(in->head + 4), number = le16_get(in->head + 2);
  switch ((enum frame)in->head[0]) {
  case FRAME_DATA:
    if (in != &r->prev || value == 0 || value > FRAME_MAX || number != (uint16_t)r->done) return bad_frame(r, in, e);
    in->data_left = value;
    break;
  case FRAME_WAITING:
    if (in != &r->prev || value >= (uint32_t)r->base.world) return bad_frame(r, in, e);
    r->prev_waits_for = (int)value;
    r->prev_waits_ms = monotonic_ms();
    break;
  case FRAME_ABORT:
    if (number > TEXT_MAX) return bad_frame(r, in, e);
    in->text_want = number;
    in->text_n = 0;
    if (number == 0) return on_abort(r, in, e);
    return 0; /* the head stays until the text is complete */
  case FRAME_BYE: in->bye = true; break;
  default: return bad_frame(r, in, e);
  }
  in->head_n = 0;
  return 0;
}

/* The bytes received; 0: none now. Sets closed at the end of the connection. */
static size_t receive_some(struct inbox *in, void *to, size_t max) {
  ssize_t n = recv(in->fd, to, max, MSG_DONTWAIT);
  if (n > 0) return (size_t)n;
  if (n == 0 || (errno != EAGAIN && errno != EINTR)) in->closed = true;
  return 0;
}

/* Receives heads and texts, up to the next data. *more: there may be more. */
static int receive_words(struct ring *r, struct inbox *in, bool *more, struct err *e) {
  size_t n;
  *more = false;
  if (in->head_n < HEAD) {
    n = receive_some(in, in->head + in->head_n, HEAD - in->head_n);
    in->head_n += n;
    *more = n > 0;
    return in->head_n == HEAD ? on_head(r, in, e) : 0;
  }
  n = receive_some(in, in->text + in->text_n, in->text_want - in->text_n); /* only an ABORT keeps its head */
  in->text_n += n;
  *more = n > 0;
  return in->text_n == in->text_want ? on_abort(r, in, e) : 0;
}

static int receive_data(struct ring *r, struct ring_op *op, bool *moved, struct err *e) {
  struct inbox *in = &r->prev;
  uint8_t *at = NULL;
  size_t room = ring_op_in(op, &at), n;
  if (in->data_left + r->carry > op->total_in - op->in) return bad_frame(r, in, e);
  if (!ring_op_reduces(op)) {
    n = receive_some(in, at, in->data_left < room ? in->data_left : room);
    ring_op_stored(op, n);
  } else {
    size_t max = (room < SCRATCH ? room : SCRATCH) - r->carry;
    n = receive_some(in, r->scratch + r->carry, in->data_left < max ? in->data_left : max);
    size_t have = r->carry + n, rest = have % op->elem_size;
    ring_op_add(op, r->scratch, have - rest);
    memmove(r->scratch, r->scratch + have - rest, rest);
    r->carry = rest;
  }
  in->data_left -= (uint32_t)n;
  *moved |= n > 0;
  return 0;
}

/* Receives from prev while the collective needs input, one frame's worth at most. */
static int receive(struct ring *r, bool *moved, struct err *e) {
  struct ring_op *op = current_op(r);
  size_t enough = op->in + FRAME_MAX < op->total_in ? op->in + FRAME_MAX : op->total_in;
  int rc = 0;
  while (rc == 0 && op->in < enough && !r->prev.closed) {
    bool more = false;
    if (r->prev.data_left)
      rc = receive_data(r, op, &more, e);
    else {
      rc = receive_words(r, &r->prev, &more, e);
      if (more) continue;
    }
    *moved |= more;
    if (!more) break;
  }
  if (rc == 0 && op->in < op->total_in && r->prev.closed) rc = closed_by(r, &r->prev, e);
  return rc;
}

/* Next sends no data, only other frames. */
static int read_next(struct ring *r, struct err *e) {
  bool more = !r->next.closed;
  int rc = 0;
  while (rc == 0 && more) rc = receive_words(r, &r->next, &more, e);
  if (rc || !r->next.closed) return rc;
  struct ring_op *op = current_op(r);
  return !r->next.bye || (op && op->out < op->total_out) ? closed_by(r, &r->next, e) : 0;
}

/* The rank that the current collective waits for, as far as we know. */
static int silent_rank(struct ring *r) {
  struct ring_op *op = current_op(r);
  if (op->in == op->total_in) return r->next.peer;
  bool fresh = r->prev_waits_for >= 0 && r->prev_waits_for != r->base.rank &&
               monotonic_ms() - r->prev_waits_ms < NOTE_FRESH * r->note_ms;
  return fresh ? r->prev_waits_for : r->prev.peer;
}

/* Sends the rest of the current frame, or the next one. */
static int transmit(struct ring *r, bool *moved, struct err *e) {
  struct ring_op *op = current_op(r);
  r->tx_full = false;
  if (!r->tx_head_left && !r->tx_left) { /* prepares the next frame */
    if (r->tx_note) {
      put_head(r->tx_head, FRAME_WAITING, 0, 0, (uint32_t)silent_rank(r));
    } else {
      r->tx_left = ring_op_out(op, FRAME_MIN, FRAME_MAX, &r->tx_data);
      if (r->tx_left == 0) return 0;
      put_head(r->tx_head, FRAME_DATA, 0, (uint16_t)r->done, (uint32_t)r->tx_left);
    }
    r->tx_note = false;
    r->tx_head_left = HEAD;
  }
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
    if (n < 0) { /* next may have sent the reason */
      int rc = read_next(r, e);
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

static int wait_for_bytes(struct ring *r, struct err *e) {
  struct ring_op *op = current_op(r);
  uint64_t now = monotonic_ms(), end = coll_deadline(&r->cfg, r->moved_ms, now, &r->stop_seen_ms);
  struct err why = ERR_INIT;
  int asked = coll_asked(&r->cfg, now, &r->asked_ms, &why);
  if (asked) { /* the others lose this rank; it has lost none */
    give_up(r, asked, r->base.rank, e, "rank %d leaves: %s", r->base.rank, why.text);
    r->base.lost = -1;
    return asked;
  }
  if (now >= end) {
    int who = silent_rank(r);
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
  uint64_t most = r->cfg.asked ? COLL_ASK_MS : NOTE_MS, ms = end - now < most ? end - now : most;
  int n = poll(p, 2, (int)ms);
  if (n < 0 && errno != EINTR)
    return give_up(r, -errno, r->base.rank, e, "rank %d gave up: poll: %s", r->base.rank, strerror(errno));
  return n > 0 && (p[1].revents & ~POLLOUT) ? read_next(r, e) : 0;
}

/* Works until `upto` collectives are done, or without `block` while bytes move. */
static int pump(struct ring *r, uint64_t upto, bool block, struct err *e) {
  if (r->failed.code) return err_set(e, r->failed.code, "%s", r->failed.text);
  if (block && r->done < upto) r->moved_ms = monotonic_ms();
  while (r->done < upto) {
    bool moved = false;
    int rc = receive(r, &moved, e);
    if (rc == 0) rc = transmit(r, &moved, e);
    if (rc) return rc;
    if (ring_op_done(current_op(r)) && r->tx_head_left == 0) {
      r->done++;
      continue;
    }
    if (moved) {
      r->moved_ms = monotonic_ms();
      continue;
    }
    if (!block) return 0;
    rc = wait_for_bytes(r, e);
    if (rc) return rc;
  }
  return 0;
}

static int begin_op(struct ring *r, struct ring_op op, struct coll_ticket *t, struct err *e) {
  if (r->failed.code) return err_set(e, r->failed.code, "%s", r->failed.text);
  if (r->begun - r->done == COLL_TICKETS_MAX) {
    int rc = pump(r, r->done + 1, true, e);
    if (rc) return rc;
  }
  r->ops[r->begun++ % COLL_TICKETS_MAX] = op;
  t->n = r->begun;
  return pump(r, r->begun, false, e);
}

static int run_op(struct ring *r, struct ring_op op, struct err *e) {
  struct coll_ticket t = {0};
  int rc = begin_op(r, op, &t, e);
  return rc ? rc : pump(r, t.n, true, e);
}

static int tcp_begin(struct coll *l, struct compute *c, struct span s, struct coll_ticket *t, struct err *e) {
  struct ring *r = (struct ring *)l;
  float *data = compute_host(c, s);
  if (!data) return err_set(e, -ENOTSUP, "the TCP ring needs gradients in host memory");
  return begin_op(r, ring_all_reduce(data, s.n, RING_F32, l->rank, l->world), t, e);
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
  return run_op((struct ring *)l, ring_all_reduce(v, n, RING_F64, l->rank, l->world), e);
}

static int tcp_broadcast(struct coll *l, void *data, size_t n, int root, struct err *e) {
  return run_op((struct ring *)l, ring_broadcast(data, n, root, l->rank, l->world), e);
}

static void tcp_abort(struct coll *l, const char *why) {
  struct ring *r = (struct ring *)l;
  if (!r->failed.code) give_up(r, -ECONNABORTED, l->rank, NULL, "rank %d gave up: %s", l->rank, why);
}

static void tcp_destroy(struct coll *l) {
  struct ring *r = (struct ring *)l;
  uint8_t bye[HEAD];
  put_head(bye, FRAME_BYE, 0, 0, 0);
  if (!r->failed.code) send_farewell(r, bye, HEAD);
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

int coll_tcp_create(const struct coll_config *cfg, struct coll **out, struct err *e) {
  struct meet m = {.cfg = cfg, .listener = -1, .prev = -1, .next = -1};
  int rc = form_ring(&m, e);
  for (int i = 0; i < m.n_newcomers; i++) close(m.newcomers[i].fd);
  if (m.listener >= 0) close(m.listener);
  if (rc && m.prev >= 0) close(m.prev);
  if (rc && m.next >= 0) close(m.next);
  free(m.cards);
  if (rc) return rc;
  struct ring *r = aligned_alloc(64, (sizeof *r + 63) & ~(size_t)63);
  if (!r) abort();
  memset(r, 0, offsetof(struct ring, scratch));
  r->base = (struct coll){.ops = &tcp_ops, .rank = cfg->rank, .world = cfg->world, .lost = -1};
  r->cfg = *cfg;
  uint64_t shortest = cfg->stop && cfg->stop_wait_ms < cfg->timeout_ms ? cfg->stop_wait_ms : cfg->timeout_ms;
  r->note_ms = shortest / 4 > NOTE_MS ? NOTE_MS : shortest / 4 + 1;
  r->prev_waits_for = -1;
  r->prev = (struct inbox){.fd = m.prev, .peer = (cfg->rank + cfg->world - 1) % cfg->world};
  r->next = (struct inbox){.fd = m.next, .peer = (cfg->rank + 1) % cfg->world};
  *out = &r->base;
  return 0;
}
