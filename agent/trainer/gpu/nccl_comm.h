/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_NCCL_COMM_H
#define AGENT_TRAINER_GPU_NCCL_COMM_H

/* Shared by the files of NCCL's collectives. */

#include "agent/trainer/gpu/board.h"
#include "agent/trainer/gpu/cuda_compute.h"
#include "agent/trainer/gpu/gpu.h"

#include <nccl.h>

enum {
  NCCL_STAGE = 1 << 20, /* bytes of a broadcast at a time */
};

struct nccl_end; /* the thread that ends a communicator */

struct nccl {
  struct coll base;
  struct nccl_config cfg;
  struct compute *c;
  ncclComm_t comm;      /* NULL: none, or given to `end` */
  struct nccl_end *end; /* NULL: not made yet */
  bool running;         /* the communicator came up */
  struct nccl *twin_of; /* of a twin, whose failure does not concern updates */
  struct nccl *left;    /* a twin that is destroyed with this one */

  cudaStream_t stream;
  cudaEvent_t ready, done[COLL_TICKETS_MAX], host_done;
  uint64_t tickets; /* begun */
  uint32_t bucket;  /* of the next all-reduce */
  void *stage, *stage_dev;

  struct trace *trace, *trace_dev; /* the same memory, at its host and its device address */
  uint64_t *counts;
  uint64_t seen_begun, seen_done, moved_ms;             /* the last change of the trace, and when it was seen */
  uint64_t looked_ms, asked_ms, board_ms, stop_seen_ms; /* board_ms: when the board was last read */
  struct trace last;                                    /* the trace when this rank failed; unused before */

  struct err failed;
};

static inline struct nccl *nccl_of(struct coll *l) {
  return (struct nccl *)l; /* base comes first */
}
static inline int nccl_repeat_failure(struct nccl *n, struct err *e) {
  return n->failed.code ? err_set(e, n->failed.code, "%s", n->failed.text) : 0;
}

/* The trace now, or when this rank failed. */
static inline struct trace nccl_trace_now(const struct nccl *n) {
  const volatile struct trace *w = n->trace;
  if (!w || n->failed.code) return n->last;
  return (struct trace){.begun = w->begun, .done = w->done};
}

/* nccl_comm.c. The first four are for the module's table. A communicator is on the device of `c`, whose stream's events
 * order everything (coll.h, gpu.h). Destroy graphs with its collectives before coll_destroy; after coll_abort or a
 * failure is early enough. A failure blocks the updates of `c` (compute_block_updates). A caller that continues with `c`
 * unblocks them when the queue is done. */
int nccl_coll_create(const struct nccl_config *cfg, struct compute *c, struct coll **out, struct err *e);
int nccl_unique_id(void *id, struct err *e);
int nccl_version(void);
bool nccl_prefer(const char *name, const char *value);
extern const struct coll_ops nccl_ops __attribute__((visibility("hidden"))); /* in nccl_coll.c */
void nccl_destroy(struct coll *l);
int nccl_twin(struct coll *l, struct coll **out, struct err *e);
void nccl_cut(struct coll *l);
/* From now on this rank has failed, and its updates are blocked. */
void nccl_poison(struct nccl *n, int code);
void nccl_nap(void);

/* nccl_fail.c. The functions that fail return the code, with its message. */
void nccl_abort(struct coll *l, const char *why);
void nccl_post(struct nccl *n, enum board_state state, const char *why);
int nccl_fail_result(struct nccl *n, ncclResult_t rc, const char *what, struct err *e);
/* A CUDA error is this rank's own failure. */
int nccl_check_cuda(struct nccl *n, cudaError_t rc, const char *what, struct err *e);
/* Fails if the agent wants this rank to leave. Asks it every COLL_ASK_MS. */
int nccl_ask_agent(struct nccl *n, struct err *e);
/* Fails if NCCL reports an error, a collective is late, another rank has failed, or the agent asks for it. Cheap. */
int nccl_watch(struct nccl *n, struct err *e);
/* Polls until the call is in the stream, or the communicator has come up (call NULL), because one that does not block
 * returns before. first: the result of the call. */
int nccl_await(struct nccl *n, ncclResult_t first, const struct trace_call *call, struct err *e);

#endif
