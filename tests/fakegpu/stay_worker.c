/* SPDX-License-Identifier: Apache-2.0 */
/* A program with communicators of its own that stays when a rank dies, as rdzv.h describes it: on the stand-ins.
 *
 *   stay-worker [abort-first]
 *
 * In round 1 rank 1 kills itself in a collective, rank 2 leaves at once, and rank 0 is busy for a second. Each step adds
 * a sum over the ranks to `total`. Each rank prints when it poisons and aborts, "poison ROUND NS" and "abort ROUND NS",
 * and a sum that is wrong. abort-first is the planted error: it aborts before it rejoins. */

#include <cuda_runtime_api.h>
#include <errno.h>
#include <inttypes.h>
#include <nccl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "agent/sdk/rdzv.h"

enum { STEPS = 12, DEATH = 5, N = 300, BEFORE_MS = 200, LATE_MS = 1000, WAIT_MS = 60000 };

struct state {
  uint64_t step, total;
  bool known;
};

static struct rdzv *r;
static ncclComm_t comm;
static cudaStream_t stream;
static float *device, *in, *out;
static bool abort_first;

static void must(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "%s failed: %s\n", what, rdzv_error(r));
  _exit(1);
}

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void nap(void) {
  nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
}

static int abort_comm(void *ctx) {
  (void)ctx;
  printf("abort %u %" PRId64 "\n", rdzv_round(r), now_ns());
  if (cudaSetDevice(rdzv_local_rank(r)) != cudaSuccess || (comm && ncclCommAbort(comm) != ncclSuccess)) return 1;
  comm = NULL;
  return 0;
}

static void poison(void *ctx) {
  printf("poison %u %" PRId64 "\n", rdzv_round(r), now_ns());
  if (abort_first) abort_comm(ctx);
}

static int cut(void *ctx) {
  if (!abort_first && abort_comm(ctx)) return 1;
  return cudaStreamSynchronize(stream) != cudaSuccess;
}

static int wait_for_stream(void *ctx) {
  (void)ctx;
  return cudaSetDevice(rdzv_local_rank(r)) != cudaSuccess || cudaStreamSynchronize(stream) != cudaSuccess;
}

/* Until the call is in its stream, or the communicator has come up. Asks the agent after that time. */
static int settle(ncclResult_t rc, int ask_ms) {
  int64_t from = now_ns() + ask_ms * INT64_C(1000000);
  while (rc == ncclSuccess || rc == ncclInProgress) {
    ncclResult_t state = ncclInProgress;
    if (now_ns() >= from && (rdzv_requested(r) & RDZV_REJOIN)) return -ECANCELED;
    rc = ncclCommGetAsyncError(comm, &state);
    if (rc == ncclSuccess && state == ncclSuccess) return 0;
    if (rc == ncclSuccess) rc = state;
    nap();
  }
  return 1;
}

static int connect_all(void) {
  ncclUniqueId ids[RDZV_NCCL_IDS_MAX];
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  int n, rc = rdzv_nccl_ids(r, ids, sizeof ids, &n, NULL, WAIT_MS);
  if (rc) return rc;
  config.blocking = 0;
  rc = settle(ncclCommInitRankScalable(&comm, rdzv_world_size(r), rdzv_rank(r), n, ids, &config), 0);
  return rc ? rc : rdzv_nccl_up(r);
}

static int agree(struct state *mine) {
  struct state all[8];
  int rc = rdzv_exchange(r, "state", mine, sizeof *mine, all, sizeof all, WAIT_MS);
  for (int i = 0; !rc && i < rdzv_world_size(r); i++)
    if (all[i].known && (!mine->known || all[i].step > mine->step)) *mine = all[i];
  mine->known = true;
  return rc;
}

static float value(uint64_t step, int rank) {
  return (float)(step * 10 + (uint64_t)rank);
}

static int train(struct rdzv_comms *comms, struct state *s) {
  bool doomed = rdzv_round(r) == 1 && s->step >= DEATH;
  for (int i = 0; i < N; i++) in[i] = value(s->step, rdzv_rank(r));
  must(cudaMemcpyAsync(device, in, N * sizeof *in, cudaMemcpyHostToDevice, stream) == cudaSuccess, "a copy");
  ncclResult_t queued = ncclAllReduce(device, device, N, ncclFloat, ncclSum, comm, stream);
  if (doomed && rdzv_rank(r) == 1) {
    for (int64_t end = now_ns() + BEFORE_MS * INT64_C(1000000); now_ns() < end;) nap(); /* the others are in it too */
    kill(getpid(), SIGKILL);
  }
  int rc = settle(queued, LATE_MS);
  if (rc) return rc;
  must(cudaMemcpyAsync(out, device, N * sizeof *out, cudaMemcpyDeviceToHost, stream) == cudaSuccess, "a copy");
  cudaError_t busy = cudaErrorNotReady;
  for (int64_t end = now_ns() + LATE_MS * INT64_C(1000000);
       doomed && rdzv_rank(r) == 0 && busy == cudaErrorNotReady && now_ns() < end; nap())
    busy = cudaStreamQuery(stream);
  rc = busy == cudaErrorNotReady ? rdzv_run_watched(r, comms, wait_for_stream, NULL, WAIT_MS) : (int)busy;
  if (rc) return rc;
  float sum = 0;
  for (int i = 0; i < rdzv_world_size(r); i++) sum += value(s->step, i);
  for (int i = 0; i < N; i++)
    if (out[i] < sum || out[i] > sum) {
      printf("torn: step %" PRIu64 " has %g, not %g\n", s->step, (double)out[i], (double)sum);
      _exit(9);
    }
  s->total += (uint64_t)sum;
  s->step++;
  return 0;
}

int main(int argc, char **argv) {
  struct rdzv_comms comms = {.poison = poison, .cut = cut};
  struct state s = {0};
  abort_first = argc > 1 && !strcmp(argv[1], "abort-first");
  setvbuf(stdout, NULL, _IOLBF, 0);
  must(!rdzv_init(&r, WAIT_MS) && !rdzv_can_rejoin(r), "rdzv_init");
  unsigned began = rdzv_round(r);
  must(cudaSetDevice(rdzv_local_rank(r)) == cudaSuccess, "cudaSetDevice");
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "a stream");
  void *pinned;
  must(cudaHostAlloc(&pinned, 2 * N * sizeof *in, cudaHostAllocDefault) == cudaSuccess, "cudaHostAlloc");
  in = pinned;
  out = in + N;
  for (int rc;;) {
    must(cudaMalloc((void **)&device, N * sizeof *device) == cudaSuccess, "cudaMalloc"); /* new in each round */
    rc = connect_all();
    if (!rc) rc = agree(&s);
    while (!rc && s.step < STEPS) rc = train(&comms, &s);
    if (!rc) break;
    must(!rdzv_leave(r, &comms, rc == -ECANCELED ? NULL : "a collective failed", WAIT_MS), "rdzv_leave");
    must(cudaFree(device) == cudaSuccess, "cudaFree");
  }
  printf("done: step %" PRIu64 ", total %" PRIu64 ", from round %u to %u\n", s.step, s.total, began, rdzv_round(r));
  must(!settle(ncclCommFinalize(comm), WAIT_MS) && ncclCommDestroy(comm) == ncclSuccess, "ncclCommDestroy");
  must(cudaStreamDestroy(stream) == cudaSuccess && cudaFree(device) == cudaSuccess, "cudaFree");
  must(cudaFreeHost(pinned) == cudaSuccess, "cudaFreeHost");
  rdzv_done(r);
  rdzv_finish(r);
  return 0;
}
