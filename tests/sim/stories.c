/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by all stories. */

#include "tests/sim/stories.h"

#include <stddef.h>
#include <stdio.h>

enum { STORY_MS = 24 * 3600 * 1000 /* no story takes longer */ };

const struct story *const all_stories[] = {stories_join,
                                           stories_fault,
                                           stories_end,
                                           stories_daemon,
                                           stories_return,
                                           stories_lessons,
                                           stories_elastic,
                                           stories_pairs,
                                           stories_partition,
                                           stories_hang,
                                           stories_prepare,
                                           stories_control,
                                           stories_repeat,
                                           stories_stay,
                                           stories_users,
                                           stories_takeover,
                                           stories_goodput,
                                           stories_health,
                                           NULL};

struct sim *story_play(const struct story *st, bool verbose) {
  struct sim_config c;
  sim_config_init(&c);
  c.verbose = verbose;
  if (st->configure) st->configure(&c);
  struct sim *s = sim_create(&c);
  st->tell(s);
  if (!s->n_nodes) story_nodes(s, 2, 1); /* it has only said how workers behave */
  story_over(s, STORY_MS);
  return s;
}

void story_one_to_three(struct sim_config *c) {
  c->settings.min_nodes = 1;
  c->settings.max_nodes = 3;
  c->settings.last_call_ms = 100;
}

void story_two_to_three(struct sim_config *c) {
  c->settings.min_nodes = 2;
  c->settings.max_nodes = 3;
  c->settings.last_call_ms = 100;
}

void story_nodes(struct sim *s, int nodes, uint32_t workers) {
  daemon_start(s);
  for (int i = 0; i < nodes; i++) node_add(s, workers);
  for (int i = 0; i < nodes; i++) agent_start(s, i);
}

void story_expect(struct sim *s, const char *part, uint64_t limit_ms) {
  if (!sim_until_line(s, part, s->now + limit_ms)) sim_trace(s, "MISSING: %s", part);
}

void story_running(struct sim *s, int nodes, uint32_t workers, uint64_t ms) {
  char last[32];
  snprintf(last, sizeof last, "rank %d runs", nodes * (int)workers - 1);
  story_nodes(s, nodes, workers);
  story_expect(s, last, 5000);
  sim_for(s, ms);
}

void story_daemon_away(struct sim *s, uint64_t ms) {
  daemon_kill(s);
  sim_for(s, ms);
  daemon_start(s);
}

void story_over(struct sim *s, uint64_t limit_ms) {
  if (!sim_until_over(s, s->now + limit_ms)) sim_trace(s, "MISSING: the end");
  sim_for(s, 20); /* and the last words have arrived */
}

struct behaviour story_run(uint32_t run_ms) {
  return (struct behaviour){.run_ms = run_ms, .end = END_EXIT, .term_code = -1};
}

struct behaviour story_exit(uint32_t run_ms, int code) {
  return (struct behaviour){.run_ms = run_ms, .end = END_EXIT, .code = code, .term_code = -1};
}

struct behaviour story_signal(uint32_t run_ms, int signo) {
  return (struct behaviour){.run_ms = run_ms, .end = END_SIGNAL, .code = signo, .term_code = -1};
}

struct behaviour story_forever(void) {
  return (struct behaviour){.end = END_NEVER, .term_code = -1};
}

struct behaviour story_staying(struct behaviour b, uint32_t park_ms) {
  b.rejoins = true;
  b.park_ms = park_ms;
  return b;
}

struct behaviour story_saving(struct behaviour b, uint32_t ms) {
  b.checkpoints = true;
  b.save_ms = ms;
  return b;
}
