/* How ranks find each other. Every rank listens on a port that the kernel chooses, at its node's address,
 * and tells all others address, port and a secret of 16 random bytes through the round's store (one rdzv_exchange,
 * "coll_tcp"). Then it connects to the next rank with a hello that holds the next rank's secret, and
 * accepts the one before it.
 *
 *     hello   "RDZVRING" version rank world round secret      40 bytes
 *     answer  "RDZVOKAY"                                      8 bytes
 *
 * The port is open to everybody for some milliseconds. Whoever does not send the whole hello with our
 * secret within HELLO_MS is dropped; at most STRANGERS_MAX may try at the same time. A hello has a fixed
 * length, so nothing that a stranger sends is ever believed or stored. */

#include "agent/trainer/coll_tcp.h"

#include "common/buf.h"
#include "common/clock.h"
#include "common/endpoint.h"
#include "common/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SECRET = 16, HELLO = 40, ANSWER = 8, VERSION = 1, HELLO_MS = 5000, STRANGERS_MAX = 16, ADDR_MAX = 64 };

static const char hello_magic[8] = {'R', 'D', 'Z', 'V', 'R', 'I', 'N', 'G'};
static const char answer_magic[ANSWER] = {'R', 'D', 'Z', 'V', 'O', 'K', 'A', 'Y'};

/* What a rank tells the others: bytes only, so that there is no padding. */
struct card {
  char addr[ADDR_MAX];
  uint8_t port[2]; /* little-endian */
  uint8_t secret[SECRET];
};

struct stranger {
  int fd;
  uint64_t since_ms;
  size_t got;
  uint8_t hello[HELLO];
};

enum next_state { NEXT_CONNECTING, NEXT_SENT, NEXT_UP };

struct meet {
  const struct coll_tcp_config *cfg;
  int listener, prev, next;
  enum next_state state;
  struct card mine, *cards;
  size_t answered; /* bytes of the answer that came */
  struct stranger strangers[STRANGERS_MAX];
  int n_strangers;
  uint64_t deadline_ms;
};

uint64_t coll_now_ms(void) {
  return monotonic_ms();
}

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

/* At the node's address; on any address where that one is not ours (behind a translated address, as in
 * some containers). */
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
  if (rc < 0 || listen(fd, STRANGERS_MAX) < 0)
    return err_sys(e, -errno, "cannot listen at %s", m->cfg->node_addr);
  len = sizeof sa;
  if (getsockname(fd, (struct sockaddr *)&sa, &len) < 0) return err_sys(e, -errno, "getsockname");
  uint16_t port = sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)(void *)&sa)->sin6_port
                                           : ((struct sockaddr_in *)(void *)&sa)->sin_port;
  le16_put(m->mine.port, ntohs(port));
  return 0;
}

static int tell_cards(struct meet *m, struct err *e) {
  struct card *mine = &m->mine;
  size_t len = strlen(m->cfg->node_addr);
  m->cards = xcalloc((size_t)m->cfg->world, sizeof *m->cards);
  if (len >= sizeof mine->addr)
    return err_set(e, -EINVAL, "'%s' is too long for an address", m->cfg->node_addr);
  memcpy(mine->addr, m->cfg->node_addr, len);
  if (getrandom(mine->secret, SECRET, 0) != SECRET) return err_sys(e, -errno, "getrandom");
  int rc = m->cfg->exchange(m->cfg->exchange_ctx, "coll_tcp", mine, sizeof *mine, m->cards,
                            (int)m->cfg->timeout_ms, e);
  return rc ? err_wrap(e, "the ranks could not tell each other their addresses") : 0;
}

static void make_hello(const struct meet *m, const uint8_t *secret, uint32_t rank, uint8_t out[HELLO]) {
  memcpy(out, hello_magic, 8);
  le32_put(out + 8, VERSION);
  le32_put(out + 12, rank);
  le32_put(out + 16, (uint32_t)m->cfg->world);
  le32_put(out + 20, m->cfg->round);
  memcpy(out + 24, secret, SECRET);
}

static int no_next(const struct meet *m, int code, const char *what, struct err *e) {
  const struct card *c = &m->cards[rank_next(m)];
  return err_sys(e, code, "%s rank %d at %.*s port %u", what, rank_next(m), ADDR_MAX - 1, c->addr,
                 le16_get(c->port));
}

