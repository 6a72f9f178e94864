/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, streams, events and launches of the stand-in, as cuda_runtime_api.h declares them. Only what the module
 * uses; a missing call does not link. */

#include "tests/fakegpu/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GRID_MAX = 0x7fffffff, BLOCK_MAX = 1024 };

static int current_device;

/* As many as CUDA_VISIBLE_DEVICES names, else FAKEGPU_DEVICES, else 4. */
static int devices(void) {
  const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *some = getenv("FAKEGPU_DEVICES");
  if (!visible) return some ? atoi(some) : 4;
  int n = *visible != 0;
  for (; *visible; visible++) n += *visible == ',';
  return n;
}

cudaError_t cudaGetDeviceCount(int *n) {
  cudaError_t rc;
  if (!fake_enter("cudaGetDeviceCount", &rc)) return rc;
  *n = devices();
  return fake_leave(*n ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
  cudaError_t rc;
  if (!fake_enter("cudaSetDevice", &rc)) return rc;
  if (device < 0 || device >= devices()) return fake_leave(cudaErrorInvalidDevice);
  current_device = device;
  return fake_leave(cudaSuccess);
}

cudaError_t cudaGetDevice(int *device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device) {
  cudaError_t rc;
  if (!fake_enter("cudaGetDeviceProperties", &rc)) return rc;
  memset(prop, 0, sizeof *prop);
  snprintf(prop->name, sizeof prop->name, "NVIDIA FAKE");
  memset(&prop->uuid, 0xfa, sizeof prop->uuid);
  prop->totalGlobalMem = (size_t)8 << 30;
  prop->major = 9;
  prop->warpSize = 32;
  prop->multiProcessorCount = 4;
  prop->maxThreadsPerBlock = BLOCK_MAX;
  prop->canMapHostMemory = 1;
  prop->unifiedAddressing = 1;
  prop->pciBusID = device + 1;
  return fake_leave(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device) {
  static const int values[][2] = {{cudaDevAttrComputeCapabilityMajor, 9},    {cudaDevAttrComputeCapabilityMinor, 0},
                                  {cudaDevAttrMultiProcessorCount, 4},       {cudaDevAttrWarpSize, 32},
                                  {cudaDevAttrCanMapHostMemory, 1},          {cudaDevAttrUnifiedAddressing, 1},
                                  {cudaDevAttrClockRate, 1000000},           {cudaDevAttrMemoryClockRate, 1000000},
                                  {cudaDevAttrMaxThreadsPerBlock, BLOCK_MAX}};
  cudaError_t rc;
  if (!fake_enter("cudaDeviceGetAttribute", &rc)) return rc;
  for (size_t i = 0; i < sizeof values / sizeof *values; i++)
    if (values[i][0] == (int)attr) {
      *value = values[i][1];
      return fake_leave(cudaSuccess);
    }
  fake_say("attribute %d of a device is not known here", (int)attr);
  return fake_leave(cudaErrorInvalidValue);
}

cudaError_t cudaDeviceGetPCIBusId(char *out, int size, int device) {
  snprintf(out, (size_t)size, "0000:%02x:00.0", (unsigned)device + 1);
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *v) {
  *v = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaInitDevice(int device, unsigned device_flags, unsigned flags) {
  return cudaSetDevice(device);
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attr, const void *kernel) {
  cudaError_t rc;
  if (!fake_enter("cudaFuncGetAttributes", &rc)) return rc;
  memset(attr, 0, sizeof *attr);
  attr->maxThreadsPerBlock = BLOCK_MAX;
  return fake_leave(cudaSuccess);
}

cudaError_t cudaGetLastError(void) {
  fake_lock();
  cudaError_t rc = fake_take_last(true);
  fake_unlock();
  return rc;
}

cudaError_t cudaPeekAtLastError(void) {
  fake_lock();
  cudaError_t rc = fake_take_last(false);
  fake_unlock();
  return rc;
}

static const struct {
  cudaError_t rc;
  const char *name, *text;
} errors[] = {
#define E(rc, text)                                                                                                    \
  { rc, #rc, text }
    E(cudaSuccess, "no error"),
    E(cudaErrorInvalidValue, "invalid argument"),
    E(cudaErrorMemoryAllocation, "out of memory"),
    E(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    E(cudaErrorNoDevice, "no CUDA-capable device is detected"),
    E(cudaErrorInvalidDevice, "invalid device ordinal"),
    E(cudaErrorIllegalAddress, "an illegal memory access was encountered"),
    E(cudaErrorNotReady, "device not ready"),
    E(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing"),
    E(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture"),
    E(cudaErrorStreamCaptureUnjoined, "capture was not joined to the original stream"),
    E(cudaErrorStreamCaptureIsolation, "dependency created on uncaptured work in another stream"),
    E(cudaErrorCapturedEvent, "operation not permitted on an event last recorded in a capturing stream"),
    E(cudaErrorUnknown, "unknown error"),
#undef E
};

const char *cudaGetErrorString(cudaError_t rc) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].rc == rc) return errors[i].text;
  return "unrecognized error code";
}

const char *cudaGetErrorName(cudaError_t rc) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
    if (errors[i].rc == rc) return errors[i].name;
  return "unrecognized error code";
}

/* Streams. */

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority) {
  cudaError_t rc;
  if (!fake_enter("cudaStreamCreateWithPriority", &rc)) return rc;
  struct CUstream_st *s = calloc(1, sizeof *s);
  *s = (struct CUstream_st){.flags = flags, .priority = priority, .tail = &s->head, .next = fake_streams};
  fake_streams = *out = s;
  return fake_leave(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) {
  return cudaStreamCreateWithPriority(out, flags, 0);
}

/* Queued work is still done. */
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  cudaError_t rc;
  if (!fake_enter("cudaStreamDestroy", &rc)) return rc;
  if (stream->destroyed) fake_die("a stream is destroyed twice");
  stream->destroyed = true;
  fake_stream_reap();
  return fake_leave(cudaSuccess);
}

static cudaError_t wait_stream(struct CUstream_st *s) {
  if (s->capture) {
    fake_captures_invalidate();
    return cudaErrorStreamCaptureUnsupported;
  }
  fake_drain(s);
  return fake_take_last(false) == cudaErrorIllegalAddress ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  cudaError_t rc;
  if (!fake_enter("cudaStreamSynchronize", &rc)) return rc;
  return fake_leave(wait_stream(fake_stream_of(stream)));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  cudaError_t rc;
  if (!fake_enter("cudaStreamQuery", &rc)) return rc;
  struct CUstream_st *s = fake_stream_of(stream);
  if (s->capture) return fake_leave(wait_stream(s));
  fake_poll();
  return fake_leave(s->head ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void) {
  cudaError_t rc;
  if (!fake_enter("cudaDeviceSynchronize", &rc)) return rc;
  if (fake_captures) {
    fake_captures_invalidate();
    return fake_leave(cudaErrorStreamCaptureUnsupported);
  }
  fake_drain_all();
  return fake_leave(fake_take_last(false) == cudaErrorIllegalAddress ? cudaErrorIllegalAddress : cudaSuccess);
}

/* Events. */

struct mark {
  struct fake_work w;
  struct fake_moment *moment;
};

static void drop_moment(struct fake_moment *m) {
  if (m && --m->refs == 0) free(m);
}

static void destroy_mark(struct fake_work *w) {
  drop_moment(((struct mark *)w)->moment);
  free(w);
}

static enum fake_ran run_record(struct fake_work *w, void **state) {
  struct fake_moment *m = ((struct mark *)w)->moment;
  m->ms = fake_now_ms();
  m->done = true;
  return FAKE_DONE;
}

static enum fake_ran run_wait(struct fake_work *w, void **state) {
  return ((struct mark *)w)->moment->done ? FAKE_DONE : FAKE_BLOCKED;
}

static struct fake_work *mark_create(struct fake_moment *m, bool record) {
  struct mark *k = malloc(sizeof *k);
  *k = (struct mark){{1, record ? "record" : "wait", record ? run_record : run_wait, destroy_mark, false}, m};
  m->refs++;
  return &k->w;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags) {
  cudaError_t rc;
  if (!fake_enter("cudaEventCreateWithFlags", &rc)) return rc;
  *out = calloc(1, sizeof **out);
  (*out)->flags = flags;
  return fake_leave(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *out) {
  return cudaEventCreateWithFlags(out, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  cudaError_t rc;
  if (!fake_enter("cudaEventDestroy", &rc)) return rc;
  fake_capture_forget(event);
  drop_moment(event->moment);
  free(event);
  return fake_leave(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  cudaError_t rc;
  if (!fake_enter("cudaEventRecord", &rc)) return rc;
  struct CUstream_st *s = fake_stream_of(stream);
  fake_capture_forget(event);
  drop_moment(event->moment);
  event->moment = NULL;
  if (s->capture) return fake_leave(fake_capture_record(s, event));
  event->moment = calloc(1, sizeof *event->moment);
  event->moment->refs = 1;
  return fake_leave(fake_queue(s, mark_create(event->moment, true)));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  cudaError_t rc;
  if (!fake_enter("cudaStreamWaitEvent", &rc)) return rc;
  struct CUstream_st *s = fake_stream_of(stream);
  if (event->capture || s->capture) return fake_leave(fake_capture_wait(s, event));
  if (!event->moment) return fake_leave(cudaSuccess);
  return fake_leave(fake_queue(s, mark_create(event->moment, false)));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  cudaError_t rc;
  if (!fake_enter("cudaEventQuery", &rc)) return rc;
  if (event->capture) return fake_leave(cudaErrorCapturedEvent);
  if (fake_captures) {
    fake_captures_invalidate();
    return fake_leave(cudaErrorStreamCaptureUnsupported);
  }
  if (event->moment && !event->moment->done) fake_poll();
  rc = fake_take_last(false) == cudaErrorIllegalAddress ? cudaErrorIllegalAddress : cudaErrorNotReady;
  return fake_leave(!event->moment || event->moment->done ? cudaSuccess : rc);
}

static bool passed(void *ctx) {
  return ((struct fake_moment *)ctx)->done || fake_take_last(false) == cudaErrorIllegalAddress;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  cudaError_t rc;
  if (!fake_enter("cudaEventSynchronize", &rc)) return rc;
  if (event->capture) return fake_leave(cudaErrorCapturedEvent);
  if (event->moment) fake_until(passed, event->moment);
  return fake_leave(!event->moment || event->moment->done ? cudaSuccess : cudaErrorIllegalAddress);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
  cudaError_t rc;
  if (!fake_enter("cudaEventElapsedTime", &rc)) return rc;
  if ((from->flags | to->flags) & cudaEventDisableTiming || !from->moment || !to->moment)
    return fake_leave(cudaErrorInvalidResourceHandle);
  if (!from->moment->done || !to->moment->done) return fake_leave(cudaErrorNotReady);
  *ms = (float)(to->moment->ms - from->moment->ms);
  return fake_leave(cudaSuccess);
}

/* Launches. */

struct launch {
  struct fake_work w;
  unsigned grid, block;
  void (*body)(void *ctx);
  void *ctx;
  void (*free_ctx)(void *ctx);
};

static enum fake_ran run_launch(struct fake_work *w, void **state) {
  struct launch *l = (struct launch *)w;
  if (fake_injected("kernel")) {
    fake_set_last(cudaErrorIllegalAddress);
    fake_fault(cudaErrorIllegalAddress);
    return FAKE_DONE;
  }
  if (l->grid)
    fake_grid_run(l->grid, l->block, l->body, l->ctx);
  else
    l->body(l->ctx); /* a function of the host */
  return FAKE_DONE;
}

static void destroy_launch(struct fake_work *w) {
  struct launch *l = (struct launch *)w;
  if (l->free_ctx) l->free_ctx(l->ctx);
  free(l);
}

int fake_launch(const char *name, unsigned grid, unsigned block, cudaStream_t stream, void (*body)(void *ctx),
                void *ctx, void (*destroy)(void *ctx)) {
  cudaError_t rc;
  if (!fake_enter("launch", &rc)) return (int)rc;
  struct launch *l = malloc(sizeof *l);
  *l = (struct launch){{1, name, run_launch, destroy_launch, false}, grid, block, body, ctx, destroy};
  if (grid == 0 || grid > GRID_MAX || block == 0 || block > BLOCK_MAX) {
    fake_say("%s: a grid of %u blocks of %u threads", name, grid, block);
    fake_work_drop(&l->w);
    return (int)fake_leave(cudaErrorInvalidConfiguration);
  }
  return (int)fake_leave(fake_queue(fake_stream_of(stream), &l->w));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data) {
  cudaError_t rc;
  if (!fake_enter("cudaLaunchHostFunc", &rc)) return rc;
  struct launch *l = malloc(sizeof *l);
  *l = (struct launch){{1, "host", run_launch, destroy_launch, false}, 0, 0, fn, data, NULL};
  return fake_leave(fake_queue(fake_stream_of(stream), &l->w));
}

cudaError_t cudaDeviceReset(void) {
  return cudaDeviceSynchronize();
}
