/* SPDX-License-Identifier: Apache-2.0 */
/* agent/options/from_cluster.c: defaults from the cluster's facts, their sources, and refusals. */

#include "tests/rig/unit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/options/options.h"
#include "common/mem.h"
#include "tests/rig/cluster.h"

enum { WORDS = 12 };

/* A command line where something is known. It is written as people type it: "VARIABLE=value rdzv-agent --nproc 2 -- "
"./train". */
struct line {
  struct cluster c;
  struct agent_options o;
  char *argv[2 * WORDS], *env[SITE_VARIABLES + WORDS + 1], *copy;
  struct err e;
  int rc;
};

static void read_line(struct line *l, const struct site *s, const char *text) {
  int argc = 0, n = 0;
  memset(l, 0, sizeof(*l));
  site_read(s, &l->c);
  for (; s->env[n]; n++) memcpy(&l->env[n], &s->env[n], sizeof(l->env[n]));
  l->copy = xstrdup(text);
  for (char *rest = l->copy, *word; (word = strsep(&rest, " "));) {
    if (!argc && strchr(word, '='))
      l->env[n++] = word;
    else
      l->argv[argc++] = word;
  }
  l->rc = agent_options_parse(&l->o, argc, l->argv, l->env, &l->c, &l->e);
}

static void drop_line(struct line *l) {
  cluster_finish(&l->c);
  free(l->copy);
}

/* Whether a line of --explain concerns the cluster: these do, and those that were not just left to themselves. */
static bool concerns(const char *line, size_t len) {
  static const char *const names[] = {"nnodes ", "expect ", "nproc ", "job ", "endpoint ", "order-key "};
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
    if (strncmp(line, names[i], strlen(names[i])) == 0) return true;
  return memmem(line, len, "  # ", 4) != NULL;
}

static void describe(const struct agent_options *o, struct buf *out) {
  struct buf all = BUF_INIT;
  static char word[] = "true", *command[] = {word, NULL};
  static char *launched[] = {NULL, NULL};
  static char endpoint[] = "RDZV_AGENT_ENDPOINT=the first host; port: drawn";
  launched[0] = endpoint;
  const struct options_told told = {.job = o->rdzv_id ? o->rdzv_id : "?",
                                    .workers = o->nproc > 0 ? o->nproc : 7,
                                    .first = o->local_index,
                                    .local_world = o->local_agents * (o->nproc > 0 ? o->nproc : 7),
                                    .seen = "GPUs",
                                    .end_time = o->end_time ? "soon" : NULL,
                                    .launched = launched,
                                    .command = command};
  agent_options_explain(o, &told, &all);
  for (const char *p = buf_text(&all), *end; *p; p = end + 1) {
    end = strchr(p, '\n');
    if (concerns(p, (size_t)(end - p))) buf_append(out, p, (size_t)(end - p) + 1);
  }
  buf_finish(&all);
}

struct told {
  const struct site *site;
  const char *line, *expected;
};

/* Two nodes with four GPUs each, one agent on each. */
static const struct site nodes = {.host = "gpu1",
                                  .env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2",
                                          "SLURM_STEP_NODELIST=gpu[1-2]", "SLURM_STEP_TASKS_PER_NODE=1(x2)",
                                          "SLURM_PROCID=0", "SLURM_NODEID=0", "SLURM_LOCALID=0",
                                          "SLURM_GPUS_ON_NODE=4"}};
/* The same in a container with a name of its own, and without GPUs. */
static const struct site container = {.host = "c0ffee",
                                      .env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2",
                                              "SLURM_STEP_NODELIST=gpu[1-2]", "SLURM_STEP_TASKS_PER_NODE=1(x2)",
                                              "SLURM_PROCID=1", "SLURM_NODEID=1", "SLURM_LOCALID=0"}};
/* One node, an agent for each of its GPUs. */
static const struct site by_gpu = {.host = "gpu1",
                                   .env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=1", "SLURM_STEP_NUM_TASKS=4",
                                           "SLURM_STEP_NODELIST=gpu1", "SLURM_STEP_TASKS_PER_NODE=4", "SLURM_PROCID=2",
                                           "SLURM_NODEID=0", "SLURM_LOCALID=2", "SLURM_GPUS_ON_NODE=4"}};
