/* SPDX-License-Identifier: Apache-2.0 */
/* Defaults that follow from the cluster's facts.
 *
 * Precedence, highest first: command line, RDZV_AGENT_*, PET_*, the facts of agent/cluster, defaults. So `srun
 * rdzv-agent -- ./train` needs no option, and any single setting can be overridden.
 *
 *     --nnodes    the number of started agents
 *     --nproc     the GPUs granted to this agent; if unknown, the GPUs visible here, unless several agents see the same
 *                 ones: then 1
 *     --endpoint  the first host, on a port derived from the job's id; loopback if all agents are on one host
 *     --rdzv-id   the job's name
 *     --expect    the job's hosts, if this host is one of them (in containers names differ), and unless --rdzv-id names
 *                 another job of the scheduler, for which this node is a spare
 *
 * A typed endpoint also names the job, unless the scheduler started as many agents as the job has nodes: agents
 * started elsewhere do not know the scheduler's job. Whoever types --node-rank too types it on each node, perhaps in a
 * shell of srun here and one of ssh there.
 *
 * A worker may start an agent for a job of its own. It inherits the scheduler's variables, but they describe the outer
 * agent: RDZV_AGENT_SOCKET shows that, and then no fact counts. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "agent/options/internal.h"
#include "common/ascii.h"
#include "common/hostlist.h"

static bool has_meeting_place(const struct settling *s) {
  const struct torch_options *t = &s->o->torch;
  return s->o->standalone || (t->endpoint && *t->endpoint) || (t->master_addr && *t->master_addr) ||
         t->master_port >= 0;
}

/* The starter of this agent, for sentences. */
static const char *starter_name(const struct cluster *c) {
  return c->launcher.is_set ? c->launcher.text : c->scheduler.is_set ? c->scheduler.text : "the launcher";
}

static int refuse_alone(const struct cluster *c, struct err *e) {
  return err_set(e, -EINVAL,
                 "%s runs this script on only one of the job's %" PRId64
                 " nodes: write %s rdzv-agent ..., which starts an agent on each (or --standalone, for this node only)",
                 starter_name(c), cluster_number(&c->nodes, 0), c->starter.text);
}

enum { HINT_MAX = 64, ENDPOINT_REACH_MS = 60000, ENDPOINT_UNKNOWN_MS = 60000 };

/* The launcher's option to start one agent on each host, for a sentence; "": not known. nodes: the number of hosts,
 * which some need; 0: they have it. */
static const char *one_on_each(const struct cluster *c, int64_t nodes, char hint[HINT_MAX]) {
  static const struct {
    const char *launcher, *program, *option;
    bool counts; /* it has an option --nodes */
  } known[] = {{"srun", "srun", "--ntasks-per-node=1", true},
               {"Open MPI", "mpirun", "--map-by ppr:1:node", false},
               {"Hydra", "mpiexec", "-ppn 1", false},
               {"PALS", "mpiexec", "--ppn 1", false},
               {"Flux", "flux run", "--tasks-per-node=1", true},
               {"jsrun", "jsrun", "-r 1 -a 1", false}};
  char count[32] = "";
  hint[0] = '\0';
  for (size_t i = 0; c->launcher.is_set && i < sizeof(known) / sizeof(*known); i++) {
    if (strcmp(c->launcher.text, known[i].launcher) != 0) continue;
    if (known[i].counts && nodes) snprintf(count, sizeof(count), " --nodes=%" PRId64, nodes);
    snprintf(hint, HINT_MAX, " (%s%s %s)", known[i].program, count, known[i].option);
  }
  return hint;
}

int options_nodes_from_cluster(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  if (o->standalone) return 0;
  if (options_is_given(s, "nnodes")) {
    /* More agents than nodes are spares, if each has its own host. On shared hosts the first to join would take all places
     * on one host, and other hosts would stay empty. */
    int64_t agents = cluster_number(&c->agents, 0), most = o->nnodes.max;
    char hint[HINT_MAX];
    if (!cluster_is_started(c) || c->agents_at_most || most == 1 || agents <= most || !cluster_shares_hosts(c))
      return 0;
    return err_set(e, -EINVAL,
                   "%s started %" PRId64 " agents (%s), several of them on one host, but %s=%" PRId64 " admits %" PRId64
                   ": start one on each host%s, or remove --nnodes and --nproc, so that each agent is a node",
                   starter_name(c), agents, c->agents.source, options_spelling_of(s, "nnodes"), most, most,
                   one_on_each(c, 0, hint));
  }
  if (cluster_is_alone(c) && cluster_number(&c->nodes, 1) > 1 && c->starter.is_set && !has_meeting_place(s))
    return refuse_alone(c, e);
  if (c->index.is_set && !c->start.is_set) /* each would be a job of its own */
    return err_set(
        e, -EINVAL,
        "%s started this agent as one of several (%s), but does not report how many there are: give --nnodes N%s, the "
        "same to all (or --standalone, for a separate job in each)",
        starter_name(c), c->index.source, has_meeting_place(s) ? "" : " and --endpoint HOST");
  if (!cluster_is_started(c)) return 0;
  if (!c->agents.is_set)
    return err_set(e, -EINVAL, "%s does not report how many agents it started: give --nnodes N%s", starter_name(c),
                   c->first_host.is_set || has_meeting_place(s) ? "" : " and --endpoint HOST, the same to all");
  o->nnodes.min = o->nnodes.max = c->agents.number;
  o->from.nnodes = c->agents.source;
  return 0;
}

