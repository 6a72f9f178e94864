/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of coll.h, on the module's NCCL. Ranks are processes that are forked here. With the stand-ins all are on
 * this machine; on GPUs each has a device (or all share one, each with its own NCCL_HOSTID).
 *
 *   test_coll_seam --cuda-module FILE [--world N] [--shared-device] [--timeout-ms MS]
 *
 * A case is a function that every rank runs; it returns 0, or reports what is wrong. The parent waits with a deadline
 * and shares a page: the ids, what ranks exchange before there is a communicator, and the board on which they post. */

#include "agent/trainer/gpu/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORLD_MAX = 16, BOARDS = 4, ROOM = 64 << 10, CASE_MS = 120000, TIMEOUT_MS = 20000 };

/* A communicator has a board of its own: what ranks posted in an earlier round says nothing about a later one. */
struct board {
  char key[64];
  char bytes[ROOM];
  size_t n;
};

struct page {
  pthread_mutex_t lock;
  int minted;
  int opened;   /* ranks that have their device */
  int poisoned; /* ranks that have left a round in which one died */
  char id[GPU_ID_SIZE];
  char exchanged[8][WORLD_MAX][1024];
  int come[8];
  struct board boards[BOARDS];
};

struct rank {
  const struct gpu_module *gpu;
  struct compute *c;
  struct coll *l;
  struct compute_buf *grads, *stage;
  int rank, world, exchanges;
};

static struct page *page;
static const char *module_path;
static bool shared_device;
static int world = 2;
static uint64_t lost_ms = 3000; /* deadline for a missing rank; the communicator must come up within it */

