/* Collectives of NCCL, on a stream of their own.
 *
 *     compute's stream   ... backward | ready ------------------------------ waits | update ...
 *     this stream                     waits | count | all-reduce | count | done
 *
 * All of it is queued, nothing waits, so the backward pass goes on beside the all-reduce; and since two streams that wait for each other's
 * events are captured as one graph, the same calls make a captured step. A ticket is a number; behind it stands an event of a ring, which, once it was
 * recorded again for a later ticket, answers for both: late, never wrongly.
 *
 * The communicator does not block: a call may return before its kernel is in the stream (ncclInProgress), and until it is nothing else may be
 * queued there. So each call is settled, by asking, in captures too, where asking touches no stream. It takes some ten microseconds of the host,
 * which a captured step does not have at all.
 *
 * What is watched: NCCL's asynchronous error, at most once a millisecond; and two counters that the device itself writes to memory of the host
 * (where.h). A collective that has begun and is not done within the deadline is late, be it captured or not. Who has waited for a
 * while looks at the board, where those write who have failed, and fails with them (whom.h).
 *
 * Sums of a few numbers and broadcasts of the host's bytes go through a small stage, and wait for their end, always with an eye on the above. */

#include "agent/trainer/gpu/coll_nccl_internal.h"

#include "common/clock.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { SPIN_MS = 1, PAUSE_US = 50 };

void nccl_call_text(const struct where_call *call, char out[NCCL_CALL_TEXT]) {
  unsigned long long at = call->at, count = call->n;
  if (call->kind == WHERE_ALL_REDUCE)
    snprintf(out, NCCL_CALL_TEXT, "all-reduce of bucket %u (elements %llu..%llu)", (unsigned)call->number, at,
             at + count);
  else if (call->kind == WHERE_BROADCAST)
    snprintf(out, NCCL_CALL_TEXT, "broadcast from rank %u (bytes %llu..%llu)", (unsigned)call->number, at,
             at + count);
  else if (call->kind == WHERE_SUM)
    snprintf(out, NCCL_CALL_TEXT, "sum of %llu numbers over the ranks", count);
  else
    snprintf(out, NCCL_CALL_TEXT, "the registration of a buffer");
}

/* What the device is in. */
static void device_text(const struct nccl *n, char out[NCCL_CALL_TEXT]) {
  const volatile struct where *w = n->where;
  struct where_call call = {w->call.kind, w->call.number, w->call.at, w->call.n};
  if (w->begun == w->done)
    snprintf(out, NCCL_CALL_TEXT, "between collectives");
  else
    nccl_call_text(&call, out);
}

uint64_t nccl_deadline(struct nccl *n, uint64_t since_ms) {
  uint64_t at = since_ms + n->cfg.timeout_ms;
  if (!n->cfg.stop || !*n->cfg.stop) return at;
  if (!n->stop_seen_ms) n->stop_seen_ms = monotonic_ms();
  uint64_t from = n->stop_seen_ms > since_ms ? n->stop_seen_ms : since_ms;
  return from + n->cfg.stop_wait_ms < at ? from + n->cfg.stop_wait_ms : at;
}

/* A collective that is on the device has not moved for a while. */
static int watch_late(struct nccl *n, uint64_t now, struct err *e) {
  char what[NCCL_CALL_TEXT];
  uint64_t waited = now - n->moved_ms;
  if (waited < NCCL_LOOK_MS && now < nccl_deadline(n, n->moved_ms)) return 0;
  device_text(n, what);
  int rc = nccl_look(n, what, waited, e);
  if (rc || now < nccl_deadline(n, n->moved_ms)) return rc;
  return nccl_fail_late(n, what, waited, e);
}

int nccl_watch(struct nccl *n, struct err *e) {
  int rc = nccl_failed(n, e);
  uint64_t now = monotonic_ms();
  if (rc || now == n->looked_ms) return rc;
  n->looked_ms = now;
  ncclResult_t state = ncclSuccess, asked = ncclCommGetAsyncError(n->comm, &state);
  if (asked != ncclSuccess) state = asked;
  if (state != ncclSuccess && state != ncclInProgress) {
    char what[NCCL_CALL_TEXT];
    device_text(n, what);
    return nccl_fail_result(n, state, what, e);
  }
  const volatile struct where *w = n->where;
  uint64_t begun = w->begun, done = w->done;
  if (begun == n->seen_begun && done == n->seen_done && begun != done) return watch_late(n, now, e);
  n->seen_begun = begun;
  n->seen_done = done;
  n->moved_ms = n->board_ms = now;
  return 0;
}

