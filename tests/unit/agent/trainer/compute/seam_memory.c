/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, copies and marks. The other parts rely on copies to COMPUTE_ACT and back, so their rounding comes first:
 * halfway cases, both zeros, infinities, the largest numbers, and those below the smallest normal one. */

#include "tests/unit/agent/trainer/compute/seam.h"

#include <errno.h>
#include <math.h>
#include <string.h>

UNIT_TEST(test_fresh_memory_is_zero) {
  for (enum compute_use use = COMPUTE_PARAM; use <= COMPUTE_STAGE; use++) {
    struct err e = ERR_INIT;
    struct compute_buf *b, *floats, *stage;
    good(compute_alloc(seam.c, use, 1003, &b, &e), &e);
    good(compute_alloc(seam.c, COMPUTE_STATE, 1003, &floats, &e), &e);
    good(compute_alloc(seam.c, COMPUTE_STAGE, 1003, &stage, &e), &e);
    struct span to = {stage, 0, 1003}, f = {floats, 0, 1003};
    good(compute_copy(seam.c, f, (struct span){b, 0, 1003}, &e), &e);
    good(compute_copy(seam.c, to, f, &e), &e);
    device_idle();
    for (size_t k = 0; k < 1003; k++) assert_true(compute_host(seam.c, to)[k] == 0.0f);
    compute_free(seam.c, b);
    compute_free(seam.c, floats);
    compute_free(seam.c, stage);
  }
}

UNIT_TEST(test_sizes) {
  struct err e = ERR_INIT;
  struct compute_buf *b = NULL;
  good(compute_alloc(seam.c, COMPUTE_ACT, 0, &b, &e), &e);
  good(compute_copy(seam.c, (struct span){b, 0, 0}, (struct span){b, 0, 0}, &e), &e);
  compute_free(seam.c, b);
  compute_free(seam.c, NULL);
  assert_int_equal(compute_alloc(seam.c, COMPUTE_STATE, SIZE_MAX / 4, &b, &e), -ENOMEM);
  assert_true(strlen(e.text) > 10);
}

UNIT_TEST(test_floats_stay_what_they_are) {
  static const enum compute_use uses[] = {COMPUTE_PARAM, COMPUTE_GRAD, COMPUTE_STATE, COMPUTE_INPUT};
  for (size_t i = 0; i < 4; i++) {
    struct field f;
    field_make(&f, uses[i], 4099, 3 + i);
    for (size_t k = 0; k < f.s.n; k++) f.v[k] = random_unit() * powf(10, (float)(k % 60) - 30);
    f.v[0] = INFINITY, f.v[1] = -0.0f, f.v[2] = 3.4e38f;
    float before[4099];
    memcpy(before, f.v, sizeof before);
    field_put(&f);
    field_get(&f);
    assert_memory_equal(before, f.v, sizeof before);
    field_drop(&f);
  }
}

/* A small copy to the device and back, and the device's clock advances, if there is one. */
UNIT_TEST(test_what_is_told_arrives) {
  enum { N = 70, AT = 5 };
  struct err e = ERR_INIT;
  struct compute_buf *in, *out, *times;
  struct field f;
  field_make(&f, COMPUTE_GRAD, N, 3);
  good(compute_alloc(seam.c, COMPUTE_STAGE, AT + N, &in, &e), &e);
  good(compute_alloc(seam.c, COMPUTE_STAGE, N, &out, &e), &e);
  good(compute_alloc(seam.c, COMPUTE_STAGE, (size_t)2 * COMPUTE_STAMP, &times, &e), &e);
  struct span a = {in, AT, N}, back = {out, 0, N}, time[2];
  for (size_t i = 0; i < 2; i++) time[i] = (struct span){times, i * COMPUTE_STAMP, COMPUTE_STAMP};
  for (size_t i = 0; i < N; i++) compute_host(seam.c, a)[i] = random_unit();
  good(compute_copy_and_stamp(seam.c, f.s, a, time[0], &e), &e);
  good(compute_copy_and_stamp(seam.c, back, f.s, time[1], &e), &e);
  field_get(&f);
  assert_memory_equal(compute_host(seam.c, a), compute_host(seam.c, back), N * sizeof(float));
  assert_memory_equal(compute_host(seam.c, a), f.v, N * sizeof(float));
  uint64_t ns[2];
  memcpy(ns, compute_host(seam.c, time[0]), sizeof ns);
  bool clock = strcmp(seam.c->ops->name, "cpu") != 0;
  assert_true(clock ? ns[0] > 0 && ns[0] <= ns[1] : ns[0] == 0 && ns[1] == 0);
  compute_free(seam.c, in);
  compute_free(seam.c, out);
  compute_free(seam.c, times);
  field_drop(&f);
}

