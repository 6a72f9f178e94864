/* SPDX-License-Identifier: Apache-2.0 */
/* coll/tcp.c: worlds of real processes on loopback. Sums against plain sums for odd sizes, with the same
 * bytes everywhere, every time and on both transports; ranks that die, fall silent, give up or leave; and strangers.
 * Every test runs twice: with the ring alone, and with a registered buffer that all ranks share.
 *
 * A world is forked, and its ranks exchange through shared memory instead of an agent. A rank's function returns
 * whether everything was right. */

#include "agent/trainer/coll/coll.h"

#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "agent/trainer/coll/ring_op.h"
#include "agent/trainer/rng.h"
#include "common/buf.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "tests/rig/unit.h"

/* A rank that is silent is found by the deadline, SILENT_MS. For whatever else goes wrong ranks need no deadline:
 * theirs is far away, PATIENT_MS, and they notice SOON. */
enum { WORLD_MAX = 6, CARD_MAX = 256, BIG = 1000003, SILENT_MS = 2000, PATIENT_MS = 60000, SOON_MS = 30000 };

struct meeting {
  pthread_barrier_t barrier;
  uint8_t cards[WORLD_MAX][CARD_MAX];
  volatile int asked; /* what every rank's agent answers */
};

struct rank {
  int rank, world, arg;
  uint64_t timeout_ms;
  struct meeting *meeting;
  struct coll *l;
  struct compute *c;
  uint64_t leave_ms;             /* when rank 0's agent asks it to leave; 0: never */
  int (*before)(struct rank *r); /* strangers: after the cards are exchanged, before the ring forms */
};

typedef bool (*rank_fn)(struct rank *r);

#define EXPECT(cond)                                                                                                   \
  do {                                                                                                                 \
    if (!(cond)) {                                                                                                     \
      fprintf(stderr, "rank %d of %d: line %d: %s\n", r->rank, r->world, __LINE__, #cond);                             \
      return false;                                                                                                    \
    }                                                                                                                  \
  } while (0)

static int exchange(void *ctx, const char *key, const void *mine, size_t size, void *all, int timeout_ms,
                    struct err *e) {
  struct rank *r = ctx;
  if (size > CARD_MAX || strcmp(key, "coll_tcp") != 0) return err_set(e, -EINVAL, "strange exchange");
  memcpy(r->meeting->cards[r->rank], mine, size);
  pthread_barrier_wait(&r->meeting->barrier);
  for (int i = 0; i < r->world; i++) memcpy((uint8_t *)all + (size_t)i * size, r->meeting->cards[i], size);
  return r->before ? r->before(r) : 0;
}

/* All agents ask their ranks to leave, or that of rank 0 alone, once the test has said so. */
static int asked(void *ctx, struct err *e) {
  struct rank *r = ctx;
  bool now = r->rank == 0 && r->leave_ms && monotonic_ms() >= r->leave_ms;
  return r->meeting->asked || now ? err_set(e, -ECANCELED, "the agent ends this round") : 0;
}

static bool join(struct rank *r) {
  struct coll_config cfg = {.rank = r->rank,
                            .world = r->world,
                            .round = 3,
                            .node_addr = "127.0.0.1",
                            .timeout_ms = r->timeout_ms,
                            .exchange = exchange,
                            .exchange_ctx = r,
                            .asked = asked,
                            .asked_ctx = r};
  struct err e = ERR_INIT;
  r->c = compute_cpu_create(COMPUTE_FP32);
  if (r->world == 1)
    r->l = coll_local_create();
  else if (coll_tcp_create(&cfg, &r->l, &e))
    fprintf(stderr, "rank %d: %s\n", r->rank, e.text);
  return r->l != NULL;
}

static void run_rank(struct rank r, rank_fn fn) {
  alarm(PATIENT_MS / 1000);
  bool ok = join(&r) && fn(&r);
  coll_destroy(r.l);
  compute_destroy(r.c);
  exit(ok ? 0 : 1);
}

static struct meeting *make_meeting(int world) {
  struct meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t attr;
  pthread_barrierattr_init(&attr);
  pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&m->barrier, &attr, (unsigned)world);
  pthread_barrierattr_destroy(&attr);
  return m;
}

