/* What coll.h promises, kept by NCCL: sums, orders, captures, and above all failures, in worlds of real processes.
 *
 *   test_coll_nccl [--cuda-module FILE] [--only NAME]
 *
 * The module is opened as the trainer opens it (--cuda-module, or RDZV_CUDA_MODULE; without it the program leaves with 77, "skipped"), by
 * every rank for itself. So the same program runs on the stand-ins of tests/fakegpu and on one GPU, where each rank has its own
 * NCCL_HOSTID. A process of its own mints the ids, as in a real job. Ranks meet, and have their board, in shared memory. */

#include "agent/trainer/gpu/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "common/clock.h"

enum { WORLD_MAX = 4, CARD_MAX = 64, BOARD_MAX = 1 << 16, IDS = 2, PATIENCE_S = 100, SKIPPED = 77 };
enum { TIMEOUT_MS = 2000, LONG_MS = 60000, N = 5000 };

struct shared {
  pthread_mutex_t lock;
  int come[2], left[2];
  uint8_t cards[2][WORLD_MAX][CARD_MAX];
  size_t board_n[2];
  uint8_t board[2][BOARD_MAX];
  int minted;
  uint8_t ids[2][IDS * GPU_ID_SIZE];
  int flag[8]; /* for a test's own use */
};

struct rank {
  int rank, world, round; /* round: 0, then 1 for who comes again */
  struct shared *s;
  const struct gpu_module *gpu;
  struct compute *c;
  struct coll *l;
  volatile sig_atomic_t stop;
  uint64_t timeout_ms;
};

struct test {
  const char *name;
  int world;
  uint64_t timeout_ms;
  bool (*run)(struct rank *r);
  bool bare;  /* run makes the collectives itself */
  int killed; /* the rank that does not come back well, or -1 */
};

static const char *module_file;

