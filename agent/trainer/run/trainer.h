/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RUN_TRAINER_H
#define AGENT_TRAINER_RUN_TRAINER_H

/* One run of the trainer: its state, and its phases.
 *
 * A phase is a function that returns 0 or a negative code with a message, and leaves the exit code of the program in
 * `exit` (with_exit). Everything but main is a library, so that tests can run it on their own compute and coll:
 * trainer_setup creates only what does not exist yet.
 *
 * Two positions describe a run. `queued` is behind the last step that was queued. `done` is behind the last step whose
 * results the host has read; reports show that one. They are equal when no step is queued. */

#include <errno.h>
#include <signal.h>
#include "agent/sdk/rdzv.h"
#include "agent/trainer/checkpoint/checkpoint.h"
#include "agent/trainer/coll/coll.h"
#include "agent/trainer/data/data.h"
#include "agent/trainer/gpu/gpu.h"
#include "agent/trainer/model/model.h"
#include "agent/trainer/run/options.h"
#include "agent/trainer/run/slot.h"
#include "agent/trainer/run/wait_log.h"
#include "common/system/clock.h"

/* The phases of start-up, in this order; their metrics are in milliseconds. */
#define TRAINER_PHASE_LIST(X)                                                                                          \
  X(PROCESS, "process_ms")             /* from the kernel's start of this process to main */                           \
  X(AGENT, "agent_ms")                 /* options, and the agent */                                                    \
  X(DATA, "data_ms")                   /* the data set */                                                              \
  X(DEVICE, "device_ms")               /* the device: its context, its libraries */                                    \
  X(MODEL, "model_ms")                 /* memory, the first weights, files */                                          \
  X(COMMUNICATORS, "communicators_ms") /* the connections to the other ranks */                                        \
  X(RESUME, "resume_ms")               /* the checkpoint, if there is one, on all ranks */                             \
  X(FIRST_STEP, "first_step_ms")       /* until its results are read */
#define X(name, key) PHASE_##name,
enum trainer_phase { TRAINER_PHASE_LIST(X) PHASES };
#undef X

/* The file of --metrics. */
struct metrics {
  int fd;           /* -1: none */
  const char *path; /* the caller's text, for messages */
  struct buf line;
};

/* Recent samples and steps per second. */
struct rate {
  uint64_t since_us, samples, steps;
  double value, steps_value;
};

/* Times of the last step that was read, in microseconds. */
struct timing {
  uint64_t step, input, wait, checkpoint; /* by the host's clock */
  uint64_t samples;                       /* over all ranks */
  /* By the device's clock if it has one, else by the host's. NaN: unknown. */
  double compute, exposed, device_input, idle;
};

/* The checkpoint in progress, and what all ranks know of the last ones (state.c). */
struct saving {
  struct ckpt_writer *writer; /* NULL: this rank does not write */
  struct ckpt_lock *lock;     /* of --checkpoint-dir, as long as there is a writer */
  struct compute_buf *stage;
  struct compute_buf *stamps; /* stage: the device's clock before and after the copy that delays its steps */
  bool begun;                 /* id names a checkpoint */
  bool under_way;             /* it is begun and not on disk */
  bool copying;               /* it is begun and not with the writer yet */
  struct compute_mark mark;   /* behind all copies */
  struct run_position at;
  struct ckpt_id id;
  uint64_t due[2];         /* all ranks: the steps of the last two checkpoints that were due */
  uint64_t written;        /* rank 0: the step of the last checkpoint written */
  uint64_t reported;       /* all ranks: the last step that the agent knows of */
  uint64_t stall_us;       /* the time that it cost the loop and the device's steps */
  uint64_t waited_for;     /* how often the run waited for the checkpoint before, since the start */
  uint64_t left_out;       /* how many checkpoints were skipped, since the start */
  uint64_t slow_logged_us; /* when a slow disk was logged, at most once a minute */
  uint64_t full_logged_us; /* when a full disk was logged, at most once a minute */
  int depth;               /* the loop waits for a checkpoint, so often nested */
  bool wanted;             /* somebody waits for the one in progress: it must not fail */
  uint64_t clock_us;       /* when the last one was begun or requested */
};