/* what: of each rank. odd: a rank that may fail (-1: none). It may also have stopped itself, and is killed when the
 * others are done. */
static void run_world_with(struct rank what, rank_fn fn, int odd) {
  int world = what.world;
  pid_t pid[WORLD_MAX];
  struct meeting *m = what.meeting = make_meeting(world);
  if (!what.timeout_ms) what.timeout_ms = PATIENT_MS;
  fflush(NULL);
  for (what.rank = 0; what.rank < world; what.rank++) {
    pid[what.rank] = fork();
    if (pid[what.rank] == 0) run_rank(what, fn);
  }
  int bad = -1, status = 0;
  for (int i = 0; i < world; i++)
    if (i != odd && (waitpid(pid[i], &status, 0) < 0 || status != 0)) bad = i;
  if (odd >= 0) {
    kill(pid[odd], SIGKILL);
    waitpid(pid[odd], &status, 0);
  }
  munmap(m, sizeof *m);
  if (bad >= 0) fail_msg("world %d: rank %d failed", world, bad);
}

static void run_world(int world, rank_fn fn, int arg) {
  run_world_with((struct rank){.world = world, .arg = arg}, fn, -1);
}

/* Rank `odd` is one that may fail. */
static void run_odd(int world, rank_fn fn, int odd) {
  run_world_with((struct rank){.world = world, .arg = odd}, fn, odd);
}

static struct span span_of_all(struct compute_buf *b, size_t n) {
  return (struct span){b, 0, n};
}

static float value(int rank, size_t i) {
  return 2.0f * rng_unit(1, RNG_SAMPLER, (uint64_t)rank * 10000019 + i) - 1.0f;
}

static float *fill(struct rank *r, struct compute_buf *b, size_t n) {
  float *x = compute_host(r->c, span_of_all(b, n));
  for (size_t i = 0; i < n; i++) x[i] = value(r->rank, i);
  return x;
}

static bool sum_once(struct rank *r, struct compute_buf *b, size_t n) {
  struct coll_ticket t;
  struct err e = ERR_INIT;
  fill(r, b, n);
  EXPECT(coll_all_reduce_begin(r->l, r->c, span_of_all(b, n), &t, &e) == 0);
  EXPECT(coll_wait(r->l, t, &e) == 0);
  return true;
}

/* Against the plain sum; equal to rank 0's bytes; equal on a second run. */
static bool check_sums(struct rank *r) {
  size_t n = (size_t)r->arg;
  struct err e = ERR_INIT;
  struct compute_buf *b;
  compute_alloc(r->c, COMPUTE_GRAD, n + 1, &b, NULL);
  float *x = compute_host(r->c, span_of_all(b, n + 1));
  x[n] = 12345.0f; /* must stay */
  EXPECT(sum_once(r, b, n));
  for (size_t i = 0; i < n; i++) {
    double want = 0;
    for (int k = 0; k < r->world; k++) want += (double)value(k, i);
    EXPECT(fabs((double)x[i] - want) <= 1e-6 * r->world);
  }
  EXPECT(x[n] == 12345.0f);
  float *roots = xmemdup(x, n * sizeof *x), *mine = xmemdup(x, n * sizeof *x);
  EXPECT(coll_broadcast(r->l, roots, n * sizeof *x, 0, &e) == 0);
  EXPECT(memcmp(roots, x, n * sizeof *x) == 0);
  EXPECT(sum_once(r, b, n));
  EXPECT(memcmp(mine, x, n * sizeof *x) == 0);
  struct compute_buf *other; /* not registered: the ring sums it */
  compute_alloc(r->c, COMPUTE_GRAD, n + 1, &other, &e);
  EXPECT(sum_once(r, other, n));
  EXPECT(memcmp(mine, compute_host(r->c, span_of_all(other, n + 1)), n * sizeof *x) == 0);
  compute_free(r->c, other);
  free(roots);
  free(mine);
  compute_free(r->c, b);
  return true;
}

