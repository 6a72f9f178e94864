/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_SDK_H
#define TESTS_RIG_SDK_H

/* librdzv and the agent's end of its socket, in one process. Workers are threads that play a part; the main thread
 * pumps the server and plays the agent and the rest of the world. */

#include <stdatomic.h>
#include "agent/sdk/server.h"

enum { ROUND = 4, MAX_LOCAL = 4, PATIENCE_MS = 20000 };

/* The agent of one test, and what it has heard. */
struct sdk_rig {
  struct sdk_server *s;
  uint32_t world, n_local;
  int hellos, dones, ups, troubles;
  struct sdk_progress progress[MAX_LOCAL];
  struct sdk_pace pace[MAX_LOCAL];
  int progresses;
  int can, cannot; /* SDK_EVENT_CAN, on and off */
  int can_rejoin, cannot_rejoin, parked;
  char reason[256]; /* of the last that parked */
  int checkpointed[MAX_LOCAL];
  uint64_t checkpoint_step[MAX_LOCAL];
  int saves, saving, not_saving; /* SDK_EVENT_SAVED; SDK_EVENT_SAVING, on and off */
  uint64_t saved_step[MAX_LOCAL], resumed_step[MAX_LOCAL];
  char trouble[256];
};

/* Opens round 4 with n_local workers, ranks 1.. of `world`, on node 1 of 2, and sets the environment that workers
 * get. */
void sdk_rig_open(struct sdk_rig *d, uint32_t n_local, uint32_t world);
/* The same, with a store at 127.0.0.1, which is head_addr; 0: none. With n_local == world the ranks begin with 0. */
void sdk_rig_open_store(struct sdk_rig *d, uint32_t n_local, uint32_t world, uint16_t store_port);
/* Local rank 0, in the caller's thread, where the agent works on only while somebody pumps. */
struct rdzv *sdk_rig_join(struct sdk_rig *d);
void sdk_rig_close(struct sdk_rig *d);
/* One turn of the agent; waits up to ms for something to do. */
void pump(struct sdk_rig *d, int ms);
/* Turns until all is read that was sent before: a turn reads some records of a connection, and leaves the others. */
void settle(struct sdk_rig *d);

struct player {
  uint32_t local_rank;
  int (*part)(struct rdzv *r); /* returns what the test looks at */
  int result;
  struct rdzv *joined;
  char text[512];
  atomic_bool over;
};

/* Lets n workers play the part while the agent does its work; `then` (may be NULL) is called once in every turn. */
void drive(struct sdk_rig *d, struct player *players, uint32_t n, int (*part)(struct rdzv *),
           void (*then)(struct sdk_rig *));

#endif
