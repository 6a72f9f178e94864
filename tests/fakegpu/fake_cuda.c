/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's driver as rdzv-nccl uses it, on the stand-in for the runtime. cuda.h declares what is defined here. */

#include <cuda.h>
#include <stdlib.h>
#include <unistd.h>
#include "tests/fakegpu/fake.h"

CUresult cuInit(unsigned flags) {
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *n) {
  return (CUresult)cudaGetDeviceCount(n);
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

/* FAKEGPU_CONTEXT_MS: how long it takes. */
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  const char *ms = getenv("FAKEGPU_CONTEXT_MS");
  if (ms) usleep((useconds_t)atoi(ms) * 1000);
  *context = (CUcontext)(uintptr_t)(device + 1);
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return (CUresult)cudaSetDevice((int)(uintptr_t)context - 1);
}

CUresult cuMemAlloc(CUdeviceptr *at, size_t n) {
  void *p = NULL;
  cudaError_t rc = cudaMalloc(&p, n);
  *at = (CUdeviceptr)(uintptr_t)p;
  return (CUresult)rc;
}

CUresult cuStreamCreate(CUstream *out, unsigned flags) {
  return (CUresult)cudaStreamCreateWithFlags(out, flags);
}

CUresult cuStreamQuery(CUstream stream) {
  return (CUresult)cudaStreamQuery(stream);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t n, CUstream stream) {
  return (CUresult)cudaMemcpyAsync((void *)(uintptr_t)to, from, n, cudaMemcpyHostToDevice, stream);
}

CUresult cuMemcpyDtoH(void *to, CUdeviceptr from, size_t n) {
  return (CUresult)cudaMemcpy(to, (const void *)(uintptr_t)from, n, cudaMemcpyDeviceToHost);
}

CUresult cuGetErrorString(CUresult rc, const char **text) {
  *text = cudaGetErrorString((cudaError_t)rc);
  return CUDA_SUCCESS;
}
