/* SPDX-License-Identifier: Apache-2.0 */
/* Reports of a run: to people by the log, to the agent by librdzv, to programs by --metrics.
 *
 * All of it describes the last step that was read. The host's waiting and working times are by its own clock. The
 * device's times are by the device's clock, which it writes beside the results (compute_copy_and_stamp), in captured
 * steps too. A time that was not measured is null. */

#include "agent/trainer/run/trainer.h"

#include "common/system/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* --metrics. Each line is built in one buffer and written at once to a descriptor in append mode. There is no JSON
 * library: the keys are ours, and so is the little text there is. */

int metrics_open(struct metrics *m, const char *path, struct err *e) {
  *m = (struct metrics){.fd = -1, .path = path};
  if (!path) return 0;
  m->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  return m->fd < 0 ? err_sys(e, -errno, "metrics file %s", path) : 0;
}

void metrics_finish(struct metrics *m) {
  if (m->fd >= 0) close(m->fd);
  m->fd = -1;
  buf_finish(&m->line);
}

void metrics_begin(struct metrics *m, const char *event) {
  struct timespec t;
  if (m->fd < 0) return;
  clock_gettime(CLOCK_REALTIME, &t);
  buf_clear(&m->line);
  buf_printf(&m->line, "{\"event\":\"%s\",\"time\":%lld.%06ld", event, (long long)t.tv_sec, t.tv_nsec / 1000);
}

void metrics_uint(struct metrics *m, const char *key, uint64_t v) {
  if (m->fd >= 0) buf_printf(&m->line, ",\"%s\":%" PRIu64, key, v);
}

void metrics_real(struct metrics *m, const char *key, double v) {
  if (m->fd < 0) return;
  if (isfinite(v))
    buf_printf(&m->line, ",\"%s\":%.9g", key, v);
  else
    buf_printf(&m->line, ",\"%s\":null", key);
}

void metrics_text(struct metrics *m, const char *key, const char *v) {
  if (m->fd < 0) return;
  buf_printf(&m->line, ",\"%s\":\"", key);
  for (; *v; v++)
    if ((unsigned char)*v >= ' ' && *v != '"' && *v != '\\')
      buf_putc(&m->line, *v);
    else
      buf_printf(&m->line, "\\u%04x", (unsigned char)*v);
  buf_putc(&m->line, '"');
}

int metrics_end(struct metrics *m, struct err *e) {
  if (m->fd < 0) return 0;
  buf_puts(&m->line, "}\n");
  for (size_t at = 0; at < m->line.len;) {
    ssize_t n = write(m->fd, m->line.data + at, m->line.len - at);
    if (n < 0 && errno != EINTR) return err_sys(e, -errno, "metrics file %s", m->path);
    if (n > 0) at += (size_t)n;
  }
  return 0;
}

/* Reports. --------------------------------------------------------------------------------------------------------- */

static const char *const phase_keys[] = {
#define X(name, key) [PHASE_##name] = (key),
    TRAINER_PHASE_LIST(X)
#undef X
};

void trainer_end_phase(struct trainer *t, enum trainer_phase phase) {
  uint64_t now = monotonic_us();
  t->phase_us[phase] += now - t->phase_from_us;
  t->phase_from_us = now;
}

void trainer_log_waits(struct trainer *t) {
  bool wanted = t->rank == 0 && t->o.report_every_ms > 0;
  if (wanted && t->waits) return;
  wait_log_destroy(t->waits);
  t->waits = wanted ? wait_log_create((uint64_t)t->o.report_every_ms) : NULL;
}

static const char *plural(uint64_t n) {
  return n == 1 ? "" : "s";
}

static int end_metrics_line(struct trainer *t, struct err *e) {
  metrics_uint(&t->metrics, "round", rdzv_round(t->rdzv));
  metrics_uint(&t->metrics, "world", (uint64_t)t->world);
  return with_exit(t, TRAINER_FILES, metrics_end(&t->metrics, e));
}

static void metrics_ms(struct trainer *t, const char *key, uint64_t us) {
  metrics_real(&t->metrics, key, (double)us / 1000);
}

