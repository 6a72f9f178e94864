#ifndef AGENT_TRAINER_GPU_COLL_NCCL_H
#define AGENT_TRAINER_GPU_COLL_NCCL_H

/* What the module's table takes from the files of NCCL: see gpu.h. */

#include "agent/trainer/gpu/gpu.h"

int coll_nccl_unique_id(void *id, struct err *e);
int coll_nccl_version(void);

#endif
