/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_OWN_NAME_H
#define DAEMON_CTL_OWN_NAME_H

/* The name of the user who runs rdzvctl, and the uid of the one whom --user names.
 *
 * A daemon knows the uid of its peer, and people know names. The user database may be on another machine, and a daemon
 * must not wait for it. So rdzvctl asks, in the loop's thread pool, and only for a second. */

#include <stdbool.h>
#include <uv.h>
#include "common/err.h"
#include "proto/msg.h"

struct own_name {
  char name[USER_NAME_MAX + 1]; /* "": unknown */
  int64_t other_uid;            /* of `other`; -1: there is no such user, or none is asked for */
  bool late;                    /* no answer came in time */

  /* Private. */
  uv_work_t work;
  uv_timer_t timer;
  const char *other;
  char found[USER_NAME_MAX + 1]; /* of the thread */
  int64_t found_other;
  bool done;
  void (*on_done)(void *owner);
  void *owner;
};

/* Calls on_done once, in the loop. other: another user's name, borrowed; NULL: none. The pool runs. n must live as long as the process. -errno: it is not called. */
int own_name_find(struct own_name *n, const char *other, uv_loop_t *loop, void (*on_done)(void *owner), void *owner,
                  struct err *e);

#endif
