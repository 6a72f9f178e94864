/* A data set that stays on the device: of a batch only the numbers of its rows go there, eight bytes each, and a kernel makes the rows.
 *
 * Why: the host needs a nanosecond or more for each value of a batch, and the bus carries it as four bytes. A wide model's batch (8192 rows
 * of 8192 values) would cost more than its matrix products do. The kernel writes the same batch at the speed of the device's memory.
 *
 * Rows of a file are kept as the bytes that the file has, a quarter of what they are as floats; ramps need no memory, since they follow from
 * their number. Either is computed as data.c computes it, operation by operation, so the bits are the same whoever makes them.
 *
 * The kernel reads the numbers where the host wrote them, over the bus: a stage is mapped, and a read of each row's number is less than a copy
 * of its own. So a captured step takes whatever numbers its stage holds when it is launched.
 *
 * Files that would take more than one part in COMPUTE_ROWS_SHARE of the memory that is free when this is asked are not kept: the caller
 * sends floats through stages instead. */

#include "agent/trainer/gpu/cuda_compute.h"

#include "common/mem.h"

#include <errno.h>
#include <stdlib.h>

struct compute_rows {
  struct compute_rows_desc d;
  void *pixels; /* NULL: ramps */
};

static int check_room(struct compute *c, size_t bytes, struct err *e) {
  size_t spare = 0, all = 0;
  int rc = cuda_check(c, cudaMemGetInfo(&spare, &all), "cudaMemGetInfo", e);
  if (rc || bytes <= spare / COMPUTE_ROWS_SHARE) return rc;
  return err_set(e, -ENOMEM,
                 "the data set's %zu MB are more than 1/%d of the %zu MB that the device has free",
                 bytes >> 20, COMPUTE_ROWS_SHARE, spare >> 20);
}

static int keep(struct compute *c, struct compute_rows *r, struct err *e) {
  if (r->d.n > SIZE_MAX / r->d.dim) return err_set(e, -ENOMEM, "a data set larger than any memory");
  size_t bytes = (size_t)r->d.n * r->d.dim;
  int rc = check_room(c, bytes, e);
  if (rc == 0) rc = cuda_mem_raw(c, bytes, &r->pixels, e);
  if (rc) return rc;
  rc = cuda_check(c,
                  cudaMemcpyAsync(r->pixels, r->d.pixels, bytes, cudaMemcpyHostToDevice, cuda_of(c)->stream),
                  "the copy of the data set", e);
  return rc ? rc : cuda_check(c, cudaStreamSynchronize(cuda_of(c)->stream), "the copy of the data set", e);
}

int cuda_rows_create(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out,
                     struct err *e) {
  int rc = cuda_not_captured(c, "keeping a data set", e);
  if (rc) return rc;
  struct compute_rows *r = xcalloc(1, sizeof *r);
  r->d = *d;
  if (d->pixels) rc = keep(c, r, e);
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

int cuda_rows_take(struct compute *c, struct compute_rows *r, struct span dst, struct span numbers,
                   struct err *e) {
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
