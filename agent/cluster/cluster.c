/* SPDX-License-Identifier: Apache-2.0 */
/* The table of schedulers and launchers, and what follows from their facts.
 *
 * Launchers come first: mpirun inside a Slurm job leaves the variables of both, and mpirun started this agent. Slurm
 * still knows the job's hosts, end and GPUs; each fact comes from the first row that has it. A row knows its variables
 * only. Conclusions from facts (a port from a name, one host from two counts) are drawn here after all rows.
 *
 * Schedulers' variables may be wrong: a count that is not a number, or two that contradict each other (old versions,
 * wrappers, a leftover shell). Such a value counts as unset and is warned of. It never stops an agent, whose command
 * line may say everything.
 *
 * A job's name must be the same for all its agents and unique. Slurm numbers the steps of a job. Elsewhere the job's
 * id must do, so two runs at the same time in one job need --rdzv-id. mpirun numbers its starts; under mpirun the name
 * and the first host come from variables that mpirun gives to every agent, because a fact that only some agents know
 * would separate them.
 *
 * Port: jobs that run at the same time have neighbouring ids, so a prime spreads consecutive ids over the range and no
 * two collide. Ids that are not numbers are hashed. */

#include "agent/cluster/cluster.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "agent/cluster/internal.h"
#include "common/hostlist.h"
#include "common/mem.h"

#define END_TIME_MAX INT64_C(99999999999) /* seconds since 1970: in some thousand years */

static void (*const rows[])(struct row *) = {
    cluster_read_launcher, cluster_read_cloud, cluster_read_slurm, cluster_read_pbs,
    cluster_read_sge,      cluster_read_lsf,   cluster_read_k8s,
};

const char *cluster_variable(char *const *env, const char *name) {
  size_t n = strlen(name);
  for (; env && *env; env++)
    if (**env == *name && strncmp(*env, name, n) == 0 && (*env)[n] == '=') return (*env)[n + 1] ? *env + n + 1 : NULL;
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
  return cluster_number(&c->local_agents, 1) > 1 || agents > cluster_number(&c->nodes, agents);
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

/* Conclusions from facts. ------------------------------------------------------------------------------------------ */

static void finish_fact(struct cluster_fact *f) {
  free(f->text);
  free(f->source);
}

/* Drops numbers that contradict each other. */
static void check_counts(struct row *r) {
  struct cluster *c = r->c;
  int64_t agents = cluster_number(&c->agents, 0), local = cluster_number(&c->local_agents, 0);
  if (agents && cluster_number(&c->index, 0) >= agents) {
    row_warn(r, "%s is not below %s: it is ignored", c->index.source, c->agents.source);
    free(c->index.source);
    c->index = (struct cluster_fact){.is_set = false};
  }
  if (agents && local > agents) local = 0;
  if (c->local_agents.is_set && (!local || cluster_number(&c->local_index, 0) >= local)) {
    row_warn(r, "%s contradicts %s: it is ignored", c->local_agents.source,
             local ? c->local_index.source : c->agents.source);
    free(c->local_agents.source);
    c->local_agents = (struct cluster_fact){.is_set = false};
  }
}

const char *cluster_loopback(const struct cluster *c) {
  return c->loopback ? c->loopback : "127.0.0.1";
}

void cluster_read(struct cluster *c, const struct cluster_site *site) {
  struct row r = {.c = c, .site = site};
  memset(c, 0, sizeof(*c));
  c->own_host = site->host;
  c->loopback = site->loopback;
  for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) rows[i](&r);
  row_take_number(&r, &c->end_time, "RDZV_END_TIME", 1,
                  END_TIME_MAX); /* for a scheduler that does not report the end */
  /* The name of a run of mpirun omits the scheduler's job: ssh does not pass the scheduler's variables on, so only
   * agents on mpirun's own host know that job. */
  if (c->run.is_set) {
    finish_fact(&c->job);
    finish_fact(&c->port);
    c->port = (struct cluster_fact){.is_set = false};
    c->job = (struct cluster_fact){.is_set = true, .text = xstrdup(c->run.text), .source = xstrdup(c->run.source)};
  }
  if (!c->port.is_set && c->job.is_set) {
    uint32_t sum = 2166136261u; /* FNV-1a */
    for (const char *p = c->job.text; *p; p++) sum = (sum ^ (uint8_t)*p) * 16777619u;
    c->port = (struct cluster_fact){
        .is_set = true, .number = CLUSTER_PORT_FIRST + sum % CLUSTER_PORT_COUNT, .source = xstrdup(c->job.source)};
  }
  check_counts(&r);
  /* A list with more hosts than agents describes something else. */
  if (c->agents.is_set && c->hosts.is_set && c->n_hosts > (size_t)c->agents.number) {
    if (!c->by_mpirun)
      row_warn(&r, "%s has more hosts than there are agents (%s): it is ignored", c->hosts.source, c->agents.source);
    finish_fact(&c->hosts);
    c->hosts = (struct cluster_fact){.is_set = false};
  }
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
