#ifndef AGENT_TRAINER_TRAINER_H
#define AGENT_TRAINER_TRAINER_H

/* One run of the trainer: everything it holds, and its phases. Each phase is a function that returns 0 or
 * a negative code with a sentence, and leaves in `exit` what the program is to exit with.
 *
 * Everything but main is a library (trainer_run), so that tests can run it on a compute and a coll of their own: trainer_setup makes what is not
 * there already. */

#include <errno.h>
#include <signal.h>
#include "agent/sdk/rdzv.h"
#include "agent/trainer/ckpt_writer.h"
#include "agent/trainer/coll/coll.h"
#include "agent/trainer/data/data.h"
#include "agent/trainer/gpu/gpu.h"
#include "agent/trainer/run/metrics.h"
#include "agent/trainer/model/model.h"
#include "agent/trainer/optim.h"
#include "agent/trainer/run/options.h"
#include "agent/trainer/sampler.h"
#include "agent/trainer/run/slot.h"

/* What start-up is made of, in this order; its metrics are in milliseconds. */
#define TRAINER_PHASE_LIST(X)                                                                                \
  X(PROCESS, "process_ms")             /* from the kernel's start of this process to main */                 \
  X(AGENT, "agent_ms")                 /* options, and the agent */                                          \
  X(DATA, "data_ms")                   /* the data set */                                                    \
  X(DEVICE, "device_ms")               /* the device: its context, its libraries */                          \
  X(MODEL, "model_ms")                 /* memory, the first weights, files */                                \
  X(COMMUNICATORS, "communicators_ms") /* the others are met */                                              \
  X(RESUME, "resume_ms")               /* the checkpoint, if there is one, to all ranks */                   \
  X(FIRST_STEP, "first_step_ms")       /* until its results are read */
#define X(name, key) PHASE_##name,
enum trainer_phase { TRAINER_PHASE_LIST(X) PHASES };
#undef X

/* Samples and steps per second over the last moments. */
struct rate {
  uint64_t since_us, samples, steps;
  double value, steps_value;
};

/* Of the last step that was read, in microseconds. */
struct timing {
  uint64_t step, input, wait, checkpoint; /* by the host's clock */
  uint64_t samples;                       /* over all ranks */
  /* By the device's clock, where it has one, else by the host's. NaN: not known. */
  double compute, exposed, device_input, idle;
};

/* Rank 0's checkpoint under way. */
struct saving {
  struct ckpt_writer *writer; /* NULL: this rank writes none */
  struct compute_buf *stage;
  struct compute_buf *shadow; /* on the device: a copy of the state; NULL: none */
  struct compute_buf *stamps; /* stage: the device's clock before and behind what holds up its steps */
  bool begun;                 /* id names one */
  bool under_way, copying;    /* begun and not on disk; of that: not with the writer yet */
  struct compute_mark mark;   /* behind all copies */
  struct place at;
  struct ckpt_id id;
  uint64_t stall_us;             /* what it has cost the loop, and the device's steps */
  uint64_t waited_for, left_out; /* since the start, because the one before was still being written */
  uint64_t told_us;              /* when that was told: once a minute is enough */
  uint64_t clock_us;             /* when the last one was begun, or wished for */
};

enum { EVAL_STAGES = 2 };

/* --eval-data. */
struct evaluation {
  struct dataset data;
  struct compute_buf *x[EVAL_STAGES], *classes[EVAL_STAGES]; /* stages: to the device */
  struct compute_buf *scores, *stage;                        /* MODEL_SCORES; and from the device */
  uint64_t step;                                             /* of the last one */
  bool made;                                                 /* there is a last one */
};

struct trainer {
  struct trainer_opts o;
  enum trainer_exit exit;
  const volatile sig_atomic_t *sigterm; /* set by the signal handler */

  struct rdzv *rdzv;
  int rank, world;
  struct coll *coll;
  struct compute *c;
  const struct gpu_module *gpu; /* where `c` is a CUDA device */
  struct err no_cuda;           /* why it is not, though something of CUDA is there */
  struct dataset data;
  struct compute_rows *rows; /* the data set, where the device keeps it; NULL: batches come as floats */
  struct model model;
  struct compute_opt *opt;
  struct compute_opt_counters counters; /* as they were after the last step that was read */
  struct sampler sampler;
  struct permutation perm; /* of queued.epoch */
  struct slots slots;
  struct compute_buf *lr;
  bool scale_loss; /* fp16 */
  bool capture;    /* steps are captured, as long as that succeeds */

