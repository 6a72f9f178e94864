/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator of NCCL: how it comes up and ends. nccl_coll.c has the collectives.
 *
 * Beginning. Every rank announces its NCCL version and a hash of its ids in one exchange ("coll_nccl"). So ids or
 * versions that differ, with which NCCL would hang, become a message. Then each rank makes what can fail on it alone.
 * Then ncclCommInitRankScalable takes all ids. The communicator does not block, so this file does the waiting: with a
 * deadline, and watching SIGTERM, the board and the agent. The process that minted the ids needs only the same
 * major.minor.
 *
 * Poison. A rank that fails (nccl_fail.c), or leaves the round, blocks its updates and queues nothing more. It does not
 * abort. An aborted kernel of NCCL leaves its wait, goes on with what is in the buffers, and publishes its step
 * (waitPeer and postPeer in prims_simple.h). So a peer could complete its all-reduce with stale, finite data.
 * ncclCommRevoke (2.28.7) sets the same flag for the same kernels.
 *
 * Cut. When no other rank uses the communicator, ncclCommAbort makes the kernels leave. It waits for captured graphs to
 * be destroyed, which the caller does meanwhile, and a driver may hang. So it runs in a detached thread, which is made
 * before the communicator: a rank that gets no thread at the end could not end its communicator within a deadline.
 *
 * End. coll_destroy waits at most ten seconds for that thread and for the stream. If they do not end by then, the exit
 * of the process frees them and compute's device memory, because a leak is better than a hang. The same holds for a
 * communicator that is poisoned and was not cut. A healthy one is finalized and destroyed. One that never came up is
 * aborted, because no kernel of this rank has run in it.
 *
 * A twin is a communicator of its own, for calls that are only tried (capture.c). It is not an ncclCommSplit: if that
 * fails on one rank, NCCL sets the abort flag of the communicator that was to be split. When all ranks know how it went
 * it is aborted on each, because finalizing it would wait for ranks that may be lost meanwhile. Else it stays until its
 * original ends: freeing memory waits for all that the device does. */

#include "agent/trainer/gpu/nccl_comm.h"

#include "common/buf.h"
#include "common/mem.h"
#include "common/system/clock.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* NULL if the library at run time is too old to have it. */
#pragma weak ncclCommInitRankScalable /* 2.23 */

enum {
  /* As of ncclGetVersion. In place, a rank makes a communicator that does not block while another one ends, which raced
   * before 2.26.2. From 2.28.3 to 2.28.8 a kernel and the proxy's thread could lose an operation, and hang. */
  NCCL_OLDEST = 21800,
  NCCL_OLDEST_IN_PLACE = 22602,
  NCCL_HANGS = 22803,
  NCCL_HANGS_NO_MORE = 22809,
  NCCL_END_MS = 10000, /* deadline of ending a communicator or a stream */
};

void nccl_nap(void) {
  struct timespec ts = {.tv_nsec = 1000000};
  nanosleep(&ts, NULL);
}

/* Ending a communicator. ------------------------------------------------------------------------------------------- */

/* The thread sets END_DONE, and coll_destroy END_LEFT; the second of them frees. */
enum { END_RUNS, END_DONE, END_LEFT };

struct nccl_end {
  sem_t order;     /* posted once, when all below is set */
  bool ordered;    /* of the thread of coll_destroy alone */
  ncclComm_t comm; /* NULL: none has come up */
  int device;
  bool abort;
  atomic_int state;
};

static void free_end(struct nccl_end *x) {
  sem_destroy(&x->order);
  free(x);
}

static void *end_main(void *arg) {
  struct nccl_end *x = arg;
  while (sem_wait(&x->order)) {
  }
  if (x->comm) {
    (void)cudaSetDevice(x->device);
    (void)(x->abort ? ncclCommAbort(x->comm) : ncclCommDestroy(x->comm));
  }
  if (atomic_exchange(&x->state, END_DONE) == END_LEFT) free_end(x);
  return NULL;
}

/* The thread takes no signals: they are for waits of other threads. */
static int make_end_thread(struct nccl *n, struct err *e) {
  struct nccl_end *x = xcalloc(1, sizeof *x);
  sigset_t all, before;
  pthread_t thread;
  sem_init(&x->order, 0, 0);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&thread, NULL, end_main, x);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) {
    free_end(x);
    return err_set(e, -ENOMEM,
                   "no thread for NCCL's communicator: %s; raise the limit of threads (ulimit -u, pids.max)",
                   strerror(failed));
  }
  pthread_detach(thread);
  n->end = x;
  return 0;
}

