/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_GOODPUT_SLOW_RANKS_H
#define DAEMON_GOODPUT_SLOW_RANKS_H

/* Which ranks the others wait for. Pure: it knows no job, only sums and times.
 *
 * All ranks of a communicator run the same collectives and leave each at about the same time. So the one that enters
 * last is in them for the shortest time, and the others are in them longer by what it costs. A rank whose wire is slow
 * delays all alike, and is seen by its sends: they take longer than those of the others.
 *
 * Intervals. Reports come at any time, so sums are compared at the same number of collectives, by interpolation: a pause
 * of seconds falls into the same interval for all. A span has SLOW_INTERVALS of them. A rank is slow if it costs
 * SLOW_ON_PERMILLE of the time or more in ten of the twelve. So a checkpoint by one rank, an evaluation, a
 * garbage collection or a hiccup of a data loader is nothing. It stays slow until it costs half of that in few of them.
 *
 * Groups. A rank is compared within its communicators alone. What cannot be told is not said:
 *   - if more than a quarter of a communicator is slow, its ranks have different work, unless all of them are on one node;
 *   - if most communicators of a size have a slow rank in the same place, that is how the job is made, as the first stage
 *     of a pipeline is; unless all of them are on one node;
 *   - a rank that waits for a slow one elsewhere is late because of that one;
 *   - of fewer than four ranks, only the whole job can tell; and not even that within two spans of sends and receives in
 *     pairs, which a pipeline has. */

#include "proto/msg.h"

enum {
  SLOW_INTERVALS = 12,
  SLOW_MANY = 10, /* of them */
  SLOW_FEW = 3,
  SLOW_ON_PERMILLE = 20,
  SLOW_OFF_PERMILLE = 10,
  SLOW_WIRE_PERCENT = 10,     /* a send takes longer by so much at least */
  SLOW_GROUPS_PER_RANK = 8,   /* communicators that are kept */
  SLOW_LEAST_COLLECTIVES = 8, /* of an interval */
  SLOW_FOUND_MAX = 64,        /* ranks that are named at a time */
};

enum slow_by { SLOW_BY_WORK, SLOW_BY_WIRE, SLOW_BY_COUNT };

struct slow_rank {
  int64_t rank, node;
  enum slow_by by;
  int permille;      /* of the time: what it costs the others */
  uint64_t since_ms; /* when it was found */
};

struct slow_ranks;
struct slow_ranks *slow_ranks_create(uint64_t span_ms, int64_t world_size, uint64_t seed);
void slow_ranks_destroy(struct slow_ranks *s); /* NULL is fine */
/* What a rank of the job reports of one communicator. True: a new judgement is there. */
bool slow_ranks_note(struct slow_ranks *s, int64_t rank, int64_t node, const struct rank_pace *sums, uint64_t now_ms);
/* By rank; valid until the next sample. */
const struct slow_rank *slow_ranks_found(const struct slow_ranks *s, size_t *n);
const struct slow_rank *slow_ranks_find(const struct slow_ranks *s, int64_t rank); /* NULL: it is not slow */
/* All ranks of the node that have reported anything are slow, and there are several. */
bool slow_ranks_whole_node(const struct slow_ranks *s, int64_t node);

#endif
