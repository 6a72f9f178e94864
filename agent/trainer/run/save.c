/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints while training continues.
 *
 *   begin     Queues copies of the state behind the queued steps, and a mark behind them. They copy the state behind
 *             step queued.step, however far the device is. The host does not wait. A device copies between two steps.
 *             On a CPU it is a memcpy.
 *   poll      Once per step. When the mark is done, the floats go to the writer's thread. When the thread has written
 *             them, its result is reported.
 *             If an update before the copies was blocked, they hold the weights of an earlier step. The counters that
 *             were copied with them show it, and the checkpoint is dropped.
 *   wait      The checkpoint is needed now: it was requested, or the run ends.
 *
 * The run loses the time of the copy: on a CPU the host's time, on a device the device's time plus the host's time to
 * queue it. stall_us is the sum. The memory cost is one more copy of the state on the host, pinned.
 *
 * If a checkpoint is due while the one before is still being written, the disk is too slow for --checkpoint-every. The
 * run then waits for a while and logs it. After that it skips the checkpoint, so that the other ranks do not wait
 * longer than --coll-timeout. A full disk skips checkpoints too, until there is room. The last one of a run and a
 * requested one must succeed.
 *
 * Only rank 0 writes, but all ranks call these functions at the same step. While they wait together they meet several
 * times a second, so that no rank takes the writer for dead. */

#include "agent/trainer/run/trainer.h"

#include "common/system/log.h"

#include <errno.h>
#include <string.h>

enum { SLICE_MS = 100, WRITE_MAX_MS = 3600 * 1000, LEAVE_MS = 20 * 1000, LOG_EVERY_US = 60 * 1000 * 1000 };

int trainer_save_open(struct trainer *t, struct err *e) {
  if (t->rank != 0 || !t->o.checkpoint_dir) return 0;
  int rc = trainer_state_stage(t, &t->save.stage, e);
  if (rc == 0)
    rc =
        with_exit(t, TRAINER_SYSTEM, compute_alloc(t->c, COMPUTE_STAGE, (size_t)2 * COMPUTE_STAMP, &t->save.stamps, e));
  t->save.clock_us = trainer_now_us();
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
    uint64_t now = trainer_now_us();
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
    if (!trainer_state_is_of(t, t->save.stage, &t->save.at)) {
      /* Its copy was queued behind an update that was blocked, because the round fails. */
      t->save.copying = t->save.begun = false;
      if (!t->save.wanted) return 1;
      err_set(e, -EPROTO, "the checkpoint of step %llu was not written, because that step was not completed",
              (unsigned long long)t->save.at.step);
      return with_exit(t, TRAINER_SYSTEM, -EPROTO);
    }
    /* The time in which the device did nothing else, by its own clock. A CPU has none, and the host's time includes it. */
    uint64_t ns[2];
    memcpy(ns, compute_host(t->c, stamp(t, 0)), sizeof ns);
    uint64_t us = ns[1] > ns[0] ? (ns[1] - ns[0]) / 1000 : 0;
    t->save.stall_us += us;
    t->checkpoint_us += us;
    struct ckpt_state s = trainer_state_read(t, t->save.stage, &t->save.at);
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
  uint64_t from = trainer_now_us(), limit = (uint64_t)t->o.coll_timeout_ms * 1000 / 2;
  int rc = advance_save(t, 0, e);
  if (rc) return rc;
  if (!t->save.waited_for || from - t->save.slow_logged_us >= LOG_EVERY_US) {
    t->save.slow_logged_us = from;
    log_warn("%s is too slow for --checkpoint-every: the run waits until the checkpoint of step %llu is written",
             t->o.checkpoint_dir, (unsigned long long)t->save.at.step);
  }
  t->save.waited_for++;
  log_wait(t);
  while (rc == 0 && trainer_now_us() - from < limit) {
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

static int put_stamp(struct trainer *t, size_t i, struct err *e) {
  return compute_copy_and_stamp(t->c, (struct span){0}, (struct span){0}, stamp(t, i), e);
}

/* The device does nothing else between the two stamps. */
static int copy_state(struct trainer *t, struct err *e) {
  struct saving *v = &t->save;
  int rc = with_exit(t, TRAINER_SYSTEM, put_stamp(t, 0, e));
  if (rc == 0) rc = trainer_state_download(t, v->stage, e);
  if (rc == 0) rc = with_exit(t, TRAINER_SYSTEM, put_stamp(t, 1, e));
  return rc ? rc : with_exit(t, TRAINER_SYSTEM, compute_record(t->c, &v->mark, e));
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
  compute_range_push(t->c, "checkpoint");
  set_waiting(t, true);
  uint64_t from = trainer_now_us();
  int rc = t->save.under_way ? wait_for_last(t, e) : 1;
  if (rc == 1) {
    t->save.id = t->marker.id;
    t->save.id.step = t->queued.step;
    t->save.at = t->queued;
    t->save.copying = t->save.under_way = true;
    t->save.clock_us = from;
    rc = copy_state(t, e);
    t->save.stall_us = trainer_now_us() - from;
    t->checkpoint_us += t->save.stall_us;
  }
  set_waiting(t, false);
  compute_range_pop(t->c);
  t->save.begun = true;
  return rc;
}

/* together: all ranks call it. */
static int meet_until_written(struct trainer *t, bool together, struct err *e) {
  uint64_t end = trainer_now_us() + (uint64_t)WRITE_MAX_MS * 1000;
  for (;;) {
    int rc = t->save.writer && t->save.under_way ? trainer_watch(t, e) : 1; /* 1: none is in progress */
    if (rc == 0) rc = advance_save(t, SLICE_MS, e);
    if (rc == 1) t->save.under_way = false;
    if (rc < 0) return rc;
    double waits = rc == 0;
    rc = together ? with_coll_exit(t, coll_sum(t->coll, &waits, 1, e)) : 0;
    if (rc || waits == 0) return rc;
    if (trainer_now_us() > end) {
      err_set(e, -ETIMEDOUT, "the checkpoint of step %llu could not be written within an hour: %s does not respond",
              (unsigned long long)t->save.at.step, t->o.checkpoint_dir);
      return with_exit(t, TRAINER_FILES, -ETIMEDOUT);
    }
  }
}

static int wait_until_written(struct trainer *t, bool together, struct err *e) {
  if (t->save.under_way) log_wait(t);
  int rc = meet_until_written(t, together, e);
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
