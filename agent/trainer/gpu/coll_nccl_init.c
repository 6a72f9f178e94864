/* How ranks come to a communicator of NCCL's.
 *
 *   announce   every rank tells all others that it is there, with which NCCL, and which ids it has (one exchange, "coll_nccl"). Who does
 *              not come is named by the exchange, before NCCL has begun to wait; versions and ids that differ, which NCCL would answer with a
 *              hang or a riddle, are a sentence
 *   memory     stream, events, stage, counters: what can fail on this rank alone
 *   init       ncclCommInitRankScalable with all ids, so that no rank has to serve more than its share of connections; not blocking, so that
 *              it is we who wait: with a deadline, an eye on SIGTERM, and on the board, where whoever cannot go on says why
 *   up         each rank writes that its communicator is there, so that whoever still waits can say who has come
 *
 * NCCL refuses ranks of another version, to the last number. Who minted the ids is asked for the same major.minor only: he is no rank. */

#include "agent/trainer/gpu/coll_nccl_internal.h"

#include "common/buf.h"
#include "common/clock.h"
#include "common/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CARD = 16, PATIENT_MS = 100 };

static int major_minor(int version) {
  return version / 100;
}

#define V(version) (version) / 10000, (version) / 100 % 100, (version) % 100

static int check_config(const struct coll_nccl_config *cfg, struct err *e) {
  int mine = coll_nccl_version();
  if (cfg->world < 1 || cfg->world > COLL_WORLD_MAX || cfg->rank < 0 || cfg->rank >= cfg->world)
    return err_set(e, -EINVAL, "rank %d of %d cannot be", cfg->rank, cfg->world);
  if (cfg->n_ids < 1 || cfg->n_ids > GPU_IDS_MAX)
    return err_set(e, -EINVAL, "%d ncclUniqueIds; 1 to %d are wanted", cfg->n_ids, GPU_IDS_MAX);
  if (mine < NCCL_OLDEST)
    return err_set(e, -ENOTSUP, "NCCL %d.%d.%d is too old: %d.%d or newer is needed", V(mine),
                   NCCL_OLDEST / 10000, NCCL_OLDEST / 100 % 100);
  if (cfg->ids_version && major_minor(cfg->ids_version) != major_minor(mine))
    return err_set(e, -EPROTO,
                   "the ncclUniqueIds were minted by NCCL %d.%d.%d, but this rank has NCCL %d.%d.%d: let all "
                   "nodes find the "
                   "same one (LD_LIBRARY_PATH)",
                   V(cfg->ids_version), V(mine));
  return 0;
}

/* Of all ids: FNV-1a. */
static uint64_t ids_hash(const struct coll_nccl_config *cfg) {
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
                     "rank %d has NCCL %d.%d.%d, rank %d has NCCL %d.%d.%d: they do not work together; let "
                     "all nodes find the same "
                     "one (LD_LIBRARY_PATH)",
                     r, V(theirs), n->base.rank, V(ours));
    if (le64_get(card + 8) != le64_get(mine + 8))
      return err_set(e, -EPROTO, "rank %d has other ncclUniqueIds than rank %d: they are not of one round", r,
                     n->base.rank);
  }
  return 0;
}

static int announce(struct nccl *n, struct err *e) {
  const struct coll_nccl_config *cfg = &n->cfg;
  if (!cfg->exchange) return 0;
  uint8_t mine[CARD] = {0}, *all = xcalloc((size_t)cfg->world, CARD);
  le32_put(mine, (uint32_t)coll_nccl_version());
  le64_put(mine + 8, ids_hash(cfg));
  int rc = cfg->exchange(cfg->exchange_ctx, "coll_nccl", mine, CARD, all, (int)cfg->timeout_ms, e);
  rc = rc ? err_wrap(e, "the ranks could not meet to connect by NCCL") : compare_cards(n, all, e);
  free(all);
  return rc;
}

