/* The agent's mind: join -> start -> run -> stop -> again.
 *
 *   JOINING -> STARTING -> RUNNING -> FINISHED -> DONE
 *      ^           |          |           |
 *      |           +--> STOPPING <--------+ (never back to running: a round that stops is over)
 *      +-- STOPPED <------+
 *
 * It talks to two sides and believes both only so far. The guard tells what happened to processes; the daemon tells
 * what happens to the round. Whatever it has reported stays in `reports` until the round is settled, and is said again in
 * every HELLO, so that a daemon that was killed in the middle learns all of it anew. Whatever it is told carries a
 * token, and what does not fit the token is not for this round.
 *
 * The files: supervisor.c events and deadlines, _link.c the connection, heartbeats and fencing, _orphan.c a daemon that is away for long,
 * _round.c workers and reports, _prepare.c a checkpoint before a planned end, _end.c leaving, _forming.c who is missing, _wait.c what does
 * not stop, _park.c who stays for the next round, _progress.c how far workers are, _hang.c that they are, _ids.c the round's NCCL ids, _say.c what the user reads. */

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
  to->minters = NULL; /* nobody who spawns asks for it */
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

static void free_ending(struct ending *ending) {
  if (ending) verdict_free(&ending->verdict);
  free(ending);
}

void supervisor_effects_clear(struct supervisor_effects *fx) {
  for (size_t i = 0; i < fx->n; i++) {
    bytes_unref(fx->v[i].bytes);
    free(fx->v[i].text);
    free(fx->v[i].error_text);
    start_free(fx->v[i].start);
    free_ending(fx->v[i].ending);
  }
  fx->n = 0;
}

void supervisor_effects_finish(struct supervisor_effects *fx) {
  supervisor_effects_clear(fx);
  free(fx->v);
  memset(fx, 0, sizeof *fx);
}

void sup_send(struct supervisor *s, const struct msg *m) {
  if (s->link == LINK_READY || m->type == MSG_HELLO) sup_effect(s, SUP_SEND)->bytes = msg_bytes(m);
}

/* States. ---------------------------------------------------------------------------------------------------------- */

#define X(name, word) word,
static const char *const state_names[] = {SUPERVISOR_STATE_LIST(X)};
#undef X

const char *supervisor_state_name(enum supervisor_state st) {
  return st < SUPERVISOR_STATE_COUNT ? state_names[st] : "?";
}

void sup_set_state(struct supervisor *s, enum supervisor_state to) {
  if (s->state == to) return;
  sup_say(s, LOG_DEBUG, "round %lld: %s -> %s", (long long)s->round, supervisor_state_name(s->state),
          supervisor_state_name(to));
  if (s->state == SUPERVISOR_JOINING) sup_forming_over(s);
  s->state = to;
}

bool sup_has_trees(const struct supervisor *s) {
  return s->state == SUPERVISOR_STARTING || s->state == SUPERVISOR_RUNNING || s->state == SUPERVISOR_STOPPING;
}

bool sup_is_exiting(const struct supervisor *s) {
  return s->reason == STOP_EXIT;
}

enum supervisor_state supervisor_state(const struct supervisor *s) {
  return s->state;
}
int64_t supervisor_round(const struct supervisor *s) {
  return s->round;
}

/* Events. ---------------------------------------------------------------------------------------------------------- */

static void on_challenge(struct supervisor *s, const struct challenge *c) {
  if (s->link != LINK_GREETING) return;
  if (c->version != PROTO_VERSION)
    sup_say(s, LOG_WARN, "the daemon at %s speaks version %lld of the protocol and this agent version %d",
            s->config.endpoint, (long long)c->version, PROTO_VERSION);
  sup_say_hello(s);
}

