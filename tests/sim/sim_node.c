/* SPDX-License-Identifier: Apache-2.0 */
/* The driver around supervisor_step, as agent/session.c is in rdzv-agent: one connection, one timer, effects in
 * order. A life of an agent ends by SUP_EXIT, by SIGKILL or with the power of its node; the next one on the same node
 * is a new agent with a new id, as a scheduler or a person would start it. Lives are kept to the end of the run, so
 * nothing that is on its way ever points to freed memory. */

#include "tests/sim/book.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/mem.h"
#include "tests/sim/coverage.h"

enum { STANDBY_PORT = 29500 };

int node_add(struct sim *s, uint32_t workers) {
  int i = s->n_nodes++;
  struct sim_node *n = &s->nodes[i];
  n->index = i;
  snprintf(n->host, sizeof n->host, "n%d", i + 1);
  snprintf(n->addr, sizeof n->addr, "10.0.0.%d", i + 1);
  n->workers = workers;
  n->rate = 1000;
  n->want_rank = n->order_key = -1;
  n->link.delay_min = s->config.delay_min;
  n->link.delay_max = s->config.delay_max;
  if (!i && s->config.owned) place_daemon(s, 0, 0);
  return i;
}

void node_turn(struct sim *s, int node, int side) {
  sim_trace(s, "%s: its endpoint is %s now", s->nodes[node].host, daemon_name(s, side));
  s->nodes[node].side = side;
  s->harmless = false;
}

uint64_t node_time(const struct sim *s, const struct sim_node *n) {
  return s->now * n->rate / 1000;
}

uint64_t node_when(const struct sim_node *n, uint64_t local) {
  if (local >= UINT64_MAX / 1000) return UINT64_MAX;
  return (local * 1000 + n->rate - 1) / n->rate;
}

bool agent_alive(const struct sim_agent *a) {
  return a && a->sup;
}

struct sim_agent *agent_of(struct sim *s, int node) {
  for (int i = s->n_agents; i-- > 0;)
    if (s->agents[i]->node->index == node) return s->agents[i];
  return NULL;
}

static void arm(struct sim *s, struct sim_agent *a) {
  if (!a->sup) return;
  uint64_t at = node_when(a->node, supervisor_deadline(a->sup));
  if (s->mutator && s->mutator->deadline) at = s->mutator->deadline(s, a, at);
  if (at == UINT64_MAX || at >= a->tick_at) return;
  a->tick_at = at < s->now ? s->now : at;
  sim_push(s, a->tick_at, EV_AGENT_TICK)->agent = a;
}

/* Each life of an agent has another port. */
static void tell_standby(struct sim *s, struct sim_agent *a) {
  if (!s->config.owned) return;
  a->standby_port = (uint32_t)(STANDBY_PORT + a->index);
  struct supervisor_event ev = {.kind = SUP_STANDBY, .port = a->standby_port};
  agent_mind(s, a, &ev);
}

