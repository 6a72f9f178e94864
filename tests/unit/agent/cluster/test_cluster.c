/* SPDX-License-Identifier: Apache-2.0 */
/* agent/cluster: facts from Slurm's variables, and conclusions from facts. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/cluster/internal.h"
#include "common/mem.h"
#include "tests/rig/cluster.h"
#include "tests/rig/unit.h"

/* `salloc -N4`, `srun -N3 --ntasks-per-node=2` in it; -n 5 leaves one out. */
#define STEP                                                                                                           \
  "SLURM_JOB_ID=47", "SLURM_JOBID=47", "SLURM_STEP_ID=2", "SLURM_STEPID=2", "SLURM_JOB_NODELIST=gpu[1-4]",             \
      "SLURM_NODELIST=gpu[1-3]", "SLURM_STEP_NODELIST=gpu[1-3]", "SLURM_STEP_NUM_NODES=3", "SLURM_NNODES=3",           \
      "SLURM_STEP_NUM_TASKS=5", "SLURM_NTASKS=5", "SLURM_STEP_TASKS_PER_NODE=2(x2),1", "SLURM_TASKS_PER_NODE=2(x2),1", \
      "SLURM_LAUNCH_NODE_IPADDR=10.0.0.9"

/* `srun -N3`. */
#define EACH                                                                                                           \
  "SLURM_JOB_ID=47", "SLURM_STEP_ID=2", "SLURM_STEP_NODELIST=gpu[1-3]", "SLURM_STEP_NUM_NODES=3",                      \
      "SLURM_STEP_NUM_TASKS=3", "SLURM_STEP_TASKS_PER_NODE=1(x3)"

