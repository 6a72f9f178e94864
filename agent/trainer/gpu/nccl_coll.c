/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of NCCL, on a stream of their own: how a communicator comes up, works, fails and ends.
 *
 * Beginning. Every rank announces its NCCL version and a hash of its ids in one exchange ("coll_nccl"). So the exchange
 * names a rank that does not come, and ids or versions that differ, with which NCCL would hang, become a message. Then
 * each rank makes what can fail on it alone: stream, events, stage, counters. ncclCommInitRankScalable takes all ids,
 * so no rank serves more than its share of connections. The communicator does not block, so this file does the waiting:
 * with a deadline, and watching SIGTERM and the board. NCCL needs equal versions on all ranks. The process that minted
 * the ids is not a rank and needs only the same major.minor.
 *
 * Working.
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
 * not touch a stream. It takes some ten microseconds of the host. A captured step does not have this cost.
 *
 * Two things are watched: NCCL's asynchronous error, at most once a millisecond, and two counters that the device
 * writes to host memory (trace.h). A collective that has begun and is not done within the deadline is late, captured or
 * not. A rank that has waited for a while reads the board, on which failed ranks post, and fails with them (board.h).
 * Sums of a few numbers and broadcasts of host bytes go through a small stage and wait for their end, with the same
 * watch.
 *
 * Failing. A failure is one message, which every later call repeats. The end begins at once:
 *
 *   block    Updates behind an all-reduce that can never complete must not run (compute_block_updates). This comes
 *            before the abort, because the abort lets the device continue.
 *   abort    ncclCommAbort makes NCCL's kernels leave, and returns when all is freed. It waits for captured graphs to
 *            be destroyed, which the caller does later, and a driver may hang. So it runs in a detached thread.
 *
 * Then this rank posts its position on the board, and reads the other posts for one to three seconds, as long as the
 * others need. So the message can name the missing rank and not only the stuck collective. Of the errors that NCCL
 * reports, those of CUDA and of a wrong call are this rank's own, and the others get its reason. The rest may have
 * begun on any rank, so the board decides.
 *
 * Ending. coll_destroy waits at most ten seconds for that thread and for the stream. If they do not end by then, the
 * exit of the process frees them and their memory, because a leak is better than a hang. compute's device memory is
 * then left too: freeing any of it would wait for the whole device. A healthy communicator is finalized (all ranks are
 * done) and destroyed, with the same deadlines; if that fails it is aborted.
 *
 * ncclGetUniqueId opens a socket and a thread of this process. The process that minted an id must live until all ranks
 * are connected. */

#include "agent/trainer/gpu/nccl_coll.h"

#include "agent/trainer/gpu/board.h"
#include "agent/trainer/gpu/cuda_compute.h"
#include "agent/trainer/gpu/trace.h"
#include "common/buf.h"
#include "common/system/clock.h"
#include "common/mem.h"

#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BOARD "coll_nccl"

/* NULL if the library at run time is too old to have it. */
#pragma weak ncclCommInitRankScalable /* 2.23 */
#pragma weak ncclCommRegister         /* 2.19 */
#pragma weak ncclCommDeregister

enum {
  NCCL_OLDEST = 21800,  /* the oldest supported NCCL, as of ncclGetVersion */
  NCCL_STAGE = 1 << 20, /* bytes of a broadcast at a time */
  NCCL_REGS_MAX = 16,   /* registered buffers */
  NCCL_LOOK_MS = 250, /* a rank that waits reads the board after this time, then each time its wait has grown by half */
  NCCL_LOOK_MAX_MS = 2000, /* but at least this often */
  NCCL_BOARD_MS =
      1000, /* deadline of a board operation, and how much longer than they need to wait for the others' posts */
  NCCL_END_MS = 10000, /* deadline of ending a communicator or a stream */
  NCCL_TEXT = 200,     /* bytes of NCCL's own message */
  SPIN_MS = 1,         /* host waits poll without a pause up to here, then with one */
  PAUSE_US = 50,
};

struct nccl_end; /* a thread that ends a communicator */

struct nccl {
  struct coll base;
  struct nccl_config cfg;
  struct compute *c;
  ncclComm_t comm; /* NULL: none, or given to `end` */
  struct nccl_end *end;
  bool running; /* the communicator came up */

  cudaStream_t stream;
  cudaEvent_t ready, done[COLL_TICKETS_MAX], host_done;
  uint64_t tickets; /* begun */
  uint32_t bucket;  /* of the next all-reduce */
  void *stage, *stage_dev;
  void *regs[NCCL_REGS_MAX];
  int n_regs;