  struct place done;   /* behind the last step that was read: what people see */
  struct place queued; /* behind the last step that was queued; the same where nothing is under way */
  uint64_t last_step;  /* the run's end */
  double loss;         /* of the last step that was read; not finite: that step was bad */
  uint64_t bad_in_row; /* steps without a finite loss or without finite gradients, up to the last one */
  uint64_t bad_told_us;
  double lr_value;              /* of the last step that was read */
  bool stop, checkpoint, clock; /* what the ranks agreed on in the steps that were read */
  struct coll_ticket tickets[MODEL_WIDTHS_MAX];
  int n_tickets;
  size_t bucket_end; /* gradients from here on are being summed */

  struct ckpt_id id; /* the token of this round */
  struct saving save;
  uint64_t checkpoint_us; /* what checkpoints have cost the loop since the last step was read */
  char resumed_from[CKPT_NAME_MAX];

  struct evaluation evaluation;
  unsigned asked; /* rdzv_requested, before the last step that was queued */
  bool begun;     /* it stands where the run stands: resumed, or agreed with the others */
  bool behind;    /* while they agree: another rank's state is to be taken */

  struct compute_buf *bench_data, *bench_stage; /* --bench */

  struct metrics metrics;
  struct rate rate;
  struct timing timing;
  uint64_t begin_us, samples, steps; /* this process's own part */
  uint64_t device_ns;                /* the device's clock behind the last step that was read; 0: none */
  uint64_t reported_us, read_us, next_step_us;
  uint64_t phase_us[PHASES], phase_from_us;
  bool first_step_told;
};

static inline int trainer_blame(struct trainer *t, enum trainer_exit code, int rc) {
  if (rc) t->exit = code;
  return rc;
}
/* What a collective says. An error of this rank's own device or memory is its own; all else is the loss of others (coll.h). */
static inline int trainer_blame_coll(struct trainer *t, int rc) {
  bool own = rc == -EIO || rc == -ENOMEM || rc == -EBUSY || rc == -ENOTSUP;
  return trainer_blame(t, own ? TRAINER_SYSTEM : TRAINER_LOST, rc);
}
uint64_t trainer_now_us(void);
/* What has gone by since the phase before was told belongs to this one. */
void trainer_phase(struct trainer *t, enum trainer_phase phase);

/* setup.c */
int trainer_setup(struct trainer *t, struct err *e);
/* device.c: t->c by --device, said by rank 0; then t->coll, with the other ranks of this round. Nothing where there is one already. */
int device_open(struct trainer *t, struct err *e);
void device_say(const struct trainer *t);
int device_join(struct trainer *t, struct err *e);
int trainer_setup_bench(struct trainer *t, struct err *e); /* the device and the others; no data, no model */
void trainer_teardown(struct trainer *t);
/* Another round of the same process: who it is now, its token, files; memory for its shares (the state stays). */
int trainer_enter(struct trainer *t, struct err *e);
/* recover.c: --recovery inplace; with restart the first two do nothing, and the third says no. */
void trainer_offer_rejoin(struct trainer *t);
int trainer_asked_to_leave(struct trainer *t,
                           struct err *e); /* the error that ends the loop, where the agent asked for that */
bool trainer_can_recover(const struct trainer *t, int rc);
/* After a failure with which it can: the loop may go on. */
int trainer_recover(struct trainer *t, int rc, struct err *e);
/* All ranks, with a ring: they stand at the same step, from the same bytes: the furthest one's, or the checkpoint's, or the first weights. */
int trainer_agree(struct trainer *t, struct err *e);
/* loop.c */
int trainer_loop(struct trainer *t,
                 struct err *e); /* to the end, or until told to stop; nothing is under way then */
