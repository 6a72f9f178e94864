/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a run: to the host and back, as bytes, from a checkpoint at the start, and to checkpoints while training
 * continues (below).
 *
 * A run does not resume from weights that are not finite. A device's ReLU may turn their results into zeros, and then
 * neither loss nor gradients would show it.
 *
 * Only rank 0 knows the folder. It decides what to resume from and sends the bytes of the checkpoint to the others,
 * which check them as if they had read them. So no file system needs to be shared, and all ranks come to the same
 * conclusion. */

#include "agent/trainer/run/trainer.h"

#include "agent/trainer/checkpoint/safetensors.h"
#include "common/buf.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "common/system/file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ckpt_kind checkpoint_kind(const struct trainer *t) {
  const struct trainer_opts *o = &t->o;
  const struct compute_opt_desc *h = &o->opt;
  return (struct ckpt_kind){.shape = o->shape,
                            .loss = o->loss,
                            .seed = (uint64_t)o->seed,
                            .samples = t->data.n,
                            .options = {[CKPT_BATCH] = (double)o->batch,
                                        [CKPT_SCALE] = o->scale,
                                        [CKPT_LR] = h->lr,
                                        [CKPT_BETA1] = h->beta1,
                                        [CKPT_BETA2] = h->beta2,
                                        [CKPT_EPS] = h->eps}};
}

enum { STATE_PARTS = 1 + COMPUTE_STATES };

/* Part 0 is the weights; the others are the optimizer's states. */
static struct span state_part(const struct trainer *t, int i) {
  return span_of(i == 0 ? t->model.params : compute_opt_state(t->c, t->opt, i - 1), 0, t->model.n_flat);
}

int trainer_await_queue(struct trainer *t, struct err *e) {
  struct compute_mark mark;
  int rc = compute_record(t->c, &mark, e);
  return rc ? rc : compute_wait(t->c, mark, (uint64_t)t->o.coll_timeout_ms, e);
}

/* A stage holds the parts, then the counters, then the loss. */
static struct span in_stage(const struct trainer *t, struct compute_buf *stage, int i) {
  return span_of(stage, t->model.n_flat * (size_t)i, t->model.n_flat);
}
static struct span counters_in_stage(const struct trainer *t, struct compute_buf *stage) {
  return span_of(stage, t->model.n_flat * STATE_PARTS, COMPUTE_COUNTERS);
}
static struct span loss_in_stage(const struct trainer *t, struct compute_buf *stage) {
  return span_of(stage, t->model.n_flat * STATE_PARTS + COMPUTE_COUNTERS, 1);
}

/* Allocates host memory for a whole state. */
static int alloc_stage(struct trainer *t, struct compute_buf **stage, struct err *e) {
  size_t n = t->model.n_flat * STATE_PARTS + COMPUTE_COUNTERS + 1;
  return with_exit(t, TRAINER_SYSTEM, compute_alloc(t->c, COMPUTE_STAGE, n, stage, e));
}

/* Queues copies of the state, as it is behind the queued steps, to a stage. */
static int download(struct trainer *t, struct compute_buf *stage, struct err *e) {
  int rc = compute_copy(t->c, loss_in_stage(t, stage), model_extra_span(&t->model, MODEL_LOSS, 1), e);
  for (int i = 0; i < STATE_PARTS && rc == 0; i++) rc = compute_copy(t->c, in_stage(t, stage, i), state_part(t, i), e);
  if (rc == 0) rc = compute_opt_read(t->c, t->opt, counters_in_stage(t, stage), e);
  return with_exit(t, TRAINER_SYSTEM, rc);
}

/* Behind a mark: the state in a stage. It points into the stage. */
static struct ckpt_state read_state(const struct trainer *t, struct compute_buf *stage, const struct run_position *at) {
  struct ckpt_state s = {
      .kind = checkpoint_kind(t), .step = at->step, .epoch = at->epoch, .position = at->position, .padded = true};
  s.last_loss = at->step == t->done.step ? t->loss : (double)*compute_host(t->c, loss_in_stage(t, stage));
  memcpy(&s.counters, compute_host(t->c, counters_in_stage(t, stage)), sizeof s.counters);
  s.params = compute_host(t->c, in_stage(t, stage, 0));
  for (int i = 1; i < STATE_PARTS; i++) s.states[i - 1] = compute_host(t->c, in_stage(t, stage, i));
  return s;
}

static void on_refused_checkpoint(void *ctx, const char *name, const struct err *why) {
  log_warn("checkpoint %s was skipped: %s", name, why->text);
}

