/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's implementation of compute.h: OpenBLAS for matrix products, plain loops for the rest. Each call does its
 * work at once, in the caller's thread, so marks have nothing to wait for.
 *
 * bf16 values are floats here too, rounded wherever a device would store fewer bits. A product of two such floats is
 * exact and sums are floats, so only the order of sums differs from a device's.
 *
 * An interrupted run has to end with the same bytes as an uninterrupted one. So each sum has one fixed order, long sums
 * are double, and OpenBLAS runs one thread by default.
 *
 * OpenBLAS multiplies small matrices where they lie. Before a larger product it copies both operands, which pays for
 * large matrices alone: the copies also drive weights and gradients out of the second cache. So a product of medium
 * size is cut into small ones (multiply). A step of 1000-100-1000 at batch 64 then takes 0.88 ms instead of 0.92 ms
 * with one rank, and 1.01 ms instead of 1.27 ms with four (medians of 9 runs in turn, two cores).
 *
 * Denormals are flushed to zero on x86. The momentum of dead units decays through them, and each operation on one costs
 * hundreds of cycles. */

#include "agent/trainer/compute/compute.h"

#include "agent/trainer/compute/loops.h"
#include "agent/trainer/rng.h"
#include "common/mem.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

struct compute_buf {
  float *data;
  size_t n;
  enum compute_use use;
};

/* Floats that a product reads, rounded to the precision. The buffer grows on demand. */
struct rounded {
  float *data;
  size_t n;
};

struct compute_cpu {
  struct compute base;
  bool cuts; /* products of medium size: OpenBLAS has one thread */
  struct rounded weights, bias, input;
};

static float *floats_at(struct span s) {
  return s.buf->data + s.at;
}

enum { HUGE_PAGE = 2 << 20 };

struct compute_opt {
  struct compute_opt_desc d;
  struct compute_opt_counters v;
  struct compute_buf *state[COMPUTE_STATES];
};

struct compute_layer {
  struct compute_layer_desc d;
};

/* Only OpenBLAS has it; other cblas libraries read the environment. */
extern void openblas_set_num_threads(int n) __attribute__((weak));
extern int openblas_get_num_threads(void) __attribute__((weak));
extern char *openblas_get_config(void) __attribute__((weak));
extern char *openblas_get_corename(void) __attribute__((weak));

static void cpu_destroy(struct compute *c) {
  struct compute_cpu *cpu = (struct compute_cpu *)c;
  free(cpu->weights.data);
  free(cpu->bias.data);
  free(cpu->input.data);
  free(cpu);
}

static bool is_rounded(const struct compute *c) {
  return c->precision == COMPUTE_BF16;
}

/* to may equal from. */
static void round_all(float *to, const float *from, size_t n) {
  for (size_t i = 0; i < n; i++) to[i] = round_bf16(from[i]);
}

static void round_act(struct compute *c, float *p, size_t n) {
  if (is_rounded(c)) round_all(p, p, n);
}

/* p as a product reads it: p itself if the precision does not round. */
static const float *rounded_operand(struct compute *c, struct rounded *r, const float *p, size_t n) {
  if (!is_rounded(c)) return p;
  if (r->n < n) {
    free(r->data);
    *r = (struct rounded){xmalloc(n * sizeof(float)), n};
  }
  round_all(r->data, p, n);
  return r->data;
}

/* Activations are already rounded. */
static const float *input_operand(struct compute *c, struct span x, size_t n) {
  if (x.buf->use == COMPUTE_ACT) return floats_at(x);
  return rounded_operand(c, &((struct compute_cpu *)c)->input, floats_at(x), n);
}

static const float *weights_operand(struct compute *c, const struct compute_layer_desc *d,
                                    const struct compute_buf *params) {
  return rounded_operand(c, &((struct compute_cpu *)c)->weights, params->data + d->weight, (size_t)d->in * d->out);
}

