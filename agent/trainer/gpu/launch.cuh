#ifndef AGENT_TRAINER_GPU_LAUNCH_CUH
#define AGENT_TRAINER_GPU_LAUNCH_CUH

/* What the .cu files share: the one place where a kernel is launched, values of any type as floats, and loads of four at once.
 *
 * A build for CPUs defines LAUNCH (and __global__, __shared__, threadIdx, ... ) in a header of its own, included before this one
 * (-include), DEVICE_NS for the clock, and nothing else need be known of it. Arguments are evaluated once, in the caller. */

#include "agent/trainer/gpu/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* grid, block: numbers of blocks and threads in one dimension. */
#ifndef LAUNCH
/* clang-format off */
#define LAUNCH(kernel, grid, block, stream, ...)                                                             \
  ((kernel)<<<(unsigned)(grid), (unsigned)(block), 0, (stream)>>>(__VA_ARGS__), (int)cudaGetLastError())
/* clang-format on */
#endif

/* Four values that are loaded and stored as one. */
template <typename T> struct alignas(4 * sizeof(T)) quad { T v[4]; };

__device__ static inline float value_of(float x) {
  return x;
}
__device__ static inline float value_of(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ static inline float value_of(__half x) {
  return __half2float(x);
}
__device__ static inline void put(float *at, float x) {
  *at = x;
}
__device__ static inline void put(__nv_bfloat16 *at, float x) {
  *at = __float2bfloat16(x);
}
__device__ static inline void put(__half *at, float x) {
  *at = __float2half(x);
}

/* Blocks for n items, one per thread and turn of a loop: enough to fill any device, and never more than partials. */
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

/* May n values at each of these be read as n / 4 quads? */
static inline bool aligned(const void *p, size_t value_size) {
  return (uintptr_t)p % (4 * value_size) == 0;
}

/* f<type of the values>(...), f being a template over it. */
#define BY_TYPE(type, f, ...)                                                                                \
  ((type) == KERNEL_F32    ? f<float>(__VA_ARGS__)                                                           \
   : (type) == KERNEL_BF16 ? f<__nv_bfloat16>(__VA_ARGS__)                                                   \
                           : f<__half>(__VA_ARGS__))

/* The sum over the block, in one fixed order. Every thread of the block calls it. Blocks are a power of two, up to KERNEL_THREADS. */
__device__ static inline double block_sum(double x) {
  __shared__ double sums[KERNEL_THREADS];
  sums[threadIdx.x] = x;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  double all = sums[0];
  __syncthreads(); /* before somebody writes there again */
  return all;
}

#endif
