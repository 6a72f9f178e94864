/* A run's state, out to the host and back. When it is written is save.c's affair.
 *
 * Weights that are not finite are not gone on from: a device's ReLU may turn what comes of them into zeros, and then neither loss nor
 * gradients would tell.
 *
 * Rank 0 alone knows the directory. It decides what to resume and sends the bytes of the checkpoint to the
 * others, who decode and check them as if they had read them; so no file system needs to be shared, and no
 * two ranks can come to different conclusions. */

#include "agent/trainer/run/trainer.h"

#include "common/buf.h"
#include "common/log.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ckpt_kind kind_of(const struct trainer *t) {
  return (struct ckpt_kind){.shape = t->o.shape,
                            .loss = t->o.loss,
                            .optim = t->o.hyper.kind,
                            .seed = (uint64_t)t->o.seed,
                            .samples = t->data.n};
}

/* The weights, then each state of the optimizer. */
static struct span part(const struct trainer *t, int i) {
  return span_of(i == 0 ? t->model.params : compute_opt_state(t->c, t->opt, i - 1), 0, t->model.n_params);
}

static int parts(const struct trainer *t) {
  return 1 + compute_opt_states(t->o.hyper.kind);
}

int trainer_settle(struct trainer *t, struct err *e) {
  struct compute_mark mark;
  int rc = compute_record(t->c, &mark, e);
  return rc ? rc : compute_wait(t->c, mark, (uint64_t)t->o.coll_timeout_ms, e);
}

/* A stage: the parts, then the counters, then the loss. */
static struct span in_stage(const struct trainer *t, struct compute_buf *stage, int i) {
  return span_of(stage, t->model.n_params * (size_t)i, t->model.n_params);
}
static struct span counters_in_stage(const struct trainer *t, struct compute_buf *stage) {
  return span_of(stage, t->model.n_params * (size_t)parts(t), COMPUTE_COUNTERS);
}
static struct span loss_in_stage(const struct trainer *t, struct compute_buf *stage) {
  return span_of(stage, t->model.n_params * (size_t)parts(t) + COMPUTE_COUNTERS, 1);
}

int trainer_state_stage(struct trainer *t, struct compute_buf **stage, struct err *e) {
  size_t n = t->model.n_params * (size_t)parts(t) + COMPUTE_COUNTERS + 1;
  return trainer_blame(t, TRAINER_SYSTEM, compute_alloc(t->c, COMPUTE_STAGE, n, stage, e));
}

/* The little that is not parts. */
static int download_rest(struct trainer *t, struct compute_buf *stage, struct err *e) {
  int rc = compute_copy(t->c, loss_in_stage(t, stage), model_extra_span(&t->model, MODEL_LOSS, 1), e);
  if (rc == 0) rc = compute_opt_read(t->c, t->opt, counters_in_stage(t, stage), e);
  return trainer_blame(t, TRAINER_SYSTEM, rc);
}

int trainer_state_download(struct trainer *t, struct compute_buf *stage, struct err *e) {
  int rc = 0;
  for (int i = 0; i < parts(t) && rc == 0; i++) rc = compute_copy(t->c, in_stage(t, stage, i), part(t, i), e);
  return rc ? trainer_blame(t, TRAINER_SYSTEM, rc) : download_rest(t, stage, e);
}

static struct span all_parts(const struct trainer *t, struct compute_buf *b) {
  return span_of(b, 0, t->model.n_params * (size_t)parts(t));
}

int trainer_state_shadow(struct trainer *t, struct compute_buf **shadow, struct err *e) {
  return compute_alloc(t->c, COMPUTE_STATE, t->model.n_params * (size_t)parts(t), shadow, e);
}

int trainer_state_copy(struct trainer *t, struct compute_buf *shadow, struct compute_buf *stage,
                       struct err *e) {
  int rc = 0;
  for (int i = 0; i < parts(t) && rc == 0; i++)
    rc = compute_copy(t->c, in_stage(t, shadow, i), part(t, i), e);
  return rc ? trainer_blame(t, TRAINER_SYSTEM, rc) : download_rest(t, stage, e);
}

int trainer_state_fetch(struct trainer *t, struct compute_buf *shadow, struct compute_buf *stage,
                        struct compute_mark *mark, struct err *e) {
  return trainer_blame(t, TRAINER_SYSTEM,
                       compute_fetch(t->c, all_parts(t, stage), all_parts(t, shadow), mark, e));
}

