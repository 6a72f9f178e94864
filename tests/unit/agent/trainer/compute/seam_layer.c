/* compute_forward and compute_backward against sums in double of the same rounded operands. Shapes: no rows, one row, widths of one and
 * of no multiple of 4 or 8, and some that are large; weights in the middle of the flat buffers, at odd offsets. */

#include "tests/unit/agent/trainer/compute/seam.h"

#include <math.h>
#include <string.h>

struct shape {
  size_t rows, in, out;
  bool first; /* the input is COMPUTE_INPUT, and no gradient of it is wanted */
  enum compute_act act, below;
};

static const struct shape shapes[] = {
    {1, 1, 1, true, COMPUTE_LINEAR, COMPUTE_LINEAR},     {0, 5, 3, false, COMPUTE_RELU, COMPUTE_RELU},
    {0, 8, 16, true, COMPUTE_RELU, COMPUTE_LINEAR},      {1, 7, 13, false, COMPUTE_RELU, COMPUTE_RELU},
    {7, 13, 5, false, COMPUTE_LINEAR, COMPUTE_RELU},     {5, 3, 1, false, COMPUTE_LINEAR, COMPUTE_LINEAR},
    {33, 1, 9, false, COMPUTE_RELU, COMPUTE_RELU},       {50, 30, 10, true, COMPUTE_RELU, COMPUTE_LINEAR},
    {64, 64, 64, false, COMPUTE_RELU, COMPUTE_RELU},     {128, 72, 40, false, COMPUTE_LINEAR, COMPUTE_RELU},
    {50, 1000, 100, true, COMPUTE_RELU, COMPUTE_LINEAR}, {50, 100, 1000, false, COMPUTE_LINEAR, COMPUTE_RELU},
    {300, 37, 129, false, COMPUTE_RELU, COMPUTE_RELU},   {1, 784, 128, true, COMPUTE_RELU, COMPUTE_LINEAR},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

struct bench {
  struct shape s;
  struct compute_layer_desc d;
  struct compute_layer *l;
  struct field params, grads, x, y, dz, dx;
};

static void bench_open(struct bench *b, const struct shape *s, size_t at, size_t max_rows) {
  struct err e = ERR_INIT;
  size_t w = s->in * s->out, n = at + w + s->out;
  *b = (struct bench){.s = *s};
  b->d = (struct compute_layer_desc){.in = (uint32_t)s->in,
                                     .out = (uint32_t)s->out,
                                     .act = s->act,
                                     .below = s->below,
                                     .weight = at,
                                     .bias = at + w,
                                     .max_rows = max_rows};
  field_make(&b->params, COMPUTE_PARAM, n, 0);
  field_make(&b->grads, COMPUTE_GRAD, n, 0);
  field_make(&b->x, s->first ? COMPUTE_INPUT : COMPUTE_ACT, s->rows * s->in, 0);
  field_make(&b->y, COMPUTE_ACT, s->rows * s->out, 0);
  field_make(&b->dz, COMPUTE_ACT, s->rows * s->out, 0);
  field_make(&b->dx, COMPUTE_ACT, s->rows * s->in, 0);
  field_random(&b->params, 0.5f);
  for (size_t i = 0; i < b->x.s.n; i++) {
    float v = random_unit();
    b->x.v[i] = s->below == COMPUTE_RELU ? (v > 0 ? v : 0.0f) : v;
  }
  field_put(&b->x);
  field_random(&b->dz, 1);
  good(compute_layer_create(seam.c, &b->d, &b->l, &e), &e);
}

static void bench_close(struct bench *b) {
  struct field *all[] = {&b->params, &b->grads, &b->x, &b->y, &b->dz, &b->dx};
  compute_layer_destroy(seam.c, b->l);
  for (size_t i = 0; i < 6; i++) field_drop(all[i]);
}

/* As a matrix product reads it. */
static double operand(float v) {
  return rounded((double)v);
}

static void check_forward(struct bench *b) {
  struct err e = ERR_INIT;
  good(compute_forward(seam.c, b->l, b->params.buf, b->x.s, b->y.s, b->s.rows, &e), &e);
  field_get(&b->y);
  for (size_t r = 0; r < b->s.rows; r++)
    for (size_t o = 0; o < b->s.out; o++) {
      const float *w = b->params.v + b->d.weight + o * b->s.in, *x = b->x.v + r * b->s.in;
      double bias = (double)b->params.v[b->d.bias + o], sum = bias, mass = fabs(bias);
      for (size_t i = 0; i < b->s.in; i++) {
        double term = operand(x[i]) * operand(w[i]);
        sum += term;
        mass += fabs(term);
      }
      /* The bias may be read in the precision as well. */
      if (seam.p >= COMPUTE_BF16) mass += fabs(bias - operand((float)bias)) / seam.sum;
      double want = b->s.act == COMPUTE_RELU && sum < 0 ? 0.0 : sum;
      expect_sum((double)b->y.v[r * b->s.out + o], want, mass, true, "y", r * b->s.out + o);
    }
}

static void check_weight_grad(struct bench *b, const float *before, bool add) {
  for (size_t o = 0; o < b->s.out; o++)
    for (size_t i = 0; i <= b->s.in; i++) { /* i == in: the bias */
      size_t at = i < b->s.in ? b->d.weight + o * b->s.in + i : b->d.bias + o;
      double sum = add ? (double)before[at] : 0.0, mass = fabs(sum);
      for (size_t r = 0; r < b->s.rows; r++) {
        double term = operand(b->dz.v[r * b->s.out + o]);
        if (i < b->s.in) term *= operand(b->x.v[r * b->s.in + i]);
        sum += term;
        mass += fabs(term);
      }
      expect_sum((double)b->grads.v[at], sum, mass, false, i < b->s.in ? "dw" : "db", at);
    }
  for (size_t i = 0; i < b->d.weight; i++)
    if (add)
      assert_true(b->grads.v[i] == before[i]);
    else
      assert_true(isnan(b->grads.v[i])); /* the layers before it are nobody's business here */
}

static void check_input_grad(struct bench *b) {
  field_get(&b->dx);
  for (size_t r = 0; r < b->s.rows; r++)
    for (size_t i = 0; i < b->s.in; i++) {
      double sum = 0, mass = 0;
      for (size_t o = 0; o < b->s.out; o++) {
        double term =
            operand(b->dz.v[r * b->s.out + o]) * operand(b->params.v[b->d.weight + o * b->s.in + i]);
        sum += term;
        mass += fabs(term);
      }
      bool shut = b->s.below == COMPUTE_RELU && !(b->x.v[r * b->s.in + i] > 0);
      expect_sum((double)b->dx.v[r * b->s.in + i], shut ? 0.0 : sum, shut ? 0.0 : mass, true, "dx",
                 r * b->s.in + i);
    }
}

static void check_backward(struct bench *b, bool add) {
  struct err e = ERR_INIT;
  size_t bytes = b->grads.s.n * sizeof(float);
  float *before = test_malloc(bytes);
  if (add)
    field_random(&b->grads, 2);
  else
    field_poison(&b->grads);
  field_poison(&b->dx);
  memcpy(before, b->grads.v, bytes);
  struct span dx = b->s.first ? (struct span){0} : b->dx.s;
  good(compute_backward(seam.c, b->l, b->params.buf, b->grads.buf, b->x.s, b->dz.s, dx, b->s.rows, add, &e),
       &e);
  field_get(&b->grads);
  check_weight_grad(b, before, add);
  if (!b->s.first) check_input_grad(b);
  field_get(&b->x); /* inputs stay */
  test_free(before);
}

static void layers_of_many_shapes(void **state) {
  for (size_t i = 0; i < SHAPES; i++) {
    struct bench b;
    bench_open(&b, &shapes[i], i % 2 ? 2 * i + 1 : 0, shapes[i].rows + i % 3 + (shapes[i].rows == 0));
    check_forward(&b);
    check_backward(&b, false);
    check_backward(&b, true);
    bench_close(&b);
  }
}

/* One layer, batches of changing size, as at the end of an epoch and in an evaluation. */
static void rows_change(void **state) {
  static const size_t rows[] = {17, 3, 0, 17, 1, 16};
  struct shape s = {17, 12, 11, false, COMPUTE_RELU, COMPUTE_RELU};
  struct bench one, b;
  bench_open(&one, &s, 3, 17);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    s.rows = rows[i];
    bench_open(&b, &s, 3, 17);
    struct compute_layer *own = b.l;
    b.l = one.l;
    check_forward(&b);
    check_backward(&b, i % 2);
    b.l = own;
    bench_close(&b);
  }
  bench_close(&one);
}

