/* SPDX-License-Identifier: Apache-2.0 */
/* --verify-every: silent corruption, a wrong result without an error.
 *
 *   state       All ranks have the same weights and optimizer state, bit for bit. A rank whose checksum differs has
 *               lost some.
 *   gradients   Each rank first repeats the gradients of another rank, from that rank's samples, and then computes its
 *               own. The checksums of both are compared before the sum over the ranks. The neighbour changes each time.
 *
 * One coll_sum tells whether all agree (verify_rule.h). If not, nobody is blamed yet: the ranks look at their states a
 * second time, or repeat gradients, their own and those of another neighbour. So each share was computed by a third
 * rank. With two ranks there is none. Then a rank that gives two answers to one question is wrong; else both are
 * suspect.
 *
 * No update is made and nothing is saved behind a difference. The wrong rank's gradients may be in all states since the
 * last check. So the run goes on from a checkpoint if it writes some, and else from the state that the others agree on.
 *
 * Gradients are compared only if all devices have one kind (compute.h). A flip in an unverified step, which is in the
 * sums of all ranks alike, is not found. */

#include "agent/trainer/run/trainer.h"

#include "agent/trainer/rng.h"
#include "agent/trainer/run/verify_rule.h"
#include "common/mem.h"
#include "common/system/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 1 + COMPUTE_STATES, NAMES_SIZE = 128 };

void trainer_verify_begin(struct trainer *t) {
  struct verifying *v = &t->verify;
  const char *why = NULL;
  char unlike[64];
  if (!t->o.verify_every) return;
  snprintf(unlike, sizeof unlike, "rank %d's device or libraries are not those of rank %d", v->unlike, t->rank);
  if (t->world == 1)
    why = "a world of one has no other rank";
  else if (!t->c->kind)
    why = strcmp(t->c->device, "cpu") == 0 ? "this cblas does not tell which kernels it uses"
                                           : "the device is not --deterministic";
  else if (v->unlike >= 0)
    why = unlike;
  v->gradients = !why;
  if (why && t->rank == 0)
    log_warn("--verify-every compares %s: %s", t->world == 1 ? "nothing" : "no gradients, only weights and state", why);
}

bool trainer_verify_due(const struct trainer *t) {
  uint64_t next = t->queued.step + 1, every = (uint64_t)t->o.verify_every, saves = t->o.checkpoint_every.steps;
  if (!every || t->world == 1) return false;
  return next % every == 0 || next == t->last_step || (saves && next % saves == 0);
}

/* Checksums of what is queued. Waits. */
static int checksums(struct trainer *t, const struct span *of, int n, uint64_t *out, struct err *e) {
  struct compute_mark at;
  int rc = 0;
  if (!t->verify.stage) rc = compute_alloc(t->c, COMPUTE_STAGE, STAGES * COMPUTE_CHECKSUM, &t->verify.stage, e);
  for (int i = 0; i < n && rc == 0; i++)
    rc = compute_checksum(t->c, of[i], span_of(t->verify.stage, (size_t)i * COMPUTE_CHECKSUM, COMPUTE_CHECKSUM), e);
  if (rc == 0) rc = compute_record(t->c, &at, e);
  if (rc) return with_exit(t, TRAINER_SYSTEM, rc);
  rc = trainer_wait(t, at, t->queued.step, e);
  for (int i = 0; i < n && rc == 0; i++)
    memcpy(out + i, compute_host(t->c, span_of(t->verify.stage, (size_t)i * COMPUTE_CHECKSUM, COMPUTE_CHECKSUM)),
           sizeof *out);
  return rc;
}

/* The ranks with this mark: "ranks 1, 4 and 5". Returns the first, or -1. */
static int name_marked(const enum verify_mark *marks, int world, enum verify_mark mark, char out[NAMES_SIZE]) {
  int first = -1, n = 0, named = 0;
  for (int r = 0; r < world; r++) n += marks[r] == mark;
  size_t at = (size_t)snprintf(out, NAMES_SIZE, "rank%s ", n == 1 ? "" : "s");
  for (int r = 0; r < world && at < NAMES_SIZE - 32; r++) {
    if (marks[r] != mark) continue;
    if (first < 0) first = r;
    at += (size_t)snprintf(out + at, NAMES_SIZE - at, "%s%d", named == 0 ? "" : named + 1 == n ? " and " : ", ", r);
    named++;
  }
  if (named < n) snprintf(out + at, NAMES_SIZE - at, " and %d more", n - named);
  return first;
}