static void on_msg(struct supervisor *s, const struct msg *m) {
  switch (m->type) {
  case MSG_CHALLENGE: on_challenge(s, &m->challenge); break;
  case MSG_WELCOME: sup_welcome(s, &m->welcome); break;
  case MSG_REFUSED: sup_refused(s, &m->refused); break;
  case MSG_STALE: sup_stale(s, &m->stale); break;
  case MSG_WAITING: sup_waiting(s, m); break;
  case MSG_START: sup_start(s, m); break;
  case MSG_PREPARE: sup_prepare(s, &m->prepare); break;
  case MSG_STOP: sup_stop(s, &m->stop); break;
  case MSG_KILL: sup_kill(s, &m->kill); break;
  case MSG_MINT: sup_mint(s, &m->mint); break;
  case MSG_IDS: sup_ids(s, m); break;
  case MSG_SETTLED: sup_settled(s, &m->settled); break;
  case MSG_END: sup_end(s, &m->end); break;
  case MSG_HEARTBEAT_ACK: sup_heartbeat_ack(s, m->id, m->flags); break;
  case MSG_GOING_AWAY:
    sup_say(s, LOG_INFO, "the daemon at %s says: %s", s->config.endpoint, m->going_away.text);
    break;
  default: break; /* the codec lets in only what goes to agents; CONTROL_REPLY is for rdzvctl */
  }
}

static void on_start(struct supervisor *s) {
  struct msg m;
  msg_init(&m, MSG_OBITUARY);
  m.obituary.version = PROTO_VERSION;
  m.obituary.job = s->config.job;
  m.obituary.agent = s->config.agent_id;
  sup_effect(s, SUP_OBITUARY)->bytes = msg_bytes(&m);
  s->begun_ms = s->daemonless_ms = s->now_ms;
  sup_connect(s);
}

/* Stopped itself, it comes here late, and may not have done its part yet, or only a moment ago: nobody is left behind for that. What is to
 * die has the slack from when the guard was to kill it. */
static bool kill_first(struct supervisor *s) {
  if (!sup_has_trees(s)) return false;
  bool told = s->state == SUPERVISOR_STOPPING;
  uint64_t by_ms = (told ? s->kill_ms : s->now_ms) + SUPERVISOR_LEAVE_SLACK_MS;
  if (s->now_ms >= by_ms) return false;
  s->leave_by_ms = by_ms;
  if (!told) sup_stop_trees(s, STOP_LEAVING, 0);
  return true;
}

static void on_tick(struct supervisor *s) {
  if (s->now_ms >= s->leave_by_ms && !kill_first(s)) {
    sup_say(s, LOG_WARN, "leaving although not everything is settled: it took too long");
    sup_exit(s, s->exit_code, NULL);
    return;
  }
  if (s->now_ms >= s->tell_ms) sup_say_untold(s);
  sup_wait_tick(s);
  sup_park_tick(s);
  sup_link_tick(s);
  sup_orphan_tick(s);
  sup_progress_tick(s);
  sup_hang_tick(s);
  sup_ids_tick(s);
  sup_forming_tick(s);
}

