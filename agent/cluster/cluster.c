/* Where this agent is: schedulers and launchers, by what they leave in the environment.
 *
 * One table, one row for each of them, in an order: launchers first, since mpirun inside a Slurm job leaves the variables of both, and
 * it is mpirun that has started this agent and its fellows; Slurm then still knows the job's hosts, its end and its GPUs. So each fact
 * is taken from the first row that has it. A row knows the names of its variables and nothing else; what can be concluded from facts
 * alone (a port from a name, one host from two counts) is concluded here, when all rows are through.
 *
 *     environment, host files -> rows -> facts, each with its source -> options.c: what the user has not said -> --explain
 *
 * A scheduler's variables are somebody else's text: a count that is no number, a list that is none, or two that contradict each other
 * occur (old versions, wrappers that set half of them, a shell that was left over from another job). Such a value counts as unset and is
 * told in a sentence; it never stops an agent, which may have been told everything on its command line.
 *
 * A job's name must be the same for all of its agents and no other's. Slurm numbers the steps of a job; others do not, there the job's id
 * has to do, and two runs in it at the same time need --rdzv-id. mpirun numbers its own starts: that number goes behind the job's id.
 *
 * The port: jobs that run at the same time have ids near to each other, so consecutive ids are spread over the range by
 * a prime instead of at random, and two of them never meet. Ids that are no numbers are hashed. */

#include "agent/cluster/cluster.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "agent/cluster/internal.h"
#include "common/hostlist.h"
#include "common/mem.h"

#define END_TIME_MAX INT64_C(99999999999) /* seconds since 1970: in some thousand years */

static void (*const rows[])(struct row *) = {
    cluster_read_open_mpi, cluster_read_hydra, cluster_read_slurm, cluster_read_pbs,
    cluster_read_sge,      cluster_read_lsf,   cluster_read_k8s,   cluster_read_mpiruns_host,
};

const char *cluster_variable(char *const *env, const char *name) {
  size_t n = strlen(name);
  for (; env && *env; env++)
    if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') return (*env)[n + 1] ? *env + n + 1 : NULL;
  return NULL;
}

int64_t cluster_number(const struct cluster_fact *f, int64_t otherwise) {
  return f->is_set ? f->number : otherwise;
}

bool cluster_is_started(const struct cluster *c) {
  return c->start.is_set && c->start.number == CLUSTER_STARTED;
}

bool cluster_is_alone(const struct cluster *c) {
  return c->start.is_set && c->start.number == CLUSTER_ALONE;
}

bool cluster_is_one_host(const struct cluster *c) {
  if (cluster_is_started(c) && c->agents.is_set && c->local_agents.is_set)
    return c->local_agents.number == c->agents.number;
  return c->n_hosts ? c->n_hosts == 1 : cluster_number(&c->nodes, 0) == 1;
}

bool cluster_shares_hosts(const struct cluster *c) {
  int64_t agents = cluster_number(&c->agents, 1);
  return cluster_number(&c->local_agents, 1) > 1 || (c->n_hosts && agents > (int64_t)c->n_hosts);
}

bool cluster_lists(const char *hosts, const char *host) {
  struct buf names = BUF_INIT;
  size_t n, len = hostlist_short(host);
  bool found = false;
  if (hostlist_expand(hosts, &names, &n, NULL)) n = 0;
  const char *p = buf_text(&names);
  for (size_t i = 0; i < n && !found; i++, p += strlen(p) + 1)
    found = hostlist_short(p) == len && strncasecmp(p, host, len) == 0;
  buf_finish(&names);
  return found;
}

int64_t cluster_count(const char *hosts) {
  struct buf names = BUF_INIT;
  size_t n = 0;
  if (hostlist_expand(hosts, &names, &n, NULL)) n = 0;
  buf_finish(&names);
  return (int64_t)n;
}

/* What follows from facts alone. ------------------------------------------------------------------------------------ */

/* FNV-1a. */
static uint32_t hash(const char *text) {
  uint32_t sum = 2166136261u;
  for (; *text; text++) sum = (sum ^ (uint8_t)*text) * 16777619u;
  return sum;
}

