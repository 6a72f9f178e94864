/* SPDX-License-Identifier: Apache-2.0 */
/* The ring of coll/tcp.c for tests/bench/ring: a world of processes on loopback that meet through shared memory.
 *
 *     ring-ranks WORLD        then lines "BYTES TIMES" on stdin. Each is answered with two means over TIMES all-reduces
 *                             of that many bytes of floats in a row behind a barrier: the microseconds of the slowest
 *                             rank, and the CPU microseconds of all ranks
 *
 * Ranks sleep between two lines, so that a program that is measured in turn with them has the machine. Before the first
 * measurement a sum is checked. */

#include "agent/trainer/coll/coll.h"
#include "common/mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORLD_MAX = 16, CARD_MAX = 256, TIMEOUT_MS = 30000 };

struct meeting {
  pthread_barrier_t barrier; /* of the ranks and of the process that reads stdin */
  uint8_t cards[WORLD_MAX][CARD_MAX];
  size_t bytes;
  long times; /* 0: go */
  double us[WORLD_MAX], cpu_us[WORLD_MAX];
};

struct rank {
  int rank, world;
  struct meeting *meeting;
  struct coll *l;
  struct compute *c;
};

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double cpu_us(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void must(int rc, const struct rank *r, const struct err *e) {
  if (rc == 0) return;
  fprintf(stderr, "ring-ranks: rank %d: %s\n", r->rank, e->text);
  _exit(1);
}

static int exchange(void *ctx, const char *key, const void *mine, size_t size, void *all, int timeout_ms,
                    struct err *e) {
  struct rank *r = ctx;
  if (size > CARD_MAX) return err_set(e, -EMSGSIZE, "a card of %zu bytes", size);
  memcpy(r->meeting->cards[r->rank], mine, size);
  pthread_barrier_wait(&r->meeting->barrier);
  for (int i = 0; i < r->world; i++) memcpy((uint8_t *)all + (size_t)i * size, r->meeting->cards[i], size);
  return 0;
}

static void all_reduce(struct rank *r, struct compute_buf *b, size_t n) {
  struct coll_ticket t;
  struct err e = ERR_INIT;
  must(coll_all_reduce_begin(r->l, r->c, (struct span){b, 0, n}, &t, &e), r, &e);
  must(coll_wait(r->l, t, &e), r, &e);
}

static void check(struct rank *r, struct compute_buf *b, size_t n) {
  float *x = compute_host(r->c, (struct span){b, 0, n});
  for (size_t i = 0; i < n; i++) x[i] = (float)(r->rank + 1) * (float)(i % 1000);
  all_reduce(r, b, n);
  int ranks = r->world * (r->world + 1) / 2;
  for (size_t i = 0; i < n; i++) {
    float want = (float)ranks * (float)(i % 1000);
    if (x[i] == want) continue;
    fprintf(stderr, "ring-ranks: rank %d: element %zu of %zu is %g and not %g\n", r->rank, i, n, (double)x[i],
            (double)want);
    _exit(1);
  }
  memset(x, 0, n * sizeof *x);
}

static void measure(struct rank *r, size_t bytes, long times) {
  struct err e = ERR_INIT;
  struct compute_buf *b;
  size_t n = bytes / sizeof(float);
  must(compute_alloc(r->c, COMPUTE_GRAD, n, &b, &e), r, &e);
  check(r, b, n);
  must(coll_barrier(r->l, &e), r, &e);
  double from = now_us(), cpu_from = cpu_us();
  for (long i = 0; i < times; i++) all_reduce(r, b, n);
  r->meeting->us[r->rank] = (now_us() - from) / (double)times;
  r->meeting->cpu_us[r->rank] = (cpu_us() - cpu_from) / (double)times;
  compute_free(r->c, b);
}

static void run_rank(struct rank r) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct coll_config cfg = {.rank = r.rank,
                            .world = r.world,
                            .round = 1,
                            .node_addr = "127.0.0.1",
                            .timeout_ms = TIMEOUT_MS,
                            .exchange = exchange,
                            .exchange_ctx = &r};
  struct err e = ERR_INIT;
  r.c = compute_cpu_create(COMPUTE_FP32);
  must(coll_tcp_create(&cfg, &r.l, &e), &r, &e);
  for (;;) {
    pthread_barrier_wait(&r.meeting->barrier);
    if (r.meeting->times == 0) break;
    measure(&r, r.meeting->bytes, r.meeting->times);
    pthread_barrier_wait(&r.meeting->barrier);
  }
  coll_destroy(r.l);
  compute_destroy(r.c);
  _exit(0);
}

static struct meeting *make_meeting(int world) {
  struct meeting *m = mmap(NULL, sizeof *m, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (m == MAP_FAILED) abort();
  pthread_barrierattr_t attr;
  pthread_barrierattr_init(&attr);
  pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&m->barrier, &attr, (unsigned)world + 1);
  pthread_barrierattr_destroy(&attr);
  return m;
}

/* A failed rank would leave all others at the barrier. */
static void on_child(int signo) {
  int status;
  (void)signo;
  while (waitpid(-1, &status, WNOHANG) > 0)
    if (status != 0) _exit(1);
}

static void serve(struct meeting *m, int world) {
  char line[128];
  while (fgets(line, sizeof line, stdin)) {
    if (sscanf(line, "%zu %ld", &m->bytes, &m->times) != 2 || m->times < 1) {
      fprintf(stderr, "ring-ranks: BYTES TIMES is wanted, not %s", line);
      _exit(64);
    }
    double most = 0, cpu = 0;
    pthread_barrier_wait(&m->barrier);
    pthread_barrier_wait(&m->barrier);
    for (int i = 0; i < world; i++) {
      most = m->us[i] > most ? m->us[i] : most;
      cpu += m->cpu_us[i];
    }
    printf("%.3f %.3f\n", most, cpu);
    fflush(stdout);
  }
  m->times = 0;
  pthread_barrier_wait(&m->barrier);
}

int main(int argc, char **argv) {
  int world = argc == 2 ? atoi(argv[1]) : 0;
  if (world < 2 || world > WORLD_MAX) {
    fprintf(stderr, "usage: ring-ranks WORLD   (2 to %d)\n", WORLD_MAX);
    return 64;
  }
  struct meeting *m = make_meeting(world);
  struct sigaction a = {.sa_handler = on_child, .sa_flags = SA_RESTART};
  sigaction(SIGCHLD, &a, NULL);
  for (int i = 0; i < world; i++) {
    pid_t pid = fork();
    if (pid < 0) return 1;
    if (pid == 0) run_rank((struct rank){.rank = i, .world = world, .meeting = m});
  }
  pthread_barrier_wait(&m->barrier); /* of the cards */
  serve(m, world);
  return 0;
}
