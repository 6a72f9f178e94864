/* Checkpoints while training goes on.
 *
 *   begin     copies of the state are queued behind the steps that are queued, and a mark behind them: what is
 *             copied is the state behind step queued.step, however far the device is. The host does not wait. A device copies within
 *             its own memory, between two steps, and what it has copied is fetched beside the steps that follow. On a CPU it is
 *             done by then: a memcpy.
 *   poll      once a step: when the mark is done the floats go to the writer's thread (ckpt_writer.c); when that has
 *             written them, what it says is told.
 *   finish    somebody waits for it: whoever asked for a checkpoint, or the end of the run
 *
 * What the run loses is the copy: on a CPU the host's time, on a device its own, by its own clock, and what the host needs to queue it; stall_us is
 * the sum. What it costs in memory is one more copy of the state on the host, pinned, and one on the device; where that has no room the
 * copy goes to the host at once, between two steps. If a checkpoint is due while the one before it is still being written, the disk is
 * too slow for --checkpoint-every: the run waits for a while, and says so, and then leaves this one out rather than let the other ranks wait for longer
 * than --coll-timeout allows.
 *
 * Only rank 0 writes. All ranks call these functions at the same step all the same. While they wait for it together they meet
 * several times a second, so that nobody takes the one who writes for dead. */

#include "agent/trainer/run/trainer.h"

#include "common/log.h"

#include <errno.h>
#include <string.h>

enum { SLICE_MS = 100, WRITE_MAX_MS = 3600 * 1000, LEAVE_MS = 20 * 1000, TELL_EVERY_US = 60 * 1000 * 1000 };

/* Where the device can be read beside its steps, and has room. */
static int open_shadow(struct trainer *t, struct err *e) {
  struct err why = ERR_INIT;
  if (!compute_can_fetch(t->c)) return 0;
  int rc = trainer_state_shadow(t, &t->save.shadow, &why);
  if (rc == -ENOMEM) log_info("checkpoints hold up the steps until they are on the host: %s", why.text);
  if (rc == 0 || rc == -ENOMEM) return 0;
  return trainer_blame(t, TRAINER_SYSTEM, err_set(e, rc, "%s", why.text));
}

int trainer_save_open(struct trainer *t, struct err *e) {
  if (t->rank != 0 || !t->o.checkpoint_dir) return 0;
  int rc = trainer_state_stage(t, &t->save.stage, e);
  if (rc == 0)
    rc = trainer_blame(t, TRAINER_SYSTEM,
                       compute_alloc(t->c, COMPUTE_STAGE, (size_t)2 * COMPUTE_STAMP, &t->save.stamps, e));
  if (rc == 0) rc = open_shadow(t, e);
  t->save.clock_us = trainer_now_us();
  return rc ? rc : ckpt_writer_create(t->o.checkpoint_dir, (int)t->o.keep_checkpoints, &t->save.writer, e);
}

/* A writer that does not come back keeps what it writes from; the process ends soon. */
void trainer_save_close(struct trainer *t) {
  struct ckpt_writer *w = t->save.writer;
  bool ended = ckpt_writer_destroy(w, LEAVE_MS);
  if (!ended) log_warn("%s does not answer: the last checkpoint is not whole", t->o.checkpoint_dir);
  if (ended) compute_free(t->c, t->save.stage);
  if (t->c) {
    compute_free(t->c, t->save.shadow);
    compute_free(t->c, t->save.stamps);
  }
  t->save = (struct saving){0};
}

/* What the writer says of a checkpoint. */
static int written(struct trainer *t, const struct ckpt_written *r, struct err *e) {
  char name[CKPT_NAME_MAX];
  if (r->rc) {
    err_set(e, r->rc, "%s", r->why.text);
    return trainer_blame(t, TRAINER_FILES, r->rc);
  }
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
  return trainer_blame(t, TRAINER_FILES, metrics_end(&t->metrics, e));
}

static struct span stamp(const struct trainer *t, size_t i) {
  return span_of(t->save.stamps, i * COMPUTE_STAMP, COMPUTE_STAMP);
}

/* How long the device did nothing else, by its own clock; a CPU has none, and the host's time has it in. */
static void add_device_stall(struct trainer *t) {
  uint64_t ns[2];
  memcpy(ns, compute_host(t->c, stamp(t, 0)), sizeof ns);
  uint64_t us = ns[1] > ns[0] ? (ns[1] - ns[0]) / 1000 : 0;
  t->save.stall_us += us;
  t->checkpoint_us += us;
}

static void hand_over(struct trainer *t) {
  add_device_stall(t);
  struct ckpt_state s = trainer_state_read(t, t->save.stage, &t->save.at);
  t->save.copying = false;
  ckpt_writer_begin(t->save.writer, &t->save.id, &s);
}

