/* SPDX-License-Identifier: Apache-2.0 */
/* Clouds. Each runs the user's command once on each node, so every agent here is one of several, with one on each node.
 *
 *     SkyPilot    addresses in the order of the ranks, a line each
 *                 https://docs.skypilot.co/en/stable/running-jobs/environment-variables.html
 *     dstack      the same, and the first one's address
 *                 https://dstack.ai/docs/concepts/tasks/#system-environment-variables
 *     AWS Batch   multi-node jobs: the main node's address, which the main node itself does not get; no list. The id may
 *                 end in "#" and the node's index
 *                 https://docs.aws.amazon.com/batch/latest/userguide/mnp-env-vars.html
 *     SageMaker   names in JSON. Containers without AWS' training toolkit have no SM_* variable, but all have a file
 *                 https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md
 *                 https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html
 *
 * One variable of a cloud suffices to conclude that there may be other nodes. If the rest is missing or contradicts
 * itself, agent/options refuses to start, because each node would become a job of its own. */

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/cluster/internal.h"
#include "common/endpoint.h"
#include "common/mem.h"

#define CONFIG_PATH "/opt/ml/input/config/resourceconfig.json"

static const char HOSTS[] = "SM_HOSTS", CURRENT[] = "SM_CURRENT_HOST", CONFIG[] = "SM_RESOURCE_CONFIG",
                  CONFIG_FILE[] = CONFIG_PATH;

