/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that NCCL reads and writes itself, instead of copying it through buffers of its own. What there is depends on
 * the version of the library at run time:
 *
 *   before 2.19     nothing.
 *   from 2.19 on    ncclCommRegister. The call is local: it notes an address. The first collective there makes ranks of
 *                   one node map each other's memory, and adapters know it. Over NVLink this needs memory of
 *                   ncclMemAlloc (memory.c), and without it NCCL silently goes on copying.
 *   from 2.29.7 on  ncclCommWindowRegister with NCCL_WIN_COLL_SYMMETRIC. All ranks of a node map the memory of all, and
 *                   kernels of their own (NVLink loads, stores, and sums in the switch) need no steps between ranks.
 *                   2.27 has windows too. But until 2.29.7 a kernel that waits in one never reads the abort flag: with
 *                   a lost rank it would stay on the device until the process ends, and no process could recover in
 *                   place.
 *
 * A window is also an ncclCommRegister, so where a node cannot map all memory nothing else is needed.
 *
 * gpu_config.deterministic excludes windows. Their kernels let the switch add, in an order that nothing here
 * decides; NCCL_ALGO does not choose among them.
 *
 * A window is a call of all ranks, and waits for them. One rank without a suitable buffer would leave the others
 * waiting. So the ranks first count who can, and make windows only if all can; then they count who has one, and keep
 * them only if all have. Every rank makes the same calls in the same order, whatever it has. The counts are two sums of
 * one number, once per communicator. */

#include "agent/trainer/gpu/nccl_comm.h"

/* NULL if the library at run time is too old to have it. */
#pragma weak ncclCommRegister /* 2.19 */
#pragma weak ncclCommDeregister
#pragma weak ncclCommWindowRegister /* 2.27 */
#pragma weak ncclCommWindowDeregister

enum { NCCL_WINDOWS = 22907 }; /* as of ncclGetVersion */

static const struct trace_call registering = {.kind = TRACE_NOTHING};

static void keep(struct nccl *n, void *handle, bool window) {
  if (handle) n->regs[n->n_regs++] = (struct nccl_reg){handle, window};
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
static int count_ranks(struct nccl *n, bool mine, int *count, struct err *e) {
  double v = mine;
  int rc = coll_sum(&n->base, &v, 1, e);
  *count = (int)v;
  return rc;
}

/* *all: every rank has the buffer in a window now. Otherwise no rank has. */
static int make_window(struct nccl *n, const struct compute_buf *b, bool *all, struct err *e) {
  ncclWindow_t window = NULL;
  int count = 0;
  bool can = ncclCommWindowRegister && nccl_version() >= NCCL_WINDOWS && b->from_nccl;
  int rc = cuda_of(n->c)->deterministic ? 0 : count_ranks(n, can, &count, e);
  if (rc || !can || count < n->base.world) return rc;
  size_t size = b->n * kernel_type_size(b->type);
  ncclResult_t r = ncclCommWindowRegister(n->comm, b->data, size, &window, NCCL_WIN_COLL_SYMMETRIC);
  if (r == ncclInProgress || r == ncclSuccess) rc = nccl_await_enqueued(n, r, &registering, e);
  if (rc == 0) rc = count_ranks(n, window != NULL, &count, e);
  if (rc) return rc;
  *all = count == n->base.world;
  if (*all)
    keep(n, window, true);
  else if (window)
    (void)ncclCommWindowDeregister(n->comm, window);
  return 0;
}
#else
static int make_window(struct nccl *n, const struct compute_buf *b, bool *all, struct err *e) {
  return 0;
}
#endif

int nccl_register(struct coll *l, struct compute *c, struct compute_buf *b, struct err *e) {
  struct nccl *n = nccl_of(l);
  bool window = false;
  int rc = nccl_repeat_failure(n, e);
  (void)c;
  if (rc || b->use == COMPUTE_STAGE || n->n_regs == NCCL_REGS_MAX) return rc;
  rc = make_window(n, b, &window, e);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  if (rc || window || !ncclCommRegister) return rc;
  void *handle = NULL;
  ncclResult_t r = ncclCommRegister(n->comm, b->data, b->n * kernel_type_size(b->type), &handle);
  if (r == ncclInProgress) rc = nccl_await_enqueued(n, r, &registering, e);
  if (rc == 0 && (r == ncclSuccess || r == ncclInProgress)) keep(n, handle, false);
#endif
  return rc;
}

void nccl_deregister(struct nccl *n) {
  for (int i = n->n_regs; i-- > 0;) {
    const struct nccl_reg *g = &n->regs[i];
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    if (g->window) (void)ncclCommWindowDeregister(n->comm, g->handle);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
    if (!g->window) (void)ncclCommDeregister(n->comm, g->handle);
#endif
  }
  n->n_regs = 0;
}