struct sim_agent *agent_start(struct sim *s, int node) {
  struct sim_node *n = &s->nodes[node];
  struct sim_agent *before = agent_of(s, node);
  if (n->off || s->n_agents == SIM_AGENTS_MAX) return NULL;
  struct sim_agent *a = xcalloc(1, sizeof *a);
  a->sim = s;
  a->node = n;
  a->index = s->n_agents;
  a->life = before ? before->life + 1 : 1;
  snprintf(a->id, sizeof a->id, "%016" PRIx64 "%016" PRIx64, sim_random(s), sim_random(s));
  snprintf(a->name, sizeof a->name, a->life > 1 ? "%s.%d" : "%s", n->host, a->life);
  a->exit_code = a->pause_on = a->home = -1;
  a->fence_at = UINT64_MAX;
  a->guard_alive = true;
  a->tick_at = UINT64_MAX;
  watch_begin(s, a);
  s->agents[s->n_agents++] = a;
  static const char *const endpoints[] = {"d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8"};
  const struct supervisor_config config = {.agent_id = a->id,
                                           .job = "job",
                                           .host = n->host,
                                           .local_addr = "",
                                           .addrs = n->addr,
                                           .endpoint = s->config.owned ? "n1:29400" : "n0:29400",
                                           .n_endpoints = s->config.endpoints,
                                           .endpoints = s->config.endpoints > 1 ? endpoints : NULL,
                                           .pid = s->next_pid++,
                                           .uid = n->uid,
                                           .workers = n->workers,
                                           .gpus = n->gpus,
                                           .want_rank = n->want_rank,
                                           .order_key = n->order_key,
                                           .expected_nodes = n->expected_nodes,
                                           .expected_hosts = n->expected_hosts,
                                           .settings = s->config.settings,
                                           .hang_watch = s->config.hang_watch,
                                           .hang_start_ms = s->config.hang_start_ms,
                                           .wants_events = s->config.events};
  a->sup = supervisor_create(&config);
  sim_trace(s, "%s: agent starts", a->name);
  store_make_ready(s, a);
  store_tell(s, a);
  tell_standby(s, a);
  struct supervisor_event ev = {.kind = SUP_BEGIN};
  agent_mind(s, a, &ev);
  return a;
}

static void send_bytes(struct sim *s, struct sim_agent *a, struct bytes *b) {
  struct msg *m = link_read(s, TO_DAEMON, b, a->name);
  if (m) check_agent_sent(s, a, m);
  if (a->conn)
    link_send_read(s, a->conn, TO_DAEMON, b, m, s->now);
  else
    link_forget(m);
}

static void disconnect(struct sim *s, struct sim_agent *a) {
  a->connect_gen++;
  a->connecting = false;
  if (a->conn) link_fin(s, a->conn, TO_DAEMON);
  a->conn = NULL;
}

/* The daemon runs, or is started, as its agent sees to it. */
static struct sim_place start_daemon(struct sim *s, int side) {
  int before = s->side;
  daemon_side(s, side);
  daemon_start(s);
  const struct sim_place at = {s->d.machine, s->d.port};
  daemon_side(s, before);
  return at;
}

static struct sim_place place_of(struct sim *s, struct sim_agent *a, const struct supervisor_effect *fx) {
  struct sim_place at = {.machine = -1};
  switch (fx->connect.to) {
  case CONNECT_ENDPOINT:
    at = place_endpoint(s, fx->connect.endpoint, a->node);
    if (s->config.owned && !fx->connect.endpoint && at.machine == a->node->index) at = start_daemon(s, a->node->side);
    break;
  case CONNECT_SUCCESSOR: at = place_find(s, fx->text, fx->connect.port); break;
  case CONNECT_OWN: {
    int side = place_own(s, a);
    if (side >= 0) at = start_daemon(s, side);
  }
  }
  return at;
}

static void connect_to(struct sim *s, struct sim_agent *a, const struct supervisor_effect *fx) {
  struct sim_place at = place_of(s, a, fx);
  uint32_t timeout_ms = fx->connect.timeout_ms * 1000 / a->node->rate;
  link_connect(s, a, CONN_AGENT, at, timeout_ms, a->connect_gen);
}

/* Its own connections, while it is told nothing else. */
static void forward(struct sim *s, struct sim_agent *a, const struct supervisor_effect *fx) {
  bytes_unref(a->forward);
  a->forward = fx->bytes ? bytes_ref(fx->bytes) : NULL;
  a->forward_past = fx->forward.current;
  a->forward_own = fx->forward.own;
  struct sim_event *ev = sim_push(s, s->now, EV_FORWARD);
  ev->agent = a;
  ev->a = ++a->forward_gen;
}

void agent_on_forward(struct sim *s, struct sim_event *ev) {
  struct sim_agent *a = ev->agent;
  if (!a->sup || !a->forward || ev->a != a->forward_gen) return;
  uint32_t n = s->config.endpoints ? s->config.endpoints : 1;
  bool host = s->config.owned && place_endpoint(s, 0, a->node).machine == a->node->index;
  for (uint32_t k = 0; k < n && (!a->forward_own || host); k++)
    if (k != a->forward_past) link_connect(s, a, CONN_FORWARD, place_endpoint(s, k, a->node), 0, a->forward_gen);
  struct sim_event *again = sim_push(s, s->now + supervisor_forward_ms(&s->config.settings), EV_FORWARD);
  again->agent = a;
  again->a = a->forward_gen;
}

