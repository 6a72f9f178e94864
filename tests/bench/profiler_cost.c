/* SPDX-License-Identifier: Apache-2.0 */
/* What librdzv-nccl-profiler.so costs NCCL's threads, in ns of their CPU time:
 *
 *     profiler-cost LIBRARY [THREADS]
 *
 * Each line is the median of 21 runs of 20,000 rounds, without an agent. Each of THREADS threads has a communicator of its
 * own, as the GPUs of one process have, and the slowest thread counts. The calls are those of NCCL 2.28 and later, in its
 * order. A loop that calls an empty function is measured beside it and not taken off. */

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "agent/profiler/nccl_profiler.h"

enum { RUNS = 21, ROUNDS = 20000, THREADS_MAX = 64, CHANNELS = 24, STEPS = 8, GROUP_API = 1 << 8, COLL_API = 1 << 9 };

struct comm {
  _Alignas(128) void *context; /* no two threads share a line of the cache */
  void *coll;
  void (*run)(struct comm *c);
  pthread_barrier_t *gate;
  double ns;
};

static struct nccl_profiler *p;

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static ncclResult_t nothing(void *event) {
  return 0;
}

static ncclResult_t (*volatile empty)(void *event) = nothing;

static void run_empty(struct comm *c) {
  empty(NULL);
}

static void *start(struct comm *c, uint64_t type, void *parent, union nccl_profiler_detail of) {
  struct nccl_profiler_descr d = {.type = {.v5 = type}, .parentObj = parent, .of = of};
  void *h;
  p->startEvent(c->context, &h, &d);
  return h;
}

static void stop(void *h) {
  if (h) p->stopEvent(h);
}

#define NO_DETAIL ((union nccl_profiler_detail){.coll = {.name = NULL}})

/* The program's thread. */
static void run_enqueue(struct comm *c) {
  void *api = start(c, GROUP_API, NULL, NO_DETAIL), *call = start(c, COLL_API, api, NO_DETAIL);
  stop(call);
  stop(api);
  void *group = start(c, ncclProfileGroup, NULL, NO_DETAIL);
  c->coll = start(c, ncclProfileColl, call, NO_DETAIL);
  stop(c->coll);
  stop(group);
}

/* The thread that watches the GPU and the network. */
static void run_kernels(struct comm *c) {
  void *h[CHANNELS];
  for (uint64_t i = 0; i < CHANNELS; i++)
    h[i] = start(c, ncclProfileKernelCh, c->coll, (union nccl_profiler_detail){.kernelCh = {.pTimer = 1000000 + i}});
  for (uint64_t i = 0; i < CHANNELS; i++) {
    union nccl_profiler_state_args args = {.kernelCh = {2000000 + i}};
    if (h[i]) p->recordEventState(h[i], ncclProfilerKernelChStop, &args);
    stop(h[i]);
  }
}

/* So many sends of one channel, and as many receives. */
static void run_network(struct comm *c) {
  union nccl_profiler_detail of = {.proxyOp = {.pid = getpid(), .chunkSize = 1 << 19, .isSend = 1}};
  void *sends = start(c, ncclProfileProxyOp, c->coll, of);
  of.proxyOp.isSend = 0;
  void *receives = start(c, ncclProfileProxyOp, c->coll, of);
  for (int i = 0; i < STEPS; i++) {
    union nccl_profiler_state_args args = {.proxyStep = {1 << 19}};
    void *h = start(c, ncclProfileProxyStep, sends, NO_DETAIL);
    if (h) {
      p->recordEventState(h, 8, &args);
      p->recordEventState(h, 20, &args);
      p->recordEventState(h, ncclProfilerProxyStepSendWait, &args);
    }
    stop(h);
    stop(start(c, ncclProfileProxyStep, receives, NO_DETAIL));
  }
  stop(sends);
  stop(receives);
}

static void run_all(struct comm *c) {
  run_enqueue(c);
  run_kernels(c);
}

static void run_all_network(struct comm *c) {
  run_enqueue(c);
  run_network(c);
}

static void *run(void *arg) {
  struct comm *c = arg;
  pthread_barrier_wait(c->gate);
  double begin = now_ns();
  for (int i = 0; i < ROUNDS; i++) c->run(c);
  c->ns = (now_ns() - begin) / ROUNDS;
  return NULL;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double measure(struct comm *comms, int threads, void (*what)(struct comm *c)) {
  double v[RUNS];
  for (int r = 0; r < RUNS; r++) {
    pthread_t t[THREADS_MAX];
    pthread_barrier_t gate;
    pthread_barrier_init(&gate, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) {
      comms[i].run = what;
      comms[i].gate = &gate;
      pthread_create(&t[i], NULL, run, &comms[i]);
    }
    v[r] = 0;
    for (int i = 0; i < threads; i++) {
      pthread_join(t[i], NULL);
      if (comms[i].ns > v[r]) v[r] = comms[i].ns;
    }
    pthread_barrier_destroy(&gate);
  }
  qsort(v, RUNS, sizeof(*v), by_size);
  return v[RUNS / 2];
}

int main(int argc, char **argv) {
  static struct comm comms[THREADS_MAX];
  int mask = 0, threads = argc > 2 ? atoi(argv[2]) : 1;
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
  p = library ? dlsym(library, "ncclProfiler_v5") : NULL;
  if (!p || threads < 1 || threads > THREADS_MAX) {
    fprintf(stderr, "usage: profiler-cost LIBRARY (librdzv-nccl-profiler.so) [THREADS]\n");
    return 2;
  }
  unsetenv("RDZV_AGENT_SOCKET");
  for (int i = 0; i < threads; i++) p->init.v5(&comms[i].context, (uint64_t)i + 1, &mask, "bench", 1, 8, i, NULL);
  double none = measure(comms, threads, run_empty), enqueue = measure(comms, threads, run_enqueue);
  double all = measure(comms, threads, run_all), network = measure(comms, threads, run_all_network);
  printf("an empty call                                        %7.1f ns\n", none);
  printf("a collective is enqueued: the program's thread       %7.1f ns\n", enqueue);
  printf("its kernel, %d channels: the proxy's thread          %7.1f ns, %.1f each\n", CHANNELS, all - enqueue,
         (all - enqueue) / CHANNELS);
  printf("%d sends and %d receives of a channel, on average      %7.1f ns, %.1f for a send\n", STEPS, STEPS,
         network - enqueue, (network - enqueue) / STEPS);
  printf("both threads, in percent of a collective of 50 us    %7.2f %% and %.2f %%\n", enqueue / 500,
         (all - enqueue) / 500);
  for (int i = 0; i < threads; i++) p->finalize(comms[i].context);
  return 0;
}
