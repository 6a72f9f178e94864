/* SPDX-License-Identifier: Apache-2.0 */
/* Random stories. A seed chooses the cluster (one to six nodes, fixed size or elastic, one to four workers, lease,
 * delays, how workers behave) and then, for some virtual seconds, faults at random times: everything that can be
 * killed is killed, paused, cut off, broken, and much of it comes back. Some faults wait for an event or a message
 * instead of a time: between two messages a moment can be short. Then there is peace: links heal, the daemon is up,
 * nobody is paused, new workers end well. From there on the job has a bounded time to come to an end.
 */

#include "tests/sim/random.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  PEACE_MS = 240000, /* from peace to the end of the job at the latest, beyond --join-timeout */
};

/* What is chosen once. --------------------------------------------------------------------------------------------- */

static uint64_t one_of(struct sim *s, const uint32_t *v, size_t n) {
  return v[sim_below(s, n)];
}
#define ONE_OF(s, ...)                                                                                                 \
  one_of(s, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

/* And in every eighth nothing but the daemon has faults. */
static bool is_harmless(const struct sim *s) {
  return s->config.seed % 8 == 6;
}

bool random_pairs;

void random_choose_pairs(struct sim *s, int nodes, bool faults) {
  static const enum sim_pairs kinds[8] = {
      [2] = SIM_PAIRS_BAD, [3] = SIM_PAIRS_NO_NCCL, [5] = SIM_PAIRS_SILENT, [6] = SIM_PAIRS_BAD_FABRIC};
  if (!random_pairs) return;
  s->config.settings.pair_check = PAIR_CHECK_AUTO;
  for (int i = 0; i < nodes; i++) s->nodes[i].gpus = s->config.seed % 2 ? 8 : 0;
  for (int i = 0; i < nodes && faults; i++) s->nodes[i].pairs = kinds[(s->config.seed * 3 + (uint64_t)i) % 8];
}

static void choose_settings(struct sim *s, int nodes) {
  struct settings *t = &s->config.settings;
  bool fixed = sim_chance(s, 55) || is_harmless(s);
  t->max_nodes = (int64_t)sim_between(s, nodes > 1 ? (uint64_t)nodes - 1 : 1, (uint64_t)nodes + (fixed ? 0 : 1));
  t->min_nodes = fixed ? t->max_nodes : (int64_t)sim_between(s, 1, (uint64_t)t->max_nodes);
  t->max_restarts = (int64_t)ONE_OF(s, 0, 1, 2, 3, 5, 100);
  t->repeat_limit = (int64_t)(s->config.seed / 8 % 4); /* 0: every fourth */
  t->last_call_ms = (int64_t)ONE_OF(s, 0, 300, 2000);
  t->join_timeout_ms = (int64_t)ONE_OF(s, 3000, 10000, 20000);
  t->stop_timeout_ms = (int64_t)ONE_OF(s, 0, 300, 2000);
  t->lease_ms = (int64_t)ONE_OF(s, 1000, 2000, 5000);
  t->scale_up = s->config.seed % 8 == 1 ? SCALE_UP_NEXT_ROUND : SCALE_UP_NOW;
  t->after_finish = s->config.seed % 8 == 5 ? AFTER_FINISH_RESTART : AFTER_FINISH_FAIL;
  t->exclude_after = s->config.seed % 8 == 2 ? 2 : 0;
  if (t->min_nodes < t->max_nodes) t->orphan_grace_ms = ONE_OF(s, 2000, 10000, 60000);
  random_choose_pairs(s, nodes, true);
}

/* Much of what workers do in these stories is silent for long: then they hang, as far as anybody can see. */
static void choose_hangs(struct sim *s) {
  struct sim_config *c = &s->config;
  if (!sim_chance(s, 30)) return;
  c->settings.hang_timeout_ms = (int64_t)ONE_OF(s, 1000, 2000, 5000);
  c->hang_start_ms = c->settings.hang_timeout_ms * (int64_t)sim_between(s, 1, 3);
  c->hang_watch = sim_chance(s, 70) ? HANG_AUTO : HANG_SDK;
}

/* Every fourth story is of workers that want NCCL ids. */
static void choose_ids(struct sim *s) {
  struct sim_config *c = &s->config;
  if (c->seed % 4 != 2) return;
  c->settings.nccl_ids = NCCL_IDS_ALWAYS;
  c->mint_max = (uint32_t)ONE_OF(s, 0, 5, 300, 5000, 25000);
  c->mint_fails = is_harmless(s) ? 0 : (unsigned)ONE_OF(s, 0, 0, 10, 40);
  if (is_harmless(s) && c->mint_max > 5000) c->mint_max = 5000;
}

static void choose_world(struct sim *s) {
  struct sim_config *c = &s->config;
  c->delay_min = 1;
  c->delay_max = (uint32_t)ONE_OF(s, 1, 1, 5, 20, 60);
  c->exec_max = (uint32_t)ONE_OF(s, 0, 2, 10, 50);
  c->drain_max = (uint32_t)ONE_OF(s, 0, 5, 50);
  c->die_max = (uint32_t)ONE_OF(s, 0, 2, 20);
  c->state_dir = s->d.state_dir = sim_chance(s, 50);
  c->store_port = sim_chance(s, 20) ? 29500 : 0;
  c->portless = sim_chance(s, 10) ? 5 : 0;
  c->save_max = (uint32_t)ONE_OF(s, 0, 0, 4, 30, 200);
}

/* Every fourth story is long enough for rounds to grow, and more than once. */
static bool is_long(const struct sim *s) {
  return s->config.seed % 4 == 3;
}

/* Every eighth has two daemons, and nodes whose endpoint leads now to the one and now to the other. */
static bool has_two_daemons(const struct sim *s) {
  return s->config.seed % 8 == 5;
}

/* What it dies of. */
static const char *choose_words(const struct sim *s, const struct behaviour *b) {
  static const char *const words[] = {NULL, "ValueError: boom", "KeyError: 'a'", "OSError: [Errno 5] no"};
  return words[(s->config.seed + b->run_ms) % (sizeof words / sizeof *words)];
}

static struct behaviour choose_behaviour(struct sim *s, bool crash) {
  struct behaviour b = {.end = END_EXIT, .term_code = -1};
  b.run_ms = (uint32_t)sim_between(s, 50, ONE_OF(s, 300, 3000, 12000));
  if (is_long(s)) b.run_ms *= 10;
  if (sim_chance(s, 40)) b.end = END_NEVER;
  if (crash) {
    b.end = sim_chance(s, 50) ? END_EXIT : END_SIGNAL;
    b.code = b.end == END_EXIT ? (int)sim_between(s, 1, 255) : (int)ONE_OF(s, SIGSEGV, SIGKILL, SIGABRT);
    b.words = choose_words(s, &b);
    if (sim_chance(s, 10)) b.exec_errno = b.code % 3 == 0 ? ENOENT : b.code % 3 == 1 ? EBUSY : EAGAIN;
  }
  b.term_ms = sim_chance(s, 15) ? UINT32_MAX : (uint32_t)ONE_OF(s, 0, 0, 5, 400);
  if (sim_chance(s, 20)) b.term_code = (int)ONE_OF(s, 0, 143);
  if (sim_chance(s, 3)) b.kill_ms = (uint32_t)ONE_OF(s, 3000, 8000, 20000);
  b.meet = s->normal.meet; /* all of a round meet, or none */
  if (sim_chance(s, s->config.settings.hang_timeout_ms ? 70 : 20)) b.progress_ms = 300;
  if (b.progress_ms && sim_chance(s, 30)) b.from_step = (uint32_t)sim_below(s, 20);
  if (s->config.settings.hang_timeout_ms && sim_chance(s, 20)) {
    b.hang_ms = (uint32_t)sim_between(s, 100, 6000);
    b.hang_state = (char)ONE_OF(s, 0, 0, 'T', 'D');
  }
  b.checkpoints = sim_chance(s, 50);
  b.save_ms = (uint32_t)ONE_OF(s, 0, 0, 5, 400, UINT32_MAX);
  b.rejoins = sim_chance(s, 50);
  b.park_ms = (uint32_t)ONE_OF(s, 0, 0, 0, 5, 400, UINT32_MAX);
  if (sim_chance(s, 5) && !is_harmless(s)) b.alarm_ms = (uint32_t)sim_between(s, 50, 4000);
  return b;
}

static void choose_behaviours(struct sim *s) {
  s->normal.meet = sim_chance(s, 30);
  s->normal = choose_behaviour(s, false);
  int rules = is_harmless(s) ? 0 : (int)sim_below(s, 4);
  for (int i = 0; i < rules; i++) {
    int node = (int)sim_below(s, (uint64_t)s->n_nodes), local = (int)sim_below(s, s->nodes[node].workers);
    rule_add(s, node, local, (int)sim_below(s, 4), choose_behaviour(s, sim_chance(s, 70)));
  }
}

/* Faults. ---------------------------------------------------------------------------------------------------------- */

static void on_start_agent(struct sim *s, uint64_t node) {
  if (!agent_alive(agent_of(s, (int)node))) agent_start(s, (int)node);
}
static void on_heal(struct sim *s, uint64_t node) {
  link_heal(s, (int)node);
}
static void on_resume(struct sim *s, uint64_t node) {
  node_resume(s, (int)node);
}
static void on_power_on(struct sim *s, uint64_t node) {
  node_power_on(s, (int)node);
}
static void on_daemon_start(struct sim *s, uint64_t side) {
  if (side && s->calm) return;
  daemon_side(s, (int)side);
  daemon_start(s);
  daemon_side(s, 0);
}
static void on_daemon_continue(struct sim *s, uint64_t side) {
  daemon_side(s, (int)side);
  daemon_continue(s);
  daemon_side(s, 0);
}
static void on_agent_continue(struct sim *s, uint64_t index) {
  agent_continue(s, s->agents[index]);
}

static void on_guard_continue(struct sim *s, uint64_t index) {
  guard_continue(s, s->agents[index]);
}

static void on_agent_foreground(struct sim *s, uint64_t index) {
  agent_suspend(s, s->agents[index], false);
}

static uint64_t soon(struct sim *s) {
  return s->now + ONE_OF(s, 0, 10, 50, 120, 500, 1500, 4000, 9000);
}

static void break_link(struct sim *s, struct sim_agent *a) {
  if (!a->conn) return;
  sim_trace(s, "%s: connection breaks", a->name);
  link_break(s, a->conn, ONE_OF(s, 0, 1, 20, 200), ONE_OF(s, 0, 1, 20, 200));
}

static void turn_node(struct sim *s, int node) {
  struct sim_agent *a = agent_of(s, node);
  node_turn(s, node, !s->nodes[node].side);
  if (a && sim_chance(s, 80)) break_link(s, a);
}

/* At a message, not at a time: what an agent has just been told counts until the next message, and that can be a
 * short moment. */
static void trap_at_message(struct sim *s, struct sim_agent *a, enum msg_type type) {
  enum trap trap = sim_chance(s, 40) ? TRAP_CUT : (enum trap)sim_below(s, TRAP_COUNT);
  agent_trap_msg(s, a, type, trap, soon(s) - s->now);
}

static enum msg_type some_message(struct sim *s) {
  return (enum msg_type)ONE_OF(s, MSG_WELCOME, MSG_WELCOME, MSG_WAITING, MSG_START, MSG_START, MSG_STOP, MSG_SETTLED,
                               MSG_STALE, MSG_PREPARE, MSG_HEARTBEAT_ACK, MSG_MINT, MSG_IDS, MSG_END);
}

/* When the daemon is back, something happens to a node that has just been greeted. */
static void trap_at_return(struct sim *s) {
  struct sim_agent *a = agent_of(s, (int)sim_below(s, (uint64_t)s->n_nodes));
  if (!agent_alive(a)) return;
  trap_at_message(s, a, MSG_WELCOME);
  sim_call(s, s->now + 10000, on_start_agent, (uint64_t)a->node->index);
}

static void fault_of_daemon(struct sim *s, uint64_t side) {
  if (!is_harmless(s) && sim_chance(s, 40)) trap_at_return(s);
  switch (sim_below(s, 7)) {
  case 0:
  case 1: daemon_kill(s); break;
  case 2: daemon_terminate(s); break;
  case 3: s->d.die_at_save = (int)sim_between(s, 1, 3); break;
  case 4:
    s->d.trap_on = 1 + (int)sim_below(s, EV_CALL + 1);
    s->d.trap_ms = sim_chance(s, 50) ? soon(s) - s->now : 0;
    break;
  default:
    daemon_pause(s);
    sim_call(s, soon(s), on_daemon_continue, side);
    return;
  }
  sim_call(s, soon(s), on_daemon_start, side);
  sim_call(s, s->now + 10000, on_daemon_start, side); /* it may die later, at a save */
}

/* And sometimes its agent is stopped too, before it or after. */
static void pause_guard(struct sim *s, struct sim_agent *a) {
  guard_pause(s, a, sim_chance(s, 60) ? GUARD_STOPPED : GUARD_HELD);
  sim_call(s, soon(s), on_guard_continue, (uint64_t)a->index);
  if (!sim_chance(s, 25)) return;
  agent_pause(s, a);
  sim_call(s, soon(s), on_agent_continue, (uint64_t)a->index);
}

static void fault_of_agent(struct sim *s, struct sim_agent *a) {
  uint64_t node = (uint64_t)a->node->index;
  switch (sim_below(s, 15)) {
  case 14:
    agent_suspend(s, a, true);
    sim_call(s, soon(s), on_agent_foreground, (uint64_t)a->index);
    return;
  case 10:
  case 11: pause_guard(s, a); return;
  case 12:
  case 13: trap_at_message(s, a, some_message(s)); break;
  case 0: agent_kill(s, a); break;
  case 1:
    guard_kill(s, a);
    agent_kill(s, a);
    break;
  case 2: guard_kill(s, a); break;
  case 3: agent_signal(s, a, SIGTERM); break;
  case 4:
    agent_pause(s, a);
    sim_call(s, soon(s), on_agent_continue, (uint64_t)a->index);
    return;
  case 8:
    agent_trap(s, a, (enum event_kind)sim_below(s, EV_CALL + 1), (enum trap)sim_below(s, TRAP_COUNT), soon(s) - s->now);
    break;
  case 9:
    node_suspend(s, (int)node);
    sim_call(s, soon(s), on_resume, node);
    return;
  case 5:
    node_power_off(s, (int)node);
    sim_call(s, soon(s), on_power_on, node);
    break;
  default:
    if (a->workers) worker_signal(s, a, (uint32_t)sim_below(s, a->workers), (int)ONE_OF(s, SIGKILL, SIGSEGV));
    return;
  }
  if (sim_chance(s, 75)) sim_call(s, soon(s), on_start_agent, node);
}

static void on_fault(struct sim *s, uint64_t arg) {
  if (s->calm) return;
  uint64_t node = sim_below(s, (uint64_t)s->n_nodes);
  struct sim_agent *a = agent_of(s, (int)node);
  uint64_t kind = sim_below(s, 100);
  bool two = has_two_daemons(s);
  if (two && sim_chance(s, 30)) {
    turn_node(s, (int)node);
  } else if (kind < 20 || is_harmless(s)) {
    uint64_t side = two ? sim_below(s, 2) : 0;
    daemon_side(s, (int)side);
    fault_of_daemon(s, side);
    daemon_side(s, 0);
  } else if (kind < 22) {
    daemon_stop_job(s, "job");
  } else if (kind < 25) {
    daemon_drain(s, (int)node, sim_chance(s, 50));
  } else if (kind < 26) {
    daemon_undrain(s, (int)node);
  } else if (kind < 50) {
    bool both = sim_chance(s, 60), to_agent = both || sim_chance(s, 50);
    if (both && sim_chance(s, 30))
      link_reject(s, (int)node);
    else
      link_cut(s, (int)node, to_agent, both || !to_agent);
    sim_call(s, soon(s), on_heal, node);
  } else if (!agent_alive(a)) {
    agent_start(s, (int)node);
  } else if (kind < 65) {
    break_link(s, a);
  } else {
    fault_of_agent(s, a);
  }
}

/* Only one daemon is left, and all endpoints lead there. */
static void unite(struct sim *s) {
  for (int i = 0; i < s->n_nodes; i++) s->nodes[i].side = 0;
  daemon_side(s, 1);
  daemon_continue(s);
  daemon_kill(s);
  daemon_side(s, 0);
}

static void on_peace(struct sim *s, uint64_t arg) {
  sim_trace(s, "--- peace ---");
  s->calm = true;
  if (has_two_daemons(s)) unite(s);
  s->d.die_at_save = s->d.trap_on = 0;
  for (int i = 0; i < s->n_nodes; i++) {
    if (sim_chance(s, 60)) node_power_on(s, i);
    link_heal(s, i);
    node_resume(s, i);
  }
  daemon_continue(s);
  daemon_start(s);
  for (int i = 0; i < s->n_nodes; i++) daemon_undrain(s, i);
  for (int i = 0; i < s->n_agents; i++) {
    s->agents[i]->pause_on = -1;
    s->agents[i]->pause_msg = MSG_NONE;
    agent_continue(s, s->agents[i]);
    guard_continue(s, s->agents[i]);
    guard_calm(s, s->agents[i]);
  }
}

/* A scheduler's list: of the first nodes, told by them, while others have one of their own, or none. */
static void choose_lists(struct sim *s) {
  static const char *const first[] = {"", "n1", "n[1-2]", "n[1-3]", "n[1-4]", "n[1-5]", "n[1-6]"};
  static const char *const alone[] = {"n1", "n2", "n3", "n4", "n5", "n6"};
  if (!sim_chance(s, 20)) return;
  int listed = (int)sim_between(s, 1, (uint64_t)s->n_nodes);
  for (int i = 0; i < s->n_nodes; i++) {
    struct sim_node *n = &s->nodes[i];
    n->expected_hosts = i < listed ? first[listed] : sim_chance(s, 50) ? alone[i] : NULL;
    n->expected_nodes = i < listed ? listed : n->expected_hosts ? 1 : 0;
  }
}

/* One story. ------------------------------------------------------------------------------------------------------- */

struct sim *random_world(uint64_t seed, bool trace, bool verbose) {
  struct sim_config c;
  sim_config_init(&c);
  c.seed = seed;
  c.events = seed % 2 == 1;
  c.mixed = seed % 4 < 2;
  c.trace = c.logs = c.connections = trace || verbose;
  c.verbose = verbose;
  struct sim *s = sim_create(&c);
  int nodes = (int)sim_between(s, 1, 6);
  choose_world(s);
  choose_settings(s, nodes);
  bool same = sim_chance(s, 70);
  uint32_t workers = (uint32_t)sim_between(s, 1, 4);
  for (int i = 0; i < nodes; i++) node_add(s, same ? workers : (uint32_t)sim_between(s, 1, 4));
  choose_hangs(s);
  for (int i = 0; sim_chance(s, 30) && i < nodes; i++) s->nodes[i].rate = (uint32_t)sim_between(s, 970, 1030);
  choose_behaviours(s);
  choose_ids(s);
  choose_lists(s);
  const struct settings *t = &s->config.settings;
  sim_trace(s, "%d nodes, --nnodes %" PRId64 ":%" PRId64 ", lease %" PRId64 " ms%s", nodes, t->min_nodes, t->max_nodes,
            t->lease_ms, s->config.state_dir ? ", state file" : "");

  daemon_start(s);
  for (int i = 0; has_two_daemons(s) && i < nodes; i++) s->nodes[i].side = sim_chance(s, 30);
  if (has_two_daemons(s)) on_daemon_start(s, 1);
  for (int i = 0; i < nodes; i++)
    sim_call(s, sim_chance(s, 70) ? sim_below(s, 100) : sim_below(s, 6000), on_start_agent, (uint64_t)i);
  uint64_t war_ms = ONE_OF(s, 2000, 6000, 20000);
  if (is_long(s)) war_ms = 100000;
  uint64_t faults = sim_below(s, ONE_OF(s, 2, 8, 30) + 1);
  for (uint64_t i = 0; i < faults; i++) sim_call(s, sim_below(s, war_ms), on_fault, 0);
  sim_call(s, war_ms, on_peace, 0);

  sim_until(s, war_ms + 10000); /* everybody who is to come back has */
  uint64_t limit = s->now + PEACE_MS + (uint64_t)t->join_timeout_ms;
  sim_until_over(s, limit);
  if (s->violated == INV_NONE) {
    sim_for(s, 2 * JOB_END_ACK_MS +
                   (uint64_t)t->join_timeout_ms); /* where all were lost at once, it waits for that first */
    if (s->violated == INV_NONE) check_over(s);
  }
  return s;
}
