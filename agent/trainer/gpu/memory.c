/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers on the device, pinned stages on the host, copies between them, and a data set on the device.
 *
 * The use of a buffer decides its type: activations are in the precision, everything else is floats. In bf16,
 * parameters exist twice, as floats and as a copy that every writer of the floats updates (copy, the optimizer's
 * kernel). Stages are mapped, at one address for both sides, so kernels read and write them directly.
 *
 * Freeing waits for the queue first. If the queue does not finish, or a communicator could not be ended (held), the
 * memory is left to the exit of the process, because cudaFree would wait forever.
 *
 * A data set on the device saves the host's time and the bus: only the row numbers of a batch go there, and a kernel
 * makes the rows, with the bits of data.c. Rows of a file are kept as bytes; ramps need no memory. A captured step uses
 * the numbers that its stage holds at the launch. A file that needs more than 1/COMPUTE_ROWS_SHARE of the free memory
 * is not kept, and the caller sends floats instead. */

#include "agent/trainer/gpu/cuda_compute.h"

#include "common/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int no_memory(struct compute *c, size_t bytes, const char *where, struct err *e) {
  size_t spare = 0, all = 0;
  (void)cudaGetLastError();
  if (cudaMemGetInfo(&spare, &all) != cudaSuccess) spare = all = 0;
  return err_set(e, -ENOMEM, "no %s memory for %zu MB; the device (%s) has %zu of %zu MB free", where,
                 (bytes + (1 << 20) - 1) >> 20, c->device, spare >> 20, all >> 20);
}

int cuda_mem_raw(struct compute *c, size_t bytes, void **out, struct err *e) {
  size_t size = bytes ? bytes : 1;
  cudaError_t rc = cudaMalloc(out, size);
  if (rc != cudaSuccess) *out = NULL;
  if (rc == cudaErrorMemoryAllocation) return no_memory(c, size, "device", e);
  if (rc == cudaSuccess) rc = cudaMemsetAsync(*out, 0, size, cuda_of(c)->stream);
  return cuda_check(c, rc, "cudaMalloc", e);
}

int cuda_mem_alloc(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out, struct err *e) {
  struct cuda *u = cuda_of(c);
  int rc = cuda_not_captured(c, "making a buffer", e);
  if (rc) return rc;
  if (n > SIZE_MAX / 16) return err_set(e, -ENOMEM, "no memory for %zu values", n);
  struct compute_buf *b = xcalloc(1, sizeof *b);
  b->use = use;
  b->n = n;
  b->type = use == COMPUTE_ACT ? u->low : KERNEL_F32;
  size_t bytes = n * kernel_type_size(b->type);
  if (use == COMPUTE_STAGE) {
    size_t size = bytes ? bytes : 1;
    cudaError_t made = cudaHostAlloc(&b->data, size, cudaHostAllocMapped);
    if (made == cudaSuccess)
      memset(b->data, 0, size);
    else
      b->data = NULL;
    rc = made == cudaErrorMemoryAllocation ? no_memory(c, size, "pinned host", e)
                                           : cuda_check(c, made, "cudaHostAlloc", e);
  } else {
    rc = cuda_mem_raw(c, bytes, &b->data, e);
  }
  if (rc == 0 && use == COMPUTE_PARAM && u->low != KERNEL_F32)
    rc = cuda_mem_raw(c, n * kernel_type_size(u->low), &b->low, e);
  if (rc) {
    cuda_mem_free(c, b);
    return rc;
  }
  *out = b;
  return 0;
}

void cuda_mem_free(struct compute *c, struct compute_buf *b) {
  if (cuda_idle(c)) {
    (void)(b->use == COMPUTE_STAGE ? cudaFreeHost(b->data) : cudaFree(b->data));
    (void)cudaFree(b->low);
  }
  free(b);
}

float *cuda_mem_host(struct compute *c, struct span s) {
  (void)c;
  return s.buf->use == COMPUTE_STAGE ? (float *)s.buf->data + s.at : NULL;
}

static int check_span(struct span s, struct err *e) {
  if (s.at <= s.buf->n && s.n <= s.buf->n - s.at) return 0;
  return err_set(e, -EINVAL, "values %zu to %zu of a buffer of %zu", s.at, s.at + s.n, s.buf->n);
}

/* After a write to dst: updates the copy of parameters, and erases the name of the layer whose mask fitted. */
static int after_write(struct compute *c, struct span dst, struct err *e) {
  struct compute_buf *b = dst.buf;
  b->made_by.serial = 0;
  if (!b->low) return 0;
  enum kernel_type low = cuda_of(c)->low;
  char *at = (char *)b->low + dst.at * kernel_type_size(low);
  return cuda_launched(c, kernel_convert(cuda_of(c)->stream, at, low, cuda_at(dst), KERNEL_F32, dst.n),
                       "the conversion of weights", e);
}

