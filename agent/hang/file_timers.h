/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_FILE_TIMERS_H
#define AGENT_HANG_FILE_TIMERS_H

/* The countdown timers of torch.distributed.elastic.timer.FileTimerClient that this node's workers hold. Pure: lines
 * of JSON and the wall clock come in, expired timers come out.
 *
 * A process and a scope name a timer. A process sets it, sets it again, or releases it. When a timer expires, its
 * process gets the timer's signal (0: none), and all timers of that process are dropped. Of several expired timers the
 * first with a signal counts, as under torchrun. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "common/err.h"
#include "common/local_set.h"

enum {
  FILE_TIMERS_MAX = 4096,     /* at a time, of one agent */
  FILE_TIMER_LINE_MAX = 4096, /* PIPE_BUF: a client writes at most this at once */
};

struct file_timer {
  pid_t pid;
  int signo;        /* 0: none */
  double expires_s; /* wall clock; below 0 in a request: release it */
  char *scope;
};

/* Parses a line without its newline. 0, and the caller must file_timer_finish; or -EINVAL and a sentence. */
int file_timer_parse(const char *line, size_t n, struct file_timer *out, struct err *e);
void file_timer_finish(struct file_timer *t);

struct file_timers;
struct file_timers *file_timers_create(void);
void file_timers_destroy(struct file_timers *t);
/* Takes the request of a process of worker `owner`. 0, or -ENOSPC and a sentence: too many timers. */
int file_timers_take(struct file_timers *t, struct file_timer *request, uint32_t owner, struct err *e);
/* All timers expire that much later: their processes were suspended. */
void file_timers_extend(struct file_timers *t, double seconds);
/* Drops the timers of all workers but those in `owners`. */
void file_timers_keep(struct file_timers *t, const struct local_set *owners);
bool file_timers_next(const struct file_timers *t, double *expires_s); /* the earliest; false: none */
/* A process with an expired timer: returns the timer that counts, the caller's to file_timer_finish, and drops the
 * others of that process. False: none. */
bool file_timers_expired(struct file_timers *t, double now_s, struct file_timer *out, uint32_t *owner);

#endif