/* The communicator now belongs to the thread. */
static void order_end(struct nccl *n, bool abort) {
  struct nccl_end *x = n->end;
  if (!x || x->ordered) return;
  x->ordered = true;
  x->comm = n->comm;
  x->device = cuda_device(n->c);
  x->abort = abort;
  n->comm = NULL;
  sem_post(&x->order);
}

static bool await_stream(struct nccl *n) {
  uint64_t end = monotonic_ms() + NCCL_END_MS;
  for (;;) {
    cudaError_t rc = n->stream ? cudaStreamQuery(n->stream) : cudaSuccess;
    (void)cudaGetLastError();
    if (rc != cudaErrorNotReady) return true; /* done, or the device has failed and runs nothing */
    if (monotonic_ms() >= end) return false;
    nccl_nap();
  }
}

void nccl_poison(struct nccl *n, int code) {
  n->last = nccl_trace_now(n);
  n->failed.code = code;
  if (n->twin_of) return;
  compute_block_updates(n->c, true);
  n->c->held = n->running;
}

void nccl_cut(struct coll *l) {
  struct nccl *n = nccl_of(l);
  if (!n->failed.code) return;
  if (!n->twin_of) n->c->held = false; /* the queue ends now */
  order_end(n, true);
}

/* The end. --------------------------------------------------------------------------------------------------------- */

/* Waits until NCCL says that all ranks are done. */
static bool finalize(struct nccl *n) {
  uint64_t end = monotonic_ms() + (n->cfg.ranks.timeout_ms < NCCL_END_MS ? n->cfg.ranks.timeout_ms : NCCL_END_MS);
  ncclResult_t rc = ncclCommFinalize(n->comm);
  while (rc == ncclSuccess || rc == ncclInProgress) {
    ncclResult_t state = ncclInProgress;
    rc = ncclCommGetAsyncError(n->comm, &state);
    if (rc == ncclSuccess) rc = state;
    if (rc == ncclSuccess) return true;
    if (monotonic_ms() >= end || nccl_ask_agent(n, NULL)) return false;
    nccl_nap();
  }
  return false;
}

/* false: the communicator is left to the exit of the process. */
static bool end_communicator(struct nccl *n) {
  if (n->comm && n->running && !n->twin_of) {
    if (n->failed.code || !await_stream(n) || !finalize(n)) return false;
    order_end(n, false);
  }
  order_end(n, true);
  for (uint64_t end = monotonic_ms() + NCCL_END_MS; n->end && atomic_load(&n->end->state) != END_DONE; nccl_nap())
    if (monotonic_ms() >= end) return false;
  return await_stream(n);
}

static void destroy(struct nccl *n) {
  if (end_communicator(n)) {
    if (n->left) destroy(n->left);
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
  } else {
    if (!n->twin_of) compute_block_updates(n->c, true);
    n->c->held = true;
  }
  if (n->end && atomic_exchange(&n->end->state, END_LEFT) == END_DONE) free_end(n->end);
  free(n);
}

void nccl_destroy(struct coll *l) {
  struct nccl *n = nccl_of(l);
  if (n->twin_of && n->twin_of->failed.code)
    n->twin_of->left = n;
  else
    destroy(n);
}

/* Settings. -------------------------------------------------------------------------------------------------------- */

/* NCCL reads a setting from the environment, then from the file that NCCL_CONF_FILE names or else ~/.nccl.conf, then from
 * /etc/nccl.conf. What is found first counts, so what somebody has written there is left alone. */
static bool file_sets(const char *path, const char *name) {
  FILE *f = fopen(path, "re");
  char *line = NULL;
  size_t room = 0, n = strlen(name);
  bool sets = false;
  while (f && !sets && getline(&line, &room, f) >= 0) sets = !strncmp(line, name, n) && line[n] == '=';
  free(line);
  if (f) fclose(f);
  return sets;
}

