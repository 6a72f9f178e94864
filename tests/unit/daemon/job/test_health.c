/* SPDX-License-Identifier: Apache-2.0 */
/* health: which nodes are odd, who is told, and which hosts are used no further. The whole core of a daemon, and nodes that
 * say what a healthy fleet says, or one with a planted fault. */

#include "daemon/job/health.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"
#include "daemon/core/metrics.h"
#include "tests/rig/core.h"
#include "tests/rig/fleet.h"
#include "tests/rig/unit.h"

enum { FLEET_MAX = 64, LOOK_MS = 2000, MINUTE_MS = 60000 };

static struct node fleet[FLEET_MAX];
static struct fleet_room room;

/* What is in the room, as node n says it. */
static void say_room(struct rig *r, struct node *n, const char *trouble, int64_t skew_ms) {
  struct msg m;
  msg_init(&m, MSG_FACTS);
  m.facts.wall_ms = (int64_t)(r->wall_ms + r->now_ms) + skew_ms;
  m.facts.text = trouble;
  m.facts.facts = room.v;
  m.facts.n_facts = room.n;
  node_say(r, n, &m);
}

static void say(struct rig *r, struct node *n, const struct fleet_profile *p, const struct fleet_fault *fault) {
  fleet_fill(&room, p);
  if (fault) fleet_plant(&room, fault);
  say_room(r, n, "", 0);
}

static void all_say(struct rig *r, struct node *n, int count, const struct fleet_profile *p, int victim,
                    const struct fleet_fault *fault) {
  for (int i = 0; i < count; i++) say(r, &n[i], p, i == victim ? fault : NULL);
}

/* Time passes, and nodes live. */
static void pass(struct rig *r, struct node *n, int count, uint64_t ms) {
  for (uint64_t t = 0; t < ms; t += LOOK_MS) {
    rig_run(r, ms - t < LOOK_MS ? ms - t : LOOK_MS);
    nodes_heartbeat(r, n, (size_t)count);
  }
}

static const char *notice(const struct rig *r, const struct node *n) {
  const struct msg *m = rig_last(r, n->conn, MSG_NOTICE);
  return m ? m->notice_msg.text : "";
}

#define assert_notice(r, n, part)                                                                                      \
  do {                                                                                                                 \
    if (!strstr(notice(r, n), part)) fail_msg("\"%s\" is not in: %s", part, notice(r, n));                             \
  } while (0)

/* A running job of min to max nodes with so many in it. */
static void open_fleet(struct rig *r, struct node *n, int64_t min, int64_t max, int count) {
  rig_open_for(r, min, max);
  r->settings.last_call_ms = 1000;
  rig_joined(r, n, (size_t)count);
  rig_run(r, 1000);
  for (int i = 0; i < count; i++)
    if (n[i].round) node_started(r, &n[i]);
  assert_string_equal(rig_state(r, "job"), "running");
  rig_forget(r);
}

static void stop_all(struct rig *r, struct node *n, int count) {
  nodes_checkpointed(r, n, (size_t)count);
  nodes_stopped(r, n, (size_t)count);
}

/* Healthy fleets. -------------------------------------------------------------------------------------------------- */

static uint64_t random_state;

static uint64_t below(uint64_t n) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (random_state >> 33) % n;
}

struct kind {
  struct fleet_profile p;
  const char *role;
};

/* Two halves of a fleet that is being updated: neither of them is odd. */
static const char *const kernels[] = {"6.8.0-45-generic", "6.8.0-48-generic"};

static void make_kinds(struct kind kinds[3]) {
  static const char *const models[] = {"NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA L40S"};
  static const char *const roles[] = {"trainer", "reader", "trainer"};
  size_t first = below(3);
  for (size_t i = 0; i < 3; i++) {
    struct fleet_profile p = fleet_profile_usual();
    p.model = models[(first + i) % 3];
    p.gpus = (int)(uint64_t[]){0, 1, 2, 4, 8}[below(5)];
    p.ports = (int)below(9);
    p.nvlinks = (int64_t)below(19);
    p.width = below(4) ? 16 : 8;
    p.rate = below(2) ? 400 : 200;
    p.cpus = 64 + 64 * (int64_t)i + 32 * (int64_t)below(2);
    p.mem_mib = 262144 * (1 + (int64_t)below(8));
    p.ecc = (int64_t)below(5);
    p.downs = (int64_t)below(20);
    kinds[i] = (struct kind){p, roles[i]};
  }
}

