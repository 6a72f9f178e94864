#ifndef AGENT_TRAINER_GPU_COLL_NCCL_H
#define AGENT_TRAINER_GPU_COLL_NCCL_H

/* What the module's table takes from the files of NCCL: see gpu.h. */

#include "agent/trainer/gpu/gpu.h"

/* On the device of `c`, whose stream's events order everything: see coll.h and gpu.h. Graphs into which its collectives were captured must be
 * destroyed before coll_destroy; after coll_abort, or a failure, is early enough. A failure poisons `c` (compute_poison): whoever goes
 * on with it takes that back when all that was queued is done. */
int coll_nccl_create(const struct coll_nccl_config *cfg, struct compute *c, struct coll **out, struct err *e);
int coll_nccl_unique_id(void *id, struct err *e);
int coll_nccl_version(void);

#endif