UNIT_TEST(test_sums_of_odd_sizes) {
  static const int sizes[] = {0, 1, 2, 3, 4, 5, 7, 64, 1023, 65537, BIG};
  for (int world = 1; world <= 5; world++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) run_world(world, check_sums, sizes[i]);
}

/* Many at once, of all kinds, with other work in between. */
static bool check_many(struct rank *r) {
  enum { N = 3 * COLL_TICKETS_MAX, EACH = 1000 };
  struct coll_ticket t[N];
  struct err e = ERR_INIT;
  struct compute_buf *b;
  compute_alloc(r->c, COMPUTE_GRAD, N * EACH, &b, NULL);
  float *x = fill(r, b, N * EACH);
  for (size_t k = 0; k < N; k++) {
    EXPECT(coll_all_reduce_begin(r->l, r->c, (struct span){b, k * EACH, EACH - k}, &t[k], &e) == 0);
    EXPECT(coll_progress(r->l, &e) == 0);
  }
  double v[3] = {r->rank, 1, 0.5};
  EXPECT(coll_sum(r->l, v, 3, &e) == 0);
  EXPECT(v[0] == 0.5 * r->world * (r->world - 1) && v[1] == r->world && v[2] == 0.5 * r->world);
  for (size_t k = N; k-- > 0;) EXPECT(coll_wait(r->l, t[k], &e) == 0);
  for (size_t i = 0; i < N * EACH; i++) {
    double want = 0;
    for (int q = 0; q < r->world; q++) want += (double)value(q, i);
    if (i % EACH >= EACH - i / EACH) want = (double)value(r->rank, i); /* outside the spans: untouched */
    EXPECT(fabs((double)x[i] - want) < 1e-5);
  }
  EXPECT(coll_sum(r->l, v, COLL_SUM_MAX + 1, &e) == -EINVAL);
  EXPECT(coll_barrier(r->l, &e) == 0);
  compute_free(r->c, b);
  return true;
}

UNIT_TEST(test_many_under_way) {
  for (int world = 1; world <= 5; world++) run_world(world, check_many, 0);
}

static bool check_broadcast(struct rank *r) {
  static const size_t sizes[] = {0, 1, 5, 300000, BIG};
  SCOPED(unit_free) uint8_t *x = malloc(BIG);
  struct err e = ERR_INIT;
  for (int root = 0; root < r->world; root++)
    for (int k = 0; k < 5; k++) {
      memset(x, r->rank == root ? 100 + root : 0, BIG);
      EXPECT(coll_broadcast(r->l, x, sizes[k], root, &e) == 0);
      for (size_t i = 0; i < sizes[k]; i++) EXPECT(x[i] == 100 + root);
    }
  return true;
}

UNIT_TEST(test_broadcast_from_every_root) {
  for (int world = 1; world <= 5; world++) run_world(world, check_broadcast, 0);
}

/* Works until the ring fails, which must be soon and because of rank `arg`. */
static bool expect_loss(struct rank *r, int code, const char *words) {
  struct err e = ERR_INIT;
  struct compute_buf *b;
  int rc = 0;
  compute_alloc(r->c, COMPUTE_GRAD, BIG, &b, NULL);
  uint64_t from = monotonic_ms();
  while (rc == 0 && monotonic_ms() - from < SOON_MS) {
    struct coll_ticket t;
    rc = coll_all_reduce_begin(r->l, r->c, span_of_all(b, BIG), &t, &e);
    if (rc == 0) rc = coll_wait(r->l, t, &e);
  }
  uint64_t took = monotonic_ms() - from;
  EXPECT(rc == -ECONNABORTED || rc == code);
  if (r->l->lost != r->arg || !strstr(e.text, words)) fprintf(stderr, "rank %d: %d: %s\n", r->rank, r->l->lost, e.text);
  EXPECT(r->l->lost == r->arg);
  EXPECT(strstr(e.text, words) != NULL);
  EXPECT(took < SOON_MS);
  EXPECT(coll_barrier(r->l, NULL) == rc); /* and it stays so */
  compute_free(r->c, b);
  return true;
}

