/* SPDX-License-Identifier: Apache-2.0 */
/* Captured calls: a device records a step once, for each slot and shape, and launches it from then on.
 *
 * All ranks capture or none does: a collective that some ranks launch from a graph and others do not may hang. And a
 * capture may fail on one rank alone, for want of memory, or by its driver. So before the first capture of a round the
 * ranks rehearse, when nothing is queued. Each captures its calls with a twin of the collectives, and destroys the
 * graph unlaunched. If that fails, the twin has failed, and neither the collectives nor the weights have been touched.
 * Then the ranks count who could, with the collectives themselves, so a rank that is lost meanwhile is named as in a
 * step.
 *
 * After that a capture that fails is an error of this rank, and never a silent way around: the others wait in theirs.
 *
 * A new round rehearses again, for the price of one communicator more. NCCL does much of its work in the capture: it
 * connects an algorithm when a collective first uses it, and maps the buffers of a graph on other ranks. That takes
 * device memory, multicast objects and sockets, so it can fail in one round after it went well in another. */

#include "agent/trainer/run/trainer.h"

#include "common/system/log.h"

#include <errno.h>
#include <string.h>

enum { WHY_MAX = 512 };

/* 0, or the error of the first of these that failed. */
static int record(struct trainer *t, trainer_calls_fn calls, void *ctx, struct compute_graph **out, struct err *e) {
  int rc = compute_capture_begin(t->c, e);
  if (rc) return rc;
  int called = calls(ctx, e);
  rc = compute_capture_end(t->c, out, called ? NULL : e);
  if (rc == 0 && called) compute_graph_destroy(t->c, *out);
  return called ? called : rc;
}

/* The first rank for which this holds; some rank has it. In two steps, because a sum has a limited number of numbers. */
static int find_first(struct trainer *t, bool mine, int *first, struct err *e) {
  _Static_assert(COLL_WORLD_MAX <= COLL_SUM_MAX * COLL_SUM_MAX, "a rank is two digits");
  double high[COLL_SUM_MAX] = {0}, low[COLL_SUM_MAX] = {0};
  int block = 0, at = 0;
  high[t->rank / COLL_SUM_MAX] = mine;
  int rc = coll_sum(t->coll, high, COLL_SUM_MAX, e);
  while (rc == 0 && block < COLL_SUM_MAX - 1 && high[block] == 0) block++;
  low[t->rank % COLL_SUM_MAX] = mine && t->rank / COLL_SUM_MAX == block;
  if (rc == 0) rc = coll_sum(t->coll, low, COLL_SUM_MAX, e);
  while (rc == 0 && at < COLL_SUM_MAX - 1 && low[at] == 0) at++;
  *first = block * COLL_SUM_MAX + at;
  return rc;
}

/* rc: how it went here. echo: this rank has waited for another one that could not. 1: some rank could not, and `why`
 * names it. */
static int agree(struct trainer *t, int rc, bool echo, struct err *why) {
  double failed[2] = {rc && !echo, rc && echo};
  char text[WHY_MAX] = "";
  int first = 0;
  if (rc) memcpy(text, why->text, strnlen(why->text, WHY_MAX - 1));
  int bad = coll_sum(t->coll, failed, 2, why);
  if (bad || failed[0] + failed[1] == 0) return bad;
  bad = find_first(t, rc && (failed[0] == 0 || !echo), &first, why);
  if (bad == 0) bad = coll_broadcast(t->coll, text, sizeof text, first, why);
  if (bad) return bad;
  text[WHY_MAX - 1] = 0;
  err_set(why, -ENOTSUP, "rank %d cannot: %s", first, text);
  return 1;
}