/* Its own daemon at the endpoint has exited: newcomers look for the job there. */
static void forward_connected(struct sim *s, struct sim_agent *a, struct sim_conn *c, uint64_t gen, bool refused) {
  bool host = s->config.owned && place_endpoint(s, 0, a->node).machine == a->node->index;
  if (refused && host && a->sup && a->forward && gen == a->forward_gen) start_daemon(s, a->node->side);
  if (!c) return;
  if (a->sup && a->forward && gen == a->forward_gen)
    link_send(s, c, TO_DAEMON, a->forward); /* the daemon closes */
  else
    link_fin(s, c, TO_DAEMON);
}

/* On one more connection, as agent/link/forward.c does. */
void agent_forward_answered(struct sim *s, struct sim_agent *a, const struct moved *older) {
  struct endpoint to;
  struct bytes *frame = a->sup && a->forward && !a->pass_on ? forward_older(a->forward, older, &to) : NULL;
  if (!frame) return;
  a->pass_on = frame;
  link_connect(s, a, CONN_PASS_ON, place_find(s, to.host, to.port), 0, a->forward_gen);
}

static void pass_on_connected(struct sim *s, struct sim_agent *a, struct sim_conn *c) {
  if (c && a->sup && a->pass_on)
    link_send(s, c, TO_DAEMON, a->pass_on);
  else if (c)
    link_fin(s, c, TO_DAEMON);
  bytes_unref(a->pass_on);
  a->pass_on = NULL;
}

static void end_mind(struct sim_agent *a) {
  if (a->sup) coverage_agent(a->sup);
  supervisor_destroy(a->sup);
  a->sup = NULL;
}

static void perform(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (s->mutator && s->mutator->agent_effect && !s->mutator->agent_effect(s, a, fx)) return;
  switch (fx->kind) {
  case SUP_FORWARD: forward(s, a, fx); break;
  case SUP_CONNECT:
    disconnect(s, a);
    a->connecting = true;
    connect_to(s, a, fx);
    break;
  case SUP_DISCONNECT: disconnect(s, a); break;
  case SUP_SEND: send_bytes(s, a, fx->bytes); break;
  case SUP_SHUT_STORE: a->store.shut = true; break;
  case SUP_CLOSE_STORE: store_close(s, a); break;
  case SUP_SPAWN:
    store_open(s, a, fx);
    guard_spawn_all(s, a, fx->spawn.start, fx->spawn.keep.bits[0]);
    break;
  case SUP_STOP_TREES: guard_stop_trees(s, a, fx->round, fx->stop_trees.grace_ms, fx->stop_trees.keep.bits[0]); break;
  case SUP_LOOK: guard_look(s, a); break;
  case SUP_PROBE: guard_probe(s, a); break;
  case SUP_FENCE_AT: guard_fence_at(s, a, fx->fence_at.at_ms); break;
  case SUP_KILL: worker_signal(s, a, fx->kill.local_rank, fx->kill.signo); break;
  case SUP_REQUEST: guard_ask(s, a, fx); break;
  case SUP_DEATH_REPORT:
    bytes_unref(a->death_report);
    a->death_report = fx->bytes ? bytes_ref(fx->bytes) : NULL;
    break;
  case SUP_SAY:
    if (s->config.verbose || (s->config.logs && fx->say.level != LOG_DEBUG))
      sim_trace(s, "%s says: %s", a->name, fx->text);
    break;
  case SUP_MINT: ids_mint(s, a, fx); break;
  case SUP_UNMINT: ids_unmint(a, fx->unmint.helper); break;
  case SUP_IDS: ids_hand_out(s, a, fx); break;
  case SUP_EVENT: check_event_written(s, a, fx->extra, fx->text); break;
  case SUP_CHECK: /* no agent here has --check */
  case SUP_ENDING:
  case SUP_TOLD:
  case SUP_STATUS:
  case SUP_ADVANCED: break;
  case SUP_EXIT:
    a->exiting = true;
    a->exit_code = fx->exit.code;
    break;
  }
}

