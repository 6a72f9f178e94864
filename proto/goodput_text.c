/* SPDX-License-Identifier: Apache-2.0 */
/* What a job's time went to, as one line and as JSON.
 *
 * The line answers "how much of my reservation was useful, and what took the rest?". It first has the useful part, then
 * what the rest was lost to, the largest first. A restart costs more than its pause: the work that was done again
 * belongs to it too. A part that is below 1 % of the job and below a minute would only distract, and is left out.
 *
 * A job whose workers report no steps may have done all its work twice. Nobody knows, so its line says "ran" instead of
 * "useful", and why. */

#include "proto/msg.h"

#include <inttypes.h>
#include <string.h>
#include "common/json.h"

enum {
  SHOWN_FROM_MS = 10000,   /* a younger job has no line */
  PART_FROM_MS = 60000,    /* a part of a job is named from here on, */
  PART_FROM_PER_CENT = 1,  /* or if it is that large, */
  PART_LEAST_MS = 1000,    /* and not below this */
  SAME_WAIT_PER_CENT = 90, /* the longest wait is about all of the waiting */
};

const char *bucket_name(enum bucket b) {
#define X(name, word) #word,
  static const char *const names[BUCKET_COUNT] = {BUCKET_LIST(X)};
#undef X
  return b < BUCKET_COUNT ? names[b] : "?";
}

int64_t *goodput_bucket(struct goodput *g, enum bucket b) {
  switch (b) {
#define X(name, word)                                                                                                  \
  case BUCKET_##name: return &g->word##_ms;
    BUCKET_LIST(X)
#undef X
  case BUCKET_COUNT: break;
  }
  return &g->waiting_ms;
}

int64_t goodput_ms(const struct goodput *g, enum bucket b) {
  struct goodput copy = *g;
  return *goodput_bucket(&copy, b);
}

int64_t goodput_total_ms(const struct goodput *g) {
#define X(name, word) +g->word##_ms
  return 0 BUCKET_LIST(X);
#undef X
}

int64_t goodput_restarts_ms(const struct goodput *g) {
  return g->forming_ms + g->starting_ms - g->startup_ms + g->stopping_ms + g->lost_ms - g->stalled_ms;
}

double goodput_useful(const struct goodput *g) {
  int64_t total_ms = goodput_total_ms(g);
  return total_ms ? (double)g->productive_ms / (double)total_ms : 0;
}

/* Rounded to the nearest second or minute. */
static void put_duration(struct buf *out, int64_t ms) {
  buf_put_duration(out, (uint64_t)(ms + (ms >= 119500 && ms < 7199500 ? 30500 : 500)));
}

struct part {
  int64_t ms;
  const char *name;
};

static bool is_worth_a_word(int64_t ms, int64_t total_ms) {
  return ms >= PART_LEAST_MS && (ms >= PART_FROM_MS || ms * 100 >= total_ms * PART_FROM_PER_CENT);
}

void goodput_sentence(const struct goodput *g, struct buf *out) {
  int64_t total_ms = goodput_total_ms(g), lost_ms = g->lost_ms - g->stalled_ms;
  if (total_ms < SHOWN_FROM_MS || !g->rounds) return;
  buf_puts(out, g->steps ? "useful " : "ran ");
  /* Rounded down: only a job that lost nothing has 100 %. */
  double tenths = (double)(int64_t)(goodput_useful(g) * 1000 + 1e-9);
  if (tenths <= 990 || tenths >= 1000)
    buf_printf(out, "%" PRId64 " %%", (int64_t)tenths / 10);
  else
    buf_printf(out, "%.1f %%", tenths / 10);
  buf_puts(out, " of ");
  put_duration(out, total_ms);

  struct buf waiting = BUF_INIT, restarts = BUF_INIT;
  buf_puts(&waiting, "waiting for ");
  if (!g->waited_for[0]) buf_puts(&waiting, "nodes");
  buf_put_escaped(&waiting, g->waited_for, strlen(g->waited_for), HOSTS_SHOWN_MAX);
  if (g->waited_for[0] && g->waited_ms * 100 < g->waiting_ms * SAME_WAIT_PER_CENT) buf_puts(&waiting, " and others");
  buf_printf(&restarts, "%" PRId64 " restart%s", g->rounds - 1, g->rounds == 2 ? "" : "s");
  if (g->rounds_in_place) buf_printf(&restarts, " (%" PRId64 " in place)", g->rounds_in_place);
  /* With a restart, the stop, the new start and the work that is done again are its cost. Without one they stand
   * alone. */
  bool restarted = g->rounds > 1;
  const struct part all[] = {
      {g->waiting_ms, buf_text(&waiting)},
      {g->startup_ms, "startup"},
      {g->stalled_ms, "no progress"},
      {restarted ? goodput_restarts_ms(g) : 0, buf_text(&restarts)},
      {restarted ? 0 : lost_ms, "unsaved work"},
      {restarted ? 0 : g->stopping_ms, "stopping"},
      {g->checkpoint_ms, "checkpoints"},
  };
  struct part parts[sizeof all / sizeof *all]; /* the largest first */
  size_t n = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    if (!is_worth_a_word(all[i].ms, total_ms)) continue;
    size_t at = n++;
    for (; at > 0 && parts[at - 1].ms < all[i].ms; at--) parts[at] = parts[at - 1];
    parts[at] = all[i];
  }
  for (size_t i = 0; i < n; i++) {
    buf_printf(out, "%s%s ", i ? ", " : "; lost: ", parts[i].name);
    put_duration(out, parts[i].ms);
  }
  buf_finish(&waiting);
  buf_finish(&restarts);
  if (!g->steps && restarted) buf_puts(out, "; work done again is not known, since no worker reports steps");
}

/* JSON. ------------------------------------------------------------------------------------------------------------ */

static json_t *seconds(int64_t ms) {
  return json_real((double)ms / 1000);
}

void *goodput_seconds_json(const struct goodput *g) {
  json_t *v = json_object();
  json_object_set_new(v, "useful", json_real((double)(int64_t)(goodput_useful(g) * 10000 + 1e-9) / 10000));
  json_object_set_new(v, "total", seconds(goodput_total_ms(g)));
  for (int b = 0; b < BUCKET_COUNT; b++)
    json_object_set_new(v, bucket_name((enum bucket)b), seconds(goodput_ms(g, (enum bucket)b)));
  json_object_set_new(v, "startup", seconds(g->startup_ms));
  json_object_set_new(v, "stalled", seconds(g->stalled_ms));
  json_object_set_new(v, "rounds", json_integer(g->rounds));
  json_object_set_new(v, "rounds_in_place", json_integer(g->rounds_in_place));
  json_object_set_new(v, "in_place", seconds(g->in_place_ms));
  json_object_set_new(v, "longest_wait", seconds(g->waited_ms));
  json_object_set_new(v, "waited_for", json_text(g->waited_for));
  json_object_set_new(v, "steps", json_boolean(g->steps));
  return v;
}
