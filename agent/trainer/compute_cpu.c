/* The CPU's answer to compute.h: OpenBLAS for the matrix products, plain loops for the rest.
 *
 * Everything happens at once, in the caller's thread, so marks have nothing to wait for. A buffer is a
 * flat array of floats, aligned to a cache line, and everything has a host address.
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

#include "agent/trainer/compute.h"

#include "common/mem.h"

#include <cblas.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

struct compute_buf {
  float *data;
  size_t n;
};

struct compute_layer {
  struct compute_layer_desc d;
};

/* Only OpenBLAS has it; another cblas reads its own environment. */
extern void openblas_set_num_threads(int n) __attribute__((weak));

static float *at(struct span s) {
  return s.buf->data + s.at;
}

static void cpu_destroy(struct compute *c) {
  free(c);
}

static int cpu_alloc(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out,
                     struct err *e) {
  (void)use;
  size_t bytes = (n * sizeof(float) + 63) & ~(size_t)63;
  if (n > SIZE_MAX / 8) return err_set(e, -ENOMEM, "no memory for %zu values", n);
  float *data = aligned_alloc(64, bytes ? bytes : 64);
  if (!data) return err_set(e, -ENOMEM, "no memory for %zu values (%zu MB)", n, bytes >> 20);
  memset(data, 0, bytes);
  struct compute_buf *b = xmalloc(sizeof *b);
  *b = (struct compute_buf){data, n};
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
  return 0;
}

static int cpu_fill(struct compute *c, struct span dst, float value, struct err *e) {
  float *p = at(dst);
  for (size_t i = 0; i < dst.n; i++) p[i] = value;
  return 0;
}

static int cpu_record(struct compute *c, struct compute_mark *mark, struct err *e) {
  mark->n = 0;
  return 0;
}

static int cpu_wait(struct compute *c, struct compute_mark mark, uint64_t timeout_ms, struct err *e) {
  return 0;
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
  const float *bias = params->data + l->d.bias;
  float *py = at(y);
  if (rows == 0) return 0;
  for (size_t r = 0; r < rows; r++) memcpy(py + r * out, bias, out * sizeof(float));
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)out, (int)in, 1.0f, at(x), (int)in,
              params->data + l->d.weight, (int)in, 1.0f, py, (int)out);
  if (l->d.act == COMPUTE_RELU)
    for (size_t i = 0; i < rows * out; i++) py[i] = py[i] < 0.0f ? 0.0f : py[i]; /* a NaN stays one */
  return 0;
}

static int cpu_backward(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                        struct compute_buf *grads, struct span x, struct span dz, struct span dx, size_t rows,
                        struct err *e) {
  size_t in = l->d.in, out = l->d.out;
  float *dw = grads->data + l->d.weight, *db = grads->data + l->d.bias;
  memset(db, 0, out * sizeof(float));
  if (rows == 0) {
    memset(dw, 0, in * out * sizeof(float));
    return 0;
  }
  const float *pz = at(dz), *px = at(x);
  for (size_t r = 0; r < rows; r++)
    for (size_t o = 0; o < out; o++) db[o] += pz[r * out + o];
  cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)out, (int)in, (int)rows, 1.0f, pz, (int)out, px,
              (int)in, 0.0f, dw, (int)in);
  if (dx.n == 0) return 0;
  float *pd = at(dx);
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)in, (int)out, 1.0f, pz, (int)out,
              params->data + l->d.weight, (int)in, 0.0f, pd, (int)in);
  if (l->d.below == COMPUTE_RELU)
    for (size_t i = 0; i < rows * in; i++) pd[i] = px[i] > 0.0f ? pd[i] : 0.0f;
  return 0;
}

/* d/dy mean((y-t)^2) = 2 (y-t) / n;  d/dy sqrt(mean((y-t)^2)) = (y-t) / (n rmse), and 0 where the rmse is
 * 0. */
static double squared_loss(bool root, const float *y, const float *t, float *dz, size_t n, double weight) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) {
    float d = y[i] - t[i];
    dz[i] = d;
    sum += (double)d * (double)d;
  }
  double mean = sum / (double)n, value = root ? sqrt(mean) : mean;
  double factor = root ? (value == 0.0 ? 0.0 : weight / ((double)n * value)) : 2.0 * weight / (double)n;
  for (size_t i = 0; i < n; i++) dz[i] = (float)(factor * (double)dz[i]);
  return weight * value;
}

