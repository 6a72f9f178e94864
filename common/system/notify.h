/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_NOTIFY_H
#define COMMON_SYSTEM_NOTIFY_H

/* Messages to the service manager that has started this program, as in sd_notify(3): it is ready, its status, a sign of
 * life, it stops. Without NOTIFY_SOCKET in the environment every function does nothing. Nothing blocks. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <uv.h>
#include "common/buf.h"

enum {
  NOTIFY_STATUS_MAX = 300,  /* bytes of a status; the rest is cut off */
  NOTIFY_EVERY_MS = 1000,   /* the longest time between two calls of notify_beat */
  NOTIFY_EXTEND_MS = 10000, /* the time that one busy beat asks for */
};

struct notify {
  int fd; /* -1: there is no manager */
  struct sockaddr_un to;
  socklen_t to_len;
  uint64_t watchdog_ms; /* the interval of signs of life; 0: none is needed */
  uint64_t beat_ms;     /* when the next is due */
  bool ready, stopping; /* reported by the caller */
  bool owes_ready, owes_stopping;
  bool complained;
  bool indirect; /* the manager started another process, which started this one: it needs our pid */
  char status[NOTIFY_STATUS_MAX + 1];
};

/* Removes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID from the environment, so that no child sends messages in our
 * name. Call it first in main, while the process has one thread. An unusable address causes one warning, and no
 * messages are sent. */
void notify_init(struct notify *n);
void notify_finish(struct notify *n);

/* READY=1; later calls do nothing. status may be NULL. */
void notify_ready(struct notify *n, const char *status);
/* STOPPING=1, once. */
void notify_stopping(struct notify *n, const char *status);
/* WATCHDOG=1 if it is due, STATUS= if it has changed, and what could not be sent before. `busy`: the program starts or
 * stops, and is not stuck: asks the manager for another NOTIFY_EXTEND_MS. */
void notify_beat(struct notify *n, uint64_t now_ms, const char *status, bool busy);

/* Calls notify_beat from a libuv loop, for the daemon and the agent. */
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
