/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the stand-in: allocations, and copies between them.
 *
 * Stricter than a device: an allocation has exactly its size and is full of 0xFF, which is NaN in every type. Freed
 * memory is overwritten. Freeing waits for the whole device, so behind a collective that never ends it hangs. Under ASan
 * device memory is poisoned while no work is done, so the host cannot touch it, and ASan reports a kernel that goes one
 * element too far. Of a large allocation only both ends are poisoned: a workspace of 32 MB, poisoned and opened again for
 * each piece of work, took most of the time of all tests. A copy must lie within allocations and go where its kind says.
 * A copy from the device to memory that is not pinned is refused, because real CUDA makes the caller wait and a step
 * must never do that. A copy from such memory to the device takes the bytes at once, as CUDA does. */

#include "tests/fakegpu/fake.h"

#include <stdlib.h>
#include <string.h>

#ifdef FAKE_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, n)   ((void)(p), (void)(n))
#define ASAN_UNPOISON_MEMORY_REGION(p, n) ((void)(p), (void)(n))
#endif

enum { POISON = 0xFF, PAGE = 4096, POISONED_END = 32 << 10 };

enum kind { PINNED, PLAIN };

struct allocation {
  struct allocation *next;
  char *at;
  size_t n;
  enum kind kind;
  uint64_t serial;
};

static struct allocation *allocations;
static size_t used; /* of the device */

/* The device's memory: 8 GB, or FAKEGPU_MEMORY_MB. */
static size_t total_memory(void) {
  const char *mb = getenv("FAKEGPU_MEMORY_MB");
  return mb ? (size_t)strtoull(mb, NULL, 10) << 20 : (size_t)8 << 30;
}

static void open_region(char *at, size_t n, bool open) {
  if (open)
    ASAN_UNPOISON_MEMORY_REGION(at, n);
  else
    ASAN_POISON_MEMORY_REGION(at, n);
}

static void open_allocation(const struct allocation *a, bool open) {
  size_t end = a->n < POISONED_END ? a->n : POISONED_END;
  open_region(a->at, end, open);
  open_region(a->at + a->n - end, end, open);
}

void fake_memory_open(bool open) {
  for (struct allocation *a = allocations; a; a = a->next)
    if (a->kind != PINNED) open_allocation(a, open);
}

void fake_memory_report(void) {
  int device = 0, host = 0;
  for (struct allocation *a = allocations; a; a = a->next) a->kind == PINNED ? host++ : device++;
  if (device || host) fake_say("left over: %d allocations of the device, %d of pinned memory", device, host);
}

static struct allocation **find(const void *p) {
  for (struct allocation **a = &allocations; *a; a = &(*a)->next)
    if ((const char *)p >= (*a)->at && (const char *)p < (*a)->at + ((*a)->n ? (*a)->n : 1)) return a;
  return NULL;
}

enum fake_place fake_place_of(const void *p, size_t n) {
  struct allocation **a = find(p);
  if (!a) return FAKE_PAGEABLE;
  if ((size_t)((const char *)p - (*a)->at) + n > (*a)->n) return FAKE_WRONG;
  return (*a)->kind == PINNED ? FAKE_PINNED : FAKE_DEVICE;
}

uint64_t fake_serial_of(const void *p) {
  struct allocation **a = find(p);
  return a ? (*a)->serial : 0;
}

static cudaError_t allocate(void **out, size_t n, enum kind kind) {
  void *p = NULL;
  static uint64_t serials;
  bool device = kind != PINNED;
  if ((device && n > total_memory() - used) || posix_memalign(&p, kind == PLAIN ? 256 : PAGE, n ? n : 1))
    return cudaErrorMemoryAllocation;
  struct allocation *a = malloc(sizeof *a);
  *a = (struct allocation){allocations, p, n, kind, ++serials};
  allocations = a;
  if (device) used += n;
  memset(p, POISON, n);
  if (device) open_allocation(a, false);
  *out = p;
  return cudaSuccess;
}

static cudaError_t release(void *p, enum kind kind) {
  struct allocation **found = p ? find(p) : NULL, *a = found ? *found : NULL;
  if (!p) return cudaSuccess;
  if (!a || a->at != p || a->kind != kind) return cudaErrorInvalidValue;
  fake_drain_all();
  for (found = &allocations; *found != a;) found = &(*found)->next; /* others may have changed the list meanwhile */
  *found = a->next;
  if (kind != PINNED) used -= a->n;
  ASAN_UNPOISON_MEMORY_REGION(a->at, a->n);
  memset(a->at, POISON, a->n);
  free(a->at);
  free(a);
  return cudaSuccess;
}

static cudaError_t get(const char *name, void **out, size_t n, enum kind kind) {
  cudaError_t rc;
  if (!fake_enter(name, &rc)) return rc;
  if (fake_captures) {
    fake_captures_invalidate();
    return fake_leave(cudaErrorStreamCaptureUnsupported);
  }
  return fake_leave(allocate(out, n, kind));
}

