/* Points in the queue, the poison, and steps that are captured.
 *
 * A mark is a number; behind it stands an event of a ring. Events of one stream come true in order, so to know of a mark is to know of all
 * before it, and an event that was recorded again for a later mark answers for the earlier one too: late, but never wrongly.
 *
 * The poison is one word of host memory that the device can read: it is set at once, past everything that is queued, and read by the kernel
 * that decides about an update (kernels_opt.cu).
 *
 * A capture records what is queued into a graph. It is opened in the thread-local mode, in which CUDA refuses what cannot be
 * captured instead of doing it wrongly. Whatever goes wrong, capture_end leaves the stream as it was before. Marks are outside of captures:
 * while one is under way no event is recorded or asked.
 *
 * What runs for the first time loads its code, which a capture does not always allow: let a step run once before one is captured. */

#include "agent/trainer/gpu/cuda_compute.h"

#include "common/mem.h"

#include <errno.h>
#include <nvtx3/nvToolsExt.h>
#include <stdlib.h>

struct compute_graph {
  cudaGraphExec_t exec;
};

int cuda_queue_init(struct compute *c, struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = 0;
  for (int i = 0; i < CUDA_MARKS && rc == 0; i++)
    rc = cuda_check(c, cudaEventCreateWithFlags(&u->events[i], cudaEventDisableTiming),
                    "the making of an event", e);
  void *word = NULL, *seen = NULL;
  if (rc == 0)
    rc = cuda_check(c, cudaHostAlloc(&word, sizeof(unsigned), cudaHostAllocMapped), "cudaHostAlloc", e);
  if (rc) return rc;
  u->poison = word;
  *u->poison = 0;
  rc = cuda_check(c, cudaHostGetDevicePointer(&seen, word, 0), "cudaHostGetDevicePointer", e);
  u->poison_dev = seen;
  return rc;
}

void cuda_queue_finish(struct compute *c) {
  struct cuda *u = cuda_of(c);
  for (int i = 0; i < CUDA_MARKS; i++)
    if (u->events[i]) (void)cudaEventDestroy(u->events[i]);
  if (u->poison) (void)cudaFreeHost(u->poison);
}

int cuda_queue_record(struct compute *c, struct compute_mark *mark, struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = cuda_not_captured(c, "a mark", e);
  if (rc) return rc;
  uint64_t n = u->recorded + 1;
  rc = cuda_check(c, cudaEventRecord(u->events[n % CUDA_MARKS], u->stream), "a mark", e);
  if (rc) return rc;
  u->recorded = mark->n = n;
  return 0;
}

int cuda_queue_done(struct compute *c, struct compute_mark mark, struct err *e) {
  struct cuda *u = cuda_of(c);
  bool fetch = mark.n == CUDA_FETCH_MARK;
  if (mark.n <= u->done) return 1;
  if (!fetch && mark.n > u->recorded) return err_set(e, -EINVAL, "a mark that was never recorded");
  if (u->capturing) return 0;
  cudaError_t rc = cudaEventQuery(fetch ? u->fetched : u->events[mark.n % CUDA_MARKS]);
  if (rc == cudaErrorNotReady) {
    (void)cudaGetLastError(); /* it is no error, but is kept as one */
    return 0;
  }
  if (rc != cudaSuccess) return cuda_check(c, rc, "a mark", e);
  if (!fetch) u->done = mark.n;
  return 1;
}

void cuda_queue_poison(struct compute *c, bool on) {
  __atomic_store_n(cuda_of(c)->poison, on ? 1u : 0u, __ATOMIC_SEQ_CST);
}

int cuda_queue_capture_begin(struct compute *c, struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = cuda_not_captured(c, "another capture", e);
  if (rc == 0)
    rc = cuda_check(c, cudaStreamBeginCapture(u->stream, cudaStreamCaptureModeThreadLocal), "a capture", e);
  u->capturing = u->capturing || rc == 0;
  return rc;
}

int cuda_queue_capture_end(struct compute *c, struct compute_graph **out, struct err *e) {
  struct cuda *u = cuda_of(c);
  if (!u->capturing) return err_set(e, -EINVAL, "no capture is under way");
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  int rc = cuda_check(c, cudaStreamEndCapture(u->stream, &graph), "the end of a capture", e);
  u->capturing = false;
  if (rc == 0) rc = cuda_check(c, cudaGraphInstantiate(&exec, graph, 0), "making a graph of a capture", e);
  if (graph) (void)cudaGraphDestroy(graph);
  if (rc) return rc;
  struct compute_graph *g = xmalloc(sizeof *g);
  g->exec = exec;
  *out = g;
  return 0;
}

int cuda_queue_launch(struct compute *c, struct compute_graph *g, struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = cuda_not_captured(c, "a captured step", e);
  if (rc == 0) rc = cuda_check(c, cudaGraphLaunch(g->exec, u->stream), "a captured step", e);
  u->last = "a captured step";
  return rc;
}

void cuda_queue_graph_destroy(struct compute *c, struct compute_graph *g) {
  if (cuda_idle(c)) (void)cudaGraphExecDestroy(g->exec);
  free(g);
}

void cuda_queue_range_push(struct compute *c, const char *name) {
  (void)c;
  (void)nvtxRangePushA(name);
}

void cuda_queue_range_pop(struct compute *c) {
  (void)c;
  (void)nvtxRangePop();
}
