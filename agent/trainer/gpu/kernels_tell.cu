/* The few floats that go to the device and come from it with every step, and the time at which they did.
 *
 * One kernel reads and writes where the host does: in a captured step it is one node instead of a copy for each piece, and the clock comes for
 * nothing. The clock is the device's own, counted in nanoseconds; how fine its steps are is the device's affair (a microsecond, or less). */

#include "agent/trainer/gpu/launch.cuh"

__global__ static void tell_kernel(struct kernel_tell t) {
  for (int i = 0; i < COMPUTE_PAIRS_MAX; i++)
    for (size_t k = threadIdx.x; k < t.v[i].n; k += blockDim.x)
      *(volatile float *)(t.v[i].dst + k) = *(const volatile float *)(t.v[i].src + k);
  if (threadIdx.x == 0 && t.stamp) *(volatile uint64_t *)t.stamp = device_ns();
}

int kernel_tell(cudaStream_t stream, const struct kernel_tell *t) {
  return LAUNCH(tell_kernel, 1, 32, stream, *t);
}
