/* SPDX-License-Identifier: Apache-2.0 */
/* --shard-optimizer: each rank keeps the optimizer's state of one part of the weights, and updates that part alone
 * (ZeRO stage 1).
 *
 *   backward   As soon as a bucket of gradients is ready, its reduce-scatter begins. It leaves the sums of one part of
 *              the bucket on each rank, this rank's share of it.
 *   vote       The sum of the squares of this rank's sums, and whether its updates are blocked. Behind it lie those of
 *              the summed extras that this rank has (model.h). An all-gather of these rows, 128 bytes each, gives all
 *              ranks the whole.
 *   decide     All ranks sum the same rows in the same order. So they agree on the norm, on clipping and on skipping,
 *              and know the loss and the flags, as without shards.
 *   update     Of the shares. Behind each, the all-gather of the bucket's weights begins.
 *
 * Both halves together send as many bytes as one all-reduce. The state takes 1/world of the memory, and the update
 * 1/world of the time.
 *
 * Both flat buffers are padded to a multiple of SHARD_ALIGN floats for each rank, so every bucket has equal and aligned
 * parts on all ranks. They are padded without shards too: then the TCP ring cuts an all-reduce of the same bucket at the
 * same places, and adds in the same order, so the weights have the same bytes with shards and without. Two things
 * differ in their last bit: the norm, which is a sum of the ranks' sums, and weights that it clips.
 *
 * The state of bucket [at, end) lies at at/world in the optimizer's buffers, which the alignment makes possible. The
 * share within a bucket is a matter of the collectives (coll.part), so nothing outside the job depends on it: a
 * checkpoint has the whole state, which the ranks gather bucket by bucket. All ranks take part in that, though rank 0
 * alone copies and writes it.
 *
 * A rank that is lost takes its share with it. So --recovery inplace keeps processes and devices, but the next round
 * resumes from the last checkpoint (trainer_start_over), whatever the ranks still have. */

#include "agent/trainer/run/shard.h"

#include <errno.h>

enum {
  SHARD_ALIGN = 32, /* floats: 128 bytes */
  SHARD_ROW = 32,   /* floats of one rank in the table of votes */
};

_Static_assert(COMPUTE_VOTE + MODEL_EXTRAS <= SHARD_ROW, "a vote and the extras are a row");
_Static_assert((int)SHARD_BUCKETS <= (int)COMPUTE_SHARES_MAX, "one vote is about all buckets");

size_t trainer_flat_unit(const struct trainer *t) {
  return t->world > 1 ? (size_t)t->world * SHARD_ALIGN : 1;
}

static size_t rounded_up(size_t n, size_t unit) {
  return (n + unit - 1) / unit * unit;
}

static struct span bucket(const struct trainer *t, struct compute_buf *b, int i) {
  const struct shard *s = &t->shard;
  return span_of(b, s->at[i], (i ? s->at[i - 1] : t->model.n_room) - s->at[i]);
}

/* Cuts the flat buffers from the end to the front. */
static void plan_buckets(struct trainer *t) {
  struct shard *s = &t->shard;
  size_t unit = trainer_flat_unit(t), n = t->model.n_room;
  double cap = t->o.bucket_cap_mb * 1048576.0 / sizeof(float), least = (double)n / SHARD_BUCKETS;
  size_t size = cap < least ? (size_t)least + 1 : cap < (double)n ? (size_t)cap : n;
  size = rounded_up(size, unit);
  s->n = 0;
  for (size_t end = n; end > 0; end = s->at[s->n++]) s->at[s->n] = end > size ? end - size : 0;
  s->largest = size < n ? size : n;
}

size_t trainer_optimizer_size(struct trainer *t) {
  t->shard.on = t->o.shard_optimizer && t->world > 1;
  if (!t->shard.on) return t->model.n_flat;
  plan_buckets(t);
  return t->model.n_room / (size_t)t->world;
}

int trainer_shard_alloc(struct trainer *t, struct err *e) {
  struct shard *s = &t->shard;
  if (!s->on) return 0;
  int rc = compute_alloc(t->c, COMPUTE_GRAD, (size_t)t->world * SHARD_ROW, &s->votes, e);
  return rc ? rc : compute_alloc(t->c, COMPUTE_STATE, s->largest, &s->whole, e);
}

void trainer_shard_free(struct trainer *t) {
  compute_free(t->c, t->shard.votes);
  compute_free(t->c, t->shard.whole);
  t->shard = (struct shard){0};
}

/* A step. ---------------------------------------------------------------------------------------------------------- */

void trainer_shard_begin(struct trainer *t) {
  t->shard.begun = 0;
}

int trainer_shard_ready(struct trainer *t, size_t at, struct err *e) {
  struct shard *s = &t->shard;
  int rc = 0;
  for (; s->begun < s->n && s->at[s->begun] >= at && rc == 0; s->begun++)
    rc = coll_reduce_scatter_begin(t->coll, t->c, bucket(t, t->model.grads, s->begun), &s->tickets[s->begun], e);
  return with_coll_exit(t, rc ? rc : coll_progress(t->coll, e));
}

int trainer_shard_await_sums(struct trainer *t, struct err *e) {
  int rc = 0;
  for (int i = 0; i < t->shard.begun && rc == 0; i++) rc = coll_wait(t->coll, t->shard.tickets[i], e);
  return with_coll_exit(t, rc);
}