int trainer_report_start(struct trainer *t, struct err *e) {
  char layers[160];
  uint64_t each = sampler_steps_per_epoch(&t->sampler);
  unsigned long long last = t->last_step, done = t->done.step;
  if (t->rank != 0) return 0;
  model_shape_format(&t->o.shape, '-', layers, sizeof layers);
  log_info("%s %s, %zu weights, %s; %llu sample%s, batch %llu, world %d; %llu step%s an epoch, %llu in all",
           t->o.loss == COMPUTE_CROSS_ENTROPY ? "classifier" : "autoencoder", layers, t->model.n_params,
           model_loss_words[t->o.loss], (unsigned long long)t->data.n, plural(t->data.n),
           (unsigned long long)t->sampler.batch, t->world, (unsigned long long)each, plural(each), last);
  if (t->resumed_from[0])
    log_info("resumed from %s/%s at step %llu", t->o.checkpoint_dir, t->resumed_from, done);
  else if (done > 0)
    log_info("round %u: received the state of step %llu from a rank that continued in place", rdzv_round(t->rdzv),
             done);
  if (done >= last)
    log_info("nothing left to do: the run ends after step %llu; give more --steps or --epochs to continue", last);
  trainer_log_device(t);
  model_shape_format(&t->o.shape, ',', layers, sizeof layers);
  metrics_begin(&t->metrics, "start");
  metrics_text(&t->metrics, "layers", layers);
  metrics_text(&t->metrics, "loss", model_loss_words[t->o.loss]);
  metrics_uint(&t->metrics, "samples", t->data.n);
  metrics_uint(&t->metrics, "batch", t->sampler.batch);
  metrics_uint(&t->metrics, "steps", t->last_step);
  metrics_text(&t->metrics, "device", t->c->device);
  metrics_text(&t->metrics, "precision", trainer_precision_words[t->c->precision]);
  metrics_text(&t->metrics, "input", t->rows ? "kept" : "sent");
  metrics_text(&t->metrics, "collectives", t->coll->ops->name);
  metrics_real(&t->metrics, "step_flops", model_flops(&t->o.shape, sampler_share(&t->sampler, 0, 0, 1).count));
  for (int i = 0; i < PHASE_FIRST_STEP; i++) metrics_ms(t, phase_keys[i], t->phase_us[i]);
  int rc = end_metrics_line(t, e);
  if (rc || !t->resumed_from[0]) return rc;
  metrics_begin(&t->metrics, "resume");
  metrics_uint(&t->metrics, "step", t->done.step);
  metrics_text(&t->metrics, "from", t->resumed_from);
  return end_metrics_line(t, e);
}