/* Rank 0: the checkpoint to start from, as bytes: the newest complete one in --checkpoint-dir. With --resume none, only
 * one that this job wrote. No bytes: start at the first step. */
static int find_start(struct trainer *t, uint64_t saved, struct buf *bytes, struct err *e) {
  struct ckpt_marker marker;
  struct ckpt_state state;
  const char *dir = t->o.checkpoint_dir;
  bool none = t->o.resume == RESUME_NONE, alone = rdzv_alone(t->rdzv);
  if (t->rank != 0 || !dir || (none && alone)) return 0;
  tally_begin(&t->tally, 0);
  wait_log_begin(t->waits, &t->tally, NULL, "reading the newest checkpoint in %s", dir);
  int rc = ckpt_latest(dir, none ? t->marker.id.incarnation : NULL, &marker, &state, bytes, on_refused_checkpoint, t,
                       &t->tally, e);
  wait_log_end(t->waits);
  if (rc < 0) return with_exit(t, TRAINER_FILES, rc);
  if (rc == 0) {
    buf_clear(bytes);
    /* A job must not start over because its folder was emptied, or is private to a node that rank 0 has left. */
    if (!saved) return 0;
    return with_exit(t, TRAINER_DATA,
                     err_set(e, -ENOENT,
                             "checkpoint directory %s has no checkpoint, but this job wrote one of step %" PRIu64
                             "; restore the folder, or start a new job to begin at the first step",
                             dir, saved));
  }
  struct ckpt_kind want = checkpoint_kind(t);
  struct err why = ERR_INIT;
  char name[CKPT_NAME_MAX];
  ckpt_name_format(&marker.id, name);
  int fit = ckpt_fit(&marker, &state.kind, t->marker.job, &want, &why);
  if (fit == 1)
    log_warn("checkpoint %s/%s %s; it belongs to this job (%s), so the run resumes from it", dir, name, why.text,
             t->marker.job);
  if (fit == -EINVAL)
    err_set(e, fit, "checkpoint %s/%s %s; start over with --resume none, or use another --checkpoint-dir", dir, name,
            why.text);
  if (fit == -EPERM)
    err_set(e, fit,
            "checkpoint %s/%s of another run %s; use those options, or start over with --resume none or another "
            "--checkpoint-dir",
            dir, name, why.text);
  if (fit < 0) return with_exit(t, TRAINER_DATA, fit); /* a restart would only fail again */
  if (state.step < saved)
    log_warn("resuming from step %" PRIu64 ", although this job wrote a checkpoint of step %" PRIu64
             ": checkpoint directory %s no longer has it",
             state.step, saved, dir);
  t->marker.origin = marker.origin;
  snprintf(t->resumed_from, sizeof t->resumed_from, "%s", name);
  return 0;
}

/* In pieces, so that the log can say how far it is. Behind one piece a rank goes on to the next without waiting for the
 * ranks behind it, so the pieces cost nothing. */
int trainer_broadcast(struct trainer *t, const char *what, struct buf *bytes, int root, struct err *e) {
  enum { PIECE = 32 << 20 };
  int rc = 0;
  tally_begin(&t->tally, bytes->len);
  wait_log_begin(t->waits, &t->tally, NULL, "%s rank %d to the others", what, root);
  for (size_t at = 0; at < bytes->len && rc == 0;) {
    size_t n = bytes->len - at < PIECE ? bytes->len - at : PIECE;
    rc = coll_broadcast(t->coll, bytes->data + at, n, root, e);
    at += n;
    tally_add(&t->tally, n);
  }
  wait_log_end(t->waits);
  return rc;
}

size_t trainer_packed_size(const struct trainer *t) {
  struct ckpt_kind kind = checkpoint_kind(t);
  return ckpt_size(&kind);
}

int trainer_pack(struct trainer *t, struct buf *out, struct err *e) {
  struct compute_buf *stage = NULL;
  wait_log_begin(t->waits, NULL, NULL, "copying the state from %s", t->c->device);
  int rc = alloc_stage(t, &stage, e);
  if (rc == 0) rc = download(t, stage, e);
  if (rc == 0) rc = with_exit(t, TRAINER_SYSTEM, trainer_await_queue(t, e));
  if (rc == 0) {
    struct ckpt_state s = read_state(t, stage, &t->done);
    ckpt_encode(&s, out);
  }
  compute_free(t->c, stage);
  wait_log_end(t->waits);
  return rc;
}