/* --verify-every, in this round (verify.c). */
struct verifying {
  struct compute_buf *stage;       /* of the checksums */
  int unlike;                      /* a rank with a device of another kind; -1: none */
  bool gradients;                  /* they are compared too */
  uint64_t equal_at;               /* the last step behind which all ranks had the same state; 0: none yet */
  size_t buckets[MODEL_READY_MAX]; /* where those of the last gradients begin */
  int n_buckets;
};

/* Whether the calls of a step become a graph (capture.c). */
enum trainer_captures { CAPTURE_NEVER, CAPTURE_UNTRIED, CAPTURE_AGREED };

struct trainer {
  struct trainer_opts o;
  enum trainer_exit exit;
  const volatile sig_atomic_t *sigterm; /* the signal handler sets it */

  /* The ranks and the device (setup.c, device.c). */
  struct rdzv *rdzv;
  int rank, world;
  struct coll *coll;
  struct compute *c;
  const struct gpu_module *gpu; /* if `c` is a CUDA device */
  struct err no_cuda;           /* why it is not, if some of CUDA is installed */

  /* The data, the model and the optimizer. */
  struct dataset data;
  struct compute_rows *rows; /* the data set on the device; NULL: batches are sent as floats */
  struct model model;
  struct compute_opt *opt;
  struct sampler sampler;
  struct permutation perm; /* of queued.epoch */
  uint64_t last_step;      /* the end of the run */

  /* The steps (step.c). */
  struct slots slots;
  enum trainer_captures capture;
  struct run_position queued; /* behind the last step that was queued */
  struct run_position done;   /* behind the last step that was read */
  unsigned requested;         /* rdzv_requested, before the last step that was queued */
  uint64_t asked_us;          /* when a wait last asked the agent */
  struct coll_ticket tickets[MODEL_READY_MAX];
  int n_tickets;
  size_t bucket_end; /* gradients from here on are being summed */

  /* Results of the last step that was read. */
  struct compute_opt_counters counters;
  double loss;                  /* not finite: that step was bad */
  bool stop, checkpoint, clock; /* requests that all ranks know of */
  uint64_t bad_in_row;          /* steps without a finite loss or finite gradients, up to this one */
  uint64_t bad_logged_us;
  uint64_t device_ns; /* the device's clock behind it; 0: none */
  struct timing timing;

  /* Checkpoints, resuming and recovery (state.c, recover.c). */
  struct ckpt_marker marker; /* of this rank's checkpoints: the token of this round, the job, the origin of the run */
  struct saving save;
  uint64_t checkpoint_us; /* the loop's time for checkpoints since the last step was read */
  char resumed_from[CKPT_NAME_MAX];
  bool has_state; /* resumed, or agreed with the others */
  bool behind;    /* while they agree: this rank needs another rank's state */

  struct verifying verify;

  struct compute_buf *bench_data, *bench_stage; /* --bench */

  /* Reports (report.c). */
  struct wait_log *waits; /* NULL: this rank logs no waits */
  struct tally tally;     /* of what is waited for now */
  struct metrics metrics;
  struct rate rate;
  uint64_t begin_us, samples, steps; /* this process alone */
  uint64_t reported_us, read_us, next_step_us;
  uint64_t phase_us[PHASES], phase_from_us;
  bool first_step_reported;
};

/* Returns rc. If it is an error, `code` becomes the exit code of the program. */
static inline int with_exit(struct trainer *t, enum trainer_exit code, int rc) {
  if (rc) t->exit = code;
  return rc;
}
/* The same for a collective. An error of this rank's own device or memory is its own; any other means a lost rank
 * (coll.h). */
static inline int with_coll_exit(struct trainer *t, int rc) {
  bool own = rc == -EIO || rc == -ENOMEM || rc == -EBUSY || rc == -ENOTSUP;
  return with_exit(t, own ? TRAINER_SYSTEM : TRAINER_LOST, rc);
}

/* The optimizer counts each step once: as an update, or as skipped. */
static inline uint64_t trainer_steps_counted(const struct compute_opt_counters *v) {
  return v->updates + v->skipped;
}

