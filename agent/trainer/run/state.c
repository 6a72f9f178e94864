/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a run: to the host and back, as bytes, and from a checkpoint at the start. save.c decides when it is
 * written.
 *
 * The loss of a state is that of its step. If the host has read that step, it knows the loss. Otherwise the step is
 * still queued, and its loss is copied from the device behind it. A step that was aborted leaves a loss on the device
 * too, but the host has never read it.
 *
 * A run does not resume from weights that are not finite. A device's ReLU may turn their results into zeros, and then
 * neither loss nor gradients would show it.
 *
 * Only rank 0 knows the folder. It decides what to resume from and sends the bytes of the checkpoint to the others.
 * They decode and check them as if they had read them. So no file system needs to be shared, and all ranks come to the
 * same conclusion. */

#include "agent/trainer/run/trainer.h"

#include "common/buf.h"
#include "common/system/log.h"
#include "common/mem.h"
#include "common/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ckpt_kind checkpoint_kind(const struct trainer *t) {
  const struct trainer_opts *o = &t->o;
  const struct optim_hyper *h = &o->hyper;
  return (struct ckpt_kind){.shape = o->shape,
                            .activation = o->activation,
                            .loss = o->loss,
                            .optim = h->kind,
                            .seed = (uint64_t)o->seed,
                            .samples = t->data.n,
                            .options = {[CKPT_BATCH] = (double)o->batch,
                                        [CKPT_UPDATE_FREQ] = (double)o->update_freq,
                                        [CKPT_SCALE] = o->scale,
                                        [CKPT_LR] = h->lr,
                                        [CKPT_WARMUP_STEPS] = (double)h->warmup_steps,
                                        [CKPT_LR_DECAY] = (double)h->decay,
                                        [CKPT_LR_MIN] = h->lr_min,
                                        [CKPT_LR_POWER] = h->lr_power,
                                        [CKPT_MOMENTUM] = h->momentum,
                                        [CKPT_BETA1] = h->beta1,
                                        [CKPT_BETA2] = h->beta2,
                                        [CKPT_EPS] = h->eps,
                                        [CKPT_WEIGHT_DECAY] = h->weight_decay,
                                        [CKPT_CLIP_NORM] = h->clip_norm}};
}

/* Part 0 is the weights; the others are the optimizer's states. */
static struct span state_part(const struct trainer *t, int i) {
  return span_of(i == 0 ? t->model.params : compute_opt_state(t->c, t->opt, i - 1), 0, t->model.n_flat);
}

static int state_parts(const struct trainer *t) {
  return 1 + compute_opt_states(t->o.hyper.kind);
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
  return span_of(stage, t->model.n_flat * (size_t)state_parts(t), COMPUTE_COUNTERS);
}
static struct span loss_in_stage(const struct trainer *t, struct compute_buf *stage) {
  return span_of(stage, t->model.n_flat * (size_t)state_parts(t) + COMPUTE_COUNTERS, 1);
}

int trainer_state_stage(struct trainer *t, struct compute_buf **stage, struct err *e) {
  size_t n = t->model.n_flat * (size_t)state_parts(t) + COMPUTE_COUNTERS + 1;
  return with_exit(t, TRAINER_SYSTEM, compute_alloc(t->c, COMPUTE_STAGE, n, stage, e));
}

int trainer_state_download(struct trainer *t, struct compute_buf *stage, struct err *e) {
  int rc = compute_copy(t->c, loss_in_stage(t, stage), model_extra_span(&t->model, MODEL_LOSS, 1), e);
  for (int i = 0; i < state_parts(t) && rc == 0; i++)
    rc = compute_copy(t->c, in_stage(t, stage, i), state_part(t, i), e);
  if (rc == 0) rc = compute_opt_read(t->c, t->opt, counters_in_stage(t, stage), e);
  return with_exit(t, TRAINER_SYSTEM, rc);
}

/* Each step adds one to the counters that were copied with the state. A blocked update does not. */
bool trainer_state_is_of(const struct trainer *t, struct compute_buf *stage, const struct run_position *at) {
  struct compute_opt_counters v;
  memcpy(&v, compute_host(t->c, counters_in_stage(t, stage)), sizeof v);
  return trainer_steps_counted(&v) - trainer_steps_counted(&t->counters) == at->step - t->done.step;
}

struct ckpt_state trainer_state_read(const struct trainer *t, struct compute_buf *stage,
                                     const struct run_position *at) {
  struct ckpt_state s = {
      .kind = checkpoint_kind(t), .step = at->step, .epoch = at->epoch, .position = at->position, .padded = true};
  s.last_loss = at->step == t->done.step ? t->loss : (double)*compute_host(t->c, loss_in_stage(t, stage));
  memcpy(&s.counters, compute_host(t->c, counters_in_stage(t, stage)), sizeof s.counters);
  s.params = compute_host(t->c, in_stage(t, stage, 0));
  for (int i = 1; i < state_parts(t); i++) s.states[i - 1] = compute_host(t->c, in_stage(t, stage, i));
  return s;
}

