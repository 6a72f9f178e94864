/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels over plain arrays: fill and convert, the epilogues that cuBLASLt lacks for a shape, a matrix product for
 * shapes that it does not support, rows of a data set, small copies, and the counts of collectives.
 *
 * Each is one loop over items with a stride of the whole grid, so any n fits any grid. If all pointers are aligned, the
 * loop takes four values at a time (struct quad), one load of 16 or 8 bytes, and the remaining values one by one.
 *
 * Large layers do not use these kernels, because epilogues of the products do that work. They are the way that is always right, and tests compare both. */

#include "agent/trainer/compute/compute.h"
#include "agent/trainer/gpu/launch.cuh"

template <typename T> __global__ void fill_kernel(T *dst, float value, size_t n) {
  for (size_t i = first_item(); i < n; i += item_stride()) store(dst + i, value);
}

int kernel_fill(cudaStream_t stream, void *dst, enum kernel_type type, float value, size_t n) {
  if (n == 0) return 0;
  return BY_TYPE(type, LAUNCH(fill_kernel<T>, blocks_for(n), KERNEL_THREADS, stream, (T *)dst, value, n));
}

template <typename D, typename S>
__global__ void convert_kernel(D *dst, const S *src, size_t quads, size_t n) {
  quad<D> *d4 = (quad<D> *)dst;
  const quad<S> *s4 = (const quad<S> *)src;
  for (size_t i = first_item(); i < quads; i += item_stride()) {
    quad<S> in = s4[i];
    quad<D> out;
    for (int k = 0; k < 4; k++) store(&out.v[k], value_of(in.v[k]));
    d4[i] = out;
  }
  for (size_t i = quads * 4 + first_item(); i < n; i += item_stride()) store(dst + i, value_of(src[i]));
}

template <typename D, typename S>
static int convert(cudaStream_t stream, void *dst, const void *src, size_t n) {
  size_t quads = aligned(dst, sizeof(D)) && aligned(src, sizeof(S)) ? n / 4 : 0;
  return LAUNCH((convert_kernel<D, S>), blocks_for(quads ? quads : n), KERNEL_THREADS, stream, (D *)dst,
                (const S *)src, quads, n);
}

int kernel_convert(cudaStream_t stream, void *dst, enum kernel_type dst_type, const void *src,
                   enum kernel_type src_type, size_t n) {
  if (n == 0) return 0;
  if (src_type == KERNEL_F32) return BY_TYPE(dst_type, convert<T, float>(stream, dst, src, n));
  if (dst_type == KERNEL_F32) return BY_TYPE(src_type, convert<float, T>(stream, dst, src, n));
  return (int)cudaErrorInvalidValue;
}

template <typename T> __global__ void bias_kernel(T *y, const T *bias, size_t n, size_t cols) {
  for (size_t i = first_item(); i < n; i += item_stride()) y[i] = bias[i % cols];
}

int kernel_bias(cudaStream_t stream, void *y, const void *from, enum kernel_type type, size_t rows,
                size_t cols) {
  if (rows == 0) return 0;
  size_t n = rows * cols;
  return BY_TYPE(type, LAUNCH(bias_kernel<T>, blocks_for(n), KERNEL_THREADS, stream, (T *)y, (const T *)from, n,
                              cols));
}

struct relu_value {
  __device__ static float of(float y, float) { return y < 0.0f ? 0.0f : y; }
};

struct masked {
  __device__ static float of(float dx, float x) { return x > 0.0f ? dx : 0.0f; }
};

/* to[i] = F::of(to[i], from[i]) */
template <typename F, typename T> __global__ void apply_kernel(T *to, const T *from, size_t quads, size_t n) {
  quad<T> *to4 = (quad<T> *)to;
  const quad<T> *from4 = (const quad<T> *)from;
  for (size_t i = first_item(); i < quads; i += item_stride()) {
    quad<T> x = to4[i], at = from4[i];
    for (int k = 0; k < 4; k++) store(&x.v[k], F::of(value_of(x.v[k]), value_of(at.v[k])));
    to4[i] = x;
  }
  for (size_t i = quads * 4 + first_item(); i < n; i += item_stride())
    store(to + i, F::of(value_of(to[i]), value_of(from[i])));
}

