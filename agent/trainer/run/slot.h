#ifndef AGENT_TRAINER_SLOT_H
#define AGENT_TRAINER_SLOT_H

/* What a step under way needs on the host: its stages, the mark behind it, and where the run stands when it is done. A device that runs
 * ahead (compute->depth) has as many slots as steps may be queued; a CPU has one.
 *
 *   slots_next      the slot for the next step; there is one as long as !slots_full
 *   slots_push      its step is queued, and its mark recorded: nothing of it may be touched now
 *   slots_oldest    the step to be read next, once its mark is done
 *   slots_pop       it was read; the slot is free
 *
 * A slot also keeps the steps that were captured with its stages, one graph for each shape of a step: the number of samples that it has
 * over all ranks (the last one of an epoch may be shorter). */

#include "agent/trainer/model/model.h"

enum { SLOTS_MAX = 8, SLOT_SHAPES_MAX = 4, SLOT_FLAGS = MODEL_EXTRAS - MODEL_STOP };

/* How far a run is: steps done, and where the next one begins: samples of this epoch that are done. */
struct place {
  uint64_t step, epoch, position;
};

/* When the device came there, by its own clock. */
enum slot_stamp {
  STAMP_BEGIN,    /* what differs from step to step is there */
  STAMP_INPUT,    /* the batch is; of several, the first one */
  STAMP_BACKWARD, /* the last gradients; with several ranks only */
  STAMP_SUMMED,   /* their sums; with several ranks only */
  STAMP_END,      /* the update is made */
  STAMPS
};

struct slot_graph {
  uint64_t shape;
  struct compute_graph *graph;
};

struct slot {
  struct compute_buf *x; /* stage: the values of rows, or their numbers where the device has the rows */
  struct compute_buf *classes, *flags, *lr; /* stages: to the device */
  struct compute_buf
      *sent; /* on the device: what x has, where it goes there beside the steps before; else NULL */
  struct compute_buf *results, *counters, *stamps; /* stages: from the device */
  struct compute_mark mark;
  struct place after;
  uint64_t samples; /* of the step, over all ranks */
  double lr_value;
  /* When its input was begun; what that took, and queueing the rest, and of that waiting for sums. */
  uint64_t begun_us, input_us, calls_us, exposed_us;
  struct slot_graph graphs[SLOT_SHAPES_MAX];
  int n_graphs;
};

struct slots {
  struct compute *c;
  int n;
  uint64_t pushed, popped;
  struct slot v[SLOTS_MAX];
  uint64_t shapes[SLOT_SHAPES_MAX]; /* that have been run without capture */
  int n_shapes;
};

/* rows: of one rank in a step, at most; width: elements of a stage that one takes; send: they go to the device beside the steps before. */
int slots_init(struct slots *s, struct compute *c, size_t rows, size_t width, bool send, struct err *e);
/* Also after a failed slots_init, and on zeroed memory. What is queued must be done. */
void slots_finish(struct slots *s);

static inline bool slots_full(const struct slots *s) {
  return s->pushed - s->popped == (uint64_t)s->n;
}
static inline struct slot *slots_next(struct slots *s) {
  return &s->v[s->pushed % (uint64_t)s->n];
}
static inline void slots_push(struct slots *s) {
  s->pushed++;
}
static inline struct slot *slots_oldest(struct slots *s) {
  return s->pushed == s->popped ? NULL : &s->v[s->popped % (uint64_t)s->n];
}
static inline void slots_pop(struct slots *s) {
  s->popped++;
}
/* Steps under way are forgotten; their marks must be done. */
static inline void slots_clear(struct slots *s) {
  s->popped = s->pushed;
}

/* The step of that shape as it was captured in this slot, or NULL. */
struct compute_graph *slot_graph(const struct slot *s, uint64_t shape);
/* Takes the graph; false: there is no room. */
bool slot_keep_graph(struct slot *s, uint64_t shape, struct compute_graph *g);
/* Whether this shape was told before; remembers it while there is room. */
bool slots_saw(struct slots *s, uint64_t shape);
/* Before what they were captured with goes: collectives, stages. */
void slots_drop_graphs(struct slots *s);

#endif
