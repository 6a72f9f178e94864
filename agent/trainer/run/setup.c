/* SPDX-License-Identifier: Apache-2.0 */
/* From options to a run that is ready for its first step.
 *
 * Steps that can fail on this rank alone come before those that need the other ranks: data and memory first, the ring
 * last. So a rank that lacks a file reports it at once, and no rank waits for a ring that cannot form.
 *
 * The agent's token (incarnation, round) names checkpoints, behind the generation that the folder's lock gives. Without
 * an agent the incarnation is CKPT_ALONE and each run has its own generation, so nothing is ever written twice. */

#include "agent/trainer/run/trainer.h"

#include "agent/trainer/checkpoint/safetensors.h"
#include "common/buf.h"
#include "common/system/log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int meet_agent(struct trainer *t, struct err *e) {
  const char *world = getenv("WORLD_SIZE");
  int rc = rdzv_init(&t->rdzv, (int)t->o.coll_timeout_ms);
  if (rc) return with_exit(t, TRAINER_LOST, err_set(e, rc, "%s", rdzv_error(NULL)));
  rdzv_set_interrupt(t->rdzv, t->sigterm);
  t->rank = rdzv_rank(t->rdzv);
  t->world = rdzv_world_size(t->rdzv);
  trainer_log_waits(t);
  if (!rdzv_alone(t->rdzv) || !world || strcmp(world, "1") == 0) return 0;
  /* Every rank would silently train alone. */
  return with_exit(
      t, TRAINER_USAGE,
      err_set(e, -EINVAL,
              "WORLD_SIZE is %.20s, but there is no rdzv-agent (RDZV_AGENT_SOCKET is not set): start this program "
              "through rdzv-agent, or unset WORLD_SIZE",
              world));
}

static int open_data(struct trainer *t, struct err *e) {
  const struct trainer_opts *o = &t->o;
  int rc = dataset_open(&t->data, o->data, o->labels, o->shape.width[0], o->scale, e);
  if (rc) return rc;
  uint64_t where = 0;
  unsigned top = o->labels ? dataset_top_label(&t->data, &where) : 0, classes = o->shape.width[o->shape.n - 1];
  if (top >= classes)
    return err_set(e, -EINVAL, "%s: sample %llu has class %u, but --layers ends with %u, which allows classes 0 to %u",
                   o->labels, (unsigned long long)where, top, classes, classes - 1);
  t->sampler = (struct sampler){.samples = t->data.n, .batch = (uint64_t)o->batch, .seed = (uint64_t)o->seed};
  uint64_t each = sampler_steps_per_epoch(&t->sampler), epochs = (uint64_t)o->epochs, steps = (uint64_t)o->steps;
  t->last_step = epochs && epochs <= UINT64_MAX / each ? epochs * each : UINT64_MAX;
  if (steps && steps < t->last_step) t->last_step = steps;
  return 0;
}

static int make_model(struct trainer *t, struct err *e) {
  const struct dataset *d = &t->data;
  size_t rows = (size_t)sampler_share_max(&t->sampler, t->world);
  int rc = model_init(&t->model, t->c, &t->o.shape, rows, e);
  struct compute_opt_desc opt = t->o.opt;
  opt.n = t->model.n_flat;
  if (rc == 0) rc = compute_opt_create(t->c, &opt, &t->opt, e);
  if (rc == 0 && d->form != DATASET_OWN && !t->rows) { /* it stays on the device when the model is rebuilt */
    struct compute_rows_desc rows_desc = {.n = d->n, .dim = d->dim, .scale = d->scale};
    struct err why = ERR_INIT;
    if (d->form == DATASET_BYTES) rows_desc.pixels = d->pixels;
    rc = compute_rows_create(t->c, &rows_desc, &t->rows, &why);
    if (rc == -ENOMEM && t->rank == 0) log_info("batches are sent to the device: %s", why.text);
    rc = rc == 0 || rc == -ENOMEM || rc == -ENOTSUP ? 0 : err_set(e, rc, "%s", why.text);
  }
  if (rc == 0) rc = slots_init(&t->slots, t->c, rows, t->rows ? COMPUTE_ROW_NUMBER : t->data.dim, e);
  return rc;
}

/* All queued operations must be done. */
static void free_model(struct trainer *t) {
  slots_finish(&t->slots);
  if (!t->c) return;
  compute_opt_destroy(t->c, t->opt);
  model_finish(&t->model);
  t->opt = NULL;
}