static const struct site_case slurm[] = {
    {"nothing", {.env = {"HOME=/"}}, {"scheduler=-", "start=-", "job=-", "port=-", "agents=-", "hosts=-"}},
    {"a step, its third task",
     {.env = {STEP, "SLURM_PROCID=2", "SLURM_NODEID=1", "SLURM_LOCALID=0", "SLURM_JOB_END_TIME=1790000000",
              "SLURM_RESTART_COUNT=3"}},
     {"scheduler=Slurm", "launcher=srun", "start=1", "job=slurm-47.2-r3",
      "job.source=SLURM_JOB_ID=47, SLURM_STEP_ID=2, SLURM_RESTART_COUNT=3", "port=17843", "agents=5",
      "agents.source=SLURM_STEP_NUM_TASKS=5", "index=2", "local_agents=2", "local_index=0", "nodes=3", "hosts=gpu[1-3]",
      "slots=gpu1:2,gpu2:2,gpu3:1", "first_host=gpu1", "restarts=3", "end_time=1790000000", "gpus=-"}},
    {"its last task",
     {.env = {STEP, "SLURM_PROCID=4", "SLURM_NODEID=2", "SLURM_LOCALID=0"}},
     {"index=4", "local_agents=1", "restarts=-", "end_time=-",
      "local_agents.source=SLURM_STEP_TASKS_PER_NODE=2(x2),1, SLURM_NODEID=2"}},
    {"the batch script",
     {.env = {"SLURM_JOB_ID=47", "SLURM_PROCID=0", "SLURM_NODEID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=4",
              "SLURM_JOB_NUM_NODES=2", "SLURM_JOB_NODELIST=gpu[1-2]", "SLURM_TASKS_PER_NODE=2(x2)",
              "SLURM_GPUS_ON_NODE=4"}},
     {"start=0", "job=slurm-47", "port=17841", "agents=-", "index=-", "launcher=-", "nodes=2", "hosts=gpu[1-2]",
      "slots=gpu1:2,gpu2:2", "first_host=gpu1", "gpus=4"}},
    {"the batch script, by Slurm 26.05",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=-5", "SLURM_STEPID=-5", "SLURM_PROCID=0", "SLURM_JOB_NUM_NODES=2",
              "SLURM_JOB_NODELIST=gpu[1-2]", "SLURM_TASKS_PER_NODE=1(x2)"}},
     {"start=0", "job=slurm-47", "index=-", "launcher=-", "nodes=2"}},
    {"a task by topology: the list's third node has the second",
     {.env = {EACH, "SLURM_PROCID=1", "SLURM_NODEID=2", "SLURM_LOCALID=0"}},
     {"index=1", "local_agents=1", "first_host=gpu1"}},
    {"the shell of salloc",
     {.env = {"SLURM_JOB_ID=47", "SLURM_NNODES=2", "SLURM_NODELIST=a,b"}},
     {"start=0", "nodes=2", "hosts=a,b"}},
    {"a shell that is a step of its own kind",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=4294967290", "SLURM_PROCID=0"}},
     {"start=0", "job=slurm-47", "index=-"}},
    {"an element of an array",
     {.env = {"SLURM_JOB_ID=50", "SLURM_ARRAY_JOB_ID=47", "SLURM_ARRAY_TASK_ID=3", "SLURM_STEP_ID=0"}},
     {"job=slurm-47_3.0", "port=17934"}},
    {"a job without an end", {.env = {"SLURM_JOB_ID=47", "SLURM_JOB_END_TIME=4294967295"}}, {"end_time=-"}},
    {"a job without a limit, since Slurm 23.02",
     {.env = {"SLURM_JOB_ID=47", "SLURM_JOB_START_TIME=1795994446", "SLURM_JOB_END_TIME=1827530446"}},
     {"end_time=-"}},
    {"a job with one",
     {.env = {"SLURM_JOB_ID=47", "SLURM_JOB_START_TIME=1795994446", "SLURM_JOB_END_TIME=1827530386"}},
     {"end_time=1827530386"}},
    {"the parts of a heterogeneous job as one step",
     {.env = {"SLURM_JOB_ID=6", "SLURM_STEP_ID=0", "SLURM_HET_SIZE=2", "SLURM_NNODES=3", "SLURM_STEP_NUM_TASKS=3",
              "SLURM_STEP_NUM_NODES=3", "SLURM_STEP_NODELIST=node[1-3]", "SLURM_JOB_NODELIST=node[1-3]",
              "SLURM_JOB_NODELIST_HET_GROUP_0=node1", "SLURM_JOB_NODELIST_HET_GROUP_1=node[2-3]",
              "SLURM_STEP_TASKS_PER_NODE=1(x3)", "SLURM_NODEID=2", "SLURM_PROCID=2", "SLURM_LOCALID=0",
              "SLURM_STEP_GPUS=0", "SLURM_GPUS_ON_NODE=1"}},
     {"agents=3", "hosts=node[1-3]", "local_agents=1", "index=2", "job=slurm-6.0", "gpus=1"}},
    {"its shell",
     {.env = {"SLURM_JOB_ID=6", "SLURM_HET_SIZE=2", "SLURM_NTASKS=3", "SLURM_JOB_NODELIST_HET_GROUP_0=node3",
              "SLURM_JOB_NODELIST_HET_GROUP_1=node[1-2]"}},
     {"start=0", "nodes=3", "hosts=node[1-3]", "first_host=node3"}},
    {"a step within an allocation",
     {.env = {"SLURM_JOB_ID=5", "SLURM_STEP_ID=2", "SLURM_NNODES=2", "SLURM_NODELIST=node[1-3]",
              "SLURM_JOB_NODELIST=node[1-3]", "SLURM_JOB_NUM_NODES=3", "SLURM_STEP_NODELIST=node[2-3]",
              "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_TASKS_PER_NODE=1(x2)"}},
     {"start=1", "agents=2", "first_host=node2", "hosts=node[2-3]", "nodes=2"}},
    /* sbatch, and salloc, typed in the shell of `srun --pty`. */
    {"a batch script with the variables of somebody else's step",
     {.env = {"SLURM_JOB_ID=11", "SLURM_JOB_NODELIST=node[1-2]", "SLURM_JOB_NUM_NODES=2", "SLURM_NNODES=2",
              "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=node1", "SLURM_STEP_NUM_NODES=1", "SLURM_STEP_NUM_TASKS=1",
              "SLURM_STEP_TASKS_PER_NODE=1", "SLURM_TASKS_PER_NODE=1(x2)", "SLURM_NTASKS=1", "SLURM_PROCID=0"}},
     {"start=0", "agents=-", "job=slurm-11", "nodes=2", "hosts=node[1-2]", "slots=node1:1,node2:1"}},
    {"the same, of a step of its own size",
     {.env = {"SLURM_JOB_ID=11", "SLURM_JOB_NODELIST=node[3-4]", "SLURM_NNODES=2", "SLURM_STEP_ID=0",
              "SLURM_STEP_NODELIST=node[1-2]", "SLURM_STEP_NUM_NODES=2", "SLURM_STEP_NUM_TASKS=2"}},
     {"start=0", "job=slurm-11", "hosts=node[3-4]"}},
    {"one node's step without lists",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_NODES=4", "SLURM_STEP_NUM_TASKS=4",
              "SLURM_LAUNCH_NODE_IPADDR=10.0.0.9"}},
     {"agents=4", "local_agents=1", "first_host=10.0.0.9", "nodes=-"}},
};