struct ckpt_state trainer_state_read(const struct trainer *t, struct compute_buf *stage,
                                     const struct place *at) {
  struct ckpt_state s = {.kind = kind_of(t), .step = at->step, .epoch = at->epoch, .position = at->position};
  s.last_loss = (double)*compute_host(t->c, loss_in_stage(t, stage));
  memcpy(&s.counters, compute_host(t->c, counters_in_stage(t, stage)), sizeof s.counters);
  if (!t->scale_loss) s.counters.scale = 0;
  s.params = compute_host(t->c, in_stage(t, stage, 0));
  for (int i = 1; i < parts(t); i++) s.states[i - 1] = compute_host(t->c, in_stage(t, stage, i));
  return s;
}

static int upload_counters(struct trainer *t, const struct ckpt_state *s, struct compute_buf *stage,
                           struct err *e) {
  struct compute_opt_counters fresh;
  int rc = compute_opt_read(t->c, t->opt, counters_in_stage(t, stage), e);
  if (rc == 0) rc = trainer_settle(t, e);
  if (rc) return rc;
  memcpy(&fresh, compute_host(t->c, counters_in_stage(t, stage)), sizeof fresh);
  t->counters = (struct compute_opt_counters){
      .updates = s->counters.updates,
      .skipped = s->counters.skipped,
      .good_in_row = s->counters.good_in_row,
      .scale = t->scale_loss && s->counters.scale > 0 ? s->counters.scale : fresh.scale};
  return compute_opt_set(t->c, t->opt, &t->counters, e);
}

int trainer_state_upload(struct trainer *t, const struct ckpt_state *s, struct err *e) {
  struct compute_buf *stage = NULL;
  size_t bytes = t->model.n_params * sizeof(float);
  int rc = trainer_state_stage(t, &stage, e);
  for (int i = 0; i < parts(t) && rc == 0; i++) {
    memcpy(compute_host(t->c, in_stage(t, stage, i)), i == 0 ? s->params : s->states[i - 1], bytes);
    rc = compute_copy(t->c, part(t, i), in_stage(t, stage, i), e);
  }
  if (rc == 0) {
    *compute_host(t->c, loss_in_stage(t, stage)) = (float)s->last_loss;
    rc = compute_copy(t->c, model_extra_span(&t->model, MODEL_LOSS, 1), loss_in_stage(t, stage), e);
  }
  if (rc == 0) rc = upload_counters(t, s, stage, e);
  if (rc == 0) rc = trainer_settle(t, e);
  compute_free(t->c, stage);
  if (rc) return trainer_blame(t, TRAINER_SYSTEM, rc);
  t->done = t->queued = (struct place){s->step, s->epoch, s->position};
  t->perm = sampler_epoch(&t->sampler, t->queued.epoch);
  t->loss = s->last_loss;
  return 0;
}

static void refused(void *ctx, const char *name, const struct err *why) {
  log_warn("checkpoint %s is passed over: %s", name, why->text);
}

/* Rank 0: the newest whole checkpoint, if there is one, as bytes. */
static int find(struct trainer *t, struct buf *bytes, struct err *e) {
  struct ckpt_kind want = kind_of(t);
  struct ckpt_id id = {0};
  struct ckpt_state s = {0};
  if (t->rank != 0 || !t->o.checkpoint_dir || t->o.resume == RESUME_NONE) return 0;
  int rc = ckpt_latest(t->o.checkpoint_dir, &want, &id, &s, bytes, refused, t, e);
  if (rc == -EINVAL) {
    struct err why = *e;
    err_set(e, rc, "%s; use --resume none to begin anew, or another --checkpoint-dir", why.text);
  }
  if (rc == 1) ckpt_name_format(&id, t->resumed_from);
  if (rc == 0) buf_clear(bytes);
  return rc < 0 ? rc : 0;
}

/* Everybody gets rank 0's bytes. Whoever is told another size than a checkpoint of this run has does not
 * believe it. */
static int share(struct trainer *t, struct buf *bytes, struct err *e) {
  struct ckpt_kind want = kind_of(t);
  double size = (double)bytes->len;
  int rc = coll_sum(t->coll, &size, 1, e); /* the others have none */
  if (rc || size == 0) return rc;
  if (size != (double)ckpt_size(&want))
    return err_set(e, -EPROTO, "rank 0 resumes from a checkpoint of another size");
  if (t->rank != 0) {
    buf_reserve(bytes, (size_t)size);
    bytes->len = (size_t)size;
  }
  return coll_broadcast(t->coll, bytes->data, bytes->len, 0, e);
}