#define NEED(what)                                                                                                     \
  do {                                                                                                                 \
    if (!(what)) {                                                                                                     \
      fprintf(stderr, "rank %d, line %d: %s: %s\n", r->rank, __LINE__, #what, e.text);                                 \
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

static int exchange(void *ctx, const char *key, const void *mine, size_t size, void *all, int timeout_ms,
                    struct err *e) {
  struct rank *r = ctx;
  int at = r->exchanges++;
  uint64_t end = now_ms() + (uint64_t)timeout_ms;
  if (at >= 8 || size > sizeof page->exchanged[0][0]) return err_set(e, -E2BIG, "more than the test has room for");
  memcpy(page->exchanged[at][r->rank], mine, size);
  __atomic_fetch_add(&page->come[at], 1, __ATOMIC_ACQ_REL);
  while (__atomic_load_n(&page->come[at], __ATOMIC_ACQUIRE) < r->world) {
    if (now_ms() > end) return err_set(e, -ETIMEDOUT, "somebody is missing");
    pause_ms(1);
  }
  for (int i = 0; i < r->world; i++) memcpy((char *)all + (size_t)i * size, page->exchanged[at][i], size);
  return 0;
}

/* Holds the lock. NULL: there are more keys than the test has boards. */
static struct board *board_of(const char *key) {
  for (int i = 0; i < BOARDS; i++) {
    struct board *b = &page->boards[i];
    if (!b->key[0]) snprintf(b->key, sizeof b->key, "%s", key);
    if (strcmp(b->key, key) == 0) return b;
  }
  return NULL;
}

static int post(void *ctx, const char *key, const void *bytes, size_t size, int timeout_ms, struct err *e) {
  pthread_mutex_lock(&page->lock);
  struct board *b = board_of(key);
  bool fits = b && b->n + size <= sizeof b->bytes;
  if (fits) {
    memcpy(b->bytes + b->n, bytes, size);
    b->n += size;
  }
  pthread_mutex_unlock(&page->lock);
  return fits ? 0 : err_set(e, -E2BIG, "the board is full");
}

static int peek(void *ctx, const char *key, char **all, size_t *size, int timeout_ms, struct err *e) {
  pthread_mutex_lock(&page->lock);
  struct board *b = board_of(key);
  *size = b ? b->n : 0;
  *all = *size ? malloc(*size) : NULL;
  if (*all) memcpy(*all, b->bytes, *size);
  pthread_mutex_unlock(&page->lock);
  return b ? 0 : err_set(e, -E2BIG, "the board is full");
}

/* Waits like the trainer: for the mark, and watches the other ranks. */
static int await_queue(struct rank *r, struct err *e) {
  struct compute_mark mark;
  int rc = compute_record(r->c, &mark, e);
  uint64_t end = now_ms() + 2 * TIMEOUT_MS;
  while (rc == 0) {
    int done = compute_done(r->c, mark, e);
    if (done) return done < 0 ? done : 0;
    rc = coll_progress(r->l, e);
    if (now_ms() > end) return err_set(e, -EDEADLK, "coll_progress did not find that nothing goes on");
    pause_ms(1);
  }
  return rc;
}

/* A communicator of this round, by ids of its own. */
static int connect_ranks(struct rank *r, int round, uint64_t timeout_ms, struct err *e) {
  int rc = 0;
  if (r->rank == 0) {
    rc = r->gpu->unique_id(page->id, e);
    __atomic_store_n(&page->minted, round, __ATOMIC_RELEASE);
  }
  while (__atomic_load_n(&page->minted, __ATOMIC_ACQUIRE) < round) pause_ms(1);
  struct nccl_config cfg = {.ranks = {.rank = r->rank,
                                      .world = r->world,
                                      .round = (uint32_t)round,
                                      .timeout_ms = timeout_ms,
                                      .stop_wait_ms = timeout_ms,
                                      .exchange = exchange,
                                      .exchange_ctx = r},
                            .ids = page->id,
                            .n_ids = 1,
                            .post = post,
                            .peek = peek,
                            .board_ctx = r};
  return rc ? rc : r->gpu->coll_create(&cfg, r->c, &r->l, e);
}

static int open_rank(struct rank *r, uint64_t timeout_ms, struct err *e) {
  void *so = dlopen(module_path, RTLD_NOW | RTLD_LOCAL);
  r->gpu = so ? (const struct gpu_module *)dlsym(so, "rdzv_gpu") : NULL;
  if (!r->gpu) return err_set(e, -ENOENT, "%s", dlerror());
  struct gpu_config g = {.device = shared_device ? 0 : r->rank, .precision = COMPUTE_FP32};
  int rc = r->gpu->compute_create(&g, &r->c, e);
  if (rc) return rc;
  __atomic_fetch_add(&page->opened, 1, __ATOMIC_ACQ_REL); /* the deadline begins when all can come */
  while (__atomic_load_n(&page->opened, __ATOMIC_ACQUIRE) < r->world) pause_ms(1);
  return connect_ranks(r, 1, timeout_ms, e);
}

static void close_rank(struct rank *r) {
  coll_destroy(r->l);
  compute_free(r->c, r->grads);
  compute_free(r->c, r->stage);
  compute_destroy(r->c);
}

/* Small whole numbers: their sums are exact in any order. */
static float value_of(int rank, size_t step, size_t i) {
  return (float)((i * 7 + step * 3 + (size_t)rank * 5) % 23);
}

static float sum_of(const struct rank *r, size_t step, size_t i) {
  float sum = 0;
  for (int k = 0; k < r->world; k++) sum += value_of(k, step, i);
  return sum;
}

/* One buffer, summed in pieces of all sizes, several at a time, with work queued before and after each. */
static int case_sums(struct rank *r) {
  static const size_t pieces[] = {1, 3, 64, 1000, 4097, 5, 20000, 2};
  enum { N = 25172, PIECES = 8 };
  struct err e = ERR_INIT;
  NEED(open_rank(r, TIMEOUT_MS, &e) == 0);
  NEED(compute_alloc(r->c, COMPUTE_GRAD, N, &r->grads, &e) == 0);
  NEED(compute_alloc(r->c, COMPUTE_STAGE, N, &r->stage, &e) == 0);
  struct span all = {r->grads, 0, N}, host = {r->stage, 0, N};
  for (size_t step = 0; step < 6; step++) {
    struct coll_ticket t[PIECES];
    float *v = compute_host(r->c, host);
    for (size_t i = 0; i < N; i++) v[i] = value_of(r->rank, step, i);
    NEED(compute_fill(r->c, all, NAN, &e) == 0);
    for (size_t k = 0, at = 0; k < PIECES; at += pieces[k++]) {
      struct span piece = {r->grads, at, pieces[k]};
      NEED(compute_copy(r->c, piece, (struct span){r->stage, at, pieces[k]}, &e) == 0);
      NEED(coll_all_reduce_begin(r->l, r->c, piece, &t[k], &e) == 0);
    }
    for (size_t k = 0; k < PIECES; k++) NEED(coll_wait(r->l, t[k], &e) == 0);
    NEED(compute_copy(r->c, host, all, &e) == 0);
    NEED(await_queue(r, &e) == 0);
    for (size_t i = 0; i < N; i++) NEED(v[i] == sum_of(r, step, i));
  }
  close_rank(r);
  return 0;
}

static int case_host(struct rank *r) {
  struct err e = ERR_INIT;
  NEED(open_rank(r, TIMEOUT_MS, &e) == 0);
  for (int step = 0; step < 5; step++) {
    double v[3] = {r->rank + 1, 0.5, -step};
    NEED(coll_sum(r->l, v, 3, &e) == 0);
    NEED(v[0] == r->world * (r->world + 1) / 2.0 && v[1] == 0.5 * r->world && v[2] == -step * r->world);
    for (int root = 0; root < r->world; root++) {
      char text[5000];
      memset(text, r->rank == root ? 'a' + root : '?', sizeof text);
      NEED(coll_broadcast(r->l, text, sizeof text - (size_t)step, root, &e) == 0);
      NEED(text[0] == 'a' + root && text[sizeof text - 1 - (size_t)step] == 'a' + root);
    }
    NEED(coll_barrier(r->l, &e) == 0);
  }
  close_rank(r);
  return 0;
}

static int case_captured(struct rank *r) {
  enum { N = 3000 };
  struct err e = ERR_INIT;
  struct compute_graph *g = NULL;
  NEED(open_rank(r, TIMEOUT_MS, &e) == 0);
  if (!compute_can_capture(r->c)) {
    close_rank(r);
    return 0;
  }
  NEED(compute_alloc(r->c, COMPUTE_GRAD, N, &r->grads, &e) == 0);
  NEED(compute_alloc(r->c, COMPUTE_STAGE, N, &r->stage, &e) == 0);
  struct span all = {r->grads, 0, N}, host = {r->stage, 0, N};
  float *v = compute_host(r->c, host);
  for (size_t step = 0; step < 5; step++) {
    struct coll_ticket a, b;
    for (size_t i = 0; i < N; i++) v[i] = value_of(r->rank, step, i);
    if (step == 1) NEED(compute_capture_begin(r->c, &e) == 0);
    if (step < 2) { /* the first as it is, the second into the graph */
      NEED(compute_copy(r->c, all, host, &e) == 0);
      NEED(coll_all_reduce_begin(r->l, r->c, (struct span){r->grads, 1000, 2000}, &a, &e) == 0);
      NEED(coll_all_reduce_begin(r->l, r->c, (struct span){r->grads, 0, 1000}, &b, &e) == 0);
      NEED(coll_wait(r->l, a, &e) == 0 && coll_wait(r->l, b, &e) == 0);
      NEED(compute_copy(r->c, host, all, &e) == 0);
    }
    if (step == 1) NEED(compute_capture_end(r->c, &g, &e) == 0);
    if (step > 0) NEED(compute_launch(r->c, g, &e) == 0);
    NEED(await_queue(r, &e) == 0);
    for (size_t i = 0; i < N; i++) NEED(v[i] == sum_of(r, step, i));
  }
  compute_graph_destroy(r->c, g);
  close_rank(r);
  return 0;
}

/* The last rank exits without a word in the third step. The others end in time and name it. */
static int case_death(struct rank *r) {
  enum { N = 500 };
  struct err e = ERR_INIT;
  int rc = 0;
  NEED(open_rank(r, lost_ms, &e) == 0);
  NEED(compute_alloc(r->c, COMPUTE_GRAD, N, &r->grads, &e) == 0);
  uint64_t from = now_ms();
  for (size_t step = 0; step < 5 && rc == 0; step++) {
    struct coll_ticket t;
    if (step == 2 && r->rank == r->world - 1) _exit(9);
    from = now_ms();
    rc = coll_all_reduce_begin(r->l, r->c, (struct span){r->grads, 0, N}, &t, &e);
    if (rc == 0) rc = coll_wait(r->l, t, &e);
    if (rc == 0) rc = await_queue(r, &e);
  }
  printf("rank %d after %llu ms: %s (lost: %d)\n", r->rank, (unsigned long long)(now_ms() - from), e.text, r->l->lost);
  fflush(stdout);
  NEED(rc == -ECONNRESET || rc == -ETIMEDOUT || rc == -ECONNABORTED);
  NEED(now_ms() - from < 4 * lost_ms);
  NEED(r->l->lost == r->world - 1);
  compute_block_updates(r->c, true);
  coll_abort(r->l, "a rank is lost");
  __atomic_fetch_add(&page->poisoned, 1, __ATOMIC_ACQ_REL);
  while (__atomic_load_n(&page->poisoned, __ATOMIC_ACQUIRE) < r->world - 1) pause_ms(1);
  coll_cut(r->l);
  close_rank(r);
  return 0;
}

static int sum_all(struct rank *r, size_t step, struct span all, struct span host, struct err *e) {
  struct coll_ticket t;
  float *v = compute_host(r->c, host);
  for (size_t i = 0; i < all.n; i++) v[i] = value_of(r->rank, step, i);
  int rc = compute_copy(r->c, all, host, e);
  if (rc == 0) rc = coll_all_reduce_begin(r->l, r->c, all, &t, e);
  if (rc == 0) rc = coll_wait(r->l, t, e);
  if (rc == 0) rc = compute_copy(r->c, host, all, e);
  if (rc == 0) rc = await_queue(r, e);
  for (size_t i = 0; i < all.n && rc == 0; i++)
    if (v[i] != sum_of(r, step, i)) rc = err_set(e, -EPROTO, "step %zu: sum %zu is %g", step, i, (double)v[i]);
  return rc;
}

/* The last rank hangs: it never begins the second sum. All block their updates and agree that nobody will use this
 * communicator again. Then they end it one after the other, and connect anew. */
static int case_staggered(struct rank *r) {
  enum { N = 500, APART_MS = 150 };
  struct err e = ERR_INIT;
  struct coll_ticket t;
  char agreed[WORLD_MAX];
  NEED(open_rank(r, TIMEOUT_MS, &e) == 0);
  NEED(compute_alloc(r->c, COMPUTE_GRAD, N, &r->grads, &e) == 0);
  NEED(compute_alloc(r->c, COMPUTE_STAGE, N, &r->stage, &e) == 0);
  struct span all = {r->grads, 0, N}, host = {r->stage, 0, N};
  NEED(sum_all(r, 0, all, host, &e) == 0);
  if (r->rank < r->world - 1) {
    NEED(coll_all_reduce_begin(r->l, r->c, all, &t, &e) == 0);
    NEED(coll_wait(r->l, t, &e) == 0);
  }
  compute_block_updates(r->c, true);
  coll_abort(r->l, "this round is over");
  NEED(exchange(r, "agreed", "", 1, agreed, TIMEOUT_MS, &e) == 0);
  for (int i = 0; i < r->rank; i++) pause_ms(APART_MS);
  coll_cut(r->l);
  struct compute_mark mark;
  NEED(compute_record(r->c, &mark, &e) == 0);
  NEED(compute_wait(r->c, mark, TIMEOUT_MS, &e) == 0);
  coll_destroy(r->l);
  compute_block_updates(r->c, false);
  NEED(connect_ranks(r, 2, TIMEOUT_MS, &e) == 0);
  for (size_t step = 1; step < 4; step++) NEED(sum_all(r, step, all, host, &e) == 0);
  close_rank(r);
  return 0;
}

/* Every rank ends with `want`, but the last one with `last`. */
static int run_case(const char *name, int (*fn)(struct rank *r), int last) {
  int failed = 0;
  pid_t pids[WORLD_MAX];
  pthread_mutexattr_t attr;
  memset(page, 0, sizeof *page);
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&page->lock, &attr);
  for (int i = 0; i < world; i++)
    if ((pids[i] = fork()) == 0) {
      struct rank r = {.rank = i, .world = world};
      char host_id[32], seed[32];
      snprintf(host_id, sizeof host_id, "rank-%d", i);
      if (shared_device) setenv("NCCL_HOSTID", host_id, 1);
      snprintf(seed, sizeof seed, "%d", i + 1);
      setenv("FAKEGPU_SEED", seed, 0);
      exit(fn(&r));
    }
  uint64_t end = now_ms() + CASE_MS;
  for (int i = 0; i < world; i++) {
    int status = 0;
    while (waitpid(pids[i], &status, WNOHANG) == 0) {
      if (now_ms() > end) kill(pids[i], SIGKILL);
      pause_ms(2);
    }
    int want = i == world - 1 ? last : 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == want) continue;
    fprintf(stderr, "%s: rank %d ended with status %#x\n", name, i, (unsigned)status);
    failed = 1;
  }
  printf("%s: %s\n", name, failed ? "FAILED" : "ok");
  fflush(stdout);
  return failed;
}

int main(int argc, char **argv) {
  int failed = 0;
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--shared-device") == 0)
      shared_device = true;
    else if (strcmp(argv[i], "--cuda-module") == 0 && i + 1 < argc)
      module_path = argv[++i];
    else if (strcmp(argv[i], "--world") == 0 && i + 1 < argc)
      world = atoi(argv[++i]);
    else if (strcmp(argv[i], "--timeout-ms") == 0 && i + 1 < argc)
      lost_ms = strtoull(argv[++i], NULL, 10);
  }
  if (!module_path || world < 1 || world > WORLD_MAX) {
    fprintf(stderr, "usage: test_coll_seam --cuda-module FILE [--world 1..%d] [--shared-device] [--timeout-ms MS]\n",
            WORLD_MAX);
    return 2;
  }
  page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return 1;
  failed += run_case("sums", case_sums, 0);
  failed += run_case("on the host", case_host, 0);
  failed += run_case("captured", case_captured, 0);
  if (world > 1) failed += run_case("a death", case_death, 9);
  if (world > 1) failed += run_case("staggered ends", case_staggered, 0);
  return failed ? 1 : 0;
}