  struct trace *trace, *trace_dev; /* the same memory, at its host and its device address */
  uint64_t *counts;
  uint64_t seen_begun, seen_done, moved_ms;   /* the last change of the trace, and when it was seen */
  uint64_t looked_ms, board_ms, stop_seen_ms; /* board_ms: when the board was last read */
  struct trace last;                          /* the trace when this rank failed; unused before */

  struct err failed;
};

static inline struct nccl *nccl_of(struct coll *l) {
  return (struct nccl *)l; /* base comes first */
}
static inline int repeat_failure(struct nccl *n, struct err *e) {
  return n->failed.code ? err_set(e, n->failed.code, "%s", n->failed.text) : 0;
}

/* "all-reduce of bucket 3 (elements 1200..2400)" */
enum { NCCL_CALL_TEXT = 128 };

static void call_text(const struct trace_call *call, char out[NCCL_CALL_TEXT]) {
  unsigned long long at = call->at, count = call->n;
  if (call->kind == TRACE_ALL_REDUCE)
    snprintf(out, NCCL_CALL_TEXT, "all-reduce of bucket %u (elements %llu..%llu)", (unsigned)call->number, at,
             at + count);
  else if (call->kind == TRACE_BROADCAST)
    snprintf(out, NCCL_CALL_TEXT, "broadcast from rank %u (bytes %llu..%llu)", (unsigned)call->number, at, at + count);
  else if (call->kind == TRACE_SUM)
    snprintf(out, NCCL_CALL_TEXT, "sum of %llu numbers over the ranks", count);
  else
    snprintf(out, NCCL_CALL_TEXT, "the registration of a buffer");
}

/* The collective that the device is in. */
static void current_call_text(const struct nccl *n, char out[NCCL_CALL_TEXT]) {
  const volatile struct trace *w = n->trace;
  struct trace_call call = {w->call.kind, w->call.number, w->call.at, w->call.n};
  if (w->begun == w->done)
    snprintf(out, NCCL_CALL_TEXT, "between collectives");
  else
    call_text(&call, out);
}

static uint64_t nccl_deadline(struct nccl *n, uint64_t since_ms) {
  uint64_t at = since_ms + n->cfg.timeout_ms;
  if (!n->cfg.stop || !*n->cfg.stop) return at;
  if (!n->stop_seen_ms) n->stop_seen_ms = monotonic_ms();
  uint64_t from = n->stop_seen_ms > since_ms ? n->stop_seen_ms : since_ms;
  return from + n->cfg.stop_wait_ms < at ? from + n->cfg.stop_wait_ms : at;
}

/* The board. ------------------------------------------------------------------------------------------------------- */

static void nap(void) {
  struct timespec ts = {.tv_nsec = 1000000};
  nanosleep(&ts, NULL);
}

static void last_error_text(char out[NCCL_TEXT]) {
  const char *said = ncclGetLastError(NULL);
  size_t k = 0;
  for (; said && *said && k + 1 < NCCL_TEXT; said++)
    if (*said != '\n' || said[1]) out[k++] = *said >= ' ' && *said < 127 ? *said : ' ';
  out[k] = 0;
}

static void board_key(const struct nccl *n, char out[64]) {
  snprintf(out, 64, BOARD "/%u", (unsigned)n->cfg.round);
}

static struct trace trace_now(const struct nccl *n) {
  const volatile struct trace *w = n->trace;
  if (!w || n->failed.code) return n->last;
  return (struct trace){.begun = w->begun, .done = w->done};
}

static void nccl_post(struct nccl *n, enum board_state state, const char *why) {
  struct trace w = trace_now(n);
  struct board_post p = {.rank = (uint32_t)n->base.rank, .state = state, .begun = w.begun, .done = w.done};
  uint8_t record[BOARD_RECORD];
  char key[64];
  if (!n->cfg.post) return;
  if (why) snprintf(p.why, sizeof p.why, "%s", why);
  board_write(&p, record);
  board_key(n, key);
  (void)n->cfg.post(n->cfg.board_ctx, key, record, sizeof record, NCCL_BOARD_MS, NULL);
}

/* Fills posts[world]. false: the board cannot be read. */
static bool read_board(struct nccl *n, struct board_post *posts) {
  char *all = NULL, key[64];
  size_t size = 0;
  board_key(n, key);
  if (!n->cfg.peek || n->cfg.peek(n->cfg.board_ctx, key, &all, &size, NCCL_BOARD_MS, NULL)) return false;
  board_read(all, size, n->base.world, posts);
  free(all);
  return true;
}

