/* SPDX-License-Identifier: Apache-2.0 */
/* Captured steps. On a device that can, a step is captured once for each slot and shape, and launched from then on. */

#include "agent/trainer/run/trainer.h"

#include "common/system/log.h"

static int capture_step(struct trainer *t, struct slot *s, const struct sampler_step *g, struct compute_graph **out,
                        struct err *e) {
  struct err why = ERR_INIT;
  int rc = compute_capture_begin(t->c, &why);
  if (rc == 0) {
    int called = trainer_enqueue_step(t, s, g, &why);
    rc = compute_capture_end(t->c, out, called ? NULL : &why);
    if (rc == 0 && called) compute_graph_destroy(t->c, *out);
    if (called) rc = called;
  }
  if (rc == 0) return 0;
  t->capture = false;
  if (t->o.cuda_graph == CUDA_GRAPH_ON)
    return err_set(e, rc, "--cuda-graph on: the step cannot be captured: %s", why.text);
  t->exit = TRAINER_SYSTEM;
  if (t->rank == 0) log_info("steps are not captured: %s", why.text);
  return 1;
}

int trainer_launch_captured(struct trainer *t, struct slot *s, const struct sampler_step *g, struct err *e) {
  if (!t->capture) return 1;
  struct compute_graph *graph = slot_graph(s, g->total);
  if (!graph) {
    if (!slots_saw(&t->slots, g->total)) return 1;
    int rc = capture_step(t, s, g, &graph, e);
    if (rc) return rc;
    if (!slot_keep_graph(s, g->total, graph)) {
      compute_graph_destroy(t->c, graph);
      return 1;
    }
  }
  compute_range_push(t->c, "captured step");
  int rc = compute_launch(t->c, graph, e);
  compute_range_pop(t->c);
  return rc;
}
