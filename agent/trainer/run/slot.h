/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RUN_SLOT_H
#define AGENT_TRAINER_RUN_SLOT_H

/* The parts of a queued step on the host: its stages, the mark behind it, and the position of the run when it is done.
 * A device that runs ahead (compute->depth) has one slot per step that may be queued; a CPU has one.
 *
 *   slots_next      the slot for the next step; there is one while !slots_full
 *   slots_push      its step is queued and its mark recorded; do not touch the slot now
 *   slots_oldest    the step to read next, once its mark is done
 *   slots_pop       it was read; the slot is free
 *
 * A slot also keeps the steps that were captured with its stages, one graph per shape. A shape is the number of samples
 * of a step over all ranks, since the last step of an epoch may be shorter. */

#include "agent/trainer/model/model.h"

enum { SLOTS_MAX = 8, SLOT_SHAPES_MAX = 4, SLOT_FLAGS = MODEL_EXTRAS - MODEL_STOP };

/* How far a run is: steps done, and where the next one starts: samples of this epoch that are done. */
struct run_position {
  uint64_t step, epoch, position;
};

/* Points at which the device writes its clock. */
enum slot_stamp {
  STAMP_BEGIN,    /* the flags of the step have arrived */
  STAMP_INPUT,    /* the batch has arrived */
  STAMP_BACKWARD, /* the last gradients are done; with several ranks only */
  STAMP_SUMMED,   /* their sums are done; with several ranks only */
  STAMP_END,      /* the update is done */
  STAMPS
};

struct slot_graph {
  uint64_t shape;
  struct compute_graph *graph;
};

struct slot {
  struct compute_buf *x;               /* stage: the values of rows, or their numbers if the device keeps the rows */
  struct compute_buf *classes, *flags; /* stages: to the device; the flags are those from MODEL_STOP on */
  struct compute_buf *results, *counters, *stamps; /* stages: from the device */
  struct compute_mark mark;
  struct run_position after;
  uint64_t due[2];  /* steps of the last two checkpoints begun when this step was queued; 0: none */
  uint64_t samples; /* of the step, over all ranks */
  /* When its input was begun; the time for the input, for queueing the rest, and of that for waiting for sums. */
  uint64_t begun_us, input_us, calls_us, exposed_us;
  struct slot_graph graphs[SLOT_SHAPES_MAX];
  int n_graphs;
};

struct slots {
  struct compute *c;
  int n;
  uint64_t pushed, popped;
  struct slot v[SLOTS_MAX];
  uint64_t shapes[SLOT_SHAPES_MAX]; /* shapes that have run without a capture */
  int n_shapes;
};

/* rows: the most of one rank in a step. width: stage elements of a row. */
int slots_init(struct slots *s, struct compute *c, size_t rows, size_t width, struct err *e);
/* Also after a failed slots_init, and on zeroed memory. All queued operations must be done. */
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
/* Forgets the queued steps; their marks must be done. */
static inline void slots_clear(struct slots *s) {
  s->popped = s->pushed;
}

/* The captured step of that shape in this slot, or NULL. */
struct compute_graph *slot_graph(const struct slot *s, uint64_t shape);
/* Takes ownership of the graph; false: there is no room. */
bool slot_keep_graph(struct slot *s, uint64_t shape, struct compute_graph *g);
/* True if this shape was seen before; remembers it while there is room. */
bool slots_saw(struct slots *s, uint64_t shape);
/* Before the collectives and stages in the graphs are destroyed. */
void slots_drop_graphs(struct slots *s);

#endif
