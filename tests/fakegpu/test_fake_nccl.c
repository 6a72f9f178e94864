/* SPDX-License-Identifier: Apache-2.0 */
/* What the stand-in for NCCL promises to the tests that rely on it: values, and how ranks fail.
 *
 *   test_fake_nccl [NAME...]
 *
 * A case is a function that every rank runs, each a process with a seed of its own. It returns 0, or reports what is
 * wrong. A rank that the stand-in ends has the signal of abort(), and one that is to hang that of alarm(). */

#include <cuda_runtime_api.h>
#include <math.h>
#include <nccl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORLD_MAX = 4, CASE_MS = 30000, BY_ABORT = 256, BY_ALARM, ANY };

struct page {
  int seen[2]; /* of all turns of a case */
  int minted, flags[8];
  ncclUniqueId id;
};

struct rank {
  int rank, world;
  ncclComm_t comm;
  cudaStream_t stream;
};

static struct page *page;
static int alive[2]; /* a pipe of the ranks of a turn; nobody writes to it */

#define NEED(what)                                                                                                     \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "rank %d, line %d: %s\n", r->rank, __LINE__, #what);                                             \
      return 1;                                                                                                        \
    }                                                                                                                  \
  } while (0)

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void pause_ms(long ms) {
  nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static ncclResult_t settle(ncclComm_t comm, ncclResult_t rc) {
  while (rc == ncclInProgress) {
    ncclResult_t state;
    rc = ncclCommGetAsyncError(comm, &state);
    if (rc == ncclSuccess) rc = state;
  }
  return rc;
}

static int up(struct rank *r) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  NEED(cudaSetDevice(r->rank) == cudaSuccess);
  NEED(cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking) == cudaSuccess);
  if (r->rank == 0) {
    NEED(ncclGetUniqueId(&page->id) == ncclSuccess);
    __atomic_store_n(&page->minted, 1, __ATOMIC_RELEASE);
  }
  while (!__atomic_load_n(&page->minted, __ATOMIC_ACQUIRE)) pause_ms(1);
  ncclResult_t rc = ncclCommInitRankConfig(&r->comm, r->world, page->id, r->rank, &config);
  NEED(settle(r->comm, rc) == ncclSuccess);
  return 0;
}

static int down(struct rank *r) {
  NEED(cudaStreamSynchronize(r->stream) == cudaSuccess);
  NEED(settle(r->comm, ncclCommFinalize(r->comm)) == ncclSuccess);
  NEED(ncclCommDestroy(r->comm) == ncclSuccess);
  NEED(cudaStreamDestroy(r->stream) == cudaSuccess);
  return 0;
}

/* n floats at `at` (of the device) are all `value`. */
static bool are(const float *at, size_t n, float value) {
  float *host = malloc(n * sizeof *host);
  bool same = cudaMemcpy(host, at, n * sizeof *host, cudaMemcpyDeviceToHost) == cudaSuccess;
  for (size_t i = 0; i < n; i++) same &= host[i] == value;
  if (!same) fprintf(stderr, "%g, not %g\n", (double)host[0], (double)value);
  free(host);
  return same;
}

static bool set(float *at, size_t n, float value) {
  float *host = malloc(n * sizeof *host);
  for (size_t i = 0; i < n; i++) host[i] = value;
  bool done = cudaMemcpy(at, host, n * sizeof *host, cudaMemcpyHostToDevice) == cudaSuccess;
  free(host);
  return done;
}

static int sum_once(struct rank *r, ncclComm_t comm, float mine, float want) {
  enum { N = 1000 };
  void *p;
  NEED(cudaMalloc(&p, N * sizeof(float)) == cudaSuccess);
  NEED(set(p, N, mine));
  NEED(settle(comm, ncclAllReduce(p, p, N, ncclFloat, ncclSum, comm, r->stream)) == ncclSuccess);
  NEED(cudaStreamSynchronize(r->stream) == cudaSuccess);
  NEED(are(p, N, want));
  NEED(cudaFree(p) == cudaSuccess);
  return 0;
}

