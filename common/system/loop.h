/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_LOOP_H
#define COMMON_SYSTEM_LOOP_H

/* The start of a program with libuv. libuv aborts the process if it cannot get a descriptor or a thread for itself.
 * These functions try that first, and fail with a sentence that names the limit. */

#include <stdbool.h>
#include <uv.h>
#include "common/buf.h"
#include "common/err.h"

enum {
  LOOP_POOL_DAEMON = 2, /* the state file, and names: libuv gives those half of the threads */
  LOOP_POOL_AGENT = 4,  /* error files, log files, names: a file server that hangs holds one thread each */
  LOOP_POOL_MAX = 16,
};

/* uv_loop_init, after a check that there are descriptors for it. Descriptors 0 to 2 are opened (/dev/null) if they are
 * closed, because libuv asserts that it never closes one of them. */
int loop_open(uv_loop_t *loop, struct err *e);
/* Whether loop_open was called. Then libuv has descriptors that it keeps until the process ends, and perhaps threads. */
bool loop_was_opened(void);
/* Starts libuv's pool with n threads. UV_THREADPOOL_SIZE has no effect and is left as it was. Call it before the first
 * request for the pool (uv_queue_work, uv_fs_* with a callback, uv_getaddrinfo), while the process has one thread. A
 * second call changes nothing. */
int loop_start_pool(uv_loop_t *loop, unsigned n, struct err *e);
/* uv_queue_work in the agent's pool, which it starts if need be. If that fails, both functions are called at once. */
void loop_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb what, uv_after_work_cb after);

/* Replaces the file (file_replace) in that pool, so a disk that hangs blocks nothing. Takes the text. A failure is logged:
 * "WHAT PATH cannot be written". */
void loop_replace_file(uv_loop_t *loop, const char *what, const char *path, struct buf *text, bool through);
unsigned loop_writes(void); /* such files that are not written yet */

/* Starts a timer, once. ms count from now, not from the beginning of this turn of the loop. */
void loop_timer_in(uv_timer_t *timer, uv_timer_cb cb, uint64_t ms);
/* The same until at_ms, or stops it: UINT64_MAX. now_ms: of the same clock. */
void loop_timer_at(uv_timer_t *timer, uv_timer_cb cb, uint64_t at_ms, uint64_t now_ms);
/* For uv_close: frees the object that the handle is part of, its `data`. */
void loop_free(uv_handle_t *handle);

#endif
