/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_PLACE_H
#define AGENT_PLACE_H

/* The resources of this machine for the workers, read once at the agent's start: CPUs, GPUs, NUMA nodes, with messages
 * about them. Reads /proc, /sys and this process's affinity. */

#include <stdint.h>
#include "agent/devices/gpu_usage.h"
#include "agent/devices/numa.h"
#include "agent/options/options.h"
#include "common/err.h"

/* The result of --nproc and --exclude-busy. */
struct placed {
  int64_t workers; /* at most WORKERS_MAX */
  /* first LOCAL_RANK and LOCAL_WORLD_SIZE: agents of this host may share devices and count together */
  int64_t first, local_world;
  char *const *env;     /* of the workers: as given, or with a list narrowed to usable devices */
  char **narrowed;      /* the narrowed one; NULL: none */
  enum gpu_vendor wish; /* Intel with --nproc xpu, else any */
  bool uses_devices;    /* the workers certainly use devices */
  bool asked;           /* the driver was asked */
  char *seen;           /* how GPUs were counted: "CUDA_VISIBLE_DEVICES=0,1", "2 GPUs visible"; NULL: they were not */
  struct gpus before;   /* the driver's answer; may be empty */
};

/* Counts workers: --nproc as given, or by CPUs or GPUs. Asks the driver, for at most --device-timeout, if the number
 * depends on it. -EINVAL and a sentence: "gpu" without GPUs, or several agents would use the same ones; -EBUSY:
 * --exclude-busy leaves too few. *p must be finished in any case. */
int place_count_workers(const struct agent_options *o, char *const *env, struct placed *p, struct err *e);
/* --nccl-ids auto: whether the workers are rdzv-trainer on GPUs, as far as --device and this machine show. */
bool place_uses_nccl(const struct agent_options *o, const struct placed *p);
void placed_finish(struct placed *p);

/* Logs once, before the first round: fewer CPUs than workers, OMP_NUM_THREADS, where workers are bound. Fills *numa
 * (numa_finish). -EINVAL and a sentence if --virtual-local-rank is impossible. */
int place_prepare(const struct agent_options *o, const struct placed *p, struct numa *numa, struct err *e);

#endif
