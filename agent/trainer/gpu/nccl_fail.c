/* SPDX-License-Identifier: Apache-2.0 */
/* The watch over NCCL's collectives, and how a rank fails.
 *
 * Two things are watched: NCCL's asynchronous error, at most once a millisecond, and two counters that the device
 * writes to host memory (kernels.h). A collective that has begun and is not done within the deadline is late, captured
 * or not. A rank that has waited for a while reads the board, and fails with the ranks that posted there (board.h).
 *
 * A failure is one message, which every later call repeats. The communicator is poisoned at once (nccl_comm.c). Then
 * this rank posts its position on the board, and reads the other posts for one to three seconds, so that the message
 * can name the missing rank. A wrong call is this rank's own error, and so is an error of CUDA if this rank's streams
 * have it too: while ranks connect, a call of CUDA also fails because a peer has died. The rest may have begun on any
 * rank, so the board decides.
 *
 * The agent's request comes by `asked`, or as -ECANCELED from the board. Over NVLink and shared memory NCCL never
 * reports that a peer has died, and this request is the first to tell. */

#include "agent/trainer/gpu/nccl_comm.h"

#include "common/mem.h"
#include "common/system/clock.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BOARD "coll_nccl"

enum {
  NCCL_LOOK_MS = 250, /* a rank that waits reads the board after this time, then each time its wait has grown by half */
  NCCL_LOOK_MAX_MS = 2000, /* but at least this often */
  NCCL_BOARD_MS =
      1000,        /* deadline of a board operation, and how much longer than they need to wait for the others' posts */
  NCCL_TEXT = 200, /* bytes of NCCL's own message */
  PATIENT_MS = 100, /* a communicator that connects is asked more often up to here */
};

/* "all-reduce of bucket 3 (elements 1200..2400)" */
enum { NCCL_CALL_TEXT = 128 };

