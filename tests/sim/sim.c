/* SPDX-License-Identifier: Apache-2.0 */
/* The world's clock. A binary heap of events, ordered by time and then by the order in which they were made, so that a
 * run is a function of its seed. Whatever happens does so inside sim_step: the earliest event is taken, time jumps to
 * it, and its handler may only push further events. Nothing in here waits, reads a clock or a descriptor.
 *
 * A process that is paused (SIGSTOP) does not take events: they go to the stash, in order, and come back when it is
 * continued. Guards and workers of a paused agent go on, and agents and workers of a paused guard.
 *
 * The trace is a list of lines for people. Stories compare it with what is expected; random runs do without it and are
 * simply run again, from the same seed and with it, when something is wrong. */

#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/mem.h"

const char *invariant_name(enum invariant i) {
#define X(name, text) #name,
  static const char *const names[] = {INVARIANT_LIST(X) "NONE"};
#undef X
  return names[i];
}

const char *invariant_text(enum invariant i) {
#define X(name, text) text,
  static const char *const texts[] = {INVARIANT_LIST(X) "none"};
#undef X
  return texts[i];
}

void sim_config_init(struct sim_config *c) {
  *c = (struct sim_config){.seed = 1, .delay_min = 1, .delay_max = 1, .exec_max = 0};
  c->settings = (struct settings){.min_nodes = 2,
                                  .repeat_limit = 2,
                                  .max_nodes = 2,
                                  .max_restarts = 3,
                                  .last_call_ms = 1000,
                                  .join_timeout_ms = 60000,
                                  .stop_timeout_ms = 3000,
                                  .lease_ms = 5000};
  c->trace = true;
}

struct sim *sim_create(const struct sim_config *c) {
  struct sim *s = xcalloc(1, sizeof *s);
  s->config = *c;
  s->config.settings.daemons = c->endpoints > 1 ? c->endpoints : 0;
  s->config.settings.claims = c->claims;
  s->seq = 1ull << 32;
  s->rng = c->seed * 0x9e3779b97f4a7c15u + 0x1234567;
  for (int i = 0; i < SIM_DAEMONS_MAX; i++) {
    struct sim_daemon *d = daemon_at(s, i);
    d->state_dir = c->state_dir;
    d->tick_at = UINT64_MAX;
    place_daemon(s, i, SIM_NODES_MAX + i);
  }
  s->normal = (struct behaviour){.run_ms = 10000, .end = END_EXIT, .term_code = -1};
  s->violated = INV_NONE;
  s->harmless = true;
  s->next_pid = 1000;
  s->checker = checker_create();
  return s;
}

static void event_finish(struct sim_event *ev) {
  link_forget(ev->msg);
  bytes_unref(ev->bytes);
  supervisor_event_free(ev->notice);
}

static void events_finish(struct events *q) {
  for (size_t i = 0; i < q->n; i++) {
    event_finish(q->v[i]);
    free(q->v[i]);
  }
  free(q->v);
}

void sim_destroy(struct sim *s) {
  if (!s) return;
  events_finish(&s->queue);
  events_finish(&s->stash);
  events_finish(&s->spare);
  for (int i = 0; i < s->n_agents; i++) agent_free(s->agents[i]);
  for (size_t i = 0; i < s->n_conns; i++) link_free(s->conns[i]);
  free(s->conns);
  daemon_finish(s);
  claim_finish(s);
  checker_destroy(s->checker);
  for (size_t i = 0; i < SIM_TRACE_MAX && i < s->n_lines; i++) free(s->lines[i]);
  free(s);
}

/* Randomness: splitmix64. ------------------------------------------------------------------------------------------ */