/* Of one node at one look: what differs among healthy nodes. */
static void say_healthy(struct rig *r, struct node *n, const struct kind *kind, int nth, int look, bool updates,
                        bool switch_fell) {
  struct fleet_profile p = kind->p;
  p.mem_mib -= (int64_t)below(200);
  p.shm_mib = p.mem_mib / 2;
  p.shm_free_mib = 2048 + (int64_t)below((uint64_t)p.shm_mib - 2048);
  p.tmp_free_mib = 20000 + (int64_t)below(2000000);
  p.foreign_mib = (int64_t)below(600);
  if (updates) p.kernel = kernels[nth % 2];
  p.downs += switch_fell && look >= 2 ? 1 : 0;
  fleet_fill(&room, &p);
  if (!below(20)) room.n -= room.n / 4; /* its helper was too slow for the rest */
  say_room(r, n, below(20) ? "" : "NVML did not answer within 1 s", (int64_t)below(6000) - 3000);
}

UNIT_TEST(test_nothing_is_invented_in_a_thousand_healthy_fleets) {
  static struct rig r;
  size_t nodes = 0;
  for (uint64_t seed = 1; seed <= 1000; seed++) {
    random_state = seed;
    int count = (int)(below(4) ? 1 + below(16) : 1 + below(FLEET_MAX)), n_kinds = 1 + (int)below(3), is[FLEET_MAX],
        nth[FLEET_MAX];
    int n_of[3] = {0};
    struct kind kinds[3];
    make_kinds(kinds);
    bool updates = below(2), switch_fell = below(2);
    rig_open_for(&r, 1, FLEET_MAX);
    for (int i = 0; i < count; i++) {
      node_init(&r, &fleet[i], i);
      is[i] = below(5) ? 0 : (int)below((uint64_t)n_kinds); /* most are of one kind */
      nth[i] = n_of[is[i]]++;
      fleet[i].role = kinds[is[i]].role;
      node_join(&r, &fleet[i]);
    }
    rig_forget(&r);
    for (int look = 0; look < 4; look++) {
      for (int i = 0; i < count; i++) {
        say_healthy(&r, &fleet[i], &kinds[is[i]], nth[i], look, updates, switch_fell);
        if (!below(8)) rig_run(&r, 1500); /* not all of them at once */
      }
      pass(&r, fleet, count, MINUTE_MS);
    }
    nodes += (size_t)count;
    if (rig_last(&r, fleet[0].conn, MSG_NOTICE)) fail_msg("fleet %d: %s", (int)seed, notice(&r, &fleet[0]));
    rig_close(&r);
  }
  assert_true(nodes > 8000);
}

/* Most nodes have newer GPUs, and one has another task: only like nodes are compared, and the odd one among the few is
 * found. */
RIG_TEST(test_a_mixed_cluster) {
  struct fleet_profile new = fleet_profile_usual(), old = new;
  old.model = "NVIDIA A100-SXM4-40GB";
  old.driver = "535.54.03";
  old.fabric = "";
  old.nvlinks = 12;
  rig_open_for(r, 16, 16);
  nodes_init(r, n, 16);
  n[15].role = "reader";
  nodes_join(r, n, 16);
  for (int odd = 0; odd < 2; odd++) {
    for (int i = 0; i < 16; i++) {
      struct fleet_profile p = i < 4 ? old : new;
      if (i == 15) p.cpus = 8, p.ports = 1, p.mem_mib = 65536;
      if (odd && i == 2) p.nvlinks = 11;
      say(r, &n[i], &p, NULL);
    }
    pass(r, n, 16, LOOK_MS);
    if (!odd) assert_string_equal(notice(r, n), "");
  }
  assert_int_equal(rig_count(r, n[0].conn, MSG_NOTICE), 1);
  assert_notice(r, n, "node n2: number of NVLinks of gpu");
  assert_notice(r, n, " is 11; 12 on 3 of 3 like nodes");
}

