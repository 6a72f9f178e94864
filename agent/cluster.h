#ifndef AGENT_CLUSTER_H
#define AGENT_CLUSTER_H

/* What a scheduler left in the environment about this job. Pure. */

#include <stdbool.h>
#include <stdint.h>
#include "proto/msg.h"

struct cluster {
  char job[JOB_ID_MAX + 1]; /* "slurm-4711.0"; "": no scheduler is known here */
  int64_t order_key;        /* the scheduler's number of this node; -1: unknown */
  int64_t expected_nodes;   /* how many agents it started; 0: unknown */
  const char *
      expected_hosts; /* and on which hosts, as it lists them; points into env; "": unknown, or more than HOSTS_MAX */
};

void cluster_read(struct cluster *c, char *const *env);
/* Whether a list of hosts has this one, by its whole name or without the domain. */
bool cluster_lists(const char *hosts, const char *host);
int64_t
cluster_count(const char *hosts); /* how many a list has, those that stand there twice twice; 0: it is none */
/* Value of NAME in env, or NULL; "" counts as unset. */
const char *cluster_variable(char *const *env, const char *name);

#endif