static int cpu_alloc(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out, struct err *e) {
  size_t bytes = n * sizeof(float);
  if (n > SIZE_MAX / 8) return err_set(e, -ENOMEM, "no memory for %zu values", n);
  /* Large buffers lie in huge pages if the system has them: the kernel and BLAS walk through them many times a step, and
   * need fewer page look-ups. */
  size_t align = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : 64, whole = (bytes + align - 1) & ~(align - 1);
  float *data = aligned_alloc(align, whole ? whole : align);
#ifdef MADV_HUGEPAGE
  if (data && align == HUGE_PAGE) madvise(data, whole, MADV_HUGEPAGE); /* a hint; a failure does no harm */
#endif
  if (!data) return err_set(e, -ENOMEM, "no memory for %zu values (%zu MB)", n, bytes >> 20);
  memset(data, 0, bytes);
  struct compute_buf *b = xmalloc(sizeof *b);
  *b = (struct compute_buf){data, n, use};
  *out = b;
  return 0;
}

static void cpu_free(struct compute *c, struct compute_buf *b) {
  free(b->data);
  free(b);
}

static float *cpu_host(struct compute *c, struct span s) {
  return floats_at(s);
}

static int cpu_copy(struct compute *c, struct span dst, struct span src, struct err *e) {
  if (dst.n != src.n) return err_set(e, -EINVAL, "copy of %zu values to %zu", src.n, dst.n);
  if (dst.n) memmove(floats_at(dst), floats_at(src), dst.n * sizeof(float));
  if (dst.buf->use == COMPUTE_ACT) round_act(c, floats_at(dst), dst.n);
  return 0;
}

static int cpu_record(struct compute *c, struct compute_mark *mark, struct err *e) {
  mark->n = 0;
  return 0;
}

static int cpu_done(struct compute *c, struct compute_mark mark, struct err *e) {
  return 1;
}

static int cpu_layer_create(struct compute *c, const struct compute_layer_desc *d, struct compute_layer **out,
                            struct err *e) {
  struct compute_layer *l = xmalloc(sizeof *l);
  l->d = *d;
  *out = l;
  return 0;
}

static void cpu_layer_destroy(struct compute *c, struct compute_layer *l) {
  free(l);
}

/* c[m][n] = activation(sum over k of a[m][k] b[k][n] + bias[n]). A transposed operand lies in memory as [k][m] or
 * [n][k]. The rows of each matrix lie a_row, b_row or c_row floats apart. */
struct product {
  size_t m, n, k; /* none is 0 */
  const float *a, *b;
  float *c;
  bool a_transposed, b_transposed;
  size_t a_row, b_row, c_row;
  bool add;          /* to what c has, instead of overwriting it; not with the three below */
  const float *bias; /* n values, or NULL */
  bool relu;         /* a negative result becomes 0, a NaN stays */
  const float *gate; /* in the layout of c, or NULL: where it is not above 0, the result becomes 0 */
};

enum {
  IN_PLACE = 1000000, /* multiplications of a product for which OpenBLAS copies nothing */
  RESULTS_MAX = 1200, /* the same with a transposed b: its results */
  ROWS_MAX = 32,      /* with more rows they have too few columns */
  MEDIUM = 8 * IN_PLACE,
  PIECE_MIN = 8 /* rows, columns or summands */
};

static void sgemm(const struct product *p) {
  cblas_sgemm(CblasRowMajor, p->a_transposed ? CblasTrans : CblasNoTrans, p->b_transposed ? CblasTrans : CblasNoTrans,
              (int)p->m, (int)p->n, (int)p->k, 1.0f, p->a, (int)p->a_row, p->b, (int)p->b_row, p->add ? 1.0f : 0.0f,
              p->c, (int)p->c_row);
}

