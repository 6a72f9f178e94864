/* A run's state, out to a checkpoint and back.
 *
 * Rank 0 alone knows the directory. It decides what to resume and sends the bytes of the checkpoint to the
 * others, who decode and check them as if they had read them; so no file system needs to be shared, and no
 * two ranks can come to different conclusions. */

#include "agent/trainer/trainer.h"

#include "common/buf.h"
#include "common/log.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static int settle(struct trainer *t, struct err *e) {
  struct compute_mark mark;
  int rc = compute_record(t->c, &mark, e);
  return rc ? rc : compute_wait(t->c, mark, (uint64_t)t->o.coll_timeout_ms, e);
}

/* The first n parts, copied to a stage of their own; the caller frees it. */
static int download(struct trainer *t, int n, struct compute_buf **stage, struct err *e) {
  size_t params = t->model.n_params;
  *stage = NULL;
  int rc = compute_alloc(t->c, COMPUTE_STAGE, params * (size_t)n, stage, e);
  for (int i = 0; i < n && rc == 0; i++)
    rc = compute_copy(t->c, span_of(*stage, params * (size_t)i, params), part(t, i), e);
  if (rc == 0) rc = settle(t, e);
  return trainer_blame(t, TRAINER_SYSTEM, rc);
}

static int encode(struct trainer *t, struct buf *out, struct err *e) {
  struct compute_buf *stage;
  size_t params = t->model.n_params;
  int rc = download(t, 1 + compute_opt_states(t->o.hyper.kind), &stage, e);
  struct ckpt_state s = {.kind = kind_of(t),
                         .step = t->done.step,
                         .epoch = t->done.epoch,
                         .position = t->done.position,
                         .updates = t->counters.updates,
                         .last_loss = t->loss};
  if (rc == 0) {
    s.params = compute_host(t->c, span_of(stage, 0, params));
    for (int i = 0; i < compute_opt_states(t->o.hyper.kind); i++)
      s.states[i] = compute_host(t->c, span_of(stage, params * (size_t)(i + 1), params));
    ckpt_encode(&s, out);
  }
  compute_free(t->c, stage);
  return rc;
}

static int told_checkpoint(struct trainer *t, const char *name, uint64_t bytes, uint64_t us, struct err *e) {
  metrics_begin(&t->metrics, "checkpoint");
  metrics_uint(&t->metrics, "step", t->done.step);
  metrics_text(&t->metrics, "name", name);
  metrics_uint(&t->metrics, "bytes", bytes);
  metrics_real(&t->metrics, "ms", (double)us / 1000);
  return trainer_blame(t, TRAINER_FILES, metrics_end(&t->metrics, e));
}

int trainer_save(struct trainer *t, struct err *e) {
  struct buf bytes = BUF_INIT;
  struct err why = ERR_INIT;
  char name[CKPT_NAME_MAX];
  if (!t->o.checkpoint_dir || (t->saved && t->id.step == t->done.step)) return 0;
  t->id.step = t->done.step;
  t->saved = true;
  if (t->rank != 0) return 0;
  uint64_t from = trainer_now_us();
  int rc = encode(t, &bytes, e);
  if (rc == 0)
    rc = trainer_blame(t, TRAINER_FILES, ckpt_write(t->o.checkpoint_dir, &t->id, bytes.data, bytes.len, e));
  if (rc == 0 && ckpt_prune(t->o.checkpoint_dir, &t->id, (int)t->o.keep_checkpoints, &why))
    log_warn("old checkpoints: %s", why.text);
  ckpt_name_format(&t->id, name);
  if (rc == 0) rc = told_checkpoint(t, name, bytes.len, trainer_now_us() - from, e);
  buf_finish(&bytes);
  return rc;
}

static int upload(struct trainer *t, const struct ckpt_state *s, struct err *e) {
  struct compute_buf *stage;
  struct span all = {.n = t->model.n_params};
  int rc = compute_alloc(t->c, COMPUTE_STAGE, all.n, &stage, e);
  if (rc) return rc;
  all.buf = stage;
  for (int i = 0; i <= compute_opt_states(t->o.hyper.kind) && rc == 0; i++) {
    memcpy(compute_host(t->c, all), i == 0 ? s->params : s->states[i - 1], all.n * sizeof(float));
    rc = compute_copy(t->c, part(t, i), all, e);
    if (rc == 0) rc = settle(t, e); /* the stage is used again */
  }
  compute_free(t->c, stage);
  return rc;
}

static int take_state(struct trainer *t, const struct ckpt_state *s, struct err *e) {
  t->done = t->queued = (struct place){s->step, s->epoch, s->position};
  t->loss = s->last_loss;
  t->counters = (struct compute_opt_counters){.updates = s->updates, .scale = 1.0f};
  int rc = compute_opt_set(t->c, t->opt, &t->counters, e);
  return rc ? rc : upload(t, s, e);
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

int trainer_resume(struct trainer *t, struct err *e) {
  struct buf bytes = BUF_INIT;
  struct ckpt_kind want = kind_of(t);
  struct ckpt_state s = {0};
  int rc = trainer_blame(t, TRAINER_FILES, find(t, &bytes, e));
  if (rc == 0) rc = trainer_blame(t, TRAINER_LOST, share(t, &bytes, e));
  if (rc == 0 && bytes.len) {
    rc = ckpt_decode(bytes.data, bytes.len, &s, e);
    if (rc == 0) rc = ckpt_kind_check(&s.kind, &want, e);
    if (rc) err_wrap(e, "the checkpoint that rank 0 resumes from");
    rc = trainer_blame(t, TRAINER_FILES, rc);
    if (rc == 0) rc = trainer_blame(t, TRAINER_SYSTEM, take_state(t, &s, e));
  }
  buf_finish(&bytes);
  t->perm = sampler_epoch(&t->sampler, t->queued.epoch);
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
  struct compute_buf *stage;
  size_t bytes = t->model.n_params * sizeof(float);
  int rc = download(t, 1, &stage, e);
  if (rc == 0) {
    const float *w = compute_host(t->c, span_of(stage, 0, t->model.n_params));
    *crc = ckpt_crc(w, bytes);
    if (t->o.save_weights)
      rc = trainer_blame(t, TRAINER_FILES, write_weights(t->o.save_weights, w, bytes, e));
  }
  compute_free(t->c, stage);
  return rc;
}
