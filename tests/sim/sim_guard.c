/* SPDX-License-Identifier: Apache-2.0 */
/* Guards and workers, as agent/guard/guard.h promises them: spawned in order, stopped by SIGTERM and after the grace by
 * SIGKILL, every death told once, CLEAR when nothing of the round is left. The guard outlives its agent: it kills
 * what there is and sends the death report. When the guard itself dies, its workers die with it, and the agent hears
 * that.
 *
 * A worker is a behaviour: how long it runs, how it ends, what it does on SIGTERM, how long SIGKILL takes. Which one
 * it gets is decided by rules (node, local rank, how many spawns this agent has seen), so that a story can say "the
 * second worker of n2 exits with 7 in its first round". */

#include "tests/sim/sim.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/guard/guard.h"
#include "agent/sdk/rdzv.h"
#include "common/mem.h"

enum { MEET_PATIENCE_MS = 20000, CALM_RUN_MS = 500, FACTS_MS = 3, STACKS_MS = 200 };

void rule_add(struct sim *s, int node, int local_rank, int spawn, struct behaviour b) {
  s->rules[s->n_rules++] = (struct rule){node, local_rank, spawn, b};
}

static void calm_down(const struct sim *s, struct behaviour *b) {
  if (!s->calm) return;
  b->end = END_EXIT;
  b->code = b->exec_errno = 0;
  if (b->run_ms > CALM_RUN_MS) b->run_ms = CALM_RUN_MS;
}

static struct behaviour behaviour_of(const struct sim *s, const struct sim_agent *a, uint32_t local_rank) {
  struct behaviour b = s->normal;
  for (int i = 0; i < s->n_rules; i++) {
    const struct rule *r = &s->rules[i];
    if (r->node >= 0 && r->node != a->node->index) continue;
    if (r->local_rank >= 0 && (uint32_t)r->local_rank != local_rank) continue;
    if (r->spawn && (uint32_t)r->spawn != a->spawns) continue;
    b = r->b;
  }
  calm_down(s, &b);
  return b;
}

static bool worker_lives(const struct sim_worker *w) {
  return w->state == WORKER_SPAWNING || w->state == WORKER_RUNNING;
}

bool worker_works(const struct sim_worker *w) {
  return w->state == WORKER_RUNNING && !w->parked;
}

bool guard_has_workers(const struct sim_agent *a) {
  for (int i = 0; i < SIM_WORKERS_MAX; i++)
    if (worker_lives(&a->w[i])) return true;
  return false;
}

/* Hangs. ----------------------------------------------------------------------------------------------------------- */

static bool hangs(const struct sim *s, const struct sim_worker *w) {
  return worker_works(w) && w->b.hang_ms && !s->calm && s->now >= w->ran_at + w->b.hang_ms;
}

/* Some rank of its round hangs, and all others wait for it. */
static bool is_held(const struct sim *s, const struct sim_agent *a) {
  for (int i = 0; i < s->n_agents; i++) {
    const struct sim_agent *b = s->agents[i];
    if (b->round != a->round || strcmp(b->incarnation, a->incarnation) != 0) continue;
    for (uint32_t k = 0; k < b->workers; k++)
      if (hangs(s, &b->w[k])) return true;
  }
  return false;
}

static bool guard_sees_workers(const struct sim_agent *a) {
  for (int i = 0; i < SIM_WORKERS_MAX; i++)
    if (worker_lives(&a->w[i]) && !a->w[i].ghost && !a->w[i].kept) return true;
  return false;
}

static bool guard_keeps_workers(const struct sim_agent *a) {
  for (int i = 0; i < SIM_WORKERS_MAX; i++)
    if (worker_lives(&a->w[i]) && a->w[i].kept) return true;
  return false;
}

/* In order. The event's text is copied. */
void guard_notify(struct sim *s, struct sim_agent *a, uint64_t at, struct supervisor_event ev) {
  if (!a->sup) return;
  if (ev.when_ms) ev.when_ms = ev.when_ms * a->node->rate / 1000; /* as its clock has it */
  if (at < a->notify_at) at = a->notify_at;
  a->notify_at = at;
  struct sim_event *e = sim_push(s, at, EV_NOTIFY);
  e->agent = a;
  e->notice = supervisor_event_copy(&ev);
}

