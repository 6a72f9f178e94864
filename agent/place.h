#ifndef AGENT_PLACE_H
#define AGENT_PLACE_H

/* What this machine has for the workers, asked once at the agent's start: CPUs, GPUs, NUMA nodes; and what a person
 * should hear about it. Reads /proc, /sys and this process's affinity. */

#include <stdint.h>
#include "agent/numa.h"
#include "agent/options.h"
#include "common/err.h"

/* --nproc: as given, or counted. -EINVAL and a sentence: "gpu", and there is none. At most WORKERS_MAX. */
int place_count_workers(const struct agent_options *o, char *const *env, int64_t *workers, struct err *e);

/* Says what is worth knowing before the first round, a line each, once: fewer CPUs than workers, OMP_NUM_THREADS,
 * where workers are bound. Fills *numa (numa_finish). -EINVAL and a sentence where --virtual-local-rank cannot be. */
int place_prepare(const struct agent_options *o, char *const *env, int64_t workers, struct numa *numa,
                  struct err *e);

#endif
