/* SPDX-License-Identifier: Apache-2.0 */
/* agent/cluster/cloud.c, and each environment that names several nodes as agent/options takes it.
 *
 * Properties, for two nodes of each environment: the documented variables make one job of two. With any variable
 * missing, or with nonsense in it, a node either still joins the same job at the same place, or is refused with a
 * sentence. No node ever becomes a job of its own. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/options/options.h"
#include "common/mem.h"
#include "tests/rig/cluster.h"
#include "tests/rig/unit.h"

static const struct site_case cases[] = {
    {"SkyPilot",
     {.env = {"SKYPILOT_NODE_IPS=10.0.0.4\n10.0.0.9", "SKYPILOT_NODE_RANK=1", "SKYPILOT_NUM_NODES=2",
              "SKYPILOT_NUM_GPUS_PER_NODE=8", "SKYPILOT_TASK_ID=sky-2026-07-06-21-18-31-563597_mine_1"}},
     {"scheduler=SkyPilot", "launcher=SkyPilot", "start=1", "agents=2", "agents.source=SKYPILOT_NUM_NODES=2", "index=1",
      "gpus=8", "gpus.source=SKYPILOT_NUM_GPUS_PER_NODE=8", "job=sky-sky-2026-07-06-21-18-31-563597_mine_1",
      "first_host=10.0.0.4", "first_host.source=SKYPILOT_NODE_IPS=10.0.0.4\\n10.0.0.9", "hosts=10.0.0.[4,9]", "nodes=2",
      "local_agents=1", "local_agents.source=SkyPilot starts one agent on each node"}},
    {"SkyPilot 0.5, which does not count",
     {.env = {"SKYPILOT_NODE_IPS=10.0.0.4\n10.0.0.9\n10.0.0.7", "SKYPILOT_NODE_RANK=2"}},
     {"agents=3", "agents.source=SKYPILOT_NODE_IPS=10.0.0.4\\n10.0.0.9\\n10.0.0.7", "index=2", "port=29400",
      "port.source=rdzvd's own", "job=-"}},
    {"one node, without GPUs",
     {.env = {"SKYPILOT_NODE_IPS=10.0.0.4", "SKYPILOT_NODE_RANK=0", "SKYPILOT_NUM_NODES=1",
              "SKYPILOT_NUM_GPUS_PER_NODE=0"}},
     {"agents=1", "index=0", "gpus=0"}},
    {"dstack",
     {.env = {"DSTACK_NODES_IPS=10.128.0.47\n10.128.0.48", "DSTACK_MASTER_NODE_IP=10.128.0.47", "DSTACK_NODE_RANK=0",
              "DSTACK_NODES_NUM=2", "DSTACK_GPUS_PER_NODE=2", "DSTACK_RUN_NAME=train-distrib"}},
     {"scheduler=dstack", "agents=2", "index=0", "gpus=2", "job=dstack-train-distrib", "first_host=10.128.0.47",
      "first_host.source=DSTACK_MASTER_NODE_IP=10.128.0.47", "hosts=10.128.0.[47-48]"}},
    {"a run of dstack on one node, which has no addresses",
     {.env = {"DSTACK_NODES_IPS=", "DSTACK_MASTER_NODE_IP=", "DSTACK_NODE_RANK=0", "DSTACK_NODES_NUM=1"}},
     {"agents=1", "first_host=-", "index=0"}},
    {"mpirun on the master node of dstack",
     {.env = {"DSTACK_NODES_IPS=10.128.0.47\n10.128.0.48", "DSTACK_MASTER_NODE_IP=10.128.0.47", "DSTACK_NODE_RANK=0",
              "DSTACK_NODES_NUM=2", "DSTACK_GPUS_PER_NODE=2", "OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_SIZE=4",
              "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2"}},
     {"launcher=Open MPI", "scheduler=dstack", "agents=4", "index=3", "local_agents=2", "gpus=-"}},
    {"a master that is not in the list",
     {.env = {"DSTACK_NODES_IPS=10.0.0.1\n10.0.0.2", "DSTACK_MASTER_NODE_IP=10.0.0.3", "DSTACK_NODE_RANK=0"}},
     {"first_host=10.0.0.1", "warnings=DSTACK_MASTER_NODE_IP=10.0.0.3 is not one of the job's hosts: it is ignored"}},
    {"a list that contradicts the count",
     {.env = {"SKYPILOT_NODE_IPS=10.0.0.4\n10.0.0.9", "SKYPILOT_NODE_RANK=1", "SKYPILOT_NUM_NODES=3"}},
     {"agents=-", "start=1", "hosts=-", "first_host=-",
      "warnings=SKYPILOT_NUM_NODES=3 contradicts SKYPILOT_NODE_IPS, which names 2: neither is used"}},
    {"a rank beyond the end",
     {.env = {"AWS_BATCH_JOB_NUM_NODES=2", "AWS_BATCH_JOB_NODE_INDEX=2", "AWS_BATCH_JOB_MAIN_NODE_INDEX=0",
              "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.5", "AWS_BATCH_JOB_ID=4e4bf2c0"}},
     {"agents=-",
      "warnings=AWS_BATCH_JOB_NODE_INDEX=2 is not one of the 2 nodes of AWS_BATCH_JOB_NUM_NODES: neither is "
      "used"}},
    {"a list that is none",
     {.env = {"SKYPILOT_NODE_IPS=10.0.0.4\n-9", "SKYPILOT_NODE_RANK=1", "SKYPILOT_NUM_NODES=2"}},
     {"agents=2", "first_host=-",
      "warnings=SKYPILOT_NODE_IPS is not a list of hosts: \"-9\" is not a host name: it is ignored"}},
    {"no rank",
     {.env = {"SKYPILOT_NODE_IPS=10.0.0.4\n10.0.0.9"}},
     {"agents=2", "index=-",
      "warnings=SKYPILOT_NODE_RANK is not set: this node's rank does not follow the order of SkyPilot"}},
    {"the main node of AWS Batch",
     {.host = "ip-10-0-0-5",
      .env = {"AWS_BATCH_JOB_NUM_NODES=2", "AWS_BATCH_JOB_NODE_INDEX=0", "AWS_BATCH_JOB_MAIN_NODE_INDEX=0",
              "AWS_BATCH_JOB_ID=4e4bf2c0#0"}},
     {"scheduler=AWS Batch", "agents=2", "index=0", "job=batch-4e4bf2c0", "first_host=ip-10-0-0-5",
      "first_host.source=AWS_BATCH_JOB_NODE_INDEX=0, AWS_BATCH_JOB_MAIN_NODE_INDEX=0"}},
    {"another one",
     {.env = {"AWS_BATCH_JOB_NUM_NODES=2", "AWS_BATCH_JOB_NODE_INDEX=1", "AWS_BATCH_JOB_MAIN_NODE_INDEX=0",
              "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.5", "AWS_BATCH_JOB_ID=4e4bf2c0#1"}},
     {"index=1", "job=batch-4e4bf2c0", "first_host=10.0.0.5",
      "first_host.source=AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.5"}},
    {"a job of AWS Batch on one node", {.env = {"AWS_BATCH_JOB_ID=4e4bf2c0"}}, {"scheduler=-", "start=-"}},
    {"SageMaker",
     {.env = {"SM_HOSTS=[\"algo-1\",\"algo-2\"]", "SM_CURRENT_HOST=algo-2", "SM_NUM_GPUS=4",
              "TRAINING_JOB_NAME=bert-2026"}},
     {"scheduler=SageMaker", "agents=2", "agents.source=SM_HOSTS=[\\\"algo-1\\\",\\\"algo-2\\\"]", "index=1",
      "index.source=SM_CURRENT_HOST=algo-2", "gpus=4", "job=sagemaker-bert-2026", "first_host=algo-1",
      "hosts=algo-[1-2]"}},
    {"SageMaker's whole configuration",
     {.env = {"SM_RESOURCE_CONFIG={\"current_host\":\"algo-1\",\"hosts\":[\"algo-1\",\"algo-2\"],"
              "\"network_interface_name\":\"eth0\"}"}},
     {"agents=2", "index=0", "first_host=algo-1", "port=29400"}},
    {"a container without SageMaker's toolkit",
     {.env = {"TRAINING_JOB_ARN=arn:aws:sagemaker:x", "TRAINING_JOB_NAME=bert-2026"},
      .files = {{"/opt/ml/input/config/resourceconfig.json",
                 "{\"current_host\": \"algo-2\", \"hosts\": [\"algo-1\", \"algo-2\"]}"}}},
     {"agents=2", "index=1", "index.source=/opt/ml/input/config/resourceconfig.json", "job=sagemaker-bert-2026"}},
    {"the same without its file",
     {.env = {"TRAINING_JOB_ARN=arn:aws:sagemaker:x"}},
     {"start=1", "agents=-",
      "warnings=SM_CURRENT_HOST is not set: this node's rank does not follow the order of SageMaker"}},
    {"a file that is none",
     {.env = {"TRAINING_JOB_ARN=arn:aws:sagemaker:x", "SM_CURRENT_HOST=algo-1"},
      .files = {{"/opt/ml/input/config/resourceconfig.json",
                 "{\"current_host\": \"algo-2\", \"hosts\": [\"algo-1\"]}"}}},
     {"agents=-", "warnings=/opt/ml/input/config/resourceconfig.json has no list of hosts: it is ignored"}},
    {"a host that is not in SageMaker's list",
     {.env = {"SM_HOSTS=[\"algo-1\"]", "SM_CURRENT_HOST=algo-2"}},
     {"agents=-", "warnings=SM_CURRENT_HOST=algo-2 is not one of the 1 nodes of SM_HOSTS: neither is used"}},
    {"JSON of another kind",
     {.env = {"SM_HOSTS=[\"algo-1\",2]", "SM_CURRENT_HOST=algo-1"}},
     {"agents=-",
      "warnings=SM_HOSTS=[\\\"algo-1\\\",2] is not a list of hosts, as in [\"algo-1\",\"algo-2\"]: it is ignored"}},
    {"part of a group of pods",
     {.env = {"KUBERNETES_SERVICE_HOST=10.96.0.1", "LWS_GROUP_SIZE=2"}},
     {"launcher=LeaderWorkerSet", "start=1", "agents=2", "first_host=-"}},
    {"pods without a master", {.env = {"KUBERNETES_SERVICE_HOST=10.96.0.1", "RANK=1", "WORLD_SIZE=2"}}, {"agents=2"}},
    {"a variable that many programs set",
     {.env = {"KUBERNETES_SERVICE_HOST=10.96.0.1", "WORLD_SIZE=2"}},
     {"start=-", "launcher=-"}},
};

UNIT_TEST(reads_clouds) {
  site_check_all(cases, sizeof(cases) / sizeof(*cases));
}

/* Two nodes of each environment. */
enum { VARIABLES = 12 };
struct pair {
  const char *what;
  const char *host[2];
  const char *of[2][VARIABLES];
};

