/* SPDX-License-Identifier: Apache-2.0 */
/* Put before each .cu (-include): what nvcc would know. Kernels become functions that are called once per thread of the
 * grid; memory of a block becomes static memory, since one block runs at a time. */
#ifndef TESTS_FAKEGPU_SHIM_HPP
#define TESTS_FAKEGPU_SHIM_HPP

#include <cuda_runtime_api.h>

#include <cuda_bf16.h>

#include <math.h>
#include <time.h>
#include <tuple>
#include "tests/fakegpu/fake.h"
#ifdef FAKE_RACE
#include "tests/fakegpu/race_block.h"
#endif

#undef __global__
#undef __device__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __device__
#ifdef FAKE_RACE
#define __shared__ static thread_local
#else
#define __shared__ static
#endif
#define __launch_bounds__(...)

#define threadIdx       fake_thread
#define blockIdx        fake_block
#define blockDim        fake_block_size
#define gridDim         fake_grid
#ifdef FAKE_RACE
#define __syncthreads() race_barrier(__FILE__, __LINE__)
#define __threadfence() race_fence(__FILE__, __LINE__)
#else
#define __syncthreads() fake_sync_threads()
#define __threadfence() ((void)0)
#endif
#define DEVICE_NS()     fake_ns()

static inline uint64_t fake_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline unsigned __float_as_uint(float x) {
  unsigned u;
  __builtin_memcpy(&u, &x, sizeof u);
  return u;
}

/* One thread runs at a time, so these only have to look atomic. */
template <typename T, typename F> static inline T fake_atomic(T *at, F next) {
  T was;
#ifdef FAKE_RACE
  race_atomic_begin(at);
#endif
  __atomic_load(at, &was, __ATOMIC_RELAXED);
  T to = next(was);
  __atomic_store(at, &to, __ATOMIC_RELAXED);
#ifdef FAKE_RACE
  race_atomic_end(at);
#endif
  return was;
}

template <typename T> static inline T atomicAdd(T *at, T by) {
  return fake_atomic(at, [=](T was) { return (T)(was + by); });
}

static inline unsigned atomicInc(unsigned *at, unsigned last) {
  return fake_atomic(at, [=](unsigned was) { return was >= last ? 0 : was + 1; });
}

template <typename T> static inline T atomicExch(T *at, T to) {
  return fake_atomic(at, [=](T) { return to; });
}

template <typename K, typename... P> struct fake_call {
  K *kernel;
  std::tuple<P...> args;
  static void body(void *ctx) {
    auto *call = static_cast<fake_call *>(ctx);
    std::apply(call->kernel, call->args);
  }
  static void destroy(void *ctx) { delete static_cast<fake_call *>(ctx); }
};

template <typename... P, typename... A>
static inline int fake_launch_kernel(const char *name, void (*kernel)(P...), size_t grid, size_t block,
                                     cudaStream_t stream, A... args) {
  using call = fake_call<void(P...), P...>;
  return fake_launch(name, (unsigned)grid, (unsigned)block, stream, call::body,
                     new call{kernel, std::tuple<P...>(static_cast<P>(args)...)}, call::destroy);
}

#define LAUNCH(kernel, grid, block, stream, ...)                                                             \
  fake_launch_kernel(#kernel, kernel, grid, block, stream, __VA_ARGS__)

#endif
