/* The two kernels of where.h. They count in device memory and only write to the host's, since a read over the bus takes longer than all
 * the rest. The number is written last; the host uses the rest for words alone. */

#include "agent/trainer/gpu/launch.cuh"
#include "agent/trainer/gpu/trace.h"

__global__ static void where_begin_kernel(uint64_t *counts, struct where *to, struct where_call call) {
  counts[0] += 1;
  *(volatile uint32_t *)&to->call.kind = call.kind;
  *(volatile uint32_t *)&to->call.number = call.number;
  *(volatile uint64_t *)&to->call.at = call.at;
  *(volatile uint64_t *)&to->call.n = call.n;
  *(volatile uint64_t *)&to->begun = counts[0];
}

__global__ static void where_end_kernel(uint64_t *counts, struct where *to) {
  counts[1] += 1;
  *(volatile uint64_t *)&to->done = counts[1];
}

extern "C" int where_begin(cudaStream_t stream, uint64_t *counts, struct where *to, struct where_call call) {
  return LAUNCH(where_begin_kernel, 1, 1, stream, counts, to, call);
}

extern "C" int where_end(cudaStream_t stream, uint64_t *counts, struct where *to) {
  return LAUNCH(where_end_kernel, 1, 1, stream, counts, to);
}
