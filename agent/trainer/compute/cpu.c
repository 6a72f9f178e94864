/* The CPU's answer to compute.h: OpenBLAS for the matrix products, plain loops for the rest.
 *
 * Everything happens at once, in the caller's thread, so marks have nothing to wait for. A buffer is a
 * flat array of floats, aligned to a cache line, and everything has a host address.
 *
 * bf16 and fp16 are floats here too, rounded where a device would store them in fewer bits: weights, biases and inputs on their way into
 * a product, activations and their gradients when they are written. A product of two such floats is exact and sums are floats, so only the
 * order of sums differs from a device's. That is a reference for devices, not a way to be fast: a step takes longer than with fp32.
 *
 * Results must not depend on anything but the input, since a run that was interrupted has to end with the
 * same bytes as one that was not. So each sum has one fixed order, long sums are kept in double, and
 * OpenBLAS runs with one thread unless told otherwise: with four workers on one machine its own threads
 * would only fight each other.
 *
 * Matrices are row-major, as in the header; cblas is told so. A product with no rows is not given to
 * cblas, which refuses a leading dimension of 0; its result is written here.
 *
 * Denormals are flushed to zero on x86. Momentum of units that have died decays through them, and each
 * operation on one costs some hundred cycles; below 1e-38 nothing matters to training. */

#include "agent/trainer/compute_cpu.h"

#include "agent/trainer/compute/rounding.h"
#include "common/mem.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum { HUGE_PAGE = 2 << 20 };

struct compute_layer {
  struct compute_layer_desc d;
};

/* Only OpenBLAS has it; another cblas reads its own environment. */
extern void openblas_set_num_threads(int n) __attribute__((weak));

static void cpu_destroy(struct compute *c) {
  struct compute_cpu *cpu = (struct compute_cpu *)c;
  free(cpu->weights.data);
  free(cpu->bias.data);
  free(cpu->input.data);
  free(cpu);
}

static bool rounds(const struct compute *c) {
  return c->precision == COMPUTE_BF16 || c->precision == COMPUTE_FP16;
}

/* to == from is fine. */
static void round_all(enum compute_precision precision, float *to, const float *from, size_t n) {
  if (precision == COMPUTE_BF16)
    for (size_t i = 0; i < n; i++) to[i] = round_bf16(from[i]);
  if (precision == COMPUTE_FP16)
    for (size_t i = 0; i < n; i++) to[i] = round_fp16(from[i]);
}

static void round_act(struct compute *c, float *p, size_t n) {
  if (rounds(c)) round_all(c->precision, p, p, n);
}

/* p as a product reads it: p itself where nothing is rounded. */
static const float *operand(struct compute *c, struct rounded *r, const float *p, size_t n) {
  if (!rounds(c)) return p;
  if (r->n < n) {
    free(r->data);
    *r = (struct rounded){xmalloc(n * sizeof(float)), n};
  }
  round_all(c->precision, r->data, p, n);
  return r->data;
}

/* Activations are rounded already. */
static const float *input_of(struct compute *c, struct span x, size_t n) {
  if (x.buf->use == COMPUTE_ACT) return at(x);
  return operand(c, &((struct compute_cpu *)c)->input, at(x), n);
}

static const float *weights_of(struct compute *c, const struct compute_layer_desc *d,
                               const struct compute_buf *params) {
  return operand(c, &((struct compute_cpu *)c)->weights, params->data + d->weight, (size_t)d->in * d->out);
}

/* Large buffers lie in huge pages where the system has them for who asks: kernel and BLAS walk through them
 * many times a step, and spend less of it on looking up pages. */
static float *new_floats(size_t bytes) {
  size_t align = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : 64;
  size_t whole = (bytes + align - 1) & ~(align - 1);
  float *data = aligned_alloc(align, whole ? whole : align);
#ifdef MADV_HUGEPAGE
  if (data && align == HUGE_PAGE) madvise(data, whole, MADV_HUGEPAGE); /* where it cannot be: as before */
#endif
  return data;
}