UNIT_TEST(reads_slurm) {
  site_check_all(slurm, sizeof(slurm) / sizeof(*slurm));
}

static const struct site_case gpus[] = {
    {"of the step", {.env = {STEP, "SLURM_NODEID=2", "SLURM_GPUS_ON_NODE=8", "SLURM_STEP_GPUS=0,3"}}, {"gpus=2"}},
    {"of the node", {.env = {EACH, "SLURM_NODEID=2", "SLURM_GPUS_ON_NODE=8"}}, {"gpus=8"}},
    {"of several tasks", {.env = {STEP, "SLURM_NODEID=1", "SLURM_GPUS_ON_NODE=8"}}, {"gpus=-"}},
    {"of a task that is alone, where others are not",
     {.env = {STEP, "SLURM_NODEID=2", "SLURM_GPUS_ON_NODE=8"}},
     {"gpus=-"}},
    {"by task", {.env = {STEP, "SLURM_NODEID=1", "SLURM_GPUS_ON_NODE=8", "SLURM_GPUS_PER_TASK=a100:2"}}, {"gpus=2"}},
    {"nonsense",
     {.env = {STEP, "SLURM_NODEID=1", "SLURM_GPUS_PER_TASK=many"}},
     {"gpus=-", "warnings=SLURM_GPUS_PER_TASK=many has no number of GPUs: it is ignored"}},
};

UNIT_TEST(reads_slurms_gpus) {
  site_check_all(gpus, sizeof(gpus) / sizeof(*gpus));
}

static const struct site_case odd[] = {
    {"counts that are none",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=0", "SLURM_STEP_NUM_NODES=x"}},
     {"agents=-",
      "warnings=SLURM_STEP_NUM_TASKS=0 is not a number from 1 to 65536: it is ignored\nSLURM_STEP_NUM_NODES=x is not "
      "a number from 1 to 65536: it is ignored\nSLURM_STEP_NUM_NODES=x is not a number from 1 to 65536: it is ignored"}},
    {"a list that is none",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=gpu[1-"}},
     {"agents=2", "hosts=-", "first_host=-",
      "warnings=SLURM_STEP_NODELIST: \"gpu[1-\" is not a list of hosts: a closing bracket is missing: it is ignored"}},
    {"more hosts than agents",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=gpu[1-4]"}},
     {"agents=2", "hosts=-",
      "warnings=SLURM_STEP_NODELIST=gpu[1-4] has more hosts than there are agents (SLURM_STEP_NUM_TASKS=2): it is "
      "ignored"}},
    {"counts that do not fit to hosts",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NODELIST=gpu[1-2]",
              "SLURM_STEP_TASKS_PER_NODE=2"}},
     {"hosts=gpu[1-2]", "slots=gpu1:1,gpu2:1",
      "warnings=SLURM_STEP_TASKS_PER_NODE=2 does not match the number of hosts: it is ignored"}},
    {"a place beyond the end",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_PROCID=2"}},
     {"index=-", "warnings=SLURM_PROCID=2 is not below SLURM_STEP_NUM_TASKS=2: it is ignored"}},
    {"neighbours that do not fit",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=8", "SLURM_STEP_TASKS_PER_NODE=2(x4)",
              "SLURM_NODEID=0", "SLURM_LOCALID=2"}},
     {"local_agents=-", "local_index=2",
      "warnings=SLURM_STEP_TASKS_PER_NODE=2(x4), SLURM_NODEID=0 contradicts SLURM_LOCALID=2: it is ignored"}},
    {"an id that is no number",
     {.env = {"SLURM_JOB_ID=x\ny"}},
     {"job=-", "scheduler=Slurm", "port=-",
      "warnings=SLURM_JOB_ID=x\\ny is not a number from 1 to 2000000000: it is ignored"}},
    {"a count without end",
     {.env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2",
              "SLURM_STEP_TASKS_PER_NODE=1(x99999999999999999999)"}},
     {"local_agents=-",
      "warnings=SLURM_STEP_TASKS_PER_NODE=1(x99999999999999999999) is not a list of counts, as in 2(x3),1: it is "
      "ignored"}},
};

UNIT_TEST(warns_of_nonsense) {
  site_check_all(odd, sizeof(odd) / sizeof(*odd));
}

