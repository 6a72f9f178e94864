/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_LAUNCH_CUH
#define AGENT_TRAINER_GPU_LAUNCH_CUH

/* Shared by the .cu files: the only place that launches kernels, values of any type as floats, and loads of four at
 * once.
 *
 * A build for CPUs includes a header of its own before this one (-include). It defines LAUNCH, __global__, __shared__,
 * threadIdx and so on, and DEVICE_NS for the clock. LAUNCH evaluates its arguments once, in the caller. */

#include "agent/trainer/gpu/kernels.h"

#include <cuda_bf16.h>

/* grid, block: numbers of blocks and threads, in one dimension. */
#ifndef LAUNCH
/* clang-format off */
#define LAUNCH(kernel, grid, block, stream, ...)                                                             \
  ((kernel)<<<(unsigned)(grid), (unsigned)(block), 0, (stream)>>>(__VA_ARGS__), (int)cudaGetLastError())
/* clang-format on */
#endif

/* Four values, loaded and stored as one. */
template <typename T> struct alignas(4 * sizeof(T)) quad { T v[4]; };

__device__ static inline float value_of(float x) {
  return x;
}
__device__ static inline float value_of(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ static inline void store(float *at, float x) {
  *at = x;
}
__device__ static inline void store(__nv_bfloat16 *at, float x) {
  *at = __float2bfloat16(x);
}

/* Blocks for n items, one per thread and pass of a loop: enough to fill any device, and not more than the partials. */
static inline unsigned blocks_for(size_t n) {
  size_t blocks = (n + KERNEL_THREADS - 1) / KERNEL_THREADS;
  return blocks == 0 ? 1 : blocks < KERNEL_PARTIALS ? (unsigned)blocks : (unsigned)KERNEL_PARTIALS;
}

#ifndef DEVICE_NS
__device__ static inline uint64_t device_ns(void) {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}
#else
static inline uint64_t device_ns(void) {
  return DEVICE_NS();
}
#endif

__device__ static inline size_t first_item(void) {
  return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}
__device__ static inline size_t item_stride(void) {
  return (size_t)gridDim.x * blockDim.x;
}

/* true: n values at this address can be read as n / 4 quads. */
static inline bool aligned(const void *p, size_t value_size) {
  return (uintptr_t)p % (4 * value_size) == 0;
}

/* The value of an expression in which T is the type of the values. */
#define BY_TYPE(type, ...)                                                                                   \
  ((type) == KERNEL_F32 ? [&] { using T = float; return __VA_ARGS__; }()                                     \
                        : [&] { using T = __nv_bfloat16; return __VA_ARGS__; }())

/* The sum over the block, in one fixed order. Every thread of the block calls it. The block size is a power of two, up
 * to KERNEL_THREADS. */
template <typename S> __device__ static inline S block_sum(S x) {
  __shared__ S sums[KERNEL_THREADS];
  sums[threadIdx.x] = x;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  S all = sums[0];
  __syncthreads(); /* before the next call writes there */
  return all;
}

/* A part of a sum in either form. */
__device__ static inline void put_part(union kernel_partial *at, double x) {
  at->sum = x;
}
__device__ static inline void put_part(union kernel_partial *at, uint64_t x) {
  at->word = x;
}
__device__ static inline void get_part(const volatile union kernel_partial *at, double *x) {
  *x = at->sum;
}
__device__ static inline void get_part(const volatile union kernel_partial *at, uint64_t *x) {
  *x = at->word;
}

/* Writes this block's part of a sum, `part` of thread 0. True in one block of the grid: all parts are written, and
 * total() may be called. Every thread of every block calls it, once in a kernel.
 *
 * The fence before the count publishes this block's part, and the one behind it makes the others' visible. The count
 * returns to 0 with the last block. */
template <typename S> __device__ static inline bool is_last_block(struct kernel_scratch *s, S part) {
  __shared__ bool last;
  if (threadIdx.x == 0) {
    put_part(s->partials + blockIdx.x, part);
    __threadfence();
    last = atomicInc(&s->arrived, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

/* The sum of all parts, in one fixed order. Every thread of the last block calls it. */
template <typename S> __device__ static inline S total(const struct kernel_scratch *s) {
  S sum = 0, part;
  for (unsigned i = threadIdx.x; i < gridDim.x; i += blockDim.x) {
    get_part(s->partials + i, &part);
    sum += part;
  }
  return block_sum(sum);
}

#endif
