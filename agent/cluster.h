#ifndef AGENT_CLUSTER_H
#define AGENT_CLUSTER_H

/* What a scheduler left in the environment about this job. Pure. */

#include <stdint.h>
#include "proto/msg.h"

struct cluster {
  char job[JOB_ID_MAX + 1]; /* "slurm-4711.0"; "": no scheduler is known here */
  int64_t order_key;        /* the scheduler's number of this node; -1: unknown */
  int64_t expected_nodes;   /* how many agents it started; 0: unknown */
};

void cluster_read(struct cluster *c, char *const *env);
/* Value of NAME in env, or NULL; "" counts as unset. */
const char *cluster_variable(char *const *env, const char *name);

#endif