/* Dies in the middle: its part of the sum has started. */
static bool one_dies(struct rank *r) {
  if (r->rank != r->arg) return expect_loss(r, -ECONNRESET, "lost contact with rank");
  struct coll_ticket t;
  struct compute_buf *b;
  struct err e = ERR_INIT;
  compute_alloc(r->c, COMPUTE_GRAD, BIG, &b, NULL);
  for (int i = 0; i < 3; i++) coll_all_reduce_begin(r->l, r->c, span_of_all(b, BIG), &t, &e);
  kill(getpid(), SIGKILL);
  return false;
}

static bool one_dies_at_rest(struct rank *r) {
  if (r->rank == r->arg) kill(getpid(), SIGKILL);
  return expect_loss(r, -ECONNRESET, "lost contact with rank");
}

UNIT_TEST(test_a_rank_that_dies_is_named_by_all) {
  for (int world = 2; world <= 5; world++) {
    run_odd(world, one_dies, world - 1);
    run_odd(world, one_dies_at_rest, 0);
  }
}

static bool one_is_silent(struct rank *r) {
  if (r->rank == r->arg) kill(getpid(), SIGSTOP);
  return expect_loss(r, -ETIMEDOUT, "sent nothing for");
}

UNIT_TEST(test_a_rank_that_is_silent_is_named_by_all) {
  static const int worlds[] = {2, 3, 5};
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
    struct rank what = {.world = worlds[i], .arg = worlds[i] / 2, .timeout_ms = SILENT_MS};
    run_world_with(what, one_is_silent, what.arg);
  }
}

/* A rank hangs, and the agents ask the others to leave: they do, at once. The first one to ask tells the others. */
static bool one_hangs_and_all_are_asked(struct rank *r) {
  struct err e = ERR_INIT;
  struct coll_ticket t;
  struct compute_buf *b;
  compute_alloc(r->c, COMPUTE_GRAD, 1000, &b, NULL);
  EXPECT(sum_once(r, b, 1000));
  pthread_barrier_wait(&r->meeting->barrier);
  if (r->rank == r->arg) kill(getpid(), SIGSTOP);
  uint64_t from = monotonic_ms();
  int rc = coll_all_reduce_begin(r->l, r->c, span_of_all(b, 1000), &t, &e); /* another rank may be asked already */
  r->meeting->asked = -ECANCELED;
  if (rc == 0) rc = coll_wait(r->l, t, &e);
  EXPECT(rc == -ECANCELED || rc == -ECONNABORTED);
  EXPECT(r->l->lost == -1 || rc == -ECONNABORTED);
  EXPECT(strstr(e.text, "the agent ends this round") != NULL);
  EXPECT(monotonic_ms() - from < SOON_MS);
  compute_free(r->c, b);
  return true;
}

UNIT_TEST(test_a_rank_that_is_asked_leaves_at_once) {
  for (int world = 2; world <= 5; world++) run_odd(world, one_hangs_and_all_are_asked, 1);
}

static bool one_gives_up(struct rank *r) {
  if (r->rank != r->arg) return expect_loss(r, -ECONNABORTED, "rank 1 gave up: the disk is f?ll");
  coll_abort(r->l, "the disk is f\x1bll");
  return true;
}