/* Each fault, in fleets of some sizes: named once, on all nodes, with its host, its fact and its class. */
UNIT_TEST(test_each_fault_is_found_once) {
  static struct rig r;
  for (const struct fleet_fault *fault = fleet_faults; fault->name; fault++)
    for (int count = 4; count <= 16; count += 6) {
      struct fleet_profile p = fleet_profile_usual();
      int victim = count / 3;
      open_fleet(&r, fleet, count, count, count); /* it cannot go on without anybody */
      all_say(&r, fleet, count, &p, -1, NULL);
      pass(&r, fleet, count, LOOK_MS);
      assert_string_equal(notice(&r, &fleet[0]), "");
      all_say(&r, fleet, count, &p, victim, fault);
      pass(&r, fleet, count, 2 * MINUTE_MS);
      char host[32], label[64];
      snprintf(host, sizeof host, "node n%d: ", victim);
      snprintf(label, sizeof label, "%s%s%s ", fact_kinds[fact_find(fault->name)].label, fault->at[0] ? " of " : "",
               fault->at);
      for (int i = 0; i < count; i++) {
        if (rig_count(&r, fleet[i].conn, MSG_NOTICE) != 1)
          fail_msg("%s at %s: %zu lines", fault->name, fault->at, rig_count(&r, fleet[i].conn, MSG_NOTICE));
        assert_notice(&r, &fleet[i], host);
        assert_notice(&r, &fleet[i], label);
      }
      assert_int_equal(rig_control(&r, "nodes", "job", true), 0);
      struct err e = ERR_INIT;
      json_t *v = json_parse_object(buf_text(&r.said), r.said.len, &e);
      size_t i, n_odd = 0;
      json_t *node;
      json_array_foreach(json_object_get(v, "nodes"), i, node) {
        const json_t *odd = json_object_get(node, "odd"), *one = json_array_get(odd, 0);
        n_odd += json_array_size(odd);
        if (!one) continue;
        assert_int_equal(i, victim);
        assert_string_equal(json_string_value(json_object_get(one, "fact")), fault->name);
        assert_string_equal(json_string_value(json_object_get(one, "at")), fault->at);
        assert_string_equal(json_string_value(json_object_get(one, "class")), fault->class);
      }
      assert_int_equal(n_odd, 1);
      json_decref(v);
      rig_close(&r);
    }
}

static const struct fleet_fault *fault_of(const char *name) {
  const struct fleet_fault *f = fleet_faults;
  while (f->name && strcmp(f->name, name) != 0) f++;
  assert_non_null(f->name);
  return f;
}

RIG_TEST(test_too_few_to_compare) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 3, 3, 3);
  all_say(r, n, 3, &p, 1, fault_of("kernel"));
  pass(r, n, 3, LOOK_MS);
  assert_string_equal(notice(r, n), "");
  all_say(r, n, 3, &p, 1, fault_of("pcie_width")); /* but its GPUs are enough */
  pass(r, n, 3, LOOK_MS);
  assert_string_equal(notice(r, n),
                      "node n1: PCIe width of gpu6 is x8; x16 on 7 of 7 other GPUs of this node (suspect)");
  p.gpus = 3;
  rig_forget(r);
  fleet_fill(&room, &p);
  fleet_fact_in(&room, "nvlinks", "gpu1")->value = 4;
  say_room(r, &n[2], "", 0);
  pass(r, n, 3, LOOK_MS);
  assert_string_equal(notice(r, n), "");
}

/* A workstation with a small GPU for its screen: it is of another model. */
RIG_TEST(test_models_within_a_node) {
  struct fleet_profile p = fleet_profile_usual();
  p.gpus = 5;
  open_fleet(r, n, 1, 1, 1);
  fleet_fill(&room, &p);
  fleet_fact_in(&room, "gpu_model", "gpu3")->text = "NVIDIA DGX Display";
  fleet_fact_in(&room, "pcie_width", "gpu3")->value = 1;
  fleet_fact_in(&room, "nvlinks", "gpu3")->value = 0;
  say_room(r, n, "", 0);
  pass(r, n, 1, LOOK_MS);
  assert_string_equal(notice(r, n), "");
}

RIG_TEST(test_ports_that_are_down_everywhere_else) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 4, 4, 4);
  for (int i = 0; i < 4; i++) {
    fleet_fill(&room, &p);
    if (i != 2) fleet_fact_in(&room, "port_state", "mlx5_7/1")->text = "DOWN";
    say_room(r, &n[i], "", 0);
  }
  pass(r, n, 4, LOOK_MS);
  assert_string_equal(notice(r, n), "");
}

