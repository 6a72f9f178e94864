/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's compute behind a queue. An operation keeps its arguments by value, and copies descriptors. Allocation and
 * layers are the CPU's own and happen at once, as they may on a device. Marks are numbers of operations. */

#include "tests/rig/late_compute.h"

#include "common/mem.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { AT_ONCE = 2, BUFS_MAX = 512 };

enum kind { COPY, FORWARD, BACKWARD_WEIGHT, BACKWARD_INPUT, LOSS, OPT_STEP, OPT_READ, OPT_SET };

struct op {
  enum kind kind;
  struct span a, b, c, d;
  size_t rows;
  struct compute_layer *layer;
  struct compute_buf *params, *grads;
  struct compute_opt *opt;
  struct compute_part part;
  struct compute_update update;
  struct compute_loss_desc loss;
  struct compute_opt_counters counters;
};

struct ops {
  struct op *v;
  size_t n, room;
};

struct compute_graph {
  struct ops ops;
};

struct late {
  struct compute base;
  struct compute *cpu;
  struct late_config cfg;
  struct ops queue;
  size_t done; /* of the queue */
  struct compute_graph *capturing;
  bool blocked;
  struct compute_buf *stages[BUFS_MAX];
  int n_stages;
  uint64_t marks[64]; /* not yet known to be done */
  int n_marks;
  struct late_stats stats;
};

static struct late *late_of(struct compute *c) {
  return (struct late *)c;
}

static bool is_stage(const struct late *l, const struct compute_buf *b) {
  for (int i = 0; i < l->n_stages; i++)
    if (l->stages[i] == b) return true;
  return false;
}

static int run_loss(struct late *l, const struct op *o, struct err *e) {
  int rc = compute_loss(l->cpu, &o->loss, o->a, o->b, o->c, o->d, e);
  if (rc == 0 && l->blocked) compute_host(l->cpu, o->d)[1] = INFINITY;
  return rc;
}

static int run_op(struct late *l, const struct op *o, struct err *e) {
  struct compute *c = l->cpu;
  switch (o->kind) {
  case COPY: return compute_copy(c, o->a, o->b, e);
  case FORWARD: return compute_forward(c, o->layer, o->params, o->a, o->b, o->rows, e);
  case BACKWARD_WEIGHT: return compute_backward_weight(c, o->layer, o->grads, o->a, o->b, o->part, o->rows, e);
  case BACKWARD_INPUT: return compute_backward_input(c, o->layer, o->params, o->a, o->b, o->c, o->rows, e);
  case LOSS: return run_loss(l, o, e);
  case OPT_STEP:
    if (!l->blocked) return compute_opt_step(c, o->opt, &o->update, e);
    return o->a.n ? compute_opt_read(c, o->opt, o->a, e) : 0;
  case OPT_READ: return compute_opt_read(c, o->opt, o->a, e);
  case OPT_SET: return compute_opt_set(c, o->opt, &o->counters, e);
  }
  return -EINVAL;
}

static void append_op(struct ops *q, const struct op *o) {
  if (q->n == q->room) {
    q->room = q->room ? q->room * 2 : 64;
    q->v = xrealloc(q->v, q->room * sizeof *q->v);
  }
  q->v[q->n++] = *o;
}

/* Until the operation is done nobody may read there. */
static void spoil_stage(struct late *l, const struct op *o) {
  if ((o->kind != COPY && o->kind != OPT_STEP && o->kind != OPT_READ) || !is_stage(l, o->a.buf)) return;
  float *p = compute_host(l->cpu, o->a);
  for (size_t i = 0; i < o->a.n; i++) p[i] = (float)NAN;
}

static int enqueue(struct compute *c, const struct op *o) {
  struct late *l = late_of(c);
  if (l->capturing) {
    append_op(&l->capturing->ops, o);
    return 0;
  }
  spoil_stage(l, o);
  append_op(&l->queue, o);
  return 0;
}

static int run_queued(struct late *l, size_t n, struct err *e) {
  int rc = 0;
  for (; n > 0 && l->done < l->queue.n && rc == 0; n--) rc = run_op(l, &l->queue.v[l->done++], e);
  return rc;
}