/* 1: the call is in the stream. 0: not yet. Else *rc is an error. */
static int settled(struct nccl *n, ncclResult_t *rc) {
  ncclResult_t state = ncclInProgress;
  if (*rc != ncclSuccess && *rc != ncclInProgress) return -1;
  *rc = ncclCommGetAsyncError(n->comm, &state);
  if (*rc == ncclSuccess) *rc = state;
  return *rc == ncclSuccess ? 1 : *rc == ncclInProgress ? 0 : -1;
}

/* Until the call is in the stream, or has failed: a communicator that does not block returns before. rc: what the call returned. */
static int settle(struct nccl *n, ncclResult_t rc, const struct where_call *call, struct err *e) {
  char what[NCCL_CALL_TEXT];
  int done = settled(n, &rc);
  for (uint64_t from = monotonic_ms(), now = from; done == 0; done = settled(n, &rc)) {
    if (now >= nccl_deadline(n, from)) {
      nccl_call_text(call, what);
      return nccl_fail_late(n, what, now - from, e);
    }
    sched_yield();
    now = monotonic_ms();
  }
  if (done > 0) return 0;
  nccl_call_text(call, what);
  return nccl_fail_result(n, rc, what, e);
}

/* One collective between its two counts; or `times` of them, each behind the last. */
struct job {
  struct where_call call;
  void *data;
  size_t count;
  ncclDataType_t type;
  int root; /* of a broadcast */
  uint64_t times;
};

/* CUDA's error is this rank's own. */
static int own(struct nccl *n, cudaError_t rc, const char *what, struct err *e) {
  struct err sentence = ERR_INIT;
  if (!cuda_check(n->c, rc, what, &sentence)) return 0;
  nccl_fail_own(n, &sentence);
  return nccl_failed(n, e);
}

static int queue(struct nccl *n, const struct job *j, struct err *e) {
  int rc = own(n, (cudaError_t)where_begin(n->stream, n->counts, n->where_dev, j->call), "a collective", e);
  if (rc) return rc;
  for (uint64_t i = 0; i < j->times && rc == 0; i++) {
    ncclResult_t r = j->call.kind == WHERE_BROADCAST
                         ? ncclBroadcast(j->data, j->data, j->count, j->type, j->root, n->comm, n->stream)
                         : ncclAllReduce(j->data, j->data, j->count, j->type, ncclSum, n->comm, n->stream);
    rc = settle(n, r, &j->call, e);
  }
  if (rc) return rc;
  return own(n, (cudaError_t)where_end(n->stream, n->counts, n->where_dev), "a collective", e);
}

static int nccl_row(struct coll *l, struct compute *c, struct span s, uint64_t times, struct coll_ticket *t,
                    struct err *e) {
  struct nccl *n = nccl_of(l);
  int rc = nccl_failed(n, e);
  if (rc) return rc;
  if (s.buf->type != KERNEL_F32 || s.buf->use == COMPUTE_STAGE)
    return err_set(e, -ENOTSUP, "NCCL sums floats on the device: gradients, not other buffers");
  struct job j = {.call = {WHERE_ALL_REDUCE, n->bucket, s.at, s.n},
                  .data = cuda_at(s),
                  .count = s.n,
                  .type = ncclFloat,
                  .times = times};
  rc = own(n, cudaEventRecord(n->ready, cuda_stream(c)), "an all-reduce", e);
  if (rc == 0) rc = own(n, cudaStreamWaitEvent(n->stream, n->ready, 0), "an all-reduce", e);
  if (rc == 0) rc = queue(n, &j, e);
  if (rc == 0)
    rc = own(n, cudaEventRecord(n->done[n->tickets % COLL_TICKETS_MAX], n->stream), "an all-reduce", e);
  if (rc) return rc;
  n->bucket++;
  t->n = ++n->tickets;
  return 0;
}

static int nccl_begin(struct coll *l, struct compute *c, struct span s, struct coll_ticket *t,
                      struct err *e) {
  return nccl_row(l, c, s, 1, t, e);
}

static int nccl_wait(struct coll *l, struct coll_ticket t, struct err *e) {
  struct nccl *n = nccl_of(l);
  int rc = nccl_failed(n, e);
  if (rc) return rc;
  if (t.n == 0 || t.n > n->tickets) return err_set(e, -EINVAL, "a ticket that was never given");
  n->bucket = 0; /* whoever waits is behind the last bucket of a step */
  return own(n, cudaStreamWaitEvent(cuda_stream(n->c), n->done[(t.n - 1) % COLL_TICKETS_MAX], 0),
             "the end of an all-reduce", e);
}