UNIT_TEST(lists_are_short_or_left_away) {
  char *list = xcalloc(1, 70000), *variable = xcalloc(1, 70100);
  struct cluster c;
  for (int i = 0; i < 1000; i++)
    sprintf(list + strlen(list), "%snode-%c%c", i ? "," : "", 'a' + i / 26 % 26, 'A' + i % 26 + i / 676 * 32);
  sprintf(variable, "SLURM_JOB_NODELIST=%s", list);
  site_read(&(struct site){.env = {"SLURM_JOB_ID=1", variable}}, &c);
  assert_int_equal(c.n_hosts, 1000);
  assert_string_equal(c.host[999].name, "node-ml");
  assert_int_equal(cluster_number(&c.nodes, 0), 1000);
  site_expect(&c, "hosts=-", "a list that HELLO would not hold");
  cluster_finish(&c);
  site_check(&(struct site){.env = {"SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=node[0001-1000]"}},
             (const char *[]){"hosts=node[0001-1000]", "nodes=1000", "first_host=node0001", NULL}, "a short one");
  free(list);
  free(variable);
}

UNIT_TEST(looks_into_lists) {
  assert_true(cluster_lists("gpu[1-4]", "gpu4"));
  assert_true(cluster_lists("gpu[1-4]", "GPU4.cluster.example"));
  assert_true(cluster_lists("gpu4.a,gpu5.a", "gpu5"));
  assert_false(cluster_lists("gpu[1-4]", "gpu5"));
  assert_false(cluster_lists("gpu[1-4]", "gpu"));
  assert_false(cluster_lists("10.0.0.1", "10.0.0.2"));
  assert_false(cluster_lists("", "gpu5"));
  assert_false(cluster_lists("gpu[", "gpu"));
  assert_int_equal(cluster_count("gpu[1-4],a,a"), 6);
  assert_int_equal(cluster_count("gpu["), 0);
}

UNIT_TEST(builds_lists_of_hosts) {
  struct row_hosts h = {.v = NULL};
  struct err e = ERR_INIT;
  assert_int_equal(row_hosts_add(&h, "b.example", 9, 2, &e), 0);
  assert_int_equal(row_hosts_add(&h, "a.example", 9, 1, &e), 0);
  assert_int_equal(row_hosts_add(&h, "b.example:", 9, 3, &e), 0);
  assert_int_equal(h.n, 2);
  assert_int_equal(h.v[0].slots, 5);
  assert_int_equal(row_hosts_find(&h, "A"), 1);
  assert_int_equal(row_hosts_find(&h, "b.example"), 0);
  assert_int_equal(row_hosts_find(&h, "c"), -1);
  assert_true(row_hosts_add(&h, "a b", 3, 1, &e) < 0);
  assert_string_equal(e.text, "\"a b\" is not a host name");
  assert_true(row_hosts_add(&h, "a.example", 9, CLUSTER_SLOTS_MAX, &e) < 0);
  assert_string_equal(e.text, "a.example has more than 65536 slots");
  assert_true(row_hosts_add(&h, "c", 1, -1, &e) < 0);
  row_hosts_drop(&h);
}

UNIT_TEST(ports_of_neighbours_differ) {
  static bool taken[CLUSTER_PORT_COUNT];
  char variable[40];
  for (int i = 0; i < CLUSTER_PORT_COUNT; i++) {
    struct cluster c;
    snprintf(variable, sizeof(variable), "SLURM_JOB_ID=%d", 1000000 + i);
    site_read(&(struct site){.env = {variable}}, &c);
    assert_in_range(c.port.number, 16384, 32767);
    assert_false(taken[c.port.number - CLUSTER_PORT_FIRST]);
    taken[c.port.number - CLUSTER_PORT_FIRST] = true;
    cluster_finish(&c);
  }
}

UNIT_TEST(tells_whether_it_is_one_host) {
  static const struct {
    const char *env[6];
    bool is;
  } cases[] = {
      {{"HOME=/"}, false},
      {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NUM_NODES=1"}, true},
      {{"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4", "SLURM_STEP_NUM_NODES=2"}, false},
      {{"SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=a"}, true},
      {{"SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=a,b"}, false},
      {{"SLURM_JOB_ID=1", "SLURM_NNODES=1"}, true},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    struct site s = {.host = "a"};
    struct cluster c;
    memcpy(s.env, cases[i].env, sizeof(cases[i].env));
    site_read(&s, &c);
    assert_int_equal(cluster_is_one_host(&c), cases[i].is);
    cluster_finish(&c);
  }
}
