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

#include "agent/workers/worker_signs.h"
#include "agent/workers/worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/hang/evidence.h"
#include "agent/hang/files.h"
#include "agent/hang/probe.h"
#include "common/system/clock.h"
#include "common/mem.h"
#include "common/system/loop.h"

struct hang_watch {
  struct round_options o;
  struct relay *relay;
  struct hang_files *files; /* NULL: they are not watched */
  struct probe *probe;
  struct evidence_collector collector;
  struct ras_port ras; /* without an address: NCCL_RAS_ADDR is inherited, or no port is free */
  struct evidence_question question;
  uv_timer_t timer;       /* the end of a hold */
  uint64_t hold_ms;       /* until when workers stay */
  uint64_t begun_ms;      /* of the probe */
  const struct worker *v; /* while NCCL and PyTorch are asked: what to look at then */
  int64_t suspect;
  enum log_level level;
  bool stacks;
  uint32_t round;
  int64_t rank_base;
  bool suspended, held; /* held: suspended at some time since the last look */
};

static void report(struct hang_watch *h, struct supervisor_event ev) {
  ev.round = h->round;
  h->o.on_event(h->o.ctx, &ev);
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

static void report_looked(struct hang_watch *h) {
  bool held = h->held || relay_is_held(h->relay);
  h->held = h->suspended;
  report(h, (struct supervisor_event){.kind = SUP_LOOKED, .held = held});
}

static void on_files(void *ctx) {
  struct hang_watch *h = ctx;
  for (uint32_t i = 0; i < h->o.count; i++)
    if (hang_files_changed(h->files, i))
      report(h, (struct supervisor_event){.kind = SUP_SIGN, .local_rank = i, .when_ms = boot_ms(), .sign = SIGN_FILE});
  report_looked(h);
}

void hang_watch_look(struct hang_watch *h, struct worker *v) {
  enum hang_watch_kind kind = h->o.options->hang_watch.kind;
  if (h->files) {
    hang_files_look(h->files);
    return;
  }
  for (uint32_t i = 0; i < h->o.count && kind != HANG_SDK; i++) {
    uint64_t heard_ms = v[i].pipes ? relay_heard_ms(v[i].pipes) : 0;
    if (heard_ms <= v[i].sign_ms) continue;
    v[i].sign_ms = heard_ms;
    report(h, (struct supervisor_event){.kind = SUP_SIGN, .local_rank = i, .when_ms = heard_ms, .sign = SIGN_OUTPUT});
  }
  report_looked(h);
}

/* Probing. --------------------------------------------------------------------------------------------------------- */

static void on_fact(void *ctx, uint32_t local_rank, const struct probe_facts *f) {
  report(ctx,
         (struct supervisor_event){.kind = SUP_PROBED, .local_rank = local_rank, .state = f->state, .text = f->where});
}

static void on_facts(void *ctx) {
  report(ctx, (struct supervisor_event){.kind = SUP_PROBE_FACTS});
}

static void on_held(uv_timer_t *timer) {
  struct hang_watch *h = timer->data;
  report(h, (struct supervisor_event){.kind = SUP_PROBE_DONE});
}

static void on_done(void *ctx) {
  struct hang_watch *h = ctx;
  uint64_t now_ms = boot_ms();
  if (h->hold_ms <= now_ms) {
    on_held(&h->timer);
    return;
  }
  loop_timer_in(&h->timer, on_held, h->hold_ms - now_ms);
}

/* The local ranks that can be looked at, the suspect first. */
static size_t list_targets(const struct hang_watch *h, uint32_t out[PROBE_TARGETS_MAX]) {
  size_t n = 0;
  for (int64_t k = -1; k < (int64_t)h->o.count && n < PROBE_TARGETS_MAX; k++) {
    int64_t i = k < 0 ? h->suspect : k;
    if (i < 0 || i >= (int64_t)h->o.count || (k >= 0 && i == h->suspect) || h->v[i].exited || h->v[i].pid <= 0)
      continue;
    out[n++] = (uint32_t)i;
  }
  return n;
}

static void on_evidence(void *ctx, const struct evidence_answer *a) {
  struct hang_watch *h = ctx;
  struct collective v[COLLECTIVES_MAX];
  memcpy(v, a->flights.v, sizeof v);
  if (a->has_ras) h->hold_ms = h->begun_ms + EVIDENCE_MS;
  if (a->any)
    report(h, (struct supervisor_event){.kind = SUP_EVIDENCE,
                                        .evidence = {.v = v, .n = a->flights.n, .awaited = a->awaited},
                                        .text = a->text,
                                        .ras = a->ras,
                                        .silent = a->silent});
  if (!h->v) return;
  for (uint32_t i = h->o.count; i-- > 0;)
    if (local_set_has(&a->awaited, i)) h->suspect = i; /* its stack is the one that is wanted */
  struct probe_target targets[PROBE_TARGETS_MAX];
  char *files[PROBE_TARGETS_MAX] = {NULL};
  uint32_t ranks[PROBE_TARGETS_MAX];
  size_t n = list_targets(h, ranks);
  for (size_t i = 0; i < n; i++) {
    if (h->o.options->output.log_dir && output_has_files(&h->o.options->output))
      files[i] = log_dir_attempt_file(h->o.logs, h->round, ranks[i], "hang.txt");
    targets[i] = (struct probe_target){
        .local_rank = ranks[i], .rank = h->rank_base + ranks[i], .pid = h->v[ranks[i]].pid, .file = files[i]};
  }
  uint64_t used_ms = boot_ms() - h->begun_ms;
  probe_begin(h->probe, targets, n, h->level, h->stacks, used_ms < PROBE_MS ? PROBE_MS - (uint32_t)used_ms : 1);
  for (size_t i = 0; i < n; i++) free(files[i]);
}

void hang_watch_probe(struct hang_watch *h, const struct worker *v, int64_t suspect, enum log_level level,
                      bool stacks) {
  probe_end(h->probe);
  uv_timer_stop(&h->timer);
  h->v = v;
  h->suspect = suspect;
  h->level = level;
  h->stacks = stacks && h->o.options->hang_stacks == HANG_STACKS_AUTO;
  h->begun_ms = boot_ms();
  h->hold_ms = 0;
  h->question.n = (uint32_t)list_targets(h, h->question.local_ranks);
  evidence_ask(&h->collector, &h->question);
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

void hang_watch_suspend(struct hang_watch *h, bool on) {
  h->suspended = on;
  h->held |= on;
}

void hang_watch_end(struct hang_watch *h) {
  h->v = NULL;
  evidence_drop(&h->collector);
  uv_timer_stop(&h->timer);
  probe_end(h->probe);
}

void hang_watch_begin(struct hang_watch *h, const struct start *start) {
  hang_watch_end(h);
  h->round = (uint32_t)start->round;
  h->rank_base = start->rank_base;
  h->question.node_rank = start->node_rank;
  h->question.rank_base = start->rank_base;
  h->question.world_size = start->world_size;
  h->question.store_port = (uint16_t)start->store_port;
  snprintf(h->question.store_addr, sizeof h->question.store_addr, "%s", start->head_addr);
  if (h->files) hang_files_begin(h->files, h->rank_base);
}

const char *hang_watch_ras_addr(const struct hang_watch *h) {
  return h->ras.addr[0] ? h->ras.addr : NULL;
}

struct hang_watch *hang_watch_create(const struct round_options *o, struct relay *relay) {
  static const struct probe_callbacks callbacks = {on_fact, on_facts, on_done};
  struct hang_watch *h = xcalloc(1, sizeof(*h));
  h->o = *o;
  h->relay = relay;
  h->probe = probe_create(o->loop, &callbacks, h);
  h->collector = (struct evidence_collector){.loop = o->loop, .fn = on_evidence, .ctx = h};
  uv_timer_init(o->loop, &h->timer);
  h->timer.data = h;
  /* The user's address counts, if there is one. */
  const char *given = agent_options_variable(o->base_env, "NCCL_RAS_ADDR");
  if (given) given += strlen("NCCL_RAS_ADDR=");
  h->ras = (struct ras_port){.fd = -1};
  if (!given) ras_port_open(&h->ras);
  h->question.ras_port = ras_port_parse(given ? given : h->ras.addr, &h->question.ras_v6);
  if (o->options->hang_watch.kind == HANG_FILE)
    h->files = hang_files_create(o->loop, o->count, o->options->hang_watch.file, on_files, h);
  return h;
}

void hang_watch_destroy(struct hang_watch *h) {
  if (!h) return;
  probe_destroy(h->probe);
  evidence_drop(&h->collector);
  ras_port_close(&h->ras);
  hang_files_destroy(h->files);
  uv_close((uv_handle_t *)&h->timer, loop_free);
}
