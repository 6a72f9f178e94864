/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's implementation of compute.h: the device, its stream, marks and captures, and its errors.
 *
 * An operation is queued and returns; a later call reports its error. CUDA keeps such an error for good. The message
 * names the operation that was queued last, which is as near as possible without a wait after every kernel.
 *
 * Every wait has an end. If a device does not come to rest, its memory is left to the exit of the process. A collective
 * that can never complete must be aborted first.
 *
 * A mark is a number, with an event of a ring behind it. Events of one stream complete in order, so a completed mark
 * confirms all marks before it. An event that was recorded again for a later mark answers for the earlier one too:
 * late, but never wrongly.
 *
 * After any failure capture_end leaves the stream as it was before. During a capture no event is recorded or queried.
 * Code that runs for the first time is loaded, which a capture does not always allow: run a step once before you
 * capture one. */

#include "agent/trainer/gpu/cuda_compute.h"

#include "common/mem.h"
#include "agent/trainer/rng.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct compute_graph {
  cudaGraphExec_t exec;
  bool launched;
};

int cuda_check(struct compute *c, cudaError_t rc, const char *what, struct err *e) {
  if (rc == cudaSuccess) return 0;
  struct cuda *u = cuda_of(c);
  (void)cudaGetLastError(); /* an error that is not fatal is reported once */
  return err_set(e, rc == cudaErrorMemoryAllocation ? -ENOMEM : -EIO,
                 "the device (%s) failed in %s: %s (%s); the last queued operation was %s", u->base.device, what,
                 cudaGetErrorString(rc), cudaGetErrorName(rc), u->last);
}

int cuda_launched(struct compute *c, int rc, const char *what, struct err *e) {
  int failed = cuda_check(c, (cudaError_t)rc, what, e);
  cuda_of(c)->last = what;
  return failed;
}

int cuda_not_captured(struct compute *c, const char *what, struct err *e) {
  return cuda_of(c)->capturing ? err_set(e, -EINVAL, "%s cannot be part of a captured step", what) : 0;
}

bool cuda_idle(struct compute *c) {
  struct timespec pause = {.tv_nsec = 1000000};
  struct cuda *u = cuda_of(c);
  if (c->held) return false;
  for (int ms = 0; ms < (u->stuck ? 1 : CUDA_IDLE_MS); ms++) {
    cudaError_t rc = cudaStreamQuery(u->stream);
    u->stuck = u->stuck && rc == cudaErrorNotReady;
    if (rc == cudaSuccess) return true;
    (void)cudaGetLastError();
    if (rc != cudaErrorNotReady) return false;
    nanosleep(&pause, NULL);
  }
  u->stuck = true;
  return false;
}

static int explain_no_device(cudaError_t rc, struct err *e) {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
  (void)cudaGetLastError();
  if (driver == 0)
    return err_set(e, -ENODEV,
                   "no NVIDIA driver on this machine: libcuda.so.1 is missing (a container gets it from the host, "
                   "with --gpus or similar)");
  if (rc == cudaErrorInsufficientDriver)
    return err_set(
        e, -ENODEV,
        "the NVIDIA driver is too old: it supports CUDA %d.%d, but this program was built for %d.%d; install a "
        "newer driver, or build with an older CUDA",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  if (rc == cudaErrorNoDevice) {
    const char *shown = getenv("CUDA_VISIBLE_DEVICES");
    return err_set(e, -ENODEV, "no CUDA device: the driver (CUDA %d.%d) shows none; CUDA_VISIBLE_DEVICES is %.100s",
                   driver / 1000, driver % 1000 / 10, shown ? shown : "not set");
  }
  return err_set(e, -ENODEV, "CUDA does not start: %s (%s)", cudaGetErrorString(rc), cudaGetErrorName(rc));
}

/* Chooses the device, and checks that it supports the options. */
static int choose_device(struct cuda *u, const struct gpu_config *cfg, struct err *e) {
  struct cudaDeviceProp p;
  int n = 0;
  cudaError_t rc = cudaGetDeviceCount(&n);
  if (rc == cudaSuccess && n == 0) rc = cudaErrorNoDevice;
  if (rc == cudaSuccess) {
    u->device = cfg->device % n;
    rc = cudaGetDeviceProperties(&p, u->device);
  }
  if (rc != cudaSuccess) return explain_no_device(rc, e);
  u->sm = p.major * 10 + p.minor;
  if (cfg->deterministic) {
    int runtime = 0;
    char kind[sizeof p.name + 64];
    (void)cudaRuntimeGetVersion(&runtime);
    snprintf(kind, sizeof kind, "%s %d %d %zu", p.name, u->sm, runtime, cublasLtGetVersion());
    u->base.kind = rng_text(kind);
  }
  const unsigned char *b = (const unsigned char *)p.uuid.bytes;
  snprintf(u->base.device, sizeof u->base.device,
           "%.32s (GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x, sm_%d)", p.name, b[0],
           b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15], u->sm);
  if (p.major < 8 && cfg->precision != COMPUTE_FP32)
    return err_set(e, -ENOTSUP,
                   "this device, %s, does not support this --precision, which needs compute capability 8.0; use fp32",
                   u->base.device);
  rc = cudaSetDevice(u->device);
  if (rc != cudaSuccess)
    return err_set(e, -ENODEV, "the device (%s) cannot be opened: %s (%s)", u->base.device, cudaGetErrorString(rc),
                   cudaGetErrorName(rc));
  rc = (cudaError_t)kernel_check();
  if (rc == cudaSuccess) return 0;
  (void)cudaGetLastError();
  return err_set(
      e, -ENOTSUP,
      "rdzv-cuda.so has no code for this device, %s (%s): build it with RDZV_CUDA_ARCH=%d in the environment",
      u->base.device, cudaGetErrorName(rc), u->sm);
}

