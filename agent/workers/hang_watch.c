/* SPDX-License-Identifier: Apache-2.0 */
/* Looks for signs of workers.
 *
 * Output costs nothing: the relay's thread notes the time of each read, and a look compares the notes. Files are looked
 * at in the pool, so that answer comes later, or never if their server hangs; the mind waits for it no longer than it
 * wants to. Progress through the sdk comes by itself.
 *
 * Each sign is reported once: only a sign that is newer than the last one. While nothing reads the workers' output,
 * because the terminal was stopped or a disk hangs, or while a user has suspended the job, they cannot go on, and that
 * is not their fault: LOOKED says `held`. */

#include "agent/workers/hang_watch.h"
#include "agent/workers/worker.h"

#include <stdlib.h>
#include "agent/hang/files.h"
#include "agent/hang/probe.h"
#include "common/system/clock.h"
#include "common/mem.h"

struct hang_watch {
  struct hang_watch_options o;
  struct hang_files *files; /* NULL: they are not watched */
  struct probe *probe;
  uint32_t round;
  int64_t rank_base;
  bool suspended, held; /* held: suspended at some time since the last look */
};

static void report(struct hang_watch *h, struct supervisor_event ev) {
  ev.round = h->round;
  h->o.on_event(h->o.ctx, &ev);
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

static void report_output(struct hang_watch *h, struct worker *v) {
  for (uint32_t i = 0; i < h->o.count; i++) {
    uint64_t heard_ms = v[i].pipes ? relay_heard_ms(v[i].pipes) : 0;
    if (heard_ms <= v[i].sign_ms) continue;
    v[i].sign_ms = heard_ms;
    report(h, (struct supervisor_event){
                  .kind = SUP_SIGN, .local_rank = i, .when_ms = heard_ms, .sign = {.kind = SIGN_OUTPUT}});
  }
}

static void report_looked(struct hang_watch *h) {
  bool held = h->held || relay_is_held(h->o.relay);
  h->held = h->suspended;
  report(h, (struct supervisor_event){.kind = SUP_LOOKED, .looked = {.held = held}});
}

static void on_files(void *ctx) {
  struct hang_watch *h = ctx;
  for (uint32_t i = 0; i < h->o.count; i++)
    if (hang_files_changed(h->files, i))
      report(h, (struct supervisor_event){
                    .kind = SUP_SIGN, .local_rank = i, .when_ms = boot_ms(), .sign = {.kind = SIGN_FILE}});
  report_looked(h);
}

void hang_watch_look(struct hang_watch *h, struct worker *v) {
  enum hang_watch_kind kind = h->o.options->hang_watch.kind;
  if (h->files) {
    hang_files_look(h->files);
    return;
  }
  if (kind != HANG_SDK) report_output(h, v);
  report_looked(h);
}

/* Probing. --------------------------------------------------------------------------------------------------------- */

static void on_fact(void *ctx, uint32_t local_rank, const struct probe_facts *f) {
  report(ctx, (struct supervisor_event){
                  .kind = SUP_PROBED, .local_rank = local_rank, .probed = {.state = f->state, .where = f->where}});
}

static void on_facts(void *ctx) {
  report(ctx, (struct supervisor_event){.kind = SUP_PROBE_FACTS});
}

static void on_done(void *ctx) {
  report(ctx, (struct supervisor_event){.kind = SUP_PROBE_DONE});
}

static bool has_files(const struct hang_watch *h) {
  return h->o.options->output.log_dir && output_has_files(&h->o.options->output);
}

void hang_watch_probe(struct hang_watch *h, const struct worker *v, int64_t suspect, enum log_level level) {
  struct probe_target targets[PROBE_TARGETS_MAX];
  char *files[PROBE_TARGETS_MAX] = {NULL};
  size_t n = 0;
  for (int64_t k = -1; k < (int64_t)h->o.count && n < PROBE_TARGETS_MAX; k++) {
    int64_t i = k < 0 ? suspect : k; /* the suspect first */
    if (i < 0 || i >= (int64_t)h->o.count || (k >= 0 && i == suspect) || v[i].exited || v[i].pid <= 0) continue;
    if (has_files(h)) files[n] = log_dir_attempt_file(h->o.logs, h->round, i, "hang.txt");
    targets[n] =
        (struct probe_target){.local_rank = (uint32_t)i, .rank = h->rank_base + i, .pid = v[i].pid, .file = files[n]};
    n++;
  }
  probe_begin(h->probe, targets, n, level, h->o.options->hang_stacks);
  for (size_t i = 0; i < n; i++) free(files[i]);
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

void hang_watch_suspend(struct hang_watch *h, bool on) {
  h->suspended = on;
  h->held |= on;
}

void hang_watch_begin(struct hang_watch *h, uint32_t round, int64_t rank_base) {
  h->round = round;
  h->rank_base = rank_base;
  probe_end(h->probe);
  if (h->files) hang_files_begin(h->files, rank_base);
}

void hang_watch_end(struct hang_watch *h) {
  probe_end(h->probe);
}

bool hang_watch_is_busy(const struct hang_watch *h) {
  return probe_is_busy(h->probe);
}

struct hang_watch *hang_watch_create(const struct hang_watch_options *o) {
  static const struct probe_callbacks callbacks = {on_fact, on_facts, on_done};
  struct hang_watch *h = xcalloc(1, sizeof(*h));
  h->o = *o;
  h->probe = probe_create(o->loop, &callbacks, h);
  if (o->options->hang_watch.kind == HANG_FILE)
    h->files = hang_files_create(o->loop, o->count, o->options->hang_watch.file, on_files, h);
  return h;
}

void hang_watch_destroy(struct hang_watch *h) {
  if (!h) return;
  probe_destroy(h->probe);
  hang_files_destroy(h->files);
  free(h);
}
