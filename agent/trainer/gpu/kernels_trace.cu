/* SPDX-License-Identifier: Apache-2.0 */
/* The two kernels of trace.h. They count in device memory and only write to the host's, because a read over the bus
 * takes longer than everything else. The count is written last; the host uses the other fields only for messages. */

#include "agent/trainer/gpu/launch.cuh"
#include "agent/trainer/gpu/trace.h"

__global__ static void trace_begin_kernel(uint64_t *counts, struct trace *to, struct trace_call call) {
  counts[0] += 1;
  *(volatile uint32_t *)&to->call.kind = call.kind;
  *(volatile uint32_t *)&to->call.number = call.number;
  *(volatile uint64_t *)&to->call.at = call.at;
  *(volatile uint64_t *)&to->call.n = call.n;
  *(volatile uint64_t *)&to->begun = counts[0];
}

__global__ static void trace_end_kernel(uint64_t *counts, struct trace *to) {
  counts[1] += 1;
  *(volatile uint64_t *)&to->done = counts[1];
}

extern "C" int trace_begin(cudaStream_t stream, uint64_t *counts, struct trace *to, struct trace_call call) {
  return LAUNCH(trace_begin_kernel, 1, 1, stream, counts, to, call);
}

extern "C" int trace_end(cudaStream_t stream, uint64_t *counts, struct trace *to) {
  return LAUNCH(trace_end_kernel, 1, 1, stream, counts, to);
}
