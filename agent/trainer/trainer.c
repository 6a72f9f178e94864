/* rdzv-trainer: options, the phases of a run, and its end.
 *
 *   setup     who am I, data, memory, ring           setup.c
 *   resume    the newest checkpoint, for everybody   state.c
 *   loop      step, report, checkpoint               step.c, here
 *   end       result line, done
 *
 * A failure anywhere comes back here as one sentence and one exit code. Before leaving, the ring is told
 * why, so that the others name the same culprit and do not wait. A rank that lost another one is usually
 * an echo of somebody else's death, and says so: what happened is told by the agent's verdict. Of several exit
 * codes the verdict takes the earliest, so an echo waits a moment for the SIGTERM that the cause brings about.
 *
 * Signals: SIGTERM and SIGINT, and SIGUSR1 and SIGUSR2, which schedulers send before a time limit, ask for an end after the step in
 * which all ranks know of it; a second SIGINT ends at once. SIGPIPE and SIGXFSZ are ignored, so that what they mean arrives as an error with a
 * sentence. */

#include "agent/trainer/trainer.h"

#include "common/buf.h"
#include "common/log.h"

#include <errno.h>
#include <math.h>
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

static void say_start(struct trainer *t) {
  char layers[160];
  uint64_t batches = sampler_batches(&t->sampler);
  model_shape_format(&t->o.shape, '-', layers, sizeof layers);
  log_info("%s %s, %zu weights, %s; %llu samples, batch %llu, world %d; %llu steps an epoch, %llu in all",
           t->o.loss == COMPUTE_CROSS_ENTROPY ? "classifier" : "autoencoder", layers, t->model.n_params,
           trainer_loss_name(t->o.loss), (unsigned long long)t->data.n, (unsigned long long)t->sampler.batch,
           t->world, (unsigned long long)batches, (unsigned long long)t->last_step);
  if (t->resumed_from[0])
    log_info("resumed from %s/%s at step %llu", t->o.checkpoint_dir, t->resumed_from,
             (unsigned long long)t->step);
}

static int metrics_common(struct trainer *t, struct err *e) {
  metrics_uint(&t->metrics, "round", rdzv_round(t->rdzv));
  metrics_uint(&t->metrics, "world", (uint64_t)t->world);
  return trainer_blame(t, TRAINER_FILES, metrics_end(&t->metrics, e));
}

static int metrics_start(struct trainer *t, struct err *e) {
  char layers[160];
  model_shape_format(&t->o.shape, ',', layers, sizeof layers);
  metrics_begin(&t->metrics, "start");
  metrics_text(&t->metrics, "layers", layers);
  metrics_text(&t->metrics, "loss", trainer_loss_name(t->o.loss));
  metrics_uint(&t->metrics, "samples", t->data.n);
  metrics_uint(&t->metrics, "batch", t->sampler.batch);
  metrics_uint(&t->metrics, "steps", t->last_step);
  int rc = metrics_common(t, e);
  if (rc || !t->resumed_from[0]) return rc;
  metrics_begin(&t->metrics, "resume");
  metrics_uint(&t->metrics, "step", t->step);
  metrics_text(&t->metrics, "from", t->resumed_from);
  return metrics_common(t, e);
}

static int metrics_step(struct trainer *t, struct err *e) {
  if (!metrics_on(&t->metrics) || t->step % (uint64_t)t->o.metrics_every != 0) return 0;
  metrics_begin(&t->metrics, "step");
  metrics_uint(&t->metrics, "step", t->step);
  metrics_real(&t->metrics, "epoch", (double)t->epoch + (double)t->position / (double)t->sampler.samples);
  metrics_real(&t->metrics, "loss", t->loss);
  metrics_real(&t->metrics, "lr", t->o.hyper.lr);
  metrics_real(&t->metrics, "grad_norm", (double)t->counters.grad_norm);
  metrics_real(&t->metrics, "samples_per_second", t->rate.value);
  metrics_real(&t->metrics, "step_ms", (double)t->step_us / 1000);
  return metrics_common(t, e);
}

static double average_rate(const struct trainer *t) {
  uint64_t us = trainer_now_us() - t->begin_us;
  return us ? (double)t->samples * 1e6 / (double)us : 0;
}

/* Samples per second over half a second and more; before that, over what there is. */
static void measure(struct trainer *t, uint64_t now) {
  struct rate *r = &t->rate;
  if (now - r->since_us < 500000 && r->samples) return;
  if (now > r->since_us) r->value = (double)(t->samples - r->samples) * 1e6 / (double)(now - r->since_us);
  if (now - r->since_us >= 500000) *r = (struct rate){now, t->samples, r->value};
}

/* What the world hears of a step. */
static int report(struct trainer *t, struct err *e) {
  uint64_t now = trainer_now_us();
  measure(t, now);
  rdzv_progress(t->rdzv, t->step, t->last_step == UINT64_MAX ? 0 : t->last_step, t->loss,
                t->rate.value / t->world);
  if (t->rank != 0) return 0;
  if (t->o.report_every_ms && now - t->reported_us >= (uint64_t)t->o.report_every_ms * 1000) {
    t->reported_us = now;
    log_info("step %llu of %llu, epoch %llu, loss %.6g, %.0f samples/s", (unsigned long long)t->step,
             (unsigned long long)t->last_step, (unsigned long long)t->epoch, t->loss, t->rate.value);
  }
  return metrics_step(t, e);
}

