/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_NCCL_COLL_H
#define AGENT_TRAINER_GPU_NCCL_COLL_H

/* NCCL's part of the module's table (gpu.h). */

#include "agent/trainer/gpu/gpu.h"

/* On the device of `c`, whose stream's events order everything (coll.h, gpu.h). Destroy graphs with its collectives
 * before coll_destroy; after coll_abort or a failure is early enough. A failure blocks the updates of `c`
 * (compute_block_updates). A caller that continues with `c` unblocks them when the queue is done. */
int nccl_coll_create(const struct nccl_config *cfg, struct compute *c, struct coll **out, struct err *e);
int nccl_unique_id(void *id, struct err *e);
int nccl_version(void);
const char *nccl_exclude_switches(void);

#endif