bool nccl_prefer(const char *name, const char *value) {
  const char *named = getenv("NCCL_CONF_FILE"), *home = getenv("HOME");
  char path[PATH_MAX];
  if (named && *named)
    snprintf(path, sizeof path, "%s", named);
  else
    snprintf(path, sizeof path, "%s/.nccl.conf", home ? home : "");
  if (getenv(name) || file_sets(path, name) || file_sets("/etc/nccl.conf", name)) return false;
  return setenv(name, value, 1) == 0;
}

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

enum { CARD = 16 };

#define V(version) (version) / 10000, (version) / 100 % 100, (version) % 100

static int check_config(const struct nccl_config *cfg, struct err *e) {
  int mine = nccl_version();
  if (cfg->ranks.world < 1 || cfg->ranks.world > COLL_WORLD_MAX || cfg->ranks.rank < 0 ||
      cfg->ranks.rank >= cfg->ranks.world)
    return err_set(e, -EINVAL, "rank %d of %d is invalid", cfg->ranks.rank, cfg->ranks.world);
  if (cfg->n_ids < 1 || cfg->n_ids > GPU_IDS_MAX)
    return err_set(e, -EINVAL, "%d ncclUniqueIds; 1 to %d are allowed", cfg->n_ids, GPU_IDS_MAX);
  if (cfg->n_ids > cfg->ranks.world)
    return err_set(e, -EINVAL, "%d ncclUniqueIds for %d rank%s; NCCL allows at most one for each rank", cfg->n_ids,
                   cfg->ranks.world, cfg->ranks.world == 1 ? "" : "s");
  if (cfg->in_place && (mine < NCCL_OLDEST_IN_PLACE || (mine >= NCCL_HANGS && mine < NCCL_HANGS_NO_MORE)))
    return err_set(
        e, -ENOTSUP,
        "--recovery inplace needs NCCL %d.%d.%d or newer, but not %d.%d.%d to %d.%d.%d, which may hang; this "
        "rank has %d.%d.%d: load another one with LD_LIBRARY_PATH, or use --recovery restart",
        V(NCCL_OLDEST_IN_PLACE), V(NCCL_HANGS), V(NCCL_HANGS_NO_MORE - 1), V(mine));
  if (mine < NCCL_OLDEST)
    return err_set(e, -ENOTSUP, "NCCL %d.%d.%d is too old: %d.%d or newer is needed", V(mine), NCCL_OLDEST / 10000,
                   NCCL_OLDEST / 100 % 100);
  if (cfg->ids_version && cfg->ids_version / 100 != mine / 100)
    return err_set(e, -EPROTO,
                   "the ncclUniqueIds were created by NCCL %d.%d.%d, but this rank has NCCL %d.%d.%d; make all "
                   "nodes load the same one with LD_LIBRARY_PATH",
                   V(cfg->ids_version), V(mine));
  return 0;
}

static int exchange_cards(struct nccl *n, struct err *e) {
  const struct nccl_config *cfg = &n->cfg;
  if (!cfg->ranks.exchange) return 0;
  uint8_t mine[CARD] = {0}, *all = xcalloc((size_t)cfg->ranks.world, CARD);
  uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a of all ids */
  for (size_t i = 0; i < (size_t)cfg->n_ids * GPU_ID_SIZE; i++)
    hash = (hash ^ ((const uint8_t *)cfg->ids)[i]) * 0x100000001B3u;
  int ours = nccl_version();
  le32_put(mine, (uint32_t)ours);
  le64_put(mine + 8, hash);
  int rc = cfg->ranks.exchange(cfg->ranks.exchange_ctx, "coll_nccl", mine, CARD, all, (int)cfg->ranks.timeout_ms, e);
  if (rc) err_wrap(e, "the ranks could not exchange their NCCL versions");
  for (int r = 0; r < cfg->ranks.world && rc == 0; r++) {
    const uint8_t *card = all + (size_t)r * CARD;
    int theirs = (int)le32_get(card);
    if (theirs != ours)
      rc = err_set(e, -EPROTO,
                   "rank %d has NCCL %d.%d.%d, rank %d has NCCL %d.%d.%d: make all nodes load the same one "
                   "with LD_LIBRARY_PATH",
                   r, V(theirs), cfg->ranks.rank, V(ours));
    else if (le64_get(card + 8) != hash)
      rc = err_set(e, -EPROTO, "rank %d has other ncclUniqueIds than rank %d; they belong to different rounds", r,
                   cfg->ranks.rank);
  }
  free(all);
  return rc;
}

