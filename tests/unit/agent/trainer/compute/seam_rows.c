/* SPDX-License-Identifier: Apache-2.0 */
/* A data set on the device: the row that it makes of a number equals that of dataset_sample bit for bit. */

#include "tests/unit/agent/trainer/compute/seam.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "agent/trainer/data/data.h"

enum { ROWS = 70, GUARD = 3, SAMPLES = 90 };

static void expect_rows(const struct dataset *d, struct compute_rows *rows, const uint64_t *numbers, size_t n) {
  struct err e = ERR_INIT;
  struct compute_buf *stage;
  struct field x;
  SCOPED(unit_free) float *want = malloc((size_t)d->dim * sizeof *want);
  struct span at = {.at = 2 * COMPUTE_ROW_NUMBER, .n = n * COMPUTE_ROW_NUMBER};
  good(compute_alloc(seam.c, COMPUTE_STAGE, at.at + at.n, &stage, &e), &e);
  at.buf = stage;
  memcpy(compute_host(seam.c, at), numbers, n * sizeof *numbers);
  field_make(&x, COMPUTE_INPUT, n * d->dim, GUARD);
  good(compute_rows_gather(seam.c, rows, x.s, at, &e), &e);
  field_get(&x);
  for (size_t r = 0; r < n; r++) {
    dataset_sample(d, numbers[r], want);
    assert_memory_equal(x.v + r * d->dim, want, (size_t)d->dim * sizeof *want);
  }
  field_drop(&x);
  compute_free(seam.c, stage);
}

/* false: this device has none. */
static bool keep(const struct dataset *d, struct compute_rows **rows) {
  struct compute_rows_desc desc = {.n = d->n, .dim = d->dim, .scale = d->scale, .pixels = d->pixels};
  struct err e = ERR_INIT;
  int rc = compute_rows_create(seam.c, &desc, rows, &e);
  if (strcmp(seam.c->ops->name, "cpu") == 0) {
    assert_int_equal(rc, -ENOTSUP);
    return false;
  }
  good(rc, &e);
  return true;
}

static void draw(uint64_t *numbers, uint64_t below) {
  for (size_t r = 0; r < ROWS; r++)
    numbers[r] = (uint64_t)((double)below * 0.5 * (1.0 + (double)random_unit())) % below;
  numbers[0] = 0;
  numbers[1] = numbers[2] = below - 1;
}

UNIT_TEST(test_ramps) {
  static const uint32_t dims[] = {1, 2, 3, 20, 256, 257, 1000};
  static const double scales[] = {1.0, 0.1, 1.0 / 3, 1e-3};
  uint64_t numbers[ROWS];
  for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
    struct dataset d = {.n = DATA_SAMPLES_MAX, .dim = dims[i], .scale = scales[i % 4], .form = DATASET_RAMPS};
    struct compute_rows *rows;
    if (!keep(&d, &rows)) return;
    draw(numbers, i % 2 ? d.n : 2048);
    expect_rows(&d, rows, numbers, ROWS);
    expect_rows(&d, rows, numbers, 1);
    compute_rows_destroy(seam.c, rows);
  }
}

UNIT_TEST(test_bytes) {
  static const uint32_t dims[] = {1, 7, 256, 785};
  uint64_t numbers[ROWS];
  for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
    struct dataset d = {.n = SAMPLES, .dim = dims[i], .scale = i % 2 ? 0.3 : 1.0, .form = DATASET_BYTES};
    struct compute_rows *rows;
    d.pixels = malloc(d.n * d.dim);
    for (size_t k = 0; k < d.n * d.dim; k++) d.pixels[k] = (uint8_t)(k * 37 + k / 251);
    bool kept = keep(&d, &rows);
    if (kept) {
      draw(numbers, d.n);
      expect_rows(&d, rows, numbers, ROWS);
      compute_rows_destroy(seam.c, rows);
    }
    free(d.pixels);
    if (!kept) return;
  }
}

UNIT_TEST(test_no_rows_and_wrong_sizes) {
  struct dataset d = {.n = 9, .dim = 5, .scale = 1, .form = DATASET_RAMPS};
  struct compute_rows *rows;
  struct err e = ERR_INIT;
  if (!keep(&d, &rows)) return;
  struct compute_buf *x, *stage;
  good(compute_alloc(seam.c, COMPUTE_INPUT, 20, &x, &e), &e);
  good(compute_alloc(seam.c, COMPUTE_STAGE, 8, &stage, &e), &e);
  good(compute_rows_gather(seam.c, rows, (struct span){x, 0, 0}, (struct span){stage, 0, 0}, &e), &e);
  assert_int_equal(compute_rows_gather(seam.c, rows, (struct span){x, 0, 15}, (struct span){stage, 0, 8}, &e), -EINVAL);
  assert_int_equal(compute_rows_gather(seam.c, rows, (struct span){x, 0, 5}, (struct span){stage, 1, 2}, &e), -EINVAL);
  assert_int_equal(compute_rows_gather(seam.c, rows, (struct span){x, 0, 5}, (struct span){x, 0, 2}, &e), -EINVAL);
  device_idle();
  compute_rows_destroy(seam.c, rows);
  compute_free(seam.c, x);
  compute_free(seam.c, stage);
}

UNIT_TEST(test_what_is_too_large_is_not_kept) {
  struct compute_rows_desc large = {.n = UINT64_C(1) << 34, .dim = 1024, .scale = 1, .pixels = (const uint8_t *)""};
  struct compute_rows *rows = NULL;
  struct err e = ERR_INIT;
  int rc = compute_rows_create(seam.c, &large, &rows, &e);
  if (rc == -ENOTSUP) return;
  assert_int_equal(rc, -ENOMEM);
  assert_null(rows);
  assert_non_null(strstr(e.text, " MB are more than 1/4 of the "));
}