static int late_alloc(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out, struct err *e) {
  struct late *l = late_of(c);
  if (l->capturing) return err_set(e, -EBUSY, "an allocation within a capture");
  int rc = compute_alloc(l->cpu, use, n, out, e);
  if (rc == 0 && use == COMPUTE_STAGE) {
    if (l->n_stages == BUFS_MAX) abort();
    l->stages[l->n_stages++] = *out;
  }
  return rc;
}

static void late_free(struct compute *c, struct compute_buf *b) {
  struct late *l = late_of(c);
  run_queued(l, SIZE_MAX, NULL);
  for (int i = 0; i < l->n_stages; i++)
    if (l->stages[i] == b) l->stages[i] = l->stages[--l->n_stages];
  compute_free(l->cpu, b);
}

static float *late_host(struct compute *c, struct span s) {
  return is_stage(late_of(c), s.buf) ? compute_host(late_of(c)->cpu, s) : NULL;
}

static int late_copy(struct compute *c, struct span dst, struct span src, struct err *e) {
  if (dst.n != src.n) return err_set(e, -EINVAL, "copy of %zu values to %zu", src.n, dst.n);
  return enqueue(c, &(struct op){.kind = COPY, .a = dst, .b = src});
}

static int late_record(struct compute *c, struct compute_mark *mark, struct err *e) {
  struct late *l = late_of(c);
  if (l->capturing) return err_set(e, -EINVAL, "a mark within a capture");
  mark->n = l->queue.n;
  l->marks[l->n_marks++ % 64] = mark->n;
  if ((uint64_t)l->n_marks > l->stats.ahead_max) l->stats.ahead_max = (uint64_t)l->n_marks;
  l->stats.records++;
  if (l->cfg.on_record) l->cfg.on_record(l->cfg.ctx, l->stats.records);
  return 0;
}

static int late_done(struct compute *c, struct compute_mark mark, struct err *e) {
  struct late *l = late_of(c);
  int rc = run_queued(l, AT_ONCE, e);
  if (rc) return rc;
  if (l->done < mark.n) return 0;
  int kept = 0;
  for (int i = 0; i < l->n_marks && i < 64; i++)
    if (l->marks[i] > mark.n) l->marks[kept++] = l->marks[i];
  l->n_marks = kept;
  return 1;
}

static int late_layer_create(struct compute *c, const struct compute_layer_desc *d, struct compute_layer **out,
                             struct err *e) {
  return compute_layer_create(late_of(c)->cpu, d, out, e);
}

static void late_layer_destroy(struct compute *c, struct compute_layer *layer) {
  run_queued(late_of(c), SIZE_MAX, NULL);
  compute_layer_destroy(late_of(c)->cpu, layer);
}

static int late_forward(struct compute *c, struct compute_layer *layer, struct compute_buf *params, struct span x,
                        struct span y, size_t rows, struct err *e) {
  return enqueue(c, &(struct op){.kind = FORWARD, .layer = layer, .params = params, .a = x, .b = y, .rows = rows});
}

static int late_backward_weight(struct compute *c, struct compute_layer *layer, struct compute_buf *grads,
                                struct span x, struct span dz, struct compute_part part, size_t rows, struct err *e) {
  return enqueue(
      c, &(struct op){
             .kind = BACKWARD_WEIGHT, .layer = layer, .grads = grads, .a = x, .b = dz, .part = part, .rows = rows});
}

static int late_backward_input(struct compute *c, struct compute_layer *layer, struct compute_buf *params,
                               struct span x, struct span dz, struct span dx, size_t rows, struct err *e) {
  return enqueue(
      c,
      &(struct op){.kind = BACKWARD_INPUT, .layer = layer, .params = params, .a = x, .b = dz, .c = dx, .rows = rows});
}

static int late_loss(struct compute *c, const struct compute_loss_desc *d, struct span y, struct span target,
                     struct span dz, struct span out, struct err *e) {
  return enqueue(c, &(struct op){.kind = LOSS, .loss = *d, .a = y, .b = target, .c = dz, .d = out});
}

