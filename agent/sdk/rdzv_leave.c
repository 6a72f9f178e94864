/* SPDX-License-Identifier: Apache-2.0 */
/* How a worker with communicators of its own leaves a round.
 *
 * A worker that waits for its GPU may wait for a collective that a dead peer never joins. Only an abort of the
 * communicator ends it, and an abort is allowed only when all other workers have left too. So the thread that waits for
 * the GPU cannot be the one that leaves. rdzv_run_watched moves the wait into a thread of its own, and the caller's
 * thread watches the agent. Everything that uses the context stays in the caller's thread.
 *
 * rdzv_leave has the order: poison, rejoin, cut. `cut` is called from there alone, and only behind the 0 of
 * rdzv_rejoin. It runs in a thread too, because the abort of a communicator may hang in a driver. A cut that fails or
 * hangs is final: the communicators may be in use, so the caller can only exit. Its thread and the thread of a wait
 * that does not end are then left to the exit, with their memory.
 *
 * rdzv-trainer polls its device and ends its communicators in a thread of its own, so it has the same order without
 * this file (agent/trainer/run/recover.c). */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CUT_MS = 20000 };

/* rdzv_comms.own.stage */
enum { STAYS, POISONED, CUT_FAILED };

struct task {
  pthread_t thread;
  int ended; /* an eventfd: readable when `rc` is there */
  int (*work)(void *ctx);
  void *ctx;
  int rc;
};

static void *task_main(void *arg) {
  struct task *t = arg;
  t->rc = t->work(t->ctx);
  (void)!write(t->ended, &(uint64_t){1}, sizeof(uint64_t));
  return NULL;
}

/* NULL: there is no thread for it, with a sentence. It takes no signals: they are for the program's own threads. */
static struct task *start_task(struct rdzv *r, const char *what, int (*work)(void *), void *ctx) {
  sigset_t all, before;
  struct task *t = malloc(sizeof(*t));
  int rc = ENOMEM;
  if (t) {
    *t = (struct task){.ended = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), .work = work, .ctx = ctx};
    rc = t->ended < 0 ? errno : 0;
  }
  if (!rc) {
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&t->thread, NULL, task_main, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) close(t->ended);
  }
  if (!rc) return t;
  free(t);
  rdzv_fail(r, -EAGAIN, "%s: no thread for it: %s; raise the limit of threads (ulimit -u, pids.max)", what,
            strerror(rc));
  return NULL;
}

/* 0: the task has ended, and is freed. watches: the agent's requests end the wait too. */
static int await_task(struct rdzv *r, struct task *t, bool watches, uint64_t deadline, int *result) {
  for (;;) {
    struct pollfd p[] = {{.fd = t->ended, .events = POLLIN}, {.fd = watches ? rdzv_fd(r) : -1, .events = POLLIN}};
    int n = poll(p, 2, rdzv_poll_ms(r, deadline));
    if (p[0].revents) {
      pthread_join(t->thread, NULL);
      *result = t->rc;
      close(t->ended);
      free(t);
      return 0;
    }
    if (watches && !r->alone && (rdzv_is_foreign(r) || rdzv_hear(r) < 0)) return -EPIPE;
    if (watches && rdzv_must_rejoin(r)) return -ECANCELED;
    if (n <= 0 && rdzv_now_ms() >= deadline) return -ETIMEDOUT;
  }
}

int rdzv_run_watched(struct rdzv *r, struct rdzv_comms *comms, int (*work)(void *ctx), void *ctx, int timeout_ms) {
  const char *what = "run watched";
  uint64_t deadline = rdzv_deadline_in(timeout_ms);
  int result = 0;
  if (comms->own.wait || comms->own.stage != STAYS)
    return rdzv_fail(r, -EINVAL, "%s: the last call did not end; call rdzv_leave first", what);
  struct task *t = start_task(r, what, work, ctx);
  if (!t) return -EAGAIN;
  int rc = await_task(r, t, true, deadline, &result);
  if (!rc) return result;
  comms->own.wait = t;
  if (rc == -ETIMEDOUT) return rdzv_fail(r, rc, "%s: it did not end within %d ms", what, timeout_ms);
  if (rc == -ECANCELED) return rdzv_fail(r, rc, "%s: the round is ending; rdzv_leave waits for the next one", what);
  return rdzv_lost(r, what);
}

/* Every other worker of the round is dead or has left. A failure here is final. */
static int cut(struct rdzv *r, struct rdzv_comms *comms) {
  int ms = comms->cut_ms > 0 ? comms->cut_ms : CUT_MS, result = 0, unused;
  uint64_t deadline = rdzv_deadline_in(ms);
  comms->own.stage = CUT_FAILED;
  comms->own.cut = start_task(r, "leave", comms->cut, comms->ctx);
  if (!comms->own.cut) return -EIO;
  if (await_task(r, comms->own.cut, false, deadline, &result))
    return rdzv_fail(r, -EIO, "leave: cut did not end within %d ms; exit now", ms);
  comms->own.cut = NULL;
  if (result) return rdzv_fail(r, -EIO, "leave: cut failed with %d; exit now", result);
  if (comms->own.wait && await_task(r, comms->own.wait, false, deadline, &unused))
    return rdzv_fail(r, -EIO, "leave: the watched wait did not end within %d ms, although all is cut; exit now", ms);
  comms->own.wait = NULL;
  comms->own.stage = STAYS;
  return 0;
}

int rdzv_leave(struct rdzv *r, struct rdzv_comms *comms, const char *reason, int timeout_ms) {
  if (comms->own.stage == CUT_FAILED) return rdzv_fail(r, -EIO, "leave: the communicators could not be cut; exit now");
  if (comms->own.stage == STAYS && comms->poison) comms->poison(comms->ctx);
  comms->own.stage = POISONED;
  int rc = rdzv_rejoin(r, reason, timeout_ms);
  return rc ? rc : cut(r, comms);
}
