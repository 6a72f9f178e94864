/* SPDX-License-Identifier: Apache-2.0 */
/* The one symbol of rdzv-cuda.so. */

#include "agent/trainer/gpu/nccl_comm.h"

__attribute__((visibility("default"))) extern const struct gpu_module rdzv_gpu;

const struct gpu_module rdzv_gpu = {
    .abi = GPU_ABI,
    .compute_create = cuda_create,
    .coll_create = nccl_coll_create,
    .unique_id = nccl_unique_id,
    .nccl_version = nccl_version,
    .nccl_prefer = nccl_prefer,
};