/* The time from waited_ms to the next look at the board. */
static uint64_t look_gap(uint64_t waited_ms) {
  uint64_t gap = waited_ms / 2;
  return gap < NCCL_LOOK_MS ? NCCL_LOOK_MS : gap > NCCL_LOOK_MAX_MS ? NCCL_LOOK_MAX_MS : gap;
}

/* The posts of the others. Waits until all had the time to see that this rank has failed. */
static void ask_others(struct nccl *n, enum board_state mine, uint64_t waited_ms, struct board_verdict *w) {
  struct board_post *posts = xcalloc((size_t)n->base.world, sizeof *posts);
  uint64_t end = monotonic_ms() + look_gap(waited_ms) + NCCL_BOARD_MS;
  int self = n->base.rank;
  bool read = false;
  *w = (struct board_verdict){.lost = -1};
  nccl_post(n, mine, NULL);
  for (;;) {
    read = read_board(n, posts);
    if (!read || board_rank_gave_up(posts, n->base.world, self) >= 0 || monotonic_ms() >= end ||
        (n->cfg.stop && *n->cfg.stop) || board_all_posted(posts, n->base.world, self, n->running))
      break;
    for (int i = 0; i < 20; i++) nap();
  }
  posts[self].state = mine;
  posts[self].begun = n->last.begun;
  posts[self].done = n->last.done;
  if (read) board_decide(posts, n->base.world, self, n->running, w);
  free(posts);
}

/* Ending a communicator. ------------------------------------------------------------------------------------------- */

/* The thread sets END_DONE, and coll_destroy END_LEFT; the second of them frees. */
enum { END_RUNS, END_DONE, END_LEFT };

struct nccl_end {
  ncclComm_t comm;
  int device;
  bool abort;
  atomic_int state;
};

static void end_work(struct nccl_end *x) {
  (void)cudaSetDevice(x->device);
  (void)(x->abort ? ncclCommAbort(x->comm) : ncclCommDestroy(x->comm));
}

static void *end_main(void *arg) {
  struct nccl_end *x = arg;
  end_work(x);
  if (atomic_exchange(&x->state, END_DONE) == END_LEFT) free(x);
  return NULL;
}

/* The communicator now belongs to the thread. If no thread can be created, there is no deadline. */
static void start_end_thread(struct nccl *n, bool abort) {
  if (!n->comm) return;
  struct nccl_end *x = xcalloc(1, sizeof *x);
  pthread_t thread;
  x->comm = n->comm;
  x->device = cuda_device(n->c);
  x->abort = abort;
  n->comm = NULL;
  n->end = x;
  if (pthread_create(&thread, NULL, end_main, x) == 0) {
    pthread_detach(thread);
    return;
  }
  end_work(x);
  atomic_store(&x->state, END_DONE);
}

static bool await_end_thread(struct nccl *n) {
  uint64_t end = monotonic_ms() + NCCL_END_MS;
  while (n->end && atomic_load(&n->end->state) != END_DONE) {
    if (monotonic_ms() >= end) return false;
    nap();
  }
  return true;
}

static bool await_stream(struct nccl *n) {
  uint64_t end = monotonic_ms() + NCCL_END_MS;
  for (;;) {
    cudaError_t rc = n->stream ? cudaStreamQuery(n->stream) : cudaSuccess;
    (void)cudaGetLastError();
    if (rc != cudaErrorNotReady) return true; /* done, or the device has failed and runs nothing */
    if (monotonic_ms() >= end) return false;
    nap();
  }
}

/* From now on this rank has failed. */
static void begin_end(struct nccl *n, int code) {
  n->last = trace_now(n);
  n->failed.code = code;
  compute_block_updates(n->c, true);
  start_end_thread(n, true);
}

/* Failing. --------------------------------------------------------------------------------------------------------- */

static int fail_with_board(struct nccl *n, int code, enum board_state mine, const char *what, uint64_t waited_ms,
                           struct err *e) {
  struct board_verdict w;
  begin_end(n, code);
  ask_others(n, mine, waited_ms, &w);
  n->base.lost = w.lost;
  if (w.lost >= 0)
    err_set(&n->failed, code, "lost contact with rank %d: %s; %s (rank %d waited)", w.lost, what, w.text, n->base.rank);
  else
    err_set(&n->failed, code, "%s%s%s (rank %d waited)", what, w.text[0] ? "; " : "", w.text, n->base.rank);
  return repeat_failure(n, e);
}

