/* SPDX-License-Identifier: Apache-2.0 */
/* kernels_loss.cu, and kernels that no product has, which show what the others rely on.
 *
 *   twice     Uses block_sum and block_max as their contract allows and no kernel does today: twice in a row. So the
 *             barrier at the end of each matters.
 *   planted   A race between blocks, which must be found. */

#include "agent/trainer/gpu/kernels_loss.cu"

__global__ static void twice_kernel(float *out) {
  double sum = block_sum((double)threadIdx.x);
  sum += block_sum(sum);
  float top = block_max((float)sum + (float)threadIdx.x);
  top += block_max(top);
  if (threadIdx.x == 0) out[blockIdx.x] = top;
}

__global__ static void planted_kernel(float *out) {
  if (threadIdx.x == 0) *out += 1.0f;
}

extern "C" int race_twice(float *out) {
  return LAUNCH(twice_kernel, 2, KERNEL_THREADS, NULL, out);
}

extern "C" int race_planted(float *out) {
  return LAUNCH(planted_kernel, 2, KERNEL_THREADS, NULL, out);
}