#define POD "KUBERNETES_SERVICE_HOST=10.96.0.1"
#define SKY "SKYPILOT_NODE_IPS=10.0.0.4\n10.0.0.9", "SKYPILOT_NUM_NODES=2", "SKYPILOT_TASK_ID=sky-1_mine_1"
#define DSTACK                                                                                                         \
  "DSTACK_NODES_IPS=10.0.0.4\n10.0.0.9", "DSTACK_MASTER_NODE_IP=10.0.0.4", "DSTACK_NODES_NUM=2", "DSTACK_RUN_NAME=train"
#define BATCH "AWS_BATCH_JOB_NUM_NODES=2", "AWS_BATCH_JOB_MAIN_NODE_INDEX=0"
#define FLUX  "FLUX_JOB_ID=f2oKw", "FLUX_JOB_SIZE=2", "FLUX_JOB_NNODES=2", "FLUX_TASK_LOCAL_ID=0"
#define TRAINJOB                                                                                                       \
  POD, "PET_NNODES=2", "PET_NPROC_PER_NODE=1", "PET_MASTER_ADDR=bert-node-0-0.bert", "PET_MASTER_PORT=29500"
#define PYTORCHJOB POD, "MASTER_ADDR=mnist-master-0", "MASTER_PORT=23456", "WORLD_SIZE=2"
#define GROUP      POD, "LWS_LEADER_ADDRESS=vllm-0.vllm.default", "LWS_GROUP_SIZE=2"

