/* The one symbol of rdzv-cuda.so. */

#include "agent/trainer/gpu/nccl_coll.h"
#include "agent/trainer/gpu/cuda_compute.h"

__attribute__((visibility("default"))) extern const struct gpu_module rdzv_gpu;

const struct gpu_module rdzv_gpu = {
    .abi = GPU_ABI,
    .compute_create = cuda_create,
    .coll_create = coll_nccl_create,
    .unique_id = coll_nccl_unique_id,
    .nccl_version = coll_nccl_version,
};
