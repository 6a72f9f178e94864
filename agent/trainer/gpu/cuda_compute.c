/* The CUDA answer to compute.h: one device, its streams, and what they say when something fails.
 *
 * Opening asks in the order in which things can be missing, so that the sentence names the first: is there a driver, is it new enough, is
 * there a device, does the module have code for it, does the device know the precision. No device memory is touched before.
 *
 * An operation is queued and returns; what fails on the device is told by some later call. CUDA keeps such an error for good, so every call from
 * then on tells it; the sentence says what was queued last, which is as near as one comes without waiting after every kernel
 * (CUDA_LAUNCH_BLOCKING=1 does that, for the curious).
 *
 * Nothing here waits without end, not even the end itself: memory of a device that does not come to rest is left to the process's exit.
 * A collective that will never be whole must have been aborted before.
 *
 * RDZV_CUDA_MATMUL=plain makes products without epilogues, =own without cuBLASLt: for tests that compare the ways, and for the day when a library has a bad
 * one. */

#include "agent/trainer/gpu/cuda_compute.h"

#include "common/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int cuda_check(struct compute *c, cudaError_t rc, const char *what, struct err *e) {
  if (rc == cudaSuccess) return 0;
  struct cuda *u = cuda_of(c);
  (void)cudaGetLastError(); /* what is not fatal is told once */
  return err_set(e, rc == cudaErrorMemoryAllocation ? -ENOMEM : -EIO,
                 "the device (%s) says at %s: %s (%s); queued last was %s", u->base.device, what,
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
  if (u->held) return false;
  for (int ms = 0; ms < (u->stuck ? 1 : CUDA_IDLE_MS); ms++) {
    cudaError_t rc = cudaStreamQuery(u->stream);
    if (rc == cudaSuccess && u->fetches) rc = cudaStreamQuery(u->fetches);
    u->stuck = u->stuck && rc == cudaErrorNotReady;
    if (rc == cudaSuccess) return true;
    (void)cudaGetLastError();
    if (rc != cudaErrorNotReady) return false;
    nanosleep(&pause, NULL);
  }
  u->stuck = true;
  return false;
}

static int no_driver(cudaError_t rc, struct err *e) {
  int driver = 0, runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
  (void)cudaGetLastError();
  if (driver == 0)
    return err_set(e, -ENODEV,
                   "no NVIDIA driver on this machine: libcuda.so.1 is not there (in a container: it comes "
                   "from the host, "
                   "with --gpus or its like)");
  if (rc == cudaErrorInsufficientDriver)
    return err_set(e, -ENODEV,
                   "the NVIDIA driver is too old: it knows CUDA %d.%d, this program is built for %d.%d; a "
                   "newer driver or a "
                   "build with an older CUDA will do",
                   driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  if (rc == cudaErrorNoDevice) {
    const char *shown = getenv("CUDA_VISIBLE_DEVICES");
    return err_set(e, -ENODEV,
                   "no CUDA device: the driver (CUDA %d.%d) shows none; CUDA_VISIBLE_DEVICES is %.100s",
                   driver / 1000, driver % 1000 / 10, shown ? shown : "not set");
  }
  return err_set(e, -ENODEV, "CUDA does not start: %s (%s)", cudaGetErrorString(rc), cudaGetErrorName(rc));
}

static void name_device(struct cuda *u, const struct cudaDeviceProp *p) {
  const unsigned char *b = (const unsigned char *)p->uuid.bytes;
  snprintf(u->base.device, sizeof u->base.device,
           "%.32s (GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x, sm_%d)", p->name,
           b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14],
           b[15], u->sm);
}

/* Which device, and can it do what is wanted? */
static int choose(struct cuda *u, const struct gpu_config *cfg, struct err *e) {
  struct cudaDeviceProp p;
  int n = 0;
  cudaError_t rc = cudaGetDeviceCount(&n);
  if (rc == cudaSuccess && n == 0) rc = cudaErrorNoDevice;
  if (rc == cudaSuccess) {
    u->device = cfg->device % n;
    rc = cudaGetDeviceProperties(&p, u->device);
  }
  if (rc != cudaSuccess) return no_driver(rc, e);
  u->sm = p.major * 10 + p.minor;
  name_device(u, &p);
  u->base.peak_flops = rules_peak_flops(p.name, cfg->precision);
  const char *refused = rules_precision_refused(p.major, p.minor, cfg->precision);
  if (refused) return err_set(e, -ENOTSUP, "this device, %s, %s", u->base.device, refused);
  rc = cudaSetDevice(u->device);
  if (rc != cudaSuccess)
    return err_set(e, -ENODEV, "the device (%s) cannot be opened: %s (%s)", u->base.device,
                   cudaGetErrorString(rc), cudaGetErrorName(rc));
  rc = (cudaError_t)kernel_check();
  if (rc == cudaSuccess) return 0;
  (void)cudaGetLastError();
  return err_set(
      e, -ENOTSUP,
      "rdzv-cuda.so has no code for this device, %s (%s): build it with RDZV_CUDA_ARCH=%d in the environment",
      u->base.device, cudaGetErrorName(rc), u->sm);
}