#define EXPECT(cond)                                                                                         \
  do {                                                                                                       \
    if (!(cond)) {                                                                                           \
      fprintf(stderr, "rank %d of %d: line %d: %s\n", r->rank, r->world, __LINE__, #cond);                   \
      return false;                                                                                          \
    }                                                                                                        \
  } while (0)
#define GOOD(call)                                                                                           \
  do {                                                                                                       \
    if ((call)) {                                                                                            \
      fprintf(stderr, "rank %d of %d: line %d: %s: %s\n", r->rank, r->world, __LINE__, #call, e.text);       \
      return false;                                                                                          \
    }                                                                                                        \
  } while (0)

static void nap(int ms) {
  struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
  nanosleep(&ts, NULL);
}

static void set_flag(struct rank *r, int i) {
  __atomic_store_n(&r->s->flag[i], 1, __ATOMIC_SEQ_CST);
}
static void await_flag(struct rank *r, int i) {
  while (!__atomic_load_n(&r->s->flag[i], __ATOMIC_SEQ_CST)) nap(1);
}

/* ------------------------------------------------------------ what ranks share */

static int exchange(void *ctx, const char *key, const void *mine, size_t size, void *all, int timeout_ms,
                    struct err *e) {
  struct rank *r = ctx;
  struct shared *s = r->s;
  uint64_t end = monotonic_ms() + (uint64_t)timeout_ms;
  if (size > CARD_MAX) abort();
  memcpy(s->cards[r->round][r->rank], mine, size);
  __atomic_fetch_add(&s->come[r->round], 1, __ATOMIC_SEQ_CST);
  while (__atomic_load_n(&s->come[r->round], __ATOMIC_SEQ_CST) < r->world) {
    if (monotonic_ms() > end) return err_set(e, -ETIMEDOUT, "somebody has not come to exchange %s", key);
    nap(1);
  }
  for (int i = 0; i < r->world; i++) memcpy((uint8_t *)all + (size_t)i * size, s->cards[r->round][i], size);
  return 0;
}

static int post(void *ctx, const char *key, const void *bytes, size_t size, int timeout_ms, struct err *e) {
  struct rank *r = ctx;
  struct shared *s = r->s;
  pthread_mutex_lock(&s->lock);
  size_t *n = &s->board_n[r->round];
  if (*n + size <= BOARD_MAX) memcpy(s->board[r->round] + *n, bytes, size), *n += size;
  pthread_mutex_unlock(&s->lock);
  return 0;
}

static int peek(void *ctx, const char *key, char **all, size_t *size, int timeout_ms, struct err *e) {
  struct rank *r = ctx;
  struct shared *s = r->s;
  pthread_mutex_lock(&s->lock);
  *size = s->board_n[r->round];
  *all = *size ? malloc(*size) : NULL;
  if (*all) memcpy(*all, s->board[r->round], *size);
  pthread_mutex_unlock(&s->lock);
  return 0;
}

static const struct gpu_module *open_module(void) {
  void *m = dlopen(module_file, RTLD_NOW | RTLD_LOCAL);
  const struct gpu_module *gpu = m ? dlsym(m, "rdzv_gpu") : NULL;
  if (!gpu) fprintf(stderr, "%s: %s\n", module_file, dlerror());
  return gpu && gpu->abi == GPU_ABI ? gpu : NULL;
}

/* The ids of both rounds; it stays until it is killed. */
static void mint(struct shared *s) {
  struct err e = ERR_INIT;
  const struct gpu_module *gpu = open_module();
  for (int i = 0; gpu && i < 2 * IDS; i++)
    if (gpu->unique_id(s->ids[i / IDS] + (size_t)(i % IDS) * GPU_ID_SIZE, &e)) _exit(3);
  __atomic_store_n(&s->minted, gpu ? 1 : -1, __ATOMIC_SEQ_CST);
  for (;;) pause();
}

static struct coll_nccl_config config_of(struct rank *r) {
  return (struct coll_nccl_config){.rank = r->rank,
                                   .world = r->world,
                                   .round = (uint32_t)r->round,
                                   .ids = r->s->ids[r->round],
                                   .n_ids = IDS,
                                   .timeout_ms = r->timeout_ms,
                                   .stop_wait_ms = 500,
                                   .stop = &r->stop,
                                   .exchange = exchange,
                                   .exchange_ctx = r,
                                   .post = post,
                                   .peek = peek,
                                   .board_ctx = r};
}

static bool make_device(struct rank *r) {
  struct gpu_config cfg = {.device = 0, .precision = COMPUTE_FP32};
  struct err e = ERR_INIT;
  char id[32];
  snprintf(id, sizeof id, "rank-%d", r->rank);
  setenv("NCCL_HOSTID", id, 1);
  EXPECT((r->gpu = open_module()) != NULL);
  GOOD(r->gpu->compute_create(&cfg, &r->c, &e));
  return true;
}

static bool make_coll(struct rank *r) {
  struct coll_nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  GOOD(r->gpu->coll_create(&cfg, r->c, &r->l, &e));
  return true;
}

/* --------------------------------------------------------------- a step */

/* Buckets of uneven sizes from the top down, as gradients come. */
struct step {
  struct compute_buf *in, *grads, *out;
  size_t n, buckets;
};

static bool step_make(struct rank *r, struct step *p, size_t n, size_t buckets) {
  struct err e = ERR_INIT;
  *p = (struct step){.n = n, .buckets = buckets};
  GOOD(compute_alloc(r->c, COMPUTE_STAGE, n, &p->in, &e));
  GOOD(compute_alloc(r->c, COMPUTE_STAGE, n, &p->out, &e));
  GOOD(compute_alloc(r->c, COMPUTE_GRAD, n, &p->grads, &e));
  return true;
}

static void step_free(struct rank *r, struct step *p) {
  compute_free(r->c, p->in);
  compute_free(r->c, p->out);
  compute_free(r->c, p->grads);
}

static float value(int rank, size_t i, int turn) {
  return (float)((i * 7 + (size_t)turn * 31 + (size_t)rank * 13) % 1009);
}

static void step_fill(struct rank *r, struct step *p, int turn) {
  float *v = compute_host(r->c, (struct span){p->in, 0, p->n});
  for (size_t i = 0; i < p->n; i++) v[i] = value(r->rank, i, turn);
}

static int step_queue(struct rank *r, struct step *p, struct err *e) {
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

/* As the trainer waits: for the device, with an eye on the others. */
static int settle(struct rank *r, struct err *e) {
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

static bool step_right(struct rank *r, struct step *p, int turn) {
  const float *v = compute_host(r->c, (struct span){p->out, 0, p->n});
  for (size_t i = 0; i < p->n; i++) {
    float want = 0;
    for (int k = 0; k < r->world; k++) want += value(k, i, turn);
    if (v[i] != want) {
      fprintf(stderr, "rank %d, turn %d, element %zu: %g, not %g\n", r->rank, turn, i, (double)v[i],
              (double)want);
      return false;
    }
  }
  return true;
}

static bool steps(struct rank *r, struct step *p, int turns) {
  struct err e = ERR_INIT;
  for (int turn = 0; turn < turns; turn++) {
    step_fill(r, p, turn);
    GOOD(step_queue(r, p, &e));
    GOOD(settle(r, &e));
    EXPECT(step_right(r, p, turn));
  }
  return true;
}

/* ---------------------------------------------------------------- all well */

static bool sums_are_right(struct rank *r) {
  struct step p;
  EXPECT(step_make(r, &p, N, 3) && steps(r, &p, 4));
  step_free(r, &p);
  EXPECT(step_make(r, &p, 1, 1) && steps(r, &p, 2));
  step_free(r, &p);
  return true;
}

static bool more_buckets_than_tickets(struct rank *r) {
  struct step p;
  EXPECT(step_make(r, &p, N, 45) && steps(r, &p, 2));
  step_free(r, &p);
  return true;
}

static bool registered_memory_is_summed_too(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 2));
  GOOD(coll_register(r->l, r->c, p.grads, &e));
  EXPECT(steps(r, &p, 3));
  coll_destroy(r->l); /* before the memory goes */
  r->l = NULL;
  step_free(r, &p);
  return true;
}

static bool the_hosts_bytes(struct rank *r) {
  static uint8_t bytes[3 * (1 << 20) + 7];
  struct err e = ERR_INIT;
  double v[COLL_SUM_MAX];
  for (int root = 0; root < r->world; root++) {
    for (size_t i = 0; i < sizeof bytes; i++)
      bytes[i] = r->rank == root ? (uint8_t)(i * 31 + (size_t)root) : 0;
    GOOD(coll_broadcast(r->l, bytes, sizeof bytes, root, &e));
    for (size_t i = 0; i < sizeof bytes; i++) EXPECT(bytes[i] == (uint8_t)(i * 31 + (size_t)root));
  }
  for (int i = 0; i < COLL_SUM_MAX; i++) v[i] = i * 0.25 + r->rank;
  GOOD(coll_sum(r->l, v, COLL_SUM_MAX, &e));
  for (int i = 0; i < COLL_SUM_MAX; i++)
    EXPECT(v[i] == i * 0.25 * r->world + r->world * (r->world - 1) / 2.0);
  GOOD(coll_barrier(r->l, &e));
  EXPECT(coll_sum(r->l, v, COLL_SUM_MAX + 1, &e) == -EINVAL);
  EXPECT(coll_broadcast(r->l, bytes, 1, r->world, &e) == -EINVAL);
  EXPECT(coll_wait(r->l, (struct coll_ticket){99}, &e) == -EINVAL);
  GOOD(coll_barrier(r->l, &e)); /* none of that was a failure */
  return true;
}

static bool capture(struct rank *r, struct step *p, struct compute_graph **g) {
  struct err e = ERR_INIT;
  EXPECT(compute_can_capture(r->c) && steps(r, p, 1)); /* once without */
  GOOD(compute_capture_begin(r->c, &e));
  GOOD(step_queue(r, p, &e));
  EXPECT(coll_barrier(r->l, &e) == -EINVAL); /* cannot be captured, and does no harm */
  GOOD(compute_capture_end(r->c, g, &e));
  return true;
}

static bool captured_steps(struct rank *r) {
  struct step p;
  struct compute_graph *g = NULL;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 3) && capture(r, &p, &g));
  for (int turn = 1; turn < 6; turn++) {
    step_fill(r, &p, turn);
    GOOD(compute_launch(r->c, g, &e));
    GOOD(settle(r, &e));
    EXPECT(step_right(r, &p, turn));
    GOOD(coll_barrier(r->l, &e));
    if (turn == 3) EXPECT(steps(r, &p, 1)); /* both kinds, mixed */
  }
  compute_graph_destroy(r->c, g);
  step_free(r, &p);
  return true;
}

