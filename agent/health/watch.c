/* SPDX-License-Identifier: Apache-2.0 */
/* Runs rdzv-devices watch, and passes on what it prints.
 *
 *   WELCOME --HEALTH_BEGIN_MS--> the helper starts --> host, ports, GPUs --> FACTS
 *   WELCOME again --HEALTH_BEGIN_MS--> FACTS
 *   later looks, XIDs ----------------------------> FACTS if something has changed
 *
 * A look that does not end by its deadline ends the helper. What it has printed by then counts, since the part that
 * hangs is mostly the last one. Another helper starts HEALTH_AGAIN_MS later. The one timer is that of the next of these
 * steps. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "agent/devices/run_devices_helper.h"
#include "agent/health/health.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/helper.h"
#include "common/system/log.h"
#include "common/system/loop.h"

enum { LATE_MS = 100 };

struct health {
  struct health_options o;
  char *job; /* NULL: one look, of --check-only or --health strict */
  uv_timer_t timer;
  struct helper *helper;
  struct health_facts now;    /* of the look that goes on */
  struct health_facts latest; /* of the last look that ended; the text of one that did not */
  enum facts_part due;        /* of the look that goes on */
  bool known;                 /* latest is filled */
  bool late;                  /* the deadline has passed, and what is in the pipe is still read */
  bool welcomed, told;        /* told: this daemon has the latest */
  struct health_memory memory;
};

/* FACTS. ----------------------------------------------------------------------------------------------------------- */

static void send_facts(struct health *h) {
  struct msg m;
  if (!h->welcomed || !h->known || h->told) return;
  msg_init(&m, MSG_FACTS);
  m.facts = (struct facts){
      .wall_ms = (int64_t)wall_ms(), .text = h->latest.text, .facts = h->latest.list.v, .n_facts = h->latest.list.n};
  h->told = true;
  h->o.send(h->o.ctx, &m);
}

/* The look is over, for better or worse. */
static void end_look(struct health *h) {
  struct health_facts all = h->now;
  h->now = (struct health_facts){.text = ""};
  h->due = FACTS_HOST;
  const struct device *v = NULL;
  int n = h->o.devices ? h->o.devices(h->o.ctx, &v) : -1;
  health_recall(&h->memory, v, n, &all.list);
  bool same = h->known && facts_equal(&all.list, &h->latest.list) && strcmp(all.text, h->latest.text) == 0;
  if (!same) {
    if (all.text[0] && strcmp(all.text, h->latest.text) != 0)
      log_info("health: %s; checks that need it count as passed", all.text);
    log_debug("health: %zu facts about this host%s%s", all.list.n, all.text[0] ? "; not known: " : "", all.text);
    h->told = false;
  }
  health_facts_finish(&h->latest);
  h->latest = all;
  h->known = true;
  send_facts(h);
}

/* The helper. ------------------------------------------------------------------------------------------------------ */

static void on_timer(uv_timer_t *timer);

static void set_timer(struct health *h, uint64_t ms) {
  loop_timer_in(&h->timer, on_timer, ms);
  if (h->job) uv_unref((uv_handle_t *)&h->timer); /* it ends with the agent */
}

static void stop(struct health *h) {
  devices_helper_destroy(h->helper);
  h->helper = NULL;
  uv_timer_stop(&h->timer);
}

static void give_up(struct health *h, const char *why) {
  stop(h);
  if (!h->now.text[0]) snprintf(h->now.text, sizeof h->now.text, "%s", why);
  log_line(strcmp(why, h->latest.text) == 0 ? LOG_DEBUG : LOG_INFO, "health: %s; checks that need it count as passed",
           why);
  end_look(h);
  if (h->job) set_timer(h, HEALTH_AGAIN_MS);
}

static void on_line(void *ctx, enum helper_stream from, const char *text, size_t len) {
  struct health *h = ctx;
  struct facts_line line;
  struct err e = ERR_INIT;
  char uuid[TEXT_SHOWN];
  h->late = false;
  int rc = facts_parse(text, len, &line, &e);
  if (rc == 0 && line.part == FACTS_PARTS) {
    const struct gpu_xid *x = &line.xid;
    log_line(xid_class_of(x->xid) >= XID_EITHER ? LOG_WARN : LOG_DEBUG, "gpu%d (%s): XID %d (%s)", x->gpu,
             text_shown(uuid, x->uuid, strlen(x->uuid)), (int)x->xid, xid_words(x->xid));
    health_note_xid(&h->memory, x);
  } else if (rc == 0 && line.part == h->due) {
    facts_add(&h->now.list, &line.facts);
    facts_finish(&line.facts);
    if (!h->now.text[0]) memcpy(h->now.text, line.missing, sizeof line.missing);
    if (++h->due < FACTS_PARTS) return;
    end_look(h);
    set_timer(h, HEALTH_LOOK_MS + h->o.deadline_ms); /* the end of the next look */
    if (!h->job) stop(h);
  } else {
    if (rc == 0) facts_finish(&line.facts);
    give_up(h,
            rc ? "rdzv-devices printed a line that is not understood" : "rdzv-devices printed lines in a wrong order");
    log_debug("health: %s", rc ? e.text : "");
  }
}