/* Marks, captures. ------------------------------------------------------------------------------------------------- */

static int cuda_record(struct compute *c, struct compute_mark *mark, struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = cuda_not_captured(c, "a mark", e);
  if (rc) return rc;
  uint64_t n = u->recorded + 1;
  rc = cuda_check(c, cudaEventRecord(u->events[n % CUDA_MARKS], u->stream), "a mark", e);
  if (rc) return rc;
  u->recorded = mark->n = n;
  return 0;
}

static int cuda_done(struct compute *c, struct compute_mark mark, struct err *e) {
  struct cuda *u = cuda_of(c);
  if (mark.n <= u->done) return 1;
  if (mark.n > u->recorded) return err_set(e, -EINVAL, "a mark that was never recorded");
  if (u->capturing) return 0;
  cudaError_t rc = cudaEventQuery(u->events[mark.n % CUDA_MARKS]);
  if (rc == cudaErrorNotReady) {
    (void)cudaGetLastError(); /* not an error, but CUDA keeps it as one */
    return 0;
  }
  if (rc != cudaSuccess) return cuda_check(c, rc, "a mark", e);
  u->done = mark.n;
  return 1;
}

static void cuda_block_updates(struct compute *c, bool on) {
  __atomic_store_n(cuda_of(c)->blocked, on ? 1u : 0u, __ATOMIC_SEQ_CST);
}

static int cuda_capture_begin(struct compute *c, struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = cuda_not_captured(c, "another capture", e);
  if (rc == 0) rc = cuda_check(c, cudaStreamBeginCapture(u->stream, cudaStreamCaptureModeThreadLocal), "a capture", e);
  u->capturing = u->capturing || rc == 0;
  return rc;
}

static int cuda_capture_end(struct compute *c, struct compute_graph **out, struct err *e) {
  struct cuda *u = cuda_of(c);
  if (!u->capturing) return err_set(e, -EINVAL, "no capture is under way");
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  int rc = cuda_check(c, cudaStreamEndCapture(u->stream, &graph), "the end of a capture", e);
  u->capturing = false;
  if (rc == 0) rc = cuda_check(c, cudaGraphInstantiate(&exec, graph, 0), "building a graph from a capture", e);
  if (graph) (void)cudaGraphDestroy(graph);
  if (rc) return rc;
  struct compute_graph *g = xmalloc(sizeof *g);
  *g = (struct compute_graph){.exec = exec};
  *out = g;
  return 0;
}

static int cuda_launch(struct compute *c, struct compute_graph *g, struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = cuda_not_captured(c, "a captured step", e);
  if (rc == 0) rc = cuda_check(c, cudaGraphLaunch(g->exec, u->stream), "a captured step", e);
  u->last = "a captured step";
  g->launched = true;
  return rc;
}

/* One that was never launched does not wait for the device. A communicator that was captured in it waits for its end. */
static void cuda_graph_destroy(struct compute *c, struct compute_graph *g) {
  if (!g->launched || cuda_idle(c)) (void)cudaGraphExecDestroy(g->exec);
  free(g);
}

/* Opening and closing. --------------------------------------------------------------------------------------------- */