UNIT_TEST(test_words_of_who_gives_up_reach_all) {
  for (int world = 2; world <= 5; world++) run_world(world, one_gives_up, 1);
}

static bool one_leaves(struct rank *r) {
  if (r->rank == r->arg) return true; /* destroyed in good order, too early */
  return expect_loss(r, -ECONNRESET, "has left the run already");
}

UNIT_TEST(test_a_rank_that_leaves_early_is_named) {
  for (int world = 2; world <= 4; world++) run_world(world, one_leaves, 0);
}

/* All have finished the last collective, but not at the same time; nobody may take a leaving rank for a failed one. */
static bool leave_at_once(struct rank *r) {
  struct err e = ERR_INIT;
  double v = 1;
  struct compute_buf *b;
  compute_alloc(r->c, COMPUTE_GRAD, 100, &b, NULL);
  for (int i = 0; i < 20; i++) EXPECT(coll_sum(r->l, &v, 1, &e) == 0);
  for (int i = 0; i < 20; i++) EXPECT(sum_once(r, b, 100));
  compute_free(r->c, b);
  return true;
}

UNIT_TEST(test_leaving_in_good_order) {
  for (int i = 0; i < 10; i++) run_world(5, leave_at_once, 0);
}

/* Ranks with different sizes: an error on all, not a hang and not a wrong sum. */
static bool sizes_differ(struct rank *r) {
  struct coll_ticket t = {0};
  struct err e = ERR_INIT;
  struct compute_buf *b;
  compute_alloc(r->c, COMPUTE_GRAD, BIG, &b, NULL);
  size_t n = r->rank == 0 ? 1000 : 2000;
  int rc = coll_all_reduce_begin(r->l, r->c, span_of_all(b, n), &t, &e);
  if (rc == 0) rc = coll_wait(r->l, t, &e);
  if (rc == 0) rc = coll_barrier(r->l, &e);
  EXPECT(rc < 0 && e.text[0]);
  compute_free(r->c, b);
  return true;
}

UNIT_TEST(test_sizes_that_differ) {
  for (int world = 2; world <= 4; world++) run_world(world, sizes_differ, 0);
}

/* Connections to the next rank from strangers: silent, garbage, too short, right but for the secret. */
static int send_strangers(struct rank *r) {
  uint8_t *card = r->meeting->cards[(r->rank + 1) % r->world];
  for (int kind = 0; kind < 5; kind++) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(le16_get(card + 64)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    uint8_t hello[40] = "RDZVRING";
    le32_put(hello + 8, 1);
    le32_put(hello + 12, (uint32_t)r->rank);
    le32_put(hello + 16, (uint32_t)r->world);
    le32_put(hello + 20, 3);
    memcpy(hello + 24, card + 66, 16);
    hello[39] ^= 1;
    if (kind == 1) snprintf((char *)hello, sizeof hello, "GET / HTTP/1.1\r\n\r\n");
    size_t n = kind == 0 ? 0 : kind == 2 ? 23 : kind == 3 ? 39 : 40;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); /* left open */
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0 || send(fd, hello, n, MSG_NOSIGNAL) != (ssize_t)n)
      return -EIO;
  }
  return 0;
}

/* Rank 1 hangs. Rank 0's agent knows it long before the deadline, and rank 0 tells the others. */
static bool check_asked(struct rank *r) {
  struct err e = ERR_INIT;
  double one = 1;
  EXPECT(coll_barrier(r->l, &e) == 0);
  if (r->rank == 1) {
    pthread_barrier_wait(&r->meeting->barrier);
    return true;
  }
  uint64_t from = monotonic_ms();
  r->leave_ms = from + 50;
  int rc = coll_sum(r->l, &one, 1, &e);
  EXPECT(monotonic_ms() - from < SOON_MS);
  EXPECT(rc == (r->rank == 0 ? -ECANCELED : -ECONNABORTED));
  EXPECT(strcmp(e.text, "rank 0 leaves: the agent ends this round") == 0);
  EXPECT(r->l->lost == (r->rank == 0 ? -1 : 0));
  EXPECT(coll_progress(r->l, &e) == rc);
  pthread_barrier_wait(&r->meeting->barrier);
  return true;
}