/* Two agents on one node without 127.0.0.1. */
static const struct site v6 = {.host = "gpu1",
                               .loopback = "::1",
                               .env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=1", "SLURM_STEP_NUM_TASKS=2",
                                       "SLURM_STEP_NODELIST=gpu1", "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_PROCID=1",
                                       "SLURM_NODEID=0", "SLURM_LOCALID=1"}};
static const struct site one_task = {.host = "gpu1",
                                     .env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=1",
                                             "SLURM_STEP_NODELIST=gpu1", "SLURM_STEP_TASKS_PER_NODE=1",
                                             "SLURM_PROCID=0", "SLURM_NODEID=0", "SLURM_LOCALID=0",
                                             "SLURM_GPUS_ON_NODE=2"}};
static const struct site listed_twice = {
    .host = "gpu1",
    .env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_NODELIST=gpu1,gpu1"}};
/* Two on each of two nodes. */
static const struct site two_each = {.host = "gpu1",
                                     .env = {"SLURM_JOB_ID=47", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=4",
                                             "SLURM_STEP_NODELIST=gpu[1-2]", "SLURM_STEP_TASKS_PER_NODE=2(x2)",
                                             "SLURM_PROCID=1", "SLURM_NODEID=0", "SLURM_LOCALID=1"}};
static const struct site mpirun_on_one = {.host = "gpu1",
                                          .env = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4",
                                                  "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=4",
                                                  "PMIX_NAMESPACE=77"}};
static const struct site batch = {
    .host = "gpu1", .env = {"SLURM_JOB_ID=47", "SLURM_JOB_NODELIST=gpu[1-2]", "SLURM_NNODES=2", "SLURM_PROCID=0"}};
static const struct site batch_of_one = {
    .host = "gpu1", .env = {"SLURM_JOB_ID=47", "SLURM_JOB_NODELIST=gpu1", "SLURM_NNODES=1", "SLURM_GPUS_ON_NODE=8"}};
static const struct site none = {.host = "laptop", .env = {"HOME=/"}};
static const struct site mpirun = {.host = "n2",
                                   .env = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2",
                                           "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=1",
                                           "PMIX_NAMESPACE=77", "OMPI_MCA_orte_hnp_uri=76.0;tcp://192.0.2.2:42053"}};