template <typename F, typename T> static int apply(cudaStream_t stream, void *to, const void *from, size_t n) {
  size_t quads = aligned(to, sizeof(T)) && aligned(from, sizeof(T)) ? n / 4 : 0;
  if (n == 0) return 0;
  return LAUNCH((apply_kernel<F, T>), blocks_for(quads ? quads : n), KERNEL_THREADS, stream, (T *)to,
                (const T *)from, quads, n);
}

int kernel_relu(cudaStream_t stream, void *y, enum kernel_type type, size_t n) {
  return BY_TYPE(type, apply<relu_value, T>(stream, y, y, n));
}

int kernel_mask(cudaStream_t stream, void *dx, const void *x, enum kernel_type type, size_t n) {
  return BY_TYPE(type, apply<masked, T>(stream, dx, x, n));
}

enum { SUM_COLS = 32, SUM_LANES = KERNEL_THREADS / SUM_COLS };

/* A block sums 32 columns, eight threads to a column. */
template <typename T>
__global__ void column_sums_kernel(float *out, const T *dz, size_t rows, size_t cols) {
  __shared__ double sums[SUM_LANES][SUM_COLS];
  size_t lane = threadIdx.x / SUM_COLS, col = (size_t)blockIdx.x * SUM_COLS + threadIdx.x % SUM_COLS;
  double sum = 0;
  for (size_t r = lane; col < cols && r < rows; r += SUM_LANES) sum += (double)value_of(dz[r * cols + col]);
  sums[lane][threadIdx.x % SUM_COLS] = sum;
  __syncthreads();
  if (lane > 0 || col >= cols) return;
  for (int k = 1; k < SUM_LANES; k++) sum += sums[k][threadIdx.x];
  out[col] = (float)sum;
}

int kernel_column_sums(cudaStream_t stream, float *out, const void *dz, enum kernel_type type, size_t rows,
                       size_t cols) {
  if (cols == 0) return 0;
  return BY_TYPE(type, LAUNCH(column_sums_kernel<T>, (cols + SUM_COLS - 1) / SUM_COLS, KERNEL_THREADS, stream, out,
                              (const T *)dz, rows, cols));
}

enum { TILE = 16, GEMM_BLOCKS_MAX = 1 << 20 };

/* A block makes one tile of D after the other, with tiles of A and B in shared memory. */
template <typename D, typename T>
__global__ void gemm_kernel(struct kernel_gemm g, const T *a, const T *b, D *d) {
  __shared__ float sa[TILE][TILE + 1], sb[TILE][TILE + 1];
  size_t down = (g.m + TILE - 1) / TILE, tiles = down * ((g.n + TILE - 1) / TILE);
  size_t i = threadIdx.x % TILE, j = threadIdx.x / TILE;
  for (size_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    size_t row = tile % down * TILE + i, col = tile / down * TILE + j;
    float sum = 0.0f;
    for (size_t k0 = 0; k0 < g.k; k0 += TILE) {
      size_t ka = k0 + j, kb = k0 + i; /* this thread brings A[row][ka] and B[kb][col] */
      sa[j][i] = row < g.m && ka < g.k ? value_of(a[g.trans_a ? row * g.lda + ka : ka * g.lda + row]) : 0.0f;
      sb[i][j] = col < g.n && kb < g.k ? value_of(b[g.trans_b ? kb * g.ldb + col : col * g.ldb + kb]) : 0.0f;
      __syncthreads();
      for (int k = 0; k < TILE; k++) sum += sa[k][i] * sb[k][j];
      __syncthreads();
    }
    if (row >= g.m || col >= g.n) continue; /* go to the next tile, like all threads of the block */
    D *at = d + col * g.ldd + row;
    store(at, g.add ? value_of(*at) + sum : sum);
  }
}