/* The header of a file of safetensors. *behind: the bytes behind it. */
static int read_safe_header(FILE *f, struct buf *out, uint64_t *behind, struct err *e) {
  uint8_t length[SAFE_LENGTH];
  struct stat st;
  if (fread(length, 1, sizeof length, f) != sizeof length || fstat(fileno(f), &st))
    return err_set(e, -EINVAL, "ends before its header");
  uint64_t n = le64_get(length), size = (uint64_t)st.st_size;
  if (n > SAFE_HEADER_MAX || size < SAFE_LENGTH + n)
    return err_set(e, -EINVAL, "is not a file of safetensors, with a header of at most %d bytes", SAFE_HEADER_MAX);
  if (fread(buf_reserve(out, (size_t)n), 1, (size_t)n, f) != n) return err_set(e, -EIO, "cannot be read");
  buf_commit(out, (size_t)n);
  *behind = size - SAFE_LENGTH - n;
  return 0;
}

static int read_weights(const char *path, const struct model_shape *shape, float *out, struct err *e) {
  struct buf header = BUF_INIT;
  struct model_tensor v[MODEL_TENSORS_MAX];
  uint64_t behind = 0, at[MODEL_TENSORS_MAX];
  int n = model_shape_tensors(shape, v, NULL);
  FILE *f = fopen(path, "rbe");
  if (!f) return err_sys(e, -errno, "weights %s", path);
  int rc = read_safe_header(f, &header, &behind, e);
  if (rc == 0) rc = safe_find_weights(buf_text(&header), header.len, behind, shape, at, e);
  for (int i = 0; i < n && rc == 0; i++)
    if (fseeko(f, (off_t)(SAFE_LENGTH + header.len + at[i]), SEEK_SET) ||
        fread(out + v[i].packed, sizeof(float), v[i].n, f) != v[i].n)
      rc = err_set(e, -EIO, "cannot be read");
  fclose(f);
  buf_finish(&header);
  size_t bad = 0;
  float value = 0;
  if (rc == 0 && !model_weights_finite(out, (size_t)model_shape_params(shape), &bad, &value))
    rc = err_set(e, -EINVAL, "has %g as weight %zu; a run cannot start with a weight that is not finite", (double)value,
                 bad);
  return rc ? err_wrap(e, "weights %s", path) : 0;
}

/* The first weights, equal on every rank: from the seed, or from a file that every rank reads. */
static int first_weights(struct trainer *t, struct err *e) {
  struct compute_buf *stage;
  struct span s = {.n = t->model.n_flat};
  int rc = compute_alloc(t->c, COMPUTE_STAGE, s.n, &stage, e);
  if (rc) return with_exit(t, TRAINER_SYSTEM, rc);
  s.buf = stage;
  float *w = compute_host(t->c, s);
  if (!t->o.init_weights)
    model_init_weights(&t->o.shape, (uint64_t)t->o.seed, w);
  else
    rc = with_exit(t, TRAINER_FILES, read_weights(t->o.init_weights, &t->o.shape, w, e));
  if (rc == 0) {
    model_unpack(&t->o.shape, w);
    rc = compute_copy(t->c, model_params_span(&t->model), s, e);
    if (rc == 0) rc = trainer_await_queue(t, e);
    with_exit(t, TRAINER_SYSTEM, rc);
  }
  compute_free(t->c, stage);
  return rc;
}

static int open_checkpoints(struct trainer *t, struct err *e) {
  bool alone = rdzv_alone(t->rdzv);
  struct ckpt_owner me = {.round = alone ? 1 : rdzv_round(t->rdzv)};
  struct ckpt_marker last, *mine = &t->marker;
  ckpt_word(rdzv_run_id(t->rdzv), me.job, sizeof me.job);
  ckpt_word(alone ? CKPT_ALONE : rdzv_incarnation(t->rdzv), me.incarnation, sizeof me.incarnation);
  ckpt_lock_self(&me);
  int rc = with_exit(t, TRAINER_FILES, ckpt_dir_open(t->o.checkpoint_dir, e));
  if (rc) return rc;
  rc = ckpt_lock_take(t->o.checkpoint_dir, &me, &t->save.lock, e);
  if (rc) return with_exit(t, rc == -EBUSY ? TRAINER_DATA : TRAINER_FILES, rc);

  /* A run without a checkpoint in this life of the job starts here, unless it resumes from another one (state.c). */
  *mine = (struct ckpt_marker){.id = {.generation = me.generation, .round = me.round}, .origin = me.generation};
  memcpy(mine->id.incarnation, me.incarnation, sizeof me.incarnation);
  memcpy(mine->job, me.job, sizeof me.job);
  if (!alone && ckpt_latest_marker(t->o.checkpoint_dir, me.incarnation, &last)) mine->origin = last.origin;
  return trainer_save_open(t, e);
}