static void leave(struct sim *s, struct sim_agent *a) {
  sim_trace(s, "%s: exits with %d", a->name, a->exit_code);
  if (a->exit_code) s->harmless = false; /* done, and nobody there for --join-timeout: it has given up */
  disconnect(s, a);
  end_mind(a);
  check_store_told(s, a);
  check_agent_exit(s, a, a->exit_code);
  guard_nudge(s, a);
  if (guard_sleeps(a))
    guard_kill(s, a); /* with all that it keeps */
  else
    guard_kill_all(s, a);
}

void agent_mind(struct sim *s, struct sim_agent *a, struct supervisor_event *ev) {
  struct supervisor_effects fx = {0};
  s->stepped |= 1ull << a->index;
  ev->now_ms = node_time(s, a->node);
  supervisor_step(a->sup, ev, &fx);
  if (supervisor_fault(a->sup)) {
    fprintf(stderr, "%s: %s is not allowed\n", a->name, supervisor_fault(a->sup));
    abort();
  }
  for (size_t i = 0; i < fx.n && !a->exiting; i++) perform(s, a, &fx.v[i]);
  supervisor_effects_finish(&fx);
  if (a->exiting) {
    leave(s, a);
    return;
  }
  check_store_told(s, a);
  check_ids(s, a);
  arm(s, a);
  store_tell(s, a);
}

/* What the checker holds against it: the last word about fencing of a daemon that knew the round that it runs. */
static void note_fence(const struct sim *s, struct sim_agent *a, const struct msg *m, uint64_t sent_at) {
  if (m->type == MSG_GOING_AWAY) a->away_at = a->ack_at + (uint64_t)m->going_away.away_ms;
  bool ack = m->type == MSG_HEARTBEAT_ACK, welcome = m->type == MSG_WELCOME, start = m->type == MSG_START;
  if (!ack && !welcome && !start) return;
  bool recovering = ack ? m->flags & FRAME_FLAG_RECOVERING : welcome && m->welcome.state == JOB_RECOVERING;
  bool knows = !recovering || a->conn->side == a->told_side;
  if (start) a->told_side = a->conn->side;
  if (start) a->succeeded = m->start.n_successors || s->config.settings.daemons > 1 || s->config.settings.claims;
  if (welcome) a->home = a->conn->side;
  a->heard_fence = ack ? m->flags & FRAME_FLAG_FENCE : welcome ? m->welcome.fence : m->start.fence;
  if (welcome || (ack && m->id)) { /* it answers */
    if (s->now > a->heard_at + (uint64_t)s->config.settings.lease_ms / 2) a->back_at = s->now;
    a->heard_at = sent_at;
  }
  if (!knows) return;
  if (!recovering) a->told_side = a->conn->side; /* it has all of the round */
  bool others = start && m->start.nodes > s->config.settings.min_nodes;
  bool fence = a->heard_fence || others || (!start && a->fence);
  if (fence && !a->fence) a->fence_heard_at = s->now;
  a->fence = fence;
  a->away_at = 0;
  a->ack_at = a->heard_at;
}

void agent_receive(struct sim *s, struct sim_agent *a, struct msg *m, uint64_t sent_at) {
  note_fence(s, a, m, sent_at);
  if (s->mutator && s->mutator->msg && !s->mutator->msg(s, a->conn, TO_AGENT, m)) return;
  bool noisy =
      m->type == MSG_HEARTBEAT_ACK || m->type == MSG_GREETING || (m->type == MSG_WAITING && !s->config.waiting);
  if (sim_tracing(s) && (s->config.verbose || !noisy)) {
    struct buf text = BUF_INIT;
    describe_msg(m, s->config.stores, &text);
    sim_trace(s, "%s -> %s: %s", daemon_name(s, a->conn->side), a->name, buf_text(&text));
    buf_finish(&text);
  }
  if (pairs_receive(s, a, m)) return;
  check_agent_told(s, a, m);
  struct supervisor_event ev = {.kind = SUP_MSG, .msg = m};
  agent_mind(s, a, &ev);
}