void guard_look(struct sim *s, struct sim_agent *a) {
  guard_notify(s, a, s->now, (struct supervisor_event){.kind = SUP_LOOKED, .round = a->round});
}

/* Flight recorders of its workers: all are in the collective of the next step, except those that hang. */
static void notify_evidence(struct sim *s, struct sim_agent *a, uint64_t at) {
  char ranks[RANKS_TEXT_MAX + 1] = "", rank[16];
  struct collective *c = &a->collective; /* the event borrows it */
  *c = (struct collective){.group = "gloo 0 default_pg", .op = "all_reduce", .entered = -1, .ranks = a->ranks};
  for (uint32_t i = 0; i < a->workers; i++) {
    const struct sim_worker *w = &a->w[i];
    if (!worker_works(w)) continue;
    snprintf(rank, sizeof rank, "%u", w->rank);
    if (hangs(s, w)) {
      c->entered = 7;
      c->idle++;
      ranks_merge(ranks, rank);
    } else {
      c->seq = 8;
      c->waiting++;
    }
  }
  memcpy(a->ranks, ranks, sizeof ranks);
  struct supervisor_event ev = {
      .kind = SUP_EVIDENCE, .round = a->round, .evidence = {.v = c, .n = 1}, .text = "", .ras = "", .silent = ""};
  guard_notify(s, a, at, ev);
}

void guard_probe(struct sim *s, struct sim_agent *a) {
  uint64_t at = s->now + FACTS_MS;
  sim_trace(s, "%s: looks at its workers", a->name);
  for (uint32_t i = 0; i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    if (!worker_works(w)) continue;
    guard_notify(s, a, at,
                 (struct supervisor_event){.kind = SUP_PROBED,
                                           .round = a->round,
                                           .local_rank = i,
                                           .state = hangs(s, w) && w->b.hang_state ? w->b.hang_state : 'S',
                                           .text = "do_poll"});
  }
  notify_evidence(s, a, at);
  guard_notify(s, a, at, (struct supervisor_event){.kind = SUP_PROBE_FACTS, .round = a->round});
  struct sim_event *ev = sim_push(s, at + STACKS_MS, EV_NOTIFY); /* nothing else waits for it */
  ev->agent = a;
  ev->notice = xcalloc(1, sizeof *ev->notice);
  *ev->notice = (struct supervisor_event){.kind = SUP_PROBE_DONE, .round = a->round};
}

static void push_worker(struct sim *s, struct sim_agent *a, const struct sim_worker *w, uint64_t at,
                        enum event_kind kind, int status) {
  struct sim_event *ev = sim_push(s, at, kind);
  ev->agent = a;
  ev->a = w->local_rank;
  ev->b = w->life;
  ev->c = (uint64_t)status;
}

static void clear(struct sim *s, struct sim_agent *a, uint32_t round) {
  struct supervisor_event ev = {.kind = SUP_CLEAR, .round = round};
  if (round == a->round) a->clear_due = false;
  for (uint32_t i = 0; i < SIM_WORKERS_MAX; i++)
    if (worker_lives(&a->w[i]) && !a->w[i].ghost) local_set_add(&ev.clear.kept, i);
  guard_notify(s, a, s->now, ev);
}

static void fenced(struct sim *s, struct sim_agent *a) {
  sim_trace(s, "%s: guard fences round %u", a->name, a->round);
  guard_notify(s, a, s->now, (struct supervisor_event){.kind = SUP_FENCED, .round = a->round, .when_ms = s->now});
}

static void begin_work(struct sim *s, struct sim_agent *a, struct sim_worker *w);

/* It was kept for this round. */
static void adopt(struct sim *s, struct sim_agent *a, struct sim_worker *w, uint32_t rank) {
  if (!w->parked)
    sim_violate(s, INV_PARKED, "%s gives rank %u of round %u to a worker that has not left its round", a->name, rank,
                a->round);
  w->kept = w->parked = w->termed = w->has_to_meet = w->met = w->there = w->knocked = w->reached = false;
  w->asked = w->saved = 0;
  w->rank = rank;
  w->life++;
  w->ran_at = w->stepped_at = s->now;
  calm_down(s, &w->b);
  sim_trace(s, "%s: rank %u goes on, round %u", a->name, w->rank, a->round);
  begin_work(s, a, w);
}

