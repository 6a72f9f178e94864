/* What workers say and what it means: the round and its workers.
 *
 * Every record is checked whole before anything of it is used: its size is exactly that of its type, numbers are in
 * their bounds. A record that fails ends the connection with a sentence, for the worker and for the log.
 *
 * A local rank may have several connections (a worker's child that asks who it is): progress is the rank's, whoever
 * tells it. */

#include "agent/sdk/server.h"
#include "agent/sdk/server_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

/* Closes the connection for a bad record. */
static bool bad(struct conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool bad(struct conn *c, const char *fmt, ...) {
  char text[200], trouble[256];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  if (c->greeted)
    snprintf(trouble, sizeof(trouble), "local rank %u: %s", c->local_rank, text);
  else
    snprintf(trouble, sizeof(trouble), "%s", text);
  sdk_conn_refuse(c, -EPROTO, text, trouble);
  return false;
}

/* ----------------------------------------------------------------- round */

static void forget_round(struct sdk_server *s) {
  free(s->workers);
  free(s->progress);
  free(s->progressed);
  free(s->n_can);
  free(s->rejoiner);
  free(s->bits);
  s->n_can = NULL;
  s->rejoiner = NULL;
  s->bits = NULL;
  s->workers = NULL;
  s->progress = NULL;
  s->progressed = NULL;
  s->n_progressed = 0;
  s->n_workers = s->checkpoint = 0;
  s->open = false;
}

static void close_conns(struct sdk_server *s, bool parked_too) {
  char text[64];
  snprintf(text, sizeof(text), "round %u is over", s->round);
  for (size_t i = s->n_conns; i-- > 0;)
    if (s->conns[i]->greeted && (parked_too || !s->conns[i]->parked))
      sdk_conn_refuse(s->conns[i], -ESTALE, text, NULL);
}

void sdk_server_close_round(struct sdk_server *s) {
  close_conns(s, true);
  forget_round(s);
}

/* Who is parked, in a round that has just been opened. */
static void take_over(struct sdk_server *s, struct conn *c) {
  bool can = c->can;
  c->parked = c->request_due = c->can = false;
  s->rejoiner[c->local_rank] = c;
  sdk_event_add(s, SDK_EVENT_HELLO, c);
  sdk_event_add(s, SDK_EVENT_CAN_REJOIN, c)->on = true;
  if (can) sdk_conn_set_can(c, true);
  sdk_conn_welcome_again(c);
}

void sdk_server_open_round(struct sdk_server *s, const struct sdk_welcome *workers, uint32_t n) {
  close_conns(s, false);
  for (size_t i = s->n_conns; i-- > 0;)
    if (s->conns[i]->parked && s->conns[i]->local_rank >= n)
      sdk_conn_refuse(s->conns[i], -ESTALE, "there are fewer workers here now", NULL);
  forget_round(s);
  s->workers = xmemdup(workers, n * sizeof(*workers));
  s->progress = xcalloc(n, sizeof(*s->progress));
  s->progressed = xcalloc(n, sizeof(*s->progressed));
  s->n_can = xcalloc(n, sizeof(*s->n_can));
  s->rejoiner = xcalloc(n, sizeof(struct conn *));
  s->bits = xcalloc(n, sizeof(*s->bits));
  s->n_workers = n;
  s->round = n ? workers[0].round : 0;
  for (uint32_t i = 0; i < n; i++) s->bits[i] = workers[i].requested;
  s->checkpoint = n ? workers[0].checkpoint : 0;
  s->open = true;
  for (size_t i = 0; i < s->n_conns; i++)
    if (s->conns[i]->parked) take_over(s, s->conns[i]);
  if (s->ids.round != s->round) s->ids = (struct sdk_ids){.round = 0};
}

uint32_t sdk_conn_bits(const struct conn *c) {
  return c->local_rank < c->of->n_workers ? c->of->bits[c->local_rank] : 0;
}

struct sdk_welcome sdk_conn_welcome(const struct conn *c) {
  struct sdk_welcome w = c->of->workers[c->local_rank];
  w.head = sdk_head_of(SDK_WELCOME);
  w.requested = sdk_conn_bits(c);
  w.checkpoint = c->of->checkpoint;
  return w;
}

static bool on_hello(struct conn *c, const struct sdk_hello *h) {
  struct sdk_server *s = c->of;
  char text[128], trouble[160];
  if (c->greeted) return bad(c, "said HELLO twice");
  if (!s->open || h->round != s->round) {
    snprintf(text, sizeof(text),
             s->open && h->round > s->round ? "round %u has not begun" : "round %u is over", h->round);
    snprintf(trouble, sizeof(trouble), "%s, it was refused", text);
    sdk_conn_refuse(c, -ESTALE, text, trouble);
    return false;
  }
  if (h->local_rank >= s->n_workers)
    return bad(c, "says it is local rank %u, but there are %u workers here", h->local_rank, s->n_workers);
  c->greeted = true;
  c->local_rank = h->local_rank;
  struct sdk_welcome w = sdk_conn_welcome(c);
  sdk_conn_send(c, &w, sizeof(w));
  sdk_event_add(s, SDK_EVENT_HELLO, c);
  return true;
}

static bool on_progress(struct conn *c, const struct sdk_progress *p) {
  struct sdk_server *s = c->of;
  s->progress[c->local_rank] = *p;
  s->n_progressed += !s->progressed[c->local_rank];
  s->progressed[c->local_rank] = true;
  return true;
}

/* The rank can as long as one of its connections can. */
void sdk_conn_set_can(struct conn *c, bool can) {
  struct sdk_server *s = c->of;
  if (c->can == can) return;
  c->can = can;
  uint32_t *n = &s->n_can[c->local_rank];
  *n += can ? 1 : (uint32_t)-1;
  if (*n == (can ? 1 : 0)) sdk_event_add(s, SDK_EVENT_CAN, c)->on = can;
}

static bool on_checkpointed(struct conn *c, const struct sdk_checkpointed *p) {
  if (p->checkpoint == 0 || p->checkpoint > c->of->checkpoint)
    return bad(c, "says that it has written checkpoint %u, which nobody has asked for", p->checkpoint);
  struct sdk_event *ev = sdk_event_add(c->of, SDK_EVENT_CHECKPOINTED, c);
  ev->checkpoint = p->checkpoint;
  ev->step = p->step;
  return true;
}

/* ------------------------------------------------------------- rejoining */

static bool on_can_rejoin(struct conn *c) {
  struct sdk_server *s = c->of;
  if (s->rejoiner[c->local_rank] && s->rejoiner[c->local_rank] != c)
    return bad(c, "says that it can rejoin, but so did another process (%d) of this local rank",
               (int)s->rejoiner[c->local_rank]->pid);
  if (c->rejoins) return true;
  c->rejoins = true;
  s->rejoiner[c->local_rank] = c;
  sdk_event_add(s, SDK_EVENT_CAN_REJOIN, c)->on = true;
  return true;
}

static bool on_rejoin(struct conn *c, const struct sdk_rejoin *p) {
  if (!c->rejoins) return bad(c, "rejoins, and has not said that it can");
  if (c->parked || p->round != c->of->round)
    return bad(c, "leaves round %u, and is %s round %u", p->round, c->parked ? "parked since" : "in",
               c->of->round);
  c->parked = true;
  struct sdk_event *ev = sdk_event_add(c->of, SDK_EVENT_PARKED, c);
  snprintf(ev->text, sizeof(ev->text), "%.*s", SDK_REASON_MAX - 1, p->text);
  return true;
}

static void stop_rejoining(struct conn *c) {
  if (!c->rejoins) return;
  c->rejoins = c->parked = false;
  if (c->local_rank < c->of->n_workers) c->of->rejoiner[c->local_rank] = NULL;
  sdk_event_add(c->of, SDK_EVENT_CAN_REJOIN, c)->on = false;
}

void sdk_conn_leave(struct conn *c) {
  if (c->local_rank < c->of->n_workers) sdk_conn_set_can(c, false);
  stop_rejoining(c);
}

/* Of a round that is over it hears nothing, but that. */
static bool on_ids_wanted(struct conn *c, const struct sdk_ids_wanted *w) {
  if (w->round == 0) return bad(c, "wants the ids of round 0, which there is not");
  c->ids_wanted = w->round;
  c->ids_due = true;
  sdk_conn_flush(c);
  return true;
}

static bool on_nccl_up(struct conn *c, const struct sdk_nccl_up *u) {
  if (u->round == c->of->round) sdk_event_add(c->of, SDK_EVENT_NCCL_UP, c);
  return true;
}

static bool on_done(struct conn *c) {
  sdk_conn_set_can(c, false);
  stop_rejoining(c);
  sdk_event_add(c->of, SDK_EVENT_DONE, c);
  return true;
}

/* --------------------------------------------------------------- records */

bool sdk_conn_record(struct conn *c, const union sdk_record *r, size_t size) {
  static const size_t sizes[] = {
      [SDK_HELLO] = sizeof(struct sdk_hello),
      [SDK_PROGRESS] = sizeof(struct sdk_progress),
      [SDK_DONE] = sizeof(struct sdk_done),
      [SDK_CAN_CHECKPOINT] = sizeof(struct sdk_can_checkpoint),
      [SDK_CHECKPOINTED] = sizeof(struct sdk_checkpointed),
      [SDK_CAN_REJOIN] = sizeof(struct sdk_can_rejoin),
      [SDK_REJOIN] = sizeof(struct sdk_rejoin),
      [SDK_IDS_WANTED] = sizeof(struct sdk_ids_wanted),
      [SDK_NCCL_UP] = sizeof(struct sdk_nccl_up),
  };
  if (size < sizeof(r->head) || r->head.magic != SDK_MAGIC)
    return bad(c, "does not speak the protocol of librdzv");
  if (r->head.version != SDK_VERSION)
    return bad(c, "librdzv speaks version %u of the protocol, this agent version %d", r->head.version,
               SDK_VERSION);
  unsigned type = r->head.type;
  size_t expected = type < sizeof(sizes) / sizeof(sizes[0]) ? sizes[type] : 0;
  if (expected == 0) return bad(c, "sent a record of type %u, which workers do not send", type);
  if (size != expected)
    return bad(c, "sent a record of type %u with %zu bytes, expected %zu", type, size, expected);
  if (!c->greeted && type != SDK_HELLO) return bad(c, "sent a record of type %u before HELLO", type);
  switch (type) {
  case SDK_HELLO: return on_hello(c, &r->hello);
  case SDK_PROGRESS: return on_progress(c, &r->progress);
  case SDK_CAN_CHECKPOINT: sdk_conn_set_can(c, true); return true;
  case SDK_CHECKPOINTED: return on_checkpointed(c, &r->checkpointed);
  case SDK_CAN_REJOIN: return on_can_rejoin(c);
  case SDK_REJOIN: return on_rejoin(c, &r->rejoin);
  case SDK_IDS_WANTED: return on_ids_wanted(c, &r->ids_wanted);
  case SDK_NCCL_UP: return on_nccl_up(c, &r->nccl_up);
  default: return on_done(c);
  }
}
