/* SPDX-License-Identifier: Apache-2.0 */
/* What librdzv-nccl-profiler.so costs NCCL's threads, in ns per event:
 *
 *     profiler-cost LIBRARY
 *
 * Each line is the median of 21 runs of 200,000 events, without an agent. A loop that calls an empty function is measured
 * beside it and not taken off. */

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "agent/profiler/nccl_profiler.h"

enum { RUNS = 21, EVENTS = 200000 };

static struct ncclProfiler_v5 *p;
static void *context;
static struct nccl_profiler_descr_v5 coll, kernel, proxy, step;
static union nccl_profiler_state_args args = {.proxyStep = {1 << 19}};
static void *timed, *untimed; /* proxy operations of collectives whose sends are timed, and are not */

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static ncclResult_t nothing(void *event) {
  return 0;
}

static ncclResult_t (*volatile empty)(void *event) = nothing;

static void run_empty(int i) {
  empty(NULL);
}

static void *begin_coll(void) {
  void *h;
  p->startEvent(context, &h, &coll);
  p->stopEvent(h);
  return h;
}

static void run_coll(int i) {
  begin_coll();
}

/* A channel of a kernel begins and ends: three calls. */
static void run_kernel(int i) {
  void *h;
  kernel.of.kernelCh.pTimer = 1000000 + (uint64_t)i;
  p->startEvent(context, &h, &kernel);
  args.kernelCh.pTimer = 2000000 + (uint64_t)i;
  p->recordEventState(h, ncclProfilerKernelChStop, &args);
  p->stopEvent(h);
}

/* A send on the network: NCCL makes up to five calls, and one if the first gets no handle. */
static void run_step(void *op) {
  void *h;
  step.parentObj = op;
  p->startEvent(context, &h, &step);
  if (!h) return;
  p->recordEventState(h, 8, &args);
  p->recordEventState(h, 20, &args);
  p->recordEventState(h, ncclProfilerProxyStepSendWait, &args);
  p->stopEvent(h);
}

static void run_timed(int i) {
  run_step(timed);
}

static void run_untimed(int i) {
  run_step(untimed);
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void measure(const char *name, void (*run)(int i)) {
  double v[RUNS];
  for (int r = 0; r < RUNS; r++) {
    double begin = now_ns();
    for (int i = 0; i < EVENTS; i++) run(i);
    v[r] = (now_ns() - begin) / EVENTS;
  }
  qsort(v, RUNS, sizeof(*v), by_size);
  printf("%-52s %6.1f ns\n", name, v[RUNS / 2]);
}

int main(int argc, char **argv) {
  int mask = 0;
  void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  p = library ? dlsym(library, "ncclProfiler_v5") : NULL;
  if (!p) {
    fprintf(stderr, "usage: profiler-cost LIBRARY (librdzv-nccl-profiler.so)\n");
    return 2;
  }
  unsetenv("RDZV_AGENT_SOCKET");
  p->init(&context, 1, &mask, "bench", 1, 8, 0, NULL);
  coll.type = ncclProfileColl;
  kernel.type = ncclProfileKernelCh;
  proxy.type = ncclProfileProxyOp;
  proxy.of.proxyOp.pid = getpid();
  proxy.of.proxyOp.isSend = 1;
  proxy.of.proxyOp.chunkSize = 1 << 19;
  step.type = ncclProfileProxyStep;
  measure("an empty call", run_empty);
  measure("a collective is enqueued", run_coll);
  kernel.parentObj = begin_coll();
  measure("a channel of a kernel begins and ends", run_kernel);
  while (!timed) {
    proxy.parentObj = begin_coll();
    p->startEvent(context, &timed, &proxy);
  }
  proxy.parentObj = begin_coll();
  p->startEvent(context, &untimed, &proxy);
  measure("a send of a collective whose sends are timed", run_timed);
  measure("a send of another", run_untimed);
  p->finalize(context);
  return 0;
}