static bool stays(const struct sim_agent *a, uint32_t i, uint64_t stay) {
  return (stay >> i & 1) && a->w[i].state == WORKER_RUNNING && a->w[i].kept;
}

static void kill_workers(struct sim *s, struct sim_agent *a);

void guard_spawn_all(struct sim *s, struct sim_agent *a, const struct start *start, uint64_t stay) {
  if (!a->guard_alive) return;
  guard_nudge(s, a);
  bool sleeps = guard_sleeps(a);
  if ((s->now >= a->fence_at || guard_kills(a, stay)) && !sleeps) { /* too late: nothing is started */
    a->round = (uint32_t)start->round;
    a->clear_due = true;
    fenced(s, a);
    kill_workers(s, a);
    return;
  }
  for (uint32_t i = 0; i < SIM_WORKERS_MAX; i++)
    if (worker_lives(&a->w[i]) && !stays(a, i, stay))
      sim_violate(s, INV_OVERLAP, "%s spawns round %" PRId64 " over workers of round %u", a->name, start->round,
                  a->round);
  a->spawns++;
  a->workers = a->node->workers;
  a->round = (uint32_t)start->round;
  memcpy(a->incarnation, start->incarnation, strnlen(start->incarnation, INCARNATION_MAX) + 1);
  a->clear_due = true;
  a->kill_at = UINT64_MAX;
  for (uint32_t i = 0; i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    if (stays(a, i, stay)) {
      adopt(s, a, w, (uint32_t)start->rank_base + i);
      continue;
    }
    *w = (struct sim_worker){.state = WORKER_SPAWNING,
                             .local_rank = i,
                             .rank = (uint32_t)start->rank_base + i,
                             .life = w->life + 1,
                             .unforked = sleeps,
                             .b = behaviour_of(s, a, i)};
    uint64_t at =
        (a->busy_until > s->now ? a->busy_until : s->now) + sim_between(s, 0, s->config.exec_max) + w->b.exec_ms;
    a->busy_until = at;
    push_worker(s, a, w, at, EV_GUARD_EXEC, 0);
  }
}

/* The address that the agent was connected to last. */
static struct sim_place death_report_to(struct sim *s, const struct sim_agent *a) {
  if (!s->config.takeover || a->home < 0) return place_endpoint(s, 0, a->node);
  const struct sim_daemon *d = daemon_at(s, a->home);
  return (struct sim_place){d->machine, d->port};
}

/* Nothing of the round is left? Then that is told, or the death report goes out. */
static void guard_check(struct sim *s, struct sim_agent *a) {
  if (guard_sleeps(a) || a->untold) { /* it reaps first */
    sim_push(s, s->now, EV_GUARD_CHECK)->agent = a;
    return;
  }
  if (guard_sees_workers(a)) return;
  if (!a->guard_alive) {
    guard_notify(s, a, s->now, (struct supervisor_event){.kind = SUP_GUARD_GONE, .round = a->round});
  } else if (a->sup) {
    if (a->clear_due) clear(s, a, a->round);
  } else {
    a->guard_alive = false;
    if (a->death_report && !a->node->off) link_connect(s, a, CONN_GUARD, death_report_to(s, a), 0, 0);
  }
}

/* SPAWN is read late, and may be too late. */
static void fork_late(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  w->unforked = false;
  if (s->now < a->fence_at) {
    push_worker(s, a, w, s->now + sim_between(s, 0, s->config.exec_max) + w->b.exec_ms, EV_GUARD_EXEC, 0);
    return;
  }
  fenced(s, a);
  kill_workers(s, a);
}