void agent_link_down(struct sim *s, struct sim_agent *a, const char *why) {
  if (s->config.verbose || s->config.connections) sim_trace(s, "%s: link down, %s", a->name, why);
  struct supervisor_event ev = {.kind = SUP_LINK_DOWN, .text = why};
  agent_mind(s, a, &ev);
}

/* The guard of a dead agent has its connection. It sends the death report and waits a second for the daemon to close. */
static void guard_connected(struct sim *s, struct sim_agent *a, struct sim_conn *c) {
  if (!c || !a->death_report) return;
  sim_trace(s, "%s: guard sends its death report", a->name);
  link_send(s, c, TO_DAEMON, a->death_report);
  link_fin(s, c, TO_DAEMON);
}

void agent_on_connected(struct sim *s, struct sim_event *ev) {
  struct sim_agent *a = ev->agent;
  struct sim_conn *c = ev->conn;
  if (ev->c == CONN_GUARD) {
    guard_connected(s, a, c);
    return;
  }
  if (ev->c == CONN_FORWARD) {
    forward_connected(s, a, c, ev->b, !c && ev->a);
    return;
  }
  if (ev->c == CONN_PASS_ON) {
    pass_on_connected(s, a, c);
    return;
  }
  if (!a->sup || !a->connecting || ev->b != a->connect_gen) {
    if (c) link_fin(s, c, TO_DAEMON);
    return;
  }
  a->connecting = false;
  if (!c) {
    agent_link_down(s, a, ev->a ? "connection refused" : "connection timed out");
  } else if (!c->open[TO_AGENT]) {
    agent_link_down(s, a, "reset by peer");
  } else {
    a->conn = c;
    c->user_timeout_ms[TO_DAEMON] = (uint32_t)s->config.settings.lease_ms;
    const struct sim_daemon *d = daemon_at(s, c->side);
    struct supervisor_event up = {.kind = SUP_LINK_UP,
                                  .link_up = {.moved = a->home >= 0 && a->home != c->side, .port = d->port},
                                  .text = d->addr};
    agent_mind(s, a, &up);
  }
}

void agent_on_tick(struct sim *s, struct sim_event *ev) {
  struct sim_agent *a = ev->agent;
  if (!a->sup || ev->at < a->tick_at) return;
  a->tick_at = UINT64_MAX;
  if (supervisor_deadline(a->sup) <= node_time(s, a->node)) {
    struct supervisor_event tick = {.kind = SUP_TICK};
    agent_mind(s, a, &tick);
  } else {
    arm(s, a);
  }
}

/* What can happen to an agent. ------------------------------------------------------------------------------------- */

static void process_gone(struct sim *s, struct sim_agent *a) {
  end_mind(a);
  a->paused = false;
  a->killed = true;
  store_close(s, a);
  a->connect_gen++;
  if (!a->conn) return;
  if (!a->node->off) {
    link_fin(s, a->conn, TO_DAEMON);
  } else {
    a->conn->open[TO_AGENT] = false;
  }
  a->conn = NULL;
}

void agent_kill(struct sim *s, struct sim_agent *a) {
  s->faulty = true;
  if (!agent_alive(a)) return;
  sim_trace(s, "%s: agent killed", a->name);
  s->harmless = false;
  guard_note_rest(s, a);
  process_gone(s, a);
  guard_nudge(s, a); /* PR_SET_PDEATHSIG */
  guard_kill_all(s, a);
}