template <typename D, typename T>
static int gemm(cudaStream_t stream, const struct kernel_gemm *g, const void *a, const void *b, void *d) {
  size_t tiles = ((g->m + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE);
  return LAUNCH((gemm_kernel<D, T>), tiles < GEMM_BLOCKS_MAX ? tiles : GEMM_BLOCKS_MAX, TILE * TILE, stream,
                *g, (const T *)a, (const T *)b, (D *)d);
}

int kernel_gemm(cudaStream_t stream, const struct kernel_gemm *g, const void *a, const void *b, void *d) {
  if (g->m == 0 || g->n == 0) return 0;
  if (g->d != KERNEL_F32 && g->d != g->ab) return (int)cudaErrorInvalidValue;
  return BY_TYPE(g->ab, g->d == KERNEL_F32 ? gemm<float, T>(stream, g, a, b, d) : gemm<T, T>(stream, g, a, b, d));
}

/* Rows of a data set by their numbers: a block makes row after row, and its threads make the values of each. There are
 * only products and quotients, each rounded by itself, in data.c's order. No compiler can fuse them with a sum, so
 * every device computes the host's bits. */
__global__ static void ramps_kernel(float *dst, const uint64_t *numbers, size_t rows, size_t dim,
                                    double scale) {
  for (size_t r = blockIdx.x; r < rows; r += gridDim.x) {
    double end = (double)*(const volatile uint64_t *)(numbers + r);
    double step = dim > 1 ? end / (double)(dim - 1) : 0.0;
    for (size_t k = threadIdx.x; k < dim; k += blockDim.x)
      dst[r * dim + k] = dim > 1 && k == dim - 1 ? (float)(end * scale) : (float)((double)k * step * scale);
  }
}

__global__ static void pixels_kernel(float *dst, const uint64_t *numbers, const uint8_t *pixels, size_t rows,
                                     size_t dim, float factor) {
  for (size_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const uint8_t *p = pixels + (size_t) * (const volatile uint64_t *)(numbers + r) * dim;
    for (size_t k = threadIdx.x; k < dim; k += blockDim.x) dst[r * dim + k] = (float)p[k] * factor;
  }
}

int kernel_rows(cudaStream_t stream, const struct kernel_rows *k) {
  unsigned blocks = blocks_for(k->rows * KERNEL_THREADS);
  if (k->rows == 0) return 0;
  if (!k->pixels)
    return LAUNCH(ramps_kernel, blocks, KERNEL_THREADS, stream, k->dst, k->numbers, k->rows, k->dim,
                  k->scale);
  return LAUNCH(pixels_kernel, blocks, KERNEL_THREADS, stream, k->dst, k->numbers, k->pixels, k->rows, k->dim,
                (float)(k->scale / 255.0));
}

/* The few floats that a step exchanges with the host, and the time. The kernel reads and writes the host's memory
 * itself, so a captured step has one node instead of a copy and a time. The clock is the device's, in
 * nanoseconds; its resolution is up to the device. */
__global__ static void copy_and_stamp_kernel(struct kernel_copy_and_stamp t) {
  for (size_t k = threadIdx.x; k < t.n; k += blockDim.x)
    *(volatile float *)(t.dst + k) = *(const volatile float *)(t.src + k);
  if (threadIdx.x == 0 && t.stamp) *(volatile uint64_t *)t.stamp = device_ns();
}

int kernel_copy_and_stamp(cudaStream_t stream, const struct kernel_copy_and_stamp *t) {
  return LAUNCH(copy_and_stamp_kernel, 1, 32, stream, *t);
}

/* The counts of collectives. They are kept in device memory and only written to the host's, because a read over the bus
 * takes longer than everything else. The count is written last; the host uses the other fields only for messages. */
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

int trace_begin(cudaStream_t stream, uint64_t *counts, struct trace *to, struct trace_call call) {
  return LAUNCH(trace_begin_kernel, 1, 1, stream, counts, to, call);
}

int trace_end(cudaStream_t stream, uint64_t *counts, struct trace *to) {
  return LAUNCH(trace_end_kernel, 1, 1, stream, counts, to);
}

int kernel_check(void) {
  cudaFuncAttributes a;
  return (int)cudaFuncGetAttributes(&a, (const void *)fill_kernel<float>);
}