/* ---------------------------------------------------------------- failures */

/* The call failed, named whom it should, and from now on everything gives the same answer at once. */
static bool failed_for_good(struct rank *r, int lost, const char *words, const struct err *e) {
  struct err again = ERR_INIT;
  struct coll_ticket t;
  struct compute_buf *b;
  double one = 1;
  if (!strstr(e->text, words)) fprintf(stderr, "rank %d: '%s' is not in: %s\n", r->rank, words, e->text);
  EXPECT(e->code < 0 && strstr(e->text, words));
  if (r->l->lost != lost)
    fprintf(stderr, "rank %d: lost is %d, not %d: %s\n", r->rank, r->l->lost, lost, e->text);
  EXPECT(r->l->lost == lost);
  uint64_t from = monotonic_ms();
  EXPECT(compute_alloc(r->c, COMPUTE_GRAD, 8, &b, &again) == 0);
  EXPECT(coll_progress(r->l, &again) == e->code && strcmp(again.text, e->text) == 0);
  EXPECT(coll_sum(r->l, &one, 1, &again) == e->code && strcmp(again.text, e->text) == 0);
  EXPECT(coll_all_reduce_begin(r->l, r->c, (struct span){b, 0, 8}, &t, &again) == e->code);
  coll_abort(r->l, "nobody hears this");
  EXPECT(coll_progress(r->l, &again) == e->code && strcmp(again.text, e->text) == 0);
  EXPECT(monotonic_ms() - from < 1000);
  compute_free(r->c, b);
  return true;
}