static int open_device(struct cuda *u, struct err *e) {
  struct compute *c = &u->base;
  int rc = cuda_check(c, cudaStreamCreateWithFlags(&u->stream, cudaStreamNonBlocking), "creating a stream", e);
  if (rc) return rc;

  cublasStatus_t lt = cublasLtCreate(&u->lt);
  if (lt != CUBLAS_STATUS_SUCCESS)
    return err_set(e, -EIO, "cuBLASLt does not start on the device (%s): %s", c->device, cublasLtGetStatusName(lt));
  u->workspace_size = u->sm >= 90 ? (size_t)32 << 20 : (size_t)4 << 20; /* NVIDIA's recommendation */
  void *scratch = NULL, *word = NULL, *seen = NULL;
  rc = cuda_mem_raw(c, u->workspace_size, &u->workspace, e);
  if (rc == 0) rc = cuda_mem_raw(c, sizeof *u->scratch, &scratch, e);
  u->scratch = scratch;
  for (int i = 0; i < CUDA_MARKS && rc == 0; i++)
    rc = cuda_check(c, cudaEventCreateWithFlags(&u->events[i], cudaEventDisableTiming), "creating an event", e);
  if (rc == 0) rc = cuda_check(c, cudaHostAlloc(&word, sizeof(unsigned), cudaHostAllocMapped), "cudaHostAlloc", e);
  if (rc) return rc;
  u->blocked = word;
  *u->blocked = 0;
  rc = cuda_check(c, cudaHostGetDevicePointer(&seen, word, 0), "cudaHostGetDevicePointer", e);
  u->blocked_dev = seen;
  return rc;
}

/* Also after a failed creation. */
static void cuda_destroy(struct compute *c) {
  struct cuda *u = cuda_of(c);
  if (u->capturing) {
    cudaGraph_t graph = NULL;
    (void)cudaStreamEndCapture(u->stream, &graph);
    if (graph) (void)cudaGraphDestroy(graph);
  }
  if (u->stream && cuda_idle(c)) {
    for (int i = 0; i < CUDA_MARKS; i++)
      if (u->events[i]) (void)cudaEventDestroy(u->events[i]);
    if (u->blocked) (void)cudaFreeHost(u->blocked);
    (void)cudaFree(u->scratch);
    (void)cudaFree(u->workspace);
    if (u->lt) (void)cublasLtDestroy(u->lt);
    (void)cudaStreamDestroy(u->stream);
  }
  free(u);
}

static const struct compute_ops cuda_ops = {
    .name = "cuda",
    .destroy = cuda_destroy,
    .alloc = cuda_mem_alloc,
    .free = cuda_mem_free,
    .host = cuda_mem_host,
    .copy = cuda_mem_copy,
    .copy_and_stamp = cuda_mem_copy_and_stamp,
    .record = cuda_record,
    .done = cuda_done,
    .layer_create = cuda_layer_create,
    .layer_destroy = cuda_layer_destroy,
    .forward = cuda_layer_forward,
    .backward_weight = cuda_layer_backward_weight,
    .backward_input = cuda_layer_backward_input,
    .loss = cuda_opt_loss,
    .opt_create = cuda_opt_create,
    .opt_destroy = cuda_opt_destroy,
    .opt_state = cuda_opt_state,
    .opt_step = cuda_opt_step,
    .opt_read = cuda_opt_read,
    .opt_set = cuda_opt_set,
    .checksum = cuda_opt_checksum,
    .rows_create = cuda_rows_create,
    .rows_destroy = cuda_rows_destroy,
    .rows_gather = cuda_rows_gather,
    .block_updates = cuda_block_updates,
    .capture_begin = cuda_capture_begin,
    .capture_end = cuda_capture_end,
    .launch = cuda_launch,
    .graph_destroy = cuda_graph_destroy,
};

int cuda_create(const struct gpu_config *cfg, struct compute **out, struct err *e) {
  struct cuda *u = xcalloc(1, sizeof *u);
  u->base = (struct compute){.ops = &cuda_ops, .precision = cfg->precision, .depth = CUDA_DEPTH};
  u->deterministic = cfg->deterministic;
  u->low = cfg->precision == COMPUTE_BF16 ? KERNEL_BF16 : KERNEL_F32;
  u->last = "nothing";
  int rc = choose_device(u, cfg, e);
  if (rc == 0) rc = open_device(u, e);
  if (rc) {
    cuda_destroy(&u->base);
    return rc;
  }
  *out = &u->base;
  return 0;
}
