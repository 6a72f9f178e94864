/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_NUMA_H
#define AGENT_DEVICES_NUMA_H

/* --numa-binding: the CPUs of each worker of this node. Pure: a root folder (for /sys) and the devices are parameters. */

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include "agent/devices/devices.h"
#include "agent/options/options.h"
#include "common/buf.h"

enum { CPUS_MAX = 8192 }; /* the kernel's limit */

/* A set of CPUs, in the form that sched_setaffinity takes. */
struct cpus {
  cpu_set_t v[CPUS_MAX / CPU_SETSIZE];
};

bool cpus_has(const struct cpus *c, uint32_t cpu);
void cpus_add(struct cpus *c, uint32_t cpu);
uint32_t cpus_count(const struct cpus *c);
/* "0-3,8": the form of /sys and of taskset -c. False: not in that form; *c is then undefined. */
bool cpus_parse(const char *list, struct cpus *c);
void cpus_format(const struct cpus *c, struct buf *out);

struct numa {
  struct cpus *v; /* by local rank; an empty set: not bound */
  uint32_t n;
};

/* This agent binds `workers` of the `all` workers of this host, from local rank `first` on. */
struct numa_slots {
  uint32_t first, workers, all;
};

/* `allowed`: the CPUs of this process, the only ones that workers get. `info` and `trouble` get sentences, a line
 * each: `info` where workers run that have no GPU to follow, `trouble` why some workers are not bound. */
void numa_plan(struct numa *out, const char *root, const struct devices *devices, enum numa_binding how,
               const struct cpus *allowed, const struct numa_slots *slots, struct buf *info, struct buf *trouble);
void numa_finish(struct numa *n);

#endif