int options_endpoint_from_cluster(struct settling *s, bool *done, struct err *e) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  int64_t agents = cluster_number(&c->agents, 0);
  char hint[HINT_MAX];
  *done = false;
  if (o->nnodes.max == 1) return 0;
  if (cluster_is_alone(c) && cluster_number(&c->nodes, 1) > 1 && c->starter.is_set) return refuse_alone(c, e);
  if (!cluster_is_started(c)) return 0;
  if (agents && o->nnodes.min > agents)
    return err_set(e, -EINVAL,
                   "%s started %" PRId64 " agent%s (%s), but %s=%" PRId64 " needs %" PRId64
                   ": start one on each node%s, or give --endpoint HOST if others are started elsewhere",
                   starter_name(c), agents, agents == 1 ? "" : "s", c->agents.source, options_spelling_of(s, "nnodes"),
                   o->nnodes.min, o->nnodes.min, one_on_each(c, o->nnodes.min, hint));
  bool here = cluster_is_one_host(c) && o->nnodes.max <= agents;
  const struct cluster_fact *place = !here ? &c->first_host : c->local_agents.is_set ? &c->local_agents : &c->nodes;
  if (!place->is_set)
    return err_set(
        e, -EINVAL,
        "%s started %" PRId64
        " agents, but does not report the host of the first: give --endpoint HOST, where HOST is one of their hosts, "
        "the same to all%s",
        starter_name(c), agents,
        strcmp(starter_name(c), "Flux") == 0
            ? " (flux run ... sh -c 'rdzv-agent --endpoint $(flux hostlist --nth=0 local) ...')"
            : "");
  if (!c->port.is_set)
    return err_set(
        e, -EINVAL,
        "%s started %" PRId64
        " agents, but sets no job id from which to derive a port: give --endpoint HOST:PORT, the same to all",
        starter_name(c), agents);
  int rc = endpoint_parse(here ? cluster_loopback(c) : c->first_host.text, (uint16_t)c->port.number, o->endpoints, e);
  if (rc) return err_wrap(e, "%s", c->first_host.source);
  snprintf(o->endpoint_from, sizeof(o->endpoint_from), "%s; port: %s", place->source, c->port.source);
  o->from.endpoint = o->endpoint_from;
  snprintf(o->endpoint_where, sizeof(o->endpoint_where), "of %s", place->source);
  *done = true;
  return 0;
}

static bool shares_host(const struct settling *s) {
  const struct cluster *c = s->cluster;
  bool one_a_host =
      c->agents_at_most && options_is_given(s, "nnodes") && s->o->nnodes.max <= cluster_number(&c->nodes, 0);
  return cluster_is_started(c) && cluster_shares_hosts(c) && !one_a_host;
}

/* Whether all expected agents have the scheduler's facts. With a typed endpoint others may join that lack its
 * variables, such as agents started by ssh; these would be a job of their own. */
static bool all_know_the_job(const struct settling *s) {
  const struct cluster *c = s->cluster;
  if (!has_meeting_place(s) || s->o->nnodes.max == 1) return true;
  if (options_source(s, "node-rank") == OPT_FROM_ARGV) return false;
  return c->index.is_set && cluster_number(&c->agents, NODES_MAX) >= s->o->nnodes.max;
}

/* "slurm-4711.0" while this is "slurm-4712.0": this node is a spare for another job of the scheduler. */
static bool is_for_another_job(const struct settling *s) {
  const struct cluster *c = s->cluster;
  const char *given = s->o->rdzv_id, *own = c->job.is_set ? c->job.text : "", *number = strchr(own, '-');
  if (!given || !number) return false;
  size_t kind = (size_t)(number + 1 - own);
  if (strncmp(given, own, kind) != 0) return false;
  size_t ours = strspn(own + kind, "0123456789"), other = strspn(given + kind, "0123456789");
  return other && (other != ours || strncmp(given + kind, own + kind, ours) != 0);
}

/* The expected nodes: the started agents, or the nodes of the job if agents are started by hand. */
static void take_expected(struct settling *s) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  if (o->expect) {
    o->expect_nodes = cluster_count(o->expect);
    return;
  }
  const struct cluster_fact *count = cluster_is_started(c) ? &c->agents : &c->nodes;
  int64_t n = cluster_number(count, 0);
  bool fits = n >= o->nnodes.min && n <= o->nnodes.max;
  if (o->standalone || !fits || is_for_another_job(s)) return;
  o->expect_nodes = n;
  if (!c->hosts.is_set || !cluster_lists(c->hosts.text, c->own_host)) return;
  o->expect = c->hosts.text;
  o->from.expect = c->hosts.source;
}

/* A place like $SLURM_SUBMIT_HOST: no agent of this job will ever start rdzvd there. Somebody else may run one there,
 * so it is tried, but not for as long as an agent that may still come. */