static cudaError_t give_back(const char *name, void *p, enum kind kind) {
  cudaError_t rc;
  if (!fake_enter(name, &rc)) return rc;
  if (fake_captures && p) {
    fake_captures_invalidate();
    return fake_leave(cudaErrorStreamCaptureUnsupported);
  }
  return fake_leave(release(p, kind));
}

cudaError_t cudaMalloc(void **out, size_t n) {
  return get("cudaMalloc", out, n, PLAIN);
}

cudaError_t cudaFree(void *p) {
  return give_back("cudaFree", p, PLAIN);
}

cudaError_t cudaMallocHost(void **out, size_t n) {
  return get("cudaMallocHost", out, n, PINNED);
}

cudaError_t cudaHostAlloc(void **out, size_t n, unsigned flags) {
  return get("cudaHostAlloc", out, n, PINNED);
}

cudaError_t cudaFreeHost(void *p) {
  return give_back("cudaFreeHost", p, PINNED);
}

cudaError_t cudaHostGetDevicePointer(void **out, void *p, unsigned flags) {
  cudaError_t rc;
  if (!fake_enter("cudaHostGetDevicePointer", &rc)) return rc;
  *out = p;
  return fake_leave(fake_place_of(p, 1) == FAKE_PINNED ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  cudaError_t rc;
  if (!fake_enter("cudaMemGetInfo", &rc)) return rc;
  *free_bytes = total_memory() - used;
  *total = total_memory();
  return fake_leave(cudaSuccess);
}

struct copy {
  struct fake_work w;
  char *dst;
  const char *src; /* NULL: set to `value` */
  size_t n;
  int value;
  char *taken; /* the source itself, taken when it was queued */
};

static enum fake_ran run_copy(struct fake_work *w, void **state) {
  struct copy *c = (struct copy *)w;
  if (c->src)
    memmove(c->dst, c->src, c->n);
  else
    memset(c->dst, c->value, c->n);
  return FAKE_DONE;
}

static void destroy_copy(struct fake_work *w) {
  struct copy *c = (struct copy *)w;
  free(c->taken);
  free(c);
}

static cudaError_t check_copy(const void *dst, const void *src, size_t n, enum cudaMemcpyKind kind) {
  enum fake_place to = fake_place_of(dst, n), from = fake_place_of(src, n);
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (to == FAKE_WRONG || from == FAKE_WRONG)
    fake_say("a copy of %zu bytes leaves its allocation", n);
  else if (kind != cudaMemcpyDefault && (to_device != (to == FAKE_DEVICE) || from_device != (from == FAKE_DEVICE)))
    fake_say("a copy does not go where its kind, %d, says", (int)kind);
  else
    return cudaSuccess;
  return cudaErrorInvalidValue;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream) {
  cudaError_t rc;
  if (!fake_enter("cudaMemcpyAsync", &rc)) return rc;
  if (n == 0) return fake_leave(cudaSuccess);
  if ((rc = check_copy(dst, src, n, kind))) return fake_leave(rc);
  struct CUstream_st *s = fake_stream_of(stream);
  if (fake_place_of(dst, n) == FAKE_PAGEABLE) {
    fake_say("an asynchronous copy to memory that is not pinned: the caller would wait");
    return fake_leave(cudaErrorInvalidValue);
  }
  struct copy *c = malloc(sizeof *c);
  *c = (struct copy){{1, "copy", run_copy, destroy_copy, false}, dst, src, n, 0, NULL};
  if (fake_place_of(src, n) == FAKE_PAGEABLE) {
    c->taken = malloc(n);
    memcpy(c->taken, src, n);
    c->src = c->taken;
  }
  return fake_leave(fake_queue(s, &c->w));
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t stream) {
  cudaError_t rc;
  if (!fake_enter("cudaMemsetAsync", &rc)) return rc;
  if (n == 0) return fake_leave(cudaSuccess);
  if (fake_place_of(dst, n) != FAKE_DEVICE) return fake_leave(cudaErrorInvalidValue);
  struct copy *c = malloc(sizeof *c);
  *c = (struct copy){{1, "memset", run_copy, destroy_copy, false}, dst, NULL, n, value, NULL};
  return fake_leave(fake_queue(fake_stream_of(stream), &c->w));
}

/* Waits for streams that may block, not for the others: a caller that relies on more finds old values. */
cudaError_t cudaMemcpy(void *dst, const void *src, size_t n, enum cudaMemcpyKind kind) {
  cudaError_t rc;
  if (!fake_enter("cudaMemcpy", &rc)) return rc;
  if (n == 0) return fake_leave(cudaSuccess);
  if ((rc = check_copy(dst, src, n, kind))) return fake_leave(rc);
  struct copy *c = malloc(sizeof *c);
  *c = (struct copy){{1, "copy", run_copy, destroy_copy, false}, dst, src, n, 0, NULL};
  return fake_leave(fake_queue(fake_stream_of(NULL), &c->w));
}

cudaError_t cudaMemset(void *dst, int value, size_t n) {
  return cudaMemsetAsync(dst, value, n, NULL);
}
