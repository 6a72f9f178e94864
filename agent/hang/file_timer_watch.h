/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_FILE_TIMER_WATCH_H
#define AGENT_HANG_FILE_TIMER_WATCH_H

/* TORCHELASTIC_ENABLE_FILE_TIMER=1: the named pipe into which workers write their timers (file_timers.h), and the
 * signal to a process whose timer expired. The pipe exists as long as the agent. */

#include <stdint.h>
#include <sys/types.h>
#include <uv.h>
#include "agent/hang/file_timers.h"
#include "common/err.h"

struct file_timer_watch;

struct file_timer_watch_options {
  uv_loop_t *loop;
  const char *file; /* path of the pipe; NULL: a random name in $TMPDIR or /tmp */
  /* The worker that `pid` belongs to, or -1. */
  int64_t (*owner)(void *ctx, pid_t pid);
  /* A process of worker `owner` got its timer's signal; why: the end of a sentence, with the scope. */
  void (*on_expired)(void *ctx, uint32_t owner, pid_t pid, const char *why);
  void *ctx;
};

/* 0, or a negative errno and a sentence. */
int file_timer_watch_create(const struct file_timer_watch_options *o, struct file_timer_watch **out, struct err *e);
const char *file_timer_watch_file(const struct file_timer_watch *w);
/* A new round: drops the timers of workers that are not in `stay`. */
void file_timer_watch_begin(struct file_timer_watch *w, const struct local_set *stay);
/* The workers are stopped (SIGSTOP) on purpose, and their timers with them; or they go on. */
void file_timer_watch_suspend(struct file_timer_watch *w, bool on);
/* Removes the pipe. Memory is freed when the loop has closed the handles. NULL is fine. */
void file_timer_watch_destroy(struct file_timer_watch *w);

#endif