static const struct pair pairs[] = {
    {"SkyPilot", {"a", "b"}, {{SKY, "SKYPILOT_NODE_RANK=0"}, {SKY, "SKYPILOT_NODE_RANK=1"}}},
    {"dstack", {"a", "b"}, {{DSTACK, "DSTACK_NODE_RANK=0"}, {DSTACK, "DSTACK_NODE_RANK=1"}}},
    {"AWS Batch",
     {"10.0.0.4", "b"},
     {{BATCH, "AWS_BATCH_JOB_NODE_INDEX=0", "AWS_BATCH_JOB_ID=4e4b#0"},
      {BATCH, "AWS_BATCH_JOB_NODE_INDEX=1", "AWS_BATCH_JOB_ID=4e4b#1",
       "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS=10.0.0.4"}}},
    {"SageMaker",
     {"algo-1", "algo-2"},
     {{"SM_HOSTS=[\"algo-1\",\"algo-2\"]", "TRAINING_JOB_NAME=bert", "SM_CURRENT_HOST=algo-1"},
      {"SM_HOSTS=[\"algo-1\",\"algo-2\"]", "TRAINING_JOB_NAME=bert", "SM_CURRENT_HOST=algo-2"}}},
    {"Flux", {"a", "b"}, {{FLUX, "FLUX_TASK_RANK=0"}, {FLUX, "FLUX_TASK_RANK=1"}}},
    {"PALS",
     {"a", "b"},
     {{"PMI_SIZE=2", "PALS_APID=77", "PALS_LOCAL_RANKID=0", "PALS_LOCAL_SIZE=1", "PALS_RANKID=0"},
      {"PMI_SIZE=2", "PALS_APID=77", "PALS_LOCAL_RANKID=0", "PALS_LOCAL_SIZE=1", "PALS_RANKID=1"}}},
    {"Kubeflow Trainer",
     {"bert-node-0-0", "bert-node-0-1"},
     {{TRAINJOB, "HOSTNAME=bert-node-0-0", "JOB_COMPLETION_INDEX=0", "PET_NODE_RANK=0"},
      {TRAINJOB, "HOSTNAME=bert-node-0-1", "JOB_COMPLETION_INDEX=1", "PET_NODE_RANK=1"}}},
    {"PyTorchJob",
     {"mnist-master-0", "mnist-worker-0"},
     {{PYTORCHJOB, "HOSTNAME=mnist-master-0", "RANK=0"}, {PYTORCHJOB, "HOSTNAME=mnist-worker-0", "RANK=1"}}},
    {"LeaderWorkerSet",
     {"vllm-0", "vllm-0-1"},
     {{GROUP, "HOSTNAME=vllm-0", "LWS_WORKER_INDEX=0"}, {GROUP, "HOSTNAME=vllm-0-1", "LWS_WORKER_INDEX=1"}}},
};
enum { PAIRS = sizeof(pairs) / sizeof(*pairs) };

