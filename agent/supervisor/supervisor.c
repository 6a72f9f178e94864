/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's mind: join -> start -> run -> stop -> again.
 *
 *   JOINING -> STARTING -> RUNNING -> FINISHED -> DONE
 *      ^           |          |           |
 *      |           +--> STOPPING <--------+   a round that stops never runs again
 *      +-- STOPPED <------+
 *
 * An event comes with its time. The table of events and states (table.inc) names its handler, which changes the mind
 * and appends effects. The driver carries the effects out. round.c has the states, and the only function that changes
 * them.
 *
 * The mind talks to two sides and trusts each only so far. The guard reports what happened to processes; the daemon
 * reports what happens to the round. Every report stays in `reports` until the round is settled, and HELLO repeats it.
 * So a daemon that was killed in the middle learns everything again. Everything that the daemon sends about a round
 * carries a token; another token is another round. */

#include "agent/supervisor/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/mem.h"

/* Effects. --------------------------------------------------------------------------------------------------------- */

struct supervisor_effect *sup_effect(struct supervisor *s, enum supervisor_effect_kind kind) {
  struct supervisor_effects *fx = s->fx;
  fx->v = xgrow(fx->v, fx->n, &fx->cap, sizeof(*fx->v));
  struct supervisor_effect *e = &fx->v[fx->n++];
  memset(e, 0, sizeof *e);
  e->kind = kind;
  return e;
}

struct start *start_copy(const struct start *from) {
  struct start *to = xmalloc(sizeof *to);
  *to = *from;
  to->incarnation = xstrdup(from->incarnation);
  to->head_addr = xstrdup(from->head_addr);
  to->head_host = xstrdup(from->head_host);
  to->node_addr = xstrdup(from->node_addr);
  to->minters = to->other_command = to->goodput.waited_for = NULL; /* spawning does not need them */
  return to;
}

void start_free(struct start *start) {
  if (!start) return;
  free((void *)(uintptr_t)start->incarnation);
  free((void *)(uintptr_t)start->head_addr);
  free((void *)(uintptr_t)start->head_host);
  free((void *)(uintptr_t)start->node_addr);
  free(start);
}

void supervisor_effects_clear(struct supervisor_effects *fx) {
  for (size_t i = 0; i < fx->n; i++) {
    struct supervisor_effect *e = &fx->v[i];
    free(e->text);
    free(e->extra);
    bytes_unref(e->bytes);
    if (e->kind == SUP_SPAWN) start_free(e->spawn.start);
    if (e->kind != SUP_ENDING || !e->ending) continue;
    verdict_free(&e->ending->verdict);
    free((void *)(uintptr_t)e->ending->goodput.waited_for);
    free(e->ending);
  }
  fx->n = 0;
}

void supervisor_effects_finish(struct supervisor_effects *fx) {
  supervisor_effects_clear(fx);
  free(fx->v);
  memset(fx, 0, sizeof *fx);
}

void sup_send(struct supervisor *s, const struct msg *m) {
  if (s->link.state == CONNECTION_READY || m->type == MSG_HELLO) sup_effect(s, SUP_SEND)->bytes = msg_bytes(m);
}

/* Events that wait. ------------------------------------------------------------------------------------------------ */

struct supervisor_event *supervisor_event_copy(const struct supervisor_event *ev) {
  struct supervisor_event *copy = xmemdup(ev, sizeof *ev);
  for (size_t i = 0; i < SUPERVISOR_EVENT_STRINGS; i++)
    if (copy->strings[i]) copy->strings[i] = xstrdup(copy->strings[i]);
  return copy;
}

void supervisor_event_free(struct supervisor_event *copy) {
  for (size_t i = 0; copy && i < SUPERVISOR_EVENT_STRINGS; i++) free((void *)(uintptr_t)copy->strings[i]);
  free(copy);
}