static int cpu_alloc(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out,
                     struct err *e) {
  size_t bytes = n * sizeof(float);
  if (n > SIZE_MAX / 8) return err_set(e, -ENOMEM, "no memory for %zu values", n);
  float *data = new_floats(bytes);
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
  return at(s);
}

static int cpu_copy(struct compute *c, struct span dst, struct span src, struct err *e) {
  if (dst.n != src.n) return err_set(e, -EINVAL, "copy of %zu values to %zu", src.n, dst.n);
  if (dst.n) memmove(at(dst), at(src), dst.n * sizeof(float));
  if (dst.buf->use == COMPUTE_ACT) round_act(c, at(dst), dst.n);
  return 0;
}

static int cpu_fill(struct compute *c, struct span dst, float value, struct err *e) {
  float *p = at(dst);
  for (size_t i = 0; i < dst.n; i++) p[i] = value;
  if (dst.buf->use == COMPUTE_ACT) round_act(c, p, dst.n);
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

static int cpu_forward(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                       struct span y, size_t rows, struct err *e) {
  size_t in = l->d.in, out = l->d.out;
  float *py = at(y);
  if (rows == 0) return 0;
  const float *bias = operand(c, &((struct compute_cpu *)c)->bias, params->data + l->d.bias, out);
  for (size_t r = 0; r < rows; r++) memcpy(py + r * out, bias, out * sizeof(float));
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)out, (int)in, 1.0f,
              input_of(c, x, rows * in), (int)in, weights_of(c, &l->d, params), (int)in, 1.0f, py, (int)out);
  if (l->d.act == COMPUTE_RELU)
    for (size_t i = 0; i < rows * out; i++) py[i] = py[i] < 0.0f ? 0.0f : py[i]; /* a NaN stays one */
  round_act(c, py, rows * out);
  return 0;
}

static int cpu_backward(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                        struct compute_buf *grads, struct span x, struct span dz, struct span dx, size_t rows,
                        bool add, struct err *e) {
  size_t in = l->d.in, out = l->d.out;
  float *dw = grads->data + l->d.weight, *db = grads->data + l->d.bias;
  if (!add) memset(db, 0, out * sizeof(float));
  if (rows == 0) {
    if (!add) memset(dw, 0, in * out * sizeof(float));
    return 0;
  }
  const float *pz = at(dz), *px = input_of(c, x, rows * in);
  for (size_t r = 0; r < rows; r++)
    for (size_t o = 0; o < out; o++) db[o] += pz[r * out + o];
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)out, (int)in, (int)rows, 1.0f, pz, (int)out, px,
              (int)in, add ? 1.0f : 0.0f, dw, (int)in);
  if (dx.n == 0) return 0;
  float *pd = at(dx);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)in, (int)out, 1.0f, pz, (int)out,
              weights_of(c, &l->d, params), (int)in, 0.0f, pd, (int)in);
  if (l->d.below == COMPUTE_RELU)
    for (size_t i = 0; i < rows * in; i++) pd[i] = px[i] > 0.0f ? pd[i] : 0.0f;
  round_act(c, pd, rows * in);
  return 0;
}

enum { CHAINS = 8 }; /* sums side by side, so that one addition need not wait for the last */