/* The state of one port of each node; the notice about it. */
static void say_states(struct rig *r, struct node *n, int count, const char *odd, const char *usual, const char *want) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, count, count, count);
  for (int i = 0; i < count; i++) {
    fleet_fill(&room, &p);
    fleet_fact_in(&room, "port_state", "mlx5_7/1")->text = i ? usual : odd;
    say_room(r, &n[i], "", 0);
  }
  pass(r, n, count, LOOK_MS);
  assert_string_equal(notice(r, n), want);
}

RIG_TEST(test_a_port_that_is_never_up) {
  say_states(r, n, 4, "INIT", "DOWN", "node n0: state of mlx5_7/1 is INIT; DOWN on 3 of 3 like nodes");
}

RIG_TEST(test_a_port_that_is_up_elsewhere) {
  say_states(r, n, 4, "DOWN", "ACTIVE", "node n0: state of mlx5_7/1 is DOWN; ACTIVE on 3 of 3 like nodes (suspect)");
}

RIG_TEST(test_a_port_that_was_up) {
  say_states(r, n, 4, "DOWN, was ACTIVE", "DOWN",
             "node n0: state of mlx5_7/1 is DOWN, was ACTIVE; DOWN on 3 of 3 like nodes (suspect)");
}

RIG_TEST(test_a_port_that_was_up_and_few_nodes) {
  say_states(r, n, 2, "DOWN, was ACTIVE", "ACTIVE", "node n0: state of mlx5_7/1 is DOWN, was ACTIVE (suspect)");
}

RIG_TEST(test_a_switch_that_is_down) {
  say_states(r, n, 4, "DOWN, was ACTIVE", "DOWN, was ACTIVE", "");
}

RIG_TEST(test_places_are_one_line) {
  struct fleet_profile p = fleet_profile_usual(), slow = p;
  slow.rate = 100;
  open_fleet(r, n, 4, 4, 4);
  all_say(r, n, 3, &p, -1, NULL);
  say(r, &n[3], &slow, NULL);
  pass(r, n, 4, LOOK_MS);
  assert_int_equal(rig_count(r, n[0].conn, MSG_NOTICE), 1);
  assert_notice(r, n, "node n3: rate of mlx5_");
  assert_notice(r, n, " is 100 Gb/s; 400 Gb/s on 3 of 3 like nodes; the same at mlx5_");
}

/* A delayed message makes a clock look slow, once. */
RIG_TEST(test_clock_skew) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 4, 4, 4);
  for (int look = 0; look < 3; look++) {
    for (int i = 0; i < 4; i++) {
      fleet_fill(&room, &p);
      say_room(r, &n[i], "", i == 1 ? 90000 : i == 2 && look == 1 ? -60000 : 0);
    }
    pass(r, n, 4, LOOK_MS);
    if (!look) assert_string_equal(notice(r, n), "");
  }
  assert_int_equal(rig_count(r, n[0].conn, MSG_NOTICE), 1);
  assert_notice(r, n, "node n1: clock skew is +90.0 s; +0.0 s on 3 of 3 like nodes");
}

/* When. ------------------------------------------------------------------------------------------------------------ */

RIG_TEST(test_flapping_is_named_at_a_doubling_interval) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 4, 4, 4);
  for (int minute = 0; minute < 120; minute++) {
    all_say(r, n, 4, &p, minute % 2 ? -1 : 2, fault_of("tmp_free_mib"));
    pass(r, n, 4, MINUTE_MS);
  }
  /* At 0, 10, 30, 70 minutes. */
  assert_int_equal(rig_count(r, n[0].conn, MSG_NOTICE), 4);
}