void node_power_off(struct sim *s, int node) {
  s->faulty = true;
  struct sim_node *n = &s->nodes[node];
  sim_trace(s, "%s: power off", n->host);
  n->off = true;
  s->harmless = false;
  node_resume(s, node);
  n->link.cut[0] = n->link.cut[1] = true;
  for (int i = 0; i < s->n_agents; i++) {
    struct sim_agent *a = s->agents[i];
    if (a->node != n) continue;
    a->guard_alive = false;
    for (int w = 0; w < SIM_WORKERS_MAX; w++) a->w[w].state = WORKER_DEAD;
    if (a->sup) process_gone(s, a);
  }
  for (int i = 0; i < SIM_DAEMONS_MAX; i++) {
    if (daemon_at(s, i)->machine != node) continue;
    int before = s->side;
    daemon_side(s, i);
    daemon_vanish(s);
    daemon_side(s, before);
  }
}

void node_suspend(struct sim *s, int node) {
  if (s->nodes[node].suspended || s->nodes[node].off) return;
  sim_trace(s, "%s: suspended", s->nodes[node].host);
  s->nodes[node].suspended = s->suspends = s->faulty = true;
  s->harmless = false;
}

void node_resume(struct sim *s, int node) {
  struct sim_node *n = &s->nodes[node];
  if (!n->suspended) return;
  sim_trace(s, "%s: resumed", n->host);
  n->suspended = false;
  n->resumed_at = s->now;
  sim_unstash_node(s, n);
}

void node_power_on(struct sim *s, int node) {
  struct sim_node *n = &s->nodes[node];
  if (!n->off) return;
  sim_trace(s, "%s: power on", n->host);
  n->off = false;
  link_heal(s, node);
}

void agent_signal(struct sim *s, struct sim_agent *a, int signo) {
  if (!agent_alive(a)) return;
  sim_trace(s, "%s: agent gets signal %d", a->name, signo);
  s->harmless = false;
  a->signalled = true;
  struct sim_event *ev = sim_push(s, s->now, EV_NOTIFY);
  ev->agent = a;
  ev->notice = xcalloc(1, sizeof *ev->notice);
  *ev->notice = (struct supervisor_event){.kind = SUP_SIGNAL, .signo = signo};
}

void agent_say(struct sim *s, struct sim_agent *a, const struct msg *m) {
  if (!agent_alive(a) || a->paused || !a->conn) return;
  struct bytes *b = msg_bytes(m);
  link_send(s, a->conn, TO_DAEMON, b);
  bytes_unref(b);
}

void agent_suspend(struct sim *s, struct sim_agent *a, bool on) {
  if (!agent_alive(a)) return;
  sim_trace(s, "%s: %s", a->name, on ? "Ctrl-Z" : "fg");
  struct sim_event *ev = sim_push(s, s->now, EV_NOTIFY);
  ev->agent = a;
  ev->notice = xcalloc(1, sizeof *ev->notice);
  *ev->notice = (struct supervisor_event){.kind = SUP_SUSPEND, .on = on};
}

void agent_pause(struct sim *s, struct sim_agent *a) {
  s->faulty = true;
  if (!agent_alive(a) || a->paused) return;
  sim_trace(s, "%s: agent paused", a->name);
  s->harmless = false;
  a->paused = true;
}

void agent_trap(struct sim *s, struct sim_agent *a, enum event_kind kind, enum trap trap, uint64_t ms) {
  s->faulty = true;
  a->pause_on = (int)kind;
  a->trap = trap;
  a->pause_ms = ms;
}

void agent_trap_msg(struct sim *s, struct sim_agent *a, enum msg_type type, enum trap trap, uint64_t ms) {
  agent_trap(s, a, EV_KIND_COUNT, trap, ms);
  a->pause_msg = type;
}

void agent_continue(struct sim *s, struct sim_agent *a) {
  if (!agent_alive(a) || !a->paused) return;
  sim_trace(s, "%s: agent continued", a->name);
  guard_note_rest(s, a);
  a->paused = false;
  sim_unstash(s, a);
}

void agent_free(struct sim_agent *a) {
  end_mind(a);
  bytes_unref(a->death_report);
  bytes_unref(a->forward);
  bytes_unref(a->pass_on);
  store_free(a);
  free(a);
}