static double sum_squared_differences(const float *restrict y, const float *restrict t, size_t n) {
  double sum[CHAINS] = {0};
  size_t i = 0;
  for (; i + CHAINS <= n; i += CHAINS)
    for (size_t k = 0; k < CHAINS; k++) {
      double d = (double)(y[i + k] - t[i + k]);
      sum[k] += d * d;
    }
  for (; i < n; i++) sum[0] += (double)(y[i] - t[i]) * (double)(y[i] - t[i]);
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* d/dy mean((y-t)^2) = 2 (y-t) / n;  d/dy sqrt(mean((y-t)^2)) = (y-t) / (n rmse), and 0 where the rmse is
 * 0. */
static double squared_loss(bool root, const float *y, const float *t, float *dz, size_t n, double weight,
                           double scale) {
  double mean = sum_squared_differences(y, t, n) / (double)n, value = root ? sqrt(mean) : mean;
  double factor = root ? (value == 0.0 ? 0.0 : weight / ((double)n * value)) : 2.0 * weight / (double)n;
  float by = (float)(scale * factor);
  for (size_t i = 0; dz && i < n; i++) dz[i] = by * (y[i] - t[i]);
  return weight * value;
}

/* -log softmax(y)[class], shifted by the row's maximum so that no exponential overflows; dz = softmax(y) -
 * onehot. */
static double cross_entropy(const float *y, const float *t, float *dz, size_t rows, size_t cols,
                            double weight, double scale) {
  double loss = 0, factor = weight / (double)rows;
  for (size_t r = 0; r < rows; r++, y += cols) {
    size_t class = (size_t)t[r];
    float top = y[0];
    for (size_t j = 1; j < cols; j++) top = y[j] > top ? y[j] : top;
    double sum = 0;
    for (size_t j = 0; j < cols; j++) sum += (double)expf(y[j] - top);
    loss += log(sum) - (double)(y[class] - top);
    for (size_t j = 0; dz && j < cols; j++)
      dz[r * cols + j] =
          (float)(scale * factor * ((double)expf(y[j] - top) / sum - (j == class ? 1.0 : 0.0)));
  }
  return factor * loss;
}

static int cpu_loss(struct compute *c, const struct compute_loss_desc *d, struct span y, struct span target,
                    struct span dz, struct span out, struct err *e) {
  double value = 0, scale = d->scale ? (double)compute_cpu_opt_scale(d->scale) : 1.0;
  float *pz = dz.buf ? at(dz) : NULL, *o = at(out);
  if (d->rows > 0 && d->kind == COMPUTE_CROSS_ENTROPY)
    value = cross_entropy(at(y), at(target), pz, d->rows, d->cols, d->weight, scale);
  else if (d->rows > 0)
    value = squared_loss(d->kind == COMPUTE_RMSE, at(y), at(target), pz, d->rows * d->cols, d->weight, scale);
  if (pz) round_act(c, pz, d->rows * d->cols);
  float bad = isfinite((float)value) ? 0.0f : 1.0f, who = bad > 0 ? d->who : 0.0f;
  o[0] = (d->add ? o[0] : 0.0f) + (float)value;
  o[1] = (d->add ? o[1] : 0.0f) + bad;
  o[2] = (d->add ? o[2] : 0.0f) + who;
  return 0;
}

static int cpu_correct(struct compute *c, struct span y, struct span target, struct span out, size_t rows,
                       size_t cols, struct err *e) {
  const float *p = at(y), *t = at(target);
  size_t n = 0;
  for (size_t r = 0; r < rows; r++, p += cols) {
    size_t best = 0;
    for (size_t j = 1; j < cols; j++) best = p[j] > p[best] ? j : best;
    n += best == (size_t)t[r];
  }
  at(out)[0] += (float)n;
  return 0;
}

static const struct compute_ops cpu_ops = {
    .name = "cpu",
    .destroy = cpu_destroy,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host = cpu_host,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .record = cpu_record,
    .done = cpu_done,
    .layer_create = cpu_layer_create,
    .layer_destroy = cpu_layer_destroy,
    .forward = cpu_forward,
    .backward = cpu_backward,
    .loss = cpu_loss,
    .correct = cpu_correct,
    .opt_create = compute_cpu_opt_create,
    .opt_destroy = compute_cpu_opt_destroy,
    .opt_state = compute_cpu_opt_state,
    .opt_step = compute_cpu_opt_step,
    .opt_read = compute_cpu_opt_read,
    .opt_set = compute_cpu_opt_set,
};

struct compute *compute_cpu_create(int threads, enum compute_precision precision) {
  if (threads == 0 && !getenv("OPENBLAS_NUM_THREADS") && !getenv("OMP_NUM_THREADS")) threads = 1;
  if (threads > 0 && openblas_set_num_threads) openblas_set_num_threads(threads);
#if defined(__SSE2__)
  _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
#endif
  struct compute_cpu *cpu = xcalloc(1, sizeof *cpu);
  cpu->base = (struct compute){.ops = &cpu_ops, .precision = precision, .device = "cpu"};
  return &cpu->base;
}