static int nccl_fail_late(struct nccl *n, const char *what, uint64_t waited_ms, struct err *e) {
  char text[NCCL_CALL_TEXT + 80];
  snprintf(text, sizeof text, "%s did not complete within %.1f s", what, (double)waited_ms / 1000);
  return fail_with_board(n, -ETIMEDOUT, BOARD_WAITS, text, waited_ms, e);
}

static int nccl_fail_own(struct nccl *n, struct err *e) {
  begin_end(n, e->code);
  n->failed = *e;
  nccl_post(n, BOARD_GAVE_UP, e->text);
  return e->code;
}

static bool is_own_error(ncclResult_t rc) {
  return rc == ncclUnhandledCudaError || rc == ncclInvalidArgument || rc == ncclInvalidUsage;
}

/* NCCL's wording up to 2.2x, and since then. */
static bool same_gpu(const char *words) {
  return strstr(words, "Duplicate GPU") || strstr(words, "using the same GPU");
}

static int nccl_fail_result(struct nccl *n, ncclResult_t rc, const char *what, struct err *e) {
  char words[NCCL_TEXT], text[NCCL_CALL_TEXT + NCCL_TEXT + 120];
  struct err own = ERR_INIT;
  last_error_text(words);
  if (rc == ncclInvalidUsage && same_gpu(words)) {
    err_set(&own, -EBUSY,
            "two ranks are on one GPU, which NCCL refuses (%s); start one worker per GPU (--nproc gpu), "
            "or, for experiments, give each rank its own NCCL_HOSTID",
            words);
    return nccl_fail_own(n, &own), repeat_failure(n, e);
  }
  snprintf(text, sizeof text, "NCCL failed (%s): %s%s%s", what, ncclGetErrorString(rc), words[0] ? ": " : "", words);
  if (!is_own_error(rc))
    return fail_with_board(n, -ECONNRESET, BOARD_ERROR, text, n->moved_ms ? monotonic_ms() - n->moved_ms : 0, e);
  err_set(&own, -EIO, "%s", text);
  return nccl_fail_own(n, &own), repeat_failure(n, e);
}

static int look_at_board(struct nccl *n, const char *what, uint64_t waited_ms, struct err *e) {
  uint64_t now = monotonic_ms();
  if (now - n->board_ms < look_gap(waited_ms)) return 0;
  n->board_ms = now;
  struct board_post *posts = xcalloc((size_t)n->base.world, sizeof *posts);
  int who = read_board(n, posts) ? board_rank_failed(posts, n->base.world, n->base.rank) : -1;
  free(posts);
  if (who < 0) return 0;
  char text[NCCL_CALL_TEXT + 80];
  snprintf(text, sizeof text, "%s cannot complete: rank %d has failed", what, who);
  return fail_with_board(n, -ECONNABORTED, BOARD_WAITS, text, waited_ms, e);
}

/* Collectives. ----------------------------------------------------------------------------------------------------- */

/* A collective on the device has not moved for a while. */
static int check_deadline(struct nccl *n, uint64_t now, struct err *e) {
  char what[NCCL_CALL_TEXT];
  uint64_t waited = now - n->moved_ms;
  if (waited < NCCL_LOOK_MS && now < nccl_deadline(n, n->moved_ms)) return 0;
  current_call_text(n, what);
  int rc = look_at_board(n, what, waited, e);
  if (rc || now < nccl_deadline(n, n->moved_ms)) return rc;
  return nccl_fail_late(n, what, waited, e);
}

static int nccl_watch(struct nccl *n, struct err *e) {
  int rc = repeat_failure(n, e);
  uint64_t now = monotonic_ms();
  if (rc || now == n->looked_ms) return rc;
  n->looked_ms = now;
  ncclResult_t state = ncclSuccess, asked = ncclCommGetAsyncError(n->comm, &state);
  if (asked != ncclSuccess) state = asked;
  if (state != ncclSuccess && state != ncclInProgress) {
    char what[NCCL_CALL_TEXT];
    current_call_text(n, what);
    return nccl_fail_result(n, state, what, e);
  }
  const volatile struct trace *w = n->trace;
  uint64_t begun = w->begun, done = w->done;
  if (begun == n->seen_begun && done == n->seen_done && begun != done) return check_deadline(n, now, e);
  n->seen_begun = begun;
  n->seen_done = done;
  n->moved_ms = n->board_ms = now;
  return 0;
}

/* 1: the call is in the stream. 0: not yet. Negative: *rc is an error. */
static int poll_enqueued(struct nccl *n, ncclResult_t *rc) {
  ncclResult_t state = ncclInProgress;
  if (*rc != ncclSuccess && *rc != ncclInProgress) return -1;
  *rc = ncclCommGetAsyncError(n->comm, &state);
  if (*rc == ncclSuccess) *rc = state;
  return *rc == ncclSuccess ? 1 : *rc == ncclInProgress ? 0 : -1;
}

