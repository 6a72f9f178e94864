#ifndef AGENT_TRAINER_GPU_WHERE_H
#define AGENT_TRAINER_GPU_WHERE_H

/* How far the device is with collectives, told by the device itself: a kernel of one thread before each collective and one behind it
 * count in memory of the host. So the host knows without asking CUDA, also of collectives that were captured once and are launched again and
 * again, of which no call tells it. Launchers return what the launch returned, as those of kernels.h. */

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum where_kind { WHERE_NOTHING, WHERE_ALL_REDUCE, WHERE_SUM, WHERE_BROADCAST, WHERE_KINDS };

/* One collective. */
struct where_call {
  uint32_t kind;   /* enum where_kind */
  uint32_t number; /* of the bucket; the root of a broadcast */
  uint64_t at, n;  /* elements */
};

/* In host memory that the device can write. */
struct where {
  uint64_t begun, done;   /* collectives since the communicator came up */
  struct where_call call; /* the last one begun */
};

/* counts: two numbers in device memory, zero at first; to: the device's address of the above. */
int where_begin(cudaStream_t stream, uint64_t *counts, struct where *to, struct where_call call);
int where_end(cudaStream_t stream, uint64_t *counts, struct where *to);

#ifdef __cplusplus
}
#endif
#endif