/* Cuts the rows of c if a is transposed, the columns of c if b is, and the summands otherwise. */
static void sgemm_in_pieces(const struct product *p) {
  struct product q = *p;
  bool by_k = !p->a_transposed && !p->b_transposed;
  size_t *size = p->a_transposed ? &q.m : p->b_transposed ? &q.n : &q.k, all = *size;
  size_t each = IN_PLACE / (p->m * p->n * p->k / all);
  if (p->b_transposed && each > RESULTS_MAX / p->m) each = RESULTS_MAX / p->m;
  if (each >= 32) each -= each % 16; /* whole vectors */
  if (each < PIECE_MIN) each = all;
  for (size_t at = 0; at < all; at += each) {
    *size = all - at < each ? all - at : each;
    q.a = p->a + (p->b_transposed ? 0 : at);
    q.b = p->b + (p->a_transposed ? 0 : at * p->b_row);
    q.c = p->c + (by_k ? 0 : p->a_transposed ? at * p->c_row : at);
    q.add = p->add || (by_k && at > 0);
    sgemm(&q);
  }
}

static void multiply(struct compute *c, struct product p) {
  size_t work = p.m * p.n * p.k;
  for (size_t r = 0; p.bias && r < p.m; r++) memcpy(p.c + r * p.c_row, p.bias, p.n * sizeof(float));
  p.add = p.add || p.bias;
  if (((struct compute_cpu *)c)->cuts && work <= MEDIUM && (!p.b_transposed || p.m <= ROWS_MAX))
    sgemm_in_pieces(&p);
  else
    sgemm(&p);
  for (size_t r = 0; p.relu && r < p.m; r++)
    for (float *y = p.c + r * p.c_row, *end = y + p.n; y < end; y++) *y = *y < 0.0f ? 0.0f : *y;
  for (size_t r = 0; p.gate && r < p.m; r++)
    for (size_t i = r * p.c_row; i < r * p.c_row + p.n; i++) p.c[i] = p.gate[i] > 0.0f ? p.c[i] : 0.0f;
}

static int cpu_forward(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                       struct span y, size_t rows, struct err *e) {
  size_t in = l->d.in, out = l->d.out;
  float *py = floats_at(y);
  if (rows == 0) return 0;
  struct product p = {.m = rows, .n = out, .k = in, .b_transposed = true, .a_row = in, .b_row = in, .c_row = out};
  p.a = input_operand(c, x, rows * in);
  p.b = weights_operand(c, &l->d, params);
  p.c = py;
  p.bias = rounded_operand(c, &((struct compute_cpu *)c)->bias, params->data + l->d.bias, out);
  p.relu = l->d.relu;
  multiply(c, p);
  round_act(c, py, rows * out);
  return 0;
}

static int cpu_backward_weight(struct compute *c, struct compute_layer *l, struct compute_buf *grads, struct span x,
                               struct span dz, struct compute_part part, size_t rows, struct err *e) {
  size_t in = l->d.in, out = l->d.out;
  float *dw = grads->data + l->d.weight + part.from * in;
  const float *pz = floats_at(dz);
  if (part.from + part.n == out) { /* with the last part: the gradient of the whole bias */
    float *db = grads->data + l->d.bias;
    memset(db, 0, out * sizeof(float));
    for (size_t r = 0; r < rows; r++) loops_add(db, pz + r * out, out);
  }
  if (rows == 0) memset(dw, 0, part.n * in * sizeof(float));
  if (rows == 0) return 0;
  struct product p = {.m = part.n, .n = in, .k = rows, .a_transposed = true, .a_row = out, .b_row = in, .c_row = in};
  p.a = pz + part.from;
  p.b = input_operand(c, x, rows * in);
  p.c = dw;
  multiply(c, p);
  return 0;
}

static int cpu_backward_input(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                              struct span dz, struct span dx, size_t rows, struct err *e) {
  size_t in = l->d.in, out = l->d.out;
  float *pd = floats_at(dx);
  if (rows == 0) return 0;
  struct product p = {.m = rows, .n = in, .k = out, .a_row = out, .b_row = in, .c_row = in};
  p.a = floats_at(dz);
  p.b = weights_operand(c, &l->d, params);
  p.c = pd;
  p.gate = floats_at(x);
  multiply(c, p);
  round_act(c, pd, rows * in);
  return 0;
}

/* -log softmax(y)[class], shifted by the row's maximum so that no exponential overflows; dz = softmax(y) -
 * onehot. */
