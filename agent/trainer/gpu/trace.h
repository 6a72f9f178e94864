/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_TRACE_H
#define AGENT_TRAINER_GPU_TRACE_H

/* How far the device is with collectives. A kernel of one thread before each collective and one after it count in host
 * memory. So the host knows without asking CUDA, even about captured collectives, which no call reports. Launchers
 * return the result of the launch, like those of kernels.h. */

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum trace_kind { TRACE_NOTHING, TRACE_ALL_REDUCE, TRACE_SUM, TRACE_BROADCAST };

/* One collective. */
struct trace_call {
  uint32_t kind;   /* an enum trace_kind */
  uint32_t number; /* of the bucket, or the root of a broadcast */
  uint64_t at, n;  /* elements */
};

/* In host memory that the device can write. */
struct trace {
  uint64_t begun, done;   /* collectives since the communicator came up */
  struct trace_call call; /* the last one begun */
};

/* counts: two numbers in device memory, zero at first. to: the device address of a struct trace. */
int trace_begin(cudaStream_t stream, uint64_t *counts, struct trace *to, struct trace_call call);
int trace_end(cudaStream_t stream, uint64_t *counts, struct trace *to);

#ifdef __cplusplus
}
#endif
#endif
