/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_EVENTS_TURNS_H
#define COMMON_EVENTS_TURNS_H

/* When the command of --on-event runs for which event. A job that fails every second must not send a mail every second,
 * and must not keep the events of others from their mail. So each owner has a queue and so many runs in a minute, and the
 * owners take turns. One of the runs at once is kept for the owner "", which is root, the daemon's user, or the only user
 * there is; so are a place among the owners and a queue beyond those of all. When all queues together are full, the
 * longest gives way.
 *
 * The last events of a job are urgent: they wait for no minute, and take the place of others. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  TURNS_AT_ONCE = 4,
  TURNS_OF_USER_AT_ONCE = 2,
  TURNS_PER_MINUTE = 30, /* of one owner */
  TURNS_QUEUE = 64,      /* of one owner */
  TURNS_QUEUE_ALL = 1024,
  TURNS_OWNERS = 1024, /* that have events waiting or had runs in the last minute */
  TURNS_WARN_MS = 60000,
};

struct turn_owner;
struct turn {
  struct turn *next;
  struct turn_owner *of;
  bool urgent;
  char *name, *line; /* owned */
};

struct turns {
  struct turn_owner *owners; /* the next to be served first */
  size_t n_owners, n, running, users_running;
  size_t dropped; /* ever */
};

void turns_init(struct turns *t);
void turns_finish(struct turns *t); /* no turn is out */
/* Copies the texts. owner: "" or the name of an account. False: an event was dropped, this one or another. */
bool turns_add(struct turns *t, uint64_t now_ms, const char *owner, const char *name, const char *line, bool urgent);
/* After a drop: how many events of *owner were dropped since the last call that said so. 0: nothing is to be said, since it
 * was said less than TURNS_WARN_MS ago. *owner is valid until the next call. */
size_t turns_complain(struct turns *t, uint64_t now_ms, const char **owner);
/* The next that may run now: the caller runs it, and gives it back to turns_done. NULL: none. */
struct turn *turns_next(struct turns *t, uint64_t now_ms);
void turns_done(struct turns *t, struct turn *turn);
/* When turns_next is worth a call again, if nothing else happens; UINT64_MAX: it is not. */
uint64_t turns_deadline(const struct turns *t);
/* Drops all queues, and counts them. */
void turns_drop_all(struct turns *t);

#endif
