/* SPDX-License-Identifier: Apache-2.0 */
/* Random stories of jobs whose daemon can be lost: with its machine, behind a cut in any direction, or stopped. A seed
 * chooses two to six nodes, who has a daemon (the first node's agent, and then each that takes over; or two to four
 * standby daemons, on nodes or on machines of their own), whether rounds are claimed, and the faults. In peace all
 * machines that have power reach each other. Then the job goes on wherever a majority is left, and ends in any case. */

#include "tests/sim/random.h"

#include <inttypes.h>
#include <signal.h>

enum {
  PEACE_MS = 240000,
  GOES_ON_MS = 10000, /* and some leases, from peace to a round; of 20,000 jobs 13 need more than 3 leases */
  GOES_ON_LEASES = 30,
  GOES_ON_CLAIMS =
      4, /* times as long with claims, which take up to some seconds each, and numbers are passed one by one */
};

static uint64_t one_of(struct sim *s, const uint32_t *v, size_t n) {
  return v[sim_below(s, n)];
}
#define ONE_OF(s, ...)                                                                                                 \
  one_of(s, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

static uint64_t soon(struct sim *s) {
  return s->now + ONE_OF(s, 0, 50, 500, 1500, 4000, 9000, 20000);
}

/* What is chosen once. --------------------------------------------------------------------------------------------- */

static bool is_owned(uint64_t seed) {
  return seed % 2 == 0;
}

static void choose_config(struct sim_config *c, uint64_t seed) {
  c->seed = seed;
  c->takeover = true;
  c->events = seed % 3 == 1;
  c->mixed = seed % 4 == 1 || seed % 4 == 2;
  c->owned = is_owned(seed);
  c->endpoints = c->owned ? 1 : 2 + (uint32_t)(seed / 8 % 3);
  c->claims = seed % 8 >= 6; /* every fourth */
}

static void choose_world(struct sim *s) {
  struct sim_config *c = &s->config;
  c->delay_max = (uint32_t)ONE_OF(s, 1, 1, 5, 20, 60);
  c->exec_max = (uint32_t)ONE_OF(s, 0, 2, 10, 50);
  c->drain_max = (uint32_t)ONE_OF(s, 0, 5, 50);
  c->die_max = (uint32_t)ONE_OF(s, 0, 2, 20);
  c->save_max = (uint32_t)ONE_OF(s, 0, 0, 4, 30);
  c->claim_max = (uint32_t)ONE_OF(s, 0, 5, 50, 1000, 4000);
  c->claim_fails = (unsigned)ONE_OF(s, 0, 0, 10, 40);
}

static void choose_settings(struct sim *s, int nodes) {
  struct settings *t = &s->config.settings;
  bool fixed = sim_chance(s, 50);
  t->max_nodes = (int64_t)sim_between(s, nodes > 2 ? (uint64_t)nodes - 1 : 2, (uint64_t)nodes);
  t->min_nodes = fixed ? t->max_nodes : (int64_t)sim_between(s, 1, (uint64_t)t->max_nodes);
  t->max_restarts = (int64_t)ONE_OF(s, 3, 100);
  t->repeat_limit = 0;
  t->last_call_ms = (int64_t)ONE_OF(s, 0, 300, 2000);
  t->join_timeout_ms = 600000; /* longer than whatever is waited for here */
  t->stop_timeout_ms = (int64_t)ONE_OF(s, 0, 300, 2000);
  t->lease_ms = (int64_t)ONE_OF(s, 1000, 2000, 5000);
  t->orphan_grace_ms = ONE_OF(s, 10000, 60000, 60000);
  random_choose_pairs(s, nodes,
                      false); /* a host that is left out would be needed later, and a round would not follow */
}

static struct behaviour choose_behaviour(struct sim *s, bool crash) {
  struct behaviour b = {.end = END_EXIT, .term_code = -1};
  b.run_ms = (uint32_t)sim_between(s, 3000, ONE_OF(s, 12000, 60000));
  if (sim_chance(s, 60)) b.end = END_NEVER;
  if (crash) {
    b.end = sim_chance(s, 50) ? END_EXIT : END_SIGNAL;
    b.code = b.end == END_EXIT ? (int)sim_between(s, 1, 255) : SIGSEGV;
  }
  b.term_ms = sim_chance(s, 15) ? UINT32_MAX : (uint32_t)ONE_OF(s, 0, 0, 5, 400);
  b.rejoins = sim_chance(s, 30);
  b.park_ms = (uint32_t)ONE_OF(s, 0, 5, 400, UINT32_MAX);
  b.checkpoints = sim_chance(s, 30);
  b.save_ms = (uint32_t)ONE_OF(s, 0, 5, 400);
  return b;
}

static void choose_behaviours(struct sim *s) {
  s->normal = choose_behaviour(s, false);
  if (!sim_chance(s, 30)) return;
  int node = (int)sim_below(s, (uint64_t)s->n_nodes);
  rule_add(s, node, -1, (int)sim_between(s, 1, 3), choose_behaviour(s, true));
}

/* Standby daemons are on nodes, or on machines of their own. */
static void choose_places(struct sim *s) {
  if (s->config.owned) return;
  bool on_nodes = sim_chance(s, 50);
  for (int k = 0; k < (int)s->config.endpoints; k++) {
    if (on_nodes && k < s->n_nodes) place_daemon(s, k, k);
    daemon_at(s, k)->state_dir = true;
  }
}

/* 1 %, as PROTOCOL.md 7 allows. */
static void choose_clocks(struct sim *s) {
  if (!sim_chance(s, 30)) return;
  for (int i = 0; i < s->n_nodes; i++) s->nodes[i].rate = (uint32_t)sim_between(s, 995, 1005);
  for (int i = 0; i < SIM_DAEMONS_MAX; i++) s->away_rate[i] = (uint32_t)sim_between(s, 995, 1005);
}

/* Faults. ---------------------------------------------------------------------------------------------------------- */

static void on_start_agent(struct sim *s, uint64_t node) {
  if (!agent_alive(agent_of(s, (int)node))) agent_start(s, (int)node);
}
static void on_heal(struct sim *s, uint64_t node) {
  link_heal(s, (int)node);
}
static void on_open(struct sim *s, uint64_t arg) {
  place_open(s);
}
static void on_resume(struct sim *s, uint64_t node) {
  node_resume(s, (int)node);
}
static void on_agent_continue(struct sim *s, uint64_t index) {
  agent_continue(s, s->agents[index]);
  guard_continue(s, s->agents[index]);
}

/* What a service manager starts: those of --endpoint a,b,c. */
static void on_daemon_start(struct sim *s, uint64_t side) {
  const struct sim_daemon *d = daemon_at(s, (int)side);
  bool off = d->machine < SIM_NODES_MAX ? s->nodes[d->machine].off : s->away_off[d->machine - SIM_NODES_MAX];
  if (off || s->config.owned || side >= s->config.endpoints) return;
  daemon_side(s, (int)side);
  daemon_start(s);
  daemon_side(s, 0);
}
static void on_daemon_continue(struct sim *s, uint64_t side) {
  daemon_side(s, (int)side);
  daemon_continue(s);
  daemon_side(s, 0);
}
static void start_daemons(struct sim *s) {
  for (uint64_t k = 0; k < s->config.endpoints; k++) on_daemon_start(s, k);
}
static void on_power_on(struct sim *s, uint64_t node) {
  node_power_on(s, (int)node);
  start_daemons(s);
}
/* An operator sees that the machine is off, and tells each daemon. */
static void on_confirm_dead(struct sim *s, uint64_t node) {
  for (int i = 0; i < SIM_DAEMONS_MAX && s->nodes[node].off; i++) {
    daemon_side(s, i);
    daemon_confirm_dead(s, (int)node);
  }
  daemon_side(s, 0);
}
static void on_place_power_on(struct sim *s, uint64_t side) {
  place_power_on(s, (int)side);
  start_daemons(s);
}
static void on_register_heard(struct sim *s, uint64_t machine) {
  claim_wall(s, (int)machine, false);
}

/* One that is up; -1: none is. */
static int some_daemon(struct sim *s) {
  int up[SIM_DAEMONS_MAX], n = 0;
  for (int i = 0; i < SIM_DAEMONS_MAX; i++)
    if (daemon_at(s, i)->core) up[n++] = i;
  return n ? up[sim_below(s, (uint64_t)n)] : -1;
}

static void power_off(struct sim *s, int machine) {
  if (machine >= SIM_NODES_MAX) {
    place_power_off(s, machine - SIM_NODES_MAX);
    if (sim_chance(s, 60)) sim_call(s, soon(s), on_place_power_on, (uint64_t)(machine - SIM_NODES_MAX));
    return;
  }
  if (s->nodes[machine].off) return;
  node_power_off(s, machine);
  if (sim_chance(s, 25)) sim_call(s, soon(s), on_confirm_dead, (uint64_t)machine);
  if (!sim_chance(s, 60)) return;
  uint64_t at = soon(s);
  sim_call(s, at, on_power_on, (uint64_t)machine);
  if (sim_chance(s, 70)) sim_call(s, at + 10, on_start_agent, (uint64_t)machine);
}

static void fault_of_daemon(struct sim *s) {
  int side = some_daemon(s);
  if (side < 0) return;
  if (sim_chance(s, 40)) {
    power_off(s, daemon_at(s, side)->machine);
    return;
  }
  daemon_side(s, side);
  switch (sim_below(s, 6)) {
  case 0: daemon_kill(s); break;
  case 5: daemon_terminate(s); break;
  case 1: s->d.die_at_save = (int)sim_between(s, 1, 3); break;
  case 2:
    s->d.trap_on = 1 + (int)sim_below(s, EV_CALL + 1);
    s->d.trap_ms = sim_chance(s, 50) ? soon(s) - s->now : 0;
    break;
  default: daemon_pause(s); sim_call(s, soon(s), on_daemon_continue, (uint64_t)side);
  }
  daemon_side(s, 0);
  sim_call(s, soon(s), on_daemon_start, (uint64_t)side);
  sim_call(s, s->now + 10000, on_daemon_start, (uint64_t)side);
}

static int machines(struct sim *s, int v[SIM_MACHINES_MAX]) {
  int n = 0;
  for (int i = 0; i < s->n_nodes; i++) v[n++] = i;
  for (int k = 0; k < (int)s->config.endpoints && !s->config.owned; k++)
    if (daemon_at(s, k)->machine >= SIM_NODES_MAX) v[n++] = daemon_at(s, k)->machine;
  return n;
}

/* Two sides that do not reach each other, in one direction or both; or single pairs, which need not be transitive. */
static void build_walls(struct sim *s) {
  int v[SIM_MACHINES_MAX], n = machines(s, v);
  if (sim_chance(s, 60)) {
    uint64_t half = 1 + sim_below(s, (1u << n) - 1);
    bool both = sim_chance(s, 70);
    for (int i = 0; i < n; i++)
      for (int k = 0; k < n; k++)
        if ((half >> i & 1) && !(half >> k & 1)) place_wall(s, v[i], v[k], both);
  } else {
    for (uint64_t pairs = sim_between(s, 1, 3); pairs > 0; pairs--) {
      int i = (int)sim_below(s, (uint64_t)n), k = (int)sim_below(s, (uint64_t)n);
      if (i != k) place_wall(s, v[i], v[k], sim_chance(s, 50));
    }
  }
  sim_call(s, soon(s), on_open, 0);
}

static void trap_at_message(struct sim *s, struct sim_agent *a) {
  enum trap trap = sim_chance(s, 40) ? TRAP_CUT : (enum trap)sim_below(s, TRAP_COUNT);
  enum msg_type type = (enum msg_type)ONE_OF(s, MSG_WELCOME, MSG_WELCOME, MSG_WAITING, MSG_START, MSG_START, MSG_STOP,
                                             MSG_SETTLED, MSG_STALE, MSG_HEARTBEAT_ACK, MSG_MOVED, MSG_END);
  agent_trap_msg(s, a, type, trap, soon(s) - s->now);
}

static void fault_of_agent(struct sim *s, struct sim_agent *a) {
  uint64_t node = (uint64_t)a->node->index;
  switch (sim_below(s, 10)) {
  case 0: agent_kill(s, a); break;
  case 1: guard_kill(s, a); break;
  case 2: agent_signal(s, a, SIGTERM); break;
  case 3:
    if (sim_chance(s, 60))
      agent_pause(s, a);
    else
      guard_pause(s, a, GUARD_STOPPED);
    sim_call(s, soon(s), on_agent_continue, (uint64_t)a->index);
    return;
  case 4:
    node_suspend(s, (int)node);
    sim_call(s, soon(s), on_resume, node);
    return;
  case 5:
  case 6: trap_at_message(s, a); break;
  case 7:
    if (a->conn) link_break(s, a->conn, ONE_OF(s, 0, 1, 20, 200), ONE_OF(s, 0, 1, 20, 200));
    return;
  default:
    if (a->workers) worker_signal(s, a, (uint32_t)sim_below(s, a->workers), SIGKILL);
    return;
  }
  if (sim_chance(s, 75)) sim_call(s, soon(s), on_start_agent, node);
}

static void fault_of_register(struct sim *s) {
  int v[SIM_MACHINES_MAX], n = machines(s, v), machine = v[sim_below(s, (uint64_t)n)];
  claim_wall(s, machine, true);
  sim_call(s, soon(s), on_register_heard, (uint64_t)machine);
}

static void on_fault(struct sim *s, uint64_t arg) {
  if (s->calm) return;
  int node = (int)sim_below(s, (uint64_t)s->n_nodes);
  struct sim_agent *a = agent_of(s, node);
  uint64_t kind = sim_below(s, 100);
  if (kind < 30) {
    fault_of_daemon(s);
  } else if (kind < 55) {
    build_walls(s);
  } else if (kind < 62) {
    bool both = sim_chance(s, 60), to_agent = both || sim_chance(s, 50);
    if (both && sim_chance(s, 30))
      link_reject(s, node);
    else
      link_cut(s, node, to_agent, both || !to_agent);
    sim_call(s, soon(s), on_heal, (uint64_t)node);
  } else if (kind < 70) {
    power_off(s, node);
  } else if (kind < 75 && s->config.claims) {
    fault_of_register(s);
  } else if (!agent_alive(a)) {
    agent_start(s, node);
  } else {
    fault_of_agent(s, a);
  }
}

static void on_check(struct sim *s, uint64_t since_ms) {
  check_goes_on(s, since_ms);
}

static void on_peace(struct sim *s, uint64_t arg) {
  sim_trace(s, "--- peace ---");
  s->calm = true;
  for (int i = 0; i < s->n_nodes; i++) {
    if (sim_chance(s, 60)) node_power_on(s, i);
    node_resume(s, i);
    link_heal(s, i);
    claim_wall(s, i, false);
  }
  place_open(s);
  for (int i = 0; i < SIM_DAEMONS_MAX; i++) {
    if (sim_chance(s, 70)) place_power_on(s, i);
    claim_wall(s, SIM_NODES_MAX + i, false);
    daemon_side(s, i);
    daemon_continue(s);
    s->d.die_at_save = s->d.trap_on = 0;
    daemon_side(s, 0);
  }
  start_daemons(s);
  for (int i = 0; i < s->n_agents; i++) {
    s->agents[i]->pause_on = -1;
    s->agents[i]->pause_msg = MSG_NONE;
    agent_continue(s, s->agents[i]);
    guard_continue(s, s->agents[i]);
    guard_calm(s, s->agents[i]);
  }
  unsigned times = s->config.settings.claims ? GOES_ON_CLAIMS : 1;
  sim_call(s, s->now + times * (GOES_ON_MS + GOES_ON_LEASES * (uint64_t)s->config.settings.lease_ms), on_check, s->now);
}

/* One story. ------------------------------------------------------------------------------------------------------- */

struct sim *random_takeover(uint64_t seed, bool trace, bool verbose) {
  struct sim_config c;
  sim_config_init(&c);
  choose_config(&c, seed);
  c.trace = c.logs = c.connections = trace || verbose;
  c.verbose = verbose;
  struct sim *s = sim_create(&c);
  int nodes = (int)sim_between(s, 2, 6);
  choose_world(s);
  choose_settings(s, nodes);
  for (int i = 0; i < nodes; i++) node_add(s, (uint32_t)sim_between(s, 1, 2));
  choose_behaviours(s);
  choose_places(s);
  choose_clocks(s);
  const struct settings *t = &s->config.settings;
  sim_trace(s, "%d nodes, --nnodes %" PRId64 ":%" PRId64 ", lease %" PRId64 " ms, %s%s", nodes, t->min_nodes,
            t->max_nodes, t->lease_ms, c.owned ? "successors" : "standby daemons", c.claims ? ", claims" : "");

  start_daemons(s);
  if (s->config.owned) daemon_start(s);
  for (int i = 0; i < nodes; i++)
    sim_call(s, sim_chance(s, 70) ? sim_below(s, 100) : sim_below(s, 6000), on_start_agent, (uint64_t)i);
  uint64_t war_ms = ONE_OF(s, 10000, 30000, 60000);
  uint64_t faults = 2 + sim_below(s, ONE_OF(s, 2, 8, 25));
  for (uint64_t i = 0; i < faults; i++) sim_call(s, 1000 + sim_below(s, war_ms - 1000), on_fault, 0);
  sim_call(s, war_ms, on_peace, 0);

  sim_until(s, war_ms + 31000); /* everybody who is to come back has */
  sim_until_over(s, s->now + PEACE_MS + (uint64_t)t->join_timeout_ms);
  if (s->violated == INV_NONE) {
    sim_for(s, 2 * JOB_END_ACK_MS + (uint64_t)t->join_timeout_ms);
    if (s->violated == INV_NONE) check_over(s);
  }
  return s;
}

/* What tests/model/succession.pml has: three nodes, two or three standby daemons on machines of their own. No fault comes
 * before from_ms. */
struct sim *random_small_takeover(uint64_t seed, uint64_t from_ms, uint64_t to_ms, bool verbose) {
  struct sim_config c;
  sim_config_init(&c);
  c.seed = seed;
  c.takeover = true;
  c.endpoints = seed % 4 ? 2 : 3;
  c.trace = c.logs = c.connections = c.verbose = verbose;
  struct sim *s = sim_create(&c);
  choose_world(s);
  s->config.save_max = 0;
  choose_settings(s, 3);
  struct settings *t = &s->config.settings;
  t->max_nodes = 3;
  t->min_nodes = (int64_t)sim_between(s, 1, 3);
  t->max_restarts = 100;
  t->last_call_ms = 300;
  for (int i = 0; i < 3; i++) node_add(s, 1);
  choose_behaviours(s);
  s->normal.rejoins = false;
  s->normal.end = seed % 3 ? END_EXIT : END_NEVER; /* the round ends, and the next one begins */
  s->normal.code = 1;
  s->normal.run_ms += (uint32_t)from_ms;
  s->n_rules = 0;
  for (int k = 0; k < (int)s->config.endpoints; k++) daemon_at(s, k)->state_dir = true;
  choose_clocks(s);
  start_daemons(s);
  for (int i = 0; i < 3; i++) agent_start(s, i);
  uint64_t faults = 2 + sim_below(s, ONE_OF(s, 8, 25, 60));
  for (uint64_t i = 0; i < faults; i++) sim_call(s, from_ms + sim_below(s, to_ms - from_ms), on_fault, 0);
  return s;
}