uint64_t sim_random(struct sim *s) {
  uint64_t z = (s->rng += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint64_t sim_below(struct sim *s, uint64_t n) {
  return n ? sim_random(s) % n : 0;
}

uint64_t sim_between(struct sim *s, uint64_t lo, uint64_t hi) {
  return lo >= hi ? lo : lo + sim_below(s, hi - lo + 1);
}

bool sim_chance(struct sim *s, unsigned percent) {
  return sim_below(s, 100) < percent;
}

/* The queue. ------------------------------------------------------------------------------------------------------- */

static bool event_before(const struct sim_event *a, const struct sim_event *b) {
  return a->at != b->at ? a->at < b->at : a->seq < b->seq;
}

static void events_add(struct events *q, struct sim_event *ev) {
  if (q->n == q->cap) {
    q->cap = q->cap ? q->cap * 2 : 64;
    q->v = xrealloc(q->v, q->cap * sizeof *q->v);
  }
  q->v[q->n++] = ev;
}

static void heap_push(struct events *q, struct sim_event *ev) {
  events_add(q, ev);
  size_t i = q->n - 1;
  while (i > 0 && event_before(ev, q->v[(i - 1) / 2])) {
    q->v[i] = q->v[(i - 1) / 2];
    i = (i - 1) / 2;
  }
  q->v[i] = ev;
}

static struct sim_event *heap_pop(struct events *q) {
  struct sim_event *top = q->v[0], *last = q->v[--q->n];
  size_t i = 0;
  for (;;) {
    size_t c = 2 * i + 1;
    if (c >= q->n) break;
    if (c + 1 < q->n && event_before(q->v[c + 1], q->v[c])) c++;
    if (!event_before(q->v[c], last)) break;
    q->v[i] = q->v[c];
    i = c;
  }
  if (q->n) q->v[i] = last;
  return top;
}

static struct sim_event *event_create(struct sim *s, const struct sim_event *from) {
  struct sim_event *ev = s->spare.n ? s->spare.v[--s->spare.n] : xmalloc(sizeof *ev);
  *ev = *from;
  return ev;
}

static void event_destroy(struct sim *s, struct sim_event *ev) {
  event_finish(ev);
  *ev = (struct sim_event){.kind = EV_KIND_COUNT};
  events_add(&s->spare, ev);
}

struct sim_event *sim_push(struct sim *s, uint64_t at, enum event_kind kind) {
  const struct sim_event from = {.at = at < s->now ? s->now : at, .seq = s->seq++, .kind = kind};
  struct sim_event *ev = event_create(s, &from);
  heap_push(&s->queue, ev);
  return ev;
}

struct sim_event *sim_push_front(struct sim *s, const struct sim_event *from) {
  struct sim_event *ev = event_create(s, from);
  ev->at = s->now;
  ev->seq = s->front++;
  heap_push(&s->queue, ev);
  return ev;
}

void sim_call(struct sim *s, uint64_t at, void (*fn)(struct sim *s, uint64_t arg), uint64_t arg) {
  struct sim_event *ev = sim_push(s, at, EV_CALL);
  ev->fn = fn;
  ev->a = arg;
}

/* Whose process must run for this event: then *of is the agent, or NULL for the daemon. */
static bool event_needs(const struct sim_event *ev, const struct sim_agent **of) {
  *of = NULL;
  switch (ev->kind) {
  case EV_AGENT_TICK:
  case EV_GUARD_WATCH:
  case EV_NOTIFY:
  case EV_STORE_RETRY:
  case EV_FORWARD:
  case EV_CONNECTED: *of = ev->agent; return true;
  case EV_ACCEPT:
  case EV_DAEMON_TICK:
  case EV_SAVED:
  case EV_CLAIMED:
  case EV_HELLO_TIMEOUT: return true;
  case EV_LOST_END:
  case EV_DELIVER:
    if (ev->a == TO_AGENT) *of = ev->conn->agent;
    return ev->a == TO_DAEMON || ev->conn->kind == CONN_AGENT;
  case EV_SEND_TIMEOUT:
    if (ev->a == TO_DAEMON) *of = ev->conn->agent;
    return ev->a == TO_AGENT || ev->conn->kind == CONN_AGENT;
  default: return false; /* dispatch() names every kind */
  }
}

/* Whose guard must run for it; NULL: it is no guard's. */
static const struct sim_agent *guard_needed(const struct sim_event *ev) {
  switch (ev->kind) {
  case EV_GUARD_EXEC: return ev->agent->w[ev->a].unforked ? ev->agent : NULL;
  case EV_GUARD_STOP:
  case EV_WORKER_KILL:
  case EV_WORKER_STUCK:
  case EV_GUARD_FENCE:
  case EV_GUARD_TELL:
  case EV_GUARD_ALONE:
  case EV_GUARD_CHECK: return ev->agent;
  default: return NULL;
  }
}

/* Whom an event would reach, if it reaches a daemon at all. */
static int side_of(struct sim *s, const struct sim_event *ev) {
  switch (ev->kind) {
  case EV_SYN: return place_side(s, (struct sim_place){(int)(ev->a >> 16), (uint16_t)ev->a});
  case EV_DAEMON_TICK:
  case EV_CLAIMED:
  case EV_SAVED: return (int)ev->b;
  default: return ev->conn ? ev->conn->side : 0;
  }
}

static const struct sim_node *node_of(const struct sim_event *ev) {
  const struct sim_agent *a;
  event_needs(ev, &a);
  bool guard = ev->kind >= EV_GUARD_EXEC && ev->kind <= EV_GUARD_CHECK;
  if (guard) a = ev->agent;
  return a ? a->node : NULL;
}

static bool must_wait(struct sim *s, const struct sim_event *ev) {
  const struct sim_agent *a;
  const struct sim_node *n = s->suspends ? node_of(ev) : NULL;
  if (n && n->suspended) return true;
  const struct sim_agent *guarded = guard_needed(ev);
  if (guarded && guard_sleeps(guarded)) return true;
  if (!event_needs(ev, &a)) return false;
  return a ? a->paused && a->sup : s->d.paused && s->d.core;
}

/* The daemon's tick comes behind all messages, as its driver drains its sockets first; an agent's comes before or
 * behind them. */
void sim_unstash(struct sim *s, const struct sim_agent *a) {
  size_t kept = 0;
  bool ticks_first = a && sim_chance(s, 50);
  for (int pass = ticks_first ? 0 : 1; pass < 2; pass++) {
    kept = 0;
    for (size_t i = 0; i < s->stash.n; i++) {
      struct sim_event *ev = s->stash.v[i];
      const struct sim_agent *of;
      bool other = !event_needs(ev, &of) || of != a || (!a && side_of(s, ev) != s->side);
      if (other || (pass == 0 && ev->kind != EV_AGENT_TICK)) {
        s->stash.v[kept++] = ev;
        continue;
      }
      ev->at = s->now;
      ev->seq = ev->kind == EV_DAEMON_TICK ? s->seq++ : s->front++;
      heap_push(&s->queue, ev);
    }
    s->stash.n = kept;
  }
}

/* What was put aside and is of `of` happens now, in the order in which it was put there. */
static void unstash(struct sim *s, bool (*is_of)(const struct sim_event *ev, const void *of), const void *of) {
  size_t kept = 0;
  for (size_t i = 0; i < s->stash.n; i++) {
    struct sim_event *ev = s->stash.v[i];
    if (!is_of(ev, of)) {
      s->stash.v[kept++] = ev;
      continue;
    }
    ev->at = s->now;
    ev->seq = s->front++;
    heap_push(&s->queue, ev);
  }
  s->stash.n = kept;
}

static bool is_of_node(const struct sim_event *ev, const void *node) {
  return node_of(ev) == node;
}
static bool is_fence_of_node(const struct sim_event *ev, const void *node) {
  return ev->kind == EV_GUARD_FENCE && node_of(ev) == node;
}
static bool is_of_guard(const struct sim_event *ev, const void *agent) {
  return guard_needed(ev) == agent;
}

/* Timers of those who watch come first, so that nothing else of the node is done before they have had their say. */
void sim_unstash_node(struct sim *s, const struct sim_node *n) {
  unstash(s, is_fence_of_node, n);
  unstash(s, is_of_node, n);
}

void sim_unstash_guard(struct sim *s, const struct sim_agent *a) {
  unstash(s, is_of_guard, a);
}

static void dispatch(struct sim *s, struct sim_event *ev) {
  switch (ev->kind) {
  case EV_SYN: link_on_syn(s, ev); break;
  case EV_ACCEPT: daemon_accept(s, ev->conn); break;
  case EV_CONNECTED: agent_on_connected(s, ev); break;
  case EV_DELIVER: link_on_deliver(s, ev); break;
  case EV_LOST_END: link_on_lost_end(s, ev); break;
  case EV_SEND_TIMEOUT: link_on_send_timeout(s, ev); break;
  case EV_FLUSH: link_on_flush(s, ev); break;
  case EV_HELLO_TIMEOUT: daemon_on_hello_timeout(s, ev); break;
  case EV_DAEMON_TICK: daemon_on_tick(s, ev); break;
  case EV_SAVED: daemon_on_saved(s, ev); break;
  case EV_CLAIM: claim_on_arrival(s, ev); break;
  case EV_CLAIMED: claim_on_answer(s, ev); break;
  case EV_FORWARD: agent_on_forward(s, ev); break;
  case EV_AGENT_TICK: agent_on_tick(s, ev); break;
  case EV_GUARD_WATCH: watch_on_timer(s, ev); break;
  case EV_NOTIFY:
    if (ev->agent->sup) {
      ev->notice->now_ms = s->now;
      watch_hear(ev->agent, ev->notice);
      agent_mind(s, ev->agent, ev->notice);
    }
    break;
  case EV_STORE_RETRY: store_on_retry(s, ev); break;
  case EV_GUARD_EXEC:
  case EV_GUARD_STOP:
  case EV_WORKER_END:
  case EV_WORKER_KILL:
  case EV_WORKER_DIES:
  case EV_WORKER_STUCK:
  case EV_WORKER_KNOCK:
  case EV_WORKER_STEP:
  case EV_WORKER_PARKS:
  case EV_WORKER_SAVED:
  case EV_GUARD_FENCE:
  case EV_GUARD_TELL:
  case EV_GUARD_ALONE:
  case EV_GUARD_CHECK: guard_on_event(s, ev); break;
  case EV_CALL: ev->fn(s, ev->a); break;
  case EV_KIND_COUNT: break;
  }
}

static void on_trap_over(struct sim *s, uint64_t index) {
  agent_continue(s, s->agents[index]);
  guard_continue(s, s->agents[index]);
  link_heal(s, s->agents[index]->node->index);
}

static void on_daemon_trap_over(struct sim *s, uint64_t side) {
  daemon_side(s, (int)side);
  daemon_continue(s);
  daemon_side(s, 0);
}

static void spring_daemon_trap(struct sim *s, const struct sim_event *ev) {
  if (s->d.trap_on != 1 + (int)ev->kind || !s->d.core) return;
  s->d.trap_on = 0;
  if (!s->d.trap_ms) {
    daemon_kill(s);
    return;
  }
  daemon_pause(s);
  sim_call(s, s->now + s->d.trap_ms, on_daemon_trap_over, (uint64_t)s->side);
}

static void spring(struct sim *s, struct sim_agent *a) {
  a->pause_on = -1;
  a->pause_msg = MSG_NONE;
  switch (a->trap) {
  case TRAP_PAUSE: agent_pause(s, a); break;
  case TRAP_STOP_GUARD: guard_pause(s, a, GUARD_STOPPED); break;
  case TRAP_HOLD_GUARD: guard_pause(s, a, GUARD_HELD); break;
  case TRAP_PAUSE_BOTH:
    guard_pause(s, a, GUARD_STOPPED);
    agent_pause(s, a);
    break;
  case TRAP_CUT: link_cut(s, a->node->index, true, true); break;
  case TRAP_BREAK:
    if (a->conn) link_break(s, a->conn, 0, 0);
    return;
  case TRAP_KILL: agent_kill(s, a); return;
  case TRAP_KILL_GUARD: guard_kill(s, a); return;
  case TRAP_KILL_BOTH:
  case TRAP_COUNT:
    guard_kill(s, a);
    agent_kill(s, a);
    return;
  }
  sim_call(s, s->now + a->pause_ms, on_trap_over, (uint64_t)a->index);
}

static bool is_trapped(const struct sim_agent *a, const struct sim_event *ev) {
  bool reads = ev->kind == EV_DELIVER && ev->a == TO_AGENT && ev->msg && ev->conn->kind == CONN_AGENT;
  return a->pause_on == (int)ev->kind || (a->pause_msg && reads && ev->msg->type == a->pause_msg);
}

/* Springs the traps of this kind of event or message: stops, kills or cuts off their nodes. */
static void spring_trap(struct sim *s, const struct sim_event *ev) {
  spring_daemon_trap(s, ev);
  struct sim_agent *a = ev->agent ? ev->agent : ev->conn ? ev->conn->agent : NULL;
  if (a && is_trapped(a, ev)) spring(s, a);
}

/* A timer that was set anew: what it was set to before does nothing. */
static bool is_stale_tick(const struct sim_event *ev) {
  return ev->kind == EV_AGENT_TICK && (!ev->agent->sup || ev->at < ev->agent->tick_at);
}

bool sim_step(struct sim *s) {
  if (s->violated != INV_NONE || !s->queue.n) return false;
  struct sim_event *ev = heap_pop(&s->queue);
  s->now = ev->at;
  daemon_side(s, side_of(s, ev));
  if (must_wait(s, ev)) {
    events_add(&s->stash, ev);
    daemon_side(s, 0);
    return true;
  }
  s->steps++;
  if (s->now / 1000 != s->second) s->second = s->now / 1000, s->steps_in_second = 0;
  s->steps_in_second += !is_stale_tick(ev);
  if (s->steps_in_second > SIM_STEPS_PER_SECOND)
    sim_violate(s, INV_STORM, "%d steps in second %" PRIu64, SIM_STEPS_PER_SECOND, s->second);
  s->stepped = 0;
  s->daemon_stepped = false;
  dispatch(s, ev);
  spring_trap(s, ev);
  event_destroy(s, ev);
  check_deadlines(s);
  daemon_side(s, 0);
  return s->violated == INV_NONE;
}

void sim_until(struct sim *s, uint64_t ms) {
  while (s->queue.n && s->queue.v[0]->at <= ms)
    if (!sim_step(s)) return;
  if (s->now < ms) s->now = ms;
}

void sim_for(struct sim *s, uint64_t ms) {
  sim_until(s, s->now + ms);
}

bool sim_until_line(struct sim *s, const char *part, uint64_t limit_ms) {
  for (;;) {
    for (; s->mark < s->n_lines; s->mark++) {
      const char *line = s->lines[s->mark % SIM_TRACE_MAX];
      if (s->mark + SIM_TRACE_MAX > s->n_lines && strstr(line, part)) return s->mark++, true;
    }
    if (!s->queue.n || s->queue.v[0]->at > limit_ms || !sim_step(s)) return false;
  }
}

bool sim_until_over(struct sim *s, uint64_t limit_ms) {
  for (;;) {
    bool over = true;
    for (int i = 0; i < s->n_agents && over; i++) over = !s->agents[i]->sup && !guard_has_workers(s->agents[i]);
    if (over) return true;
    if (!s->queue.n || s->queue.v[0]->at > limit_ms || !sim_step(s)) return false;
  }
}

/* The trace. ------------------------------------------------------------------------------------------------------- */

bool sim_tracing(const struct sim *s) {
  return s->config.trace || s->config.verbose;
}

void sim_trace(struct sim *s, const char *fmt, ...) {
  if (!sim_tracing(s)) return;
  struct buf b = BUF_INIT;
  buf_printf(&b, "[%3" PRIu64 ".%03" PRIu64 "] ", s->now / 1000, s->now % 1000);
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(&b, fmt, ap);
  va_end(ap);
  if (s->config.verbose) printf("%s\n", b.data);
  for (size_t i = 0; i < b.len; i++) s->digest = (s->digest ^ (unsigned char)b.data[i]) * 0x100000001b3u; /* FNV-1a */
  char **slot = &s->lines[s->n_lines++ % SIM_TRACE_MAX];
  free(*slot);
  *slot = buf_steal(&b);
}

void sim_trace_print(const struct sim *s, size_t last) {
  size_t from = s->n_lines > last ? s->n_lines - last : 0;
  if (s->n_lines > SIM_TRACE_MAX && from < s->n_lines - SIM_TRACE_MAX) from = s->n_lines - SIM_TRACE_MAX;
  if (from) printf("(%zu lines before)\n", from);
  for (size_t i = from; i < s->n_lines; i++) printf("%s\n", s->lines[i % SIM_TRACE_MAX]);
}

void sim_violate(struct sim *s, enum invariant i, const char *fmt, ...) {
  if (s->violated != INV_NONE) return;
  s->violated = i;
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(s->violation, sizeof s->violation, fmt, ap);
  va_end(ap);
  sim_trace(s, "VIOLATED %s (%s): %s", invariant_name(i), invariant_text(i), s->violation);
}
