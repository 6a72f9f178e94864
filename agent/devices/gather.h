/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_GATHER_H
#define AGENT_DEVICES_GATHER_H

/* Finds out the facts about this node, for rdzv-devices only: the reads may hang in the kernel. A value that cannot be
 * found out is left out. Values that change on idle hardware (PCIe generation, clocks, power) are not facts. */

#include "agent/devices/facts.h"
#include "agent/devices/nvml.h"

/* root: "" or a folder that stands for /. job: processes of this job are ours; NULL: none is. */
void gather_host(struct fact_list *f, const char *root);
void gather_ports(struct fact_list *f, const char *root); /* RDMA */

/* What must be remembered from one look to the next. */
struct gather_gpus {
  unsigned seen; /* the most GPUs that NVML has listed */
  bool unknown;  /* NVML does not answer: it may have some */
};

/* Those of NVIDIA by NVML (NULL: there is none), those of AMD and Intel behind them. */
void gather_gpus(struct fact_list *f, const struct nvml *n, struct gather_gpus *g, const char *root, bool composite,
                 const char *job);

#endif
