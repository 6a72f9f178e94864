/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_PROFILED_NCCL_H
#define TESTS_RIG_PROFILED_NCCL_H

/* A stand-in for NCCL, as a profiler sees it: loads the library, takes one version of its interface, and calls it in the
 * order in which NCCL's proxy thread and the program's thread would. The layouts are written down here a second time and
 * whole, after NCCL's headers, so that a mistake in agent/profiler/nccl_profiler.h is found. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROFILED_VERSIONS = 6 };

struct profiled_comm;

/* version: 1 .. 6. NULL: the library cannot be loaded, or does not have it. */
struct profiled_comm *profiled_open(const char *library, int version, uint64_t hash, int size, int rank);
void profiled_close(struct profiled_comm *c); /* finalize, and the library is closed */
int profiled_mask(const struct profiled_comm *c);

/* The events of one collective: kernels and proxies only if the mask asks for them. The program's thread comes first, the
 * rest is called when the collective is over on the GPU; up to version 3, where the time of a call counts, `wait_until` is
 * called in between. gpu times: of the GPU's clock, from version 4 on. */
struct profiled_collective {
  uint64_t entered_ns, left_ns;
  int channels, sends; /* kernels; network sends, one after the other */
  uint64_t send_ns;    /* each */
  size_t send_bytes;
  void (*wait_until)(uint64_t ns); /* NULL: nothing waits */
};
void profiled_collective(struct profiled_comm *c, const struct profiled_collective *k);
void profiled_pair(struct profiled_comm *c); /* a send or receive */
void profiled_failed_init(
    struct profiled_comm *c);                  /* another one fails: finalize without a context, as NCCL 2.23 to 2.27 */
void profiled_unload(struct profiled_comm *c); /* the library is closed too early */
/* Events that name something else: of another process, of a collective long over, of a communicator that is gone. */
void profiled_strays(struct profiled_comm *c);

#endif