static double cross_entropy(const float *y, const float *t, float *dz, size_t rows, size_t cols, double weight) {
  double loss = 0, factor = weight / (double)rows;
  for (size_t r = 0; r < rows; r++, y += cols) {
    size_t class = (size_t)t[r];
    float top = y[0];
    for (size_t j = 1; j < cols; j++) top = y[j] > top ? y[j] : top;
    double sum = 0;
    for (size_t j = 0; j < cols; j++) sum += (double)expf(y[j] - top);
    loss += log(sum) - (double)(y[class] - top);
    for (size_t j = 0; j < cols; j++)
      dz[r * cols + j] = (float)(factor * ((double)expf(y[j] - top) / sum - (j == class ? 1.0 : 0.0)));
  }
  return factor * loss;
}

static int cpu_loss(struct compute *c, const struct compute_loss_desc *d, struct span y, struct span target,
                    struct span dz, struct span out, struct err *e) {
  double value = 0;
  size_t n = d->rows * d->cols;
  float *pz = floats_at(dz), *o = floats_at(out);
  const float *py = floats_at(y), *pt = floats_at(target);
  if (d->rows > 0 && d->kind == COMPUTE_CROSS_ENTROPY) {
    value = cross_entropy(py, pt, pz, d->rows, d->cols, d->weight);
  } else if (d->rows > 0) {
    /* d/dy mean((y-t)^2) = 2 (y-t) / n;  d/dy sqrt(mean((y-t)^2)) = (y-t) / (n rmse), and 0 where the rmse is 0 */
    bool root = d->kind == COMPUTE_RMSE;
    double mean = loops_sum_squared_differences(py, pt, n) / (double)n, loss = root ? sqrt(mean) : mean;
    double factor = root ? (loss == 0.0 ? 0.0 : d->weight / ((double)n * loss)) : 2.0 * d->weight / (double)n;
    loops_scale_differences(pz, py, pt, (float)factor, n);
    value = d->weight * loss;
  }
  round_act(c, pz, n);
  float bad = isfinite((float)value) ? 0.0f : 1.0f, rank_tag = bad > 0 ? d->rank_tag : 0.0f;
  o[0] = (float)value;
  o[1] = bad;
  o[2] = rank_tag;
  return 0;
}

static void cpu_opt_destroy(struct compute *c, struct compute_opt *o) {
  for (int i = 0; i < COMPUTE_STATES; i++) compute_free(c, o->state[i]);
  free(o);
}

static int cpu_opt_create(struct compute *c, const struct compute_opt_desc *d, struct compute_opt **out,
                          struct err *e) {
  struct compute_opt *o = xcalloc(1, sizeof *o);
  o->d = *d;
  for (int i = 0; i < COMPUTE_STATES; i++) {
    int rc = compute_alloc(c, COMPUTE_STATE, d->n, &o->state[i], e);
    if (rc) {
      cpu_opt_destroy(c, o);
      return rc;
    }
  }
  *out = o;
  return 0;
}

static struct compute_buf *cpu_opt_state(struct compute_opt *o, int i) {
  return o->state[i];
}

static int cpu_opt_step(struct compute *c, struct compute_opt *o, const struct compute_update *u, struct err *e) {
  if (u->param.n != o->d.n || u->grad.n != o->d.n)
    return err_set(e, -EINVAL, "an update of %zu weights by %zu gradients, for %zu", u->param.n, u->grad.n, o->d.n);
  bool blocked = u->bad.n && isinf(floats_at(u->bad)[0]), bad = u->bad.n && floats_at(u->bad)[0] != 0.0f;
  float *p = floats_at(u->param), *g = floats_at(u->grad);
  struct compute_factors f;
  if (!blocked && compute_decide(&o->d, loops_sum_squares(g, u->grad.n), bad, &o->v, &f))
    loops_adam(&f, p, o->state[0]->data, o->state[1]->data, g, u->param.n);
  if (u->counters.n) memcpy(floats_at(u->counters), &o->v, sizeof o->v);
  return 0;
}

