/* Restarts given back, and rounds that grow. */

#include "tests/sim/stories.h"

#include <stddef.h>

/* Restarts given back. ------------------------------------------------------------------------------------------- */

static void one_restart(struct sim_config *c) {
  c->settings.max_restarts = 1;
}

static void one_restart_with_file(struct sim_config *c) {
  c->settings.max_restarts = 1;
  c->state_dir = true;
}

static struct behaviour telling(struct behaviour b) {
  b.progress_ms = 300;
  return b;
}

/* Each round comes further than the last, until one does not. */
static void refill_by_progress(struct sim *s) {
  s->normal = telling(story_run(60000));
  rule_add(s, 1, 0, 1, telling(story_exit(1000, 3)));
  rule_add(s, 1, 0, 2, telling(story_exit(2000, 3)));
  rule_add(s, 1, 0, 3, telling(story_exit(1500, 3)));
  story_nodes(s, 2, 1);
  story_over(s, 60000);
}

static void refill_by_time(struct sim *s) {
  s->normal = story_run(1000);
  rule_add(s, -1, 0, 1, story_forever());
  rule_add(s, 1, 0, 1, story_exit(1000, 3));
  rule_add(s, -1, 0, 2, story_forever());
  rule_add(s, 1, 0, 2, story_exit(610000, 3));
  story_nodes(s, 2, 1);
  story_over(s, 700000);
}

/* The daemon that comes back has not forgotten at which step it failed. */
static void refill_is_not_invented(struct sim *s) {
  s->normal = telling(story_run(60000));
  rule_add(s, 1, 0, 1, telling(story_exit(2000, 3)));
  rule_add(s, 1, 0, 2, telling(story_exit(1800, 3)));
  story_nodes(s, 2, 1);
  story_expect(s, "round 2", 10000);
  sim_for(s, 1000);
  daemon_kill(s);
  sim_for(s, 200);
  daemon_start(s);
  story_over(s, 60000);
}

const struct story stories_elastic[] = {
    {"refill-by-progress", one_restart, refill_by_progress},
    {"refill-by-time", one_restart, refill_by_time},
    {"refill-is-not-invented", one_restart, refill_is_not_invented},
    {"refill-is-not-invented-file", one_restart_with_file, refill_is_not_invented},
    {NULL, NULL, NULL},
};
