/* The one symbol of rdzv-cuda.so. */

#include "agent/trainer/gpu/coll_nccl.h"
#include "agent/trainer/gpu/compute_cuda.h"

__attribute__((visibility("default"))) extern const struct gpu_module rdzv_gpu;

const struct gpu_module rdzv_gpu = {
    .abi = GPU_ABI,
    .compute_create = cuda_create,
    .coll_create = coll_nccl_create,
    .unique_id = coll_nccl_unique_id,
    .nccl_version = coll_nccl_version,
};