/* The end of this round, if some rank is marked. step: the one that is not made. */
static int blame(struct trainer *t, const enum verify_mark *marks, const char *what, struct err *e) {
  char names[NAMES_SIZE], since[64] = "";
  unsigned long long step = t->queued.step + 1;
  int first = name_marked(marks, t->world, VERIFY_WRONG, names);
  bool proven = first >= 0;
  if (!proven) first = name_marked(marks, t->world, VERIFY_SUSPECT, names);
  if (first < 0) return 0;
  /* All ranks know before one leaves: the end of the round would reach the others first. A failure changes nothing. */
  struct err ignored = ERR_INIT;
  (void)coll_barrier(t->coll, &ignored);
  if (t->verify.equal_at)
    snprintf(since, sizeof since, "; at step %" PRIu64 " all ranks had the same state", t->verify.equal_at);
  if (marks[t->rank] == VERIFY_WRONG)
    err_set(e, -EILSEQ,
            "rank %d has wrong %s at step %llu: other ranks agree on other bits%s; test this host's memory, "
            "processor and GPU",
            t->rank, what, step, since);
  else if (marks[t->rank] == VERIFY_SUSPECT)
    err_set(e, -EILSEQ, "%s differ in %s at step %llu, and no third rank can decide which is wrong%s", names, what,
            step, since);
  else
    err_set(e, -ECONNRESET, "%s %s wrong %s at step %llu", names, names[4] == 's' ? "have" : "has", what, step);
  if (marks[t->rank] != VERIFY_GOOD) return with_exit(t, TRAINER_ELSEWHERE, -EILSEQ);
  t->coll->lost = first;
  /* The wrong rank's gradients may be in this state too, since the last check. No rank recovers in place from -ESTALE. */
  return with_exit(t, TRAINER_LOST, t->o.checkpoint_dir ? -ESTALE : -ECONNRESET);
}

/* State. ----------------------------------------------------------------------------------------------------------- */

/* Of this rank, by kind and in one number. */
struct state_sums {
  uint64_t all, kinds[STAGES];
};

static int state_sums(struct trainer *t, struct state_sums *out, struct err *e) {
  struct span of[STAGES] = {model_params_span(&t->model)};
  for (int i = 0; i < COMPUTE_STATES; i++) of[1 + i] = span_of(compute_opt_state(t->c, t->opt, i), 0, t->model.n_flat);
  int rc = checksums(t, of, STAGES, out->kinds, e);
  out->all = 0;
  for (int i = 0; i < STAGES && rc == 0; i++) out->all = rng_mix(out->all + out->kinds[i]);
  return rc;
}

/* A second look, and the verdict. */
static int judge_states(struct trainer *t, struct err *e) {
  size_t n = (size_t)t->world;
  struct state_sums mine, *all = xcalloc(n, sizeof *all);
  uint64_t *states = xcalloc(n, sizeof *states);
  enum verify_mark *marks = xcalloc(n, sizeof *marks);
  bool weights = false, equal = true;
  int rc = state_sums(t, &mine, e);
  if (rc == 0) rc = trainer_exchange(t, "rdzv-trainer.verify-state", &mine, sizeof mine, all, e);
  for (size_t r = 0; r < n; r++) {
    states[r] = all[r].all;
    weights |= all[r].kinds[0] != all[0].kinds[0];
    equal &= all[r].all == all[0].all;
  }
  if (rc == 0 && !equal) {
    verify_judge_states(states, t->world, marks);
    rc = blame(t, marks, weights ? "weights" : "optimizer state", e);
  } else if (rc == 0 && t->rank == 0) {
    log_warn("a checksum of the state differed at step %" PRIu64 ", and not at the second look; the run goes on",
             t->queued.step);
  }
  free(all);
  free(states);
  free(marks);
  return rc;
}

