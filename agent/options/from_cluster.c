/* What nobody has said, and the cluster knows.
 *
 * Command line, RDZV_AGENT_*, PET_*, then the facts of agent/cluster, then the defaults: a fact counts where the option itself comes from
 * no other source. So `srun rdzv-agent -- ./train` needs no option, and each single one can be said otherwise.
 *
 *     --nnodes    as many as were started
 *     --nproc     as many as there are GPUs granted to this agent; where that is unknown, all that can be seen from here, unless
 *                 other agents on this host, or on any, see the same ones: then 1
 *     --endpoint  the first host, on a port that is derived from the job's id; 127.0.0.1 where all agents are on one host
 *     --rdzv-id   the job's name
 *     --expect    the job's hosts, if this host's own name is among them: else they are names that hosts do not have (containers). Not
 *                 where --rdzv-id names another of the scheduler's jobs, for which this node is a spare
 *
 * Refused is what would end in nothing, or in something else than was meant: a batch script that runs once and has several nodes (the
 * scheduler's own way to start something on each is shown), agents whose launcher does not tell where the first one is, and pods that are numbered, but
 * not counted: each would train by itself.
 *
 * A worker may start an agent of its own, for a job of its own. It inherits the scheduler's variables, and they are about the
 * agent further out; its socket in the environment gives it away, and then no fact counts. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "agent/options/internal.h"

static bool said_where(const struct settling *s) {
  const struct torch_options *t = &s->o->torch;
  return s->o->standalone || (t->endpoint && *t->endpoint) || (t->master_addr && *t->master_addr) ||
         t->master_port >= 0;
}

/* What is told of the job: "Slurm job 47's", for sentences. */
static const char *whose(const struct cluster *c) {
  return c->launcher.is_set ? c->launcher.text : c->scheduler.is_set ? c->scheduler.text : "the launcher";
}

static int refuse_alone(const struct cluster *c, struct err *e) {
  return err_set(
      e, -EINVAL,
      "%s runs this script on one of the job's %" PRId64
      " nodes alone: write %s rdzv-agent ..., which starts one on each (or --standalone, for this node "
      "by itself)",
      whose(c), cluster_number(&c->nodes, 0), c->starter.text);
}

/* One of several, and it is nobody's word how many: each would be a job of its own. */
static int refuse_numbered(const struct settling *s, struct err *e) {
  const struct cluster *c = s->cluster;
  return err_set(
      e, -EINVAL,
      "%s has started this agent as one of several (%s), and does not tell how many there are: give "
      "--nnodes N%s, the same to all (or --standalone, for a job of its own in each)",
      whose(c), c->index.source, said_where(s) ? "" : " and --endpoint HOST");
}

int options_take_count(struct settling *s, struct err *e) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  if (options_is_given(s, "nnodes") || o->standalone) return 0;
  if (cluster_is_alone(c) && cluster_number(&c->nodes, 1) > 1 && c->starter.is_set && !said_where(s))
    return refuse_alone(c, e);
  if (c->index.is_set && !c->start.is_set) return refuse_numbered(s, e);
  if (!cluster_is_started(c)) return 0;
  if (!c->agents.is_set)
    return err_set(e, -EINVAL, "%s does not tell how many agents it has started: give --nnodes N", whose(c));
  o->nnodes.min = o->nnodes.max = c->agents.number;
  o->from.nnodes = c->agents.source;
  return 0;
}

static int refuse_unknown(const struct cluster *c, struct err *e) {
  return err_set(
      e, -EINVAL,
      "%s has started %" PRId64
      " agents, and does not tell on which host the first one is: give --endpoint HOST, where HOST is the "
      "name of one of them, the same for all",
      whose(c), cluster_number(&c->agents, 0));
}

static int refuse_nameless(const struct cluster *c, struct err *e) {
  return err_set(
      e, -EINVAL,
      "%s has started %" PRId64
      " agents, and gives them no job's id, from which a port would follow: give --endpoint HOST:PORT, "
      "the same for all",
      whose(c), cluster_number(&c->agents, 0));
}

int options_take_place(struct settling *s, bool *done, struct err *e) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  int64_t agents = cluster_number(&c->agents, 0);
  *done = false;
  if (o->nnodes.max == 1) return 0;
  if (cluster_is_alone(c) && cluster_number(&c->nodes, 1) > 1 && c->starter.is_set) return refuse_alone(c, e);
  if (!cluster_is_started(c)) return 0;
  if (agents && o->nnodes.min > agents)
    return err_set(e, -EINVAL,
                   "%s=%" PRId64 " is more than the %" PRId64
                   " agents that %s has started (%s): start more, or give --endpoint HOST if others come",
                   options_spelt(s, "nnodes"), o->nnodes.min, agents, whose(c), c->agents.source);
  bool here = cluster_is_one_host(c) && o->nnodes.max <= agents;
  const struct cluster_fact *place = !here                    ? &c->first_host
                                     : c->local_agents.is_set ? &c->local_agents
                                                              : &c->nodes;
  if (!place->is_set) return refuse_unknown(c, e);
  if (!c->port.is_set) return refuse_nameless(c, e);
  int rc = endpoint_parse(here ? "127.0.0.1" : c->first_host.text, (uint16_t)c->port.number, &o->endpoint, e);
  if (rc) return err_wrap(e, "%s", c->first_host.source);
  snprintf(o->endpoint_from, sizeof(o->endpoint_from), "%s; port: %s", place->source, c->port.source);
  o->from.endpoint = o->endpoint_from;
  snprintf(o->endpoint_where, sizeof(o->endpoint_where), "of %s", place->source);
  *done = true;
  return 0;
}