/* --throttle: not before the next step's turn. A signal ends the wait. */
static void throttle(struct trainer *t) {
  uint64_t now = trainer_now_us(), gap = t->o.throttle > 0 ? (uint64_t)(1e6 / t->o.throttle) : 0;
  if (gap && t->next_step_us > now && !sigterm) {
    uint64_t us = t->next_step_us - now;
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
    nanosleep(&ts, NULL);
    now = t->next_step_us;
  }
  t->next_step_us = now + gap;
}

static bool checkpoint_is_due(const struct trainer *t) {
  uint64_t every = (uint64_t)t->o.checkpoint_every;
  return t->stop || t->checkpoint || t->step == t->last_step || (every && t->step % every == 0);
}

/* Some rank was asked for it, and all have come here. It is rank 0 that writes; the others tell of it when it has. */
static int tell_checkpoint(struct trainer *t, struct err *e) {
  if (!t->checkpoint || !t->o.checkpoint_dir) return 0;
  int rc = trainer_blame(t, TRAINER_LOST, coll_barrier(t->coll, e));
  if (rc) return rc;
  if (t->rank == 0) log_info("checkpoint written at step %llu, as asked", (unsigned long long)t->step);
  if (rdzv_checkpointed(t->rdzv, t->step)) log_warn("%s", rdzv_error(t->rdzv));
  return 0;
}

static int loop(struct trainer *t, struct err *e) {
  /* Without a place for them there is nothing to wait for. */
  if (t->o.checkpoint_dir && rdzv_can_checkpoint(t->rdzv)) log_warn("%s", rdzv_error(t->rdzv));
  t->begin_us = t->reported_us = t->rate.since_us = trainer_now_us();
  while (t->step < t->last_step && !t->stop) {
    throttle(t);
    uint64_t from = trainer_now_us();
    int rc = trainer_step(t, e);
    if (rc) return rc;
    t->step_us = trainer_now_us() - from;
    rc = report(t, e);
    if (rc == 0 && checkpoint_is_due(t)) rc = trainer_save(t, e);
    if (rc == 0) rc = tell_checkpoint(t, e);
    if (rc) return rc;
  }
  return 0;
}

static int stopped(struct trainer *t, struct err *e) {
  t->exit = TRAINER_STOPPED;
  if (t->rank != 0) return 0;
  metrics_begin(&t->metrics, "stop");
  metrics_uint(&t->metrics, "step", t->step);
  int rc = metrics_common(t, e);
  if (rc) return rc;
  if (t->o.checkpoint_dir)
    log_info("told to stop: checkpoint written at step %llu; the same command goes on from there",
             (unsigned long long)t->step);
  else
    log_warn("told to stop at step %llu; without --checkpoint-dir nothing of it is kept",
             (unsigned long long)t->step);
  return 0;
}

static int finished(struct trainer *t, struct err *e) {
  double rate = average_rate(t);
  t->exit = TRAINER_DONE;
  /* Nobody is done before everybody is: a rank that could still fail needs the others' place in the job. */
  int rc = trainer_blame(t, TRAINER_LOST, coll_barrier(t->coll, e));
  if (rc == 0 && t->rank == 0) {
    uint32_t crc = 0;
    rc = trainer_result(t, &crc, e);
    if (rc) return rc;
    metrics_begin(&t->metrics, "end");
    metrics_uint(&t->metrics, "step", t->step);
    metrics_real(&t->metrics, "loss", t->loss);
    metrics_real(&t->metrics, "samples_per_second", rate);
    metrics_real(&t->metrics, "seconds", (double)(trainer_now_us() - t->begin_us) / 1e6);
    char hex[16];
    snprintf(hex, sizeof hex, "%08x", crc);
    metrics_text(&t->metrics, "checksum", hex);
    rc = metrics_common(t, e);
    if (rc) return rc;
    printf("done: %llu steps, loss %.9g, %.0f samples/s, checksum %s\n", (unsigned long long)t->step, t->loss,
           rate, hex);
    if (fflush(stdout) != 0) log_warn("the result could not be printed: %s", strerror(errno));
  }
  if (rc == 0) rdzv_done(t->rdzv);
  return rc;
}

static int run(struct trainer *t, struct err *e) {
  int rc = trainer_setup(t, e);
  if (rc == 0) rc = trainer_resume(t, e);
  if (rc == 0 && t->rank == 0) {
    say_start(t);
    rc = metrics_start(t, e);
  }
  if (rc == 0) {
    catch_signals();
    rc = loop(t, e);
  }
  if (rc) return rc;
  return t->step < t->last_step ? stopped(t, e) : finished(t, e);
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
    coll_abort(t.coll, e.text);
    if (echo) await_sigterm(ECHO_MS);
  }
  trainer_teardown(&t);
  return t.exit;
}
