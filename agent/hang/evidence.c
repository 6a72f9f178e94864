/* SPDX-License-Identifier: Apache-2.0 */
/* Conversations with whatever may know who waits for whom, all at once in one thread.
 *
 *   RAS     connect -> greeting -> its options -> STATUS -> the answer              (agent/hang/ras.c)
 *   store   connect -> CHECK debug_server/rankN for each worker -> GET -> the ports of their debug servers
 *   worker  connect -> POST /handler/fr_trace_json -> its flight recorder; the same for NCCL's (agent/hang/flight.c)
 *
 * A process that is stopped accepts connections and says nothing. All processes of a host listen at one port for RAS,
 * and the kernel picks one of them. So there are up to four connections, one after the other; the first that answers
 * counts. Each worker that has named a debug server and does not answer is named as silent: that is evidence, too.
 *
 * Nobody at the other end is trusted. Answers have limits, the time has one, and what is read changes nothing but the
 * words of a verdict. */

#include "agent/hang/evidence.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/hang/ras.h"
#include "common/endpoint.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/system/loop.h"
#include "proto/c10d.h"
#include "common/net/socket.h"

enum {
  RAS_TRIES = 4,
  RAS_PATIENCE_MS = 250, /* until another connection is tried */
  TALKS_MAX = RAS_TRIES + 1 + EVIDENCE_WORKERS_MAX,
  ASKED_AT_ONCE = 8, /* workers: an answer may have FLIGHT_MAX */
  STORE_VALUE_MAX = 300,
};

/* The party at the other end. */
enum talk_kind { TALK_RAS, TALK_STORE, TALK_WORKER };

struct talk {
  enum talk_kind kind;
  int fd; /* -1: over */
  struct buf out, in;
  struct ras_talk ras;
  uint32_t worker; /* which of the question's */
  struct c10d_progress progress;
  uint32_t checked, got; /* the store's replies so far */
};

static const char *const handlers[] = {"fr_trace_json", "dump_nccl_trace_json"};
enum { HANDLERS = sizeof handlers / sizeof *handlers };

struct worker_answer {
  bool named, asked, heard; /* named: its debug server is in the store */
  bool v6;
  uint16_t port;
  unsigned handler; /* the next one to ask */
  struct flight flight;
};

struct collecting {
  const struct evidence_question *q;
  struct evidence_answer *a;
  uint64_t until_ms;
  struct talk talks[TALKS_MAX];
  size_t n;
  unsigned ras_tries;
  uint64_t ras_next_ms; /* when RAS is tried again; UINT64_MAX: no more */
  bool ras_over;
  struct ras_finding ras;
  bool has_finding;
  struct worker_answer *workers;
};

/* Why somebody has said nothing, for the log; the last one. */
static void note(struct collecting *c, const char *who, const struct err *e) {
  snprintf(c->a->why, sizeof c->a->why, "%s: %.160s", who, e->text);
}

/* Connections. ----------------------------------------------------------------------------------------------------- */

static void end_talk(struct talk *t) {
  if (t->fd >= 0) close(t->fd);
  t->fd = -1;
  buf_finish(&t->out);
  buf_finish(&t->in);
  if (t->kind == TALK_RAS) ras_finish(&t->ras);
}