/* setup.c: from options to a run that is ready; with --bench, without data and a model. */
int trainer_setup(struct trainer *t, struct err *e);
/* false: the device may still be in a collective (compute.held). */
bool trainer_teardown(struct trainer *t);
/* Enters another round of the same process: rank, token, files, memory for its shares and for gradients. The state
 * stays. */
int trainer_enter_round(struct trainer *t, struct err *e);

/* device.c: t->c by --device; then t->coll, with the other ranks of this round. Each does nothing if it exists. */
int trainer_open_device(struct trainer *t, struct err *e);
int trainer_join_ranks(struct trainer *t, struct err *e);
/* rdzv_exchange for --coll-timeout at most: `all` has room for each rank's `size` bytes. SIGTERM ends it: -EINTR. */
int trainer_exchange(struct trainer *t, const char *name, const void *mine, size_t size, void *all, struct err *e);
void trainer_log_device(const struct trainer *t);

/* step.c: trains to the end, or until a requested stop. No step is queued afterwards. */
int trainer_loop(struct trainer *t, struct err *e);
/* Queues the next step; there must be a free slot. */
int trainer_queue_step(struct trainer *t, struct err *e);
/* A share's input to the stages of a slot. */
void trainer_fill_input(struct trainer *t, struct slot *s, const struct sampler_share *g);
/* The parts of a step. First a share's gradients; ready: see model_backward. Then their sums, which trainer_reduce_bucket
 * has begun, and the update. */
int trainer_enqueue_gradients(struct trainer *t, struct slot *s, const struct sampler_share *g, model_ready_fn ready,
                              struct err *e);
int trainer_reduce_bucket(void *trainer, size_t at, struct err *e); /* a model_ready_fn */
int trainer_enqueue_update(struct trainer *t, struct slot *s, struct err *e);
/* Queues the operations of a step, from stages to stages: the same calls for every step of this shape in this slot. */
int trainer_enqueue_step(struct trainer *t, struct slot *s, const struct sampler_share *g, struct err *e);
/* Reads the oldest queued step; there must be one. */
int trainer_read_step(struct trainer *t, struct err *e);
/* After a rank was lost and updates were blocked: waits for the queue. Steps whose update was made are read and
 * reported as usual, the others are forgotten. done and queued are then behind the last update. */
int trainer_discard_queued(struct trainer *t, struct err *e);

/* step.c: waits for a mark, and watches the other ranks and the agent. step: for the message. */
int trainer_wait(struct trainer *t, struct compute_mark mark, uint64_t step, struct err *e);
/* Watches them once: in the loop of any other wait. */
int trainer_watch(struct trainer *t, struct err *e);
/* The error of a rank that leaves, as of rdzv_requested: -ECANCELED if the agent ends the round, -EPIPE if the agent is
 * gone, otherwise 0. */
int trainer_leave_error(unsigned requested, struct err *e);
int trainer_asked(void *trainer, struct err *e); /* the same now; a coll_asked_fn */

/* capture.c: whether this device can capture, as far as that is known before the first capture of a round. */
int trainer_choose_capture(struct trainer *t, const char *what, struct err *e);
/* Captures the calls. All ranks call it for the same calls; in each round they first find out whether all can. 0: *out
 * is the caller's. 1: no rank captures, because of `why`. The calls use t->coll. */
typedef int (*trainer_calls_fn)(void *ctx, struct err *e);
int trainer_capture(struct trainer *t, const char *what, trainer_calls_fn calls, void *ctx, struct compute_graph **out,
                    struct err *why);
/* Launches a captured step, and captures it first if need be. 1: this step is not captured. */
int trainer_launch_captured(struct trainer *t, struct slot *s, const struct sampler_share *g, struct err *e);

/* verify.c: --verify-every. All ranks call these at the same step. A rank that is wrong fails with TRAINER_ELSEWHERE, the
 * others fail as if they had lost it. */
void trainer_verify_begin(struct trainer *t);     /* of a round */
bool trainer_verify_due(const struct trainer *t); /* before the next step that is queued */
/* Compares the state behind the queued steps. Does nothing without --verify-every. */
int trainer_verify_state(struct trainer *t, struct err *e);
/* Like trainer_enqueue_step, but compares this rank's gradients before they are summed. Waits. */
int trainer_enqueue_verified_step(struct trainer *t, struct slot *s, struct err *e);

