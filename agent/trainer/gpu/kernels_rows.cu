/* Rows of a data set by their numbers: a block takes row after row, its threads the values of each.
 *
 * Products and quotients only, in the order in which data.c has them, and each rounded by itself: there is no sum that a compiler could fuse
 * with a product, so every device gives the host's bits. */

#include "agent/trainer/gpu/launch.cuh"

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