RIG_TEST(test_a_certain_fault_makes_a_spare) {
  struct fleet_profile p = fleet_profile_usual();
  rig_open_for(r, 3, 4);
  nodes_init(r, n, 4);
  for (int i = 0; i < 4; i++) n[i].wants_events = true;
  r->settings.last_call_ms = 1000;
  nodes_join(r, n, 4);
  nodes_started(r, n, 4);
  rig_forget(r);
  all_say(r, n, 4, &p, 1, fault_of("recovery_action"));
  rig_run(r, LOOK_MS);
  assert_string_equal(notice(r, &n[3]), "node n1: recovery action of gpu5 is node reboot: it becomes a spare");
  const struct msg *prepare = rig_last(r, n[0].conn, MSG_PREPARE);
  assert_non_null(prepare);
  assert_int_equal(prepare->prepare.verdict.cause, CAUSE_NODE_DRAINED);
  assert_string_equal(prepare->prepare.verdict.host, "n1");
  stop_all(r, n, 4);
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 3);
  assert_int_equal(n[1].round, 1);
  for (int i = 0; i < 4; i++)
    if (i != 1) node_started(r, &n[i]);
  rig_control(r, "status", "", false);
  assert_said(r, "by health (recovery action of gpu5 is node reboot), in job job");
  assert_said(r, "1 finding about its nodes: rdzvctl nodes job");
  /* It stays one while the fact is there, */
  rig_forget(r);
  all_say(r, n, 4, &p, 1, fault_of("recovery_action"));
  pass(r, n, 4, LOOK_MS);
  assert_string_equal(notice(r, n), "");
  /* while its driver hangs, */
  struct fleet_profile hangs = p;
  hangs.gpus = 0;
  fleet_fill(&room, &hangs);
  fleet_fact_in(&room, "gpus", "")->name = "a_fact_of_tomorrow";
  say_room(r, &n[1], "the GPU driver gave no answer within 20 s", 0);
  pass(r, n, 4, MINUTE_MS);
  assert_string_equal(notice(r, n), "");
  rig_control(r, "status", "", false);
  assert_said(r, "drained: n1 ");
  /* and no longer. */
  all_say(r, n, 4, &p, -1, NULL);
  pass(r, n, 4, LOOK_MS);
  assert_string_equal(notice(r, n), "node n1 is good again, and may join rounds");
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "drained: "));
}

/* A running job of agents on these hosts. */
static void open_on(struct rig *r, struct node *n, const char *const *hosts, int count) {
  rig_open_for(r, count, count);
  nodes_init(r, n, (size_t)count);
  for (int i = 0; i < count; i++) snprintf(n[i].host, sizeof n[i].host, "%s", hosts[i]);
  nodes_join(r, n, (size_t)count);
  nodes_started(r, n, (size_t)count);
  rig_forget(r);
}

RIG_TEST(test_agents_of_a_host_have_one_vote) {
  static const char *const hosts[] = {"a", "a", "a", "b"};
  struct fleet_profile p = fleet_profile_usual();
  open_on(r, n, hosts, 4);
  all_say(r, n, 4, &p, 3, fault_of("kernel"));
  pass(r, n, 4, LOOK_MS);
  assert_string_equal(notice(r, n), ""); /* one against one */
}

RIG_TEST(test_agents_of_an_odd_host_name_it_once) {
  static const char *const hosts[] = {"a", "b", "b", "b", "c", "d"};
  struct fleet_profile p = fleet_profile_usual(), old = p;
  old.kernel = "5.15.0-100-generic";
  old.mem_mib = 1000000;
  open_on(r, n, hosts, 6);
  for (int i = 0; i < 6; i++) say(r, &n[i], i && i < 4 ? &old : &p, NULL);
  pass(r, n, 6, LOOK_MS);
  assert_int_equal(rig_count(r, n[0].conn, MSG_NOTICE), 2);
  rig_control(r, "nodes", "job", false);
  assert_said(r, "! node b: kernel is 5.15.0-100-generic; 6.8.0-45-generic on 3 of 3 like nodes (hint, for ");
  assert_said(r, "! node b: memory is 976.6 GiB; 2015 GiB on 3 of 3 like nodes (hint, for ");
}

/* One agent of the host says something else than the first one, which has its vote. */
RIG_TEST(test_agents_of_a_host_that_differ) {
  static const char *const hosts[] = {"a", "b", "b", "c", "d"};
  struct fleet_profile p = fleet_profile_usual();
  open_on(r, n, hosts, 5);
  all_say(r, n, 5, &p, 2, fault_of("rdzv"));
  pass(r, n, 5, LOOK_MS);
  assert_string_equal(notice(r, n), "node b: version of rdzv is 0.9; 1.0 on 3 of 3 like nodes");
}