static const struct site hydra = {.host = "n2",
                                  .env = {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1"}};
static const struct site nameless = {.host = "n2",
                                     .env = {"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2",
                                             "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2"}};
static const struct site prterun = {.host = "n2", .env = {"PMIX_RANK=1", "PMIX_NAMESPACE=prterun-n1-4711@1"}};

/* One of two tasks on one of Torque's two hosts. */
static const struct site pbsdsh = {
    .host = "n2",
    .env = {"PBS_JOBID=7.s", "PBS_TASKNUM=5", "PBS_NODENUM=1", "PBS_VNODENUM=3", "PBS_NUM_NODES=2", "PBS_NUM_PPN=2"}};
static const struct site crowded = {
    .host = "n2", .env = {"PBS_JOBID=7.s", "PBS_TASKNUM=5", "PBS_NODENUM=1", "PBS_NUM_NODES=2", "PBS_NUM_PPN=2"}};

static const struct site pod = {
    .host = "train-3", .env = {"KUBERNETES_SERVICE_HOST=10.96.0.1", "HOSTNAME=train-3", "JOB_COMPLETION_INDEX=3"}};

#define STEP_ID    "SLURM_JOB_ID=47, SLURM_STEP_ID=0"
#define ONE_EACH   "SLURM_STEP_TASKS_PER_NODE=1(x2), SLURM_NODEID=0"
#define STEP_HOSTS "SLURM_STEP_NODELIST=gpu[1-2], SLURM_STEP_TASKS_PER_NODE=1(x2)"

static const struct told settled[] = {
    {&nodes, "rdzv-agent -- ./train",
     "nnodes 2:2  # SLURM_STEP_NUM_TASKS=2\nexpect 'gpu[1-2]'  # " STEP_HOSTS
     "\nnproc 4  # SLURM_GPUS_ON_NODE=4\njob 'slurm-47.0'  # " STEP_ID "\nendpoint gpu1:17841  # " STEP_HOSTS
     "; port: " STEP_ID "\norder-key 0  # SLURM_PROCID=0\nlocal-rank 0-3 of 4  # " ONE_EACH "\n"},
    {&nodes, "rdzv-agent --nnodes 1:2 --nproc 3 --rdzv-id mine --endpoint n7 --expect gpu1 -- ./train",
     "nnodes 1:2\nexpect 'gpu1'\nnproc 3\njob 'mine'\nendpoint n7:29400\norder-key 0  # SLURM_PROCID=0\nlocal-rank "
     "0-2 of 3  # " ONE_EACH "\n"},
    {&nodes, "PET_NNODES=1:2 RDZV_AGENT_NPROC=1 PET_RDZV_ID=mine rdzv-agent ./train",
     "nnodes 1:2  # PET_NNODES=1:2\nexpect 'gpu[1-2]'  # " STEP_HOSTS
     "\nnproc 1  # RDZV_AGENT_NPROC=1\njob 'mine'  # PET_RDZV_ID=mine\nendpoint gpu1:17841  # " STEP_HOSTS
     "; port: " STEP_ID "\norder-key 0  # SLURM_PROCID=0\nlocal-rank 0 of 1  # " ONE_EACH "\n"},
    /* More may come: they need an address that is not this host's alone. */
    {&one_task, "rdzv-agent --nnodes 1:3 ./train",
     "nnodes 1:3\nexpect 'gpu1'  # SLURM_STEP_NODELIST=gpu1, SLURM_STEP_TASKS_PER_NODE=1\nnproc 2  # "
     "SLURM_GPUS_ON_NODE=2\njob 'slurm-47.0'  # " STEP_ID
     "\nendpoint gpu1:17841  # SLURM_STEP_NODELIST=gpu1, SLURM_STEP_TASKS_PER_NODE=1; port: " STEP_ID
     "\norder-key 0  # SLURM_PROCID=0\nlocal-rank 0-1 of 2  # SLURM_STEP_TASKS_PER_NODE=1, SLURM_NODEID=0\n"},
    /* A spare for another of the scheduler's jobs; but a name of one's own says nothing of that. */
    {&one_task, "rdzv-agent --nnodes 1:3 --rdzv-id slurm-4.0 --endpoint n7 ./train",
     "nnodes 1:3\nexpect -\nnproc 2  # SLURM_GPUS_ON_NODE=2\njob 'slurm-4.0'\nendpoint n7:29400\norder-key 0  # "
     "SLURM_PROCID=0\nlocal-rank 0-1 of 2  # SLURM_STEP_TASKS_PER_NODE=1, SLURM_NODEID=0\n"},
    {&one_task, "rdzv-agent --nnodes 1:3 --rdzv-id slurm-train --endpoint n7 ./train",
     "nnodes 1:3\nexpect 'gpu1'  # SLURM_STEP_NODELIST=gpu1, SLURM_STEP_TASKS_PER_NODE=1\nnproc 2  # "
     "SLURM_GPUS_ON_NODE=2\njob 'slurm-train'\nendpoint n7:29400\norder-key 0  # SLURM_PROCID=0\nlocal-rank 0-1 of 2  "
     "# SLURM_STEP_TASKS_PER_NODE=1, SLURM_NODEID=0\n"},
    {&one_task, "rdzv-agent ./train",
     "nnodes 1:1  # SLURM_STEP_NUM_TASKS=1\nexpect -\nnproc 2  # SLURM_GPUS_ON_NODE=2\njob 'slurm-47.0'  # " STEP_ID
     "\nendpoint standalone\norder-key -\n"},
    {&nodes, "rdzv-agent --standalone ./train",
     "nnodes 1:1\nexpect -\nnproc 4  # SLURM_GPUS_ON_NODE=4\njob '?'\nendpoint standalone\norder-key -\n"},
    {&nodes, "rdzv-agent --nnodes 1 ./train",
     "nnodes 1:1\nexpect -\nnproc 4  # SLURM_GPUS_ON_NODE=4\njob 'slurm-47.0'  # " STEP_ID
     "\nendpoint standalone\norder-key -\n"},
    {&container, "rdzv-agent ./train",
     "nnodes 2:2  # SLURM_STEP_NUM_TASKS=2\nexpect -\nnproc 7  # GPUs\njob 'slurm-47.0'  # " STEP_ID
     "\nendpoint gpu1:17841  # " STEP_HOSTS "; port: " STEP_ID
     "\norder-key 1  # SLURM_PROCID=1\nlocal-rank 0-6 of 7  # SLURM_STEP_TASKS_PER_NODE=1(x2), SLURM_NODEID=1\n"},
    {&by_gpu, "rdzv-agent ./train",
     "nnodes 4:4  # SLURM_STEP_NUM_TASKS=4\nexpect 'gpu1'  # SLURM_STEP_NODELIST=gpu1, "
     "SLURM_STEP_TASKS_PER_NODE=4\nnproc 1  # SLURM_STEP_TASKS_PER_NODE=4, SLURM_NODEID=0\njob 'slurm-47.1'  # "
     "SLURM_JOB_ID=47, SLURM_STEP_ID=1\nendpoint 127.0.0.1:17842  # SLURM_STEP_TASKS_PER_NODE=4, SLURM_NODEID=0; "
     "port: SLURM_JOB_ID=47, SLURM_STEP_ID=1\norder-key 2  # SLURM_PROCID=2\nlocal-rank 2 of 4  # SLURM_LOCALID=2\n"},
    {&v6, "rdzv-agent --rdzv-id a ./train",
     "nnodes 2:2  # SLURM_STEP_NUM_TASKS=2\nexpect 'gpu1'  # SLURM_STEP_NODELIST=gpu1, "
     "SLURM_STEP_TASKS_PER_NODE=2\nnproc 1  # SLURM_STEP_TASKS_PER_NODE=2, SLURM_NODEID=0\njob 'a'\nendpoint "
     "[::1]:17842  # SLURM_STEP_TASKS_PER_NODE=2, SLURM_NODEID=0; port: SLURM_JOB_ID=47, SLURM_STEP_ID=1\norder-key 1 "
     " # SLURM_PROCID=1\nlocal-rank 1 of 2  # SLURM_LOCALID=1\n"},
    {&listed_twice, "rdzv-agent --rdzv-id a ./train",
     "nnodes 2:2  # SLURM_STEP_NUM_TASKS=2\nexpect 'gpu1'  # SLURM_STEP_NODELIST=gpu1,gpu1\nnproc 1  # "
     "SLURM_STEP_NUM_TASKS=2\njob 'a'\nendpoint 127.0.0.1:17841  # SLURM_STEP_NODELIST=gpu1,gpu1; port: " STEP_ID
     "\norder-key -\n"},
    {&batch_of_one, "rdzv-agent ./train",
     "nnodes 1:1\nexpect -\nnproc 8  # SLURM_GPUS_ON_NODE=8\njob 'slurm-47'  # SLURM_JOB_ID=47\nendpoint "
     "standalone\norder-key -\n"},
    /* Agents that are started by hand, on each node, inside a job. */
    {&batch, "rdzv-agent --nnodes 2 --endpoint gpu1 ./train",
     "nnodes 2:2\nexpect 'gpu[1-2]'  # SLURM_JOB_NODELIST=gpu[1-2]\nnproc 7  # GPUs\njob '?'\nendpoint "
     "gpu1:29400\norder-key -\n"},
    {&batch, "rdzv-agent --nnodes 2 --node-rank 0 --master-addr gpu1 --master-port 29501 ./train",
     "nnodes 2:2\nexpect 'gpu[1-2]'  # SLURM_JOB_NODELIST=gpu[1-2]\nnproc 7  # GPUs\njob '?'\nendpoint "
     "gpu1:29501\norder-key -\n"},
    /* srun started one of the two: the other one may have no variable of Slurm's. */
    {&one_task, "rdzv-agent --nnodes 2 --endpoint gpu1 ./train",
     "nnodes 2:2\nexpect -\nnproc 2  # SLURM_GPUS_ON_NODE=2\njob '?'\nendpoint gpu1:29400\norder-key 0  # "
     "SLURM_PROCID=0\nlocal-rank 0-1 of 2  # SLURM_STEP_TASKS_PER_NODE=1, SLURM_NODEID=0\n"},
    /* It has started all: two jobs at one daemon are apart. */
    {&nodes, "rdzv-agent --endpoint n7 ./train",
     "nnodes 2:2  # SLURM_STEP_NUM_TASKS=2\nexpect 'gpu[1-2]'  # " STEP_HOSTS
     "\nnproc 4  # SLURM_GPUS_ON_NODE=4\njob 'slurm-47.0'  # " STEP_ID
     "\nendpoint n7:29400\norder-key 0  # SLURM_PROCID=0\nlocal-rank 0-3 of 4  # " ONE_EACH "\n"},
    {&batch_of_one, "rdzv-agent --endpoint n7 ./train",
     "nnodes 1:1\nexpect 'gpu1'  # SLURM_JOB_NODELIST=gpu1\nnproc 8  # SLURM_GPUS_ON_NODE=8\njob 'slurm-47'  # "
     "SLURM_JOB_ID=47\nendpoint n7:29400\norder-key -\n"},
    {&mpirun, "rdzv-agent ./train",
     "nnodes 2:2  # OMPI_COMM_WORLD_SIZE=2\nexpect -\nnproc 7  # GPUs\njob 'mpi-77'  # PMIX_NAMESPACE=77\nendpoint "
     "192.0.2.2:26192  # OMPI_MCA_orte_hnp_uri=76.0;tcp://192.0.2.2:42053; port: PMIX_NAMESPACE=77\norder-key 1  # "
     "OMPI_COMM_WORLD_RANK=1\nlocal-rank 0-6 of 7  # OMPI_COMM_WORLD_LOCAL_SIZE=1\n"},
    {&hydra, "rdzv-agent --endpoint n1 ./train",
     "nnodes 2:2  # PMI_SIZE=2\nexpect -\nnproc 7  # GPUs\njob '?'\nendpoint n1:29400\norder-key 1  # "
     "PMI_RANK=1\nlocal-rank 0-6 of 7  # MPI_LOCALNRANKS=1\n"},
    {&pod, "rdzv-agent --nnodes 4 --endpoint train-0 ./train",
     "nnodes 4:4\nexpect -\nnproc 7  # GPUs\njob 'k8s-train'  # HOSTNAME=train-3, JOB_COMPLETION_INDEX=3\nendpoint "
     "train-0:29400\norder-key 3  # JOB_COMPLETION_INDEX=3\n"},
    {&pod, "rdzv-agent --standalone ./train",
     "nnodes 1:1\nexpect -\nnproc 7  # GPUs\njob '?'\nendpoint standalone\norder-key -\n"},
    {&none, "rdzv-agent ./train", "nnodes 1:1\nexpect -\nnproc 1\njob '?'\nendpoint standalone\norder-key -\n"},
    /* A worker that starts an agent of its own: Slurm's variables are about the agent further out. */
    {&nodes, "RDZV_AGENT_SOCKET=@x rdzv-agent ./train",
     "nnodes 1:1\nexpect -\nnproc 1\njob '?'\nendpoint standalone\norder-key -\n"},
};

static void check_told(const struct told *t) {
  struct line l;
  struct buf got = BUF_INIT;
  read_line(&l, t->site, t->line);
  if (l.rc) fail_msg("%s: %s", t->line, l.e.text);
  describe(&l.o, &got);
  if (strcmp(buf_text(&got), t->expected) != 0)
    fail_msg("%s:\n%s\nwas expected, and it is\n%s", t->line, t->expected, buf_text(&got));
  buf_finish(&got);
  drop_line(&l);
}

UNIT_TEST(concludes) {
  for (size_t i = 0; i < sizeof(settled) / sizeof(*settled); i++) check_told(&settled[i]);
}

/* For the sentence about a name that nobody knows. */
UNIT_TEST(tells_where_the_place_stands) {
  static const struct told cases[] = {
      {&nodes, "rdzv-agent ./train", "of " STEP_HOSTS},
      {&nodes, "rdzv-agent --rdzv-endpoint n1 ./train", "in --rdzv-endpoint"},
      {&nodes, "PET_MASTER_ADDR=n1 rdzv-agent ./train", "in PET_MASTER_ADDR"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    struct line l;
    read_line(&l, cases[i].site, cases[i].line);
    assert_string_equal(l.o.endpoint_where, cases[i].expected);
    drop_line(&l);
  }
}

/* From which variable a setting came that is nobody's conclusion, and what the launcher went by. */
UNIT_TEST(tells_variables) {
  static const struct site kubeflow = {.host = "bert-node-0-1",
                                       .env = {"KUBERNETES_SERVICE_HOST=10.96.0.1", "HOSTNAME=bert-node-0-1",
                                               "JOB_COMPLETION_INDEX=1", "PET_NNODES=2", "PET_NPROC_PER_NODE=auto",
                                               "PET_NODE_RANK=1", "PET_MASTER_ADDR=bert-node-0-0.bert",
                                               "PET_MASTER_PORT=29500"}};
#define CONF "join_timeout=60,is_host=0,last_call_timeout=5,rank=1"
  static const struct told cases[] = {
      {&kubeflow, "rdzv-agent ./train",
       "nnodes 2:2  # PET_NNODES=2\nexpect -\nnproc 7  # PET_NPROC_PER_NODE=auto, GPUs\njob 'k8s-bert-node-0'  # "
       "HOSTNAME=bert-node-0-1, JOB_COMPLETION_INDEX=1\nendpoint bert-node-0-0.bert:29500  # "
       "PET_MASTER_ADDR=bert-node-0-0.bert, PET_MASTER_PORT=29500\nnode-rank 1  # PET_NODE_RANK=1\norder-key 1  # "
       "JOB_COMPLETION_INDEX=1\n"},
      /* What is typed wins, and is nobody's word but the user's. */
      {&kubeflow, "rdzv-agent --nnodes 3 --nproc 1 --endpoint x --node-rank 0 --rdzv-id a ./train",
       "nnodes 3:3\nexpect -\nnproc 1\njob 'a'\nendpoint x:29400\norder-key 1  # JOB_COMPLETION_INDEX=1\n"},
      /* Second names: for the weaker source they count, for the stronger one they do not. */
      {&none,
       "PET_RDZV_CONF=join_timeout=60,is_host=0,last_call_timeout=5,rank=1 TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9 "
       "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 RDZV_AGENT_NNODES=2 RDZV_AGENT_LAST_CALL=7s RDZV_AGENT_ENDPOINT=n1:5 "
       "PET_ROLE=it's rdzv-agent ./train",
       "nnodes 2:2  # RDZV_AGENT_NNODES=2\nexpect -\nnproc 1\njob '?'\nendpoint n1:5  # the first host; port: "
       "drawn\nstarts-rdzvd never  # PET_RDZV_CONF=" CONF "\nnode-rank 1  # PET_RDZV_CONF=" CONF
       "\norder-key -\nstore worker  # TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1\njoin-timeout 60  # PET_RDZV_CONF=" CONF
       "\nlast-call 7  # RDZV_AGENT_LAST_CALL=7s\nstop-timeout 9  # TORCH_ELASTIC_SHUTDOWN_TIMEOUT=9\nrole 'it'\\''s' "
       " # PET_ROLE=it's\n"},
      {&none, "RDZV_AGENT_STANDALONE=1 RDZV_AGENT_ENDPOINT=n1 PET_MASTER_PORT=7 rdzv-agent ./train",
       "nnodes 1:1\nexpect -\nnproc 1\njob '?'\nendpoint standalone  # RDZV_AGENT_STANDALONE=1\norder-key -\n"},
      {&none, "PET_MASTER_PORT=7 rdzv-agent ./train",
       "nnodes 1:1\nexpect -\nnproc 1\njob '?'\nendpoint standalone\norder-key -\nstore-port 7  # PET_MASTER_PORT=7\n"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) check_told(&cases[i]);
  static const struct site ends = {.env = {"RDZV_END_TIME=1790000000"}};
  check_told(
      &(struct told){&ends, "rdzv-agent ./train",
                     "nnodes 1:1\nexpect -\nnproc 1\njob '?'\nendpoint standalone\norder-key -\nend-time 1790000000  # "
                     "RDZV_END_TIME=1790000000: soon\n"});
}

UNIT_TEST(refuses_what_would_wait_for_ever) {
  static const struct told cases[] = {
      {&batch, "rdzv-agent -- ./train",
       "Slurm runs this script on only one of the job's 2 nodes: write srun rdzv-agent ..., which starts an agent on "
       "each (or --standalone, for this node only)"},
      {&batch, "rdzv-agent --nnodes 2 -- ./train",
       "Slurm runs this script on only one of the job's 2 nodes: write srun rdzv-agent ..., which starts an agent on "
       "each (or --standalone, for this node only)"},
      {&hydra, "rdzv-agent ./train",
       "Hydra started 2 agents, but does not report the host of the first: give --endpoint HOST, where HOST is one of "
       "their hosts, the same to all"},
      {&nameless, "rdzv-agent ./train",
       "Open MPI started 2 agents, but sets no job id from which to derive a port: give --endpoint HOST:PORT, the "
       "same to all"},
      {&prterun, "rdzv-agent ./train", "PRRTE does not report how many agents it started: give --nnodes N"},
      {&nodes, "rdzv-agent --nnodes 3:4 ./train",
       "srun started 2 agents (SLURM_STEP_NUM_TASKS=2), but --nnodes=3 needs 3: start one on each node (srun "
       "--nodes=3 --ntasks-per-node=1), or give --endpoint HOST if others are started elsewhere"},
      {&one_task, "rdzv-agent --nnodes 2 ./train",
       "srun started 1 agent (SLURM_STEP_NUM_TASKS=1), but --nnodes=2 needs 2: start one on each node (srun --nodes=2 "
       "--ntasks-per-node=1), or give --endpoint HOST if others are started elsewhere"},
      {&two_each, "rdzv-agent --nnodes 2 --nproc 2 ./train",
       "srun started 4 agents (SLURM_STEP_NUM_TASKS=4), several of them on one host, but --nnodes=2 admits 2: start "
       "one on each host (srun --ntasks-per-node=1), or remove --nnodes and --nproc, so that each agent is a node"},
      {&two_each, "rdzv-agent --nnodes 1:3 --endpoint gpu1 ./train",
       "srun started 4 agents (SLURM_STEP_NUM_TASKS=4), several of them on one host, but --nnodes=3 admits 3: start "
       "one on each host (srun --ntasks-per-node=1), or remove --nnodes and --nproc, so that each agent is a node"},
      {&mpirun_on_one, "RDZV_AGENT_NNODES=2 rdzv-agent ./train",
       "Open MPI started 4 agents (OMPI_COMM_WORLD_SIZE=4), several of them on one host, but RDZV_AGENT_NNODES=2 "
       "admits 2: start one on each host (mpirun --map-by ppr:1:node), or remove --nnodes and --nproc, so that each "
       "agent is a node"},
      {&pod, "rdzv-agent ./train",
       "Kubernetes started this agent as one of several (JOB_COMPLETION_INDEX=3), but does not report how many there "
       "are: give --nnodes N and --endpoint HOST, the same to all (or --standalone, for a separate job in each)"},
      {&pod, "rdzv-agent --endpoint train-0 ./train",
       "Kubernetes started this agent as one of several (JOB_COMPLETION_INDEX=3), but does not report how many there "
       "are: give --nnodes N, the same to all (or --standalone, for a separate job in each)"},
      {&none, "rdzv-agent --nnodes 2 ./train",
       "several nodes need a meeting place: rdzv-agent --nnodes 2 --endpoint HOST ..., where HOST is one of the "
       "nodes, the same on all"},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    struct line l;
    read_line(&l, cases[i].site, cases[i].line);
    assert_int_equal(l.rc, -EINVAL);
    assert_string_equal(l.e.text, cases[i].expected);
    drop_line(&l);
  }
}

UNIT_TEST(lets_a_batch_script_go_on_alone) {
  static const char *const lines[] = {"rdzv-agent --standalone ./train", "rdzv-agent --nnodes 1 ./train",
                                      "rdzv-agent --endpoint :: ./train", "rdzv-agent --master-port 5 ./train"};
  for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
    struct line l;
    read_line(&l, &batch, lines[i]);
    if (l.rc) fail_msg("%s: %s", lines[i], l.e.text);
    assert_int_equal(l.o.nnodes.max, 1);
    drop_line(&l);
  }
}

UNIT_TEST(notes_a_shell_that_is_elsewhere) {
  static const struct site login = {.host = "login1",
                                    .env = {"SLURM_JOB_ID=47", "SLURM_JOB_NODELIST=gpu1", "SLURM_NNODES=1"}};
  struct line l;
  read_line(&l, &login, "rdzv-agent ./train");
  assert_string_equal(l.o.notes,
                      "this host, login1, does not belong to the Slurm job (gpu1): srun rdzv-agent ... runs there");
  drop_line(&l);
}

/* An agent that was meant to be one of several, and waits for others that nobody has started. */
UNIT_TEST(notes_that_others_have_to_come) {
  static const char note[] =
      "srun started 1 agent (SLURM_STEP_NUM_TASKS=1), but --nnodes=2 needs 2: start the others elsewhere, with the "
      "same endpoint";
  struct line l;
  read_line(&l, &one_task, "rdzv-agent --nnodes 2 --endpoint gpu1 ./train");
  assert_string_equal(l.o.notes, note);
  drop_line(&l);
  read_line(&l, &one_task, "rdzv-agent --nnodes 2 --endpoint gpu1 --rdzv-id slurm-4.0 ./train"); /* a spare */
  assert_string_equal(l.o.notes, "");
  drop_line(&l);
  read_line(&l, &nodes, "rdzv-agent --nnodes 1 ./train"); /* each by itself */
  assert_string_equal(l.o.notes, "");
  drop_line(&l);
}

UNIT_TEST(knows_its_neighbours) {
  struct line l;
  read_line(&l, &by_gpu, "rdzv-agent ./train");
  assert_int_equal(l.o.local_agents, 4);
  assert_int_equal(l.o.local_index, 2);
  assert_int_equal(l.o.expect_nodes, 4);
  drop_line(&l);
  read_line(&l, &by_gpu, "rdzv-agent --standalone ./train"); /* four jobs of their own */
  assert_int_equal(l.o.local_agents, 1);
  assert_int_equal(l.o.local_index, 0);
  drop_line(&l);
  read_line(&l, &nodes, "rdzv-agent --expect gpu[1-3] --nnodes 2:3 ./train");
  assert_int_equal(l.o.expect_nodes, 3);
  drop_line(&l);
}

/* pbsdsh starts as many as the job has places, or one on each host. */
UNIT_TEST(knows_a_part_of_its_neighbours) {
  struct line l;
  read_line(&l, &pbsdsh, "rdzv-agent --endpoint n1 ./train");
  assert_int_equal(l.o.local_agents, 2);
  assert_int_equal(l.o.local_index, 1);
  assert_int_equal(l.o.nproc, 1);
  assert_null(l.o.crowded_by);
  drop_line(&l);
  read_line(&l, &pbsdsh, "rdzv-agent --nnodes 2 --endpoint n1 ./train");
  assert_int_equal(l.o.local_agents, 1);
  assert_int_equal(l.o.nproc, OPTIONS_NPROC_SEEN);
  drop_line(&l);
  read_line(&l, &crowded, "rdzv-agent --endpoint n1 ./train");
  assert_int_equal(l.o.local_agents, 1);
  assert_string_equal(l.o.crowded_by, "PBS_NUM_PPN=2");
  drop_line(&l);
  read_line(&l, &crowded, "rdzv-agent --nnodes 2 --endpoint n1 ./train");
  assert_null(l.o.crowded_by);
  drop_line(&l);
}
