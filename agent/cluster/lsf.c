/* SPDX-License-Identifier: Apache-2.0 */
/* IBM Spectrum LSF, OpenLava and Volclava.
 *
 * The script runs on the first host of the job. LSB_MCPU_HOSTS lists the hosts with their slots; two files and
 * LSB_HOSTS list a host once per slot (LSB_HOSTS is unset if it would be too long). `blaunch HOST COMMAND` is a remote
 * shell within the job; `blaunch COMMAND` starts a task per slot. LSF_PM_TASKID numbers tasks from 1, host by host.
 *
 * With IBM's Cluster System Manager (Summit, Sierra) the script runs on a launch node. The lists have it first with
 * one slot, and it runs no workers; jsrun starts and numbers tasks on the others: JSM_NAMESPACE_*.
 *
 * LSB_JOBINDEX is 0 outside of arrays. LSB_RESTART is Y if the job was started before; LSF reports neither how often
 * nor when the job ends. Granted GPUs are in CUDA_VISIBLE_DEVICES, which is read in any case. */

#include <string.h>
#include <strings.h>
#include "agent/cluster/internal.h"

static void read_blaunch(struct row *r, const struct row_hosts *h, const char *from) {
  int64_t task, here = row_hosts_find(h, r->site->host);
  if (!row_number(r, "LSF_PM_TASKID", 1, NODES_MAX, &task)) return;
  row_set_number(r, &r->c->start, CLUSTER_STARTED, "LSF_PM_TASKID");
  row_set_text(r, &r->c->launcher, "blaunch", "LSF_PM_TASKID");
  if (h->n) row_set_number(r, &r->c->agents, list_slots(h), from);
  row_take_number(r, &r->c->agents, "LSB_DJOB_NUMPROC", 1, NODES_MAX);
  row_set_number(r, &r->c->index, task - 1, "LSF_PM_TASKID");
  if (here < 0) return;
  int64_t local = task - 1 - list_slots_before(h, (size_t)here);
  row_set_number(r, &r->c->local_agents, h->v[here].slots, from);
  if (local >= 0 && local < h->v[here].slots) row_set_number(r, &r->c->local_index, local, "LSF_PM_TASKID");
}

void cluster_read_lsf(struct row *r) {
  const char *id = row_variable(r, "LSB_JOBID"), *restarted = row_variable(r, "LSB_RESTART"), *from = "";
  struct row_hosts h = {0};
  if (!id) return;
  const char *index = row_variable(r, "LSB_JOBINDEX");
  row_set_text(r, &r->c->scheduler, "LSF", "LSB_JOBID");
  row_set_array_job(r, "lsf", id, index && strcmp(index, "0") != 0 ? index : NULL, "LSB_JOBID LSB_JOBINDEX");
  if (!list_from_variable(r, from = "LSB_MCPU_HOSTS", LIST_PAIRS, &h) &&
      !list_from_file(r, from = "LSB_DJOB_HOSTFILE", LIST_LINES, &h) &&
      !list_from_file(r, from = "LSB_DJOB_RANKFILE", LIST_LINES, &h))
    list_from_variable(r, from = "LSB_HOSTS", LIST_WORDS, &h);
  /* With CSM the first host is a launch node: it has one slot where another has more. */
  bool launched = r->c->start.is_set,
       csm = row_variable(r, "JSM_NAMESPACE_SIZE") || row_variable(r, "CSM_ALLOCATION_ID");
  bool more = strncasecmp(h.n ? h.v[0].name : "", "batch", 5) == 0;
  for (size_t i = 1; i < h.n && !more; i++) more = h.v[i].slots > 1;
  csm = csm && h.n > 1 && h.v[0].slots == 1 && more;
  bool there = csm && row_hosts_find(&h, r->site->host) == 0;
  if (csm) {
    struct row_hosts rest = {0};
    for (size_t i = 1; i < h.n; i++) row_hosts_add(&rest, h.v[i].name, strlen(h.v[i].name), h.v[i].slots, NULL);
    row_hosts_drop(&h);
    h = rest;
  }
  if (!launched && row_variable(r, "JSM_NAMESPACE_RANK")) {
    row_set_number(r, &r->c->start, CLUSTER_STARTED, "JSM_NAMESPACE_RANK");
    row_set_text(r, &r->c->launcher, "jsrun", "JSM_NAMESPACE_RANK");
    row_take_number(r, &r->c->agents, "JSM_NAMESPACE_SIZE", 1, NODES_MAX);
    row_take_number(r, &r->c->index, "JSM_NAMESPACE_RANK", 0, NODES_MAX - 1);
    row_take_number(r, &r->c->local_agents, "JSM_NAMESPACE_LOCAL_SIZE", 1, CLUSTER_SLOTS_MAX);
    row_take_number(r, &r->c->local_index, "JSM_NAMESPACE_LOCAL_RANK", 0, CLUSTER_SLOTS_MAX - 1);
  } else if (!launched) {
    read_blaunch(r, &h, from);
  }
  if (there && !r->c->start.is_set)
    row_warn(
        r,
        "%s is a launch node of this job, which runs no workers: start the agents with jsrun, one on each host (jsrun "
        "-r 1 -a 1 -c ALL_CPUS -g ALL_GPUS rdzv-agent ...)",
        r->site->host);
  row_set_number(r, &r->c->start, CLUSTER_ALONE, "LSB_JOBID");
  if (!csm) row_set_text(r, &r->c->remote_shell, "blaunch", "LSB_JOBID");
  if (restarted) row_set_number(r, &r->c->restarts, strcasecmp(restarted, "y") == 0, "LSB_RESTART");
  row_set_hosts(r, &h, from);
}