static int cpu_opt_read(struct compute *c, struct compute_opt *o, struct span stage, struct err *e) {
  memcpy(floats_at(stage), &o->v, sizeof o->v);
  return 0;
}

static int cpu_opt_set(struct compute *c, struct compute_opt *o, const struct compute_opt_counters *v, struct err *e) {
  o->v = *v;
  return 0;
}

static int cpu_checksum(struct compute *c, struct span s, struct span out, struct err *e) {
  uint64_t sum = loops_checksum(floats_at(s), s.n);
  memcpy(floats_at(out), &sum, sizeof sum);
  return 0;
}

static const struct compute_ops cpu_ops = {
    .name = "cpu",
    .destroy = cpu_destroy,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host = cpu_host,
    .copy = cpu_copy,
    .record = cpu_record,
    .done = cpu_done,
    .layer_create = cpu_layer_create,
    .layer_destroy = cpu_layer_destroy,
    .forward = cpu_forward,
    .backward_weight = cpu_backward_weight,
    .backward_input = cpu_backward_input,
    .loss = cpu_loss,
    .opt_create = cpu_opt_create,
    .opt_destroy = cpu_opt_destroy,
    .opt_state = cpu_opt_state,
    .opt_step = cpu_opt_step,
    .opt_read = cpu_opt_read,
    .opt_set = cpu_opt_set,
    .checksum = cpu_checksum,
};

/* OpenBLAS's version, the kernels that it chose for this CPU, and its threads: they decide the order of its sums. 0: another
 * cblas, which does not tell. */
static uint64_t cpu_kind(void) {
  char text[256];
  if (!openblas_get_config || !openblas_get_corename || !openblas_get_num_threads) return 0;
  snprintf(text, sizeof text, "%s %s %d", openblas_get_config(), openblas_get_corename(), openblas_get_num_threads());
  return rng_text(text);
}

struct compute *compute_cpu_create(enum compute_precision precision) {
  if (openblas_set_num_threads && !getenv("OPENBLAS_NUM_THREADS") && !getenv("OMP_NUM_THREADS"))
    openblas_set_num_threads(1);
#if defined(__SSE2__)
  _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
#endif
  struct compute_cpu *cpu = xcalloc(1, sizeof *cpu);
  cpu->cuts = !openblas_get_num_threads || openblas_get_num_threads() == 1;
  cpu->base = (struct compute){.ops = &cpu_ops, .precision = precision, .device = "cpu", .kind = cpu_kind()};
  return &cpu->base;
}

/* The same for every device. --------------------------------------------------------------------------------------- */

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Asks the device at once, then after pauses that grow to a millisecond. So a short wait ends early, and a long one needs
 * little of a core. */
int compute_wait(struct compute *c, struct compute_mark mark, uint64_t timeout_ms, struct err *e) {
  uint64_t from = now_us();
  for (;;) {
    int rc = compute_done(c, mark, e);
    if (rc) return rc < 0 ? rc : 0;
    uint64_t us = now_us() - from;
    if (us > timeout_ms * 1000)
      return err_set(e, -ETIMEDOUT, "the device (%s) did not finish the queued work within %llu ms", c->device,
                     (unsigned long long)timeout_ms);
    long pause = us < 50 ? 0 : us < 4000 ? 20 : 1000;
    struct timespec ts = {.tv_nsec = pause * 1000};
    if (pause) nanosleep(&ts, NULL);
  }
}

int compute_rows_create(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out,
                        struct err *e) {
  *out = NULL;
  if (!c->ops->rows_create) return err_set(e, -ENOTSUP, "%s does not keep data sets", c->device);
  return c->ops->rows_create(c, d, out, e);
}

int compute_copy_and_stamp(struct compute *c, struct span dst, struct span src, struct span stamp, struct err *e) {
  if (c->ops->copy_and_stamp) return c->ops->copy_and_stamp(c, dst, src, stamp, e);
  return dst.n ? c->ops->copy(c, dst, src, e) : 0;
}
