/* Two lives of a job, two daemons, and what is left of a side that lost. */

#include "tests/sim/stories.h"

#include <signal.h>
#include <stddef.h>

static void cut(struct sim *s, int from, int to) {
  for (int i = from; i <= to; i++) link_cut(s, i, true, true);
}

static void heal(struct sim *s, int from, int to) {
  for (int i = from; i <= to; i++) link_heal(s, i);
}

/* Three lives of a daemon without a state file. The first knows n1 to n3, the second n4 and n5 only, which open a newer incarnation;
 * the third recovers the older one, seals a round of it, loses it to the newer one, which ends. Then n3 comes, which has
 * heard of the older one alone, and not of its latest round. */
static void older_life_comes_again(struct sim *s) {
  s->normal = story_run(20000);
  story_nodes(s, 3, 1);
  node_add(s, 1);
  node_add(s, 1);
  node_add(s, 1);
  node_add(s, 1);
  story_expect(s, "rank 1 runs", 5000);
  sim_for(s, 500);
  cut(s, 0, 2);
  daemon_kill(s);
  daemon_start(s);
  agent_start(s, 3);
  agent_start(s, 4);
  story_expect(s, "n5: rank 1 runs", 5000);
  sim_for(s, 500);
  cut(s, 3, 4);
  daemon_kill(s);
  agent_kill(s, agent_of(s, 1));
  daemon_start(s);
  heal(s, 0, 0);
  agent_start(s, 5);
  story_expect(s, "round 3", 20000);
  sim_for(s, 1000);
  heal(s, 3, 4);
  story_expect(s, "END", 40000);
  sim_for(s, 1000);
  heal(s, 2, 2);
  agent_start(s, 6);
  story_over(s, 90000);
}

const struct story stories_partition[] = {
    {"older-life-comes-again", NULL, older_life_comes_again},
    {NULL, NULL, NULL},
};