/* What a node makes of its variables: "2 10.0.0.4:20123 sky-1 @0", or the sentence of its refusal. */
static int conclude(const struct pair *p, int node, const char *changed, const char *value, struct buf *out) {
  struct site s = {.host = p->host[node]};
  char *env[VARIABLES + 1] = {NULL}, *own = NULL, program[] = "rdzv-agent", command[] = "./train",
                        endpoint[ENDPOINT_TEXT_MAX];
  int n = 0;
  for (int i = 0; i < VARIABLES && p->of[node][i]; i++) {
    const char *variable = p->of[node][i];
    bool is_it = changed && strncmp(variable, changed, strlen(changed)) == 0 && variable[strlen(changed)] == '=';
    if (is_it && !value) continue;
    if (is_it) variable = own = xasprintf("%s=%s", changed, value);
    memcpy(&env[n], &variable, sizeof(variable));
    s.env[n++] = variable;
  }
  struct cluster c;
  struct agent_options o;
  struct err e = ERR_INIT;
  site_read(&s, &c);
  int rc = agent_options_parse(&o, 2, (char *[]){program, command, NULL}, env, &c, &e);
  if (rc) {
    buf_printf(out, "%s\n%s", e.text, buf_text(&c.warnings));
  } else {
    if (o.n_endpoints) endpoint_format(&o.endpoints[0], endpoint);
    buf_printf(out, "%lld %s %s", (long long)o.nnodes.max, o.n_endpoints ? endpoint : "alone",
               o.rdzv_id ? o.rdzv_id : "-");
    if (c.warnings.len) buf_printf(out, "\n%s", buf_text(&c.warnings));
  }
  int64_t nodes = rc ? 0 : o.nnodes.max;
  cluster_finish(&c);
  free(own);
  return rc ? rc : (int)nodes;
}

