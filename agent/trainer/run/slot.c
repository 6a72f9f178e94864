/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of slots. Steps are queued and read in order, so two counters tell which slot belongs to which step.
 *
 * Stages belong to a slot because the device reads the host's values whenever it reaches them. With one stage for all,
 * the host would have to wait for that before it wrote the next input. The results of a step have their own stages for
 * the same reason. A captured step holds the addresses of its stages, so there is one graph per slot.
 *
 * A shape is captured after it has run once. The first call of a library prepares algorithms and connections, and a
 * capture does not allow everything that needs. */

#include "agent/trainer/run/slot.h"

int slots_init(struct slots *s, struct compute *c, size_t rows_max, size_t width, struct err *e) {
  int n = c->depth < 1 ? 1 : c->depth < SLOTS_MAX ? c->depth : SLOTS_MAX, rc = 0;
  size_t rows = rows_max ? rows_max : 1;
  *s = (struct slots){.c = c, .n = n};
  for (struct slot *k = s->v; k < s->v + n && rc == 0; k++) {
    struct {
      struct compute_buf **buf;
      size_t n;
    } stages[] = {{&k->x, rows * width},
                  {&k->classes, rows},
                  {&k->flags, SLOT_FLAGS},
                  {&k->results, MODEL_EXTRAS},
                  {&k->counters, COMPUTE_COUNTERS},
                  {&k->stamps, (size_t)STAMPS * COMPUTE_STAMP}};
    for (size_t i = 0; i < sizeof stages / sizeof *stages && rc == 0; i++)
      rc = compute_alloc(c, COMPUTE_STAGE, stages[i].n, stages[i].buf, e);
  }
  return rc;
}

void slots_finish(struct slots *s) {
  if (!s->c) return;
  slots_drop_graphs(s);
  for (int i = 0; i < s->n; i++) {
    struct slot *k = &s->v[i];
    struct compute_buf *const bufs[] = {k->x, k->classes, k->flags, k->results, k->counters, k->stamps};
    for (size_t b = 0; b < sizeof bufs / sizeof *bufs; b++) compute_free(s->c, bufs[b]);
  }
  *s = (struct slots){0};
}

struct compute_graph *slot_graph(const struct slot *s, uint64_t shape) {
  for (int i = 0; i < s->n_graphs; i++)
    if (s->graphs[i].shape == shape) return s->graphs[i].graph;
  return NULL;
}

bool slot_keep_graph(struct slot *s, uint64_t shape, struct compute_graph *g) {
  if (s->n_graphs == SLOT_SHAPES_MAX) return false;
  s->graphs[s->n_graphs++] = (struct slot_graph){shape, g};
  return true;
}

bool slots_saw(struct slots *s, uint64_t shape) {
  for (int i = 0; i < s->n_shapes; i++)
    if (s->shapes[i] == shape) return true;
  if (s->n_shapes < SLOT_SHAPES_MAX) s->shapes[s->n_shapes++] = shape;
  return false;
}

void slots_drop_graphs(struct slots *s) {
  for (int i = 0; i < s->n; i++) {
    struct slot *k = &s->v[i];
    for (int g = 0; g < k->n_graphs; g++) compute_graph_destroy(s->c, k->graphs[g].graph);
    k->n_graphs = 0;
  }
  s->n_shapes = 0;
}
