/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_EVENTS_TURNS_H
#define COMMON_EVENTS_TURNS_H

/* When the command of --on-event runs for which event: so many at once, so many in a minute, and a bounded queue. A job
 * that fails every second must not send a mail every second. The last events of a job are urgent: they wait for no
 * minute, and take the place of others. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  TURNS_AT_ONCE = 4,
  TURNS_PER_MINUTE = 30,
  TURNS_QUEUE = 64,
};

struct turn {
  struct turn *next;
  bool urgent;
  char *name, *line; /* owned */
};

struct turns {
  struct turn *first, **last;
  size_t n, running;
  uint64_t begun_ms[TURNS_PER_MINUTE]; /* a ring of the last ones that were not urgent */
  size_t n_begun;                      /* ever */
  size_t dropped;
};

void turns_init(struct turns *t);
void turns_finish(struct turns *t);
void turn_free(struct turn *turn);
/* Copies the texts. False: it was dropped, and counted. */
bool turns_add(struct turns *t, const char *name, const char *line, bool urgent);
/* The next that may run now: the caller owns it, runs it, and calls turns_done. NULL: none. */
struct turn *turns_next(struct turns *t, uint64_t now_ms);
void turns_done(struct turns *t);
/* When turns_next is worth a call again, if nothing else happens; UINT64_MAX: it is not. */
uint64_t turns_deadline(const struct turns *t);
/* Drops the whole queue, and counts it. */
void turns_drop_all(struct turns *t);

#endif