/* Moves on what was begun, for timeout_ms at most. 1: nothing is under way any more. */
static int move(struct trainer *t, uint64_t timeout_ms, struct err *e) {
  struct ckpt_written r;
  if (t->save.copying) {
    int rc = compute_done(t->c, t->save.mark, e);
    if (rc < 0) return trainer_blame(t, TRAINER_SYSTEM, rc);
    if (rc == 0 && !timeout_ms) return 0;
    if (rc == 0) rc = trainer_wait(t, t->save.mark, t->save.at.step, e);
    if (rc < 0) return rc;
    hand_over(t);
  }
  if (ckpt_writer_wait(t->save.writer, timeout_ms, &r)) {
    int rc = written(t, &r, e);
    return rc ? rc : 1;
  }
  return !ckpt_writer_busy(t->save.writer);
}

int trainer_save_poll(struct trainer *t, struct err *e) {
  if (!t->save.writer || (!t->save.copying && !t->save.under_way)) return 0;
  int rc = move(t, 0, e);
  if (rc == 1) t->save.under_way = false;
  return rc < 0 ? rc : 0;
}

/* The one before is still being written. 1: it is done now; 0: this one is left out. */
static int wait_for_last(struct trainer *t, struct err *e) {
  uint64_t from = trainer_now_us(), limit = (uint64_t)t->o.coll_timeout_ms * 1000 / 2;
  int rc = move(t, 0, e);
  if (rc) return rc;
  if (!t->save.waited_for || from - t->save.told_us >= TELL_EVERY_US) {
    t->save.told_us = from;
    log_warn(
        "%s is too slow for --checkpoint-every: the run waits until the checkpoint of step %llu is written",
        t->o.checkpoint_dir, (unsigned long long)t->save.at.step);
  }
  t->save.waited_for++;
  while (rc == 0 && trainer_now_us() - from < limit) {
    rc = trainer_blame_coll(t, coll_progress(t->coll, e));
    if (rc == 0) rc = move(t, SLICE_MS, e);
  }
  if (rc) return rc;
  t->save.left_out++;
  log_warn("no checkpoint of step %llu: that of step %llu is still being written",
           (unsigned long long)t->queued.step, (unsigned long long)t->save.at.step);
  return 0;
}

/* The device stands still for what is between the stamps. */
static int copy_state(struct trainer *t, struct err *e) {
  struct saving *v = &t->save;
  int rc = compute_tell(t->c, NULL, 0, stamp(t, 0), e);
  if (rc == 0)
    rc = v->shadow ? trainer_state_copy(t, v->shadow, v->stage, e) : trainer_state_download(t, v->stage, e);
  if (rc == 0) rc = compute_tell(t->c, NULL, 0, stamp(t, 1), e);
  if (rc) return rc;
  return v->shadow ? trainer_state_fetch(t, v->shadow, v->stage, &v->mark, e)
                   : compute_record(t->c, &v->mark, e);
}

static int begin(struct trainer *t, struct err *e) {
  uint64_t from = trainer_now_us();
  if (t->save.under_way) {
    int rc = wait_for_last(t, e);
    if (rc <= 0) return rc;
  }
  t->save.id = t->id;
  t->save.id.step = t->queued.step;
  t->save.at = t->queued;
  t->save.copying = t->save.under_way = true;
  t->save.clock_us = from;
  int rc = copy_state(t, e);
  t->save.stall_us = trainer_now_us() - from;
  t->checkpoint_us += t->save.stall_us;
  return trainer_blame(t, TRAINER_SYSTEM, rc);
}

int trainer_save_begin(struct trainer *t, struct err *e) {
  if (!t->save.writer || (t->save.begun && t->save.id.step == t->queued.step)) return 0;
  compute_range_push(t->c, "checkpoint");
  int rc = begin(t, e);
  compute_range_pop(t->c);
  t->save.begun = true;
  return rc;
}

/* 1: nothing is under way; 0: after a slice of time it still is. */
static int slice(struct trainer *t, struct err *e) {
  if (!t->save.writer || !t->save.under_way) return 1;
  int rc = move(t, SLICE_MS, e);
  if (rc == 1) t->save.under_way = false;
  return rc;
}

/* together: all ranks are here. */
static int finish(struct trainer *t, bool together, struct err *e) {
  uint64_t end = trainer_now_us() + (uint64_t)WRITE_MAX_MS * 1000;
  for (;;) {
    int rc = slice(t, e);
    if (rc < 0) return rc;
    double waits = rc == 0;
    rc = together ? trainer_blame_coll(t, coll_sum(t->coll, &waits, 1, e)) : 0;
    if (rc || waits == 0) return rc;
    if (trainer_now_us() > end) {
      err_set(e, -ETIMEDOUT,
              "the checkpoint of step %llu could not be written within an hour: %s does not answer",
              (unsigned long long)t->save.at.step, t->o.checkpoint_dir);
      return trainer_blame(t, TRAINER_FILES, -ETIMEDOUT);
    }
  }
}

int trainer_save_now(struct trainer *t, bool together, struct err *e) {
  int rc = finish(t, together, e);
  if (rc == 0) rc = trainer_save_begin(t, e);
  return rc ? rc : finish(t, together, e);
}