int trainer_unpack(struct trainer *t, const void *bytes, size_t n, const char *whose, struct err *e) {
  struct ckpt_kind want = checkpoint_kind(t);
  struct ckpt_state s = {0};
  size_t at = 0;
  float value = 0;
  wait_log_begin(t->waits, NULL, NULL, "checking the state and copying it to %s", t->c->device);
  int rc = ckpt_decode(bytes, n, &s, e);
  if (rc == 0) rc = ckpt_kind_check(&s.kind, &want, e);
  if (rc == 0 && !model_weights_finite(s.params, t->model.n_params, &at, &value))
    rc = err_set(e, -EINVAL,
                 "weight %zu is %g, so that run had diverged; use --resume none or an older checkpoint, with "
                 "a smaller --lr",
                 at, (double)value);
  if (rc) {
    err_wrap(e, "%s", whose);
    wait_log_end(t->waits);
    return with_exit(t, TRAINER_FILES, rc);
  }

  struct compute_buf *stage = NULL;
  rc = alloc_stage(t, &stage, e);
  for (int i = 0; i < STATE_PARTS && rc == 0; i++) {
    float *part = compute_host(t->c, in_stage(t, stage, i));
    memcpy(part, i == 0 ? s.params : s.states[i - 1], t->model.n_params * sizeof(float));
    model_unpack(&t->o.shape, part);
    rc = compute_copy(t->c, state_part(t, i), in_stage(t, stage, i), e);
  }
  t->counters = (struct compute_opt_counters){.updates = s.counters.updates, .skipped = s.counters.skipped};
  if (rc == 0) rc = compute_opt_set(t->c, t->opt, &t->counters, e);
  if (rc == 0) rc = trainer_await_queue(t, e);
  compute_free(t->c, stage);
  wait_log_end(t->waits);
  if (rc) return with_exit(t, TRAINER_SYSTEM, rc);
  t->done = t->queued = (struct run_position){s.step, s.epoch, s.position};
  t->perm = sampler_epoch(&t->sampler, t->queued.epoch);
  t->loss = s.last_loss;
  return 0;
}

int trainer_resume(struct trainer *t, struct err *e) {
  struct buf bytes = BUF_INIT;
  int rc = 0;

  /* The step of the last checkpoint that this job wrote in earlier rounds, as far as the agents of this round know. */
  uint64_t mine = rdzv_saved_step(t->rdzv), saved = 0;
  if (!rdzv_alone(t->rdzv)) {
    uint64_t *all = xcalloc((size_t)t->world, sizeof *all);
    rc = trainer_exchange(t, "rdzv-trainer.saved", &mine, sizeof mine, all, e);
    for (int i = 0; rc == 0 && i < t->world; i++) saved = all[i] > saved ? all[i] : saved;
    free(all);
  }
  if (rc == 0) rc = find_start(t, saved, &bytes, e);

  /* Rank 0's bytes go to all ranks. A rank refuses a size that does not fit this run. */
  double size = (double)bytes.len;
  if (rc == 0) rc = with_coll_exit(t, coll_sum(t->coll, &size, 1, e)); /* the others have none */
  if (rc == 0 && size > 0 && size != (double)trainer_packed_size(t))
    rc = with_coll_exit(t, err_set(e, -EPROTO, "rank 0 resumes from a checkpoint of another size"));
  if (rc == 0 && size > 0) {
    buf_reserve(&bytes, (size_t)size - bytes.len);
    bytes.len = (size_t)size;
    rc = with_coll_exit(t, trainer_broadcast(t, "sending the checkpoint from", &bytes, 0, e));
  }

  if (rc == 0 && bytes.len) {
    rc = trainer_unpack(t, bytes.data, bytes.len, "the checkpoint that rank 0 resumes from", e);
    t->save.begun = rc == 0; /* it is already on disk */
    t->save.id.step = t->done.step;
    if (rc == 0 && t->o.checkpoint_dir) trainer_save_report(t, t->done.step);
  }
  buf_finish(&bytes);
  t->perm = sampler_epoch(&t->sampler, t->queued.epoch);
  return rc;
}

int trainer_check_weights(const char *path, struct err *e) {
  char *dir = xstrdup(path), *slash = strrchr(dir, '/');
  struct stat st;
  int rc = 0;
  if (slash) slash[slash == dir] = 0;
  if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
    rc = err_set(e, -EISDIR, "--save-weights %s is a directory; name a file", path);
  else if (access(slash ? dir : ".", W_OK | X_OK) < 0)
    rc = err_sys(e, -errno, "--save-weights %s could not be written", path);
  free(dir);
  return rc;
}

