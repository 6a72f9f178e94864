#ifndef AGENT_NUMA_H
#define AGENT_NUMA_H

/* --numa-binding: which CPUs each worker of this node may use. Pure over a root folder (of which /sys is read) and an
 * environment. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/options/options.h"
#include "common/buf.h"

enum { CPUS_MAX = 8192, CPUS_WORD_BITS = 64 }; /* the kernel's own limit */

/* A set of CPUs, in the form that sched_setaffinity takes (on little-endian machines and on 64-bit ones). */
struct cpus {
  uint64_t w[CPUS_MAX / CPUS_WORD_BITS];
};

bool cpus_has(const struct cpus *c, uint32_t cpu);
void cpus_add(struct cpus *c, uint32_t cpu);
uint32_t cpus_count(const struct cpus *c);
/* "0-3,8": the form of /sys and of taskset -c. False: not in that form; *c is then undefined. */
bool cpus_parse(const char *list, struct cpus *c);
void cpus_format(const struct cpus *c, struct buf *out);

struct numa {
  struct cpus *v; /* by local rank; an empty set: that worker is not bound */
  uint32_t n;
};

/* Which of this host's workers, counted by local rank, are to be bound here: `workers` of them, from `first` on, of `all`. */
struct numa_slots {
  uint32_t first, workers, all;
};

/* `allowed`: what this process may use; no worker is given another CPU. `info` and `trouble` get sentences for a
 * person, each with a newline: where workers go when there are no GPUs to go by, and why some are not bound. */
void numa_plan(struct numa *out, const char *root, char *const *env, enum numa_binding how,
               const struct cpus *allowed, const struct numa_slots *slots, struct buf *info,
               struct buf *trouble);
void numa_finish(struct numa *n);

#endif
