#ifndef AGENT_TRAINER_GPU_KERNELS_H
#define AGENT_TRAINER_GPU_KERNELS_H

/* Everything that runs on the device and is not a matrix product of cuBLASLt: one C function per kernel, defined in the .cu files, which
 * queues it on `stream` and returns what the launch returned (0 is cudaSuccess). Nothing else of CUDA C++ is seen by the rest.
 *
 * The kernels use plain CUDA C only (threadIdx, __shared__, __syncthreads, conversions of cuda_bf16.h and cuda_fp16.h), and are launched through
 * LAUNCH (launch.cuh) alone, so that a compiler for CPUs can build them too, behind a shim: each block as a set of threads that meet at
 * __syncthreads, which all threads of a block reach.
 *
 * Sums are deterministic: every block sums its part in one fixed order into `partials`, and one block sums those. `partials` is scratch of
 * KERNEL_PARTIALS doubles; since a stream does one thing after the other, one is enough for all. Pointers are the device's. Matrices are
 * row-major. */

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/trainer/compute/compute.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KERNEL_PARTIALS = 1024, KERNEL_THREADS = 256 };

/* How values lie in memory. */
enum kernel_type { KERNEL_F32, KERNEL_BF16, KERNEL_F16 };

static inline size_t kernel_type_size(enum kernel_type t) {
  return t == KERNEL_F32 ? 4 : 2;
}

/* The optimizer's control block, on the device: what the host will read, and what one update is made with. */
struct kernel_control {
  struct compute_opt_counters v;
  float go;   /* 1: make this update */
  float by;   /* what gradients are multiplied with: 1 / scale, and clipping */
  float lr;   /* sgd */
  float rate; /* adam: lr / (1 - beta1^updates) */
  float root; /* adam: 1 / sqrt(1 - beta2^updates) */
  float keep; /* adamw: 1 - lr * weight_decay */
};

struct kernel_update {
  struct compute_opt_desc d;
  float *param;
  void *low; /* the copy in `type`; NULL: none */
  enum kernel_type type;
  const float *grad;
  float *state[COMPUTE_STATES_MAX];
};

struct kernel_loss {
  enum compute_loss kind;
  enum kernel_type type; /* of y and dz */
  size_t rows, cols;
  double weight;
  bool add;
  float who;
  const float *scale; /* or NULL: 1 */
  const void *y;
  const float *target;
  void *dz; /* or NULL */
  float *out;
};

/* Is there code for this device in the module? */
int kernel_check(void);

/* kernels.cu */
int kernel_fill(cudaStream_t stream, void *dst, enum kernel_type type, float value, size_t n);
int kernel_convert(cudaStream_t stream, void *dst, enum kernel_type dst_type, const void *src,
                   enum kernel_type src_type, size_t n);
/* y[rows][cols] = from[cols] in every row, of one type: what a product is then added to, so that their sum is rounded once. */
int kernel_bias(cudaStream_t stream, void *y, const void *from, enum kernel_type type, size_t rows,
                size_t cols);
/* y[i] = y[i] < 0 ? 0 : y[i]; a NaN stays one. */
int kernel_relu(cudaStream_t stream, void *y, enum kernel_type type, size_t n);
/* dx[i] = x[i] > 0 ? dx[i] : 0 */
int kernel_mask(cudaStream_t stream, void *dx, const void *x, enum kernel_type type, size_t n);
/* out[cols] = (or +=) the sums of columns of dz[rows][cols]. */
int kernel_column_sums(cudaStream_t stream, float *out, const void *dz, enum kernel_type type, size_t rows,
                       size_t cols, bool add);
/* One matrix product, column-major as cuBLAS has it: D[m][n] = op(A) op(B) + (add ? D : 0), sums in float. For shapes that cuBLASLt does not
 * take, and as a yardstick for the others; not fast. */
struct kernel_gemm {
  bool trans_a, trans_b, add;
  size_t m, n, k, lda, ldb, ldd;
  enum kernel_type ab, d;
};
int kernel_gemm(cudaStream_t stream, const struct kernel_gemm *g, const void *a, const void *b, void *d);

/* kernels_loss.cu */
int kernel_loss(cudaStream_t stream, const struct kernel_loss *l, double *partials);
int kernel_correct(cudaStream_t stream, const void *y, enum kernel_type type, const float *target, float *out,
                   size_t rows, size_t cols, double *partials);

/* kernels_opt.cu */
/* The first two of an update's three kernels: the sum of squares, and the decision. bad: NULL, or not 0: skip. poison: not 0: change
 * nothing at all. */
int kernel_control(cudaStream_t stream, struct kernel_control *control, const struct compute_opt_desc *d,
                   const float *grad, size_t n, const float *lr, const float *bad, const unsigned *poison,
                   double *partials);
/* The third. */
int kernel_update(cudaStream_t stream, const struct kernel_control *control, const struct kernel_update *u);
int kernel_control_set(cudaStream_t stream, struct kernel_control *control, struct compute_opt_counters v);

/* kernels_tell.cu: copies of a few floats, in mapped memory of the host or on the device; then the device's clock, in nanoseconds. */
struct kernel_tell {
  struct {
    float *dst;
    const float *src;
    size_t n;
  } v[COMPUTE_PAIRS_MAX];
  uint64_t *stamp; /* in mapped memory of the host */
};
int kernel_tell(cudaStream_t stream, const struct kernel_tell *t);

/* kernels_rows.cu: dst[rows][dim] = the rows with these numbers, as struct compute_rows_desc has them; pixels NULL: ramps. */
struct kernel_rows {
  size_t rows, dim;
  double scale;
  const uint8_t *pixels;
  const uint64_t *numbers; /* mapped memory of the host */
  float *dst;
};
int kernel_rows(cudaStream_t stream, const struct kernel_rows *k);

#ifdef __cplusplus
}
#endif
#endif
