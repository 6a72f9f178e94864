/* Looks for signs of workers.
 *
 * Output costs nothing: the relay's thread notes when it has read something, and a look takes the notes. Files are looked at
 * in the pool, so that answer comes later, or never where their server hangs; the supervisor waits for it no longer than it
 * wants to. What workers say through the sdk comes by itself.
 *
 * Each sign is told once: only what is newer than what was told before. While nobody takes the workers' output, because the
 * terminal was stopped or a disk hangs, they cannot go on, and that is not theirs: LOOKED says `held`. */

#include "agent/workers/hang_watch.h"

#include <stdlib.h>
#include <string.h>
#include "agent/hang/files.h"
#include "agent/hang/probe.h"
#include "common/clock.h"
#include "common/mem.h"

struct hang_watch {
  struct hang_watch_options o;
  struct hang_files *files; /* NULL: they are not watched */
  struct probe *probe;
  uint64_t *heard_ms, *told_ms; /* of output, by local rank */
  uint32_t round;
  int64_t rank_base;
};

static void tell(struct hang_watch *h, struct supervisor_event ev) {
  ev.round = h->round;
  h->o.on_event(h->o.ctx, &ev);
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

static void tell_output(struct hang_watch *h) {
  relay_heard(h->o.relay, h->heard_ms, h->o.count);
  for (uint32_t i = 0; i < h->o.count; i++) {
    if (h->heard_ms[i] <= h->told_ms[i]) continue;
    h->told_ms[i] = h->heard_ms[i];
    tell(h, (struct supervisor_event){
                .kind = SUP_SIGN, .local_rank = i, .sign = SIGN_OUTPUT, .when_ms = h->heard_ms[i]});
  }
}

static void tell_looked(struct hang_watch *h) {
  tell(h, (struct supervisor_event){.kind = SUP_LOOKED, .held = relay_is_held(h->o.relay)});
}

static void on_files(void *ctx) {
  struct hang_watch *h = ctx;
  for (uint32_t i = 0; i < h->o.count; i++)
    if (hang_files_changed(h->files, i))
      tell(h, (struct supervisor_event){
                  .kind = SUP_SIGN, .local_rank = i, .sign = SIGN_FILE, .when_ms = boot_ms()});
  tell_looked(h);
}

void hang_watch_look(struct hang_watch *h) {
  enum hang_watch_kind kind = h->o.options->hang_watch.kind;
  if (h->files) {
    hang_files_look(h->files);
    return;
  }
  if (kind != HANG_SDK) tell_output(h);
  tell_looked(h);
}

/* Probing. --------------------------------------------------------------------------------------------------------- */

static void on_fact(void *ctx, uint32_t local_rank, const struct probe_facts *f) {
  tell(ctx, (struct supervisor_event){
                .kind = SUP_PROBED, .local_rank = local_rank, .error = f->state, .text = f->where});
}

static void on_facts(void *ctx) {
  tell(ctx, (struct supervisor_event){.kind = SUP_PROBE_FACTS});
}

static void on_done(void *ctx) {
  tell(ctx, (struct supervisor_event){.kind = SUP_PROBE_DONE});
}

static bool has_files(const struct hang_watch *h) {
  return h->o.options->log_dir && output_has_files(h->o.options);
}

void hang_watch_probe(struct hang_watch *h, const pid_t *pids, uint64_t first, enum log_level level) {
  struct probe_target targets[PROBE_TARGETS_MAX];
  char *files[PROBE_TARGETS_MAX] = {NULL};
  size_t n = 0;
  for (uint32_t k = 0; k <= h->o.count && n < PROBE_TARGETS_MAX; k++) {
    uint32_t i = k ? k - 1 : (uint32_t)first;
    if ((k == 0 && first >= h->o.count) || (k && i == first) || pids[i] <= 0) continue;
    if (has_files(h)) files[n] = log_dir_attempt_file(h->o.logs, h->round, i, "hang.txt");
    targets[n] =
        (struct probe_target){.local_rank = i, .rank = h->rank_base + i, .pid = pids[i], .file = files[n]};
    n++;
  }
  probe_begin(h->probe, targets, n, level, h->o.options->hang_stacks);
  for (size_t i = 0; i < n; i++) free(files[i]);
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

void hang_watch_begin(struct hang_watch *h, uint32_t round, int64_t rank_base) {
  h->round = round;
  h->rank_base = rank_base;
  probe_end(h->probe);
  memset(h->told_ms, 0, h->o.count * sizeof(*h->told_ms));
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
  h->heard_ms = xcalloc(o->count, sizeof(*h->heard_ms));
  h->told_ms = xcalloc(o->count, sizeof(*h->told_ms));
  h->probe = probe_create(o->loop, &callbacks, h);
  if (o->options->hang_watch.kind == HANG_FILE)
    h->files = hang_files_create(o->loop, o->count, o->options->hang_watch.file, on_files, h);
  return h;
}

void hang_watch_destroy(struct hang_watch *h) {
  if (!h) return;
  probe_destroy(h->probe);
  hang_files_destroy(h->files);
  free(h->heard_ms);
  free(h->told_ms);
  free(h);
}
