/* SPDX-License-Identifier: Apache-2.0 */
/* Nodes that say what they are made of, and one that is unlike the others. */

#include "tests/sim/stories.h"

#include <string.h>

/* Each node says so whenever its daemon has welcomed it, as an agent does, until the story says something else. */
static struct {
  const char *name, *at;
  int64_t usual, odd;
  int node; /* whose is odd; -1: nobody's */
} said;

static void say_of(struct sim *s, uint64_t node) {
  struct fact facts[] = {{.name = "gpus", .at = "", .value = 8, .text = ""},
                         {.name = "kernel", .at = "", .text = "6.8.0"},
                         {.name = said.name, .at = said.at, .text = ""}};
  struct msg m;
  msg_init(&m, MSG_FACTS);
  facts[2].value = (int)node == said.node ? said.odd : said.usual;
  m.facts.facts = facts;
  m.facts.n_facts = sizeof facts / sizeof *facts;
  agent_say(s, agent_of(s, (int)node), &m);
}

static void say_all(struct sim *s, const char *name, const char *at, int64_t usual, int64_t odd, int node) {
  said.name = name;
  said.at = at;
  said.usual = usual;
  said.odd = odd;
  said.node = node;
  for (int i = 0; i < s->n_nodes; i++) say_of(s, (uint64_t)i);
}

static void three_to_four(struct sim_config *c) {
  c->settings.min_nodes = 3;
  c->settings.max_nodes = 4;
  c->settings.last_call_ms = 100;
}

static void four(struct sim_config *c) {
  c->settings.min_nodes = c->settings.max_nodes = 4;
}

/* Its GPU must be reset. The others go on without it, and it comes back when it is well. */
static void health_spare(struct sim *s) {
  s->normal = story_saving(story_run(60000), 200);
  story_running(s, 4, 1, 1000);
  say_all(s, "recovery_action", "gpu5", 0, 2, 2);
  story_expect(s, "runs, round 2", 10000);
  sim_for(s, 1000);
  say_all(s, "recovery_action", "gpu5", 0, 2, -1);
  story_expect(s, "runs, round 3", 60000);
}

static void health_needed(struct sim *s) {
  s->normal = story_run(5000);
  story_running(s, 4, 1, 1000);
  say_all(s, "recovery_action", "gpu5", 0, 2, 2);
}

/* Half of its PCIe lanes. The daemon that comes back learns it again, and says it to nobody again. */
static void health_daemon_dies(struct sim *s) {
  s->normal = story_run(120000);
  story_running(s, 4, 1, 1000);
  say_all(s, "pcie_width", "gpu0", 16, 8, 1);
  sim_for(s, 5000);
  story_daemon_away(s, 200);
  sim_for(s, 2000);
  for (int i = 0; i < s->n_nodes; i++) say_of(s, (uint64_t)i);
}

const struct story stories_health[] = {
    {"health-spare", three_to_four, health_spare},
    {"health-needed", four, health_needed},
    {"health-daemon-dies", four, health_daemon_dies},
    {NULL, NULL, NULL},
};
