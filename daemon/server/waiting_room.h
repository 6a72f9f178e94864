/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_WAITING_ROOM_H
#define DAEMON_SERVER_WAITING_ROOM_H

/* A waiting room: connections that have not said yet who they are, or requests that wait, by their age and by their
 * source. It names the one that must give way, and the one whose turn it is. Pure. A call costs the same for one
 * newcomer as for a hundred thousand.
 *
 * The owner embeds struct newcomer in its connection or request, and closes or serves what this module names. A source
 * is a text: a numeric address, a network, or a user. */

#include <stddef.h>
#include <stdint.h>
#include "common/map.h"

struct newcomer_source;

struct newcomer {
  struct newcomer *older, *newer;               /* of all */
  struct newcomer *source_older, *source_newer; /* of its source */
  struct newcomer_source *source;               /* NULL: it is in no waiting room */
  uint64_t since_ms;
};

struct waiting_room {
  struct map sources;
  struct newcomer *oldest, *newest;
  struct newcomer_source *turn;     /* whose turn it is, of a ring of all sources */
  struct newcomer_source **by_size; /* [n]: the sources that have n newcomers, the first to have them first */
  size_t sizes;                     /* entries of by_size */
  size_t largest;                   /* the most that a source has */
  size_t count;
};

void room_init(struct waiting_room *a, uint64_t seed);
void room_finish(struct waiting_room *a); /* everyone has left */

/* now_ms never decreases from call to call, so the oldest has the first deadline. */
void room_enter(struct waiting_room *a, struct newcomer *one, const char *source, uint64_t now_ms);
void room_leave(struct waiting_room *a, struct newcomer *one); /* in no waiting room: does nothing */
size_t room_of(const struct waiting_room *a, const char *source);

/* The one that gives way to a newcomer of the same source; NULL: there is none. */
struct newcomer *room_oldest_of(const struct waiting_room *a, const char *source);
/* The one that gives way when there is no room for anybody: the oldest of a source that has the most. So one crowd does
 * not push out others. If each source has one, it is the oldest of all. NULL: there is none. */
struct newcomer *room_crowded_out(const struct waiting_room *a);
/* The one to serve now: the oldest of the source whose turn it is. The turn passes on. A source that comes back is the
 * last of its round, so none is served twice while another waits. NULL: there is none. */
struct newcomer *room_next(struct waiting_room *a);

#endif
