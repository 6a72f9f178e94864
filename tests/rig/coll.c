/* SPDX-License-Identifier: Apache-2.0 */
/* A world is forked before anything of the module is opened, because its threads and device do not survive a fork. */

#include "tests/rig/coll.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common/system/clock.h"

const char *coll_module;
int coll_devices = 1;
uint64_t coll_timeout_ms = 2000;

void nap(int ms) {
  struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
  nanosleep(&ts, NULL);
}

void set_flag(struct rank *r, int i) {
  __atomic_store_n(&r->s->flag[i], 1, __ATOMIC_SEQ_CST);
}
void all_here(struct rank *r) {
  set_flag(r, 4 + r->rank);
  for (int i = 0; i < r->world; i++) await_flag(r, 4 + i);
}
void await_flag(struct rank *r, int i) {
  while (!__atomic_load_n(&r->s->flag[i], __ATOMIC_SEQ_CST)) nap(1);
}

void leave_round(struct rank *r, int live) {
  leave_round_apart(r, live, 0);
}

void leave_round_apart(struct rank *r, int live, int ms) {
  int *parked = &r->s->parked[r->round];
  compute_block_updates(r->c, true);
  coll_abort(r->l, "the round ends");
  __atomic_fetch_add(parked, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(parked, __ATOMIC_SEQ_CST) < live) nap(1);
  nap(ms);
  coll_cut(r->l);
}

/* ------------------------------------------------------------ what ranks share */

static int place_of(const struct rank *r, const char *key) {
  return r->round + (strstr(key, "twin") ? 2 : 0);
}

int exchange(void *ctx, const char *key, const void *mine, size_t size, void *all, int timeout_ms, struct err *e) {
  struct rank *r = ctx;
  struct shared *s = r->s;
  int at = place_of(r, key);
  uint64_t end = monotonic_ms() + (uint64_t)timeout_ms;
  if (size > CARD_MAX) abort();
  memcpy(s->cards[at][r->rank], mine, size);
  __atomic_fetch_add(&s->come[at], 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&s->come[at], __ATOMIC_SEQ_CST) < r->world) {
    if (monotonic_ms() > end) return err_set(e, -ETIMEDOUT, "somebody has not come to exchange %s", key);
    nap(1);
  }
  for (int i = 0; i < r->world; i++) memcpy((uint8_t *)all + (size_t)i * size, s->cards[at][i], size);
  return 0;
}

static int post_to_board(void *ctx, const char *key, const void *bytes, size_t size, int timeout_ms, struct err *e) {
  struct rank *r = ctx;
  struct shared *s = r->s;
  int at = place_of(r, key);
  pthread_mutex_lock(&s->lock);
  size_t *n = &s->board_n[at];
  if (*n + size <= BOARD_MAX) memcpy(s->board[at] + *n, bytes, size), *n += size;
  pthread_mutex_unlock(&s->lock);
  if (s->asked_after_post) __atomic_store_n(&s->asked, -ECANCELED, __ATOMIC_SEQ_CST);
  return 0;
}

static int read_posts(void *ctx, const char *key, char **all, size_t *size, int timeout_ms, struct err *e) {
  struct rank *r = ctx;
  struct shared *s = r->s;
  int at = place_of(r, key);
  pthread_mutex_lock(&s->lock);
  s->reads_when_asked += s->asked != 0;
  *size = s->board_n[at];
  *all = *size ? malloc(*size) : NULL;
  if (*all) memcpy(*all, s->board[at], *size);
  pthread_mutex_unlock(&s->lock);
  return 0;
}

static int asked(void *ctx, struct err *e) {
  int code = __atomic_load_n(&((struct rank *)ctx)->s->asked, __ATOMIC_SEQ_CST);
  return code ? err_set(e, code, "the agent ends this round") : 0;
}

static const struct gpu_module *open_module(void) {
  void *m = dlopen(coll_module, RTLD_NOW | RTLD_LOCAL);
  const struct gpu_module *gpu = m ? dlsym(m, "rdzv_gpu") : NULL;
  if (!gpu) fprintf(stderr, "%s: %s\n", coll_module, dlerror());
  return gpu && gpu->abi == GPU_ABI ? gpu : NULL;
}

/* Mints the ids of both rounds, and stays until it is killed. */
static void mint_ids(struct shared *s) {
  struct err e = ERR_INIT;
  const struct gpu_module *gpu = open_module();
  for (int i = 0; gpu && i < 2 * IDS; i++)
    if (gpu->unique_id(s->ids[i / IDS] + (size_t)(i % IDS) * GPU_ID_SIZE, &e)) _exit(3);
  __atomic_store_n(&s->minted, gpu ? 1 : -1, __ATOMIC_SEQ_CST);
  for (;;) pause();
}

struct nccl_config config_of(struct rank *r) {
  return (struct nccl_config){.ranks = {.rank = r->rank,
                                        .world = r->world,
                                        .round = (uint32_t)r->round,
                                        .timeout_ms = r->timeout_ms,
                                        .stop_wait_ms = 500,
                                        .stop = &r->stop,
                                        .exchange = exchange,
                                        .exchange_ctx = r,
                                        .asked = asked,
                                        .asked_ctx = r},
                              .ids = r->s->ids[r->round],
                              /* NCCL refuses more ids than ranks, and takes one before 2.23 */
                              .n_ids = r->gpu->nccl_version() < 22300 || r->world < IDS ? 1 : IDS,
                              .post = post_to_board,
                              .peek = read_posts,
                              .board_ctx = r};
}