int trainer_verify_state(struct trainer *t, struct err *e) {
  struct state_sums mine;
  double terms[VERIFY_STATE_TERMS];
  if (!t->o.verify_every || t->world == 1) return 0;
  int rc = state_sums(t, &mine, e);
  if (rc) return rc;
  verify_state_terms(mine.all, terms);
  rc = with_coll_exit(t, coll_sum(t->coll, terms, VERIFY_STATE_TERMS, e));
  if (rc == 0 && !verify_state_agrees(terms, t->world)) rc = judge_states(t, e);
  if (rc) return rc;
  t->verify.equal_at = t->queued.step;
  metrics_begin(&t->metrics, "verify");
  metrics_uint(&t->metrics, "step", t->queued.step);
  return with_exit(t, TRAINER_FILES, metrics_end(&t->metrics, e));
}

/* Gradients. ------------------------------------------------------------------------------------------------------- */

/* The sums of a verified step begin only when its gradients have been compared. Their buckets are those of any step, so
 * that the sums have the same bits. */
static int note_bucket(void *trainer, size_t at, struct err *e) {
  struct verifying *v = &((struct trainer *)trainer)->verify;
  v->buckets[v->n_buckets++] = at;
  return 0;
}

/* The gradients of a rank's share, in place, and their checksum. */
static int gradients_of(struct trainer *t, struct slot *s, int rank, uint64_t *sum, struct err *e) {
  struct sampler_share g = sampler_share(&t->sampler, t->queued.position, rank, t->world);
  struct span grads = model_grads_span(&t->model);
  trainer_fill_input(t, s, &g);
  t->verify.n_buckets = 0;
  int rc = with_exit(t, TRAINER_SYSTEM, trainer_enqueue_gradients(t, s, &g, note_bucket, e));
  return rc ? rc : checksums(t, &grads, 1, sum, e);
}

static uint64_t turn_of(const struct trainer *t) {
  return t->queued.step / (uint64_t)t->o.verify_every;
}

/* All ranks compute again, and exchange what they have. The own gradients are in place again behind it. */
static int judge_gradients(struct trainer *t, struct slot *s, struct verify_answers *mine, struct err *e) {
  int third = verify_neighbour(t->rank, t->world, turn_of(t) + 1);
  struct verify_answers *all = xcalloc((size_t)t->world, sizeof *all);
  enum verify_mark *marks = xcalloc((size_t)t->world, sizeof *marks);
  int rc = gradients_of(t, s, third, &mine->other_again, e);
  if (rc == 0) rc = gradients_of(t, s, t->rank, &mine->own_again, e);
  if (rc == 0) rc = trainer_exchange(t, "rdzv-trainer.verify-gradients", mine, sizeof *mine, all, e);
  if (rc == 0) {
    verify_judge_gradients(all, t->world, turn_of(t), marks);
    rc = blame(t, marks, "gradients", e);
  }
  free(all);
  free(marks);
  return rc;
}

int trainer_enqueue_verified_step(struct trainer *t, struct slot *s, struct err *e) {
  int neighbour = verify_neighbour(t->rank, t->world, turn_of(t));
  struct verify_answers mine = {0};
  double terms[VERIFY_GRADIENT_TERMS];
  int rc = gradients_of(t, s, neighbour, &mine.other, e);
  if (rc == 0) rc = gradients_of(t, s, t->rank, &mine.own, e);
  if (rc) return rc;
  verify_gradient_terms(mine.own, mine.other, t->rank, neighbour, terms);
  rc = with_coll_exit(t, coll_sum(t->coll, terms, VERIFY_GRADIENT_TERMS, e));
  if (rc == 0 && !verify_gradients_agree(terms)) rc = judge_gradients(t, s, &mine, e);
  for (int i = 0; i < t->verify.n_buckets && rc == 0; i++) rc = trainer_reduce_bucket(t, t->verify.buckets[i], e);
  return rc ? rc : trainer_enqueue_update(t, s, e);
}