static void call_text(const struct trace_call *call, char out[NCCL_CALL_TEXT]) {
  unsigned long long at = call->at, count = call->n;
  if (call->kind == TRACE_ALL_REDUCE)
    snprintf(out, NCCL_CALL_TEXT, "all-reduce of bucket %u (elements %llu..%llu)", (unsigned)call->number, at,
             at + count);
  else if (call->kind == TRACE_BROADCAST)
    snprintf(out, NCCL_CALL_TEXT, "broadcast from rank %u (bytes %llu..%llu)", (unsigned)call->number, at, at + count);
  else
    snprintf(out, NCCL_CALL_TEXT, "sum of %llu numbers over the ranks", count);
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

/* When a wait that began at since_ms is late. A request to stop leaves it less time. */
static uint64_t deadline(struct nccl *n, uint64_t since_ms) {
  return coll_deadline(&n->cfg.ranks, since_ms, monotonic_ms(), &n->stop_seen_ms);
}

/* The board. ------------------------------------------------------------------------------------------------------- */

static void board_key(const struct nccl *n, char out[64]) {
  snprintf(out, 64, BOARD "/%u%s", (unsigned)n->cfg.ranks.round, n->twin_of ? "/twin" : "");
}

void nccl_post(struct nccl *n, enum board_state state, const char *why) {
  struct trace w = nccl_trace_now(n);
  struct board_post p = {.rank = (uint32_t)n->base.rank, .state = state, .begun = w.begun, .done = w.done};
  uint8_t record[BOARD_RECORD];
  char key[64];
  if (!n->cfg.post) return;
  if (why) snprintf(p.why, sizeof p.why, "%s", why);
  board_write(&p, record);
  board_key(n, key);
  (void)n->cfg.post(n->cfg.board_ctx, key, record, sizeof record, NCCL_BOARD_MS, NULL);
}

/* Fills posts[world]. Otherwise the board cannot be read, and -ECANCELED is the agent's request. */
static int read_board(struct nccl *n, struct board_post *posts, struct err *e) {
  char *all = NULL, key[64];
  size_t size = 0;
  board_key(n, key);
  if (!n->cfg.peek) return err_set(e, -ENOTSUP, "this run has no board");
  int rc = n->cfg.peek(n->cfg.board_ctx, key, &all, &size, NCCL_BOARD_MS, e);
  if (rc) return rc;
  board_read(all, size, n->base.world, posts);
  free(all);
  return 0;
}

/* The time from waited_ms to the next look at the board. */
static uint64_t look_gap(uint64_t waited_ms) {
  uint64_t gap = waited_ms / 2;
  return gap < NCCL_LOOK_MS ? NCCL_LOOK_MS : gap > NCCL_LOOK_MAX_MS ? NCCL_LOOK_MAX_MS : gap;
}

enum { BOARD_PAUSES = 20 }; /* of a millisecond, between two looks */

/* The posts of the others. Waits until all had the time to see that this rank has failed. Returns the agent's request,
 * or 0. */
static int ask_others(struct nccl *n, enum board_state mine, uint64_t waited_ms, struct board_verdict *w,
                      struct err *why) {
  struct board_post *posts = xcalloc((size_t)n->base.world, sizeof *posts);
  uint64_t end = monotonic_ms() + look_gap(waited_ms) + NCCL_BOARD_MS;
  int self = n->base.rank, asked = 0, read = 0;
  *w = (struct board_verdict){.lost = -1};
  nccl_post(n, mine, NULL);
  for (;;) {
    read = read_board(n, posts, why);
    if (read == -ECANCELED) asked = read;
    if (read || board_rank_at(posts, n->base.world, self, BOARD_GAVE_UP) >= 0 || monotonic_ms() >= end ||
        (n->cfg.ranks.stop && *n->cfg.ranks.stop) || board_all_posted(posts, n->base.world, self, n->running))
      break;
    for (int i = 0; i < BOARD_PAUSES && !asked; i++) {
      nccl_nap();
      asked = coll_asked(&n->cfg.ranks, monotonic_ms(), &n->asked_ms, why);
    }
    if (asked) break;
  }
  posts[self].state = mine;
  posts[self].begun = n->last.begun;
  posts[self].done = n->last.done;
  if (read == 0) board_decide(posts, n->base.world, self, n->running, w);
  free(posts);
  return asked;
}

/* Failing. --------------------------------------------------------------------------------------------------------- */

static int fail_with_board(struct nccl *n, int code, enum board_state mine, const char *what, uint64_t waited_ms,
                           struct err *e) {
  struct board_verdict w;
  struct err why = ERR_INIT;
  nccl_poison(n, code);
  if (ask_others(n, mine, waited_ms, &w, &why)) {
    n->failed = why;
    return nccl_repeat_failure(n, e);
  }
  n->base.lost = w.lost;
  if (w.lost >= 0)
    err_set(&n->failed, code, "lost contact with rank %d: %s; %s (rank %d waited)", w.lost, what, w.text, n->base.rank);
  else
    err_set(&n->failed, code, "%s%s%s (rank %d waited)", what, w.text[0] ? "; " : "", w.text, n->base.rank);
  return nccl_repeat_failure(n, e);
}

static int fail_late(struct nccl *n, const char *what, uint64_t waited_ms, struct err *e) {
  char text[NCCL_CALL_TEXT + 80];
  snprintf(text, sizeof text, "%s did not complete within %.1f s", what, (double)waited_ms / 1000);
  return fail_with_board(n, -ETIMEDOUT, BOARD_WAITS, text, waited_ms, e);
}

static int fail_own(struct nccl *n, const struct err *own, struct err *e) {
  nccl_poison(n, own->code);
  n->failed = *own;
  nccl_post(n, BOARD_GAVE_UP, own->text);
  return nccl_repeat_failure(n, e);
}

/* A stream that records a graph refuses the question. */
static bool device_works(const struct nccl *n) {
  cudaStream_t streams[] = {cuda_stream(n->c), n->stream};
  for (int i = 0; i < 2; i++) {
    cudaError_t rc = cudaStreamQuery(streams[i]);
    (void)cudaGetLastError();
    bool records = rc == cudaErrorStreamCaptureUnsupported || rc == cudaErrorStreamCaptureInvalidated ||
                   rc == cudaErrorStreamCaptureImplicit;
    if (rc != cudaSuccess && rc != cudaErrorNotReady && !records) return false;
  }
  return true;
}

int nccl_fail_result(struct nccl *n, ncclResult_t rc, const char *what, struct err *e) {
  char words[NCCL_TEXT], text[NCCL_CALL_TEXT + NCCL_TEXT + 120];
  struct err own = ERR_INIT;
  const char *said = ncclGetLastError(NULL);
  size_t k = 0;
  for (; said && *said && k + 1 < NCCL_TEXT; said++)
    if (*said != '\n' || said[1]) words[k++] = *said >= ' ' && *said < 127 ? *said : ' ';
  words[k] = 0;
  /* NCCL's wording up to 2.2x, and since then. */
  if (rc == ncclInvalidUsage && (strstr(words, "Duplicate GPU") || strstr(words, "using the same GPU"))) {
    err_set(&own, -EBUSY,
            "two ranks are on one GPU, which NCCL refuses (%s); start one worker per GPU (--nproc gpu), "
            "or, for experiments, give each rank its own NCCL_HOSTID",
            words);
    return fail_own(n, &own, e);
  }
  snprintf(text, sizeof text, "NCCL failed (%s): %s%s%s", what, ncclGetErrorString(rc), words[0] ? ": " : "", words);
  bool own_call = rc == ncclInvalidArgument || rc == ncclInvalidUsage;
  if (!own_call && (rc != ncclUnhandledCudaError || device_works(n)))
    return fail_with_board(n, -ECONNRESET, BOARD_ERROR, text, n->moved_ms ? monotonic_ms() - n->moved_ms : 0, e);
  err_set(&own, -EIO, "%s", text);
  return fail_own(n, &own, e);
}

/* Fails with a rank that posted that it has failed. */
static int look_at_board(struct nccl *n, const char *what, uint64_t waited_ms, struct err *e) {
  uint64_t now = monotonic_ms();
  if (now - n->board_ms < look_gap(waited_ms)) return 0;
  n->board_ms = now;
  struct board_post *posts = xcalloc((size_t)n->base.world, sizeof *posts);
  struct err why = ERR_INIT;
  int rc = read_board(n, posts, &why), who = rc ? -1 : board_rank_at(posts, n->base.world, n->base.rank, BOARD_WAITS);
  free(posts);
  if (rc == -ECANCELED) return fail_own(n, &why, e);
  if (who < 0) return 0;
  char text[NCCL_CALL_TEXT + 80];
  snprintf(text, sizeof text, "%s cannot complete: rank %d has failed", what, who);
  return fail_with_board(n, -ECONNABORTED, BOARD_WAITS, text, waited_ms, e);
}

/* A CUDA error is this rank's own failure. */
int nccl_check_cuda(struct nccl *n, cudaError_t rc, const char *what, struct err *e) {
  struct err own = ERR_INIT;
  if (!cuda_check(n->c, rc, what, &own)) return 0;
  return fail_own(n, &own, e);
}

/* Watching. -------------------------------------------------------------------------------------------------------- */

int nccl_ask_agent(struct nccl *n, struct err *e) {
  struct err why = ERR_INIT;
  return coll_asked(&n->cfg.ranks, monotonic_ms(), &n->asked_ms, &why) ? fail_own(n, &why, e) : 0;
}

int nccl_watch(struct nccl *n, struct err *e) {
  int rc = nccl_repeat_failure(n, e);
  uint64_t now = monotonic_ms();
  if (rc || now == n->looked_ms) return rc;
  n->looked_ms = now;
  if ((rc = nccl_ask_agent(n, e))) return rc;
  ncclResult_t state = ncclSuccess, asked = ncclCommGetAsyncError(n->comm, &state);
  if (asked != ncclSuccess) state = asked;
  char what[NCCL_CALL_TEXT];
  if (state != ncclSuccess && state != ncclInProgress) {
    current_call_text(n, what);
    return nccl_fail_result(n, state, what, e);
  }
  const volatile struct trace *w = n->trace;
  uint64_t begun = w->begun, done = w->done, waited = now - n->moved_ms;
  if (begun == n->seen_begun && done == n->seen_done && begun != done) {
    /* a collective on the device has not moved for a while */
    bool late = now >= deadline(n, n->moved_ms);
    if (waited < NCCL_LOOK_MS && !late) return 0;
    current_call_text(n, what);
    rc = look_at_board(n, what, waited, e);
    return rc || !late ? rc : fail_late(n, what, waited, e);
  }
  n->seen_begun = begun;
  n->seen_done = done;
  n->moved_ms = n->board_ms = now;
  return 0;
}

int nccl_await(struct nccl *n, ncclResult_t first, const struct trace_call *call, struct err *e) {
  char what[NCCL_CALL_TEXT] = "creating a communicator";
  ncclResult_t rc = first;
  for (uint64_t from = 0;;) {
    ncclResult_t state = ncclInProgress;
    if (rc == ncclSuccess || rc == ncclInProgress) rc = ncclCommGetAsyncError(n->comm, &state);
    if (rc == ncclSuccess) rc = state;
    if (rc == ncclSuccess) return 0;
    if (call) call_text(call, what);
    if (rc != ncclInProgress) return nccl_fail_result(n, rc, what, e);

    uint64_t now = monotonic_ms();
    if (!from) from = n->board_ms = now;
    int failed = nccl_ask_agent(n, e);
    if (failed == 0) failed = look_at_board(n, what, now - from, e);
    if (failed) return failed;
    if (now >= deadline(n, from)) return fail_late(n, what, now - from, e);
    if (!call && !n->twin_of && n->cfg.ranks.stop && *n->cfg.ranks.stop) {
      nccl_abort(&n->base, "stopped on request");
      return err_set(e, -ECANCELED, "stopped while NCCL's communicator was connecting");
    }
    struct timespec pause = {.tv_nsec = now - from < PATIENT_MS ? 200000 : 2000000};
    if (call)
      sched_yield();
    else
      nanosleep(&pause, NULL);
  }
}

void nccl_abort(struct coll *l, const char *why) {
  struct nccl *n = nccl_of(l);
  if (n->failed.code) return;
  nccl_poison(n, -ECONNABORTED);
  n->base.lost = l->rank;
  err_set(&n->failed, -ECONNABORTED, "rank %d gave up: %s", l->rank, why);
  nccl_post(n, BOARD_GAVE_UP, why);
}