static void a_weight_that_is_written_is_read(void **state) {
  struct err e = ERR_INIT;
  struct shape s = {4, 9, 6, true, COMPUTE_LINEAR, COMPUTE_LINEAR};
  struct bench b;
  bench_open(&b, &s, 0, 4);
  check_forward(&b);
  field_random(&b.params, 2); /* by copy: the copy in the precision follows */
  check_forward(&b);
  good(compute_fill(seam.c, b.params.s, 0.25f, &e), &e); /* by fill */
  for (size_t i = 0; i < b.params.s.n; i++) b.params.v[i] = 0.25f;
  check_forward(&b);
  bench_close(&b);
}

/* In its own row, and no other. A ReLU may make 0 of it, as the maximum of a NaN and 0 on a GPU; a layer without one may not. */
static void a_nan_stays_in_its_row(void **state) {
  for (int act = COMPUTE_LINEAR; act <= COMPUTE_RELU; act++) {
    struct err e = ERR_INIT;
    struct shape s = {3, 4, 5, false, (enum compute_act)act, COMPUTE_RELU};
    struct bench b;
    int nans = 0;
    bench_open(&b, &s, 0, 3);
    b.x.v[4] = NAN; /* row 1 */
    field_put(&b.x);
    good(compute_forward(seam.c, b.l, b.params.buf, b.x.s, b.y.s, 3, &e), &e);
    field_get(&b.y);
    for (size_t i = 0; i < 15; i++) {
      if (i / 5 != 1) assert_false(isnan(b.y.v[i]));
      nans += isnan(b.y.v[i]) != 0;
    }
    assert_true(nans == 5 || (act == COMPUTE_RELU && nans == 0));
    bench_close(&b);
  }
}

const struct CMUnitTest seam_layer_tests[] = {
    cmocka_unit_test(layers_of_many_shapes),
    cmocka_unit_test(rows_change),
    cmocka_unit_test(a_weight_that_is_written_is_read),
    cmocka_unit_test(a_nan_stays_in_its_row),
};
const size_t n_seam_layer_tests = sizeof seam_layer_tests / sizeof *seam_layer_tests;
