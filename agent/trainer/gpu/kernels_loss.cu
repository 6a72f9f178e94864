/* SPDX-License-Identifier: Apache-2.0 */
/* Losses and their gradients.
 *
 * Each is one kernel, or two:
 *
 *   parts    Every block sums its part, in double. If the gradient does not depend on the whole sum (mse,
 *            cross-entropy), it is written here, so y is read once. The last block writes the three numbers of `out`,
 *            and for rmse scratch->factor, that of the gradient, 1 / (n rmse).
 *   root     Only rmse: the gradient.
 *
 * The arithmetic is that of compute/cpu.c: differences and gradients in float, sums in double. One block of 32 threads
 * works on a row of cross-entropy, or 256 threads if there are many classes. An invalid class number gives NaN as the
 * loss, instead of a read from somewhere else. */

#include "agent/trainer/gpu/launch.cuh"

enum { FEW_COLS = 256, FEW_THREADS = 32 };

/* Every thread of every block calls it, with the sum of its block in thread 0. n: the divisor of the whole sum. */
__device__ static void finish_loss(const struct kernel_loss *l, double n, double part, struct kernel_scratch *scratch) {
  if (!is_last_block(scratch, part)) return;
  double sum = total<double>(scratch);
  if (threadIdx.x > 0) return;
  const struct compute_loss_desc *d = &l->d;
  double mean = n > 0 ? sum / n : 0.0, value = d->kind == COMPUTE_RMSE ? sqrt(mean) : mean;
  scratch->factor = value == 0.0 ? 0.0 : d->weight / (n * value);
  float loss = (float)(d->weight * value), bad = isfinite(loss) ? 0.0f : 1.0f;
  if (*(const volatile unsigned *)l->blocked) bad = INFINITY;
  l->out[0] = loss;
  l->out[1] = bad;
  l->out[2] = bad > 0.0f ? d->rank_tag : 0.0f;
}

struct squared {
  size_t n, quads;
  double factor; /* of (y - target) in the gradient */
};

/* One value: its squared difference, and its gradient if `dz` is not NULL. */
template <typename T> __device__ static inline double squared_at(T y, float t, float by, T *dz) {
  float d = value_of(y) - t;
  if (dz) store(dz, by * d);
  return (double)d * (double)d;
}

template <typename T>
__global__ void squared_kernel(struct squared q, struct kernel_loss l, const T *y, const float *target, T *dz,
                               struct kernel_scratch *scratch) {
  double sum = 0;
  float by = (float)q.factor;
  for (size_t i = first_item(); i < q.quads; i += item_stride()) {
    quad<T> y4 = ((const quad<T> *)y)[i], d4;
    quad<float> t4 = ((const quad<float> *)target)[i];
    for (int k = 0; k < 4; k++) sum += squared_at(y4.v[k], t4.v[k], by, &d4.v[k]);
    if (dz) ((quad<T> *)dz)[i] = d4;
  }
  for (size_t i = q.quads * 4 + first_item(); i < q.n; i += item_stride())
    sum += squared_at(y[i], target[i], by, dz ? dz + i : (T *)NULL);
  finish_loss(&l, (double)q.n, block_sum(sum), scratch);
}

template <typename T>
__global__ void root_kernel(struct squared q, const T *y, const float *target, T *dz,
                            const struct kernel_scratch *scratch) {
  float by = (float)scratch->factor;
  for (size_t i = first_item(); i < q.quads; i += item_stride()) {
    quad<T> y4 = ((const quad<T> *)y)[i], d4;
    quad<float> t4 = ((const quad<float> *)target)[i];
    for (int k = 0; k < 4; k++) (void)squared_at(y4.v[k], t4.v[k], by, &d4.v[k]);
    ((quad<T> *)dz)[i] = d4;
  }
  for (size_t i = q.quads * 4 + first_item(); i < q.n; i += item_stride())
    (void)squared_at(y[i], target[i], by, dz + i);
}