/* The device is well, though a communicator of it is gone. */
static bool device_lives(struct rank *r) {
  struct compute_buf *b;
  struct compute_mark m;
  struct err e = ERR_INIT;
  compute_poison(r->c, false);
  GOOD(compute_alloc(r->c, COMPUTE_STAGE, 4, &b, &e));
  GOOD(compute_fill(r->c, (struct span){b, 0, 4}, 3, &e));
  GOOD(compute_record(r->c, &m, &e));
  GOOD(compute_wait(r->c, m, 10000, &e));
  EXPECT(compute_host(r->c, (struct span){b, 0, 4})[3] == 3);
  compute_free(r->c, b);
  return true;
}

static bool leaves_soon(struct rank *r) {
  uint64_t from = monotonic_ms();
  coll_destroy(r->l);
  r->l = NULL;
  EXPECT(monotonic_ms() - from < 5000);
  return device_lives(r);
}

static int until_failure(struct rank *r, struct step *p, struct err *e) {
  int rc = 0;
  for (int turn = 0; rc == 0; turn++) {
    step_fill(r, p, turn);
    rc = step_queue(r, p, e);
    if (rc == 0) rc = settle(r, e);
  }
  return rc;
}

/* Somebody is killed in the middle; a part of the ranks sees a closed connection, the rest nothing at all. */
static bool a_killed_rank(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 3) && steps(r, &p, 2));
  if (r->rank == 2) kill(getpid(), SIGKILL);
  EXPECT(until_failure(r, &p, &e));
  EXPECT(strstr(e.text, "lost contact with rank 2: "));
  EXPECT(failed_for_good(r, 2, "rank 2 does not answer", &e) && leaves_soon(r));
  step_free(r, &p);
  return true;
}

static bool a_silent_rank(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 3) && steps(r, &p, 2));
  if (r->rank == 0) {
    await_flag(r, 1), await_flag(r, 2); /* it does not come to the third */
    step_free(r, &p);
    return true;
  }
  uint64_t from = monotonic_ms();
  EXPECT(until_failure(r, &p, &e) == -ETIMEDOUT);
  EXPECT(monotonic_ms() - from > TIMEOUT_MS - 100 && monotonic_ms() - from < TIMEOUT_MS + 4000);
  EXPECT(
      strstr(e.text,
             "lost contact with rank 0: all-reduce of bucket 0 (elements 3333..5000) was not done after 2."));
  EXPECT(failed_for_good(r, 0, "rank 0 does not answer", &e));
  set_flag(r, r->rank);
  EXPECT(leaves_soon(r));
  step_free(r, &p);
  return true;
}

