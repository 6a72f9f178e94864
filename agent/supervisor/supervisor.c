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
 * carries a token; another token is another round.
 *
 * The files: connection.c the connection and heartbeats; fence.c fencing, and a daemon that is away for long;
 * follow_daemon.c which daemon is followed; which_daemon_next.c where it may be; promise.c what another daemon must
 * know of the last round; round.c the round, its workers and reports, and workers that do not stop; prepare.c a
 * checkpoint before a planned end; end.c leaving; forming.c the nodes that are missing; park.c the workers that stay
 * for the next round; progress.c how far workers are; hang_decision.c workers that make no progress; ids.c the
 * round's NCCL ids; user_log.c the lines for the user; summary.c a line for the service manager; lasting_failure.c
 * failures that a restart cannot mend. */

#include "agent/supervisor/internal.h"

#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/mem.h"

/* Effects. --------------------------------------------------------------------------------------------------------- */

struct supervisor_effect *sup_effect(struct supervisor *s, enum supervisor_effect_kind kind) {
  struct supervisor_effects *fx = s->fx;
  if (fx->n == fx->cap) {
    fx->cap = fx->cap ? 2 * fx->cap : 16;
    fx->v = xrealloc(fx->v, fx->cap * sizeof *fx->v);
  }
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

static void free_effect(struct supervisor_effect *e) {
  switch (e->kind) {
  case SUP_CONNECT: free(e->connect.addr); break;
  case SUP_FORWARD: bytes_unref(e->forward.bytes); break;
  case SUP_SEND: bytes_unref(e->send.bytes); break;
  case SUP_SPAWN:
    start_free(e->spawn.start);
    bytes_unref(e->spawn.guests);
    break;
  case SUP_IDS:
    bytes_unref(e->ids.ids);
    free(e->ids.text);
    break;
  case SUP_DEATH_REPORT: bytes_unref(e->death_report.bytes); break;
  case SUP_SAY: free(e->say.text); break;
  case SUP_TOLD:
    free(e->told.text);
    free(e->told.error);
    break;
  case SUP_STATUS: free(e->status.text); break;
  case SUP_EVENT:
    free(e->event.name);
    free(e->event.line);
    break;
  case SUP_ENDING:
    if (e->ending) verdict_free(&e->ending->verdict);
    if (e->ending) free((void *)(uintptr_t)e->ending->goodput.waited_for);
    free(e->ending);
    break;
  default: break;
  }
}

void supervisor_effects_clear(struct supervisor_effects *fx) {
  for (size_t i = 0; i < fx->n; i++) free_effect(&fx->v[i]);
  fx->n = 0;
}

void supervisor_effects_finish(struct supervisor_effects *fx) {
  supervisor_effects_clear(fx);
  free(fx->v);
  memset(fx, 0, sizeof *fx);
}

void sup_send(struct supervisor *s, const struct msg *m) {
  if (s->link.state == CONNECTION_READY || m->type == MSG_HELLO) sup_effect(s, SUP_SEND)->send.bytes = msg_bytes(m);
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

/* Concerns. -------------------------------------------------------------------------------------------------------- */

/* Each has a file. Those that are created here keep a struct that no other file can see. */
static const struct concern {
  void (*create)(struct supervisor *s);
  void (*destroy)(struct supervisor *s);
  void (*clear)(struct supervisor *s); /* a new round begins, or the supervisor ends */
  void (*tick)(struct supervisor *s);
  uint64_t (*deadline)(const struct supervisor *s);
} concerns[] = {
    /* ticks come in this order */
    {sup_verdicts_create, sup_verdicts_destroy, NULL, sup_verdicts_tick, sup_verdicts_deadline},
    {NULL, NULL, NULL, sup_early_tick, sup_early_deadline},
    {NULL, NULL, NULL, sup_wait_tick, sup_wait_deadline},
    {sup_park_create, sup_park_destroy, sup_park_clear_round, sup_park_tick, sup_park_deadline},
    {sup_targets_create, sup_targets_destroy, NULL, NULL, NULL},
    {sup_promise_create, sup_promise_destroy, NULL, NULL, NULL},
    {NULL, NULL, NULL, sup_link_tick, sup_link_deadline},
    {sup_following_create, sup_following_destroy, NULL, sup_following_tick, sup_following_deadline},
    {NULL, NULL, NULL, sup_orphan_tick, sup_orphan_deadline},
    {sup_progress_create, sup_progress_destroy, sup_progress_clear, sup_progress_tick, sup_progress_deadline},
    {sup_account_create, sup_account_destroy, sup_account_clear, NULL, NULL},
    {sup_hang_create, sup_hang_destroy, sup_hang_end, sup_hang_tick, sup_hang_deadline},
    {sup_ids_create, sup_ids_destroy, sup_ids_clear, sup_ids_tick, sup_ids_deadline},
    {sup_forming_create, sup_forming_destroy, NULL, sup_forming_tick, sup_forming_deadline},
    {sup_prepare_create, sup_prepare_destroy, sup_prepare_clear, NULL, sup_prepare_deadline},
};
enum { CONCERNS = sizeof concerns / sizeof *concerns };

void sup_clear_concerns(struct supervisor *s) {
  for (size_t i = 0; i < CONCERNS; i++)
    if (concerns[i].clear) concerns[i].clear(s);
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
  m.agent_died.version = PROTO_VERSION;
  m.agent_died.job = s->config.job;
  m.agent_died.agent = s->config.agent_id;
  sup_effect(s, SUP_DEATH_REPORT)->death_report.bytes = msg_bytes(&m);
  s->job.begun_ms = s->link.lost_ms = s->now_ms;
  sup_connect(s);
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
  for (size_t i = 0; i < CONCERNS; i++)
    if (concerns[i].tick) concerns[i].tick(s);
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
  void (*act)(struct supervisor *s, const struct supervisor_event *ev);
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

static bool is_token(const struct supervisor *s, const char *incarnation, int64_t round) {
  return round == s->round.number && !strcmp(incarnation, s->round.incarnation);
}

static bool msg_is_of_round(const struct supervisor *s, const struct msg *m) {
  switch (m->type) {
  case MSG_STOP: return is_token(s, m->stop.incarnation, m->stop.round);
  case MSG_PREPARE: return is_token(s, m->prepare.incarnation, m->prepare.round);
  case MSG_KILL: return is_token(s, m->kill.incarnation, m->kill.round);
  case MSG_MINT: return is_token(s, m->mint.incarnation, m->mint.round);
  case MSG_IDS: return is_token(s, m->ids.incarnation, m->ids.round);
  case MSG_SETTLED: return is_token(s, m->settled.incarnation, m->settled.round);
  default: return true; /* it has no token, or its handler looks at it */
  }
}

/* Events of another round, or of a worker that this node does not have, do not reach the table. */
static bool is_of_round(const struct supervisor *s, const struct supervisor_event *ev) {
  switch (ev->kind) {
  case SUP_MSG: return msg_is_of_round(s, ev->msg);
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

static void dispatch(struct supervisor *s, const struct supervisor_event *ev) {
  enum msg_type msg = ev->kind == SUP_MSG ? ev->msg->type : MSG_NONE;
  size_t row = 0;
  while (row < ROWS && (table[row].kind != ev->kind || table[row].msg != msg)) row++;
  if (row == ROWS || !is_of_round(s, ev)) return; /* CONTROL_REPLY is for rdzvctl */
  const struct cell *c = &table[row].cells[s->state];
  s->coverage[row * SUPERVISOR_STATE_COUNT + s->state]++;
  if (c->act) c->act(s, ev);
}

void supervisor_step(struct supervisor *s, const struct supervisor_event *ev, struct supervisor_effects *fx) {
  s->fx = fx;
  s->now_ms = ev->now_ms;
  s->wall_ms = ev->wall_ms;
  if (s->state == SUPERVISOR_DONE) return;
  dispatch(s, ev);
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
  uint64_t at_ms = s->leave.deadline_ms;
  for (size_t i = 0; i < CONCERNS; i++)
    if (concerns[i].deadline) at_ms = earliest(at_ms, concerns[i].deadline(s));
  return at_ms;
}

/* The object. ------------------------------------------------------------------------------------------------------ */

struct supervisor *supervisor_create(const struct supervisor_config *config) {
  struct supervisor *s = xcalloc(1, sizeof *s);
  s->config = *config;
  s->config.agent_id = xstrdup(config->agent_id);
  s->config.job = xstrdup(config->job);
  s->config.host = xstrdup(config->host);
  s->config.local_addr = xstrdup(config->local_addr ? config->local_addr : "");
  s->config.role = xstrdup(config->role ? config->role : "");
  s->config.addrs = xstrdup(config->addrs ? config->addrs : "");
  s->config.expected_hosts = xstrdup(config->expected_hosts ? config->expected_hosts : "");
  s->config.interpreter = config->interpreter ? xstrdup(config->interpreter) : NULL;
  s->config.endpoint = xstrdup(config->endpoint);
  const char **copy = config->endpoints ? xcalloc(config->n_endpoints, sizeof *copy) : NULL;
  for (uint32_t i = 0; copy && i < config->n_endpoints; i++) copy[i] = xstrdup(config->endpoints[i]);
  s->config.endpoints = copy;
  s->config.claim = config->claim ? xstrdup(config->claim) : NULL;
  s->config.endpoint_from = config->endpoint_from ? xstrdup(config->endpoint_from) : NULL;
  s->config.endpoint_doubt = config->endpoint_doubt ? xstrdup(config->endpoint_doubt) : NULL;
  s->config.command = xstrdup(config->command ? config->command : "");
  s->workers = xcalloc((size_t)config->workers, sizeof *s->workers);
  s->coverage = xcalloc(supervisor_table_size() * SUPERVISOR_STATE_COUNT, sizeof *s->coverage);
  s->round.node_rank = s->round.failed_step = -1;
  s->round.last_failure = FAILURE_MARK_NONE;
  s->leave.kill_ms = s->leave.deadline_ms = s->stop.line_ms = s->round.early_ms = s->fence.guard_ms =
      s->link.other_protocol_ms = s->link.unknown_ms = UINT64_MAX;
  for (size_t i = 0; i < CONCERNS; i++)
    if (concerns[i].create) concerns[i].create(s);
  return s;
}

void supervisor_destroy(struct supervisor *s) {
  if (!s) return;
  sup_clear_round(s);
  for (size_t i = 0; i < CONCERNS; i++)
    if (concerns[i].destroy) concerns[i].destroy(s);
  free((void *)(uintptr_t)s->config.agent_id);
  free((void *)(uintptr_t)s->config.job);
  free((void *)(uintptr_t)s->config.host);
  free((void *)(uintptr_t)s->config.local_addr);
  free((void *)(uintptr_t)s->config.role);
  free((void *)(uintptr_t)s->config.addrs);
  free((void *)(uintptr_t)s->config.expected_hosts);
  free((void *)(uintptr_t)s->config.command);
  free(s->link.down_text);
  free((void *)(uintptr_t)s->config.interpreter);
  free(s->round.interpreter);
  free((void *)(uintptr_t)s->config.endpoint);
  for (uint32_t i = 0; s->config.endpoints && i < s->config.n_endpoints; i++)
    free((void *)(uintptr_t)s->config.endpoints[i]);
  free((void *)(uintptr_t)s->config.endpoints);
  free((void *)(uintptr_t)s->config.claim);
  free((void *)(uintptr_t)s->config.endpoint_from);
  free((void *)(uintptr_t)s->config.endpoint_doubt);
  free(s->workers);
  free(s->coverage);
  free(s->fault);
  free(s);
}
