/* SPDX-License-Identifier: Apache-2.0 */
/* The next round, in this process.
 *
 * A worker that can rejoin is asked where others are stopped. It leaves its round with one record, REJOIN, and is then
 * parked: it no longer holds anything of the round. The WELCOME of the next round wakes it, on the same connection, and
 * replaces everything that the first WELCOME set: rank, world, addresses, the store's port, the numbers of checkpoints.
 * The store connection and the names of the old round are dropped when REJOIN is sent, because its keys must not meet
 * those of the next round.
 *
 * A call that times out or is interrupted can be repeated: REJOIN is sent once. The wait ends for good with RDZV_STOP
 * or the loss of the agent. A new round that ends at once needs no special case: its WELCOME carries RDZV_REJOIN, or
 * REQUEST follows, and the program comes back here. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { CUT_MS = 20000 };

bool rdzv_must_rejoin(const struct rdzv *r) {
  return r->can_rejoin && !r->parked && (r->requested & RDZV_REJOIN);
}

int rdzv_can_rejoin(struct rdzv *r) {
  struct sdk_head can = rdzv_head_of(SDK_CAN_REJOIN);
  int rc = r->can_rejoin ? 0 : rdzv_tell(r, &can, sizeof(can), "can rejoin");
  if (rc == 0) r->can_rejoin = !r->alone;
  return rc;
}

static int park(struct rdzv *r, const char *reason, uint64_t deadline) {
  struct sdk_rejoin leave = {.head = rdzv_head_of(SDK_REJOIN), .round = r->is.round};
  /* As one line. */
  size_t n = reason ? strnlen(reason, SDK_REASON_MAX - 1) : 0;
  for (size_t i = 0; i < n; i++) leave.text[i] = reason[i] == '\n' ? ' ' : reason[i];
  leave.text[n] = '\0';
  if (rdzv_is_foreign(r)) return -EINVAL;
  rdzv_set_parked(r, true); /* before REJOIN, so that no report of another thread follows it */
  int rc = rdzv_flush_progress(r, deadline);
  if (!rc) rc = rdzv_send_record(r, &leave, sizeof(leave), deadline);
  if (rc) return rdzv_set_parked(r, false), rc;
  rdzv_conn_reset(r);
  rdzv_names_free(r);
  return 0;
}

static int wait_for_place(struct rdzv *r, uint64_t deadline) {
  for (;;) {
    size_t size = 0;
    if (r->requested & RDZV_STOP) return rdzv_fail(r, -ECANCELED, "rejoin: the agent asks this worker to stop");
    int type = rdzv_await(r, &size, deadline);
    if (type == SDK_WELCOME) {
      bool can = r->checkpoints.can;
      int rc = rdzv_take_welcome(r, size);
      if (rc) return rc;
      r->checkpoints = (struct rdzv_checkpoints){.can = can, .asked = r->is.checkpoint};
      rdzv_set_parked(r, false);
      return 0;
    }
    if (type < 0) return type;
  }
}

int rdzv_rejoin(struct rdzv *r, const char *reason, int timeout_ms) {
  uint64_t deadline = rdzv_deadline_in(timeout_ms);
  rdzv_heed_flag(r, true);
  if (r->alone) return rdzv_fail(r, -ENOTSUP, "rejoin: this program runs without an agent, so there is no next round");
  if (!r->can_rejoin) return rdzv_fail(r, -EINVAL, "rejoin: call rdzv_can_rejoin first, and not after rdzv_done");
  int rc = r->parked ? 0 : park(r, reason, deadline);
  if (!rc) rc = wait_for_place(r, deadline);
  if (rc == -EINTR) return rdzv_fail(r, rc, "rejoin: interrupted");
  if (rc == -ETIMEDOUT) return rdzv_fail(r, rc, "rejoin: no next round within %d ms", timeout_ms);
  return rc && rc != -ECANCELED && rdzv_is_lost(r) ? rdzv_lost(r, "rejoin") : rc;
}

/* Communicators ---------------------------------------------------------------------------------------------------- */

/* How a worker with communicators of its own leaves a round.
 *
 * A worker that waits for its GPU may wait for a collective that a dead peer never joins. Only an abort of the
 * communicator ends it, and an abort is allowed only when all other workers have left too. So rdzv_run_watched moves
 * the wait into a thread of its own, and the caller's thread watches the agent. Everything that uses the context stays
 * there.
 *
 * rdzv_leave has the order: poison, rejoin, cut. `cut` is called from there alone, and only behind the 0 of
 * rdzv_rejoin. It runs in a thread too, because the abort of a communicator may hang in a driver. A cut that fails or
 * hangs is final: the communicators may be in use, so the caller can only exit. */

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
