/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_PROFILER_METER_H
#define AGENT_PROFILER_METER_H

/* How long this rank is in collectives, and how long its sends take. Without a clock, a thread or a lock.
 *
 * A collective's time runs from the moment when its kernel begins on the GPU, on the first of its channels, to the
 * moment when the last channel has ended. The call on the CPU says nothing: it only enqueues. All ranks leave a
 * collective at about the same time, so the rank that enters last is in it for the shortest time. Sums per communicator
 * are enough to see that, and no two hosts' clocks are compared.
 *
 * Without events of kernels the first send whose data the GPU has ready is the entry, and the end of the last proxy
 * operation the exit.
 *
 * A slow wire is seen in sends alone: in a ring all ranks leave late together. One collective of WIRE_EVERY has its sends
 * timed, the same one on all ranks.
 *
 * The GPU's clock counts nanoseconds in NCCL, and ticks of 10 or 40 ns in RCCL. Looks at it beside the CPU's clock tell
 * which: what fits within 20 %. Until the second look they are nanoseconds.
 *
 * Handles are numbers, not addresses. A late event, or one from the memory of another process, names something that is
 * no longer there, and is ignored. An event costs a few loads and stores. All kernels of a communicator come from one
 * thread, and its collectives from another. Its sends may come from several: those of other GPUs of the process, if NCCL
 * sends through their network cards. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  METER_GROUPS = 64, /* communicators of one process at a time */
  METER_COLLS = 512, /* of one communicator on their way */
  METER_STEPS = 512, /* sends of one communicator on their way */
  METER_WIRE_EVERY = 8,
};
#define METER_CLOCK_NS UINT64_C(10000000000) /* between two looks at the clocks, at least */

/* What another thread may read at any time. */
struct meter_sums {
  _Atomic uint64_t hash;                /* the communicator's, the same on all its ranks; 0: not known yet */
  _Atomic uint32_t rank;                /* in it */
  uint32_t size;                        /* 0: not known */
  _Atomic bool pairs;                   /* there were sends and receives besides, since the reader took this */
  _Atomic uint64_t collectives, waited; /* waited: in ticks of the clock that times collectives */
  _Atomic uint64_t sent_bytes, sending_ns;
};

struct meter_coll {
  _Atomic uint64_t serial;
  uint64_t entered, left, counted; /* counted: the part of left - entered that the sums have */
  bool is_counted;
};

struct meter_step {
  uint64_t serial, since_ns, bytes, coll;
};

struct meter_group {
  _Atomic bool used;
  bool kernels;                     /* it has events of kernels, with the GPU's times */
  uint64_t chunk;                   /* bytes of one send, of the last proxy operation */
  _Atomic bool clock_asked;         /* somebody wants a look at the GPU's clock */
  uint64_t gpu_begun, cpu_begun_ns; /* the first look; gpu_begun 0: there was none */
  _Atomic bool miscounted;          /* a kernel has ended before it began: NCCL's times are of other collectives */
  _Atomic uint32_t tick_ns;         /* of the GPU's clock */
  _Atomic uint64_t next_coll, next_step;
  struct meter_sums sums;
  struct meter_coll colls[METER_COLLS];
  struct meter_step steps[METER_STEPS];
};

/* A handle of 0 is none. g and index: the communicator, and its number among METER_GROUPS. */
uint64_t meter_collective(struct meter_group *g, unsigned index);
/* A kernel's channel begins; the handle is for its end, by the same clock. */
uint64_t meter_kernel(struct meter_group *g, uint64_t coll, uint64_t now);
void meter_clock(struct meter_group *g, uint64_t gpu, uint64_t cpu_ns); /* what both clocks show */
uint64_t meter_proxy(struct meter_group *g, uint64_t coll, bool sends, uint64_t bytes);
uint64_t meter_step(struct meter_group *g, uint64_t proxy);
void meter_step_sends(struct meter_group *g, uint64_t step, uint64_t bytes, uint64_t now_ns); /* data is on its way */
void meter_stop(struct meter_group *g, uint64_t handle, uint64_t now);
/* Of any handle: the number of its communicator. METER_GROUPS: it is none. */
unsigned meter_index(uint64_t handle);
bool meter_needs_stop(const struct meter_group *g, uint64_t handle); /* when the call stopEvent comes, counts */

#endif
