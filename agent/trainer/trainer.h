#ifndef AGENT_TRAINER_TRAINER_H
#define AGENT_TRAINER_TRAINER_H

/* One run of the trainer: everything it holds, and its phases. Each phase is a function that returns 0 or
 * a negative code with a sentence, and leaves in `exit` what the program is to exit with. */

#include <signal.h>
#include "agent/sdk/rdzv.h"
#include "agent/trainer/ckpt.h"
#include "agent/trainer/coll.h"
#include "agent/trainer/data.h"
#include "agent/trainer/metrics.h"
#include "agent/trainer/model.h"
#include "agent/trainer/optim.h"
#include "agent/trainer/options.h"
#include "agent/trainer/sampler.h"

/* Samples per second over the last moments. */
struct rate {
  uint64_t since_us, samples;
  double value;
};

struct trainer {
  struct trainer_opts o;
  enum trainer_exit exit;
  const volatile sig_atomic_t *sigterm; /* set by the signal handler */

  struct rdzv *rdzv;
  int rank, world;
  struct coll *coll;
  struct compute *c;
  struct dataset data;
  struct model model;
  struct compute_opt *opt;
  struct compute_opt_counters counters; /* as they were after the last step */
  struct sampler sampler;
  struct permutation perm; /* of this epoch */
  struct compute_buf *stage_x, *stage_t, *stage_flags, *stage_extras, *stage_counters, *stage_lr, *lr;

  uint64_t step, epoch, position; /* steps done; where the next one begins */
  uint64_t last_step;             /* the run's end */
  double loss;                    /* of the last step */
  bool stop, checkpoint;          /* what the ranks agreed on in the last step */
  struct coll_ticket tickets[MODEL_WIDTHS_MAX];
  int n_tickets;
  size_t bucket_end; /* gradients from here on are being summed */

  struct ckpt_id id; /* the token of this round; step of the last checkpoint */
  bool saved;        /* id.step was written by this process */
  char resumed_from[CKPT_NAME_MAX];

  struct metrics metrics;
  struct rate rate;
  uint64_t begin_us, samples; /* this process's own part */
  uint64_t reported_us, step_us, next_step_us;
};

static inline int trainer_blame(struct trainer *t, enum trainer_exit code, int rc) {
  if (rc) t->exit = code;
  return rc;
}
uint64_t trainer_now_us(void);

/* setup.c */
int trainer_setup(struct trainer *t, struct err *e);
void trainer_teardown(struct trainer *t);
/* step.c */
int trainer_step(struct trainer *t, struct err *e);
/* state.c */
int trainer_resume(struct trainer *t, struct err *e);
int trainer_save(struct trainer *t, struct err *e); /* rank 0 writes; nothing without --checkpoint-dir */
/* CRC-32 of the weights, and --save-weights; rank 0. */
int trainer_result(struct trainer *t, uint32_t *crc, struct err *e);

#endif
