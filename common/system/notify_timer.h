/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_NOTIFY_TIMER_H
#define COMMON_SYSTEM_NOTIFY_TIMER_H

/* Calls notify_beat from a libuv loop, for the daemon and the agent. */

#include <uv.h>
#include "common/buf.h"
#include "common/system/notify.h"

struct notify_timer {
  uv_timer_t timer;
  struct notify *notify;
  /* Appends one line about what the program does; *busy: it starts or stops, which may take longer than the manager
   * allows. */
  void (*get_status)(void *ctx, struct buf *out, bool *busy);
  void *ctx;
};

/* Without a manager nothing is started. The timer does not keep the loop alive. `t` must outlive the loop. */
void notify_timer_start(struct notify_timer *t, uv_loop_t *loop, struct notify *n,
                        void (*get_status)(void *ctx, struct buf *out, bool *busy), void *ctx);
void notify_timer_ready(struct notify_timer *t);                        /* READY=1, with the status of now */
void notify_timer_stopping(struct notify_timer *t, const char *status); /* STOPPING=1 */
void notify_timer_close(struct notify_timer *t);                        /* the loop runs once more afterwards */

#endif