static void exec_worker(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  if (w->b.exec_errno) {
    bool held = w->b.exec_errno == EBUSY;
    w->state = WORKER_DEAD;
    check_worker_ends(s, a, w, 127 << 8, true);
    sim_trace(s, "%s: rank %u %s", a->name, w->rank, held ? "has no free device" : "cannot be run");
    struct supervisor_event ev = {.round = a->round, .local_rank = w->local_rank, .when_ms = s->now};
    if (held) {
      ev.kind = SUP_DEVICE_HELD;
      ev.text = "pid 7 holds it";
      ev.device = "2, GPU-8f";
    } else {
      ev.kind = SUP_EXEC_FAILED;
      ev.code = w->b.exec_errno;
      ev.text = w->b.exec_errno == EAGAIN ? "fork: no process is left" : "no such file";
    }
    guard_tell(s, a, ev, true);
    guard_check(s, a);
    return;
  }
  w->state = WORKER_RUNNING;
  if (w->b.hang_ms) s->harmless = false;
  w->pid = s->next_pid++;
  w->ran_at = w->stepped_at = s->now;
  w->step = w->b.from_step;
  sim_trace(s, "%s: rank %u runs, round %u", a->name, w->rank, a->round);
  begin_work(s, a, w);
}

static void begin_work(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  check_worker_starts(s, a, w);
  guard_tell(
      s, a,
      (struct supervisor_event){.kind = SUP_SPAWNED, .round = a->round, .local_rank = w->local_rank, .pid = w->pid},
      false);
  if (w->b.checkpoints)
    guard_notify(s, a, s->now,
                 (struct supervisor_event){
                     .kind = SUP_CAN_CHECKPOINT, .round = a->round, .local_rank = w->local_rank, .on = true});
  if (w->b.rejoins)
    guard_notify(
        s, a, s->now,
        (struct supervisor_event){.kind = SUP_CAN_REJOIN, .round = a->round, .local_rank = w->local_rank, .on = true});
  if (w->b.rejoins && w->b.alarm_ms && !s->calm) push_worker(s, a, w, s->now + w->b.alarm_ms, EV_WORKER_PARKS, 1);
  if (w->b.meet) {
    w->has_to_meet = true;
    push_worker(s, a, w, s->now + MEET_PATIENCE_MS, EV_WORKER_END, 1 << 8);
  } else if (w->b.end != END_NEVER) {
    push_worker(s, a, w, s->now + w->b.run_ms, EV_WORKER_END, w->b.end == END_EXIT ? w->b.code << 8 : w->b.code);
  }
  push_worker(s, a, w, s->now, EV_WORKER_KNOCK, 0);
  if (w->b.progress_ms) push_worker(s, a, w, s->now + w->b.progress_ms, EV_WORKER_STEP, 0);
}

static void worker_term(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  if (w->termed || w->b.term_ms == UINT32_MAX) return;
  w->termed = true;
  int status = w->b.term_code >= 0 ? w->b.term_code << 8 : SIGTERM;
  push_worker(s, a, w, s->now + w->b.term_ms + sim_between(s, 0, s->config.die_max), EV_WORKER_DIES, status);
}

static void worker_kill(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  if (w->killed) return;
  w->killed = true;
  if (w->state == WORKER_SPAWNING) {
    w->state = WORKER_DEAD;
    return;
  }
  push_worker(s, a, w, s->now + w->b.kill_ms + sim_between(s, 0, s->config.die_max), EV_WORKER_DIES, SIGKILL);
  if (w->b.kill_ms > GUARD_KILL_DEADLINE_MS) push_worker(s, a, w, s->now + GUARD_KILL_DEADLINE_MS, EV_WORKER_STUCK, 0);
}

void guard_stop_trees(struct sim *s, struct sim_agent *a, uint64_t round, uint64_t grace_ms, uint64_t keep) {
  if (!a->guard_alive) return;
  guard_nudge(s, a);
  watch_stop(s, a, (uint32_t)round, grace_ms, keep);
  struct sim_event *ev = sim_push(s, s->now, EV_GUARD_STOP);
  ev->agent = a;
  ev->a = round;
  ev->b = grace_ms;
  ev->c = keep;
}

/* A stop in which others were kept can only be followed by one that keeps fewer. True: somebody is no longer. */
static bool keep_workers(struct sim_agent *a, uint64_t keep) {
  bool again = a->kill_at != UINT64_MAX || guard_keeps_workers(a), dropped = false;
  for (uint32_t i = 0; i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    bool is = worker_lives(w) && (keep >> i & 1) && !w->killed && (w->kept || !again);
    dropped |= w->kept && !is;
    w->kept = is;
  }
  return dropped;
}