static const struct cloud {
  const char *name, *kind;
  const char *job; /* its id */
  const char *gpus;
  const char *index, *count;
  const char *hosts; /* all nodes, in the order of their indices */
  const char *first; /* the first of them, */
  const char *main;  /* and the index of that node, where it does not get its own address */
  const char *sign;  /* one more variable that shows this cloud */
  bool json;         /* hosts and index are SageMaker's */
} clouds[] = {
    {"SkyPilot", "sky", "SKYPILOT_TASK_ID", "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES",
     "SKYPILOT_NODE_IPS"},
    {"dstack", "dstack", "DSTACK_RUN_NAME", "DSTACK_GPUS_PER_NODE", "DSTACK_NODE_RANK", "DSTACK_NODES_NUM",
     "DSTACK_NODES_IPS", "DSTACK_MASTER_NODE_IP"},
    {"AWS Batch", "batch", "AWS_BATCH_JOB_ID", NULL, "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", NULL,
     "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "AWS_BATCH_JOB_MAIN_NODE_INDEX"},
    {"SageMaker", "sagemaker", "TRAINING_JOB_NAME", "SM_NUM_GPUS", CURRENT, NULL, HOSTS, NULL, NULL, "TRAINING_JOB_ARN",
     true},
};

/* SageMaker's lists. ----------------------------------------------------------------------------------------------- */

static bool take_json_hosts(const json_t *list, struct row_hosts *h) {
  const json_t *name;
  size_t i;
  json_array_foreach(list, i, name) {
    if (json_is_string(name) && row_hosts_add(h, json_string_value(name), json_string_length(name), 1, NULL) == 0)
      continue;
    row_hosts_drop(h);
    return false;
  }
  return h->n > 0;
}

/* ["algo-1", "algo-2"], or {"current_host": "algo-1", "hosts": [...]}, whose first member `own` gets. */
static bool read_json(const char *text, struct row_hosts *h, char own[HOST_MAX + 1]) {
  json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
  const char *current = json_string_value(json_object_get(root, "current_host"));
  bool good = take_json_hosts(json_is_array(root) ? root : json_object_get(root, "hosts"), h);
  if (good && current && row_hosts_find(h, current) < 0) {
    row_hosts_drop(h);
    good = false;
  }
  if (good && current) snprintf(own, HOST_MAX + 1, "%s", current);
  json_decref(root);
  return good;
}

/* *from becomes what the list came from. */
static void find_sagemaker_hosts(struct row *r, struct row_hosts *h, const char **from, char own[HOST_MAX + 1]) {
  static const char *const variables[] = {HOSTS, CONFIG};
  const char *current = row_variable(r, CURRENT);
  for (size_t i = 0; !h->n && i < 2; i++) {
    const char *text = row_variable(r, variables[i]);
    if (text && read_json(text, h, own))
      *from = variables[i];
    else if (text)
      row_warn_of(r, variables[i], "is not a list of hosts, as in [\"algo-1\",\"algo-2\"]: it is ignored");
  }
  char *text =
      !h->n && r->site->read_file ? r->site->read_file(r->site->ctx, CONFIG_FILE, CLUSTER_FILE_MAX, NULL) : NULL;
  if (text && read_json(text, h, own)) *from = "(" CONFIG_PATH ")";
  if (text && !h->n) row_warn(r, "%s has no list of hosts: it is ignored", CONFIG_FILE);
  free(text);
  if (current && strlen(current) <= HOST_MAX) strcpy(own, current);
}

/* The row. --------------------------------------------------------------------------------------------------------- */

/* The first cloud with a variable of its own. signs: these variables, separated by blanks. */
static const struct cloud *find_cloud(const struct row *r, struct buf *signs) {
  for (size_t i = 0; i < sizeof(clouds) / sizeof(*clouds); i++) {
    const struct cloud *c = &clouds[i];
    const char *const names[] = {c->index, c->count, c->first, c->main, c->sign, c->hosts, c->json ? CONFIG : NULL};
    for (size_t k = 0; k < sizeof(names) / sizeof(*names); k++)
      if (names[k] && row_variable(r, names[k])) buf_printf(signs, "%s%s", signs->len ? " " : "", names[k]);
    if (signs->len) return c;
  }
  return NULL;
}

static void find_first_host(struct row *r, const struct cloud *c, const struct row_hosts *h) {
  struct cluster_fact *first = &r->c->first_host;
  const char *text = c->first ? row_variable(r, c->first) : NULL;
  char variables[160];
  int64_t main;
  if (first->is_set) return;
  if (text) {
    struct row_hosts one = {0};
    bool good = row_hosts_add(&one, text, strlen(text), 1, NULL) == 0, listed = !h->n || row_hosts_find(h, text) >= 0;
    row_hosts_drop(&one);
    if (good && listed)
      row_set_text(r, first, text, c->first);
    else
      row_warn_of(r, c->first, good ? "is not one of the job's hosts: it is ignored" : "is not a host: it is ignored");
  } else if (c->main && row_number(r, c->main, 0, NODES_MAX - 1, &main) && r->c->index.is_set &&
             r->c->index.number == main && r->site->host[0]) {
    snprintf(variables, sizeof(variables), "%s %s", c->index, c->main);
    row_set_text(r, first, r->site->host, variables);
  }
  r->c->first_host_is_uncertain = first->is_set && r->c->by_mpirun;
}

/* This node's place in the job, and the number of nodes. A contradiction leaves the number open. */
static void count_nodes(struct row *r, const struct cloud *c, struct row_hosts *h, const char *from, const char *own) {
  struct cluster *to = r->c;
  char why[120];
  int64_t count, listed = list_slots(h), index = -1,
                 place = c->json ? row_hosts_find(h, own[0] ? own : r->site->host) : -1;
  bool counted = c->count && row_number(r, c->count, 1, NODES_MAX, &count);
  if (!c->json) row_number(r, c->index, 0, NODES_MAX - 1, &index);
  if (!row_variable(r, c->index) && place < 0)
    row_warn(r, "%s is not set: this node's rank does not follow the order of %s", c->index, c->name);
  if (counted && listed && count != listed) {
    row_warn(r, "%s=%lld contradicts %s, which names %lld: neither is used", c->count, (long long)count, from,
             (long long)listed);
    row_hosts_drop(h);
    return;
  }
  if (!counted) count = listed;
  if (index >= 0) row_set_number(r, &to->index, index, c->index);
  if (place >= 0) row_set_number(r, &to->index, place, row_variable(r, c->index) ? c->index : from);
  if (count && (index >= count || (c->json && place < 0 && own[0]))) {
    snprintf(why, sizeof(why), "is not one of the %lld nodes of %s: neither is used", (long long)count,
             counted ? c->count : from);
    row_warn_of(r, c->index, why);
    row_hosts_drop(h);
  } else if (count) {
    row_set_number(r, &to->agents, count, counted ? c->count : from);
  }
}

void cluster_read_cloud(struct row *r) {
  struct buf signs = BUF_INIT;
  const struct cloud *c = find_cloud(r, &signs);
  struct cluster *to = r->c;
  struct row_hosts h = {0};
  char own[HOST_MAX + 1] = "", one_each[64];
  const char *from = c ? c->hosts : NULL;
  if (!c) return;
  bool launched = to->start.is_set;
  row_set_text(r, &to->scheduler, c->name, buf_text(&signs));
  if (!launched) row_set_text(r, &to->launcher, c->name, buf_text(&signs));
  row_set_number(r, &to->start, CLUSTER_STARTED, buf_text(&signs));
  buf_finish(&signs);
  if (c->json)
    find_sagemaker_hosts(r, &h, &from, own);
  else if (c->hosts)
    list_from_variable(r, c->hosts, LIST_WORDS, &h);
  count_nodes(r, c, &h, from, own);
  /* A list that has a node twice says nothing of who is beside whom. */
  snprintf(one_each, sizeof(one_each), "(%s starts one agent on each node)", c->name);
  if (!launched && (int64_t)h.n == list_slots(&h)) {
    row_set_number(r, &to->local_agents, 1, one_each);
    row_set_number(r, &to->local_index, 0, one_each);
  }
  const char *id = row_variable(r, c->job);
  char *name = id ? xstrndup(id, strcspn(id, "#")) : NULL;
  if (name) row_set_job(r, c->kind, name, NULL, c->job);
  free(name);
  if (c->gpus && cluster_number(&to->local_agents, 1) == 1) row_take_number(r, &to->gpus, c->gpus, 0, WORKERS_MAX);
  find_first_host(r, c, &h);
  /* All agents know the list, so without a job's id they still agree. */
  if (h.n && !to->job.is_set) row_set_number(r, &to->port, RDZV_DEFAULT_PORT, "(rdzvd's own)");
  row_set_hosts(r, &h, from);
}