static struct talk *begin_talk(struct collecting *c, enum talk_kind kind, const struct ipaddr *addr, uint16_t port) {
  union socket_address a = socket_address_make(addr, port);
  struct talk *t = NULL;
  for (size_t i = 0; i < c->n && !t; i++)
    if (c->talks[i].fd < 0) t = &c->talks[i];
  if (!t && c->n == TALKS_MAX) return NULL;
  if (!t) t = &c->talks[c->n++];
  *t = (struct talk){.kind = kind, .fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (t->fd < 0) return NULL;
  if (connect(t->fd, &a.any, socket_address_size(&a)) == 0 || errno == EINPROGRESS) return t;
  end_talk(t);
  return NULL;
}

static struct talk *begin_local(struct collecting *c, enum talk_kind kind, bool v6, uint16_t port) {
  struct ipaddr here = {.family = v6 ? 6 : 4};
  if (v6)
    here.bytes[15] = 1;
  else
    memcpy(here.bytes, (const uint8_t[]){127, 0, 0, 1}, 4);
  return begin_talk(c, kind, &here, port);
}

/* RAS. ------------------------------------------------------------------------------------------------------------- */

static void try_ras(struct collecting *c, uint64_t now_ms) {
  c->ras_next_ms = ++c->ras_tries < RAS_TRIES ? now_ms + RAS_PATIENCE_MS : UINT64_MAX;
  struct talk *t = begin_local(c, TALK_RAS, c->q->ras_v6, c->q->ras_port);
  if (t)
    ras_begin(&t->ras, &t->out);
  else
    c->ras_next_ms = UINT64_MAX; /* nobody listens */
}

static void hear_ras(struct collecting *c, struct talk *t) {
  struct err e = ERR_INIT;
  struct buf in = t->in;
  t->in = (struct buf)BUF_INIT;
  int rc = ras_feed(&t->ras, in.data, in.len, &t->out, &e);
  buf_finish(&in);
  if (rc) {
    note(c, "NCCL's RAS", &e);
    end_talk(t);
    return;
  }
  if (t->ras.step == RAS_GREETS) return;
  c->a->has_ras = true;
  c->ras_next_ms = UINT64_MAX;
  c->ras_over = c->ras_over || c->q->node_rank >= EVIDENCE_ASKERS;
  for (size_t i = 0; i < c->n; i++)
    if (c->talks[i].fd >= 0 && c->talks[i].kind == TALK_RAS && (c->ras_over || &c->talks[i] != t))
      end_talk(&c->talks[i]);
}

/* The store. ------------------------------------------------------------------------------------------------------- */

static int64_t rank_of(const struct collecting *c, uint32_t worker) {
  return c->q->rank_base + c->q->local_ranks[worker];
}

static void put_request(struct buf *out, const struct c10d_request *r) {
  size_t n = c10d_encode(C10D_SINCE_2_2, r, NULL, 0);
  c10d_encode(C10D_SINCE_2_2, r, buf_reserve(out, n), n);
  buf_commit(out, n);
}

static void put_key_request(struct collecting *c, struct talk *t, enum c10d_op op, uint32_t worker) {
  char text[64];
  int n = snprintf(text, sizeof text, "/debug_server/rank%lld", (long long)rank_of(c, worker));
  struct slice key = {text, (size_t)n};
  struct c10d_request r = {.op = op, .key = key};
  if (op == C10D_CHECK) {
    r.count = 1;
    r.keys = &key;
  }
  put_request(&t->out, &r);
}

static uint32_t next_named(const struct collecting *c, uint32_t from) {
  while (from < c->q->n && !c->workers[from].named) from++;
  return from;
}

/* Replies come in the order of the requests: CHECK for each worker, then GET for each that is named. */
static bool take_reply(struct collecting *c, struct talk *t, const struct c10d_reply *r) {
  if (t->checked < c->q->n) {
    c->workers[t->checked++].named = r->byte == 0;
    if (t->checked < c->q->n) return true;
    for (uint32_t i = 0; (i = next_named(c, i)) < c->q->n; i++) put_key_request(c, t, C10D_GET, i);
    t->got = next_named(c, 0);
    return t->got < c->q->n;
  }
  /* "http://node1:40001": the worker is on this host, so only its port counts. */
  char text[STORE_VALUE_MAX + 1] = "", *end;
  if (r->value.len <= STORE_VALUE_MAX) memcpy(text, r->value.data, r->value.len);
  char *colon = strncmp(text, "http://", 7) == 0 ? strrchr(text, ':') : NULL;
  long port = colon ? strtol(colon + 1, &end, 10) : 0;
  bool good = colon && end != colon + 1 && (!*end || *end == '/') && port > 0 && port < 65536;
  c->workers[t->got].port = good ? (uint16_t)port : 0;
  c->workers[t->got].named = good;
  t->got = next_named(c, t->got + 1);
  return t->got < c->q->n;
}

static void hear_store(struct collecting *c, struct talk *t) {
  for (;;) {
    struct c10d_reply r;
    size_t size = 0;
    const char *why = "";
    enum c10d_op op = t->checked < c->q->n ? C10D_CHECK : C10D_GET;
    int rc = c10d_parse_reply(op, 1, buf_text(&t->in), t->in.len, &t->progress, &r, &size, &why);
    if (rc == 0 && t->in.len <= FLIGHT_MAX) return;
    if (rc != 1) {
      note(c, "the round's store", &(struct err){.text = "it does not speak PyTorch's protocol"});
      end_talk(t);
      return;
    }
    bool more = take_reply(c, t, &r);
    buf_consume(&t->in, size);
    t->progress = (struct c10d_progress){0};
    if (!more) {
      end_talk(t);
      return;
    }
  }
}

/* Workers. --------------------------------------------------------------------------------------------------------- */

static size_t count_talks(const struct collecting *c, enum talk_kind kind) {
  size_t n = 0;
  for (size_t i = 0; i < c->n; i++) n += c->talks[i].fd >= 0 && c->talks[i].kind == kind;
  return n;
}

/* A debug server may listen on IPv6 alone. One that listens nowhere, or resets a connection, has ended, and says
 * nothing about a hang. */
static void note_refusal(struct worker_answer *w) {
  if (w->heard) return;
  w->named = !w->v6;
  w->v6 = true;
  w->asked = false;
}

static void ask_worker(struct collecting *c, uint32_t i) {
  struct worker_answer *w = &c->workers[i];
  w->asked = true;
  struct talk *t = begin_local(c, TALK_WORKER, w->v6, w->port);
  if (!t) {
    note_refusal(w);
    return;
  }
  t->worker = i;
  buf_printf(&t->out, "POST /handler/%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
             handlers[w->handler]);
}

/* The loop. -------------------------------------------------------------------------------------------------------- */

/* A connection that failed. */
static void fail(struct collecting *c, struct talk *t) {
  if (t->kind == TALK_RAS && t->ras.step == RAS_GREETS) c->ras_next_ms = UINT64_MAX; /* nobody listens */
  if (t->kind == TALK_WORKER) note_refusal(&c->workers[t->worker]);
  end_talk(t);
}

static void hear(struct collecting *c, struct talk *t) {
  size_t max = t->kind == TALK_WORKER ? FLIGHT_MAX + FLIGHT_HEADER_MAX : RAS_JSON_MAX;
  ssize_t n = recv(t->fd, buf_reserve(&t->in, 65536), 65536, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) buf_commit(&t->in, (size_t)n);
  if (n > 0 && t->in.len <= max) {
    if (t->kind == TALK_RAS) hear_ras(c, t);
    if (t->kind == TALK_STORE) hear_store(c, t);
  } else if (n == 0 && t->kind == TALK_RAS) {
    const struct buf *in = &t->ras.in;
    struct err e = ERR_INIT;
    bool answered = t->ras.step == RAS_ANSWERS && !c->ras_over;
    c->has_finding |= answered && ras_parse_json(buf_text(in), in->len, &c->ras, &e) == 0;
    if (e.code) note(c, "NCCL's RAS", &e);
    end_talk(t);
  } else if (n == 0 && t->kind == TALK_WORKER) {
    /* Its answer is complete. */
    struct worker_answer *w = &c->workers[t->worker];
    struct err e = ERR_INIT;
    struct slice body;
    int status = flight_unwrap(buf_text(&t->in), t->in.len, &body, &e);
    if (status >= 0) w->heard = true;
    if (!t->in.len && !w->heard) w->named = false; /* it has died */
    if (status == 200) status = flight_parse(&w->flight, body.data, body.len, &e);
    if (status < 0) note(c, "a debug server", &e);
    end_talk(t);
    if (status >= 0 && ++w->handler < HANDLERS) w->asked = false;
  } else {
    fail(c, t);
  }
}

static void speak(struct talk *t) {
  ssize_t n = send(t->fd, t->out.data, t->out.len, MSG_NOSIGNAL);
  if (n > 0) buf_consume(&t->out, (size_t)n);
}

static void wait_and_talk(struct collecting *c, uint64_t now_ms) {
  struct pollfd fds[TALKS_MAX];
  uint64_t until = c->ras_next_ms < c->until_ms ? c->ras_next_ms : c->until_ms;
  size_t n = c->n; /* talks that begin meanwhile come next time */
  for (size_t i = 0; i < n; i++)
    fds[i] = (struct pollfd){.fd = c->talks[i].fd, .events = POLLIN | (c->talks[i].out.len ? POLLOUT : 0)};
  if (poll(fds, n, until > now_ms ? (int)(until - now_ms) : 0) <= 0) return;
  for (size_t i = 0; i < n; i++) {
    struct talk *t = &c->talks[i];
    if (t->fd < 0 || t->fd != fds[i].fd || !fds[i].revents) continue;
    if (fds[i].revents & POLLIN)
      hear(c, t);
    else if (fds[i].revents & (POLLERR | POLLHUP | POLLNVAL))
      fail(c, t);
    else
      speak(t);
  }
}

static void converse(struct collecting *c) {
  uint64_t now_ms = boot_ms();
  if (c->q->ras_port) try_ras(c, now_ms);
  struct ipaddr addr = ipaddr_parse(c->q->store_addr);
  bool served = c->q->store_port && addr.family && c->q->n;
  struct talk *store = served ? begin_talk(c, TALK_STORE, &addr, c->q->store_port) : NULL;
  if (store) put_request(&store->out, &(struct c10d_request){.op = C10D_VALIDATE, .number = C10D_VALIDATE_MAGIC});
  for (uint32_t i = 0; store && i < c->q->n; i++) put_key_request(c, store, C10D_CHECK, i);
  for (; now_ms < c->until_ms; now_ms = boot_ms()) {
    if (now_ms >= c->ras_next_ms) try_ras(c, now_ms);
    if (!count_talks(c, TALK_STORE)) {
      for (uint32_t i = 0; i < c->q->n && count_talks(c, TALK_WORKER) < ASKED_AT_ONCE; i++)
        if (c->workers[i].named && !c->workers[i].asked) ask_worker(c, i);
    }
    bool any = c->ras_next_ms != UINT64_MAX;
    for (size_t i = 0; i < c->n && !any; i++) any = c->talks[i].fd >= 0;
    if (!any) break;
    wait_and_talk(c, now_ms);
  }
  for (size_t i = 0; i < c->n; i++) end_talk(&c->talks[i]);
}

/* What follows. ---------------------------------------------------------------------------------------------------- */

static void add_awaited(struct collecting *c, const char *ranks) {
  for (const char *at = ranks; *at;) {
    char *end;
    long long rank = strtoll(at, &end, 10);
    int64_t local = rank - c->q->rank_base;
    for (uint32_t i = 0; i < c->q->n; i++)
      if (local == c->q->local_ranks[i]) local_set_add(&c->a->awaited, (uint32_t)local);
    if (end == at || *end != ',') return;
    at = end + 1;
  }
}

static void put_text(char *to, const struct buf *from) {
  snprintf(to, EVIDENCE_MAX + 1, "%s", buf_text(from));
}

static void conclude(struct collecting *c) {
  struct evidence_answer *a = c->a;
  struct buf flights = BUF_INIT, ras = BUF_INIT;
  char behind[RANKS_TEXT_MAX + 1], rank[24];
  for (uint32_t i = 0; i < c->q->n; i++) {
    const struct worker_answer *w = &c->workers[i];
    if (w->heard) flights_add(&a->flights, rank_of(c, i), &w->flight);
    snprintf(rank, sizeof rank, "%lld", (long long)rank_of(c, i));
    if (w->named && !w->heard) ranks_merge(a->silent, rank);
  }
  flights_behind(&a->flights, behind);
  collectives_sentence(a->flights.v, a->flights.n, a->silent, &flights);
  if (c->has_finding) ras_sentence(&c->ras, c->q->world_size, &ras);
  put_text(a->ras, &ras);
  put_text(a->text, behind[0] || !ras.len ? &flights : &ras);
  a->any = a->text[0] || a->flights.n;
  add_awaited(c, behind);
  for (size_t i = 0; i < c->ras.n_behind_named && c->ras.size == c->q->world_size; i++) {
    snprintf(rank, sizeof rank, "%lld", (long long)c->ras.behind[i].rank);
    add_awaited(c, rank);
  }
  buf_finish(&flights);
  buf_finish(&ras);
}

/* The port of RAS. -------------------------------------------------------------------------------------------------- */

/* Every process with NCCL listens at NCCL_RAS_ADDR: with SO_REUSEADDR and SO_REUSEPORT, so the kernel hands each
 * connection to one of them. A socket that is bound with both options, and does not listen, lets them. It keeps the port
 * away from programs that take any free port. Those are all that may come, since nobody else asks for this number. */

void ras_port_close(struct ras_port *p) {
  if (p->fd >= 0) close(p->fd);
  *p = (struct ras_port){.fd = -1};
}

void ras_port_open(struct ras_port *p) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  const int on = 1;
  *p = (struct ras_port){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (p->fd < 0) return;
  /* The port is chosen before the options are set: the kernel may give out a port twice to sockets that share. */
  if (bind(p->fd, (struct sockaddr *)&a, sizeof a) || getsockname(p->fd, (struct sockaddr *)&a, &len) ||
      setsockopt(p->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
      setsockopt(p->fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on)) {
    ras_port_close(p);
    return;
  }
  snprintf(p->addr, sizeof p->addr, "127.0.0.1:%u", (unsigned)ntohs(a.sin_port));
}

uint16_t ras_port_parse(const char *addr, int *v6) {
  static const char *const hosts[] = {"localhost:", "127.0.0.1:", "[::1]:"};
  *v6 = 0;
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
    size_t n = strlen(hosts[i]);
    if (strncmp(addr, hosts[i], n) != 0) continue;
    char *end;
    long port = strtol(addr + n, &end, 10);
    *v6 = i == 2;
    return end != addr + n && !*end && port > 0 && port < 65536 ? (uint16_t)port : 0;
  }
  return 0;
}

/* The thread. ------------------------------------------------------------------------------------------------------ */

struct asking {
  uv_work_t work;
  struct evidence_collector *of; /* NULL: dropped */
  struct evidence_question q;
  struct evidence_answer a;
};

static void do_collect(uv_work_t *work) {
  struct asking *asking = work->data;
  struct collecting *c = xcalloc(1, sizeof *c);
  asking->a = (struct evidence_answer){.any = false};
  *c = (struct collecting){
      .q = &asking->q, .a = &asking->a, .until_ms = boot_ms() + EVIDENCE_MS, .ras_next_ms = UINT64_MAX};
  c->workers = xcalloc(asking->q.n + 1, sizeof *c->workers);
  converse(c);
  conclude(c);
  free(c->workers);
  free(c);
}

static void on_collected(uv_work_t *work, int status) {
  struct asking *asking = work->data;
  struct evidence_collector *d = asking->of;
  if (d) {
    if (asking->a.why[0]) log_debug("evidence of a hang: %s", asking->a.why);
    d->asking = NULL;
    d->fn(d->ctx, &asking->a);
  }
  free(asking);
}

void evidence_drop(struct evidence_collector *d) {
  if (d->asking) d->asking->of = NULL;
  d->asking = NULL;
}

void evidence_ask(struct evidence_collector *d, const struct evidence_question *q) {
  evidence_drop(d);
  d->asking = xcalloc(1, sizeof *d->asking);
  d->asking->of = d;
  d->asking->q = *q;
  d->asking->work.data = d->asking;
  loop_work(d->loop, &d->asking->work, do_collect, on_collected);
}