static int open_files(struct trainer *t, struct err *e) {
  if (t->rank != 0) return with_exit(t, TRAINER_FILES, metrics_open(&t->metrics, NULL, e));
  int rc = metrics_open(&t->metrics, t->o.metrics, e);
  if (rc == 0 && t->o.save_weights) rc = trainer_check_weights(t->o.save_weights, e);
  if (rc) return with_exit(t, TRAINER_FILES, rc);
  return t->o.checkpoint_dir ? open_checkpoints(t, e) : 0;
}

int trainer_setup(struct trainer *t, struct err *e) {
  bool bench = t->o.bench.kind != BENCH_NONE;
  t->metrics.fd = -1;
  int rc = meet_agent(t, e);
  trainer_end_phase(t, PHASE_AGENT);
  if (!bench) wait_log_begin(t->waits, NULL, NULL, "reading --data %s", t->o.data);
  if (rc == 0 && !bench) rc = with_exit(t, TRAINER_DATA, open_data(t, e));
  trainer_end_phase(t, PHASE_DATA);
  wait_log_begin(t->waits, NULL, NULL, "opening the device");
  if (rc == 0) rc = trainer_open_device(t, e);
  if (rc == 0 && !bench) rc = trainer_choose_capture(t, "steps", e);
  trainer_end_phase(t, PHASE_DEVICE);
  if (bench) {
    if (rc == 0) rc = with_exit(t, TRAINER_SYSTEM, trainer_bench_alloc(t, e));
    if (rc == 0) rc = with_exit(t, TRAINER_FILES, metrics_open(&t->metrics, t->rank == 0 ? t->o.metrics : NULL, e));
  } else {
    wait_log_begin(t->waits, NULL, NULL, "making the model%s%s", t->o.init_weights ? " from --init-weights " : "",
                   t->o.init_weights ? t->o.init_weights : "");
    if (rc == 0) rc = with_exit(t, TRAINER_SYSTEM, make_model(t, e));
    if (rc == 0) rc = first_weights(t, e);
    wait_log_begin(t->waits, NULL, NULL, "opening files and memory for checkpoints");
    if (rc == 0) rc = open_files(t, e);
  }
  trainer_end_phase(t, PHASE_MODEL);
  if (rc == 0 && !bench) trainer_offer_rejoin(t);
  wait_log_begin(t->waits, NULL, NULL, "connecting to the other ranks");
  if (rc == 0) rc = trainer_join_ranks(t, e);
  wait_log_end(t->waits);
  trainer_end_phase(t, PHASE_COMMUNICATORS);
  return rc;
}

int trainer_enter_round(struct trainer *t, struct err *e) {
  t->rank = rdzv_rank(t->rdzv);
  t->world = rdzv_world_size(t->rdzv);
  trainer_save_close(t);
  metrics_finish(&t->metrics);
  trainer_log_waits(t);
  int rc = trainer_choose_capture(t, "steps", e);
  if (rc == 0) rc = open_files(t, e);
  if (rc) return rc;
  if (sampler_share_max(&t->sampler, t->world) == t->model.max_rows)
    return with_exit(t, TRAINER_SYSTEM, model_renew_grads(&t->model, e));

  /* The shares have changed with the world size: new memory, and the state moves through the host. */
  struct buf state = BUF_INIT;
  rc = trainer_pack(t, &state, e);
  if (rc == 0) {
    free_model(t);
    rc = with_exit(t, TRAINER_SYSTEM, make_model(t, e));
  }
  if (rc == 0) rc = trainer_unpack(t, state.data, state.len, "this rank's own state", e);
  buf_finish(&state);
  return rc;
}

/* Graphs are destroyed before the collectives that were captured in them. */
bool trainer_teardown(struct trainer *t) {
  wait_log_destroy(t->waits);
  t->waits = NULL;
  slots_drop_graphs(&t->slots);
  coll_destroy(t->coll);
  trainer_save_close(t);
  metrics_finish(&t->metrics);
  if (t->c) {
    compute_free(t->c, t->bench_data);
    compute_free(t->c, t->bench_stage);
    compute_free(t->c, t->verify.stage);
  }
  free_model(t);
  compute_rows_destroy(t->c, t->rows);
  bool held = t->c && t->c->held;
  compute_destroy(t->c);
  dataset_finish(&t->data);
  rdzv_finish(t->rdzv);
  return !held;
}