static void stop_workers(struct sim *s, struct sim_agent *a, uint32_t round, uint64_t grace_ms, uint64_t keep) {
  if (!a->guard_alive) return;
  for (uint32_t i = 0; i < a->workers; i++) /* forked, and killed before exec */
    if (a->w[i].state == WORKER_SPAWNING) a->w[i].state = WORKER_DEAD;
  a->busy_until = s->now;
  bool dropped = keep_workers(a, keep);
  if (!guard_sees_workers(a)) {
    if (guard_keeps_workers(a)) a->round = round;
    clear(s, a, round);
    return;
  }
  check_stop(s, a);
  a->clear_due = true;
  uint64_t at = s->now + grace_ms;
  if (at >= a->kill_at && grace_ms && !dropped) return; /* a second call may only shorten the grace */
  if (at < a->kill_at) a->kill_at = at;
  for (uint32_t i = 0; i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    if (!worker_lives(w) || w->kept) continue;
    if (grace_ms) {
      worker_term(s, a, w);
      push_worker(s, a, w, at, EV_WORKER_KILL, 0);
    } else {
      worker_kill(s, a, w);
    }
  }
}

static void kill_workers(struct sim *s, struct sim_agent *a) {
  for (uint32_t i = 0; i < a->workers; i++) {
    a->w[i].kept = false;
    if (worker_lives(&a->w[i])) worker_kill(s, a, &a->w[i]);
  }
  sim_push(s, s->now, EV_GUARD_CHECK)->agent = a;
}

void guard_kill_all(struct sim *s, struct sim_agent *a) {
  if (guard_sleeps(a))
    sim_push(s, s->now, EV_GUARD_ALONE)->agent = a;
  else if (a->guard_alive)
    kill_workers(s, a);
}

void guard_kill_by_hand(struct sim *s, struct sim_agent *a) {
  bool any = false;
  for (uint32_t i = 0; i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    if (!worker_lives(w) || w->killed || w->unforked) continue;
    if (!any) sim_trace(s, "%s: kills in its guard's stead", a->name);
    any = true;
    worker_kill(s, a, w);
  }
}

void guard_kill(struct sim *s, struct sim_agent *a) {
  s->faulty = true;
  if (!a->guard_alive) return;
  sim_trace(s, "%s: guard killed", a->name);
  s->harmless = false;
  for (uint32_t i = 0; i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    w->kept = false;
    if (worker_lives(w)) worker_kill(s, a, w);
  }
  guard_note_rest(s, a);
  a->guard_alive = false;
  a->guard_rest = GUARD_AWAKE;
  sim_push(s, s->now, EV_GUARD_CHECK)->agent = a;
  sim_unstash_guard(s, a);
}

void guard_calm(struct sim *s, struct sim_agent *a) {
  for (uint32_t i = 0; i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    if (worker_lives(w) && !w->parked && (!w->has_to_meet || w->met))
      push_worker(s, a, w, s->now + CALM_RUN_MS, EV_WORKER_END, 0);
  }
}

void worker_signal(struct sim *s, struct sim_agent *a, uint32_t local_rank, int signo) {
  s->faulty = true;
  struct sim_worker *w = &a->w[local_rank];
  if (w->state != WORKER_RUNNING) return;
  sim_trace(s, "%s: rank %u gets signal %d", a->name, w->rank, signo);
  s->harmless = false;
  push_worker(s, a, w, s->now, EV_WORKER_END, signo);
}

/* The deadline: it goes through the same socket as the commands. */
void guard_fence_at(struct sim *s, struct sim_agent *a, uint64_t at) {
  guard_nudge(s, a);
  at = node_when(a->node, at);
  a->fence_at = at;
  if (a->guard_alive && at != UINT64_MAX) sim_push(s, at, EV_GUARD_FENCE)->agent = a;
}

static void on_fence(struct sim *s, struct sim_agent *a) {
  bool any = guard_sees_workers(a) || guard_keeps_workers(a);
  if (!a->guard_alive || !a->sup || s->now < a->fence_at || !any) return;
  check_stop(s, a);
  a->clear_due = true;
  fenced(s, a);
  kill_workers(s, a);
}