static void doubt_endpoint(struct settling *s) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  const char *option = options_source(s, "endpoint") == OPT_FROM_ARGV      ? "endpoint"
                       : options_source(s, "master-addr") == OPT_FROM_ARGV ? "master-addr"
                                                                           : NULL;
  const char *place = o->endpoints->host;
  if (!option || o->standalone || o->n_endpoints != 1 || !cluster_is_started(c) || !c->hosts.is_set) return;
  if (cluster_number(&c->agents, 0) < o->nnodes.max || ipaddr_parse(place).family) return;
  if (ipaddr_parse(c->host[0].name).family) return; /* a list of addresses says nothing about names */
  /* Another name of a listed host may be that of a network: "n3-ib" for "n3". */
  for (size_t i = 0; i < c->n_hosts; i++) {
    size_t n = hostlist_short(c->host[i].name);
    if (n && strncasecmp(place, c->host[i].name, n) == 0 && !ascii_is_digit(place[n])) return;
  }
  if (cluster_lists(c->hosts.text, place) || strcasecmp(place, "localhost") == 0 || cluster_lists(place, c->own_host))
    return;
  snprintf(o->endpoint_doubt, sizeof(o->endpoint_doubt), "%s is not one of this %s's hosts, %s: leave %s out", place,
           strcmp(starter_name(c), "srun") == 0 ? "step" : "job", c->hosts.text, options_spelling_of(s, option));
  if (!options_is_given(s, "join-timeout")) o->reach_ms = ENDPOINT_REACH_MS;
}

void options_rest_from_cluster(struct settling *s) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  int64_t agents = cluster_number(&c->agents, 0);
  /* An agent that needs others which the launcher did not start would wait. */
  if (cluster_is_started(c) && !o->standalone && !o->rdzv_id && agents && o->nnodes.min > agents)
    options_note(o,
                 "%s started %" PRId64 " agent%s (%s), but %s=%" PRId64 " needs %" PRId64
                 ": start the others elsewhere, with the same endpoint",
                 starter_name(c), agents, agents == 1 ? "" : "s", c->agents.source, options_spelling_of(s, "nnodes"),
                 o->nnodes.min, o->nnodes.min);
  doubt_endpoint(s);
  /* A misspelt name is not tried for as long as a machine that may still boot. In Kubernetes the name of a pod appears
   * when the pod is scheduled, and with several addresses the others may know. */
  bool late = c->scheduler.is_set && strcmp(c->scheduler.text, "Kubernetes") == 0;
  if (o->n_endpoints == 1 && !late && !options_is_given(s, "join-timeout")) o->unknown_ms = ENDPOINT_UNKNOWN_MS;
  /* Which agent of this host this one is. */
  bool several = shares_host(s) && !o->standalone && cluster_number(&c->local_agents, 2) > 1;
  bool known = several && c->local_agents.is_set && c->local_index.is_set;
  o->local_agents = known ? c->local_agents.number : 1;
  o->local_index = known ? c->local_index.number : 0;
  if (known) o->from.local_rank = c->local_index.source;
  if (cluster_is_started(c) && !o->standalone && cluster_number(&c->local_agents, 0) == 1)
    o->from.local_rank = c->local_agents.source;
  if (several && !known) o->crowded_by = c->local_agents.is_set ? c->local_agents.source : c->agents.source;
  if (c->index.is_set && !o->standalone) {
    o->order_key = c->index.number;
    o->from.order_key = c->index.source;
  }
  if (!o->rdzv_id && c->job.is_set && !s->said_standalone && all_know_the_job(s)) {
    o->rdzv_id = c->job.text;
    o->from.rdzv_id = c->job.source;
  }
  bool nproc_follows = !options_is_given(s, "nproc") && (c->scheduler.is_set || c->launcher.is_set);
  if (nproc_follows && c->gpus.is_set) {
    o->nproc = c->gpus.number ? c->gpus.number : 1;
    o->from.nproc = c->gpus.source;
  } else if (nproc_follows && shares_host(s)) {
    o->from.nproc = c->local_agents.is_set ? c->local_agents.source : c->agents.source;
  } else if (nproc_follows) {
    o->nproc = OPTIONS_NPROC_SEEN; /* agent/place.c counts them */
  }
  take_expected(s);
  o->end_time = cluster_number(&c->end_time, 0);
  o->scheduler_restarts = cluster_number(&c->restarts, -1);
  o->from.end_time = c->end_time.source;
  o->from.scheduler_restarts = c->restarts.source;
  if (!o->end_time) {
    options_note_ignored(s, "leave-before-end", "no scheduler reports when the job ends");
    o->leave_before_end_ms = 0;
  }
  /* A shell of the job on another machine, such as that of salloc. */
  if (o->standalone && cluster_is_alone(c) && c->starter.is_set && c->hosts.is_set && c->own_host[0] &&
      !cluster_lists(c->hosts.text, c->own_host))
    options_note(o, "this host, %s, does not belong to the %s job (%s): %s rdzv-agent ... runs there", c->own_host,
                 starter_name(c), c->hosts.text, c->starter.text);
}