/* The largest value of the block. Every thread calls it. Blocks as in block_sum. */
__device__ static float block_max(float x) {
  __shared__ float tops[KERNEL_THREADS];
  tops[threadIdx.x] = x;
  __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) tops[threadIdx.x] = fmaxf(tops[threadIdx.x], tops[threadIdx.x + half]);
    __syncthreads();
  }
  float top = tops[0];
  __syncthreads();
  return top;
}

template <typename T>
__global__ void entropy_kernel(struct kernel_loss l, const T *y, const float *target, T *dz,
                               struct kernel_scratch *scratch) {
  size_t cols = l.d.cols;
  double loss = 0, factor = l.d.weight / (double)l.d.rows;
  for (size_t r = blockIdx.x; r < l.d.rows; r += gridDim.x) {
    const T *row = y + r * cols;
    float t = target[r], top = -INFINITY;
    bool known = t >= 0.0f && t < (float)cols;
    size_t right = known ? (size_t)t : 0;
    for (size_t j = threadIdx.x; j < cols; j += blockDim.x) top = fmaxf(top, value_of(row[j]));
    top = block_max(top);
    double sum = 0;
    for (size_t j = threadIdx.x; j < cols; j += blockDim.x) sum += (double)expf(value_of(row[j]) - top);
    sum = block_sum(sum);
    loss += known ? log(sum) - (double)(value_of(row[right]) - top) : (double)NAN;
    for (size_t j = threadIdx.x; j < cols; j += blockDim.x)
      store(dz + r * cols + j,
          (float)(factor * ((double)expf(value_of(row[j]) - top) / sum - (j == right ? 1.0 : 0.0))));
  }
  finish_loss(&l, (double)l.d.rows, loss, scratch);
}

/* Also without rows, for any kind: the loss is then 0. */
template <typename T>
static int squared(cudaStream_t stream, const struct kernel_loss *l, struct kernel_scratch *scratch) {
  size_t n = l->d.rows * l->d.cols;
  bool wide = aligned(l->y, sizeof(T)) && aligned(l->target, 4) && aligned(l->dz, sizeof(T));
  struct squared q = {.n = n, .quads = wide ? n / 4 : 0, .factor = n ? 2.0 * l->d.weight / (double)n : 0.0};
  bool root = l->d.kind == COMPUTE_RMSE;
  unsigned blocks = blocks_for(q.quads ? q.quads : n);
  int rc = LAUNCH(squared_kernel<T>, blocks, KERNEL_THREADS, stream, q, *l, (const T *)l->y,
                  l->target, root ? (T *)NULL : (T *)l->dz, scratch);
  if (rc || !root || n == 0) return rc;
  return LAUNCH(root_kernel<T>, blocks, KERNEL_THREADS, stream, q, (const T *)l->y, l->target, (T *)l->dz,
                (const struct kernel_scratch *)scratch);
}

template <typename T>
static int entropy(cudaStream_t stream, const struct kernel_loss *l, struct kernel_scratch *scratch) {
  unsigned blocks = l->d.rows < KERNEL_PARTIALS ? (unsigned)l->d.rows : (unsigned)KERNEL_PARTIALS;
  int threads = l->d.cols <= FEW_COLS ? (int)FEW_THREADS : (int)KERNEL_THREADS;
  return LAUNCH(entropy_kernel<T>, blocks, threads, stream, *l, (const T *)l->y,
                l->target, (T *)l->dz, scratch);
}

int kernel_loss(cudaStream_t stream, const struct kernel_loss *l, struct kernel_scratch *scratch) {
  if (l->d.rows > 0 && l->d.kind == COMPUTE_CROSS_ENTROPY) return BY_TYPE(l->type, entropy<T>(stream, l, scratch));
  return BY_TYPE(l->type, squared<T>(stream, l, scratch));
}