void guard_all_met(struct sim *s, struct sim_agent *a) {
  for (uint32_t i = 0; i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    if (!worker_works(w) || !w->there || w->met) continue;
    w->met = true;
    if (w->b.end != END_NEVER || s->calm)
      push_worker(s, a, w, s->now + w->b.run_ms, EV_WORKER_END, w->b.end == END_EXIT ? w->b.code << 8 : w->b.code);
  }
}

static void worker_dies(struct sim *s, struct sim_agent *a, struct sim_worker *w, int status, bool by_itself) {
  if (s->mutator && s->mutator->dies && !s->mutator->dies(s, a, w)) {
    w->ghost = true;
  } else {
    w->state = WORKER_DEAD;
  }
  w->exited_zero = status == 0;
  if (status & 0x7f) {
    sim_trace(s, "%s: rank %u dies of signal %d", a->name, w->rank, status & 0x7f);
  } else {
    sim_trace(s, "%s: rank %u exits with %d", a->name, w->rank, status >> 8);
  }
  check_worker_ends(s, a, w, status, by_itself);
  check_fenced(s, a, w);
  char words[80] = "";
  if (status && w->b.words) snprintf(words, sizeof words, "%s (pid %d, 0x%x)", w->b.words, w->pid, w->pid * 4099);
  if (a->guard_alive)
    guard_tell(s, a,
               (struct supervisor_event){.kind = SUP_EXITED,
                                         .round = a->round,
                                         .local_rank = w->local_rank,
                                         .when_ms = s->now,
                                         .exited = {.status = status},
                                         .text = status ? "last words" : "",
                                         .error = words},
               by_itself);
  guard_check(s, a);
}

static void say(struct sim *s, struct sim_agent *a, const struct sim_worker *w, struct supervisor_event ev) {
  ev.round = a->round;
  ev.local_rank = w->local_rank;
  guard_notify(s, a, s->now, ev);
}

static void on_step(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  push_worker(s, a, w, s->now + w->b.progress_ms, EV_WORKER_STEP, 0);
  if (is_held(s, a)) return;
  if (w->step == w->b.from_step) say(s, a, w, (struct supervisor_event){.kind = SUP_RESUMED, .step = w->step});
  w->step++;
  w->stepped_at = s->now;
  guard_notify(s, a, s->now,
               (struct supervisor_event){
                   .kind = SUP_PROGRESS,
                   .round = a->round,
                   .local_rank = w->local_rank,
                   .progress = {.step = w->step, .of = 1000, .loss = 1.0 / (double)w->step, .samples_per_second = 64}});
}

static void ask_checkpoint(struct sim *s, struct sim_agent *a, uint32_t number) {
  for (uint32_t i = 0; number && i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    if (!worker_lives(w) || w->parked || !w->b.checkpoints || w->asked == number) continue;
    w->asked = number;
    say(s, a, w, (struct supervisor_event){.kind = SUP_SAVING, .on = true});
    if (w->b.save_ms != UINT32_MAX) push_worker(s, a, w, s->now + w->b.save_ms, EV_WORKER_SAVED, (int)number);
  }
}

void guard_ask(struct sim *s, struct sim_agent *a, const struct supervisor_effect *fx) {
  ask_checkpoint(s, a, fx->request.checkpoint);
  for (uint32_t i = 0; (fx->request.bits & RDZV_REJOIN) && i < a->workers; i++) {
    struct sim_worker *w = &a->w[i];
    if (!(fx->request.of.bits[0] >> i & 1) || !worker_works(w) || !w->b.rejoins || w->b.park_ms == UINT32_MAX) continue;
    push_worker(s, a, w, s->now + w->b.park_ms, EV_WORKER_PARKS, 0);
  }
}