/* The bucket is told of a captured step too, of whose launches no call tells the collectives. */
static bool a_silent_rank_in_a_captured_step(struct rank *r) {
  struct step p;
  struct compute_graph *g = NULL;
  struct err e = ERR_INIT;
  int rc = 0;
  EXPECT(step_make(r, &p, N, 2) && capture(r, &p, &g));
  for (int turn = 1; turn < 4; turn++) {
    GOOD(compute_launch(r->c, g, &e));
    GOOD(settle(r, &e));
  }
  if (r->rank == 1)
    await_flag(r, 0);
  else {
    rc = compute_launch(r->c, g, &e);
    if (rc == 0) rc = settle(r, &e);
    EXPECT(rc == -ETIMEDOUT && strstr(e.text, "all-reduce of bucket 0 (elements 2500..5000)"));
    EXPECT(failed_for_good(r, 1, "rank 1 does not answer", &e));
    set_flag(r, 0);
  }
  coll_abort(r->l, "the end of the test");
  compute_graph_destroy(r->c, g);
  EXPECT(leaves_soon(r));
  step_free(r, &p);
  return true;
}

static bool a_rank_that_gives_up(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 1) && steps(r, &p, 1));
  if (r->rank == 1) {
    coll_abort(r->l, "no space left on device");
    EXPECT(coll_progress(r->l, &e) == -ECONNABORTED &&
           strstr(e.text, "rank 1 gave up: no space left on device"));
  } else {
    EXPECT(until_failure(r, &p, &e));
    EXPECT(failed_for_good(r, 1, "rank 1 gave up: no space left on device", &e));
  }
  EXPECT(leaves_soon(r));
  step_free(r, &p);
  return true;
}

/* The survivors of a death build anew, on the same device, with other ids. */
static bool survivors_build_anew(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 3) && steps(r, &p, 2));
  if (r->rank == 2) kill(getpid(), SIGKILL);
  EXPECT(until_failure(r, &p, &e));
  EXPECT(leaves_soon(r));
  r->round = 1;
  r->world = 2;
  EXPECT(make_coll(r) && steps(r, &p, 3));
  step_free(r, &p);
  return true;
}

static bool told_to_stop_it_waits_less(struct rank *r) {
  struct step p;
  struct err e = ERR_INIT;
  EXPECT(step_make(r, &p, N, 1) && steps(r, &p, 1));
  if (r->rank == 0) {
    await_flag(r, 1);
    step_free(r, &p);
    return true;
  }
  r->stop = 1;
  uint64_t from = monotonic_ms();
  EXPECT(until_failure(r, &p, &e) == -ETIMEDOUT);
  EXPECT(monotonic_ms() - from < 5000);
  set_flag(r, 1);
  step_free(r, &p);
  return true;
}

/* ---------------------------------------------------------------- coming up */

static bool who_does_not_come_is_named(struct rank *r) {
  struct coll_nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  uint8_t all[WORLD_MAX * CARD_MAX], card[16] = {0};
  if (r->rank == 2) { /* it meets the others, and then never comes */
    cfg.exchange = NULL;
    while (r->s->come[0] < 2) nap(1);
    memcpy(card, r->s->cards[0][0], sizeof card);
    GOOD(exchange(r, "coll_nccl", card, sizeof card, all, LONG_MS, &e));
    await_flag(r, 0), await_flag(r, 1);
    return true;
  }
  uint64_t from = monotonic_ms();
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -ETIMEDOUT);
  EXPECT(strstr(e.text, "lost contact with rank 2: the making of a communicator was not done after 2."));
  EXPECT(strstr(e.text, "rank 2 does not answer"));
  EXPECT(monotonic_ms() - from < TIMEOUT_MS + 8000);
  set_flag(r, r->rank);
  return device_lives(r);
}

static bool told_to_stop_while_it_comes_up(struct rank *r) {
  struct coll_nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  cfg.world = 2; /* the other one never comes */
  cfg.exchange = NULL;
  r->stop = 1;
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -ECANCELED && strstr(e.text, "told to stop"));
  return device_lives(r);
}