int trainer_finish_weights(struct trainer *t, uint32_t *crc, struct err *e) {
  struct compute_buf *stage = NULL;
  size_t bytes = t->model.n_params * sizeof(float);
  int rc = compute_alloc(t->c, COMPUTE_STAGE, t->model.n_flat, &stage, e);
  if (rc == 0) rc = compute_copy(t->c, span_of(stage, 0, t->model.n_flat), state_part(t, 0), e);
  if (rc == 0) rc = trainer_await_queue(t, e);
  with_exit(t, TRAINER_SYSTEM, rc);
  if (rc == 0) {
    float *w = compute_host(t->c, span_of(stage, 0, t->model.n_flat));
    model_pack(&t->o.shape, w);
    *crc = ckpt_crc(w, bytes);
    if (t->o.save_weights) {
      wait_log_begin(t->waits, NULL, NULL, "writing --save-weights %s", t->o.save_weights);
      struct buf file = BUF_INIT;
      safe_put_weights_head(&file, &t->o.shape);
      buf_append(&file, w, bytes);
      rc = file_replace(t->o.save_weights, file.data, file.len, 0666, true);
      buf_finish(&file);
      rc = rc < 0 ? err_sys(e, rc, "weights %s could not be written", t->o.save_weights) : 0;
      with_exit(t, TRAINER_FILES, rc);
      wait_log_end(t->waits);
    }
  }
  compute_free(t->c, stage);
  return rc;
}

/* Checkpoints while training continues. Begin queues copies of the state behind the queued steps, and a mark behind
 * them; the host does not wait. Poll gives the floats to the writer's thread when the mark is done, and reports its
 * result later. If an update before the copies was blocked, they hold the weights of an earlier step. The counters that
 * were copied with them show it, and the checkpoint is dropped.
 *
 * The run loses the time of the copy: stall_us. The memory cost is one more copy of the state on the host, pinned.
 *
 * If a checkpoint is due while the one before is still being written, the disk is too slow for --checkpoint-every. The
 * run then waits for a while and logs it. After that it skips the checkpoint, so that the other ranks do not wait
 * longer than --coll-timeout. A full disk skips checkpoints too, until there is room. The last one of a run and a
 * requested one must succeed. */

enum { SLICE_MS = 100, WRITE_MAX_MS = 3600 * 1000, LEAVE_MS = 20 * 1000, LOG_EVERY_US = 60 * 1000 * 1000 };

int trainer_save_open(struct trainer *t, struct err *e) {
  if (t->rank != 0 || !t->o.checkpoint_dir) return 0;
  int rc = alloc_stage(t, &t->save.stage, e);
  if (rc == 0)
    rc =
        with_exit(t, TRAINER_SYSTEM, compute_alloc(t->c, COMPUTE_STAGE, (size_t)2 * COMPUTE_STAMP, &t->save.stamps, e));
  t->save.clock_us = monotonic_us();
  return rc ? rc
            : ckpt_writer_create(t->o.checkpoint_dir, (int)t->o.keep_checkpoints, t->save.lock, &t->save.writer, e);
}

/* A writer that does not return keeps its memory; the process ends soon. */
void trainer_save_close(struct trainer *t) {
  struct ckpt_writer *w = t->save.writer;
  bool ended = ckpt_writer_destroy(w, LEAVE_MS);
  if (!ended) log_warn("%s does not respond; the last checkpoint is incomplete", t->o.checkpoint_dir);
  if (ended) compute_free(t->c, t->save.stage);
  if (ended) ckpt_lock_release(t->save.lock);
  if (t->c) compute_free(t->c, t->save.stamps);
  t->save = (struct saving){0};
}

/* The loop waits for a checkpoint from now on, or goes on. The agent takes that time off the useful time. */
static void set_waiting(struct trainer *t, bool on) {
  bool before = t->save.depth > 0;
  t->save.depth += on ? 1 : -1;
  if (before != (t->save.depth > 0) && rdzv_saving(t->rdzv, on)) log_warn("%s", rdzv_error(t->rdzv));
}