static bool make_device(struct rank *r) {
  bool several = coll_devices >= r->world;
  struct gpu_config cfg = {.device = several ? r->rank : 0, .precision = COMPUTE_FP32};
  struct err e = ERR_INIT;
  char id[32];
  snprintf(id, sizeof id, "rank-%d", r->rank);
  if (!several) setenv("NCCL_HOSTID", id, 1);
  EXPECT((r->gpu = open_module()) != NULL);
  GOOD(r->gpu->compute_create(&cfg, &r->c, &e));
  return true;
}

/* The deadline of the communicator begins when all can come. */
static void await_devices(struct rank *r) {
  __atomic_fetch_add(&r->s->ready, 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&r->s->ready, __ATOMIC_SEQ_CST) < r->world) nap(1);
}

bool make_coll(struct rank *r) {
  struct nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  GOOD(r->gpu->coll_create(&cfg, r->c, &r->l, &e));
  return true;
}

/* --------------------------------------------------------------- a step */

bool step_make(struct rank *r, struct step *p, size_t n, size_t buckets) {
  struct err e = ERR_INIT;
  *p = (struct step){.n = n, .buckets = buckets};
  GOOD(compute_alloc(r->c, COMPUTE_STAGE, n, &p->in, &e));
  GOOD(compute_alloc(r->c, COMPUTE_STAGE, n, &p->out, &e));
  GOOD(compute_alloc(r->c, COMPUTE_GRAD, n, &p->grads, &e));
  return true;
}

void step_free(struct rank *r, struct step *p) {
  compute_free(r->c, p->in);
  compute_free(r->c, p->out);
  compute_free(r->c, p->grads);
}

static float value(int rank, size_t i, int turn) {
  return (float)((i * 7 + (size_t)turn * 31 + (size_t)rank * 13) % 1009);
}

void step_fill(struct rank *r, struct step *p, int turn) {
  float *v = compute_host(r->c, (struct span){p->in, 0, p->n});
  for (size_t i = 0; i < p->n; i++) v[i] = value(r->rank, i, turn);
}

int step_queue(struct rank *r, struct step *p, struct err *e) {
  struct coll_ticket t[64];
  size_t end = p->n, n = 0;
  int rc = compute_copy(r->c, (struct span){p->grads, 0, p->n}, (struct span){p->in, 0, p->n}, e);
  for (size_t b = p->buckets; rc == 0 && b-- > 0;) {
    size_t at = p->n * b / p->buckets;
    rc = coll_all_reduce_begin(r->l, r->c, (struct span){p->grads, at, end - at}, &t[n++], e);
    end = at;
  }
  for (size_t k = 0; k < n && rc == 0; k++) rc = coll_wait(r->l, t[k], e);
  return rc ? rc : compute_copy(r->c, (struct span){p->out, 0, p->n}, (struct span){p->grads, 0, p->n}, e);
}

int await_queue(struct rank *r, struct err *e) {
  struct compute_mark m;
  int rc = compute_record(r->c, &m, e);
  while (rc == 0) {
    int done = compute_done(r->c, m, e);
    if (done) return done < 0 ? done : 0;
    rc = coll_progress(r->l, e);
    sched_yield();
  }
  return rc;
}

bool step_right(struct rank *r, struct step *p, int turn) {
  const float *v = compute_host(r->c, (struct span){p->out, 0, p->n});
  for (size_t i = 0; i < p->n; i++) {
    float want = 0;
    for (int k = 0; k < r->world; k++) want += value(k, i, turn);
    if (v[i] != want) {
      fprintf(stderr, "rank %d, turn %d, element %zu: %g, not %g\n", r->rank, turn, i, (double)v[i], (double)want);
      return false;
    }
  }
  return true;
}

bool steps(struct rank *r, struct step *p, int turns) {
  struct err e = ERR_INIT;
  for (int turn = 0; turn < turns; turn++) {
    step_fill(r, p, turn);
    GOOD(step_queue(r, p, &e));
    GOOD(await_queue(r, &e));
    EXPECT(step_right(r, p, turn));
  }
  return true;
}

static void run_child(const struct test *t, struct shared *s, int rank) {
  struct rank r = {
      .rank = rank, .world = t->world, .s = s, .timeout_ms = t->timeout_ms ? t->timeout_ms : coll_timeout_ms};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(PATIENCE_S);
  bool ok = make_device(&r);
  if (ok) await_devices(&r);
  ok = ok && (t->bare || make_coll(&r)) && t->run(&r);
  coll_destroy(r.l);
  compute_destroy(r.c);
  exit(ok ? 0 : 1);
}

bool run_world(const struct test *t) {
  struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t a;
  pid_t pids[WORLD_MAX];
  bool ok = true;
  if (s == MAP_FAILED) abort();
  pthread_mutexattr_init(&a);
  pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&s->lock, &a);
  pid_t minter = fork();
  if (minter == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(PATIENCE_S);
    mint_ids(s);
  }
  while (!__atomic_load_n(&s->minted, __ATOMIC_SEQ_CST) && waitpid(minter, NULL, WNOHANG) == 0) nap(1);
  for (int i = 0; i < t->world; i++)
    if ((pids[i] = fork()) == 0) run_child(t, s, i);
  for (int i = 0; i < t->world; i++) {
    int status = 0;
    waitpid(pids[i], &status, 0);
    bool well = i == t->killed ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL
                               : WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!well) fprintf(stderr, "%s: rank %d ended with status %#x\n", t->name, i, (unsigned)status);
    ok &= well;
  }
  kill(minter, SIGKILL);
  waitpid(minter, NULL, 0);
  munmap(s, sizeof *s);
  return ok;
}