size_t trainer_packed_size(const struct trainer *t) {
  struct ckpt_kind kind = kind_of(t);
  return ckpt_size(&kind);
}

int trainer_pack(struct trainer *t, struct buf *out, struct err *e) {
  struct compute_buf *stage = NULL;
  int rc = trainer_state_stage(t, &stage, e);
  if (rc == 0) rc = trainer_state_download(t, stage, e);
  if (rc == 0) rc = trainer_blame(t, TRAINER_SYSTEM, trainer_settle(t, e));
  if (rc == 0) {
    struct ckpt_state s = trainer_state_read(t, stage, &t->done);
    ckpt_encode(&s, out);
  }
  compute_free(t->c, stage);
  return rc;
}

int trainer_unpack(struct trainer *t, const void *bytes, size_t n, const char *whose, struct err *e) {
  struct ckpt_kind want = kind_of(t);
  struct ckpt_state s = {0};
  size_t at = 0;
  float value = 0;
  int rc = ckpt_decode(bytes, n, &s, e);
  if (rc == 0) rc = ckpt_kind_check(&s.kind, &want, e);
  if (rc == 0 && !model_weights_finite(s.params, t->model.n_params, &at, &value))
    rc =
        err_set(e, -EINVAL,
                "weight number %zu is %g: that run had diverged; --resume none, or an older checkpoint, with "
                "a smaller --lr",
                at, (double)value);
  if (rc) err_wrap(e, "%s", whose);
  rc = trainer_blame(t, TRAINER_FILES, rc);
  return rc ? rc : trainer_state_upload(t, &s, e);
}

int trainer_resume(struct trainer *t, struct err *e) {
  struct buf bytes = BUF_INIT;
  int rc = trainer_blame(t, TRAINER_FILES, find(t, &bytes, e));
  if (rc == 0) rc = trainer_blame_coll(t, share(t, &bytes, e));
  if (rc == 0 && bytes.len) {
    rc = trainer_unpack(t, bytes.data, bytes.len, "the checkpoint that rank 0 resumes from", e);
    t->save.begun = rc == 0; /* it is on disk already */
    t->save.id.step = t->done.step;
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
    rc = err_set(e, -EISDIR, "--save-weights %s: is a directory; a file is wanted", path);
  else if (access(slash ? dir : ".", W_OK | X_OK) < 0)
    rc = err_sys(e, -errno, "--save-weights %s could not be written", path);
  free(dir);
  return rc;
}

static int write_weights(const char *path, const void *data, size_t n, struct err *e) {
  char *tmp = xasprintf("%s.tmp-%ld", path, (long)getpid());
  FILE *f = fopen(tmp, "wbe");
  int rc = 0;
  if (!f || fwrite(data, 1, n, f) != n || fflush(f) != 0 || fsync(fileno(f)) < 0) rc = -errno;
  if (f && fclose(f) != 0 && rc == 0) rc = -errno;
  if (rc == 0 && rename(tmp, path) < 0) rc = -errno;
  if (rc) {
    unlink(tmp);
    err_sys(e, rc, "weights %s could not be written", path);
  }
  free(tmp);
  return rc;
}

int trainer_result(struct trainer *t, uint32_t *crc, struct err *e) {
  struct compute_buf *stage = NULL;
  size_t bytes = t->model.n_params * sizeof(float);
  int rc = compute_alloc(t->c, COMPUTE_STAGE, t->model.n_params, &stage, e);
  if (rc == 0) rc = compute_copy(t->c, span_of(stage, 0, t->model.n_params), part(t, 0), e);
  if (rc == 0) rc = trainer_settle(t, e);
  trainer_blame(t, TRAINER_SYSTEM, rc);
  if (rc == 0) {
    const float *w = compute_host(t->c, span_of(stage, 0, t->model.n_params));
    *crc = ckpt_crc(w, bytes);
    if (t->o.save_weights)
      rc = trainer_blame(t, TRAINER_FILES, write_weights(t->o.save_weights, w, bytes, e));
  }
  compute_free(t->c, stage);
  return rc;
}
