/* SPDX-License-Identifier: Apache-2.0 */
/* One update of all weights: two kernels, for any number of layers.
 *
 *   decide    Every block sums the squares of its part of the gradients, in double. The last one computes the norm,
 *             decides whether the update is skipped or blocked, and computes its factors. It counts exactly as compute/cpu.c does, and writes the counters to the
 *             host's memory.
 *   update    Reads and writes every weight, its gradient and its state once, with the copy in the precision. Does
 *             nothing if `decide` said no.
 *
 * The host takes no part, so steps can be queued ahead of their results.
 *
 * A checksum of weights, their state or gradients is one more kernel, and its sums are of integers. */

#include "agent/trainer/gpu/launch.cuh"

/* The sum of the squares of this thread's items. */
__device__ static double squares_of_thread(const float *g, size_t quads, size_t n) {
  const quad<float> *g4 = (const quad<float> *)g;
  double sum = 0;
  for (size_t i = first_item(); i < quads; i += item_stride()) {
    quad<float> v = g4[i];
    for (int k = 0; k < 4; k++) sum += (double)v.v[k] * (double)v.v[k];
  }
  for (size_t i = quads * 4 + first_item(); i < n; i += item_stride()) sum += (double)g[i] * (double)g[i];
  return sum;
}

__device__ static void write_counters(const struct compute_opt_counters *v, void *to) {
  for (size_t i = 0; i < sizeof *v / sizeof(uint32_t); i++)
    ((volatile uint32_t *)to)[i] = ((const uint32_t *)v)[i];
}

__global__ void decide_kernel(struct kernel_decide k, size_t quads, struct kernel_scratch *scratch) {
  if (!is_last_block(scratch, block_sum(squares_of_thread(k.grad, quads, k.d.n)))) return;
  double sum = total<double>(scratch);
  if (threadIdx.x > 0) return;
  struct kernel_control *c = k.control;
  c->go = 0.0f;
  float bad = k.bad ? *k.bad : 0.0f; /* infinite: the updates of another rank are blocked */
  if (*(const volatile unsigned *)k.blocked == 0 && !isinf(bad))
    c->go = compute_decide(&k.d, sum, bad != 0.0f, &c->v, &c->f) ? 1.0f : 0.0f;
  if (k.counters) write_counters(&c->v, k.counters);
}

int kernel_decide(cudaStream_t stream, const struct kernel_decide *k, struct kernel_scratch *scratch) {
  size_t quads = aligned(k->grad, sizeof(float)) ? k->d.n / 4 : 0;
  return LAUNCH(decide_kernel, blocks_for(quads ? quads : k->d.n), KERNEL_THREADS, stream, *k, quads, scratch);
}

/* One weight: changes its state, and returns the new weight. */
__device__ static inline float updated_weight(const struct compute_factors *f, float p, float g, float *m, float *v) {
  *m = f->b1 * *m + f->c1 * g;
  *v = f->b2 * *v + f->c2 * g * g;
  return p - f->rate * *m / (sqrtf(*v) * f->root + f->eps);
}

template <typename T>
__global__ void update_kernel(const struct kernel_control *control, float *p, T *low,
                              const float *g, float *m, float *v, size_t quads, size_t n) {
  struct kernel_control c = *control;
  if (c.go == 0.0f) return;
  for (size_t i = first_item(); i < quads; i += item_stride()) {
    quad<float> p4 = ((quad<float> *)p)[i], g4 = ((const quad<float> *)g)[i], m4 = ((quad<float> *)m)[i],
                v4 = ((quad<float> *)v)[i];
    quad<T> low4;
    for (int k = 0; k < 4; k++) {
      p4.v[k] = updated_weight(&c.f, p4.v[k], g4.v[k], &m4.v[k], &v4.v[k]);
      store(&low4.v[k], p4.v[k]);
    }
    ((quad<float> *)p)[i] = p4;
    ((quad<float> *)m)[i] = m4;
    ((quad<float> *)v)[i] = v4;
    if (low) ((quad<T> *)low)[i] = low4;
  }
  for (size_t i = quads * 4 + first_item(); i < n; i += item_stride()) {
    p[i] = updated_weight(&c.f, p[i], g[i], m + i, v + i);
    if (low) store(low + i, p[i]);
  }
}

template <typename T>
static int update(cudaStream_t stream, const struct kernel_control *control, const struct kernel_update *u) {
  bool wide = aligned(u->param, 4) && aligned(u->grad, 4) && aligned(u->state[0], 4) &&
              aligned(u->state[1], 4) && aligned(u->low, sizeof(T));
  size_t quads = wide ? u->n / 4 : 0;
  return LAUNCH(update_kernel<T>, blocks_for(quads ? quads : u->n), KERNEL_THREADS, stream, control, u->param, (T *)u->low,
                u->grad, u->state[0], u->state[1], quads, u->n);
}

int kernel_update(cudaStream_t stream, const struct kernel_control *control, const struct kernel_update *u) {
  if (u->n == 0) return 0;
  return BY_TYPE(u->type, update<T>(stream, control, u));
}

__global__ void checksum_kernel(const float *from, size_t n, uint64_t *out, struct kernel_scratch *scratch) {
  uint64_t sum = 0;
  for (size_t i = first_item(); i < n; i += item_stride())
    sum += compute_checksum_part(__float_as_uint(from[i]), (uint32_t)i);
  if (!is_last_block(scratch, block_sum(sum))) return;
  sum = total<uint64_t>(scratch);
  if (threadIdx.x == 0) *(volatile uint64_t *)out = sum;
}

int kernel_checksum(cudaStream_t stream, const float *from, size_t n, uint64_t *out, struct kernel_scratch *scratch) {
  return LAUNCH(checksum_kernel, blocks_for(n), KERNEL_THREADS, stream, from, n, out, scratch);
}

__global__ void control_set_kernel(struct kernel_control *control, struct compute_opt_counters v) {
  control->v = v;
}

int kernel_control_set(cudaStream_t stream, struct kernel_control *control, struct compute_opt_counters v) {
  return LAUNCH(control_set_kernel, 1, 1, stream, control, v);
}
