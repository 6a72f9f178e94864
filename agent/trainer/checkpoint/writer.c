/* One thread, one job at a time, one mutex.
 *
 *   IDLE  --begin-->  JOB  --the thread takes it-->  WRITING  --ends-->  DONE  --wait takes the result-->  IDLE
 *
 * Everything that both sides touch is changed under the mutex; the floats of the job are the thread's from begin until DONE, and
 * nobody else's, so nothing needs to be locked while it writes, which is most of the time. Both sides wait on one condition, the caller with a deadline,
 * because a disk may never answer: a thread that is stuck in it cannot be ended, but left behind.
 *
 * The thread takes no signals: they are for the one that trains. A crash at any moment leaves whole checkpoints only; that is ckpt.c's
 * affair, which does not know that it runs in a thread. */

#include "agent/trainer/ckpt_writer.h"

#include "common/mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

enum writer_state { IDLE, JOB, WRITING, DONE };

struct ckpt_writer {
  const char *dir;
  int keep;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  enum writer_state state;
  bool stop;
  struct ckpt_state job; /* its floats are the thread's while JOB or WRITING */
  struct ckpt_written result;
};

static uint64_t now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void write_one(const struct ckpt_writer *w, const struct ckpt_state *s, struct ckpt_written *r) {
  struct ckpt_bytes bytes;
  uint64_t from = now_us();
  ckpt_bytes(s, &bytes);
  r->bytes = bytes.size;
  r->rc = ckpt_write(w->dir, &r->id, &bytes, &r->why);
  if (r->rc == 0) ckpt_prune(w->dir, &r->id, w->keep, &r->unpruned);
  r->us = now_us() - from;
}

static void *writer_main(void *arg) {
  struct ckpt_writer *w = arg;
  pthread_mutex_lock(&w->lock);
  for (;;) {
    while (w->state != JOB && !w->stop) pthread_cond_wait(&w->changed, &w->lock);
    if (w->state != JOB) break;
    struct ckpt_state job = w->job;
    struct ckpt_written r = w->result;
    w->state = WRITING;
    pthread_mutex_unlock(&w->lock);
    write_one(w, &job, &r);
    pthread_mutex_lock(&w->lock);
    w->result = r;
    w->state = DONE;
    pthread_cond_broadcast(&w->changed);
  }
  pthread_mutex_unlock(&w->lock);
  return NULL;
}

static int start(struct ckpt_writer *w) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int rc = pthread_create(&w->thread, NULL, writer_main, w);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return -rc;
}

int ckpt_writer_create(const char *dir, int keep, struct ckpt_writer **out, struct err *e) {
  struct ckpt_writer *w = xcalloc(1, sizeof *w);
  pthread_condattr_t attr;
  w->dir = dir;
  w->keep = keep;
  pthread_mutex_init(&w->lock, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&w->changed, &attr);
  pthread_condattr_destroy(&attr);
  int rc = start(w);
  if (rc == 0) {
    *out = w;
    return 0;
  }
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
  return err_sys(e, rc, "a thread that writes checkpoints");
}

bool ckpt_writer_busy(const struct ckpt_writer *w) {
  struct ckpt_writer *m = (struct ckpt_writer *)(uintptr_t)w;
  pthread_mutex_lock(&m->lock);
  bool busy = m->state != IDLE;
  pthread_mutex_unlock(&m->lock);
  return busy;
}

void ckpt_writer_begin(struct ckpt_writer *w, const struct ckpt_id *id, const struct ckpt_state *s) {
  pthread_mutex_lock(&w->lock);
  w->job = *s;
  w->result = (struct ckpt_written){.why = ERR_INIT, .id = *id, .unpruned = ERR_INIT};
  w->state = JOB;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
}

static struct timespec deadline_in(uint64_t ms) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_sec += (time_t)(ms / 1000);
  t.tv_nsec += (long)(ms % 1000) * 1000000;
  if (t.tv_nsec >= 1000000000) {
    t.tv_nsec -= 1000000000;
    t.tv_sec++;
  }
  return t;
}

/* With the lock: until nothing is being written, or the deadline. */
static void await(struct ckpt_writer *w, uint64_t timeout_ms) {
  struct timespec end = deadline_in(timeout_ms);
  int rc = 0;
  while ((w->state == JOB || w->state == WRITING) && timeout_ms && rc == 0)
    rc = pthread_cond_timedwait(&w->changed, &w->lock, &end);
}

bool ckpt_writer_wait(struct ckpt_writer *w, uint64_t timeout_ms, struct ckpt_written *out) {
  pthread_mutex_lock(&w->lock);
  await(w, timeout_ms);
  bool done = w->state == DONE;
  if (done) {
    *out = w->result;
    w->state = IDLE;
  }
  pthread_mutex_unlock(&w->lock);
  return done;
}

bool ckpt_writer_destroy(struct ckpt_writer *w, uint64_t timeout_ms) {
  if (!w) return true;
  pthread_mutex_lock(&w->lock);
  await(w, timeout_ms);
  bool ends = w->state == IDLE || w->state == DONE;
  w->stop = true;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->lock);
  if (!ends) {
    pthread_detach(w->thread);
    return false;
  }
  pthread_join(w->thread, NULL);
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->lock);
  free(w);
  return true;
}