/* Handles the writer's result for one checkpoint. */
static int on_written(struct trainer *t, const struct ckpt_written *r, struct err *e) {
  char name[CKPT_NAME_MAX];
  if (r->full && !t->save.wanted) {
    /* The disk is full. Training continues, and the next checkpoint that is due is tried. */
    uint64_t now = monotonic_us();
    t->save.begun = false;
    t->save.left_out++;
    if (!t->save.full_logged_us || now - t->save.full_logged_us >= LOG_EVERY_US) {
      t->save.full_logged_us = now;
      log_warn("%s; the run continues and tries again at the next checkpoint; free some space", r->why.text);
    }
    return 0;
  }
  if (r->rc) {
    err_set(e, r->rc, "%s", r->why.text);
    return with_exit(t, r->rc == -EBUSY ? TRAINER_DATA : TRAINER_FILES, r->rc); /* -EBUSY: another job's folder now */
  }
  t->save.written = r->id.step;
  trainer_save_report(t, r->id.step);
  if (r->unpruned.code) log_warn("old checkpoints: %s", r->unpruned.text);
  ckpt_name_format(&r->id, name);
  metrics_begin(&t->metrics, "checkpoint");
  metrics_uint(&t->metrics, "step", r->id.step);
  metrics_text(&t->metrics, "name", name);
  metrics_uint(&t->metrics, "bytes", r->bytes);
  metrics_real(&t->metrics, "stall_ms", (double)t->save.stall_us / 1000);
  metrics_real(&t->metrics, "write_ms", (double)r->us / 1000);
  metrics_uint(&t->metrics, "waited_for", t->save.waited_for);
  metrics_uint(&t->metrics, "left_out", t->save.left_out);
  return with_exit(t, TRAINER_FILES, metrics_end(&t->metrics, e));
}

static struct span stamp(const struct trainer *t, size_t i) {
  return span_of(t->save.stamps, i * COMPUTE_STAMP, COMPUTE_STAMP);
}

/* Advances the checkpoint in progress, for timeout_ms at most. 1: none is in progress now. */
static int advance_save(struct trainer *t, uint64_t timeout_ms, struct err *e) {
  struct ckpt_written r;
  if (t->save.copying) {
    int rc = compute_done(t->c, t->save.mark, e);
    if (rc < 0) return with_exit(t, TRAINER_SYSTEM, rc);
    if (rc == 0 && !timeout_ms) return 0;
    if (rc == 0) rc = trainer_wait(t, t->save.mark, t->save.at.step, e);
    if (rc < 0) return rc;
    /* Each step adds one to the counters that were copied with the state. A blocked update does not. */
    struct ckpt_state s = read_state(t, t->save.stage, &t->save.at);
    if (trainer_steps_counted(&s.counters) - trainer_steps_counted(&t->counters) != t->save.at.step - t->done.step) {
      /* Its copy was queued behind an update that was blocked, because the round fails. */
      t->save.copying = t->save.begun = false;
      if (!t->save.wanted) return 1;
      return with_exit(t, TRAINER_SYSTEM,
                       err_set(e, -EPROTO,
                               "the checkpoint of step %llu was not written, because that step was not completed",
                               (unsigned long long)t->save.at.step));
    }
    /* The time in which the device did nothing else, by its own clock. A CPU has none, and the host's time includes it. */
    uint64_t ns[2];
    memcpy(ns, compute_host(t->c, stamp(t, 0)), sizeof ns);
    uint64_t us = ns[1] > ns[0] ? (ns[1] - ns[0]) / 1000 : 0;
    t->save.stall_us += us;
    t->checkpoint_us += us;
    t->save.copying = false;
    struct ckpt_marker about = t->marker;
    about.id = t->save.id;
    ckpt_writer_begin(t->save.writer, &about, &s);
  }
  if (ckpt_writer_wait(t->save.writer, timeout_ms, &r)) {
    int rc = on_written(t, &r, e);
    return rc ? rc : 1;
  }
  return !ckpt_writer_busy(t->save.writer);
}

int trainer_save_poll(struct trainer *t, struct err *e) {
  if (!t->save.writer || (!t->save.copying && !t->save.under_way)) return 0;
  int rc = advance_save(t, 0, e);
  if (rc == 1) t->save.under_way = false;
  return rc < 0 ? rc : 0;
}

/* For as long as the run stands still because of the checkpoint in progress. */
static void log_wait(struct trainer *t) {
  if (t->save.writer)
    wait_log_begin(t->waits, ckpt_writer_tally(t->save.writer), NULL, "writing the checkpoint of step %llu to %s",
                   (unsigned long long)t->save.at.step, t->o.checkpoint_dir);
}