static int start_connect(struct meet *m, struct err *e) {
  struct card *c = &m->cards[rank_next(m)];
  struct addrinfo *ai;
  c->addr[ADDR_MAX - 1] = 0;
  int rc = resolve_numeric(c->addr, le16_get(c->port), false, &ai, e), one = 1;
  if (rc) return err_wrap(e, "address of rank %d", rank_next(m));
  m->next = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (m->next < 0)
    rc = err_sys(e, -errno, "socket for the ring");
  else if (connect(m->next, ai->ai_addr, ai->ai_addrlen) < 0 && errno != EINPROGRESS && errno != EINTR)
    rc = no_next(m, -errno, "cannot connect to", e);
  if (m->next >= 0) setsockopt(m->next, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  freeaddrinfo(ai);
  return rc;
}

/* The connection to the next rank can be written or read. */
static int next_ready(struct meet *m, struct err *e) {
  int code = 0;
  socklen_t len = sizeof code;
  if (m->state == NEXT_CONNECTING) {
    uint8_t hello[HELLO];
    getsockopt(m->next, SOL_SOCKET, SO_ERROR, &code, &len);
    if (code) return no_next(m, -code, "cannot connect to", e);
    make_hello(m, m->cards[rank_next(m)].secret, (uint32_t)m->cfg->rank, hello);
    if (send(m->next, hello, HELLO, MSG_NOSIGNAL) != HELLO) return no_next(m, -errno, "cannot greet", e);
    m->state = NEXT_SENT;
    return 0;
  }
  char answer[ANSWER];
  ssize_t n = recv(m->next, answer, ANSWER - m->answered, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) return no_next(m, n < 0 ? -errno : -ECONNRESET, "no answer from", e);
  if (memcmp(answer, answer_magic + m->answered, (size_t)n) != 0)
    return no_next(m, -EPROTO, "a strange answer from", e);
  m->answered += (size_t)n;
  if (m->answered == ANSWER) m->state = NEXT_UP;
  return 0;
}

static void accept_strangers(struct meet *m) {
  while (m->n_strangers < STRANGERS_MAX) {
    int one = 1, fd = accept4(m->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    m->strangers[m->n_strangers++] = (struct stranger){.fd = fd, .since_ms = coll_now_ms()};
  }
}

/* 1: it is the rank before us; 0: not known yet; -1: drop it. */
static int stranger_read(struct meet *m, struct stranger *s) {
  uint8_t want[HELLO];
  ssize_t n = recv(s->fd, s->hello + s->got, HELLO - s->got, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  if (n <= 0) return -1;
  s->got += (size_t)n;
  make_hello(m, m->mine.secret, (uint32_t)rank_prev(m), want);
  if (memcmp(s->hello, want, s->got < 24 ? s->got : 24) != 0) return -1;
  if (s->got < HELLO) return 0;
  unsigned differ = 0; /* in constant time: how long it takes tells nothing of the secret */
  for (int i = 24; i < HELLO; i++) differ |= (unsigned)(s->hello[i] ^ want[i]);
  return differ ? -1 : 1;
}

static void strangers_ready(struct meet *m, const struct pollfd *p) {
  uint64_t now = coll_now_ms();
  int kept = 0;
  for (int i = 0; i < m->n_strangers; i++) {
    struct stranger *s = &m->strangers[i];
    int who = p[i].revents ? stranger_read(m, s) : 0;
    if (who == 1 && m->prev < 0 && send(s->fd, answer_magic, ANSWER, MSG_NOSIGNAL) == ANSWER) {
      m->prev = s->fd;
    } else if (who != 0 || now - s->since_ms > HELLO_MS) {
      close(s->fd);
    } else {
      m->strangers[kept++] = *s;
    }
  }
  m->n_strangers = kept;
}

static int meet_once(struct meet *m, struct err *e) {
  struct pollfd p[2 + STRANGERS_MAX];
  bool room = m->prev < 0 && m->n_strangers < STRANGERS_MAX;
  int n = m->n_strangers;
  p[0] = (struct pollfd){.fd = room ? m->listener : -1, .events = POLLIN};
  p[1] = (struct pollfd){.fd = m->state == NEXT_UP ? -1 : m->next,
                         .events = m->state == NEXT_CONNECTING ? POLLOUT : POLLIN};
  for (int i = 0; i < n; i++) p[2 + i] = (struct pollfd){.fd = m->strangers[i].fd, .events = POLLIN};
  if (poll(p, (nfds_t)(2 + n), 100) < 0) return errno == EINTR ? 0 : err_sys(e, -errno, "poll");
  strangers_ready(m, p + 2);
  if (p[0].revents) accept_strangers(m);
  return p[1].revents ? next_ready(m, e) : 0;
}

static int too_late(const struct meet *m, int *lost, struct err *e) {
  unsigned long long s = (unsigned long long)(m->cfg->timeout_ms / 1000);
  *lost = m->prev < 0 ? rank_prev(m) : rank_next(m);
  if (m->prev < 0 && m->state != NEXT_UP && rank_prev(m) != rank_next(m))
    return err_set(e, -ETIMEDOUT, "neither rank %d nor rank %d was there to form the ring within %llu s",
                   rank_prev(m), rank_next(m), s);
  return err_set(e, -ETIMEDOUT, "rank %d was not there to form the ring within %llu s", *lost, s);
}

static int meet(struct meet *m, int *lost, struct err *e) {
  int rc = listen_at(m, e);
  if (rc == 0) rc = tell_cards(m, e);
  if (rc) return rc;
  m->deadline_ms = coll_now_ms() + m->cfg->timeout_ms;
  rc = start_connect(m, e);
  while (rc == 0 && (m->prev < 0 || m->state != NEXT_UP)) {
    rc = meet_once(m, e);
    if (rc == 0 && coll_now_ms() > m->deadline_ms) return too_late(m, lost, e);
    if (rc == 0 && m->cfg->stop && *m->cfg->stop)
      rc = err_set(e, -ECANCELED, "told to stop while the ring formed");
  }
  if (rc && rc != -ECANCELED) *lost = rank_next(m);
  return rc;
}

int coll_tcp_meet(const struct coll_tcp_config *cfg, int *prev, int *next, int *lost, struct err *e) {
  struct meet m = {.cfg = cfg, .listener = -1, .prev = -1, .next = -1};
  *lost = -1;
  int rc = meet(&m, lost, e);
  for (int i = 0; i < m.n_strangers; i++) close(m.strangers[i].fd);
  if (m.listener >= 0) close(m.listener);
  if (rc && m.prev >= 0) close(m.prev);
  if (rc && m.next >= 0) close(m.next);
  free(m.cards);
  *prev = m.prev;
  *next = m.next;
  return rc;
}
