/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_KERNELS_H
#define AGENT_TRAINER_GPU_KERNELS_H

/* Everything that runs on the device and is not a matrix product of cuBLASLt. There is one C function per kernel, in
 * the .cu files, which queues it on `stream` and returns the result of the launch (0 is cudaSuccess). No other file
 * uses CUDA C++.
 *
 * Kernels use plain CUDA C (threadIdx, __shared__, __syncthreads, conversions of cuda_bf16.h) and are
 * launched only through LAUNCH (launch.cuh). So a CPU compiler can build them behind a shim that runs each block as a
 * set of threads which meet at __syncthreads. All threads of a block reach every __syncthreads.
 *
 * Sums are deterministic: every block sums its part in one fixed order into scratch memory. The block that comes last
 * sums those parts, in one fixed order too, and finishes the work of the kernel. So it does not matter which block that
 * is, and no second kernel is launched. A stream runs one kernel after the other, so one struct kernel_scratch is
 * enough. Pointers are device addresses. Matrices are row-major. */

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/trainer/compute/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KERNEL_PARTIALS = 1024, KERNEL_THREADS = 256 };

/* A block's part of a sum. */
union kernel_partial {
  double sum;
  uint64_t word;
};

/* Zero at first. */
struct kernel_scratch {
  union kernel_partial partials[KERNEL_PARTIALS]; /* of each block */
  double factor;                                  /* from one kernel of a loss to the next */
  unsigned arrived; /* blocks of the running kernel that have written their part; 0 between kernels */
};

/* Representation of values in memory. */
enum kernel_type { KERNEL_F32, KERNEL_BF16 };

static inline size_t kernel_type_size(enum kernel_type t) {
  return t == KERNEL_F32 ? 4 : 2;
}

/* The optimizer's control block on the device: the counters that the host reads, and the factors of one update. */
struct kernel_control {
  struct compute_opt_counters v;
  float go; /* 1: make this update */
  struct compute_factors f;
};

struct kernel_update {
  size_t n;
  float *param;
  void *low; /* the copy in `type`; NULL: none */
  enum kernel_type type;
  const float *grad;
  float *state[COMPUTE_STATES];
};

struct kernel_loss {
  struct compute_loss_desc d;
  enum kernel_type type; /* of y and dz */
  const void *y;
  const float *target;
  void *dz;
  float *out;
  const unsigned *blocked; /* not 0: updates are blocked */
};

/* Checks that the module has code for this device. */
int kernel_check(void);

/* kernels.cu */
int kernel_fill(cudaStream_t stream, void *dst, enum kernel_type type, float value, size_t n);
int kernel_convert(cudaStream_t stream, void *dst, enum kernel_type dst_type, const void *src,
                   enum kernel_type src_type, size_t n);
/* y[rows][cols] = from[cols] in every row, of one type. A product is then added to it, so that the sum is rounded
 * once. */
int kernel_bias(cudaStream_t stream, void *y, const void *from, enum kernel_type type, size_t rows, size_t cols);
/* y[i] = y[i] < 0 ? 0 : y[i]; a NaN stays one. */
int kernel_relu(cudaStream_t stream, void *y, enum kernel_type type, size_t n);
/* dx[i] = x[i] > 0 ? dx[i] : 0 */
int kernel_mask(cudaStream_t stream, void *dx, const void *x, enum kernel_type type, size_t n);
/* out[cols] = the sums of columns of dz[rows][cols]. */
int kernel_column_sums(cudaStream_t stream, float *out, const void *dz, enum kernel_type type, size_t rows,
                       size_t cols);
/* One matrix product, column-major as in cuBLAS: D[m][n] = op(A) op(B) + (add ? D : 0), sums in float. For shapes that
 * cuBLASLt does not support, and as a reference for the others; not fast. */
struct kernel_gemm {
  bool trans_a, trans_b, add;
  size_t m, n, k, lda, ldb, ldd;
  enum kernel_type ab, d;
};
int kernel_gemm(cudaStream_t stream, const struct kernel_gemm *g, const void *a, const void *b, void *d);

/* kernels_loss.cu */
int kernel_loss(cudaStream_t stream, const struct kernel_loss *l, struct kernel_scratch *scratch);

/* kernels_opt.cu */
struct kernel_decide {
  struct compute_opt_desc d;
  struct kernel_control *control;
  const float *grad;
  const float *bad;        /* not 0: skip; infinite: change nothing; or NULL */
  const unsigned *blocked; /* in mapped host memory. Not 0: change nothing */
  void *counters;          /* in mapped host memory: a struct compute_opt_counters at an address of floats; or NULL */
};
/* The first kernel of an update: the norm of the gradients, and the decision. */
int kernel_decide(cudaStream_t stream, const struct kernel_decide *k, struct kernel_scratch *scratch);
/* The last kernel of an update. */
int kernel_update(cudaStream_t stream, const struct kernel_control *control, const struct kernel_update *u);
int kernel_control_set(cudaStream_t stream, struct kernel_control *control, struct compute_opt_counters v);

/* Writes the checksum of n floats to `out`, in mapped host memory. */
int kernel_checksum(cudaStream_t stream, const float *from, size_t n, uint64_t *out, struct kernel_scratch *scratch);

/* Copies a few floats, in mapped host memory or on the device, then writes the device's clock in nanoseconds. */
struct kernel_copy_and_stamp {
  float *dst;
  const float *src;
  size_t n;
  uint64_t *stamp; /* in mapped host memory */
};
int kernel_copy_and_stamp(cudaStream_t stream, const struct kernel_copy_and_stamp *t);

/* dst[rows][dim] = the rows with these numbers, as in struct compute_rows_desc; pixels NULL: ramps. */
struct kernel_rows {
  size_t rows, dim;
  double scale;
  const uint8_t *pixels;
  const uint64_t *numbers; /* in mapped host memory */
  float *dst;
};
int kernel_rows(cudaStream_t stream, const struct kernel_rows *k);

/* How far the device is with collectives. A kernel of one thread before each collective and one after it count in host
 * memory. So the host knows without asking CUDA, even about captured collectives, which no call reports. */
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