RIG_TEST(test_a_gpu_that_the_job_does_not_use) {
  static const char *const hosts[] = {"a", "a", "b"};
  struct fleet_profile p = fleet_profile_usual();
  rig_open_for(r, 1, 3);
  r->settings.last_call_ms = 1000;
  nodes_init(r, n, 3);
  for (int i = 0; i < 3; i++) snprintf(n[i].host, sizeof n[i].host, "%s", hosts[i]);
  nodes_join(r, n, 3);
  nodes_started(r, n, 3);
  rig_forget(r);
  for (int used = 0; used < 2; used++) { /* by the second agent, and so by the job */
    for (int i = 0; i < 3; i++) {
      fleet_fill(&room, &p);
      if (i < 2) fleet_plant(&room, fault_of("gpu_error"));
      fleet_fact_in(&room, "gpu_used", "gpu3")->value = i == 1 && used;
      say_room(r, &n[i], "", 0);
    }
    pass(r, n, 3, LOOK_MS);
    if (used) continue;
    assert_string_equal(notice(r, n), "node a: error of gpu3 is GPU is lost, and the job does not use it");
    rig_control(r, "nodes", "job", false);
    assert_said(r, "the job does not use it (hint, for ");
    assert_null(rig_last(r, n[0].conn, MSG_PREPARE));
  }
  rig_control(r, "nodes", "job", false);
  assert_said(r, "! node a: error of gpu3 is GPU is lost (certain, for ");
  assert_non_null(rig_last(r, n[0].conn, MSG_PREPARE));
}

/* A slot of 8 lanes is as it was built; lanes that do not work are another matter. */
RIG_TEST(test_a_narrow_slot) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 4, 4, 4);
  for (int i = 0; i < 4; i++) {
    fleet_fill(&room, &p);
    if (i == 1)
      fleet_fact_in(&room, "pcie_width", "gpu2")->value = fleet_fact_in(&room, "pcie_width_max", "gpu2")->value = 8;
    say_room(r, &n[i], "", 0);
  }
  pass(r, n, 4, LOOK_MS);
  assert_string_equal(notice(r, n),
                      "node n1: PCIe width of gpu2 is x8, all that it and its slot have; x16 on 3 of 3 like nodes");
  pass(r, n, 4, 20 * MINUTE_MS);
  assert_null(rig_last(r, n[0].conn, MSG_PREPARE));
}

/* The second time it must be good for ten minutes. */
RIG_TEST(test_good_again_for_how_long) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 3, 3, 4); /* n3 is a spare */
  for (int i = 0; i < 2; i++) {
    all_say(r, n, 4, &p, 3, fault_of("gpu_error"));
    pass(r, n, 4, LOOK_MS);
    rig_control(r, "status", "", false);
    assert_said(r, "drained: n3");
    all_say(r, n, 4, &p, -1, NULL);
    pass(r, n, 4, LOOK_MS);
    rig_control(r, "status", "", false);
    if (!i) assert_null(rig_said(r, "drained: n3"));
  }
  assert_said(r, "drained: n3");
  pass(r, n, 4, 11 * MINUTE_MS);
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "drained: n3"));
}

RIG_TEST(test_it_stays_where_it_is_needed) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 4, 4, 4);
  all_say(r, n, 4, &p, 1, fault_of("xid"));
  rig_run(r, LOOK_MS);
  assert_string_equal(notice(r, n),
                      "node n1: last XID of gpu1 is 79 (GPU has fallen off the bus): the job cannot go on without it");
  assert_null(rig_last(r, n[0].conn, MSG_PREPARE));
  /* Until a spare comes. */
  node_init(r, &n[4], 4);
  node_join(r, &n[4]);
  say(r, &n[4], &p, NULL);
  pass(r, n, 5, LOOK_MS);
  assert_non_null(rig_last(r, n[0].conn, MSG_PREPARE));
  stop_all(r, n, 4);
  assert_int_equal(n[4].round, 2);
  assert_int_equal(n[1].round, 1);
}

RIG_TEST(test_an_operator_is_not_overruled) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 3, 3, 4);
  all_say(r, n, 4, &p, 3, fault_of("gpu_error"));
  pass(r, n, 4, LOOK_MS);
  assert_int_equal(rig_ask(r, &(struct control){.verb = "undrain", .host = "n3", .rank = -1}, 0), 0);
  all_say(r, n, 4, &p, 3, fault_of("gpu_error"));
  pass(r, n, 4, LOOK_MS);
  rig_control(r, "status", "", false);
  assert_null(rig_said(r, "drained: n3"));
}

static bool is_drained(struct rig *r, const char *host) {
  char line[64];
  snprintf(line, sizeof line, "drained: %s ", host);
  rig_control(r, "status", "", false);
  return rig_said(r, line) != NULL;
}

RIG_TEST(test_a_suspect_is_bad_the_second_time) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 3, 3, 4);
  all_say(r, n, 4, &p, 3, fault_of("nvlinks")); /* nobody says anything else */
  pass(r, n, 4, 10 * MINUTE_MS);
  assert_false(is_drained(r, "n3"));
  pass(r, n, 4, MINUTE_MS);
  assert_true(is_drained(r, "n3"));
}