bool sup_any_worker(const struct supervisor *s, sup_worker_fn *is) {
  for (int64_t i = 0; i < s->config.workers; i++)
    if (is(s, &s->workers[i])) return true;
  return false;
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

enum supervisor_state supervisor_state(const struct supervisor *s) {
  return s->state;
}
int64_t supervisor_round(const struct supervisor *s) {
  return s->round.number;
}

const char *supervisor_fault(const struct supervisor *s) {
  return s->fault;
}

/* Events. ---------------------------------------------------------------------------------------------------------- */

static void sup_begin(struct supervisor *s, const struct supervisor_event *ev) {
  struct msg m;
  msg_init(&m, MSG_AGENT_DIED);
  m.agent_died.job = s->config.job;
  m.agent_died.agent = s->config.agent_id;
  sup_effect(s, SUP_DEATH_REPORT)->bytes = msg_bytes(&m);
  s->job.begun_ms = s->link.lost_ms = s->now_ms;
  if (!sup_check_first(s)) sup_connect(s);
}

/* An agent that was stopped comes here late, and may not have told the guard to kill yet. The workers must not be left
 * behind, so they have the slack from the time at which the guard was to kill them. */
static bool kill_before_exit(struct supervisor *s) {
  if (!sup_has_trees(s)) return false;
  bool told = s->state == SUPERVISOR_STOPPING;
  uint64_t by_ms = (told ? s->stop.kill_ms : s->now_ms) + SUPERVISOR_LEAVE_SLACK_MS;
  if (s->now_ms >= by_ms) return false;
  s->leave.deadline_ms = by_ms;
  if (!told) sup_stop_trees(s, STOP_LEAVING, 0);
  return true;
}

static void sup_tick(struct supervisor *s, const struct supervisor_event *ev) {
  if (s->now_ms >= s->leave.deadline_ms && !kill_before_exit(s)) {
    sup_log(s, LOG_WARN, "leaving before everything is settled, because the time to leave is over");
    sup_exit(s, s->leave.exit_code, NULL);
    return;
  }
  if (s->now_ms >= s->verdicts.show_ms) sup_log_pending_verdict(s);
  if (s->now_ms >= s->round.early_ms) sup_early_tick(s);
  if (s->now_ms >= s->stop.line_ms) sup_wait_tick(s);
  sup_park_tick(s);
  sup_link_tick(s);
  sup_following_tick(s);
  sup_orphan_tick(s);
  sup_progress_tick(s);
  sup_pace_tick(s);
  sup_hang_tick(s);
  sup_ids_tick(s);
  sup_forming_tick(s);
}

/* The table. ------------------------------------------------------------------------------------------------------- */

static const char joining[] = "no round is here";
static const char in_round[] = "this node is in a round";
static const char starting[] = "not all workers of the round run yet";
static const char running[] = "all workers of the round run";
static const char finished[] = "all workers of the round have finished here";
static const char stopping[] = "the round is being stopped here";
static const char stopped[] = "nothing of the round is left here";
static const char begun[] = "it comes once, before all others";
static const char welcomed[] = "the daemon has welcomed this agent before";
static const char let_go[] = "the helpers of the round were let go";

struct cell {
  sup_handler_fn *act;
  const char *reason; /* no act: why not */
  bool impossible;    /* and it never comes there */
};

static const struct row {
  enum supervisor_event_kind kind;
  enum msg_type msg; /* kind MSG */
  const char *name;
  struct cell cells[SUPERVISOR_DONE]; /* DONE ignores everything: SUP_EXIT is out */
} table[] = {
/* clang-format off */
#define DO(f) {sup_##f, NULL, false}
#define NO(why) {NULL, why, false}
#define NEVER(why) {NULL, why, true}
#define EVENT(kind, joining, starting, running, finished, stopping, stopped) \
  {SUP_##kind, MSG_NONE, #kind, {joining, starting, running, finished, stopping, stopped}}
#define MESSAGE(type, joining, starting, running, finished, stopping, stopped) \
  {SUP_MSG, MSG_##type, #type, {joining, starting, running, finished, stopping, stopped}}
#define EVENT_ALWAYS(kind, f) EVENT(kind, DO(f), DO(f), DO(f), DO(f), DO(f), DO(f))
#define MESSAGE_ALWAYS(type, f) MESSAGE(type, DO(f), DO(f), DO(f), DO(f), DO(f), DO(f))
#include "agent/supervisor/table.inc"
    /* clang-format on */
};

enum { ROWS = sizeof table / sizeof *table };

size_t supervisor_table_size(void) {
  return ROWS;
}

const char *supervisor_table_event(size_t row) {
  return table[row].name;
}

const char *supervisor_table_reason(size_t row, enum supervisor_state state, bool *impossible) {
  *impossible = state != SUPERVISOR_DONE && table[row].cells[state].impossible;
  return state == SUPERVISOR_DONE ? "the agent exits" : table[row].cells[state].reason;
}

const uint32_t *supervisor_coverage(const struct supervisor *s) {
  return s->coverage;
}

/* Events of another round, or of a worker that this node does not have, do not reach the table. */
static bool is_of_round(const struct supervisor *s, const struct supervisor_event *ev) {
  const char *incarnation = s->round.incarnation;
  int64_t round = s->round.number;
  const struct msg *m = ev->kind == SUP_MSG ? ev->msg : NULL;
  switch (m ? m->type : MSG_NONE) {
  case MSG_STOP: incarnation = m->stop.incarnation, round = m->stop.round; break;
  case MSG_PREPARE: incarnation = m->prepare.incarnation, round = m->prepare.round; break;
  case MSG_KILL: incarnation = m->kill.incarnation, round = m->kill.round; break;
  case MSG_MINT: incarnation = m->mint.incarnation, round = m->mint.round; break;
  case MSG_IDS: incarnation = m->ids.incarnation, round = m->ids.round; break;
  case MSG_SETTLED: incarnation = m->settled.incarnation, round = m->settled.round; break;
  default: break; /* it has no token, or its handler looks at it */
  }
  switch (ev->kind) {
  case SUP_MSG: return round == s->round.number && !strcmp(incarnation, s->round.incarnation);
  case SUP_FENCED:
  case SUP_LOOKED:
  case SUP_PROBE_FACTS:
  case SUP_PROBE_DONE:
  case SUP_MINTED:
  case SUP_MINT_FAILED: return ev->round == s->round.number;
  case SUP_SPAWNED:
  case SUP_EXEC_FAILED:
  case SUP_DEVICE_HELD:
  case SUP_EXITED:
  case SUP_PROGRESS:
  case SUP_RESUMED:
  case SUP_SAVED:
  case SUP_SAVING:
  case SUP_PACE:
  case SUP_CAN_CHECKPOINT:
  case SUP_CHECKPOINTED:
  case SUP_CAN_REJOIN:
  case SUP_PARKED:
  case SUP_SIGN:
  case SUP_PROBED:
  case SUP_NCCL_UP: return ev->round == s->round.number && ev->local_rank < s->config.workers;
  default: return true; /* CLEAR and STUCK may be of an older round */
  }
}

void supervisor_step(struct supervisor *s, const struct supervisor_event *ev, struct supervisor_effects *fx) {
  s->fx = fx;
  s->now_ms = ev->now_ms;
  s->wall_ms = ev->wall_ms;
  if (s->state == SUPERVISOR_DONE) return;
  enum msg_type msg = ev->kind == SUP_MSG ? ev->msg->type : MSG_NONE;
  size_t row = 0;
  while (row < ROWS && (table[row].kind != ev->kind || table[row].msg != msg)) row++;
  if (row < ROWS && is_of_round(s, ev)) { /* CONTROL_REPLY is for rdzvctl */
    const struct cell *c = &table[row].cells[s->state];
    s->coverage[row * SUPERVISOR_STATE_COUNT + s->state]++;
    if (c->act) c->act(s, ev);
  }
  if (ev->kind == SUP_MSG) sup_note_heard(s);
  sup_prepare_watch(s);
  sup_park_watch(s);
  sup_forward_watch(s);
  sup_update_guard_fence(s);
  s->fx = NULL;
}

uint64_t supervisor_forward_ms(const struct settings *settings) {
  return earliest(SUPERVISOR_FORWARD_MS, (uint64_t)settings->lease_ms);
}

uint64_t supervisor_deadline(const struct supervisor *s) {
  if (s->state == SUPERVISOR_DONE) return UINT64_MAX;
  const uint64_t at_ms[] = {
      s->leave.deadline_ms,     s->verdicts.show_ms,  s->round.early_ms,         s->stop.line_ms,
      sup_park_deadline(s),     sup_link_deadline(s), sup_following_deadline(s), sup_orphan_deadline(s),
      sup_progress_deadline(s), sup_hang_deadline(s), sup_ids_deadline(s),       sup_forming_deadline(s),
      sup_prepare_deadline(s),  sup_pace_deadline(s),
  };
  uint64_t first_ms = UINT64_MAX;
  for (size_t i = 0; i < sizeof at_ms / sizeof *at_ms; i++) first_ms = earliest(first_ms, at_ms[i]);
  return first_ms;
}

/* The object. ------------------------------------------------------------------------------------------------------ */

static void put_default(const char **text) {
  if (!*text) *text = "";
}

struct supervisor *supervisor_create(const struct supervisor_config *config) {
  struct supervisor *s = xcalloc(1, sizeof *s);
  s->config = *config;
  put_default(&s->config.local_addr);
  put_default(&s->config.role);
  put_default(&s->config.addrs);
  put_default(&s->config.expected_hosts);
  put_default(&s->config.command);
  s->workers = xcalloc((size_t)config->workers, sizeof *s->workers);
  s->coverage = xcalloc(supervisor_table_size() * SUPERVISOR_STATE_COUNT, sizeof *s->coverage);
  s->round.node_rank = s->round.failed_step = -1;
  s->round.last_failure = FAILURE_MARK_NONE;
  s->leave.kill_ms = s->leave.deadline_ms = s->checkpoint.leave_ms = s->fence.guard_ms = UINT64_MAX;
  s->check.tell_by_ms = UINT64_MAX;
  s->link.other_protocol_ms = s->link.unknown_ms = UINT64_MAX;
  s->following.weak_ms = s->following.look_ms = s->following.search_ms = UINT64_MAX;
  s->following.left = SIZE_MAX;
  s->verdicts.show_ms = s->park.by_ms = s->forming.lacks_ms = UINT64_MAX;
  s->promise.seal.base_incarnation = s->promise.base;
  s->promise.head_host = xstrdup("");
  verdict_init(&s->verdicts.shown);
  verdict_init(&s->verdicts.last);
  verdict_init(&s->verdicts.pending);
  verdict_init(&s->hang.heard);
  verdict_init(&s->hang.dead);
  goodput_init(&s->account.last);
  sup_clear_round(s);
  sup_targets_create(s);
  return s;
}

void supervisor_destroy(struct supervisor *s) {
  if (!s) return;
  verdict_free(&s->hang.dead); /* or sup_clear_round reports it */
  sup_clear_round(s);
  sup_park_finish(s);
  bytes_unref(s->forming.waiting);
  verdict_free(&s->verdicts.shown);
  verdict_free(&s->verdicts.last);
  verdict_free(&s->verdicts.pending);
  free(s->following.charge_host);
  free(s->promise.head_host);
  free(s->link.down_text);
  free(s->workers);
  free(s->coverage);
  free(s->fault);
  free(s);
}