UNIT_TEST(test_the_agent_ends_a_wait) {
  for (int world = 2; world <= 4; world++) run_world(world, check_asked, 0);
}

/* Somebody listens at rank 1's place, and never answers. */
UNIT_TEST(test_the_agent_ends_the_forming) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof at;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(bind(fd, (struct sockaddr *)&at, len) == 0 && listen(fd, 4) == 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
  struct coll *l = NULL;
  struct err e = ERR_INIT;
  uint64_t from = monotonic_ms();
  struct rank r = {.rank = 0, .world = 2, .meeting = make_meeting(1), .leave_ms = from + 50};
  struct coll_config cfg = {.rank = 0,
                            .world = 2,
                            .node_addr = "127.0.0.1",
                            .timeout_ms = PATIENT_MS,
                            .exchange = exchange,
                            .exchange_ctx = &r,
                            .asked = asked,
                            .asked_ctx = &r};
  snprintf((char *)r.meeting->cards[1], 64, "127.0.0.1");
  le16_put(r.meeting->cards[1] + 64, ntohs(at.sin_port));
  assert_int_equal(coll_tcp_create(&cfg, &l, &e), -ECANCELED);
  assert_string_equal(e.text, "the agent ends this round");
  assert_true(monotonic_ms() - from < SOON_MS);
  munmap(r.meeting, sizeof *r.meeting);
  close(fd);
}

UNIT_TEST(test_strangers_are_not_let_in) {
  for (int world = 2; world <= 4; world++)
    run_world_with((struct rank){.world = world, .before = send_strangers}, check_many, -1);
}

UNIT_TEST(test_neighbours_that_are_not_there) {
  struct coll *l = NULL;
  struct err e = ERR_INIT;
  struct meeting *m = make_meeting(1);
  struct rank r = {.rank = 0, .world = 2, .meeting = m};
  struct coll_config cfg = {
      .rank = 0, .world = 2, .node_addr = "localhost", .timeout_ms = 300, .exchange = exchange, .exchange_ctx = &r};
  assert_int_equal(coll_tcp_create(&cfg, &l, &e), -EINVAL);
  assert_non_null(strstr(e.text, "localhost"));
  cfg.node_addr = "127.0.0.1"; /* rank 1's card is empty: there is no such address */
  assert_true(coll_tcp_create(&cfg, &l, &e) < 0);
  assert_non_null(strstr(e.text, "rank 1"));
  snprintf((char *)m->cards[1], 64, "127.0.0.1");
  le16_put(m->cards[1] + 64, 1); /* nobody listens there */
  assert_int_equal(coll_tcp_create(&cfg, &l, &e), -ECONNREFUSED);
  assert_non_null(strstr(e.text, "rank 1 at 127.0.0.1 port 1"));
  munmap(m, sizeof *m);
}

/* Only the arithmetic: for any size and world, the next rank receives what one sends, and no rank sends more than 2
 * (w-1)/w of the array (and a remainder). */
UNIT_TEST(test_streams_fit) {
  float none[1];
  for (int world = 2; world <= 17; world++)
    for (size_t n = 0; n < 60; n++)
      for (int rank = 0; rank < world; rank++) {
        struct ring_op a = ring_all_reduce(none, n, RING_F32, rank, world);
        struct ring_op b = ring_all_reduce(none, n, RING_F32, (rank + 1) % world, world);
        assert_int_equal(a.total_out, b.total_in);
        assert_true(a.total_out <= 4 * 2 * (size_t)(world - 1) * ((n + (size_t)world - 1) / (size_t)world));
        assert_true(a.lead + a.total_in >= a.total_out);
      }
}