RIG_TEST(test_two_suspects_of_different_parts) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 3, 3, 4);
  for (int i = 0; i < 4; i++) {
    fleet_fill(&room, &p);
    if (i == 3) fleet_plant(&room, fault_of("port_state")), fleet_plant(&room, fault_of("port_rate"));
    say_room(r, &n[i], "", 0);
  }
  pass(r, n, 4, LOOK_MS);
  assert_false(is_drained(r, "n3")); /* both are about ports */
  for (int i = 0; i < 4; i++) {
    fleet_fill(&room, &p);
    if (i == 3) fleet_plant(&room, fault_of("port_state")), fleet_plant(&room, fault_of("pcie_width"));
    say_room(r, &n[i], "", 0);
  }
  pass(r, n, 4, LOOK_MS);
  assert_true(is_drained(r, "n3"));
}

RIG_TEST(test_a_counter_that_rises_twice) {
  struct fleet_profile p = fleet_profile_usual(), risen = p;
  open_fleet(r, n, 3, 3, 4);
  all_say(r, n, 4, &p, -1, NULL);
  for (int i = 0; i < 2; i++) {
    risen.downs++;
    say(r, &n[3], &risen, NULL);
    pass(r, n, 4, MINUTE_MS);
    assert_false(is_drained(r, "n3"));
    pass(r, n, 4, 19 * MINUTE_MS);
    assert_int_equal(is_drained(r, "n3"), i == 1);
  }
}

/* They rise everywhere, and each node looks once a minute. */
RIG_TEST(test_a_switch_is_restarted) {
  struct fleet_profile p = fleet_profile_usual(), risen = p;
  open_fleet(r, n, 8, 8, 8);
  all_say(r, n, 8, &p, -1, NULL);
  pass(r, n, 8, MINUTE_MS);
  risen.downs++;
  for (int i = 0; i < 8; i++) {
    say(r, &n[i], &risen, NULL);
    pass(r, n, 8, 7 * 1000);
  }
  assert_string_equal(notice(r, n), "");
}

/* Around it. ------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_a_daemon_that_comes_back_names_nothing_again) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 4, 4, 4);
  all_say(r, n, 4, &p, 2, fault_of("driver"));
  pass(r, n, 4, LOOK_MS);
  assert_int_equal(rig_count(r, n[0].conn, MSG_NOTICE), 1);
  rig_restart(r, false);
  nodes_back(r, n, 4, PHASE_RUNNING);
  rig_forget(r);
  for (int minute = 0; minute < 5; minute++) {
    all_say(r, n, 4, &p, 2, fault_of("driver"));
    pass(r, n, 4, MINUTE_MS);
  }
  assert_string_equal(notice(r, n), "");
  rig_control(r, "nodes", "job", false);
  assert_said(r, "! node n2: GPU driver is 535.54.03; 550.90.07 on 3 of 3 like nodes (hint, for ");
  all_say(r, n, 4, &p, 1, fault_of("kernel")); /* but what is new */
  pass(r, n, 4, LOOK_MS);
  assert_notice(r, n, "node n1: kernel is 5.15.0-100-generic");
}

RIG_TEST(test_a_node_without_facts) {
  struct fleet_profile p = fleet_profile_usual();
  rig_open_for(r, 4, 4);
  nodes_init(r, n, 4);
  nodes_join(r, n, 4);
  all_say(r, n, 3, &p, 1, fault_of("kernel"));
  pass(r, n, 4, LOOK_MS);
  assert_string_equal(notice(r, n), "");
  rig_control(r, "nodes", "job", false);
  assert_said(r, "1 node has sent no facts: --health off, or not yet");
}

RIG_TEST(test_lines_of_one_look_are_bounded) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 16, 16, 16);
  for (int i = 0; i < 16; i++) {
    fleet_fill(&room, &p);
    for (int k = 0; i == 5 && k < 4; k++) {
      static const char *const names[] = {"kernel", "driver", "cuda", "rdzv"};
      fleet_plant(&room, fault_of(names[k]));
    }
    if (i == 6)
      for (const struct fleet_fault *f = fleet_faults; f->name; f++)
        if (!strcmp(f->class, "hint")) fleet_plant(&room, f);
    say_room(r, &n[i], "", 0);
  }
  pass(r, n, 16, LOOK_MS);
  assert_int_equal(rig_count(r, n[0].conn, MSG_NOTICE), 9);
  assert_notice(r, n, " more findings about nodes: rdzvctl nodes job");
}

