/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-trainer: options, the phases of a run, and its end.
 *
 * Every failure comes back here as one message and one exit code. Before it exits, the process gives the ring the
 * reason, so that the others name the same rank and do not wait. A rank that lost another one usually only echoes a
 * failure elsewhere, and its message says so. The verdict takes the earliest exit code, so an echo waits a moment for
 * the SIGTERM that the cause brings. */

#include "agent/trainer/run/trainer.h"

#include "common/buf.h"
#include "common/system/log.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { ECHO_MS = 500 };

static volatile sig_atomic_t sigterm;

static void on_signal(int signo) {
  (void)signo;
  sigterm = 1;
}

/* From now on there is something to save. Before, a signal ends the process at once, because the others must not wait
 * for a rank that is already gone. */
static void catch_signals(void) {
  struct sigaction a = {.sa_handler = on_signal};
  sigaction(SIGTERM, &a, NULL); /* no SA_RESTART: a waiting poll should see the flag */
  sigaction(SIGUSR1, &a, NULL);
  sigaction(SIGUSR2, &a, NULL);
  a.sa_flags = (int)SA_RESETHAND;
  sigaction(SIGINT, &a, NULL);
}

/* From the step that all agreed on to the end, or to a requested stop. */
static int train_to_end(struct trainer *t, struct err *e) {
  int rc = trainer_loop(t, e);
  if (rc) return rc;
  if (t->done.step < t->last_step) {
    t->exit = TRAINER_STOPPED;
    return trainer_report_stop(t, e);
  }
  uint32_t crc = 0;
  t->exit = TRAINER_DONE;
  /* No rank is done before all are: a rank that can still fail needs the others' places in the job. */
  rc = with_coll_exit(t, coll_barrier(t->coll, e));
  if (rc == 0 && t->rank == 0) rc = trainer_finish_weights(t, &crc, e);
  if (rc == 0 && t->rank == 0) rc = trainer_report_end(t, crc, e);
  if (rc == 0) rdzv_done(t->rdzv);
  return rc;
}

static int run_trainer(struct trainer *t, struct err *e) {
  bool bench = t->o.bench.kind != BENCH_NONE;
  int rc = trainer_setup(t, e);
  if (bench) {
    if (rc) return rc;
    catch_signals();
    return trainer_bench(t, e);
  }
  if (rc == 0) rc = trainer_agree(t, e);
  trainer_end_phase(t, PHASE_RESUME);
  if (rc == 0) rc = trainer_report_start(t, e);
  catch_signals();
  if (rc == 0) rc = train_to_end(t, e);
  while (trainer_can_recover(t, rc)) {
    rc = trainer_recover(t, rc, e);
    if (rc == 0) rc = train_to_end(t, e);
  }
  return rc;
}

/* The verdict of --verify-every for the agent, as PyTorch's @record would write it. The text is this program's own, and
 * has nothing that JSON escapes. */
static void write_error_file(const char *text) {
  const char *path = getenv("TORCHELASTIC_ERROR_FILE");
  FILE *f = path && *path ? fopen(path, "we") : NULL;
  if (!f) return;
  fprintf(f, "{\"message\": {\"message\": \"%s\", \"extraInfo\": {\"timestamp\": \"%lld\"}}}\n", text,
          (long long)time(NULL));
  if (fclose(f)) log_warn("the error file %s could not be written", path);
}

int main(int argc, char **argv) {
  struct trainer t = {.sigterm = &sigterm, .exit = TRAINER_SYSTEM};
  struct err e = ERR_INIT;
  /* The time since the kernel started this process, with a resolution of 10 ms. */
  struct timespec now;
  uint64_t ticks = ckpt_started_at((uint64_t)getpid());
  clock_gettime(CLOCK_BOOTTIME, &now);
  double us = ((double)now.tv_sec + (double)now.tv_nsec / 1e9 - (double)ticks / (double)sysconf(_SC_CLK_TCK)) * 1e6;
  t.phase_us[PHASE_PROCESS] = ticks && us > 0 ? (uint64_t)us : 0;
  t.phase_from_us = monotonic_us();
  log_init("rdzv-trainer", LOG_INFO);
  if (trainer_opts_parse(&t.o, argc, argv, environ, &e)) {
    log_error("%s", e.text);
    return TRAINER_USAGE;
  }
  if (t.o.help) {
    struct buf text = BUF_INIT;
    bool brief = opts_wants_short_help(&trainer_opts_spec, argc, argv);
    (brief ? opts_help_short : opts_help)(&trainer_opts_spec, 100, &text);
    int rc = fputs(buf_text(&text), stdout) < 0 || fflush(stdout) != 0;
    buf_finish(&text);
    return rc ? TRAINER_SYSTEM : TRAINER_DONE;
  }
  if (t.o.version) return puts("rdzv-trainer " RDZV_VERSION) < 0 ? TRAINER_SYSTEM : TRAINER_DONE;
  struct sigaction a = {.sa_handler = SIG_IGN};
  sigaction(SIGPIPE, &a, NULL);
  sigaction(SIGXFSZ, &a, NULL);
  bool failed = run_trainer(&t, &e) != 0;
  if (failed) {
    bool echo = t.exit == TRAINER_LOST && t.coll && (t.coll->lost >= 0 || e.code == -ECONNABORTED);
    log_error("%s%s", e.text, echo ? "; usually an echo of another failure" : "");
    bool corrupt = t.exit == TRAINER_ELSEWHERE;
    if (corrupt) write_error_file(e.text);
    /* All ranks come to these ends by themselves, at the same place. */
    if (t.exit != TRAINER_WRONG && t.exit != TRAINER_DIVERGED && !corrupt) coll_abort(t.coll, e.text);
    if (echo) { /* SIGTERM may be pending or arrive now; it is delivered only during the wait */
      sigset_t term, before;
      struct timespec ts = {.tv_nsec = ECHO_MS * 1000000};
      sigemptyset(&term);
      sigaddset(&term, SIGTERM);
      sigprocmask(SIG_BLOCK, &term, &before);
      if (!sigterm) ppoll(NULL, 0, &ts, &before);
    }
  }
  bool at_rest = trainer_teardown(&t);
  if (!at_rest || (failed && t.gpu)) { /* the device's libraries wait for it in an exit handler */
    fflush(NULL);
    _exit(t.exit);
  }
  return t.exit;
}