int cuda_mem_copy(struct compute *c, struct span dst, struct span src, struct err *e) {
  if (dst.n != src.n) return err_set(e, -EINVAL, "copy of %zu values to %zu", src.n, dst.n);
  int rc = check_span(dst, e);
  if (rc == 0) rc = check_span(src, e);
  if (rc || dst.n == 0) return rc;
  bool from_stage = src.buf->use == COMPUTE_STAGE, to_stage = dst.buf->use == COMPUTE_STAGE;
  bool same = dst.buf->type == src.buf->type;
  if (from_stage ? to_stage || !same : to_stage && !same)
    return err_set(e, -EINVAL, "a copy between buffers of the wrong use");
  if (same) {
    enum cudaMemcpyKind kind = from_stage ? cudaMemcpyHostToDevice
                               : to_stage ? cudaMemcpyDeviceToHost
                                          : cudaMemcpyDeviceToDevice;
    size_t bytes = dst.n * kernel_type_size(dst.buf->type);
    rc = cuda_check(c, cudaMemcpyAsync(cuda_at(dst), cuda_at(src), bytes, kind, cuda_of(c)->stream), "a copy", e);
    cuda_of(c)->last = "a copy";
  } else
    rc = cuda_launched(
        c, kernel_convert(cuda_of(c)->stream, cuda_at(dst), dst.buf->type, cuda_at(src), src.buf->type, dst.n),
        "a conversion", e);
  return rc ? rc : after_write(c, dst, e);
}

static int check_small_copy(struct span s, struct err *e) {
  if (s.buf->type != KERNEL_F32 || s.buf->low)
    return err_set(e, -EINVAL, "small copies are between stages and floats only");
  s.buf->made_by.serial = 0;
  return check_span(s, e);
}

int cuda_mem_copy_and_stamp(struct compute *c, struct span dst, struct span src, struct span stamp, struct err *e) {
  struct kernel_copy_and_stamp t = {.n = dst.n};
  int rc = dst.n == src.n ? 0 : err_set(e, -EINVAL, "small copy of %zu values to %zu", src.n, dst.n);
  if (rc == 0 && dst.n) rc = check_small_copy(dst, e);
  if (rc == 0 && dst.n) rc = check_small_copy(src, e);
  if (rc == 0 && dst.n) {
    t.dst = cuda_at(dst);
    t.src = cuda_at(src);
  }
  if (rc == 0) rc = check_span(stamp, e);
  if (rc) return rc;
  if (stamp.buf->use != COMPUTE_STAGE || stamp.n != COMPUTE_STAMP || stamp.at % COMPUTE_STAMP)
    return err_set(e, -EINVAL, "the time goes to %d elements of a stage", COMPUTE_STAMP);
  t.stamp = cuda_at(stamp);
  return cuda_launched(c, kernel_copy_and_stamp(cuda_of(c)->stream, &t), "a small copy", e);
}

/* A data set on the device. ---------------------------------------------------------------------------------------- */

struct compute_rows {
  struct compute_rows_desc d;
  void *pixels; /* NULL: ramps */
};

int cuda_rows_create(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out, struct err *e) {
  int rc = cuda_not_captured(c, "keeping a data set", e);
  if (rc) return rc;
  struct compute_rows *r = xcalloc(1, sizeof *r);
  r->d = *d;
  if (d->pixels) {
    size_t bytes = (size_t)d->n * d->dim, spare = 0, all = 0;
    if (d->n > SIZE_MAX / d->dim) rc = err_set(e, -ENOMEM, "a data set larger than any memory");
    if (rc == 0) rc = cuda_check(c, cudaMemGetInfo(&spare, &all), "cudaMemGetInfo", e);
    if (rc == 0 && bytes > spare / COMPUTE_ROWS_SHARE)
      rc = err_set(e, -ENOMEM, "the data set's %zu MB are more than 1/%d of the %zu MB that the device has free",
                   bytes >> 20, COMPUTE_ROWS_SHARE, spare >> 20);
    if (rc == 0) rc = cuda_mem_raw(c, bytes, &r->pixels, e);
    cudaStream_t stream = cuda_of(c)->stream;
    static const char what[] = "the copy of the data set";
    if (rc == 0)
      rc = cuda_check(c, cudaMemcpyAsync(r->pixels, d->pixels, bytes, cudaMemcpyHostToDevice, stream), what, e);
    if (rc == 0) rc = cuda_check(c, cudaStreamSynchronize(stream), what, e);
  }
  if (rc) {
    cuda_rows_destroy(c, r);
    return rc;
  }
  *out = r;
  return 0;
}

void cuda_rows_destroy(struct compute *c, struct compute_rows *r) {
  if (r->pixels && cuda_idle(c)) (void)cudaFree(r->pixels);
  free(r);
}

int cuda_rows_gather(struct compute *c, struct compute_rows *r, struct span dst, struct span numbers, struct err *e) {
  size_t rows = numbers.n / COMPUTE_ROW_NUMBER;
  if (dst.buf->type != KERNEL_F32 || dst.buf->use == COMPUTE_STAGE || numbers.buf->use != COMPUTE_STAGE ||
      numbers.at % COMPUTE_ROW_NUMBER || dst.n != rows * r->d.dim)
    return err_set(e, -EINVAL, "%zu rows of a data set to a buffer of the wrong size or use", rows);
  struct kernel_rows k = {.rows = rows,
                          .dim = r->d.dim,
                          .scale = r->d.scale,
                          .pixels = r->pixels,
                          .numbers = cuda_at(numbers),
                          .dst = cuda_at(dst)};
  dst.buf->made_by.serial = 0;
  return cuda_launched(c, kernel_rows(cuda_of(c)->stream, &k), "the rows of a batch", e);
}