int trainer_report_step(struct trainer *t, struct err *e) {
  uint64_t now = t->read_us;
  struct rate *r = &t->rate;
  /* Averages over half a second or more; at the start, over the time since then. */
  bool whole = now - r->since_us >= 500000;
  if (now > r->since_us && (whole || !r->samples)) {
    double each = 1e6 / (double)(now - r->since_us);
    r->value = (double)(t->samples - r->samples) * each;
    r->steps_value = (double)(t->steps - r->steps) * each;
  }
  if (whole) *r = (struct rate){now, t->samples, t->steps, r->value, r->steps_value};
  rdzv_progress(t->rdzv, t->done.step, t->last_step == UINT64_MAX ? 0 : t->last_step, t->loss, r->value / t->world);
  if (t->rank != 0) return 0;
  if (t->o.report_every_ms && now - t->reported_us >= (uint64_t)t->o.report_every_ms * 1000) {
    t->reported_us = now;
    char loss[32] = "not finite";
    if (t->bad_in_row == 0) snprintf(loss, sizeof loss, "loss %.6g", t->loss);
    log_info("step %llu of %llu, epoch %llu, %s, %.0f steps/s, %.0f samples/s", (unsigned long long)t->done.step,
             (unsigned long long)t->last_step, (unsigned long long)t->done.epoch, loss, t->rate.steps_value,
             t->rate.value);
  }
  /* The loss of a skipped step is null, and so is a norm that is not finite. */
  struct metrics *m = &t->metrics;
  const struct timing *ms = &t->timing;
  if (m->fd < 0) return 0;
  if (!t->first_step_reported) {
    uint64_t all = 0;
    for (int i = 0; i < PHASES; i++) all += t->phase_us[i];
    metrics_begin(m, "first-step");
    metrics_uint(m, "step", t->done.step);
    metrics_ms(t, phase_keys[PHASE_FIRST_STEP], t->phase_us[PHASE_FIRST_STEP]);
    metrics_ms(t, "since_start_ms", all);
    t->first_step_reported = true;
    int rc = end_metrics_line(t, e);
    if (rc) return rc;
  }
  if (t->done.step % (uint64_t)t->o.metrics_every != 0) return 0;
  double flops = ms->step ? model_flops(&t->o.shape, ms->samples) * 1e6 / (double)ms->step : (double)NAN;
  bool bad = t->bad_in_row > 0;
  metrics_begin(m, "step");
  metrics_uint(m, "step", t->done.step);
  metrics_real(m, "epoch", (double)t->done.epoch + (double)t->done.position / (double)t->sampler.samples);
  metrics_real(m, "loss", bad ? (double)NAN : t->loss);
  metrics_real(m, "grad_norm", (double)t->counters.grad_norm);
  metrics_uint(m, "skipped", t->counters.skipped);
  metrics_real(m, "samples_per_second", t->rate.value);
  metrics_real(m, "steps_per_second", t->rate.steps_value);
  metrics_real(m, "flops", flops);
  metrics_ms(t, "step_ms", ms->step);
  metrics_ms(t, "input_ms", ms->input);
  metrics_ms(t, "wait_ms", ms->wait);
  metrics_real(m, "compute_ms", ms->compute / 1000);
  metrics_real(m, "comm_exposed_ms", ms->exposed / 1000);
  metrics_real(m, "device_input_ms", ms->device_input / 1000);
  metrics_real(m, "device_idle_ms", ms->idle / 1000);
  metrics_ms(t, "checkpoint_ms", ms->checkpoint);
  return end_metrics_line(t, e);
}

int trainer_report_stop(struct trainer *t, struct err *e) {
  if (t->rank != 0) return 0;
  metrics_begin(&t->metrics, "stop");
  metrics_uint(&t->metrics, "step", t->done.step);
  int rc = end_metrics_line(t, e);
  if (rc) return rc;
  if (t->o.checkpoint_dir)
    log_info("stopped as requested: checkpoint written at step %llu; run the same command to continue",
             (unsigned long long)t->done.step);
  else
    log_warn("stopped as requested at step %llu; nothing is saved without --checkpoint-dir",
             (unsigned long long)t->done.step);
  return 0;
}

int trainer_report_end(struct trainer *t, uint32_t crc, struct err *e) {
  uint64_t us = monotonic_us() - t->begin_us;
  double rate = us ? (double)t->samples * 1e6 / (double)us : 0;
  char hex[16];
  snprintf(hex, sizeof hex, "%08x", crc);
  metrics_begin(&t->metrics, "end");
  metrics_uint(&t->metrics, "step", t->done.step);
  metrics_real(&t->metrics, "loss", t->loss);
  metrics_uint(&t->metrics, "skipped", t->counters.skipped);
  metrics_real(&t->metrics, "samples_per_second", rate);
  metrics_real(&t->metrics, "steps_per_second", t->samples ? rate * (double)t->steps / (double)t->samples : 0);
  metrics_real(&t->metrics, "seconds", (double)us / 1e6);
  metrics_text(&t->metrics, "checksum", hex);
  int rc = end_metrics_line(t, e);
  if (rc) return rc;
  if (t->counters.skipped)
    log_warn("%llu of %llu step%s %s skipped because gradients were not finite",
             (unsigned long long)t->counters.skipped, (unsigned long long)t->done.step, plural(t->done.step),
             t->counters.skipped == 1 ? "was" : "were");
  printf("done: %llu step%s, loss %.9g, %.0f samples/s, checksum %s\n", (unsigned long long)t->done.step,
         plural(t->done.step), t->loss, rate, hex);
  if (fflush(stdout) != 0) log_warn("the result could not be printed: %s", strerror(errno));
  return 0;
}