/* state.c: finds the checkpoint to resume from, and gives it to all ranks. */
int trainer_resume(struct trainer *t, struct err *e);
/* The state at t->done as the bytes of a checkpoint, and back. No step may be queued. whose: for the message. */
size_t trainer_packed_size(const struct trainer *t);
int trainer_pack(struct trainer *t, struct buf *out, struct err *e);
int trainer_unpack(struct trainer *t, const void *bytes, size_t n, const char *whose, struct err *e);
/* Gives root's bytes to all ranks; len is set on each. what: for the log, as in "sending the state from". */
int trainer_broadcast(struct trainer *t, const char *what, struct buf *bytes, int root, struct err *e);
int trainer_await_queue(struct trainer *t, struct err *e); /* waits for all queued operations */
/* Checks at the start that --save-weights can be written. */
int trainer_check_weights(const char *path, struct err *e);
/* Rank 0 at the end: the CRC-32 of the weights, and --save-weights. */
int trainer_finish_weights(struct trainer *t, uint32_t *crc, struct err *e);

/* Rank 0 writes checkpoints; nothing without --checkpoint-dir. All ranks call these at the same step. */
int trainer_save_open(struct trainer *t, struct err *e);
void trainer_save_close(struct trainer *t); /* waits for the checkpoint in progress */
/* Begins a checkpoint of the state behind the queued steps, in the background. */
int trainer_save_begin(struct trainer *t, struct err *e);
int trainer_save_poll(struct trainer *t, struct err *e); /* once per step */
/* A checkpoint of that step is on disk: the agent remembers it for later rounds. */
void trainer_save_report(struct trainer *t, uint64_t step);
/* Writes a checkpoint of this state before it returns. together: all ranks call it; else rank 0 alone. No step may be
 * queued. */
int trainer_save_now(struct trainer *t, bool together, struct err *e);

/* recover.c: --recovery inplace. With restart the first two do nothing, and the third returns false. */
void trainer_offer_rejoin(struct trainer *t);
/* The error that ends the loop, if the agent asked for that. */
int trainer_asked_to_leave(struct trainer *t, struct err *e);
bool trainer_can_recover(const struct trainer *t, int rc);
/* After an error from which it can recover: 0 if the loop may continue. */
int trainer_recover(struct trainer *t, int rc, struct err *e);
/* Brings all ranks to the same step and bytes: those of the furthest rank, or of the checkpoint, or the first
 * weights. */
int trainer_agree(struct trainer *t, struct err *e);

/* report.c. --metrics is one JSON object per line, appended with one write each, so that a killed process leaves whole
 * lines. Without a file every call does nothing.
 *
 *   metrics_begin(m, "step"); metrics_uint(m, "step", 7); metrics_real(m, "loss", 0.5); metrics_end(m, e); */
int metrics_open(struct metrics *m, const char *path, struct err *e); /* path NULL: none */
void metrics_finish(struct metrics *m);
void metrics_begin(struct metrics *m, const char *event);
void metrics_uint(struct metrics *m, const char *key, uint64_t v);
void metrics_real(struct metrics *m, const char *key, double v); /* null if it is not finite */
void metrics_text(struct metrics *m, const char *key, const char *v);
int metrics_end(struct metrics *m, struct err *e);
int trainer_report_start(struct trainer *t, struct err *e);
int trainer_report_step(struct trainer *t, struct err *e);
int trainer_report_stop(struct trainer *t, struct err *e);
int trainer_report_end(struct trainer *t, uint32_t crc, struct err *e);
/* Counts the time since the phase before ended for this one. */
void trainer_end_phase(struct trainer *t, enum trainer_phase phase);

/* From now on rank 0 logs its waits, as often as --report-every says. */
void trainer_log_waits(struct trainer *t);

/* bench.c: memory for --bench, and the bench from the first size to the result. */
int trainer_bench_alloc(struct trainer *t, struct err *e);
int trainer_bench(struct trainer *t, struct err *e);

#endif