/* The checkpoint before is still being written. 1: it is done now. 0: skip this one. */
static int wait_for_last(struct trainer *t, struct err *e) {
  uint64_t from = monotonic_us(), limit = (uint64_t)t->o.coll_timeout_ms * 1000 / 2;
  int rc = advance_save(t, 0, e);
  if (rc) return rc;
  if (!t->save.waited_for || from - t->save.slow_logged_us >= LOG_EVERY_US) {
    t->save.slow_logged_us = from;
    log_warn("%s is too slow for --checkpoint-every: the run waits until the checkpoint of step %llu is written",
             t->o.checkpoint_dir, (unsigned long long)t->save.at.step);
  }
  t->save.waited_for++;
  log_wait(t);
  while (rc == 0 && monotonic_us() - from < limit) {
    rc = trainer_watch(t, e);
    if (rc == 0) rc = advance_save(t, SLICE_MS, e);
  }
  wait_log_end(t->waits);
  if (rc) return rc;
  t->save.left_out++;
  log_warn("skipped the checkpoint of step %llu: that of step %llu is still being written",
           (unsigned long long)t->queued.step, (unsigned long long)t->save.at.step);
  return 0;
}

void trainer_save_report(struct trainer *t, uint64_t step) {
  if (step == 0 || step == t->save.reported) return;
  t->save.reported = step;
  if (rdzv_saved(t->rdzv, step)) log_warn("%s", rdzv_error(t->rdzv));
}

int trainer_save_begin(struct trainer *t, struct err *e) {
  if (t->o.checkpoint_dir && t->save.due[0] != t->queued.step) {
    t->save.due[1] = t->save.due[0];
    t->save.due[0] = t->queued.step;
  }
  if (!t->save.writer || (t->save.begun && t->save.id.step == t->queued.step)) return 0;
  set_waiting(t, true);
  uint64_t from = monotonic_us();
  int rc = t->save.under_way ? wait_for_last(t, e) : 1;
  if (rc == 1) {
    t->save.id = t->marker.id;
    t->save.id.step = t->queued.step;
    t->save.at = t->queued;
    t->save.copying = t->save.under_way = true;
    t->save.clock_us = from;
    /* The device does nothing else between the two stamps. */
    rc = compute_copy_and_stamp(t->c, (struct span){0}, (struct span){0}, stamp(t, 0), e);
    if (rc == 0) rc = download(t, t->save.stage, e);
    if (rc == 0) rc = compute_copy_and_stamp(t->c, (struct span){0}, (struct span){0}, stamp(t, 1), e);
    if (rc == 0) rc = compute_record(t->c, &t->save.mark, e);
    with_exit(t, TRAINER_SYSTEM, rc);
    t->save.stall_us = monotonic_us() - from;
    t->checkpoint_us += t->save.stall_us;
  }
  set_waiting(t, false);
  t->save.begun = true;
  return rc;
}

/* together: all ranks call it. */
static int wait_until_written(struct trainer *t, bool together, struct err *e) {
  uint64_t end = monotonic_us() + (uint64_t)WRITE_MAX_MS * 1000;
  int rc = 0;
  double waits = 1;
  if (t->save.under_way) log_wait(t);
  while (rc == 0 && waits > 0) {
    rc = t->save.writer && t->save.under_way ? trainer_watch(t, e) : 1; /* 1: none is in progress */
    if (rc == 0) rc = advance_save(t, SLICE_MS, e);
    if (rc == 1) t->save.under_way = false;
    if (rc < 0) break;
    waits = rc == 0;
    rc = together ? with_coll_exit(t, coll_sum(t->coll, &waits, 1, e)) : 0;
    if (rc == 0 && waits > 0 && monotonic_us() > end) {
      rc =
          err_set(e, -ETIMEDOUT, "the checkpoint of step %llu could not be written within an hour: %s does not respond",
                  (unsigned long long)t->save.at.step, t->o.checkpoint_dir);
      with_exit(t, TRAINER_FILES, rc);
    }
  }
  wait_log_end(t->waits);
  return rc;
}

int trainer_save_now(struct trainer *t, bool together, struct err *e) {
  if (t->o.checkpoint_dir) set_waiting(t, true);
  int rc = wait_until_written(t, together, e);
  t->save.wanted = true;
  if (rc == 0) rc = trainer_save_begin(t, e);
  if (rc == 0) rc = wait_until_written(t, together, e);
  t->save.wanted = false;
  if (t->o.checkpoint_dir) set_waiting(t, false);
  return rc;
}