/* 0: all ranks can. 1: not all, see `why`. */
static int rehearse_together(struct trainer *t, trainer_calls_fn calls, void *ctx, struct err *why) {
  struct coll *twin = NULL, *own = t->coll;
  struct compute_graph *graph = NULL;
  struct compute_mark mark;
  int rc = compute_record(t->c, &mark, why);
  if (rc == 0) rc = trainer_wait(t, mark, t->queued.step, why);
  if (rc) return rc;
  rc = coll_twin(own, &twin, why);
  if (rc == 0) {
    if (twin) t->coll = twin; /* where the calls find it; only a device that captures no collectives has none */
    rc = record(t, calls, ctx, &graph, why);
    t->coll = own;
    if (rc) coll_abort(twin, why->text);
    if (rc == 0) compute_graph_destroy(t->c, graph);
  }
  t->exit = TRAINER_SYSTEM; /* a failed rehearsal has set it, and does not end the run */
  if (rc != -ECANCELED && rc != -EPIPE)
    rc = agree(t, rc, rc == -ECONNRESET || rc == -ECONNABORTED || rc == -ETIMEDOUT, why);
  if (rc < 0) with_coll_exit(t, rc);
  coll_destroy(twin); /* no rank uses it now, or the round ends */
  return rc;
}

/* The ranks have agreed not to capture. */
static int do_without(struct trainer *t, const char *what, struct err *why) {
  t->capture = CAPTURE_NEVER;
  if (t->o.cuda_graph != CUDA_GRAPH_ON) return 1;
  return with_exit(t, TRAINER_SYSTEM, err_wrap(why, "--cuda-graph on: %s cannot be captured", what));
}

int trainer_choose_capture(struct trainer *t, const char *what, struct err *e) {
  bool can = compute_can_capture(t->c), on = t->o.cuda_graph == CUDA_GRAPH_ON;
  t->capture = can && t->o.cuda_graph != CUDA_GRAPH_OFF ? CAPTURE_UNTRIED : CAPTURE_NEVER;
  if (can || !on) return 0;
  return with_exit(t, TRAINER_USAGE, err_set(e, -EINVAL, "--cuda-graph on: %s cannot capture %s", t->c->device, what));
}

int trainer_capture(struct trainer *t, const char *what, trainer_calls_fn calls, void *ctx, struct compute_graph **out,
                    struct err *why) {
  int rc = 0;
  *out = NULL;
  if (t->capture == CAPTURE_NEVER) return 1;
  if (t->capture == CAPTURE_UNTRIED && t->world > 1) rc = rehearse_together(t, calls, ctx, why);
  if (rc) return rc < 0 ? rc : do_without(t, what, why);
  t->capture = CAPTURE_AGREED;
  rc = record(t, calls, ctx, out, why);
  if (rc == 0) return 0;
  *out = NULL;
  if (t->world == 1) return do_without(t, what, why);
  return err_wrap(why, "%s cannot be captured, although all ranks could before", what);
}

/* Steps. ----------------------------------------------------------------------------------------------------------- */

struct step {
  struct trainer *t;
  struct slot *slot;
  const struct sampler_share *g;
};

static int queue_calls(void *ctx, struct err *e) {
  struct step *s = ctx;
  return trainer_enqueue_step(s->t, s->slot, s->g, e);
}

int trainer_launch_captured(struct trainer *t, struct slot *s, const struct sampler_share *g, struct err *e) {
  if (t->capture == CAPTURE_NEVER) return 1;
  struct compute_graph *graph = slot_graph(s, g->global);
  if (!graph) {
    if (!slots_saw(&t->slots, g->global)) return 1;
    struct step step = {t, s, g};
    struct err why = ERR_INIT;
    int rc = trainer_capture(t, "the step", queue_calls, &step, &graph, &why);
    if (rc < 0) return err_set(e, rc, "%s", why.text);
    if (rc == 1 && t->rank == 0) log_info("steps are not captured: %s", why.text);
    if (rc) return rc;
    if (!slot_keep_graph(s, g->global, graph)) {
      compute_graph_destroy(t->c, graph);
      return 1;
    }
  }
  return compute_launch(t->c, graph, e);
}