/* Reads the oldest step under way, and reports it. */
int trainer_take(struct trainer *t, struct err *e);
/* Reads all steps that are under way, so that done and queued are the same. */
int trainer_drain(struct trainer *t, struct err *e);
/* wait.c: with an eye on the other ranks; `step`: for the sentence. */
int trainer_wait(struct trainer *t, struct compute_mark mark, uint64_t step, struct err *e);
/* step.c */
int trainer_queue(struct trainer *t, struct err *e); /* the next step; there must be a free slot */
int trainer_read(struct trainer *t, struct err *e);  /* the oldest step under way; there must be one */
/* After a rank was lost and the device was poisoned: waits for what is under way. Steps whose update was made are read and reported as
 * ever, the others are forgotten; done and queued are behind the last one that was made. */
int trainer_discard(struct trainer *t, struct err *e);
/* skipped.c: what is to be said of a step just read, and whether to go on. extras: MODEL_EXTRAS floats. */
int trainer_judge(struct trainer *t, const float *extras, struct err *e);
/* evaluate.c */
int trainer_evaluation_alloc(struct trainer *t,
                             struct err *e); /* nothing without --eval-data, as all of these */
void trainer_evaluation_free(struct trainer *t);
bool trainer_evaluation_is_due(const struct trainer *t, uint64_t step);
/* Of the weights as they are now, by all ranks together; no step is under way. */
int trainer_evaluate(struct trainer *t, struct err *e);
/* report.c */
int trainer_report_start(struct trainer *t, struct err *e);
int trainer_report_step(struct trainer *t, struct err *e);
/* accuracy: NaN without labels. */
int trainer_report_evaluation(struct trainer *t, double loss, double accuracy, uint64_t us, struct err *e);
int trainer_report_stop(struct trainer *t, struct err *e);
int trainer_report_end(struct trainer *t, uint32_t crc, struct err *e);
/* bench.c */
int trainer_bench_alloc(struct trainer *t, struct err *e); /* the memory for --bench */
int trainer_bench(struct trainer *t, struct err *e);       /* --bench, from the first size to the result */
/* state.c */
int trainer_resume(struct trainer *t, struct err *e);
/* Host memory for a whole state. */
int trainer_state_stage(struct trainer *t, struct compute_buf **stage, struct err *e);
/* Queues copies of the state as it is behind what is queued. Behind a mark it can be read: it points into the stage. */
int trainer_state_download(struct trainer *t, struct compute_buf *stage, struct err *e);
/* The same in two: to a copy on the device (and the little that is not weights or states to the stage), and from there to the stage while later steps
 * are under way; the stage can be read behind the mark. */
int trainer_state_shadow(struct trainer *t, struct compute_buf **shadow, struct err *e);
int trainer_state_copy(struct trainer *t, struct compute_buf *shadow, struct compute_buf *stage,
                       struct err *e);
int trainer_state_fetch(struct trainer *t, struct compute_buf *shadow, struct compute_buf *stage,
                        struct compute_mark *mark, struct err *e);
struct ckpt_state trainer_state_read(const struct trainer *t, struct compute_buf *stage,
                                     const struct place *at);
/* The run stands there now. Nothing may be under way. Waits. */
int trainer_state_upload(struct trainer *t, const struct ckpt_state *s, struct err *e);
/* The state at t->done as the bytes of a checkpoint, and back. Nothing may be under way. */
size_t trainer_packed_size(const struct trainer *t);
int trainer_pack(struct trainer *t, struct buf *out, struct err *e);
int trainer_unpack(struct trainer *t, const void *bytes, size_t n, const char *whose, struct err *e);
int trainer_settle(struct trainer *t, struct err *e); /* waits for all that is queued */
/* CRC-32 of the weights, and --save-weights; rank 0. */
/* Whether --save-weights can be written there: told before days are spent on them. */
int trainer_check_weights(const char *path, struct err *e);
int trainer_result(struct trainer *t, uint32_t *crc, struct err *e);

/* save.c: rank 0 writes; nothing without --checkpoint-dir. All ranks call them at the same step. */
int trainer_save_open(struct trainer *t, struct err *e);
void trainer_save_close(struct trainer *t); /* what is being written is waited for */
/* A checkpoint of the state behind what is queued, in the background. */
int trainer_save_begin(struct trainer *t, struct err *e);
int trainer_save_poll(struct trainer *t, struct err *e); /* once a step */
/* One of this state is on disk when it returns. together: on all ranks; else for rank 0 alone. Nothing may be under way. */
int trainer_save_now(struct trainer *t, bool together, struct err *e);

#endif