/* -log softmax(y)[class], shifted by the row's maximum so that no exponential overflows; dz = softmax(y) -
 * onehot. */
static double cross_entropy(const float *y, const float *t, float *dz, size_t rows, size_t cols,
                            double weight) {
  double loss = 0, factor = weight / (double)rows;
  for (size_t r = 0; r < rows; r++, y += cols, dz += cols) {
    size_t class = (size_t)t[r];
    float top = y[0];
    for (size_t j = 1; j < cols; j++) top = y[j] > top ? y[j] : top;
    double sum = 0;
    for (size_t j = 0; j < cols; j++) {
      dz[j] = expf(y[j] - top);
      sum += (double)dz[j];
    }
    loss += log(sum) - (double)(y[class] - top);
    for (size_t j = 0; j < cols; j++)
      dz[j] = (float)(factor * ((double)dz[j] / sum - (j == class ? 1.0 : 0.0)));
  }
  return factor * loss;
}

static int cpu_loss(struct compute *c, enum compute_loss kind, struct span y, struct span target,
                    struct span dz, struct span out, size_t rows, size_t cols, double weight, struct err *e) {
  double value = 0;
  if (rows > 0 && kind == COMPUTE_CROSS_ENTROPY)
    value = cross_entropy(at(y), at(target), at(dz), rows, cols, weight);
  else if (rows > 0)
    value = squared_loss(kind == COMPUTE_RMSE, at(y), at(target), at(dz), rows * cols, weight);
  at(out)[0] = (float)value;
  return 0;
}

static int cpu_sgd(struct compute *c, const struct compute_sgd *h, struct span param, struct span grad,
                   struct span momentum, struct err *e) {
  float *restrict p = at(param), *restrict m = at(momentum);
  const float *restrict g = at(grad);
  float lr = h->lr, mu = h->momentum;
  for (size_t i = 0; i < param.n; i++) {
    m[i] = mu * m[i] + g[i];
    p[i] -= lr * m[i];
  }
  return 0;
}

static int cpu_adam(struct compute *c, const struct compute_adam *h, struct span param, struct span grad,
                    struct span ms, struct span vs, struct err *e) {
  float *restrict p = at(param), *restrict m = at(ms), *restrict v = at(vs);
  const float *restrict g = at(grad);
  double t = (double)h->step, beta1 = (double)h->beta1, beta2 = (double)h->beta2;
  float b1 = h->beta1, b2 = h->beta2, c1 = 1.0f - b1, c2 = 1.0f - b2, eps = h->eps;
  float rate = (float)((double)h->lr / (1.0 - pow(beta1, t)));
  float root = (float)(1.0 / sqrt(1.0 - pow(beta2, t)));
  for (size_t i = 0; i < param.n; i++) {
    m[i] = b1 * m[i] + c1 * g[i];
    v[i] = b2 * v[i] + c2 * g[i] * g[i];
    p[i] -= rate * m[i] / (sqrtf(v[i]) * root + eps);
  }
  return 0;
}

static int cpu_sum_squares(struct compute *c, struct span x, struct span out, struct err *e) {
  const float *p = at(x);
  double sum[4] = {0}; /* four chains, so that one addition need not wait for the last */
  size_t i = 0;
  for (; i + 4 <= x.n; i += 4)
    for (int k = 0; k < 4; k++) sum[k] += (double)p[i + (size_t)k] * (double)p[i + (size_t)k];
  for (; i < x.n; i++) sum[0] += (double)p[i] * (double)p[i];
  at(out)[0] = (float)(sum[0] + sum[1] + sum[2] + sum[3]);
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
    .wait = cpu_wait,
    .layer_create = cpu_layer_create,
    .layer_destroy = cpu_layer_destroy,
    .forward = cpu_forward,
    .backward = cpu_backward,
    .loss = cpu_loss,
    .sgd = cpu_sgd,
    .adam = cpu_adam,
    .sum_squares = cpu_sum_squares,
};

struct compute *compute_cpu_create(int threads) {
  if (threads == 0 && !getenv("OPENBLAS_NUM_THREADS") && !getenv("OMP_NUM_THREADS")) threads = 1;
  if (threads > 0 && openblas_set_num_threads) openblas_set_num_threads(threads);
#if defined(__SSE2__)
  _mm_setcsr(_mm_getcsr() | 0x8040); /* flush to zero, denormals are zero */
#endif
  struct compute *c = xmalloc(sizeof *c);
  c->ops = &cpu_ops;
  return c;
}
