/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/profiler/meter.h"

enum kind { NOTHING, COLL, KERNEL, SENDS, RECEIVES, STEP };

/* kind: 4 bits, index + 1: 12 bits, serial: 48 bits. */
static uint64_t handle(enum kind kind, unsigned index, uint64_t serial) {
  return (uint64_t)kind << 60 | (uint64_t)(index + 1) << 48 | (serial & UINT64_C(0xffffffffffff));
}

static enum kind kind_of(uint64_t h) {
  return (enum kind)(h >> 60);
}

static uint64_t serial_of(uint64_t h) {
  return h & UINT64_C(0xffffffffffff);
}

unsigned meter_index(uint64_t h) {
  unsigned at = (unsigned)(h >> 48 & 0xfff);
  return at && at <= METER_GROUPS ? at - 1 : METER_GROUPS;
}

/* A collective's is only that of the call which has enqueued it. The GPU's own time of a kernel comes as a state. */
bool meter_needs_stop(const struct meter_group *g, uint64_t h) {
  return kind_of(h) == STEP || (!g->kernels && (kind_of(h) == SENDS || kind_of(h) == RECEIVES));
}

static void add(_Atomic uint64_t *sum, uint64_t n, bool one_thread) {
  if (one_thread)
    atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + n, memory_order_relaxed);
  else
    atomic_fetch_add_explicit(sum, n, memory_order_relaxed);
}

void meter_clock(struct meter_group *g, uint64_t gpu, uint64_t cpu_ns) {
  atomic_store_explicit(&g->clock_asked, false, memory_order_relaxed);
  if (!g->gpu_begun || gpu <= g->gpu_begun) {
    g->gpu_begun = gpu;
    g->cpu_begun_ns = cpu_ns;
    return;
  }
  static const uint32_t ticks_ns[] = {1, 10, 40}; /* NVIDIA's; AMD's since MI300; before */
  uint64_t cpu = cpu_ns - g->cpu_begun_ns;
  for (size_t i = 0; cpu >= METER_CLOCK_NS && i < sizeof(ticks_ns) / sizeof(*ticks_ns); i++) {
    uint64_t ns = (gpu - g->gpu_begun) * ticks_ns[i];
    if (5 * ns > 4 * cpu && 5 * ns < 6 * cpu) atomic_store_explicit(&g->tick_ns, ticks_ns[i], memory_order_relaxed);
  }
}

uint64_t meter_collective(struct meter_group *g, unsigned index) {
  uint64_t serial = atomic_fetch_add_explicit(&g->next_coll, 1, memory_order_relaxed) + 1;
  struct meter_coll *c = &g->colls[serial % METER_COLLS];
  c->entered = c->left = c->counted = 0;
  c->is_counted = false;
  atomic_store_explicit(&c->serial, serial, memory_order_release);
  return handle(COLL, index, serial);
}

static struct meter_coll *find_coll(struct meter_group *g, uint64_t h) {
  struct meter_coll *c = &g->colls[serial_of(h) % METER_COLLS];
  return atomic_load_explicit(&c->serial, memory_order_acquire) == serial_of(h) ? c : NULL;
}

static void enter(struct meter_coll *c, uint64_t now) {
  if (!c->entered || now < c->entered) c->entered = now;
}

/* Channels leave one after the other, and nothing says which one is the last: so the sums grow with each. */
static void leave(struct meter_group *g, struct meter_coll *c, uint64_t now) {
  if (now > c->left) c->left = now;
  if (now < c->entered) atomic_store_explicit(&g->miscounted, g->kernels, memory_order_relaxed);
  if (!c->entered || c->left < c->entered) return;
  if (!c->is_counted) add(&g->sums.collectives, 1, g->kernels);
  c->is_counted = true;
  uint64_t all = c->left - c->entered;
  if (all > c->counted) add(&g->sums.waited, all - c->counted, g->kernels), c->counted = all;
}

uint64_t meter_kernel(struct meter_group *g, uint64_t coll, uint64_t now) {
  struct meter_coll *c = g->kernels && kind_of(coll) == COLL ? find_coll(g, coll) : NULL;
  if (!c || !now) return 0;
  enter(c, now);
  return handle(KERNEL, meter_index(coll), serial_of(coll));
}

static bool has_timed_sends(uint64_t h) {
  return serial_of(h) % METER_WIRE_EVERY == 0;
}

uint64_t meter_proxy(struct meter_group *g, uint64_t coll, bool sends, uint64_t bytes) {
  if (kind_of(coll) != COLL || (g->kernels && !(sends && has_timed_sends(coll)))) return 0;
  g->chunk = bytes;
  return handle(sends ? SENDS : RECEIVES, meter_index(coll), serial_of(coll));
}

uint64_t meter_step(struct meter_group *g, uint64_t proxy) {
  if (kind_of(proxy) != SENDS) return 0;
  const struct meter_coll *c = find_coll(g, proxy);
  if (!c || !(has_timed_sends(proxy) || !c->entered)) return 0;
  uint64_t serial = atomic_fetch_add_explicit(&g->next_step, 1, memory_order_relaxed) + 1;
  g->steps[serial % METER_STEPS] = (struct meter_step){.serial = serial, .coll = proxy};
  return handle(STEP, meter_index(proxy), serial);
}

static struct meter_step *find_step(struct meter_group *g, uint64_t h) {
  struct meter_step *s = &g->steps[serial_of(h) % METER_STEPS];
  return kind_of(h) == STEP && s->serial == serial_of(h) ? s : NULL;
}

void meter_step_sends(struct meter_group *g, uint64_t step, uint64_t bytes, uint64_t now_ns) {
  struct meter_step *s = find_step(g, step);
  if (!s || s->since_ns) return;
  s->since_ns = now_ns;
  s->bytes = bytes ? bytes : g->chunk;
  struct meter_coll *c = g->kernels ? NULL : find_coll(g, s->coll);
  if (c) enter(c, now_ns);
}

void meter_stop(struct meter_group *g, uint64_t h, uint64_t now) {
  enum kind kind = kind_of(h);
  struct meter_coll *c = kind == KERNEL || kind == SENDS || kind == RECEIVES ? find_coll(g, h) : NULL;
  struct meter_step *s = find_step(g, h);
  if (c) leave(g, c, now);
  if (!s || !s->since_ns || now < s->since_ns || !has_timed_sends(s->coll)) return;
  add(&g->sums.sent_bytes, s->bytes, false);
  add(&g->sums.sending_ns, now - s->since_ns, false);
}
