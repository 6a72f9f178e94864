/* SPDX-License-Identifier: Apache-2.0 */
/* Kubernetes. It sets no variables for jobs; the controllers that create the pods set some.
 *
 *     Indexed Job, JobSet   JOB_COMPLETION_INDEX, and the pod's name "JOB-INDEX". Number of pods and first pod: see
 *                           the manifest (deploy/kubernetes.md)
 *     Kubeflow Trainer      the same, and torchrun's PET_*, which are options here too
 *     PyTorchJob            MASTER_ADDR, MASTER_PORT, RANK: of pods, not workers; WORLD_SIZE: number of pods times
 *                           nprocPerNode; PET_NNODES in all but old versions. Pods: "JOB-master-0", "JOB-worker-3"
 *     LeaderWorkerSet       LWS_LEADER_ADDRESS, LWS_GROUP_SIZE, LWS_WORKER_INDEX: each group is a job
 *
 * Every worker has RANK and MASTER_ADDR too, so they are ignored if LOCAL_RANK is set. */

#include <stdio.h>
#include <string.h>
#include "agent/cluster/internal.h"
#include "common/ascii.h"
#include "common/opts/opts.h"

enum { NAME_LEN = 256 };

/* The pod's name without its domain and index suffix ("-3"); false: it has none. */
static bool job_of_pod(const struct row *r, char name[NAME_LEN]) {
  const char *host = row_variable(r, "HOSTNAME");
  snprintf(name, NAME_LEN, "%.*s", (int)strcspn(host ? host : "", "."), host ? host : "");
  size_t n = strlen(name);
  while (n > 0 && ascii_is_digit(name[n - 1])) n--;
  if (n < 2 || !name[n] || name[n - 1] != '-') return false;
  name[n - 1] = '\0';
  return true;
}

static void read_pytorch_job(struct row *r) {
  const char *master = row_variable(r, "MASTER_ADDR");
  char name[NAME_LEN];
  /* Two of the three suffice to conclude that there are other pods: what is missing is refused later. */
  if (!!master + !!row_variable(r, "RANK") + !!row_variable(r, "WORLD_SIZE") < 2 || row_variable(r, "LOCAL_RANK"))
    return;
  row_set_text(r, &r->c->launcher, "PyTorchJob", "MASTER_ADDR RANK WORLD_SIZE");
  row_take_number(r, &r->c->index, "RANK", 0, NODES_MAX - 1);
  /* WORLD_SIZE counts workers if nprocPerNode is a number, else pods. */
  int64_t world, each = 1;
  const char *text = row_variable(r, "PET_NPROC_PER_NODE");
  bool known = row_number(r, "WORLD_SIZE", 1, INT32_MAX, &world);
  if (text && parse_int(text, 1, CLUSTER_SLOTS_MAX, &each, NULL)) each = 1;
  if (known && (world % each || world / each > NODES_MAX)) {
    row_warn_of(r, "WORLD_SIZE", "is not a number of pods times PET_NPROC_PER_NODE: it is ignored");
  } else if (known) {
    row_set_number(r, &r->c->agents, world / each, "WORLD_SIZE PET_NPROC_PER_NODE");
    row_set_number(r, &r->c->start, CLUSTER_STARTED, "WORLD_SIZE PET_NPROC_PER_NODE");
  }
  if (master) row_set_text(r, &r->c->first_host, master, "MASTER_ADDR");
  row_take_number(r, &r->c->port, "MASTER_PORT", 1, 65535);
  if (!job_of_pod(r, name)) return;
  char *role = strrchr(name, '-');
  if (!role || (strcmp(role, "-master") != 0 && strcmp(role, "-worker") != 0)) return;
  *role = '\0';
  row_set_job(r, "k8s", name, NULL, "HOSTNAME");
}

void cluster_read_k8s(struct row *r) {
  if (!row_variable(r, "KUBERNETES_SERVICE_HOST")) return;
  row_set_text(r, &r->c->scheduler, "Kubernetes", "KUBERNETES_SERVICE_HOST");
  static const char vars[] = "LWS_LEADER_ADDRESS";
  const char *leader = row_variable(r, vars);
  char name[NAME_LEN], suffix[32];
  if (leader || row_variable(r, "LWS_GROUP_SIZE") || row_variable(r, "LWS_WORKER_INDEX")) {
    static const char group[] = "LWS_LEADER_ADDRESS LWS_GROUP_SIZE LWS_WORKER_INDEX";
    row_set_text(r, &r->c->launcher, "LeaderWorkerSet", group);
    row_set_number(r, &r->c->start, CLUSTER_STARTED, group);
    row_take_number(r, &r->c->index, "LWS_WORKER_INDEX", 0, NODES_MAX - 1);
    row_take_number(r, &r->c->agents, "LWS_GROUP_SIZE", 1, NODES_MAX);
  }
  if (leader) {
    row_set_text(r, &r->c->first_host, leader, vars);
    snprintf(name, sizeof(name), "%.*s", (int)strcspn(leader, "."), leader);
    row_set_job(r, "k8s", name, NULL, vars);
  }
  read_pytorch_job(r);
  int64_t index;
  if (!row_number(r, "JOB_COMPLETION_INDEX", 0, NODES_MAX - 1, &index)) return;
  row_set_number(r, &r->c->index, index, "JOB_COMPLETION_INDEX");
  const char *host = row_variable(r, "HOSTNAME");
  int n = snprintf(suffix, sizeof(suffix), "-%lld", (long long)index);
  size_t len = host ? strcspn(host, ".") : 0;
  if (host && len > (size_t)n && strncmp(host + len - n, suffix, (size_t)n) == 0 && job_of_pod(r, name))
    row_set_job(r, "k8s", name, NULL, "HOSTNAME JOB_COMPLETION_INDEX");
}
