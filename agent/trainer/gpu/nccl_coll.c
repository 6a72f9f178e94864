/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of NCCL, on a stream of their own. nccl_comm.c has the communicator, nccl_fail.c its failures.
 *
 *     compute's stream   ... backward | ready ------------------------------ waits | update ...
 *     this stream                     waits | count | all-reduce | count | done
 *
 * All of it is queued and nothing waits, so the backward pass runs beside the all-reduce. Two streams that wait for
 * each other's events are captured as one graph, so the same calls make a captured step. A ticket is a number with an
 * event of a ring behind it. An event that was recorded again for a later ticket answers for both: late, but never
 * wrongly.
 *
 * A call to a communicator that does not block may return before its kernel is in the stream (ncclInProgress). Nothing
 * else may be queued there until it is. So each call is followed by polling, also in a capture, because polling does
 * not touch a stream. It takes some ten microseconds of the host. A captured step does not have this cost. */

#include "agent/trainer/gpu/nccl_comm.h"

#include "common/system/clock.h"

#include <errno.h>
#include <sched.h>
#include <string.h>
#include <time.h>

enum {
  SPIN_MS = 1, /* host waits poll without a pause up to here, then with one */
  PAUSE_US = 50,
};

/* One collective between its two counts, or `times` of them in a row. */
struct nccl_call {
  struct trace_call call;
  void *data;
  size_t count;
  ncclDataType_t type;
  int root; /* of a broadcast */
  uint64_t times;
};

static ncclResult_t call(struct nccl *n, const struct nccl_call *j) {
  if (j->call.kind == TRACE_BROADCAST)
    return ncclBroadcast(j->data, j->data, j->count, j->type, j->root, n->comm, n->stream);
  return ncclAllReduce(j->data, j->data, j->count, j->type, ncclSum, n->comm, n->stream);
}

static int enqueue(struct nccl *n, const struct nccl_call *j, struct err *e) {
  int rc = nccl_check_cuda(n, (cudaError_t)trace_begin(n->stream, n->counts, n->trace_dev, j->call), "a collective", e);
  if (rc) return rc;
  for (uint64_t i = 0; i < j->times && rc == 0; i++) {
    ncclResult_t r = call(n, j);
    rc = nccl_await(n, r, &j->call, e);
  }
  if (rc) return rc;
  return nccl_check_cuda(n, (cudaError_t)trace_end(n->stream, n->counts, n->trace_dev), "a collective", e);
}

/* Behind what is queued in `compute`. */
static int nccl_all_reduce_row(struct coll *l, struct compute *c, struct span s, uint64_t times, struct coll_ticket *t,
                               struct err *e) {
  struct nccl *n = nccl_of(l);
  int rc = nccl_repeat_failure(n, e);
  if (rc) return rc;
  if (s.buf->type != KERNEL_F32 || s.buf->use == COMPUTE_STAGE)
    return err_set(e, -ENOTSUP, "NCCL sums floats on the device, not other buffers");
  struct nccl_call j = {.call = {TRACE_ALL_REDUCE, n->bucket, s.at, s.n},
                        .data = cuda_at(s),
                        .count = s.n,
                        .type = ncclFloat,
                        .times = times};
  rc = nccl_check_cuda(n, cudaEventRecord(n->ready, cuda_stream(c)), "a collective", e);
  if (rc == 0) rc = nccl_check_cuda(n, cudaStreamWaitEvent(n->stream, n->ready, 0), "a collective", e);
  if (rc == 0) rc = enqueue(n, &j, e);
  if (rc == 0)
    rc = nccl_check_cuda(n, cudaEventRecord(n->done[n->tickets % COLL_TICKETS_MAX], n->stream), "a collective", e);
  if (rc) return rc;
  n->bucket++;
  t->n = ++n->tickets;
  return 0;
}

static int nccl_all_reduce_begin(struct coll *l, struct compute *c, struct span s, struct coll_ticket *t,
                                 struct err *e) {
  return nccl_all_reduce_row(l, c, s, 1, t, e);
}

static int nccl_wait(struct coll *l, struct coll_ticket t, struct err *e) {
  struct nccl *n = nccl_of(l);
  int rc = nccl_repeat_failure(n, e);
  if (rc) return rc;
  if (t.n == 0 || t.n > n->tickets) return err_set(e, -EINVAL, "a ticket that was never issued");
  n->bucket = 0; /* waiting starts after the last bucket of a step */
  return nccl_check_cuda(n, cudaStreamWaitEvent(cuda_stream(n->c), n->done[(t.n - 1) % COLL_TICKETS_MAX], 0),
                         "the end of a collective", e);
}