/* What can fail on this rank alone. */
static int make_own_parts(struct nccl *n, struct err *e) {
  int least = 0, greatest = 0;
  void *p = NULL;
  cudaEvent_t *events[COLL_TICKETS_MAX + 2] = {&n->ready, &n->host_done};
  for (int i = 0; i < COLL_TICKETS_MAX; i++) events[2 + i] = &n->done[i];
  int rc = cuda_check(n->c, cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", e);
  if (rc == 0)
    rc = cuda_check(n->c, cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest),
                    "creating a stream", e);
  for (int i = 0; i < COLL_TICKETS_MAX + 2 && rc == 0; i++)
    rc = cuda_check(n->c, cudaEventCreateWithFlags(events[i], cudaEventDisableTiming), "creating an event", e);
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
  rc = cuda_check(n->c, cudaMemsetAsync(n->counts, 0, 2 * sizeof *n->counts, n->stream), "cudaMemset", e);
  return rc ? rc : make_end_thread(n, e);
}

/* Connects the ranks. *out is the new collectives, which are destroyed if it fails, or if own_rc is the error of a part
 * before. The ids belong to the caller. */
static int connect_ranks(struct nccl *n, int own_rc, struct coll **out, struct err *e) {
  int rc = own_rc;
  if (rc == 0) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclUniqueId ids[GPU_IDS_MAX];
    ncclResult_t result;
    config.blocking = 0;
    memcpy(ids, n->cfg.ids, (size_t)n->cfg.n_ids * sizeof *ids);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 0)
    if (ncclCommInitRankScalable)
      result = ncclCommInitRankScalable(&n->comm, n->base.world, n->base.rank, n->cfg.n_ids, ids, &config);
    else
#endif
      result = ncclCommInitRankConfig(&n->comm, n->base.world, ids[0], n->base.rank, &config);
    if (n->comm)
      rc = nccl_await(n, result, NULL, e);
    else
      rc = nccl_fail_result(n, result == ncclSuccess ? ncclInternalError : result, "creating a communicator", e);
  }
  n->cfg.ids = NULL;
  if (rc) {
    nccl_destroy(&n->base);
    return rc;
  }
  n->running = true;
  nccl_post(n, BOARD_UP, NULL);
  *out = &n->base;
  return 0;
}

int nccl_coll_create(const struct nccl_config *cfg, struct compute *c, struct coll **out, struct err *e) {
  int rc = check_config(cfg, e);
  if (rc) return rc;
  struct nccl *n = xcalloc(1, sizeof *n);
  n->base = (struct coll){.ops = &nccl_ops, .rank = cfg->ranks.rank, .world = cfg->ranks.world, .lost = -1};
  n->cfg = *cfg;
  n->c = c;
  rc = exchange_cards(n, e);
  if (rc == 0) rc = make_own_parts(n, e);
  return connect_ranks(n, rc, out, e);
}

int nccl_twin(struct coll *l, struct coll **out, struct err *e) {
  struct nccl *n = nccl_of(l);
  unsigned char card[1 + GPU_ID_SIZE] = {0}; /* rank 0's id, and whether there is one */
  struct err why = ERR_INIT;
  int rc = nccl_repeat_failure(n, e);
  if (rc == 0) rc = cuda_not_captured(n->c, "a second communicator", e);
  if (rc == 0 && l->rank == 0) card[0] = nccl_unique_id(card + 1, &why) == 0;
  if (rc == 0) rc = coll_broadcast(l, card, sizeof card, 0, e);
  if (rc) return rc;
  if (!card[0]) {
    if (why.code) return err_set(e, why.code, "%s", why.text);
    return err_set(e, -ECONNABORTED, "rank 0 created no ncclUniqueId");
  }
  struct nccl *t = xcalloc(1, sizeof *t);
  t->base = (struct coll){.ops = &nccl_ops, .rank = l->rank, .world = l->world, .lost = -1};
  t->cfg = n->cfg;
  t->cfg.ids = card + 1;
  t->cfg.n_ids = 1;
  t->c = n->c;
  t->twin_of = n;
  rc = make_own_parts(t, e);
  if (rc) nccl_abort(&t->base, e->text);
  return connect_ranks(t, rc, out, e);
}