/* This rank's share of bucket i, without the extras and the padding behind the weights. */
static struct compute_share share_of(const struct trainer *t, int i) {
  struct span all = bucket(t, t->model.grads, i), mine = coll_part(t->coll, all);
  size_t end = mine.at + mine.n < t->model.n_flat ? mine.at + mine.n : t->model.n_flat;
  return (struct compute_share){
      .at = mine.at, .n = mine.at < end ? end - mine.at : 0, .state = all.at / (size_t)t->world};
}

static int shares_of(const struct trainer *t, struct compute_share v[SHARD_BUCKETS]) {
  for (int i = 0; i < t->shard.n; i++) v[i] = share_of(t, i);
  return t->shard.n;
}

/* The extras in this rank's share, to their places in its row. The others stay zero there. */
static int copy_own_extras(struct trainer *t, struct span row, struct err *e) {
  size_t end = t->model.n_room, first = end - MODEL_EXTRAS;
  int rc = 0;
  for (int i = 0; i < t->shard.n && rc == 0; i++) {
    struct span mine = coll_part(t->coll, bucket(t, t->model.grads, i));
    size_t from = mine.at > first ? mine.at : first, to = mine.at + mine.n < end ? mine.at + mine.n : end;
    if (from >= to) continue;
    struct span own = span_of(t->model.grads, from, to - from);
    rc = compute_copy(t->c, span_of(row.buf, row.at + COMPUTE_VOTE + (from - first), own.n), own, e);
  }
  return rc;
}

static int gather(struct trainer *t, struct span s, struct err *e) {
  struct coll_ticket ticket;
  int rc = coll_all_gather_begin(t->coll, t->c, s, &ticket, e);
  return with_coll_exit(t, rc ? rc : coll_wait(t->coll, ticket, e));
}

int trainer_shard_vote(struct trainer *t, struct err *e) {
  struct compute_share v[SHARD_BUCKETS];
  struct span rows = span_of(t->shard.votes, 0, (size_t)t->world * SHARD_ROW), mine = coll_part(t->coll, rows);
  int rc =
      compute_opt_vote(t->c, t->opt, t->model.grads, v, shares_of(t, v), span_of(mine.buf, mine.at, COMPUTE_VOTE), e);
  if (rc == 0) rc = copy_own_extras(t, mine, e);
  return rc ? rc : gather(t, rows, e);
}

static int decide(struct trainer *t, struct span counters, struct err *e) {
  struct compute_poll poll = {.rows = span_of(t->shard.votes, 0, (size_t)t->world * SHARD_ROW),
                              .stride = SHARD_ROW,
                              .count = t->world,
                              .sums = model_extra_span(&t->model, 0, MODEL_EXTRAS),
                              .lr = model_extra_span(&t->model, MODEL_LR, 1),
                              .bad = model_extra_span(&t->model, MODEL_BAD, 1),
                              .counters = counters};
  return compute_opt_decide(t->c, t->opt, &poll, e);
}

int trainer_shard_update(struct trainer *t, struct span counters, struct err *e) {
  struct shard *s = &t->shard;
  int rc = decide(t, counters, e);
  for (int i = 0; i < s->n && rc == 0; i++) {
    struct compute_share share = share_of(t, i);
    rc = compute_opt_update(t->c, t->opt, t->model.params, t->model.grads, &share, e);
    if (rc == 0)
      rc = with_coll_exit(t, coll_all_gather_begin(t->coll, t->c, bucket(t, t->model.params, i), &s->tickets[i], e));
  }
  return rc;
}

int trainer_shard_await_weights(struct trainer *t, struct err *e) {
  struct shard *s = &t->shard;
  int rc = 0;
  for (int i = 0; i < s->n && rc == 0; i++) {
    rc = with_coll_exit(t, coll_wait(t->coll, s->tickets[i], e));
    if (rc == 0) rc = compute_param_written(t->c, bucket(t, t->model.params, i), e);
  }
  return rc;
}

/* The whole state. ------------------------------------------------------------------------------------------------- */

/* This rank's share of a bucket in the optimizer's buffers, without the padding. */
static struct span own_state(const struct trainer *t, int state, int i) {
  struct compute_share v = share_of(t, i);
  return span_of(compute_opt_state(t->c, t->opt, state), v.state, v.n);
}

static int gather_bucket(struct trainer *t, int state, int i, struct compute_buf *to, size_t to_at, struct err *e) {
  struct span all = bucket(t, t->shard.whole, i), own = own_state(t, state, i);
  all.at = 0;
  struct span mine = coll_part(t->coll, all);
  int rc = with_exit(t, TRAINER_SYSTEM, compute_copy(t->c, span_of(mine.buf, mine.at, own.n), own, e));
  if (rc == 0) rc = gather(t, all, e);
  size_t at = t->shard.at[i], left = t->model.n_flat > at ? t->model.n_flat - at : 0;
  size_t n = all.n < left ? all.n : left;
  if (rc || !to || n == 0) return rc;
  return with_exit(t, TRAINER_SYSTEM, compute_copy(t->c, span_of(to, to_at + at, n), span_of(all.buf, 0, n), e));
}

int trainer_shard_gather(struct trainer *t, int state, struct compute_buf *to, size_t to_at, struct err *e) {
  int rc = 0;
  for (int i = 0; i < t->shard.n && rc == 0; i++) rc = gather_bucket(t, state, i, to, to_at, e);
  return rc;
}

int trainer_shard_scatter(struct trainer *t, int state, struct span from, struct err *e) {
  int rc = 0;
  for (int i = 0; i < t->shard.n && rc == 0; i++) {
    struct compute_share v = share_of(t, i);
    if (v.n) rc = compute_copy(t->c, own_state(t, state, i), span_of(from.buf, from.at + v.at, v.n), e);
  }
  return rc;
}