static void on_helper_end(void *ctx, const struct helper_end *end) {
  struct health *h = ctx;
  struct err e = ERR_INIT;
  helper_explain_end(h->helper, end, &e);
  give_up(h, e.text);
}

static void start_helper(struct health *h) {
  char name[] = "rdzv-devices", watch[] = "watch", once[] = "facts",
       *argv[] = {name, h->job ? watch : once, h->job, NULL};
  struct err e = ERR_INIT;
  const struct helper_options o = {
      .loop = h->o.loop,
      .argv = argv,
      .input = h->job != NULL,
      .output = {{.line_max = FACTS_LINE_MAX, .whole = true}, {.line_max = 0}},
      .on_line = on_line,
      .on_end = on_helper_end,
      .ctx = h,
  };
  h->due = FACTS_HOST;
  h->late = false;
  if (!devices_helper_may_start())
    give_up(h, "the GPU driver still does not answer");
  else if (helper_start(&o, &h->helper, &e))
    give_up(h, e.text);
  else
    set_timer(h, h->o.deadline_ms);
}

static void on_timer(uv_timer_t *timer) {
  static const char *const silent[] = {"this host's facts (a file system such as TMPDIR?) were not found out",
                                       "the RDMA ports gave no answer", "the GPU driver gave no answer"};
  struct health *h = timer->data;
  char why[REASON_MAX + 1];
  if (h->welcomed && h->known && !h->told) {
    send_facts(h);
    set_timer(h, h->helper ? HEALTH_LOOK_MS + h->o.deadline_ms : HEALTH_AGAIN_MS);
    return;
  }
  if (!h->helper) {
    start_helper(h);
    return;
  }
  if (!h->late) { /* this agent itself may have stood still */
    h->late = true;
    set_timer(h, LATE_MS);
    return;
  }
  snprintf(why, sizeof why, "%s within %.3g s", silent[h->due], (double)h->o.deadline_ms / 1000);
  give_up(h, why);
}

/* From the session. ------------------------------------------------------------------------------------------------ */

void health_welcome(struct health *h) {
  if (!h) return;
  h->welcomed = true;
  h->told = false;
  if (!h->helper || h->known) set_timer(h, HEALTH_BEGIN_MS);
}

void health_lost(struct health *h) {
  if (!h || !h->welcomed) return;
  h->welcomed = false;
  if (h->helper && h->known && !h->told) set_timer(h, HEALTH_LOOK_MS + h->o.deadline_ms); /* it was that of WELCOME */
}

void health_begin_round(struct health *h) {
  for (int i = 0; h && i < h->memory.n_gpus; i++) h->memory.gpus[i].xid = 0;
}

void health_look_again(struct health *h) {
  struct buf line = BUF_INIT;
  if (!h || !h->helper) return;
  buf_putc(&line, '\n');
  helper_send(h->helper, &line);
}

int64_t health_xid(const struct health *h, const struct device *d) {
  for (int i = 0; h && d && d->vendor == GPU_NVIDIA && i < h->memory.n_gpus; i++) {
    const struct health_gpu *g = &h->memory.gpus[i];
    bool named = (d->uuid[0] && strcmp(d->uuid, g->uuid) == 0) || (d->pci[0] && strcmp(d->pci, g->pci) == 0);
    if (g->xid && (named || (!d->uuid[0] && !d->pci[0] && d->index == g->number))) return g->xid;
  }
  return 0;
}

struct health *health_create(const struct health_options *o) {
  struct health *h = xcalloc(1, sizeof *h);
  h->o = *o;
  h->job = o->job ? xstrdup(o->job) : NULL;
  uv_timer_init(o->loop, &h->timer);
  h->timer.data = h;
  return h;
}

static void on_closed(uv_handle_t *handle) {
  struct health *h = handle->data;
  health_facts_finish(&h->now);
  health_facts_finish(&h->latest);
  facts_finish(&h->memory.up);
  free(h->job);
  free(h);
}

void health_destroy(struct health *h) {
  if (!h) return;
  devices_helper_destroy(h->helper);
  uv_close((uv_handle_t *)&h->timer, on_closed);
}

void health_look_now(uint32_t deadline_ms, struct health_facts *out) {
  uv_loop_t loop;
  struct err e = ERR_INIT;
  *out = (struct health_facts){.text = ""};
  if (loop_open(&loop, &e)) {
    snprintf(out->text, sizeof out->text, "%.200s", e.text);
    return;
  }
  struct health *h = health_create(&(struct health_options){.loop = &loop, .deadline_ms = deadline_ms});
  start_helper(h);
  while (h->helper) uv_run(&loop, UV_RUN_ONCE);
  *out = h->latest;
  h->latest = (struct health_facts){.text = ""};
  health_destroy(h);
  uv_run(&loop, UV_RUN_DEFAULT);
  uv_loop_close(&loop);
}