static int late_opt_create(struct compute *c, const struct compute_opt_desc *d, struct compute_opt **out,
                           struct err *e) {
  return compute_opt_create(late_of(c)->cpu, d, out, e);
}

static void late_opt_destroy(struct compute *c, struct compute_opt *o) {
  run_queued(late_of(c), SIZE_MAX, NULL);
  compute_opt_destroy(late_of(c)->cpu, o);
}

static struct compute_buf *late_opt_state(struct compute_opt *o, int i);

static int late_opt_step(struct compute *c, struct compute_opt *o, const struct compute_update *u, struct err *e) {
  return enqueue(c, &(struct op){.kind = OPT_STEP, .opt = o, .update = *u, .a = u->counters});
}

static int late_opt_read(struct compute *c, struct compute_opt *o, struct span stage, struct err *e) {
  return enqueue(c, &(struct op){.kind = OPT_READ, .opt = o, .a = stage});
}

static int late_opt_set(struct compute *c, struct compute_opt *o, const struct compute_opt_counters *v, struct err *e) {
  return enqueue(c, &(struct op){.kind = OPT_SET, .opt = o, .counters = *v});
}

static void late_block_updates(struct compute *c, bool on) {
  late_of(c)->blocked = on;
}

static int late_capture_begin(struct compute *c, struct err *e) {
  late_of(c)->capturing = xcalloc(1, sizeof(struct compute_graph));
  return 0;
}

static void late_graph_destroy(struct compute *c, struct compute_graph *g) {
  free(g->ops.v);
  free(g);
}

static int late_capture_end(struct compute *c, struct compute_graph **out, struct err *e) {
  struct late *l = late_of(c);
  struct compute_graph *g = l->capturing;
  l->capturing = NULL;
  l->stats.captures++;
  if (!l->cfg.fail_capture) {
    *out = g;
    return 0;
  }
  late_graph_destroy(c, g);
  return err_set(e, -ENOTSUP, "this device does not like it");
}

static int late_launch(struct compute *c, struct compute_graph *g, struct err *e) {
  late_of(c)->stats.launches++;
  for (size_t i = 0; i < g->ops.n; i++) enqueue(c, &g->ops.v[i]);
  return 0;
}

static void late_destroy(struct compute *c) {
  struct late *l = late_of(c);
  compute_destroy(l->cpu);
  free(l->queue.v);
  free(l);
}

static const struct compute_ops late_ops = {
    .name = "late",
    .destroy = late_destroy,
    .alloc = late_alloc,
    .free = late_free,
    .host = late_host,
    .copy = late_copy,
    .record = late_record,
    .done = late_done,
    .layer_create = late_layer_create,
    .layer_destroy = late_layer_destroy,
    .forward = late_forward,
    .backward_weight = late_backward_weight,
    .backward_input = late_backward_input,
    .loss = late_loss,
    .opt_create = late_opt_create,
    .opt_destroy = late_opt_destroy,
    .opt_state = late_opt_state,
    .opt_step = late_opt_step,
    .opt_read = late_opt_read,
    .opt_set = late_opt_set,
    .block_updates = late_block_updates,
};

/* The optimizer is the CPU's own, so opt_state does not get the queue's compute. */
static struct compute_buf *late_opt_state(struct compute_opt *o, int i) {
  static struct compute *cpu;
  if (!cpu) cpu = compute_cpu_create(COMPUTE_FP32);
  return compute_opt_state(cpu, o, i);
}

struct compute *late_create(const struct late_config *cfg) {
  static struct compute_ops with_capture;
  with_capture = late_ops;
  with_capture.capture_begin = late_capture_begin;
  with_capture.capture_end = late_capture_end;
  with_capture.launch = late_launch;
  with_capture.graph_destroy = late_graph_destroy;
  struct late *l = xcalloc(1, sizeof *l);
  l->cpu = compute_cpu_create(COMPUTE_FP32);
  l->cfg = *cfg;
  l->base = (struct compute){.ops = cfg->can_capture ? &with_capture : &late_ops,
                             .precision = COMPUTE_FP32,
                             .depth = cfg->depth,
                             .device = "late"};
  return &l->base;
}

struct late_stats late_stats(const struct compute *c) {
  return ((const struct late *)c)->stats;
}
