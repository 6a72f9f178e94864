/* SPDX-License-Identifier: Apache-2.0 */
/* One thread, one checkpoint at a time, one mutex.
 *
 *   IDLE  --begin-->  JOB  --the thread starts-->  WRITING  --it ends-->  DONE  --wait fetches the result-->  IDLE
 *
 * The mutex protects all that both sides change. The thread alone has the floats of a checkpoint from begin until DONE,
 * so it writes without the mutex, which is most of the time. Both sides wait on one condition. The caller has a
 * deadline, because a disk may never respond; a thread that is stuck in it cannot be ended and stays behind.
 *
 * The thread blocks all signals, which are for the training thread. A crash at any moment leaves only complete
 * checkpoints, because checkpoint.c writes them so. */

#include "agent/trainer/checkpoint/checkpoint.h"

#include "common/mem.h"
#include "common/system/clock.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>

enum writer_state { IDLE, JOB, WRITING, DONE };
enum { LEAVE_S = 60 }; /* for a thread that has nothing to do */

struct ckpt_writer {
  const char *dir;
  int keep;
  struct ckpt_lock *lock;
  struct ckpt_thread t;
  enum writer_state state;
  struct ckpt_state job; /* its floats belong to the thread in JOB and WRITING */
  struct ckpt_marker about;
  struct ckpt_written result;
  struct tally tally; /* of the job */
};

/* Removes what dead writers left first, because that may fill the disk. */
static int write_and_prune(struct ckpt_writer *w, const struct ckpt_marker *about, const struct ckpt_bytes *bytes,
                           struct ckpt_written *r) {
  int rc = w->lock ? ckpt_lock_check(w->lock, &r->why) : 0;
  if (rc) return rc;
  ckpt_prune(w->dir, about, INT_MAX, NULL);
  rc = ckpt_write(w->dir, about, bytes, &w->tally, &r->why);
  /* Somebody who takes the folder in the middle of a write removes what is unfinished there, and the write fails. */
  struct err taken = ERR_INIT;
  int lost = rc && w->lock ? ckpt_lock_check(w->lock, &taken) : 0;
  if (lost) {
    rc = lost;
    r->why = taken;
  }
  r->full = rc == -ENOSPC || rc == -EDQUOT;
  if (rc == 0) ckpt_prune(w->dir, about, w->keep, &r->unpruned);
  return rc;
}

static void *writer_main(void *arg) {
  struct ckpt_writer *w = arg;
  pthread_mutex_lock(&w->t.mutex);
  for (;;) {
    while (w->state != JOB && !w->t.stop) pthread_cond_wait(&w->t.changed, &w->t.mutex);
    if (w->state != JOB) break;
    struct ckpt_state job = w->job;
    struct ckpt_marker about = w->about;
    struct ckpt_written r = w->result;
    w->state = WRITING;
    pthread_mutex_unlock(&w->t.mutex);
    struct ckpt_bytes bytes;
    uint64_t from = monotonic_us();
    ckpt_bytes(&job, &bytes);
    r.bytes = bytes.size;
    r.rc = write_and_prune(w, &about, &bytes, &r);
    r.us = monotonic_us() - from;
    pthread_mutex_lock(&w->t.mutex);
    w->result = r;
    w->state = DONE;
    pthread_cond_broadcast(&w->t.changed);
  }
  pthread_mutex_unlock(&w->t.mutex);
  return NULL;
}

int ckpt_writer_create(const char *dir, int keep, struct ckpt_lock *lock, struct ckpt_writer **out, struct err *e) {
  struct ckpt_writer *w = xcalloc(1, sizeof *w);
  w->dir = dir;
  w->keep = keep;
  w->lock = lock;
  int rc = ckpt_thread_start(&w->t, writer_main, w);
  if (rc == 0) {
    *out = w;
    return 0;
  }
  free(w);
  return err_sys(e, rc, "a thread that writes checkpoints");
}

bool ckpt_writer_busy(const struct ckpt_writer *w) {
  struct ckpt_writer *m = (struct ckpt_writer *)(uintptr_t)w;
  pthread_mutex_lock(&m->t.mutex);
  bool busy = m->state != IDLE;
  pthread_mutex_unlock(&m->t.mutex);
  return busy;
}

const struct tally *ckpt_writer_tally(const struct ckpt_writer *w) {
  return &w->tally;
}

void ckpt_writer_begin(struct ckpt_writer *w, const struct ckpt_marker *about, const struct ckpt_state *s) {
  pthread_mutex_lock(&w->t.mutex);
  w->job = *s;
  w->about = *about;
  w->result = (struct ckpt_written){.why = ERR_INIT, .id = about->id, .unpruned = ERR_INIT};
  tally_begin(&w->tally, 0);
  w->state = JOB;
  pthread_cond_broadcast(&w->t.changed);
  pthread_mutex_unlock(&w->t.mutex);
}

/* Holds the mutex. Waits until nothing is being written, or until the deadline. */
static void await_thread(struct ckpt_writer *w, uint64_t timeout_ms) {
  uint64_t end_ms = monotonic_ms() + timeout_ms;
  while ((w->state == JOB || w->state == WRITING) && timeout_ms && ckpt_thread_wait(&w->t, end_ms)) continue;
}

bool ckpt_writer_wait(struct ckpt_writer *w, uint64_t timeout_ms, struct ckpt_written *out) {
  pthread_mutex_lock(&w->t.mutex);
  await_thread(w, timeout_ms);
  bool done = w->state == DONE;
  if (done) {
    *out = w->result;
    w->state = IDLE;
  }
  pthread_mutex_unlock(&w->t.mutex);
  return done;
}

bool ckpt_writer_destroy(struct ckpt_writer *w, uint64_t timeout_ms) {
  if (!w) return true;
  pthread_mutex_lock(&w->t.mutex);
  await_thread(w, timeout_ms);
  bool ends = w->state == IDLE || w->state == DONE;
  pthread_mutex_unlock(&w->t.mutex);
  if (!ckpt_thread_end(&w->t, ends ? LEAVE_S : 0)) return false;
  free(w);
  return true;
}
