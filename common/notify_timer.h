#ifndef COMMON_NOTIFY_TIMER_H
#define COMMON_NOTIFY_TIMER_H

/* notify_beat from a libuv loop: what the daemon and the agent have in common. */

#include <uv.h>
#include "common/buf.h"
#include "common/notify.h"

struct notify_timer {
  uv_timer_t timer;
  struct notify *notify;
  /* Appends one line that says what is going on; *busy: it starts or stops, which may take longer than the manager allows. */
  void (*get_status)(void *ctx, struct buf *out, bool *busy);
  void *ctx;
};

/* Where nobody wants to be told, nothing begins. The loop does not stay for it. `t` must outlive the loop. */
void notify_timer_start(struct notify_timer *t, uv_loop_t *loop, struct notify *n,
                        void (*get_status)(void *ctx, struct buf *out, bool *busy), void *ctx);
void notify_timer_ready(struct notify_timer *t);                        /* READY=1, with the status of now */
void notify_timer_stopping(struct notify_timer *t, const char *status); /* STOPPING=1 */
void notify_timer_close(struct notify_timer *t); /* the loop runs once more afterwards */

#endif