/* A start of mpirun's has a name of its own: behind that of the job, where there is one. */
static void join_run(struct cluster *c) {
  if (!c->run.is_set) return;
  char *name =
      c->job.is_set ? xasprintf("%s.%s", c->job.text, c->run.text) : xasprintf("mpi-%s", c->run.text);
  char *source = c->job.is_set ? xasprintf("%s, %s", c->job.source, c->run.source) : xstrdup(c->run.source);
  if (strlen(name) <= JOB_ID_MAX) {
    free(c->job.text);
    free(c->job.source);
    c->job = (struct cluster_fact){.is_set = true, .text = name, .source = source};
    free(c->port.source);
    c->port = (struct cluster_fact){.is_set = false};
    return;
  }
  free(name);
  free(source);
}

static void derive_port(struct row *r) {
  struct cluster *c = r->c;
  if (c->port.is_set || !c->job.is_set) return;
  c->port = (struct cluster_fact){.is_set = true,
                                  .number = CLUSTER_PORT_FIRST + hash(c->job.text) % CLUSTER_PORT_COUNT,
                                  .source = xstrdup(c->job.source)};
}

/* Numbers that are only right together. */
static void check_counts(struct row *r) {
  struct cluster *c = r->c;
  int64_t agents = cluster_number(&c->agents, 0), local = cluster_number(&c->local_agents, 0);
  if (agents && cluster_number(&c->index, 0) >= agents) {
    row_warn(r, "%s is not below %s: this agent's place is not taken from it", c->index.source,
             c->agents.source);
    free(c->index.source);
    c->index = (struct cluster_fact){.is_set = false};
  }
  if (agents && local > agents) local = 0;
  if (c->local_agents.is_set && (!local || cluster_number(&c->local_index, 0) >= local)) {
    row_warn(r, "%s does not fit to %s: how many agents share this host is not taken from it",
             c->local_agents.source, local ? c->local_index.source : c->agents.source);
    free(c->local_agents.source);
    c->local_agents = (struct cluster_fact){.is_set = false};
  }
}

/* More hosts than agents: the list is of something else. */
static void check_hosts(struct row *r) {
  struct cluster *c = r->c;
  if (!c->agents.is_set || !c->hosts.is_set || c->n_hosts <= (size_t)c->agents.number) return;
  if (!c->by_mpirun)
    row_warn(r, "%s has more hosts than there are agents (%s): it is not used", c->hosts.source,
             c->agents.source);
  free(c->hosts.text);
  free(c->hosts.source);
  c->hosts = (struct cluster_fact){.is_set = false};
}

void cluster_read(struct cluster *c, const struct cluster_site *site) {
  struct row r = {.c = c, .site = site};
  memset(c, 0, sizeof(*c));
  c->own_host = site->host;
  for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) rows[i](&r);
  row_take_number(&r, &c->end_time, "RDZV_END_TIME", 1,
                  END_TIME_MAX); /* the script knows it, where its scheduler tells nobody */
  join_run(c);
  derive_port(&r);
  check_counts(&r);
  check_hosts(&r);
}

static void finish_fact(struct cluster_fact *f) {
  free(f->text);
  free(f->source);
}

void cluster_finish(struct cluster *c) {
  struct cluster_fact *const facts[] = {
      &c->scheduler,    &c->launcher, &c->job,  &c->run,      &c->first_host, &c->remote_shell,
      &c->starter,      &c->hosts,    &c->port, &c->start,    &c->agents,     &c->index,
      &c->local_agents, &c->nodes,    &c->gpus, &c->restarts, &c->end_time,   &c->local_index,
  };
  for (size_t i = 0; i < sizeof(facts) / sizeof(*facts); i++) finish_fact(facts[i]);
  for (size_t i = 0; i < c->n_hosts; i++) free(c->host[i].name);
  free(c->host);
  buf_finish(&c->warnings);
  memset(c, 0, sizeof(*c));
}