static int open_cublas(struct cuda *u, struct err *e) {
  cublasStatus_t rc = cublasLtCreate(&u->lt);
  if (rc != CUBLAS_STATUS_SUCCESS)
    return err_set(e, -EIO, "cuBLASLt does not start on the device (%s): %s", u->base.device,
                   cublasLtGetStatusName(rc));
  u->workspace_size = u->sm >= 90 ? (size_t)32 << 20 : (size_t)4 << 20; /* what NVIDIA recommends */
  return cuda_mem_raw(&u->base, u->workspace_size, &u->workspace, e);
}

static int open_side(struct compute *c, cudaStream_t *stream, cudaEvent_t *event, struct err *e) {
  int rc =
      cuda_check(c, cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), "the making of a stream", e);
  if (rc) return rc;
  return cuda_check(c, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "the making of an event", e);
}

static int open_device(struct cuda *u, struct err *e) {
  struct compute *c = &u->base;
  int rc = cuda_check(c, cudaStreamCreateWithFlags(&u->stream, cudaStreamNonBlocking),
                      "the making of a stream", e);
  if (rc == 0) rc = open_side(c, &u->sends, &u->sent, e);
  if (rc == 0) rc = open_side(c, &u->fetches, &u->fetched, e);
  if (rc == 0)
    rc = cuda_check(c, cudaEventCreateWithFlags(&u->fetch_from, cudaEventDisableTiming),
                    "the making of an event", e);
  if (rc == 0) rc = open_cublas(u, e);
  void *partials = NULL;
  if (rc == 0) rc = cuda_mem_raw(c, KERNEL_PARTIALS * sizeof(double), &partials, e);
  u->partials = partials;
  return rc ? rc : cuda_queue_init(c, e);
}

/* Also of what was never whole. */
static void cuda_destroy(struct compute *c) {
  struct cuda *u = cuda_of(c);
  if (u->capturing) {
    cudaGraph_t graph = NULL;
    (void)cudaStreamEndCapture(u->stream, &graph);
    if (graph) (void)cudaGraphDestroy(graph);
  }
  if (u->stream && cuda_idle(c)) {
    cuda_queue_finish(c);
    (void)cudaFree(u->partials);
    (void)cudaFree(u->workspace);
    if (u->lt) (void)cublasLtDestroy(u->lt);
    if (u->sent) (void)cudaEventDestroy(u->sent);
    if (u->sends) (void)cudaStreamDestroy(u->sends);
    if (u->fetch_from) (void)cudaEventDestroy(u->fetch_from);
    if (u->fetched) (void)cudaEventDestroy(u->fetched);
    if (u->fetches) (void)cudaStreamDestroy(u->fetches);
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
    .tell = cuda_mem_tell,
    .fetch = cuda_mem_fetch,
    .send = cuda_mem_send,
    .fill = cuda_mem_fill,
    .record = cuda_queue_record,
    .done = cuda_queue_done,
    .layer_create = cuda_layer_create,
    .layer_destroy = cuda_layer_destroy,
    .forward = cuda_layer_forward,
    .backward = cuda_layer_backward,
    .loss = cuda_opt_loss,
    .correct = cuda_opt_correct,
    .opt_create = cuda_opt_create,
    .opt_destroy = cuda_opt_destroy,
    .opt_state = cuda_opt_state,
    .opt_step = cuda_opt_step,
    .opt_read = cuda_opt_read,
    .opt_set = cuda_opt_set,
    .rows_create = cuda_rows_create,
    .rows_destroy = cuda_rows_destroy,
    .rows_take = cuda_rows_take,
    .poison = cuda_queue_poison,
    .capture_begin = cuda_queue_capture_begin,
    .capture_end = cuda_queue_capture_end,
    .launch = cuda_queue_launch,
    .graph_destroy = cuda_queue_graph_destroy,
    .range_push = cuda_queue_range_push,
    .range_pop = cuda_queue_range_pop,
};

int cuda_create(const struct gpu_config *cfg, struct compute **out, struct err *e) {
  struct cuda *u = xcalloc(1, sizeof *u);
  u->base = (struct compute){.ops = &cuda_ops, .precision = cfg->precision, .depth = CUDA_DEPTH};
  u->deterministic = cfg->deterministic;
  u->low = cfg->precision == COMPUTE_BF16   ? KERNEL_BF16
           : cfg->precision == COMPUTE_FP16 ? KERNEL_F16
                                            : KERNEL_F32;
  u->last = "nothing";
  const char *matmul = getenv("RDZV_CUDA_MATMUL");
  int rc = matmul && *matmul ? rules_matmul_parse(matmul, &u->matmul, e) : 0;
  if (rc == 0) rc = choose(u, cfg, e);
  if (rc == 0) rc = open_device(u, e);
  if (rc) {
    cuda_destroy(&u->base);
    return rc;
  }
  *out = &u->base;
  return 0;
}