/* Told that there are no more than there are hosts, where that can be: one on each. */
static bool is_one_a_host(const struct settling *s) {
  const struct cluster *c = s->cluster;
  return c->agents_at_most && options_is_given(s, "nnodes") &&
         s->o->nnodes.max <= cluster_number(&c->nodes, 0);
}

static bool shares_host(const struct settling *s) {
  return cluster_is_started(s->cluster) && cluster_shares_hosts(s->cluster) && !is_one_a_host(s);
}

static void take_nproc(struct settling *s) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  if (options_is_given(s, "nproc") || (!c->scheduler.is_set && !c->launcher.is_set)) return;
  if (c->gpus.is_set) {
    o->nproc = c->gpus.number ? c->gpus.number : 1;
    o->from.nproc = c->gpus.source;
  } else if (shares_host(s)) {
    o->from.nproc = c->local_agents.is_set ? c->local_agents.source : c->agents.source;
  } else {
    o->nproc = OPTIONS_NPROC_SEEN; /* by what they are seen agent/place knows */
  }
}

/* "slurm-4711.0" where we are in "slurm-4712.0": this node is a spare for another job of the scheduler's. */
static bool is_for_another_job(const struct settling *s) {
  const struct cluster *c = s->cluster;
  const char *given = s->o->rdzv_id, *own = c->job.is_set ? c->job.text : "", *number = strchr(own, '-');
  if (!given || !number) return false;
  size_t kind = (size_t)(number + 1 - own);
  if (strncmp(given, own, kind) != 0) return false;
  size_t ours = strspn(own + kind, "0123456789"), other = strspn(given + kind, "0123456789");
  return other && (other != ours || strncmp(given + kind, own + kind, ours) != 0);
}

/* Who is to come. What was started, or, where the others are started by hand inside a job, its nodes. */
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
  if (o->standalone || !fits || is_for_another_job(s)) return; /* of something else */
  o->expect_nodes = n;
  if (!c->hosts.is_set || !cluster_lists(c->hosts.text, c->own_host)) return;
  o->expect = c->hosts.text;
  o->from.expect = c->hosts.source;
}

static void take_times(struct settling *s) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  o->end_time = cluster_number(&c->end_time, 0);
  o->scheduler_restarts = cluster_number(&c->restarts, -1);
  o->from.end_time = c->end_time.source;
  o->from.scheduler_restarts = c->restarts.source;
  if (!o->end_time) options_put_aside(s, "leave-before-end", "no scheduler has told when the job ends");
  if (!o->end_time) o->leave_before_end_ms = 0;
}

/* A shell of the job's on another machine, such as that of salloc. */
static void note_elsewhere(struct settling *s) {
  const struct cluster *c = s->cluster;
  if (!cluster_is_alone(c) || !c->starter.is_set || !c->hosts.is_set || !c->own_host[0]) return;
  if (s->o->standalone && !cluster_lists(c->hosts.text, c->own_host))
    options_note(s->o, "this host, %s, is none of the %s job's (%s): %s rdzv-agent ... runs there",
                 c->own_host, whose(c), c->hosts.text, c->starter.text);
}

/* Which of the agents on this host this one is. */
static void take_neighbours(struct settling *s) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  bool several = shares_host(s) && !o->standalone && cluster_number(&c->local_agents, 2) > 1;
  bool known = several && c->local_agents.is_set && c->local_index.is_set;
  o->local_agents = known ? c->local_agents.number : 1;
  o->local_index = known ? c->local_index.number : 0;
  if (known) o->from.local_rank = c->local_index.source;
  if (cluster_is_started(c) && !o->standalone && cluster_number(&c->local_agents, 0) == 1)
    o->from.local_rank = c->local_agents.source;
  if (several && !known) o->crowded_by = c->local_agents.is_set ? c->local_agents.source : c->agents.source;
}

void options_take_rest(struct settling *s) {
  struct agent_options *o = s->o;
  const struct cluster *c = s->cluster;
  take_neighbours(s);
  if (c->index.is_set && !o->standalone) {
    o->order_key = c->index.number;
    o->from.order_key = c->index.source;
  }
  if (!o->rdzv_id && c->job.is_set && !s->said_standalone) {
    o->rdzv_id = c->job.text;
    o->from.rdzv_id = c->job.source;
  }
  take_nproc(s);
  take_expected(s);
  take_times(s);
  note_elsewhere(s);
}