/* A copy with the ranks in reverse order, and halves; the parent works on. */
static int case_split(struct rank *r) {
  ncclComm_t copy = NULL, half = NULL, none = NULL;
  int rank = -1, n = 0;
  NEED(up(r) == 0 && sum_once(r, r->comm, 1, 3) == 0);
  ncclResult_t rc = ncclCommSplit(r->comm, 0, -r->rank, &copy, NULL);
  NEED(rc == ncclInProgress && !copy);
  NEED(settle(r->comm, rc) == ncclSuccess && copy);
  NEED(ncclCommUserRank(copy, &rank) == ncclSuccess && rank == r->world - 1 - r->rank);
  NEED(settle(r->comm, ncclCommSplit(r->comm, r->rank == 1, 0, &half, NULL)) == ncclSuccess);
  NEED(ncclCommCount(half, &n) == ncclSuccess && n == (r->rank == 1 ? 1 : 2));
  NEED(settle(r->comm, ncclCommSplit(r->comm, NCCL_SPLIT_NOCOLOR, 0, &none, NULL)) == ncclSuccess && !none);
  NEED(sum_once(r, copy, (float)r->rank, 3) == 0);
  NEED(sum_once(r, half, (float)r->rank, r->rank == 1 ? 1 : 2) == 0);
  NEED(sum_once(r, r->comm, 2, 6) == 0);
  ncclComm_t each[] = {copy, half};
  for (int i = 0; i < 2; i++) {
    NEED(settle(each[i], ncclCommFinalize(each[i])) == ncclSuccess);
    NEED(ncclCommDestroy(each[i]) == ncclSuccess);
  }
  return down(r);
}

static void raise_flag(int k) {
  __atomic_fetch_add(&page->flags[k], 1, __ATOMIC_ACQ_REL);
}

static void await_flags(int k, int n) {
  while (__atomic_load_n(&page->flags[k], __ATOMIC_ACQUIRE) < n) pause_ms(1);
}

/* A sum of the parent waits for rank 1: the documentation forbids a split then. */
static int case_busy_split(struct rank *r) {
  void *p;
  ncclComm_t copy;
  NEED(up(r) == 0);
  if (r->rank == 1) {
    raise_flag(1);
    await_flags(0, 1);
    return 0;
  }
  await_flags(1, 1);
  NEED(cudaMalloc(&p, 4000) == cudaSuccess);
  NEED(settle(r->comm, ncclAllReduce(p, p, 1000, ncclFloat, ncclSum, r->comm, r->stream)) == ncclSuccess);
  raise_flag(0);
  (void)ncclCommSplit(r->comm, 0, 0, &copy, NULL);
  return 1;
}

/* How ranks fail. -------------------------------------------------------------------------------------------------- */

enum { LOOKS = 80, LOOK_MS = 3 }; /* the stand-in looks for deaths at most once in 2 ms */

/* The communicator's asynchronous error within so many looks that it would be seen. */
static ncclResult_t error_soon(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  for (int i = 0; i < LOOKS && state == ncclSuccess; i++) {
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
    pause_ms(LOOK_MS);
  }
  return state;
}

/* Rank 2 is missing and rank 1 aborts. Does rank 0 complete the sum, with a finite value? Both are possible. */
static int case_spread(struct rank *r) {
  float *p, value = NAN;
  NEED(up(r) == 0);
  if (r->rank == 2) {
    await_flags(2, 1);
    return 0;
  }
  NEED(cudaMalloc((void **)&p, 4) == cudaSuccess && set(p, 1, (float)r->rank + 1));
  NEED(settle(r->comm, ncclAllReduce(p, p, 1, ncclFloat, ncclSum, r->comm, r->stream)) == ncclSuccess);
  for (int i = 0; i < 100; i++) NEED(cudaStreamQuery(r->stream) == cudaErrorNotReady);
  raise_flag(0);
  await_flags(0, 2);
  if (r->rank == 1) {
    NEED(ncclCommAbort(r->comm) == ncclSuccess && cudaStreamSynchronize(r->stream) == cudaSuccess);
    raise_flag(1);
    await_flags(2, 1);
    return 0;
  }
  await_flags(1, 1);
  NEED(error_soon(r->comm) == ncclSuccess);
  bool done = cudaStreamQuery(r->stream) == cudaSuccess;
  page->seen[done]++;
  if (done) NEED(cudaMemcpy(&value, p, 4, cudaMemcpyDeviceToHost) == cudaSuccess && isfinite(value) && value < 6);
  raise_flag(2);
  return 0;
}