static int make_events(struct nccl *n, struct err *e) {
  cudaEvent_t *all[COLL_TICKETS_MAX + 2] = {&n->ready, &n->host_done};
  int rc = 0;
  for (int i = 0; i < COLL_TICKETS_MAX; i++) all[2 + i] = &n->done[i];
  for (int i = 0; i < COLL_TICKETS_MAX + 2 && rc == 0; i++)
    rc = cuda_check(n->c, cudaEventCreateWithFlags(all[i], cudaEventDisableTiming), "the making of an event",
                    e);
  return rc;
}

static int make_memory(struct nccl *n, struct err *e) {
  int least = 0, greatest = 0;
  void *p = NULL;
  int rc = cuda_check(n->c, cudaDeviceGetStreamPriorityRange(&least, &greatest),
                      "cudaDeviceGetStreamPriorityRange", e);
  if (rc == 0)
    rc = cuda_check(n->c, cudaStreamCreateWithPriority(&n->stream, cudaStreamNonBlocking, greatest),
                    "the making of a stream", e);
  if (rc == 0) rc = make_events(n, e);
  if (rc == 0)
    rc = cuda_check(n->c, cudaHostAlloc(&n->stage, NCCL_STAGE, cudaHostAllocDefault), "cudaHostAlloc", e);
  if (rc == 0) rc = cuda_check(n->c, cudaMalloc(&n->stage_dev, NCCL_STAGE), "cudaMalloc", e);
  if (rc == 0)
    rc = cuda_check(n->c, cudaHostAlloc(&p, sizeof *n->where, cudaHostAllocMapped), "cudaHostAlloc", e);
  if (rc) return rc;
  n->where = memset(p, 0, sizeof *n->where);
  rc = cuda_check(n->c, cudaHostGetDevicePointer(&p, n->where, 0), "cudaHostGetDevicePointer", e);
  n->where_dev = p;
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
  static const char what[] = "the making of a communicator";
  uint64_t from = n->board_ms = monotonic_ms(), now = from;
  while (rc == ncclSuccess || rc == ncclInProgress) {
    ncclResult_t state = ncclInProgress;
    rc = ncclCommGetAsyncError(n->comm, &state);
    if (rc == ncclSuccess) rc = state;
    if (rc == ncclSuccess) return 0;
    if (rc != ncclInProgress) break;
    int failed = nccl_look(n, what, now - from, e);
    if (failed) return failed;
    now = monotonic_ms();
    if (now - from >= n->cfg.timeout_ms) return nccl_fail_late(n, what, now - from, e);
    if (n->cfg.stop && *n->cfg.stop) {
      nccl_abort(&n->base, "told to stop");
      return err_set(e, -ECANCELED, "told to stop while NCCL's communicator came about");
    }
    struct timespec ts = {.tv_nsec = now - from < PATIENT_MS ? 200000 : 2000000};
    nanosleep(&ts, NULL);
  }
  return nccl_fail_result(n, rc, what, e);
}

static int make_communicator(struct nccl *n, struct err *e) {
  ncclResult_t rc = begin_init(n);
  if (!n->comm)
    return nccl_fail_result(n, rc == ncclSuccess ? ncclInternalError : rc, "the making of a communicator", e);
  int failed = await_init(n, rc, e);
  if (failed) return failed;
  n->running = true;
  nccl_post(n, WHOM_UP, NULL);
  return 0;
}

int coll_nccl_create(const struct coll_nccl_config *cfg, struct compute *c, struct coll **out,
                     struct err *e) {
  int rc = check_config(cfg, e);
  if (rc) return rc;
  struct nccl *n = xcalloc(1, sizeof *n);
  n->base = (struct coll){.ops = &nccl_ops, .rank = cfg->rank, .world = cfg->world, .lost = -1};
  n->cfg = *cfg;
  n->c = c;
  rc = announce(n, e);
  if (rc == 0) rc = make_memory(n, e);
  if (rc == 0) rc = make_communicator(n, e);
  n->cfg.ids = NULL; /* the caller's */
  if (rc)
    nccl_destroy(&n->base);
  else
    *out = &n->base;
  return rc;
}
