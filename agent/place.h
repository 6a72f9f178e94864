#ifndef AGENT_PLACE_H
#define AGENT_PLACE_H

/* What this machine has for the workers, asked once at the agent's start: CPUs, GPUs, NUMA nodes; and what a person
 * should hear about it. Reads /proc, /sys and this process's affinity. */

#include <stdint.h>
#include "agent/devices/gpus.h"
#include "agent/devices/numa.h"
#include "agent/options/options.h"
#include "common/err.h"

/* What --nproc and --exclude-busy came to. */
struct placed {
  int64_t workers; /* at most WORKERS_MAX */
  int64_t first,
      local_world; /* of their LOCAL_RANK, and how many count so: others of this host's agents see the same devices */
  char *const
      *env; /* for them: as given, or with CUDA_VISIBLE_DEVICES narrowed to the devices that are good */
  char **narrowed;   /* that one; NULL: none */
  bool uses_devices; /* it is certain that the workers do */
  bool asked;        /* the driver was asked */
  char *
      seen; /* "CUDA_VISIBLE_DEVICES=0,1", "2 GPUs are seen": by what GPUs were counted; NULL: they were not */
  struct gpus before; /* what it said; may be empty */
};

/* Counts: --nproc as given, or by CPUs or GPUs; asks the driver where that depends on it, for --device-timeout at
 * most. -EINVAL and a sentence: "gpu", and there is none, or several agents would take the same ones; -EBUSY: --exclude-busy leaves too few. *p is to be finished in
 * any case. */
int place_count_workers(const struct agent_options *o, char *const *env, struct placed *p, struct err *e);
/* --nccl-ids auto: the workers are rdzv-trainer, on GPUs as far as its --device and what is here tell. */
bool place_uses_nccl(const struct agent_options *o, const struct placed *p);
void placed_finish(struct placed *p);

/* Says what is worth knowing before the first round, a line each, once: fewer CPUs than workers, OMP_NUM_THREADS,
 * where workers are bound. Fills *numa (numa_finish). -EINVAL and a sentence where --virtual-local-rank cannot be. */
int place_prepare(const struct agent_options *o, const struct placed *p, struct numa *numa, struct err *e);

#endif