void supervisor_step(struct supervisor *s, const struct supervisor_event *ev, struct supervisor_effects *fx) {
  s->fx = fx;
  s->now_ms = ev->now_ms;
  if (s->state == SUPERVISOR_DONE) return;
  switch (ev->kind) {
  case SUP_STORE: sup_store(s, ev); break;
  case SUP_START: on_start(s); break;
  case SUP_LINK_UP: sup_link_up(s, ev); break;
  case SUP_LINK_DOWN: sup_link_down(s, ev); break;
  case SUP_MSG: on_msg(s, ev->msg); break;
  case SUP_SPAWNED: sup_spawned(s, ev); break;
  case SUP_EXEC_FAILED: sup_exec_failed(s, ev); break;
  case SUP_DEVICE_HELD: sup_device_held(s, ev); break;
  case SUP_EXITED: sup_exited(s, ev); break;
  case SUP_CLEAR: sup_clear(s, ev); break;
  case SUP_FENCED: sup_fenced(s, ev); break;
  case SUP_STUCK:
    sup_say(s, LOG_WARN, "a process does not die of SIGKILL: %s", ev->text ? ev->text : "?");
    break;
  case SUP_GUARD_GONE: sup_guard_gone(s, ev); break;
  case SUP_SIGNAL: sup_signal(s, ev->signo, ev->text); break;
  case SUP_PROGRESS: sup_progress(s, ev); break;
  case SUP_SIGN: sup_hang_sign(s, ev->round, ev->local_rank, ev->sign, ev->when_ms); break;
  case SUP_LOOKED: sup_hang_looked(s, ev); break;
  case SUP_PROBED: sup_hang_probed(s, ev); break;
  case SUP_PROBE_FACTS: sup_hang_facts(s, ev); break;
  case SUP_PROBE_DONE: sup_hang_probe_done(s, ev); break;
  case SUP_CAN_CHECKPOINT: sup_can_checkpoint(s, ev); break;
  case SUP_CHECKPOINTED: sup_checkpointed(s, ev); break;
  case SUP_CAN_REJOIN: sup_can_rejoin(s, ev); break;
  case SUP_PARKED: sup_parked(s, ev); break;
  case SUP_MINTED: sup_minted(s, ev); break;
  case SUP_MINT_FAILED: sup_mint_failed(s, ev); break;
  case SUP_NCCL_UP: sup_nccl_up(s, ev); break;
  case SUP_TICK: on_tick(s); break;
  }
  sup_prepare_watch(s);
  sup_park_watch(s);
  sup_tell_guard(s);
  s->fx = NULL;
}

uint64_t supervisor_deadline(const struct supervisor *s) {
  if (s->state == SUPERVISOR_DONE) return UINT64_MAX;
  static uint64_t (*const deadlines[])(const struct supervisor *s) = {
      sup_link_deadline,    sup_forming_deadline,  sup_orphan_deadline, sup_wait_deadline, sup_hang_deadline,
      sup_prepare_deadline, sup_progress_deadline, sup_park_deadline,   sup_ids_deadline};
  uint64_t at_ms = earliest(s->leave_by_ms, s->tell_ms);
  for (size_t i = 0; i < sizeof(deadlines) / sizeof(*deadlines); i++)
    at_ms = earliest(at_ms, deadlines[i](s));
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
  s->config.label = xstrdup(config->label ? config->label : "");
  s->config.role = xstrdup(config->role ? config->role : "");
  s->config.addrs = xstrdup(config->addrs ? config->addrs : "");
  s->config.expected_hosts = xstrdup(config->expected_hosts ? config->expected_hosts : "");
  s->config.endpoint = xstrdup(config->endpoint);
  s->workers = xcalloc((size_t)config->workers, sizeof *s->workers);
  s->node_rank = s->failed_step = -1;
  s->ask_by_ms = s->kill_by_ms = s->leave_by_ms = s->progress_ms = s->tell_ms = s->wait_ms =
      s->told_fence_ms = UINT64_MAX;
  verdict_init(&s->said);
  verdict_init(&s->untold);
  verdict_init(&s->last);
  verdict_init(&s->hang.heard);
  s->park.by_ms = UINT64_MAX;
  sup_hang_end(s);
  return s;
}

void supervisor_destroy(struct supervisor *s) {
  if (!s) return;
  sup_clear_round(s);
  sup_park_finish(s);
  verdict_free(&s->said);
  verdict_free(&s->untold);
  verdict_free(&s->last);
  free((void *)(uintptr_t)s->config.agent_id);
  free((void *)(uintptr_t)s->config.job);
  free((void *)(uintptr_t)s->config.host);
  free((void *)(uintptr_t)s->config.local_addr);
  free((void *)(uintptr_t)s->config.label);
  free((void *)(uintptr_t)s->config.role);
  free((void *)(uintptr_t)s->config.addrs);
  free((void *)(uintptr_t)s->config.expected_hosts);
  bytes_unref(s->waiting);
  free(s->down_text);
  free((void *)(uintptr_t)s->config.endpoint);
  free(s->workers);
  free(s);
}