UNIT_TEST(test_activations_are_rounded) {
  static const float hard[] = {0.0f,       -0.0f,     1.0f,       -1.0f,     1.00390625f, 1.01171875f,
                               1.0009766f, 1.000488f, 1.0004884f, 65504.0f,  65519.0f,    65521.0f,
                               -70000.0f,  3.4e38f,   INFINITY,   -INFINITY, 6.1e-5f,     3.0e-5f,
                               6.0e-8f,    2.9e-8f,   1e-30f,     3.14159f,  -2.71828f,   0.1f};
  enum { HARD = sizeof hard / sizeof *hard, N = 3000 };
  struct field f;
  field_make(&f, COMPUTE_ACT, N, 5);
  float sent[N];
  for (size_t i = 0; i < N; i++) {
    sent[i] = i < HARD ? hard[i] : random_unit() * powf(2, (float)(i % 40) - 24);
    f.v[i] = sent[i];
  }
  field_put(&f);
  field_get(&f);
  for (size_t i = 0; i < N; i++) {
    double want = rounded((double)sent[i]);
    bool small = fabs(want) < 0x1p-14 && f.v[i] == 0.0f; /* a device may flush what is below normal */
    if (!small && (double)f.v[i] != want) fail_msg("%.9g became %.9g, not %.9g", (double)sent[i], (double)f.v[i], want);
  }
  f.v[0] = NAN;
  field_put(&f);
  field_get(&f);
  assert_true(isnan(f.v[0]));
  field_drop(&f);
}

UNIT_TEST(test_copies_on_the_device) {
  struct err e = ERR_INIT;
  struct field a, b;
  field_make(&a, COMPUTE_STATE, 1000, 7);
  field_make(&b, COMPUTE_STATE, 1000, 1);
  field_random(&a, 3);
  struct span from = {a.buf, a.s.at + 11, 501}, to = {b.buf, b.s.at + 400, 501};
  good(compute_copy(seam.c, to, from, &e), &e);
  field_get(&b);
  for (size_t i = 0; i < 1000; i++)
    if (i >= 400 && i < 901)
      assert_true(b.v[i] == a.v[i - 400 + 11]);
    else
      assert_true(isnan(b.v[i]));
  assert_int_equal(compute_copy(seam.c, (struct span){b.buf, 0, 3}, (struct span){a.buf, 0, 4}, &e), -EINVAL);
  field_drop(&a);
  field_drop(&b);
}

/* Also: the operation queued last is done last, through many copies over one range. */
UNIT_TEST(test_marks_are_in_order) {
  enum { N = 40 };
  struct err e = ERR_INIT;
  struct compute_buf *b, *stage;
  struct compute_mark marks[N];
  good(compute_alloc(seam.c, COMPUTE_STATE, 1, &b, &e), &e);
  good(compute_alloc(seam.c, COMPUTE_STAGE, 2 * N, &stage, &e), &e);
  for (size_t i = 0; i < N; i++) {
    *compute_host(seam.c, (struct span){stage, i, 1}) = (float)i + 0.5f;
    good(compute_copy(seam.c, (struct span){b, 0, 1}, (struct span){stage, i, 1}, &e), &e);
    good(compute_copy(seam.c, (struct span){stage, N + i, 1}, (struct span){b, 0, 1}, &e), &e);
    good(compute_record(seam.c, &marks[i], &e), &e);
  }
  for (size_t round = 0; round < 100000; round++) {
    int last = compute_done(seam.c, marks[N - 1], &e), seen = 0;
    assert_true(last == 0 || last == 1);
    for (size_t i = N; i-- > 0;) {
      int done = compute_done(seam.c, marks[i], &e);
      if (seen || last) assert_int_equal(done, 1);
      seen |= done;
      if (done) assert_true(*compute_host(seam.c, (struct span){stage, N + i, 1}) == (float)i + 0.5f);
    }
    if (last) break;
  }
  good(compute_wait(seam.c, marks[N - 1], 60000, &e), &e);
  compute_free(seam.c, b);
  compute_free(seam.c, stage);
}

/* compute_free waits: no queued operation may find its memory gone. */
UNIT_TEST(test_freed_while_queued) {
  struct err e = ERR_INIT;
  struct compute_buf *a, *b, *stage;
  good(compute_alloc(seam.c, COMPUTE_STATE, 100000, &a, &e), &e);
  good(compute_alloc(seam.c, COMPUTE_STATE, 100000, &b, &e), &e);
  good(compute_alloc(seam.c, COMPUTE_STAGE, 100000, &stage, &e), &e);
  struct span to = {stage, 0, 100000};
  for (size_t i = 0; i < 100000; i++) compute_host(seam.c, to)[i] = 4;
  good(compute_copy(seam.c, (struct span){a, 0, 100000}, to, &e), &e);
  good(compute_copy(seam.c, (struct span){b, 0, 100000}, (struct span){a, 0, 100000}, &e), &e);
  compute_free(seam.c, a);
  good(compute_copy(seam.c, to, (struct span){b, 0, 100000}, &e), &e);
  compute_free(seam.c, b);
  device_idle();
  for (size_t i = 0; i < 100000; i++) assert_true(compute_host(seam.c, to)[i] == 4.0f);
  compute_free(seam.c, stage);
}