/* Polls until the call is in the stream or has failed, because a communicator that does not block returns before. rc:
 * the result of the call. */
static int await_enqueued(struct nccl *n, ncclResult_t rc, const struct trace_call *call, struct err *e) {
  char what[NCCL_CALL_TEXT];
  int done = poll_enqueued(n, &rc);
  for (uint64_t from = monotonic_ms(), now = from; done == 0; done = poll_enqueued(n, &rc)) {
    if (now >= nccl_deadline(n, from)) {
      call_text(call, what);
      return nccl_fail_late(n, what, now - from, e);
    }
    sched_yield();
    now = monotonic_ms();
  }
  if (done > 0) return 0;
  call_text(call, what);
  return nccl_fail_result(n, rc, what, e);
}

/* One collective between its two counts, or `times` of them in a row. */
struct nccl_call {
  struct trace_call call;
  void *data;
  size_t count;
  ncclDataType_t type;
  int root; /* of a broadcast */
  uint64_t times;
};

/* A CUDA error is this rank's own failure. */
static int check_cuda(struct nccl *n, cudaError_t rc, const char *what, struct err *e) {
  struct err own = ERR_INIT;
  if (!cuda_check(n->c, rc, what, &own)) return 0;
  nccl_fail_own(n, &own);
  return repeat_failure(n, e);
}

static int enqueue(struct nccl *n, const struct nccl_call *j, struct err *e) {
  int rc = check_cuda(n, (cudaError_t)trace_begin(n->stream, n->counts, n->trace_dev, j->call), "a collective", e);
  if (rc) return rc;
  for (uint64_t i = 0; i < j->times && rc == 0; i++) {
    ncclResult_t r = j->call.kind == TRACE_BROADCAST
                         ? ncclBroadcast(j->data, j->data, j->count, j->type, j->root, n->comm, n->stream)
                         : ncclAllReduce(j->data, j->data, j->count, j->type, ncclSum, n->comm, n->stream);
    rc = await_enqueued(n, r, &j->call, e);
  }
  if (rc) return rc;
  return check_cuda(n, (cudaError_t)trace_end(n->stream, n->counts, n->trace_dev), "a collective", e);
}

static int nccl_all_reduce_row(struct coll *l, struct compute *c, struct span s, uint64_t times, struct coll_ticket *t,
                               struct err *e) {
  struct nccl *n = nccl_of(l);
  int rc = repeat_failure(n, e);
  if (rc) return rc;
  if (s.buf->type != KERNEL_F32 || s.buf->use == COMPUTE_STAGE)
    return err_set(e, -ENOTSUP, "NCCL sums floats on the device: gradients, not other buffers");
  struct nccl_call j = {.call = {TRACE_ALL_REDUCE, n->bucket, s.at, s.n},
                        .data = cuda_at(s),
                        .count = s.n,
                        .type = ncclFloat,
                        .times = times};
  rc = check_cuda(n, cudaEventRecord(n->ready, cuda_stream(c)), "an all-reduce", e);
  if (rc == 0) rc = check_cuda(n, cudaStreamWaitEvent(n->stream, n->ready, 0), "an all-reduce", e);
  if (rc == 0) rc = enqueue(n, &j, e);
  if (rc == 0)
    rc = check_cuda(n, cudaEventRecord(n->done[n->tickets % COLL_TICKETS_MAX], n->stream), "an all-reduce", e);
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
  int rc = repeat_failure(n, e);
  if (rc) return rc;
  if (t.n == 0 || t.n > n->tickets) return err_set(e, -EINVAL, "a ticket that was never issued");
  n->bucket = 0; /* waiting starts after the last bucket of a step */
  return check_cuda(n, cudaStreamWaitEvent(cuda_stream(n->c), n->done[(t.n - 1) % COLL_TICKETS_MAX], 0),
                    "the end of an all-reduce", e);
}

static int nccl_progress(struct coll *l, struct err *e) {
  return nccl_watch(nccl_of(l), e);
}