static int upload_state(struct trainer *t, const struct ckpt_state *s, struct err *e) {
  struct compute_buf *stage = NULL;
  size_t bytes = t->model.n_params * sizeof(float);
  int rc = trainer_state_stage(t, &stage, e);
  for (int i = 0; i < state_parts(t) && rc == 0; i++) {
    float *part = compute_host(t->c, in_stage(t, stage, i));
    memcpy(part, i == 0 ? s->params : s->states[i - 1], bytes);
    model_unpack(&t->o.shape, part);
    rc = compute_copy(t->c, state_part(t, i), in_stage(t, stage, i), e);
  }
  t->counters = (struct compute_opt_counters){.updates = s->counters.updates, .skipped = s->counters.skipped};
  if (rc == 0) rc = compute_opt_set(t->c, t->opt, &t->counters, e);
  if (rc == 0) rc = trainer_await_queue(t, e);
  compute_free(t->c, stage);
  if (rc) return with_exit(t, TRAINER_SYSTEM, rc);
  t->done = t->queued = (struct run_position){s->step, s->epoch, s->position};
  t->perm = sampler_epoch(&t->sampler, t->queued.epoch);
  t->loss = s->last_loss;
  return 0;
}

static void on_refused_checkpoint(void *ctx, const char *name, const struct err *why) {
  log_warn("checkpoint %s was skipped: %s", name, why->text);
}

/* Where a run starts; negative: an error. */
enum { NOTHING, NEWEST, NAMED };

/* A checkpoint, and the bytes that it points into. */
struct found {
  struct ckpt_marker marker;
  struct ckpt_state state;
  struct buf *bytes;
  char name[CKPT_NAME_MAX];
};

/* The newest complete checkpoint in --checkpoint-dir, if there is one. With --resume none, only one that this job
 * wrote. */
static int find_newest(struct trainer *t, struct found *f, struct err *e) {
  bool none = t->o.resume == RESUME_NONE, alone = rdzv_alone(t->rdzv);
  if (!t->o.checkpoint_dir || (none && alone)) return 0;
  tally_begin(&t->tally, 0);
  wait_log_begin(t->waits, &t->tally, NULL, "reading the newest checkpoint in %s", t->o.checkpoint_dir);
  int rc = ckpt_latest(t->o.checkpoint_dir, none ? t->marker.id.incarnation : NULL, &f->marker, &f->state, f->bytes,
                       on_refused_checkpoint, t, &t->tally, e);
  if (rc > 0) ckpt_name_format(&f->marker.id, f->name);
  return rc < 0 ? with_exit(t, TRAINER_FILES, rc) : rc;
}

static int find_named(struct trainer *t, struct found *f, struct err *e) {
  const char *path = t->o.resume_from;
  struct ckpt_kind want = checkpoint_kind(t);
  struct found named = {.bytes = &(struct buf)BUF_INIT};
  char text[320];
  tally_begin(&t->tally, 0);
  wait_log_begin(t->waits, &t->tally, NULL, "reading --resume-from %s", path);
  int rc = ckpt_open(path, &named.marker, &named.state, named.bytes, &t->tally, e);
  if (rc == 0) rc = ckpt_kind_check(&named.state.kind, &want, e);
  if (rc) {
    buf_finish(named.bytes);
    err_wrap(e, "--resume-from %s", path);
    return with_exit(t, TRAINER_DATA, rc);
  }
  /* If this job, or the same command before, has written checkpoints since then, the run continues from those. */
  uint32_t source = named.marker.crc;
  rc = find_newest(t, f, e);
  bool same_life = rc == NEWEST && !rdzv_alone(t->rdzv) && !strcmp(f->marker.id.incarnation, t->marker.id.incarnation);
  if (rc < 0 || same_life ||
      (rc == NEWEST && f->marker.source == source &&
       ckpt_fit(&f->marker, &f->state.kind, t->marker.job, &want, NULL) >= 0)) {
    buf_finish(named.bytes);
    return rc;
  }
  if (ckpt_options_differ(&named.state.kind, &want, text, sizeof text))
    log_warn("--resume-from %s was made with other options (%s)", path, text);
  buf_finish(f->bytes);
  *f->bytes = *named.bytes;
  f->marker = named.marker;
  f->state = named.state;
  f->marker.origin = t->marker.id.generation;
  f->marker.source = source;
  ckpt_name_format(&f->marker.id, f->name);
  return NAMED;
}

/* The step of the last checkpoint that this job wrote in earlier rounds, as far as the agents of this round know. */
static int ask_saved(struct trainer *t, uint64_t *step, struct err *e) {
  uint64_t mine = rdzv_saved_step(t->rdzv);
  *step = 0;
  if (rdzv_alone(t->rdzv)) return 0;
  uint64_t *all = xcalloc((size_t)t->world, sizeof *all);
  int rc = trainer_exchange(t, "rdzv-trainer.saved", &mine, sizeof mine, all, e);
  for (int i = 0; rc == 0 && i < t->world; i++)
    if (all[i] > *step) *step = all[i];
  free(all);
  return rc;
}

