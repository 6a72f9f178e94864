/* How it ends, well or badly.
 *
 * A failure is told once, in one sentence, which every later call repeats. The end begins at once:
 *
 *   poison   updates that are queued behind an all-reduce that will never be whole must not be made (compute_poison); before the abort,
 *            since it is the abort that lets the device go on
 *   abort    ncclCommAbort makes NCCL's kernels leave, and returns when all is freed. That may be late: it waits for captured graphs to be
 *            destroyed, which the caller does only afterwards, and a driver may hang. So it runs in a thread of its own, which nobody joins
 *
 * Then this rank writes on the board where it was, and reads what the others write, for one to three seconds at most (as long as they take to
 * look), so that the sentence can name the rank that is missing and not only the collective that is stuck (whom.h).
 *
 * coll_destroy waits for that thread, and for the stream, ten seconds at most. What does not end within them is left as it is, memory and all, for
 * the process's exit to clean up: a leak is better than a hang. What compute has on the device is left with it then, since to free
 * any memory of a device is to wait for all that it does. A communicator in good health is finalized (all ranks' work is done) and
 * destroyed instead, with the same deadlines; if that fails it is aborted too.
 *
 * Errors that NCCL tells have two kinds. CUDA's, and those of a wrong call, are this rank's own, and the others are told its reason. The
 * rest (of the network, of another process) may have begun anywhere, so the board is asked. */

#include "agent/trainer/gpu/coll_nccl_internal.h"

#include "common/clock.h"
#include "common/mem.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BOARD "coll_nccl"

static void nap(void) {
  struct timespec ts = {.tv_nsec = 1000000};
  nanosleep(&ts, NULL);
}

void nccl_words(char out[NCCL_TEXT]) {
  const char *said = ncclGetLastError(NULL);
  size_t k = 0;
  for (; said && *said && k + 1 < NCCL_TEXT; said++)
    if (*said != '\n' || said[1]) out[k++] = *said >= ' ' && *said < 127 ? *said : ' ';
  out[k] = 0;
}

/* ------------------------------------------------------------------ board */

static void key_of(const struct nccl *n, char out[64]) {
  snprintf(out, 64, BOARD "/%u", (unsigned)n->cfg.round);
}

static struct where where_now(const struct nccl *n) {
  const volatile struct where *w = n->where;
  if (!w || n->failed.code) return n->last;
  return (struct where){.begun = w->begun, .done = w->done};
}

void nccl_post(struct nccl *n, enum whom_state state, const char *why) {
  struct where w = where_now(n);
  struct whom_post p = {.rank = (uint32_t)n->base.rank, .state = state, .begun = w.begun, .done = w.done};
  uint8_t record[WHOM_RECORD];
  char key[64];
  if (!n->cfg.post) return;
  if (why) snprintf(p.why, sizeof p.why, "%s", why);
  whom_write(&p, record);
  key_of(n, key);
  (void)n->cfg.post(n->cfg.board_ctx, key, record, sizeof record, NCCL_BOARD_MS, NULL);
}

/* posts[world]; false: the board cannot be read. */
static bool read_board(struct nccl *n, struct whom_post *posts) {
  char *all = NULL, key[64];
  size_t size = 0;
  key_of(n, key);
  if (!n->cfg.peek || n->cfg.peek(n->cfg.board_ctx, key, &all, &size, NCCL_BOARD_MS, NULL)) return false;
  whom_read(all, size, n->base.world, posts);
  free(all);
  return true;
}

/* How long after waited_ms another look at the board is due. */
static uint64_t look_gap(uint64_t waited_ms) {
  uint64_t gap = waited_ms / 2;
  return gap < NCCL_LOOK_MS ? NCCL_LOOK_MS : gap > NCCL_LOOK_MAX_MS ? NCCL_LOOK_MAX_MS : gap;
}

/* What there is to say of the others. Waits until all have had the time to see that this rank has failed. */
static void ask_board(struct nccl *n, enum whom_state mine, uint64_t waited_ms, struct whom *w) {
  struct whom_post *posts = xcalloc((size_t)n->base.world, sizeof *posts);
  uint64_t end = monotonic_ms() + look_gap(waited_ms) + NCCL_BOARD_MS;
  int self = n->base.rank;
  bool read = false;
  *w = (struct whom){.lost = -1};
  nccl_post(n, mine, NULL);
  for (;;) {
    read = read_board(n, posts);
    if (!read || whom_gave_up(posts, n->base.world, self) >= 0 || monotonic_ms() >= end ||
        (n->cfg.stop && *n->cfg.stop) || whom_all_here(posts, n->base.world, self, n->running))
      break;
    for (int i = 0; i < 20; i++) nap();
  }
  posts[self].state = mine;
  posts[self].begun = n->last.begun;
  posts[self].done = n->last.done;
  if (read) whom_decide(posts, n->base.world, self, n->running, w);
  free(posts);
}

/* -------------------------------------------------------------------- end */

/* The thread writes END_DONE, the coll END_LEFT; whoever is the second frees. */
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