/* One job of two, or a sentence; never a world of one. */
static void check_pair(const struct pair *p, const char *changed, const char *value) {
  struct buf told[2] = {BUF_INIT, BUF_INIT};
  int rc[2];
  for (int node = 0; node < 2; node++) {
    rc[node] = conclude(p, node, changed, value, &told[node]);
    if (rc[node] == 1 || (rc[node] < 0 && !told[node].len))
      fail_msg("%s, node %d, %s=%s: %s", p->what, node, changed, value ? value : "(unset)", buf_text(&told[node]));
  }
  /* The same number and place. Two names of one job are a matter of the daemon, which has a line for them. */
  const char *place = strchr(buf_text(&told[0]), ' ');
  if (rc[0] > 0 && rc[1] > 0 && place &&
      strncmp(buf_text(&told[0]), buf_text(&told[1]), strcspn(place + 1, " ") + 2) != 0)
    fail_msg("%s, %s=%s: the nodes disagree: %s / %s", p->what, changed, value ? value : "(unset)", buf_text(&told[0]),
             buf_text(&told[1]));
  buf_finish(&told[0]);
  buf_finish(&told[1]);
}

UNIT_TEST(no_node_becomes_a_job_of_its_own) {
  static const char *const values[] = {NULL, "",  "x y", "-1",      "0", "3", "99999999999999999999",
                                       "\n", "[", "-",   "\x01\xff"};
  for (size_t i = 0; i < PAIRS; i++)
    for (int node = 0; node < 2; node++)
      for (int k = 0; k < VARIABLES && pairs[i].of[node][k]; k++) {
        char name[64];
        const char *variable = pairs[i].of[node][k];
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(variable, "="), variable);
        /* By these, which are always there, Flux and Kubernetes are recognized. */
        if (!strcmp(name, "FLUX_JOB_ID") || !strcmp(name, "KUBERNETES_SERVICE_HOST")) continue;
        for (size_t v = 0; v < sizeof(values) / sizeof(*values); v++) check_pair(&pairs[i], name, values[v]);
      }
}

UNIT_TEST(two_nodes_are_one_job) {
  static const char *const expected[PAIRS] = {
      "2 10.0.0.4:26930 sky-sky-1_mine_1",
      "2 10.0.0.4:21562 dstack-train",
      "2 10.0.0.4:25299 batch-4e4b",
      "2 algo-1:32013 sagemaker-bert",
      NULL, /* gives no host */
      NULL,
      "2 bert-node-0-0.bert:29500 k8s-bert-node-0",
      "2 mnist-master-0:23456 k8s-mnist",
      "2 vllm-0.vllm.default:29538 k8s-vllm-0",
  };
  for (size_t i = 0; i < PAIRS; i++)
    for (int node = 0; node < 2; node++) {
      struct buf told = BUF_INIT;
      int rc = conclude(&pairs[i], node, NULL, NULL, &told);
      if (expected[i] ? strcmp(buf_text(&told), expected[i]) != 0
                      : rc >= 0 || !strstr(buf_text(&told), "give --endpoint"))
        fail_msg("%s, node %d: %s", pairs[i].what, node, buf_text(&told));
      buf_finish(&told);
    }
}
