/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_PROFILER_NCCL_PROFILER_H
#define AGENT_PROFILER_NCCL_PROFILER_H

/* NCCL's interface for profilers, versions 1 to 6, as far as it is used: nothing of NCCL is needed to build. Names are
 * NCCL's. The library that NCCL_PROFILER_PLUGIN names exports one struct for each version; NCCL takes the newest that
 * it knows: 2.23 version 1, 2.24 and 2.25 version 2, 2.26 version 3, 2.27 version 4, 2.28 version 5, 2.29 and later
 * version 6. RCCL has the same interface.
 *
 * The members that are used stand at the same places in all versions that have them. Up to version 4 the type of an
 * event has one byte, later eight. The hash of a communicator comes with each collective up to version 3, and with init
 * from version 4 on. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef int ncclResult_t; /* 0: ncclSuccess */

enum {
  ncclProfileGroup = 1 << 0,
  ncclProfileColl = 1 << 1,
  ncclProfileP2p = 1 << 2,
  ncclProfileProxyOp = 1 << 3,
  ncclProfileProxyStep = 1 << 4,
  ncclProfileKernelCh = 1 << 6, /* from version 3 on */
};

enum { /* states, of recordEventState */
       ncclProfilerProxyStepSendWait = 9,
       ncclProfilerKernelChStop = 22, /* from version 4 on */
};

union nccl_profiler_detail {
  struct {
    const char *name;
    uint64_t commHash; /* up to version 3 */
  } coll;
  struct {
    pid_t pid; /* of the process that asked for it, which may be another one */
    uint8_t channelId;
    int peer, nSteps, chunkSize, isSend;
  } proxyOp;
  struct {
    uint8_t channelId;
    uint64_t pTimer; /* from version 4 on: the GPU's clock, in ns */
  } kernelCh;
};

struct nccl_profiler_descr {
  union {
    uint8_t v1; /* to version 4 */
    uint64_t v5;
  } type;
  void *parentObj;
  int rank;
  union nccl_profiler_detail of;
};

union nccl_profiler_state_args { /* from version 4 on */
  struct {
    size_t transSize;
  } proxyStep;
  struct {
    uint64_t pTimer;
  } kernelCh;
};

struct nccl_profiler {
  const char *name;
  union {
    ncclResult_t (*v1)(void **context, int *eActivationMask); /* to version 3 */
    ncclResult_t (*v4)(void **context, int *eActivationMask, const char *commName, uint64_t commHash, int nNodes,
                       int nranks, int rank, void *logfn);
    ncclResult_t (*v5)(void **context, uint64_t commId, int *eActivationMask, const char *commName, int nNodes,
                       int nranks, int rank, void *logfn);
  } init;
  ncclResult_t (*startEvent)(void *context, void **eHandle, struct nccl_profiler_descr *eDescr);
  ncclResult_t (*stopEvent)(void *eHandle);
  ncclResult_t (*recordEventState)(void *eHandle, int eState, union nccl_profiler_state_args *eStateArgs);
  ncclResult_t (*finalize)(void *context);
};

#endif