static int nccl_progress(struct coll *l, struct err *e) {
  return nccl_watch(nccl_of(l), e);
}

/* The host waits until this stream is done. */
static int await_host_done(struct nccl *n, struct err *e) {
  struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
  int rc = nccl_check_cuda(n, cudaEventRecord(n->host_done, n->stream), "a mark", e);
  uint64_t from = monotonic_ms();
  while (rc == 0) {
    cudaError_t q = cudaEventQuery(n->host_done);
    if (q == cudaSuccess) return 0;
    if (q != cudaErrorNotReady) return nccl_check_cuda(n, q, "a collective", e);
    (void)cudaGetLastError(); /* not an error, but CUDA keeps it as one */
    rc = nccl_watch(n, e);
    if (monotonic_ms() - from < SPIN_MS)
      sched_yield();
    else
      nanosleep(&pause, NULL);
  }
  return rc;
}

/* Copies the stage to the device, runs a collective there, and copies back. */
static int run_staged(struct nccl *n, const struct nccl_call *j, size_t bytes, bool in, bool out, struct err *e) {
  int rc = 0;
  if (in)
    rc = nccl_check_cuda(n, cudaMemcpyAsync(n->stage_dev, n->stage, bytes, cudaMemcpyHostToDevice, n->stream), "a copy",
                         e);
  if (rc == 0) rc = enqueue(n, j, e);
  if (rc == 0 && out)
    rc = nccl_check_cuda(n, cudaMemcpyAsync(n->stage, n->stage_dev, bytes, cudaMemcpyDeviceToHost, n->stream), "a copy",
                         e);
  return rc ? rc : await_host_done(n, e);
}

static int check_host_call(struct nccl *n, const char *what, struct err *e) {
  int rc = nccl_repeat_failure(n, e);
  return rc ? rc : cuda_not_captured(n->c, what, e);
}

static int nccl_sum(struct coll *l, double *v, size_t count, struct err *e) {
  struct nccl *n = nccl_of(l);
  if (count > COLL_SUM_MAX) return err_set(e, -EINVAL, "sum of %zu numbers; at most %d", count, COLL_SUM_MAX);
  int rc = check_host_call(n, "a sum of the host's numbers", e);
  if (rc || count == 0) return rc;
  struct nccl_call j = {
      .call = {TRACE_SUM, 0, 0, count}, .data = n->stage_dev, .count = count, .type = ncclDouble, .times = 1};
  memcpy(n->stage, v, count * sizeof *v);
  rc = run_staged(n, &j, count * sizeof *v, true, true, e);
  if (rc == 0) memcpy(v, n->stage, count * sizeof *v);
  return rc;
}

static int nccl_broadcast(struct coll *l, void *data, size_t size, int root, struct err *e) {
  struct nccl *n = nccl_of(l);
  bool mine = root == l->rank;
  int rc = check_host_call(n, "a broadcast of the host's bytes", e);
  if (rc == 0 && (root < 0 || root >= l->world))
    rc = err_set(e, -EINVAL, "a broadcast from rank %d of %d", root, l->world);
  for (size_t at = 0; at < size && rc == 0; at += NCCL_STAGE) {
    size_t bytes = size - at < NCCL_STAGE ? size - at : NCCL_STAGE;
    struct nccl_call j = {.call = {TRACE_BROADCAST, (uint32_t)root, at, bytes},
                          .data = n->stage_dev,
                          .count = bytes,
                          .type = ncclUint8,
                          .root = root,
                          .times = 1};
    if (mine) memcpy(n->stage, (char *)data + at, bytes);
    rc = run_staged(n, &j, bytes, mine, !mine, e);
    if (rc == 0 && !mine) memcpy((char *)data + at, n->stage, bytes);
  }
  return rc;
}

const struct coll_ops nccl_ops = {
    .name = "nccl",
    .destroy = nccl_destroy,
    .all_reduce_begin = nccl_all_reduce_begin,
    .all_reduce_row = nccl_all_reduce_row,
    .wait = nccl_wait,
    .progress = nccl_progress,
    .sum = nccl_sum,
    .broadcast = nccl_broadcast,
    .abort = nccl_abort,
    .cut = nccl_cut,
    .twin = nccl_twin,
};