/* A job must not start over because its folder was emptied, or is private to a node that rank 0 has left. */
static int check_lost(struct trainer *t, const struct found *f, uint64_t saved, struct err *e) {
  const char *dir = t->o.checkpoint_dir;
  if (!dir || !saved || (f && f->state.step >= saved)) return 0;
  if (f) {
    log_warn("resuming from step %" PRIu64 ", although this job wrote a checkpoint of step %" PRIu64
             ": checkpoint directory %s no longer has it",
             f->state.step, saved, dir);
    return 0;
  }
  err_set(e, -ENOENT,
          "checkpoint directory %s has no checkpoint, but this job wrote one of step %" PRIu64
          "; restore the folder, or start a new job to begin at the first step",
          dir, saved);
  return with_exit(t, TRAINER_DATA, -ENOENT);
}

/* Rank 0: the checkpoint to start from, as bytes. None: start at the first step. */
static int find_start(struct trainer *t, uint64_t saved, struct buf *bytes, struct err *e) {
  struct found f = {.bytes = bytes};
  if (t->rank != 0) return 0;
  int rc = t->o.resume_from ? find_named(t, &f, e) : find_newest(t, &f, e);
  wait_log_end(t->waits);
  if (rc == NEWEST) {
    struct ckpt_kind want = checkpoint_kind(t);
    struct err why = ERR_INIT;
    const char *dir = t->o.checkpoint_dir;
    int fit = ckpt_fit(&f.marker, &f.state.kind, t->marker.job, &want, &why);
    if (fit == 1)
      log_warn("checkpoint %s/%s %s; it belongs to this job (%s), so the run resumes from it", dir, f.name, why.text,
               t->marker.job);
    if (fit == -EINVAL)
      err_set(e, fit, "checkpoint %s/%s %s; start over with --resume none, or use another --checkpoint-dir", dir,
              f.name, why.text);
    if (fit == -EPERM)
      err_set(e, fit,
              "checkpoint %s/%s of another run %s; to continue from it with these options, use --resume-from %s/%s; "
              "to start over, use --resume none or another --checkpoint-dir",
              dir, f.name, why.text, dir, f.name);
    if (fit < 0) return with_exit(t, TRAINER_DATA, fit); /* a restart would only fail again */
  }
  if (rc >= NOTHING) {
    int lost = check_lost(t, rc == NOTHING ? NULL : &f, saved, e);
    if (lost) return lost;
  }
  if (rc <= NOTHING) {
    buf_clear(bytes);
    return rc;
  }
  t->marker.origin = f.marker.origin;
  t->marker.source = f.marker.source;
  t->resumed_named = rc == NAMED;
  snprintf(t->resumed_from, sizeof t->resumed_from, "%s", f.name);
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

/* Sends rank 0's bytes to all ranks. A rank refuses a size that does not fit this run. */
static int share_checkpoint(struct trainer *t, struct buf *bytes, struct err *e) {
  struct ckpt_kind want = checkpoint_kind(t);
  double size = (double)bytes->len;
  int rc = coll_sum(t->coll, &size, 1, e); /* the others have none */
  if (rc || size == 0) return rc;
  if (size != (double)ckpt_size(&want)) return err_set(e, -EPROTO, "rank 0 resumes from a checkpoint of another size");
  if (t->rank != 0) {
    buf_reserve(bytes, (size_t)size);
    bytes->len = (size_t)size;
  }
  return trainer_broadcast(t, "sending the checkpoint from", bytes, 0, e);
}

size_t trainer_packed_size(const struct trainer *t) {
  struct ckpt_kind kind = checkpoint_kind(t);
  return ckpt_size(&kind);
}

int trainer_pack(struct trainer *t, struct buf *out, struct err *e) {
  struct compute_buf *stage = NULL;
  wait_log_begin(t->waits, NULL, NULL, "copying the state from %s", t->c->device);
  int rc = trainer_state_stage(t, &stage, e);
  if (rc == 0) rc = trainer_state_download(t, stage, e);
  if (rc == 0) rc = with_exit(t, TRAINER_SYSTEM, trainer_await_queue(t, e));
  if (rc == 0) {
    struct ckpt_state s = trainer_state_read(t, stage, &t->done);
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
  if (rc) err_wrap(e, "%s", whose);
  rc = with_exit(t, TRAINER_FILES, rc);
  if (rc == 0) rc = upload_state(t, &s, e);
  wait_log_end(t->waits);
  return rc;
}

int trainer_resume(struct trainer *t, struct err *e) {
  struct buf bytes = BUF_INIT;
  uint64_t saved = 0;
  int rc = ask_saved(t, &saved, e);
  if (rc == 0) rc = find_start(t, saved, &bytes, e);
  if (rc == 0) rc = with_coll_exit(t, share_checkpoint(t, &bytes, e));
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
      rc = file_replace(t->o.save_weights, w, bytes, 0666, true);
      rc = rc < 0 ? err_sys(e, rc, "weights %s could not be written", t->o.save_weights) : 0;
      with_exit(t, TRAINER_FILES, rc);
      wait_log_end(t->waits);
    }
  }
  compute_free(t->c, stage);
  return rc;
}