/* What belonged to its round is over for it. */
static void on_parks(struct sim *s, struct sim_agent *a, struct sim_worker *w, bool unasked) {
  if (w->parked || w->killed || w->termed || hangs(s, w)) return;
  sim_trace(s, "%s: rank %u leaves round %u to rejoin", a->name, w->rank, a->round);
  if (unasked) s->harmless = false;
  if (!s->mutator || !s->mutator->parks || s->mutator->parks(s, a, w)) {
    w->parked = true;
    w->life++;
    if (a->kill_at != UINT64_MAX && !w->kept) push_worker(s, a, w, a->kill_at, EV_WORKER_KILL, 0); /* too late */
  }
  guard_notify(s, a, s->now,
               (struct supervisor_event){.kind = SUP_PARKED,
                                         .round = a->round,
                                         .local_rank = w->local_rank,
                                         .text = unasked ? "lost contact with a rank" : ""});
}

static void on_saved(struct sim *s, struct sim_agent *a, struct sim_worker *w, uint32_t number) {
  w->saved = number;
  sim_trace(s, "%s: rank %u has written checkpoint %u", a->name, w->rank, number);
  say(s, a, w,
      (struct supervisor_event){.kind = SUP_CHECKPOINTED, .checkpointed = {.request = number, .step = w->step}});
  say(s, a, w, (struct supervisor_event){.kind = SUP_SAVED, .step = w->step});
  say(s, a, w, (struct supervisor_event){.kind = SUP_SAVING, .on = false});
}

static void on_worker(struct sim *s, struct sim_agent *a, struct sim_worker *w, const struct sim_event *ev) {
  if (ev->kind == EV_GUARD_EXEC) {
    if (w->state == WORKER_SPAWNING && w->unforked)
      fork_late(s, a, w);
    else if (w->state == WORKER_SPAWNING && a->guard_alive)
      exec_worker(s, a, w);
    return;
  }
  if (w->state != WORKER_RUNNING || w->ghost) return;
  if (w->parked && ev->kind == EV_WORKER_END) {
    if (ev->c & 0x7f) worker_dies(s, a, w, (int)ev->c, !w->kept);
  } else if (ev->kind == EV_WORKER_PARKS) {
    on_parks(s, a, w, ev->c);
  } else if (ev->kind == EV_WORKER_END && !(ev->c & 0x7f) && is_held(s, a)) {
    push_worker(s, a, w, s->now + 100, EV_WORKER_END, (int)ev->c); /* its own end is a step too */
  } else if (ev->kind == EV_WORKER_END) {
    /* a patience that has ended long ago is none */
    bool patience = w->has_to_meet && w->met && ev->c == 1 << 8 && !(w->b.end == END_EXIT && w->b.code == 1);
    if (!patience) worker_dies(s, a, w, (int)ev->c, !w->kept);
  } else if (ev->kind == EV_WORKER_KILL) {
    worker_kill(s, a, w);
  } else if (ev->kind == EV_WORKER_DIES) {
    worker_dies(s, a, w, (int)ev->c, false);
  } else if (ev->kind == EV_WORKER_KNOCK) {
    store_knock(s, a, w);
    push_worker(s, a, w, store_next_knock(s, w), EV_WORKER_KNOCK, 0);
  } else if (ev->kind == EV_WORKER_SAVED) {
    on_saved(s, a, w, (uint32_t)ev->c);
  } else if (ev->kind == EV_WORKER_STUCK) {
    guard_notify(s, a, s->now,
                 (struct supervisor_event){.kind = SUP_STUCK,
                                           .round = a->round,
                                           .local_rank = w->local_rank,
                                           .stuck = {.pid = w->pid, .state = 'D'},
                                           .text = "python"});
  } else {
    on_step(s, a, w);
  }
}

void guard_on_event(struct sim *s, struct sim_event *ev) {
  struct sim_agent *a = ev->agent;
  if (ev->kind == EV_GUARD_STOP) {
    stop_workers(s, a, (uint32_t)ev->a, ev->b, ev->c);
  } else if (ev->kind == EV_GUARD_FENCE) {
    on_fence(s, a);
  } else if (ev->kind == EV_GUARD_CHECK) {
    guard_check(s, a);
  } else if (ev->kind == EV_GUARD_TELL) {
    a->untold--;
    guard_tell_now(s, a, *ev->notice);
  } else if (ev->kind == EV_GUARD_ALONE) {
    if (a->guard_alive && !a->sup) kill_workers(s, a);
  } else if (a->w[ev->a].life == ev->b) {
    on_worker(s, a, &a->w[ev->a], ev);
  }
}