static int nccl_progress(struct coll *l, struct err *e) {
  return nccl_watch(nccl_of(l), e);
}

/* The host waits until this stream is done. */
static int host_wait(struct nccl *n, struct err *e) {
  struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
  int rc = own(n, cudaEventRecord(n->host_done, n->stream), "a mark", e);
  uint64_t from = monotonic_ms();
  while (rc == 0) {
    cudaError_t q = cudaEventQuery(n->host_done);
    if (q == cudaSuccess) return 0;
    if (q != cudaErrorNotReady) return own(n, q, "a collective", e);
    (void)cudaGetLastError(); /* it is no error, but is kept as one */
    rc = nccl_watch(n, e);
    if (monotonic_ms() - from < SPIN_MS)
      sched_yield();
    else
      nanosleep(&pause, NULL);
  }
  return rc;
}

/* The stage's first bytes to the device, a collective there, and back. */
static int staged(struct nccl *n, const struct job *j, size_t bytes, bool in, bool out, struct err *e) {
  int rc = 0;
  if (in)
    rc = own(n, cudaMemcpyAsync(n->stage_dev, n->stage, bytes, cudaMemcpyHostToDevice, n->stream), "a copy",
             e);
  if (rc == 0) rc = queue(n, j, e);
  if (rc == 0 && out)
    rc = own(n, cudaMemcpyAsync(n->stage, n->stage_dev, bytes, cudaMemcpyDeviceToHost, n->stream), "a copy",
             e);
  return rc ? rc : host_wait(n, e);
}

static int check_host_call(struct nccl *n, const char *what, struct err *e) {
  int rc = nccl_failed(n, e);
  return rc ? rc : cuda_not_captured(n->c, what, e);
}

static int nccl_sum(struct coll *l, double *v, size_t count, struct err *e) {
  struct nccl *n = nccl_of(l);
  if (count > COLL_SUM_MAX) return err_set(e, -EINVAL, "sum of %zu numbers; at most %d", count, COLL_SUM_MAX);
  int rc = check_host_call(n, "a sum of the host's numbers", e);
  if (rc || count == 0) return rc;
  struct job j = {
      .call = {WHERE_SUM, 0, 0, count}, .data = n->stage_dev, .count = count, .type = ncclDouble, .times = 1};
  memcpy(n->stage, v, count * sizeof *v);
  rc = staged(n, &j, count * sizeof *v, true, true, e);
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
    struct job j = {.call = {WHERE_BROADCAST, (uint32_t)root, at, bytes},
                    .data = n->stage_dev,
                    .count = bytes,
                    .type = ncclUint8,
                    .root = root,
                    .times = 1};
    if (mine) memcpy(n->stage, (char *)data + at, bytes);
    rc = staged(n, &j, bytes, mine, !mine, e);
    if (rc == 0 && !mine) memcpy((char *)data + at, n->stage, bytes);
  }
  return rc;
}

/* A gain where NCCL can use it; where it cannot, all is as before. */
static int nccl_register(struct coll *l, struct compute *c, struct compute_buf *b, struct err *e) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  struct nccl *n = nccl_of(l);
  int rc = nccl_failed(n, e);
  (void)c;
  if (rc || b->use == COMPUTE_STAGE || n->n_regs == NCCL_REGS_MAX || !ncclCommRegister) return rc;
  void *handle = NULL;
  ncclResult_t r = ncclCommRegister(n->comm, b->data, b->n * kernel_type_size(b->type), &handle);
  if (r == ncclInProgress) rc = settle(n, r, &(struct where_call){.kind = WHERE_NOTHING}, e);
  if (rc == 0 && (r == ncclSuccess || r == ncclInProgress) && handle) n->regs[n->n_regs++] = handle;
  return rc;
#else
  return 0;
#endif
}

const struct coll_ops nccl_ops = {
    .name = "nccl",
    .destroy = nccl_destroy,
    .all_reduce_begin = nccl_begin,
    .all_reduce_row = nccl_row,
    .wait = nccl_wait,
    .progress = nccl_progress,
    .sum = nccl_sum,
    .broadcast = nccl_broadcast,
    .abort = nccl_abort,
    .register_buf = nccl_register,
};