/* Rank 1 leaves without a word. The others look when its process has ended, which closes its end of the pipe. */
static int case_death(struct rank *r) {
  char byte;
  NEED(up(r) == 0);
  if (r->rank != 1) close(alive[1]);
  raise_flag(0);
  await_flags(0, r->world);
  if (r->rank == 1) _exit(0);
  NEED(read(alive[0], &byte, 1) == 0);
  ncclResult_t rc = error_soon(r->comm);
  NEED(rc == ncclSuccess || rc == ncclRemoteError);
  __atomic_fetch_add(&page->seen[rc == ncclRemoteError], 1, __ATOMIC_ACQ_REL);
  raise_flag(1);
  await_flags(1, r->world - 1); /* nobody else dies before */
  return 0;
}

static int case_uneven_capture(struct rank *r) {
  float *p;
  cudaGraph_t g;
  cudaGraphExec_t x;
  NEED(up(r) == 0);
  NEED(cudaMalloc((void **)&p, 4) == cudaSuccess && set(p, 1, 1));
  if (r->rank == 0) NEED(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  NEED(settle(r->comm, ncclAllReduce(p, p, 1, ncclFloat, ncclSum, r->comm, r->stream)) == ncclSuccess);
  if (r->rank == 0) {
    NEED(cudaStreamEndCapture(r->stream, &g) == cudaSuccess);
    NEED(cudaGraphInstantiate(&x, g, 0) == cudaSuccess && cudaGraphLaunch(x, r->stream) == cudaSuccess);
  }
  (void)error_soon(r->comm);
  return 1;
}

static int case_free(struct rank *r) {
  void *p, *other;
  NEED(up(r) == 0);
  NEED(cudaMalloc(&p, 4) == cudaSuccess && cudaMalloc(&other, 4) == cudaSuccess);
  raise_flag(0);
  await_flags(0, 2);
  if (r->rank == 0) {
    NEED(settle(r->comm, ncclAllReduce(p, p, 1, ncclFloat, ncclSum, r->comm, r->stream)) == ncclSuccess);
    raise_flag(1);
    alarm(1); /* it is to hang; the other one has all its time */
  } else {
    await_flags(1, 1); /* a rank that is gone would fail the collective */
  }
  cudaFree(other);
  return 0;
}

static void *abort_it(void *arg) {
  ncclCommAbort(((struct rank *)arg)->comm);
  raise_flag(0);
  return NULL;
}

static int case_abort_and_graph(struct rank *r) {
  float *p;
  cudaGraph_t g;
  pthread_t thread;
  NEED(up(r) == 0);
  NEED(cudaMalloc((void **)&p, 4) == cudaSuccess);
  NEED(cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  NEED(settle(r->comm, ncclAllReduce(p, p, 1, ncclFloat, ncclSum, r->comm, r->stream)) == ncclSuccess);
  NEED(cudaStreamEndCapture(r->stream, &g) == cudaSuccess);
  NEED(pthread_create(&thread, NULL, abort_it, r) == 0);
  pause_ms(50);
  NEED(__atomic_load_n(&page->flags[0], __ATOMIC_ACQUIRE) == 0);
  NEED(cudaGraphDestroy(g) == cudaSuccess && pthread_join(thread, NULL) == 0);
  NEED(cudaFree(p) == cudaSuccess && cudaStreamDestroy(r->stream) == cudaSuccess);
  return 0;
}

static bool both_seen(void) {
  return page->seen[0] > 0 && page->seen[1] > 0;
}

enum { TURNS_MAX = 40 };

static bool none_seen(void) {
  return page->seen[1] == 0;
}

static bool all_seen(void) {
  return page->seen[0] == 0;
}

static const struct {
  const char *name;
  int (*fn)(struct rank *r);
  int world, ends[WORLD_MAX];
  const char *env;
  int turns; /* 0: one; with both_seen at most, since each turn draws lots */
  bool (*check)(void);
} cases[] = {
    {"split", case_split, 3, {0}},
    {"a split beside work", case_busy_split, 2, {BY_ABORT, 0}},
    {"an abort spreads", case_spread, 3, {0}, "FAKEGPU_DEATHS=none", TURNS_MAX, both_seen},
    {"a death that nobody sees", case_death, 3, {0}, "FAKEGPU_DEATHS=none", 2, none_seen},
    {"a death that some see", case_death, 3, {0}, "FAKEGPU_DEATHS=some", TURNS_MAX, both_seen},
    {"a death that all see", case_death, 3, {0}, "FAKEGPU_DEATHS=all", 2, all_seen},
    {"a death", case_death, 3, {0}, NULL, TURNS_MAX, both_seen},
    {"one rank captures", case_uneven_capture, 2, {BY_ABORT, ANY}},
    {"a free behind a collective", case_free, 2, {BY_ALARM, 0}},
    {"an abort beside a graph", case_abort_and_graph, 1, {0}},
};

static int how_it_ended(pid_t pid, uint64_t end) {
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (now_ms() > end) kill(pid, SIGKILL);
    pause_ms(2);
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  return WTERMSIG(status) == SIGABRT ? BY_ABORT : WTERMSIG(status) == SIGALRM ? BY_ALARM : -1;
}

static int run_turn(size_t at, int turn) {
  pid_t pids[WORLD_MAX];
  int failed = 0, world = cases[at].world;
  memset(&page->minted, 0, sizeof *page - offsetof(struct page, minted));
  fflush(NULL);
  if (pipe(alive)) return 1;
  for (int i = 0; i < world; i++)
    if ((pids[i] = fork()) == 0) {
      char seed[32];
      snprintf(seed, sizeof seed, "%d", turn * world + i + 1);
      setenv("FAKEGPU_SEED", seed, 1);
      if (cases[at].env) putenv(strdup(cases[at].env));
      exit(cases[at].fn(&(struct rank){.rank = i, .world = world}));
    }
  for (int i = 0; i < 2; i++) close(alive[i]);
  uint64_t end = now_ms() + CASE_MS;
  for (int i = 0; i < world; i++) {
    int got = how_it_ended(pids[i], end);
    if (got == cases[at].ends[i] || cases[at].ends[i] == ANY) continue;
    fprintf(stderr, "%s: rank %d ended with %d\n", cases[at].name, i, got);
    failed = 1;
  }
  return failed;
}

static int run_case(size_t at) {
  int failed = 0;
  memset(page, 0, sizeof *page);
  for (int turn = 0; turn == 0 || turn < cases[at].turns; turn++) {
    failed |= run_turn(at, turn);
    if (cases[at].check == both_seen && both_seen()) break;
  }
  if (cases[at].check && !cases[at].check()) {
    fprintf(stderr, "%s: seen %d times no, %d times yes\n", cases[at].name, page->seen[0], page->seen[1]);
    failed = 1;
  }
  printf("%s: %s\n", cases[at].name, failed ? "FAILED" : "ok");
  return failed;
}

static bool wanted(const char *name, int argc, char **argv) {
  for (int i = 1; i < argc; i++)
    if (strcmp(argv[i], name) == 0) return true;
  return argc == 1;
}

int main(int argc, char **argv) {
  int failed = 0;
  page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 1;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (wanted(cases[i].name, argc, argv)) failed += run_case(i);
  return failed ? 1 : 0;
}