/* The host waits until this stream is done. */
static int await_host_done(struct nccl *n, struct err *e) {
  struct timespec pause = {.tv_nsec = PAUSE_US * 1000};
  int rc = check_cuda(n, cudaEventRecord(n->host_done, n->stream), "a mark", e);
  uint64_t from = monotonic_ms();
  while (rc == 0) {
    cudaError_t q = cudaEventQuery(n->host_done);
    if (q == cudaSuccess) return 0;
    if (q != cudaErrorNotReady) return check_cuda(n, q, "a collective", e);
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
    rc = check_cuda(n, cudaMemcpyAsync(n->stage_dev, n->stage, bytes, cudaMemcpyHostToDevice, n->stream), "a copy", e);
  if (rc == 0) rc = enqueue(n, j, e);
  if (rc == 0 && out)
    rc = check_cuda(n, cudaMemcpyAsync(n->stage, n->stage_dev, bytes, cudaMemcpyDeviceToHost, n->stream), "a copy", e);
  return rc ? rc : await_host_done(n, e);
}

static int check_host_call(struct nccl *n, const char *what, struct err *e) {
  int rc = repeat_failure(n, e);
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

/* Registers the buffer if NCCL supports that; otherwise does nothing. */
static int nccl_register(struct coll *l, struct compute *c, struct compute_buf *b, struct err *e) {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  struct nccl *n = nccl_of(l);
  int rc = repeat_failure(n, e);
  (void)c;
  if (rc || b->use == COMPUTE_STAGE || n->n_regs == NCCL_REGS_MAX || !ncclCommRegister) return rc;
  void *handle = NULL;
  ncclResult_t r = ncclCommRegister(n->comm, b->data, b->n * kernel_type_size(b->type), &handle);
  if (r == ncclInProgress) rc = await_enqueued(n, r, &(struct trace_call){.kind = TRACE_NOTHING}, e);
  if (rc == 0 && (r == ncclSuccess || r == ncclInProgress) && handle) n->regs[n->n_regs++] = handle;
  return rc;
#else
  return 0;
#endif
}

/* The end. --------------------------------------------------------------------------------------------------------- */

static void nccl_abort(struct coll *l, const char *why) {
  struct nccl *n = nccl_of(l);
  if (n->failed.code) return;
  begin_end(n, -ECONNABORTED);
  n->base.lost = l->rank;
  err_set(&n->failed, -ECONNABORTED, "rank %d gave up: %s", l->rank, why);
  nccl_post(n, BOARD_GAVE_UP, why);
}

/* Waits until NCCL says that all ranks are done. */
static bool finalize(struct nccl *n) {
  uint64_t end = monotonic_ms() + (n->cfg.timeout_ms < NCCL_END_MS ? n->cfg.timeout_ms : NCCL_END_MS);
  ncclResult_t rc;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
  for (int i = 0; i < n->n_regs; i++) (void)ncclCommDeregister(n->comm, n->regs[i]);
#endif
  rc = ncclCommFinalize(n->comm);
  while (rc == ncclSuccess || rc == ncclInProgress) {
    ncclResult_t state = ncclInProgress;
    rc = ncclCommGetAsyncError(n->comm, &state);
    if (rc == ncclSuccess) rc = state;
    if (rc == ncclSuccess) return true;
    if (monotonic_ms() >= end) return false;
    nap();
  }
  return false;
}

static void free_device_memory(struct nccl *n) {
  for (int i = 0; i < COLL_TICKETS_MAX; i++)
    if (n->done[i]) (void)cudaEventDestroy(n->done[i]);
  if (n->ready) (void)cudaEventDestroy(n->ready);
  if (n->host_done) (void)cudaEventDestroy(n->host_done);
  if (n->stage_dev) (void)cudaFree(n->stage_dev);
  if (n->counts) (void)cudaFree(n->counts);
  if (n->stage) (void)cudaFreeHost(n->stage);
  if (n->trace) (void)cudaFreeHost(n->trace);
  if (n->stream) (void)cudaStreamDestroy(n->stream);
  (void)cudaGetLastError();
}

static void nccl_destroy(struct coll *l) {
  struct nccl *n = nccl_of(l);
  if (n->comm) {
    bool well = n->running && !n->failed.code && await_stream(n) && finalize(n);
    if (!well) compute_block_updates(n->c, true);
    start_end_thread(n, !well);
  }
  if (await_end_thread(n) && await_stream(n))
    free_device_memory(n);
  else
    cuda_of(n->c)->held = true;
  if (n->end && atomic_exchange(&n->end->state, END_LEFT) == END_DONE) free(n->end);
  free(n);
}

static const struct coll_ops nccl_ops = {
    .name = "nccl",
    .destroy = nccl_destroy,
    .all_reduce_begin = nccl_all_reduce_begin,
    .all_reduce_row = nccl_all_reduce_row,
    .wait = nccl_wait,
    .progress = nccl_progress,
    .sum = nccl_sum,
    .broadcast = nccl_broadcast,
    .abort = nccl_abort,
    .register_buf = nccl_register,
};

/* The beginning. --------------------------------------------------------------------------------------------------- */

_Static_assert(sizeof(ncclUniqueId) == GPU_ID_SIZE, "an id is 128 bytes");

int nccl_unique_id(void *id, struct err *e) {
  ncclUniqueId u;
  ncclResult_t rc = ncclGetUniqueId(&u);
  if (rc != ncclSuccess)
    return err_set(e, -EIO, "NCCL created no ncclUniqueId: %s (%s)", ncclGetErrorString(rc), ncclGetLastError(NULL));
  memcpy(id, &u, sizeof u);
  return 0;
}

int nccl_version(void) {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

enum { CARD = 16, PATIENT_MS = 100 };

static int major_minor(int version) {
  return version / 100;
}

#define V(version) (version) / 10000, (version) / 100 % 100, (version) % 100

static int check_config(const struct nccl_config *cfg, struct err *e) {
  int mine = nccl_version();
  if (cfg->world < 1 || cfg->world > COLL_WORLD_MAX || cfg->rank < 0 || cfg->rank >= cfg->world)
    return err_set(e, -EINVAL, "rank %d of %d is invalid", cfg->rank, cfg->world);
  if (cfg->n_ids < 1 || cfg->n_ids > GPU_IDS_MAX)
    return err_set(e, -EINVAL, "%d ncclUniqueIds; 1 to %d are allowed", cfg->n_ids, GPU_IDS_MAX);
  if (mine < NCCL_OLDEST)
    return err_set(e, -ENOTSUP, "NCCL %d.%d.%d is too old: %d.%d or newer is needed", V(mine), NCCL_OLDEST / 10000,
                   NCCL_OLDEST / 100 % 100);
  if (cfg->ids_version && major_minor(cfg->ids_version) != major_minor(mine))
    return err_set(e, -EPROTO,
                   "the ncclUniqueIds were created by NCCL %d.%d.%d, but this rank has NCCL %d.%d.%d; make all "
                   "nodes load the same one with LD_LIBRARY_PATH",
                   V(cfg->ids_version), V(mine));
  return 0;
}

/* FNV-1a of all ids. */
static uint64_t ids_hash(const struct nccl_config *cfg) {
  const uint8_t *p = cfg->ids;
  uint64_t h = 0xCBF29CE484222325u;
  for (size_t i = 0; i < (size_t)cfg->n_ids * GPU_ID_SIZE; i++) h = (h ^ p[i]) * 0x100000001B3u;
  return h;
}

static int compare_cards(struct nccl *n, const uint8_t *all, struct err *e) {
  const uint8_t *mine = all + (size_t)n->base.rank * CARD;
  for (int r = 0; r < n->base.world; r++) {
    const uint8_t *card = all + (size_t)r * CARD;
    int theirs = (int)le32_get(card), ours = (int)le32_get(mine);
    if (theirs != ours)
      return err_set(e, -EPROTO,
                     "rank %d has NCCL %d.%d.%d, rank %d has NCCL %d.%d.%d: make all nodes load the same one "
                     "with LD_LIBRARY_PATH",
                     r, V(theirs), n->base.rank, V(ours));
    if (le64_get(card + 8) != le64_get(mine + 8))
      return err_set(e, -EPROTO, "rank %d has other ncclUniqueIds than rank %d; they belong to different rounds", r,
                     n->base.rank);
  }
  return 0;
}

static int exchange_cards(struct nccl *n, struct err *e) {
  const struct nccl_config *cfg = &n->cfg;
  if (!cfg->exchange) return 0;
  uint8_t mine[CARD] = {0}, *all = xcalloc((size_t)cfg->world, CARD);
  le32_put(mine, (uint32_t)nccl_version());
  le64_put(mine + 8, ids_hash(cfg));
  int rc = cfg->exchange(cfg->exchange_ctx, "coll_nccl", mine, CARD, all, (int)cfg->timeout_ms, e);
  rc = rc ? err_wrap(e, "the ranks could not exchange their NCCL versions") : compare_cards(n, all, e);
  free(all);
  return rc;
}

static int make_events(struct nccl *n, struct err *e) {
  cudaEvent_t *all[COLL_TICKETS_MAX + 2] = {&n->ready, &n->host_done};
  int rc = 0;
  for (int i = 0; i < COLL_TICKETS_MAX; i++) all[2 + i] = &n->done[i];
  for (int i = 0; i < COLL_TICKETS_MAX + 2 && rc == 0; i++)
    rc = cuda_check(n->c, cudaEventCreateWithFlags(all[i], cudaEventDisableTiming), "creating an event", e);
  return rc;
}

static int make_memory(struct nccl *n, struct err *e) {
  int least = 0, greatest = 0;
  void *p = NULL;
  int rc = cuda_check(n->c, cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", e);
  if (rc == 0)
    rc = cuda_check(n->c, cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest),
                    "creating a stream", e);
  if (rc == 0) rc = make_events(n, e);
  if (rc == 0) rc = cuda_check(n->c, cudaHostAlloc(&n->stage, NCCL_STAGE, cudaHostAllocDefault), "cudaHostAlloc", e);
  if (rc == 0) rc = cuda_check(n->c, cudaMalloc(&n->stage_dev, NCCL_STAGE), "cudaMalloc", e);
  if (rc == 0) rc = cuda_check(n->c, cudaHostAlloc(&p, sizeof *n->trace, cudaHostAllocMapped), "cudaHostAlloc", e);
  if (rc) return rc;
  n->trace = memset(p, 0, sizeof *n->trace);
  rc = cuda_check(n->c, cudaHostGetDevicePointer(&p, n->trace, 0), "cudaHostGetDevicePointer", e);
  n->trace_dev = p;
  if (rc == 0) rc = cuda_check(n->c, cudaMalloc(&p, 2 * sizeof *n->counts), "cudaMalloc", e);
  if (rc) return rc;
  n->counts = p;
  return cuda_check(n->c, cudaMemsetAsync(n->counts, 0, 2 * sizeof *n->counts, n->stream), "cudaMemset", e);
}

static ncclResult_t begin_init(struct nccl *n) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId ids[GPU_IDS_MAX];
  config.blocking = 0;
  memcpy(ids, n->cfg.ids, (size_t)n->cfg.n_ids * sizeof *ids);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 0)
  if (ncclCommInitRankScalable)
    return ncclCommInitRankScalable(&n->comm, n->base.world, n->base.rank, n->cfg.n_ids, ids, &config);
#endif
  return ncclCommInitRankConfig(&n->comm, n->base.world, ids[0], n->base.rank, &config);
}

static int await_init(struct nccl *n, ncclResult_t rc, struct err *e) {
  static const char what[] = "creating a communicator";
  uint64_t from = n->board_ms = monotonic_ms(), now = from;
  while (rc == ncclSuccess || rc == ncclInProgress) {
    ncclResult_t state = ncclInProgress;
    rc = ncclCommGetAsyncError(n->comm, &state);
    if (rc == ncclSuccess) rc = state;
    if (rc == ncclSuccess) return 0;
    if (rc != ncclInProgress) break;
    int failed = look_at_board(n, what, now - from, e);
    if (failed) return failed;
    now = monotonic_ms();
    if (now - from >= n->cfg.timeout_ms) return nccl_fail_late(n, what, now - from, e);
    if (n->cfg.stop && *n->cfg.stop) {
      nccl_abort(&n->base, "stopped on request");
      return err_set(e, -ECANCELED, "stopped while NCCL's communicator was connecting");
    }
    struct timespec ts = {.tv_nsec = now - from < PATIENT_MS ? 200000 : 2000000};
    nanosleep(&ts, NULL);
  }
  return nccl_fail_result(n, rc, what, e);
}

static int make_communicator(struct nccl *n, struct err *e) {
  ncclResult_t rc = begin_init(n);
  if (!n->comm) return nccl_fail_result(n, rc == ncclSuccess ? ncclInternalError : rc, "creating a communicator", e);
  int failed = await_init(n, rc, e);
  if (failed) return failed;
  n->running = true;
  nccl_post(n, BOARD_UP, NULL);
  return 0;
}

int nccl_coll_create(const struct nccl_config *cfg, struct compute *c, struct coll **out, struct err *e) {
  int rc = check_config(cfg, e);
  if (rc) return rc;
  struct nccl *n = xcalloc(1, sizeof *n);
  n->base = (struct coll){.ops = &nccl_ops, .rank = cfg->rank, .world = cfg->world, .lost = -1};
  n->cfg = *cfg;
  n->c = c;
  rc = exchange_cards(n, e);
  if (rc == 0) rc = make_memory(n, e);
  if (rc == 0) rc = make_communicator(n, e);
  n->cfg.ids = NULL; /* they belong to the caller */
  if (rc)
    nccl_destroy(&n->base);
  else
    *out = &n->base;
  return rc;
}