/* From here on the communicator is the thread's. Without a thread there is no deadline. */
static void end_begin(struct nccl *n, bool abort) {
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

static bool end_wait(struct nccl *n) {
  uint64_t end = monotonic_ms() + NCCL_END_MS;
  while (n->end && atomic_load(&n->end->state) != END_DONE) {
    if (monotonic_ms() >= end) return false;
    nap();
  }
  return true;
}

static bool stream_rests(struct nccl *n) {
  uint64_t end = monotonic_ms() + NCCL_END_MS;
  for (;;) {
    cudaError_t rc = n->stream ? cudaStreamQuery(n->stream) : cudaSuccess;
    (void)cudaGetLastError();
    if (rc != cudaErrorNotReady) return true; /* done, or the device has failed: then nothing runs */
    if (monotonic_ms() >= end) return false;
    nap();
  }
}

/* The end has begun; from here on this rank has failed. */
static void ends(struct nccl *n, int code) {
  n->last = where_now(n);
  n->failed.code = code;
  compute_poison(n->c, true);
  end_begin(n, true);
}

/* ----------------------------------------------------------------- reasons */

static int fail_with_board(struct nccl *n, int code, enum whom_state mine, const char *what,
                           uint64_t waited_ms, struct err *e) {
  struct whom w;
  ends(n, code);
  ask_board(n, mine, waited_ms, &w);
  n->base.lost = w.lost;
  if (w.lost >= 0)
    err_set(&n->failed, code, "lost contact with rank %d: %s; %s (rank %d waited)", w.lost, what, w.text,
            n->base.rank);
  else
    err_set(&n->failed, code, "%s%s%s (rank %d waited)", what, w.text[0] ? "; " : "", w.text, n->base.rank);
  return nccl_failed(n, e);
}

int nccl_fail_late(struct nccl *n, const char *what, uint64_t waited_ms, struct err *e) {
  char text[NCCL_CALL_TEXT + 80];
  snprintf(text, sizeof text, "%s was not done after %.1f s", what, (double)waited_ms / 1000);
  return fail_with_board(n, -ETIMEDOUT, WHOM_WAITS, text, waited_ms, e);
}

static bool is_own(ncclResult_t rc) {
  return rc == ncclUnhandledCudaError || rc == ncclInvalidArgument || rc == ncclInvalidUsage;
}

/* How NCCL says it, up to 2.2x and from then on. */
static bool same_gpu(const char *words) {
  return strstr(words, "Duplicate GPU") || strstr(words, "using the same GPU");
}

int nccl_fail_result(struct nccl *n, ncclResult_t rc, const char *what, struct err *e) {
  char words[NCCL_TEXT], text[NCCL_CALL_TEXT + NCCL_TEXT + 120];
  struct err own = ERR_INIT;
  nccl_words(words);
  if (rc == ncclInvalidUsage && same_gpu(words)) {
    err_set(&own, -EBUSY,
            "two ranks are on one GPU, which NCCL refuses (%s): start one worker for each GPU (--nproc gpu), "
            "or, to try things out, "
            "give each of them its own NCCL_HOSTID",
            words);
    return nccl_fail_own(n, &own), nccl_failed(n, e);
  }
  snprintf(text, sizeof text, "NCCL failed (%s): %s%s%s", what, ncclGetErrorString(rc), words[0] ? ": " : "",
           words);
  if (!is_own(rc))
    return fail_with_board(n, -ECONNRESET, WHOM_ERROR, text, n->moved_ms ? monotonic_ms() - n->moved_ms : 0,
                           e);
  err_set(&own, -EIO, "%s", text);
  return nccl_fail_own(n, &own), nccl_failed(n, e);
}

int nccl_fail_own(struct nccl *n, struct err *e) {
  ends(n, e->code);
  n->failed = *e;
  nccl_post(n, WHOM_GAVE_UP, e->text);
  return e->code;
}

int nccl_look(struct nccl *n, const char *what, uint64_t waited_ms, struct err *e) {
  uint64_t now = monotonic_ms();
  if (now - n->board_ms < look_gap(waited_ms)) return 0;
  n->board_ms = now;
  struct whom_post *posts = xcalloc((size_t)n->base.world, sizeof *posts);
  int who = read_board(n, posts) ? whom_failed(posts, n->base.world, n->base.rank) : -1;
  free(posts);
  if (who < 0) return 0;
  char text[NCCL_CALL_TEXT + 80];
  snprintf(text, sizeof text, "%s will not be done: rank %d has failed", what, who);
  return fail_with_board(n, -ECONNABORTED, WHOM_WAITS, text, waited_ms, e);
}

void nccl_abort(struct coll *l, const char *why) {
  struct nccl *n = nccl_of(l);
  if (n->failed.code) return;
  ends(n, -ECONNABORTED);
  n->base.lost = l->rank;
  err_set(&n->failed, -ECONNABORTED, "rank %d gave up: %s", l->rank, why);
  nccl_post(n, WHOM_GAVE_UP, why);
}

/* ----------------------------------------------------------------- destroy */

/* All ranks have done what they had to do: NCCL says when. */
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

static void free_all(struct nccl *n) {
  for (int i = 0; i < COLL_TICKETS_MAX; i++)
    if (n->done[i]) (void)cudaEventDestroy(n->done[i]);
  if (n->ready) (void)cudaEventDestroy(n->ready);
  if (n->host_done) (void)cudaEventDestroy(n->host_done);
  if (n->stage_dev) (void)cudaFree(n->stage_dev);
  if (n->counts) (void)cudaFree(n->counts);
  if (n->stage) (void)cudaFreeHost(n->stage);
  if (n->where) (void)cudaFreeHost(n->where);
  if (n->stream) (void)cudaStreamDestroy(n->stream);
  (void)cudaGetLastError();
}

void nccl_destroy(struct coll *l) {
  struct nccl *n = nccl_of(l);
  if (n->comm) {
    bool well = n->running && !n->failed.code && stream_rests(n) && finalize(n);
    if (!well) compute_poison(n->c, true);
    end_begin(n, !well);
  }
  if (end_wait(n) && stream_rests(n))
    free_all(n);
  else
    cuda_of(n->c)->held = true;
  if (n->end && atomic_exchange(&n->end->state, END_LEFT) == END_DONE) free(n->end);
  free(n);
}