RIG_TEST(test_table) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 4, 4, 4);
  for (int i = 0; i < 4; i++) {
    fleet_fill(&room, &p);
    if (i == 2) fleet_plant(&room, fault_of("pcie_width"));
    say_room(r, &n[i], i == 3 ? "NVML did not answer within 1 s" : "", 0);
  }
  pass(r, n, 4, LOOK_MS);
  assert_int_equal(rig_control(r, "nodes", "job", false), 0);
  assert_said(r, "NODE  HOST  GPUS  MODEL                  DRIVER     CUDA  PCIE     NVLINKS  FABRIC  ECC  FOREIGN");
  assert_said(r, "   1  n1    8     NVIDIA H100 80GB HBM3  550.90.07  12.4  x16      18       ready   0    0 MiB");
  assert_said(r, "   2  n2    8     NVIDIA H100 80GB HBM3  550.90.07  12.4  !x16/x8  18");
  assert_said(r, "! node n2: PCIe width of gpu6 is x8; x16 on 3 of 3 like nodes (suspect, for 1 s)\n");
  assert_said(r, "node n3: not all facts are known, and none counts as bad for that: NVML did not answer within 1 s\n");
  assert_int_equal(rig_control(r, "nodes", "other", false), 1);
  assert_said(r, "no job has the id other");
  assert_int_equal(rig_ask(r, &(struct control){.verb = "nodes", .job = "job", .rank = -1, .owner = -1}, 2000), 1);
  rig_control(r, "status", "job", true);
  assert_said(
      r, "\"odd\":[{\"host\":\"n2\",\"fact\":\"pcie_width\",\"at\":\"gpu6\",\"class\":\"suspect\",\"value\":\"x8\"");
  struct buf text = BUF_INIT;
  const struct process_facts process = {.cpu_s = -1};
  metrics_put(r->core, 0, &process, r->now_ms, &text);
  assert_non_null(
      strstr(buf_text(&text),
             "rdzv_node_odd_facts{job=\"job\",uid=\"1000\",fact=\"pcie_width\",class=\"suspect\",host=\"n2\"} 1\n"));
  buf_finish(&text);
}

RIG_TEST(test_event) {
  struct fleet_profile p = fleet_profile_usual();
  rig_open_for(r, 4, 4);
  nodes_init(r, n, 4);
  n[0].wants_events = true;
  nodes_join(r, n, 4);
  all_say(r, n, 4, &p, 2, fault_of("pcie_width"));
  pass(r, n, 4, LOOK_MS);
  const struct msg *m = NULL;
  for (size_t i = 0; i < r->n_sent; i++)
    if (r->sent[i].msg.type == MSG_EVENT && !strcmp(r->sent[i].msg.event_msg.name, "rdzv.node.odd"))
      m = &r->sent[i].msg;
  assert_non_null(m);
  if (!m) return;
  struct err e = ERR_INIT;
  json_t *v = json_parse_object(m->raw, m->raw_len, &e), *meta = json_object_get(v, "metadata");
  static const char *const want[][2] = {{"hostname", "n2"},   {"fact", "pcie_width"}, {"at", "gpu6"},
                                        {"class", "suspect"}, {"value", "x8"},        {"usual", "x16"}};
  for (size_t i = 0; i < sizeof want / sizeof *want; i++)
    assert_string_equal(json_string_value(json_object_get(meta, want[i][0])), want[i][1]);
  json_decref(v);
}

/* Nodes come and go with what they have said. */
RIG_TEST(test_nodes_that_go) {
  struct fleet_profile p = fleet_profile_usual();
  open_fleet(r, n, 2, 5, 5);
  all_say(r, n, 5, &p, 4, fault_of("kernel"));
  pass(r, n, 5, LOOK_MS);
  assert_notice(r, n, "node n4: kernel");
  node_bye(r, &n[4]);
  all_say(r, n, 4, &p, -1, NULL);
  pass(r, n, 4, LOOK_MS);
  node_bye(r, &n[3]);
  all_say(r, n, 3, &p, 2, fault_of("cuda"));
  pass(r, n, 3, LOOK_MS);
  assert_int_equal(rig_count(r, n[0].conn, MSG_NOTICE), 1); /* three are too few */
}