static bool what_differs_is_a_sentence(struct rank *r) {
  struct coll_nccl_config cfg = config_of(r);
  struct err e = ERR_INIT;
  char want[64];
  int v = r->gpu->nccl_version();
  cfg.ids_version = v + 100;
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -EPROTO);
  snprintf(want, sizeof want, "minted by NCCL %d.%d.%d", v / 10000, v / 100 % 100 + 1, v % 100);
  EXPECT(strstr(e.text, want));
  cfg.ids_version = v;
  if (r->rank == 1) cfg.n_ids = 1; /* not the same ids */
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -EPROTO &&
         strstr(e.text, "other ncclUniqueIds than rank"));
  cfg.n_ids = 0;
  EXPECT(r->gpu->coll_create(&cfg, r->c, &r->l, &e) == -EINVAL);
  return true;
}

/* ------------------------------------------------------------------- worlds */

static const struct test tests[] = {
    {"sums_are_right", 3, LONG_MS, sums_are_right, false, -1},
    {"alone", 1, LONG_MS, sums_are_right, false, -1},
    {"more_buckets_than_tickets", 2, LONG_MS, more_buckets_than_tickets, false, -1},
    {"registered_memory", 2, LONG_MS, registered_memory_is_summed_too, false, -1},
    {"the_hosts_bytes", 3, LONG_MS, the_hosts_bytes, false, -1},
    {"captured_steps", 3, LONG_MS, captured_steps, false, -1},
    {"a_killed_rank", 4, TIMEOUT_MS, a_killed_rank, false, 2},
    {"a_silent_rank", 3, TIMEOUT_MS, a_silent_rank, false, -1},
    {"a_silent_rank_in_a_captured_step", 2, TIMEOUT_MS, a_silent_rank_in_a_captured_step, false, -1},
    {"a_rank_that_gives_up", 3, TIMEOUT_MS, a_rank_that_gives_up, false, -1},
    {"survivors_build_anew", 3, TIMEOUT_MS, survivors_build_anew, false, 2},
    {"told_to_stop_it_waits_less", 2, LONG_MS, told_to_stop_it_waits_less, false, -1},
    {"who_does_not_come_is_named", 3, TIMEOUT_MS, who_does_not_come_is_named, true, -1},
    {"told_to_stop_while_it_comes_up", 1, LONG_MS, told_to_stop_while_it_comes_up, true, -1},
    {"what_differs_is_a_sentence", 2, LONG_MS, what_differs_is_a_sentence, true, -1},
};

static void child(const struct test *t, struct shared *s, int rank) {
  struct rank r = {.rank = rank, .world = t->world, .s = s, .timeout_ms = t->timeout_ms};
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  alarm(PATIENCE_S);
  bool ok = make_device(&r) && (t->bare || make_coll(&r)) && t->run(&r);
  coll_destroy(r.l);
  compute_destroy(r.c);
  exit(ok ? 0 : 1);
}

static bool run(const struct test *t) {
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
    mint(s);
  }
  while (!__atomic_load_n(&s->minted, __ATOMIC_SEQ_CST) && waitpid(minter, NULL, WNOHANG) == 0) nap(1);
  for (int i = 0; i < t->world; i++)
    if ((pids[i] = fork()) == 0) child(t, s, i);
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

int main(int argc, char **argv) {
  const char *only = NULL;
  int failed = 0;
  module_file = getenv("RDZV_CUDA_MODULE");
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--cuda-module") == 0) module_file = argv[i + 1];
    if (strcmp(argv[i], "--only") == 0) only = argv[i + 1];
  }
  if (!module_file) return fprintf(stderr, "no --cuda-module: skipped\n"), SKIPPED;
  for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
    if (only && strcmp(only, tests[i].name) != 0) continue;
    uint64_t from = monotonic_ms();
    bool ok = run(&tests[i]);
    printf("%s  %-34s %6llu ms\n", ok ? "ok    " : "FAILED", tests[i].name,
           (unsigned long long)(monotonic_ms() - from));
    fflush(stdout);
    failed += !ok;
  }
  return failed ? 1 : 0;
}
