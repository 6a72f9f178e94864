/* SPDX-License-Identifier: Apache-2.0 */
/* A node is lost for longer than its lease, and back: nodes exchange data in pairs before they go on. */

#include "tests/sim/stories.h"

#include <stddef.h>

static void three_of_four(struct sim_config *c) {
  c->settings.min_nodes = 3;
  c->settings.max_nodes = 4;
  c->settings.pair_check = PAIR_CHECK_AUTO;
}

static void all_four(struct sim_config *c) {
  three_of_four(c);
  c->settings.min_nodes = 4;
}

static void six(struct sim_config *c) {
  three_of_four(c);
  c->settings.min_nodes = c->settings.max_nodes = 6;
}

/* n2's wire is cut for a while, in a round that needs it. */
static void lose_and_return(struct sim *s, int nodes) {
  s->normal = story_run(60000);
  story_running(s, nodes, 1, 1000);
  link_cut(s, 1, true, true);
  sim_for(s, 8000);
  link_heal(s, 1);
}

static void bad_host(struct sim *s) {
  lose_and_return(s, 4);
  s->nodes[1].pairs = SIM_PAIRS_BAD;
}

static void give_gpus(struct sim *s) {
  for (int i = 0; i < 4; i++) s->nodes[i].gpus = 8;
}

/* Its InfiniBand is bad, and TCP sees nothing. */
static void bad_fabric(struct sim *s) {
  give_gpus(s);
  lose_and_return(s, 4);
  s->nodes[1].pairs = SIM_PAIRS_BAD_FABRIC;
}

/* n3 is asked to listen and to connect, and can neither over NCCL. */
static void no_nccl(struct sim *s) {
  give_gpus(s);
  s->nodes[2].pairs = SIM_PAIRS_NO_NCCL;
  lose_and_return(s, 4);
}

static void silent_gpus(struct sim *s) {
  give_gpus(s);
  lose_and_return(s, 4);
  s->nodes[2].pairs = SIM_PAIRS_SILENT;
}

static void all_well(struct sim *s) {
  lose_and_return(s, 4);
}

static void silent(struct sim *s) {
  lose_and_return(s, 4);
  s->nodes[2].pairs = SIM_PAIRS_SILENT;
}

/* n1, n3 and n5 are behind one switch, n2, n4 and n6 behind the other, and nothing passes between these. */
static void cable(struct sim *s) {
  lose_and_return(s, 6);
  for (int i = 0; i < 6; i++) s->nodes[i].behind = i % 2;
}

static void lost_meanwhile(struct sim *s) {
  lose_and_return(s, 4);
  s->nodes[2].pairs = SIM_PAIRS_SILENT;
  story_expect(s, "PAIR", 20000);
  sim_for(s, 1000);
  agent_kill(s, agent_of(s, 2));
  sim_for(s, 1000);
  s->nodes[2].pairs = SIM_PAIRS_WELL;
  agent_start(s, 2);
}

static void stopped_meanwhile(struct sim *s) {
  lose_and_return(s, 4);
  s->nodes[2].pairs = SIM_PAIRS_SILENT;
  story_expect(s, "PAIR", 20000);
  daemon_control(s, &(struct control){.verb = "stop", .job = "job", .rank = -1});
}

static void daemon_away(struct sim *s) {
  lose_and_return(s, 4);
  s->nodes[2].pairs = SIM_PAIRS_SILENT;
  story_expect(s, "PAIR", 20000);
  story_daemon_away(s, 2000);
}

const struct story stories_pairs[] = {
    {"pairs-bad-host", all_four, bad_host},
    {"pairs-bad-spare", three_of_four,
     bad_host}, /* the others go on without it; it is checked when the job grows again */
    {"pairs-nccl-bad-fabric", all_four, bad_fabric},
    {"pairs-nccl-missing", all_four, no_nccl},
    {"pairs-nccl-silent", all_four, silent_gpus},
    {"pairs-all-well", all_four, all_well},
    {"pairs-silent", all_four, silent},
    {"pairs-cable", six, cable},
    {"pairs-lost-meanwhile", all_four, lost_meanwhile},
    {"pairs-stopped-meanwhile", all_four, stopped_meanwhile},
    {"pairs-daemon-away", all_four, daemon_away},
    {NULL},
};
