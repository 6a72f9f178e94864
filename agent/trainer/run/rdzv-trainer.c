/* rdzv-trainer: options, the phases of a run, and its end.
 *
 *   setup     who am I, data, memory, ring           setup.c
 *   resume    the newest checkpoint, for everybody   state.c
 *   loop      queue, read, report, checkpoint        loop.c, step.c, slot.c, report.c
 *   recover   the same process in another round      recover.c
 *   end       result line, done
 *
 * With --bench there is nothing to train: bench.c has the device and the ring instead.
 *
 * A failure anywhere comes back here as one sentence and one exit code. Before leaving, the ring is told
 * why, so that the others name the same culprit and do not wait. A rank that lost another one is usually
 * an echo of somebody else's death, and says so: what happened is told by the agent's verdict. Of several exit
 * codes the verdict takes the earliest, so an echo waits a moment for the SIGTERM that the cause brings about.
 *
 * Signals: SIGTERM and SIGINT, and SIGUSR1 and SIGUSR2, which schedulers send before a time limit, ask for an end after the step in
 * which all ranks know of it; a second SIGINT ends at once. SIGPIPE and SIGXFSZ are ignored, so that what they mean arrives as an error with a
 * sentence. */

#include "agent/trainer/run/trainer.h"

#include "common/buf.h"
#include "common/log.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { ECHO_MS = 500 };

static volatile sig_atomic_t sigterm;

static void on_signal(int signo) {
  (void)signo;
  sigterm = 1;
}

static void ignore_signals(void) {
  struct sigaction a = {.sa_handler = SIG_IGN};
  sigaction(SIGPIPE, &a, NULL);
  sigaction(SIGXFSZ, &a, NULL);
}

/* From here on there is something to save. Before, a signal ends the process at once: a rank that waits to meet the
 * others must not wait for one that has gone already. */
static void catch_signals(void) {
  struct sigaction a = {.sa_handler = on_signal};
  sigaction(SIGTERM, &a, NULL); /* no SA_RESTART: a poll that waits should look at the flag */
  sigaction(SIGUSR1, &a, NULL);
  sigaction(SIGUSR2, &a, NULL);
  a.sa_flags = (int)SA_RESETHAND;
  sigaction(SIGINT, &a, NULL);
}

static int finished(struct trainer *t, struct err *e) {
  uint32_t crc = 0;
  t->exit = TRAINER_DONE;
  /* Nobody is done before everybody is: a rank that could still fail needs the others' place in the job. */
  int rc = trainer_blame_coll(t, coll_barrier(t->coll, e));
  if (rc == 0 && t->rank == 0) rc = trainer_result(t, &crc, e);
  if (rc == 0 && t->rank == 0) rc = trainer_report_end(t, crc, e);
  if (rc == 0) rdzv_done(t->rdzv);
  return rc;
}

static int bench(struct trainer *t, struct err *e) {
  int rc = trainer_setup_bench(t, e);
  if (rc) return rc;
  catch_signals();
  return trainer_bench(t, e);
}

/* With the others: from where all stand to the end, or to where they were told to stop. */
static int go(struct trainer *t, struct err *e) {
  int rc = trainer_loop(t, e);
  if (rc) return rc;
  if (t->done.step >= t->last_step) return finished(t, e);
  t->exit = TRAINER_STOPPED;
  return trainer_report_stop(t, e);
}

static int begin(struct trainer *t, struct err *e) {
  int rc = trainer_setup(t, e);
  if (rc == 0) rc = trainer_agree(t, e);
  trainer_phase(t, PHASE_RESUME);
  if (rc == 0) rc = trainer_report_start(t, e);
  catch_signals();
  return rc;
}

static int run(struct trainer *t, struct err *e) {
  if (t->o.bench.kind != BENCH_NONE) return bench(t, e);
  int rc = begin(t, e);
  if (rc == 0) rc = go(t, e);
  while (trainer_can_recover(t, rc)) {
    rc = trainer_recover(t, rc, e);
    if (rc == 0) rc = go(t, e);
  }
  return rc;
}

/* What the kernel says about when this process began, against now, in microseconds; to its own precision of a hundredth of a second. */
static uint64_t since_start_us(void) {
  char text[1024] = "";
  unsigned long long ticks = 0;
  struct timespec now;
  FILE *f = fopen("/proc/self/stat", "re");
  size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  if (f) fclose(f);
  text[n] = 0;
  const char *p = strrchr(text, ')'); /* behind the name: 20 fields, then starttime */
  if (!p || sscanf(p + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                   &ticks) != 1)
    return 0;
  clock_gettime(CLOCK_BOOTTIME, &now);
  double us =
      ((double)now.tv_sec + (double)now.tv_nsec / 1e9 - (double)ticks / (double)sysconf(_SC_CLK_TCK)) * 1e6;
  return us > 0 ? (uint64_t)us : 0;
}

static int print_help(void) {
  struct buf text = BUF_INIT;
  trainer_opts_help(&text);
  int rc = fputs(buf_text(&text), stdout) < 0 || fflush(stdout) != 0;
  buf_finish(&text);
  return rc ? TRAINER_SYSTEM : TRAINER_DONE;
}

/* SIGTERM may have come already, or come now: it is let in only while we wait. */
static void await_sigterm(long ms) {
  sigset_t term, before;
  struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, &before);
  if (!sigterm) ppoll(NULL, 0, &ts, &before);
  sigprocmask(SIG_SETMASK, &before, NULL);
}

int main(int argc, char **argv) {
  struct trainer t = {.sigterm = &sigterm, .exit = TRAINER_SYSTEM};
  struct err e = ERR_INIT;
  t.phase_us[PHASE_PROCESS] = since_start_us();
  t.phase_from_us = trainer_now_us();
  log_init("rdzv-trainer", LOG_INFO);
  if (trainer_opts_parse(&t.o, argc, argv, environ, &e)) {
    log_error("%s", e.text);
    return TRAINER_USAGE;
  }
  if (t.o.help) return print_help();
  if (t.o.version) return puts("rdzv-trainer " RDZV_VERSION) < 0 ? TRAINER_SYSTEM : TRAINER_DONE;
  ignore_signals();
  if (run(&t, &e)) {
    bool echo = t.exit == TRAINER_LOST && t.coll && t.coll->lost >= 0;
    log_error("%s%s", e.text, echo ? "; usually an echo of another failure" : "");
    /* To these two ends all ranks come by themselves, at the same place. */
    if (t.exit != TRAINER_WRONG && t.exit != TRAINER_DIVERGED) coll_abort(t.coll, e.text);
    if (echo) await_sigterm(ECHO_MS);
  }
  trainer_teardown(&t);
  return t.exit;
}
