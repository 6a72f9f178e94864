/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_OWN_NAME_H
#define DAEMON_CTL_OWN_NAME_H

/* The name of the user who runs rdzvctl.
 *
 * A daemon knows the uid of its peer, and people know names. The user database may be on another machine, and a daemon
 * must not wait for it. So rdzvctl asks, in the loop's thread pool, and only for a second. */

#include <stdbool.h>
#include <uv.h>
#include "common/err.h"
#include "proto/msg.h"

struct own_name {
  char name[USER_NAME_MAX + 1]; /* "": unknown */

  /* Private. */
  uv_work_t work;
  uv_timer_t timer;
  char found[USER_NAME_MAX + 1]; /* of the thread */
  bool done;
  void (*on_done)(void *owner);
  void *owner;
};

/* Calls on_done once, in the loop. The pool runs. n must live as long as the process. -errno: it is not called. */
int own_name_find(struct own_name *n, uv_loop_t *loop, void (*on_done)(void *owner), void *owner, struct err *e);

#endif
