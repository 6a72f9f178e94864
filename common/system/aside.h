/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_ASIDE_H
#define COMMON_SYSTEM_ASIDE_H

/* A call that may hang, in a thread of its own: a library that asks another process and has no deadline. The caller may
 * leave the thread behind, at a deadline or at its end; nothing waits for it, and the program can exit. */

#include <stddef.h>
#include <uv.h>
#include "common/err.h"

enum { ASIDE_MAX = 8 }; /* threads at a time, with those that were left behind */

struct aside;
/* Runs work(room) in a thread, then done(ctx, room) in the loop, never inside this call. room: a copy of `size` bytes,
 * which is wiped and freed after done. NULL and -EAGAIN: ASIDE_MAX threads run; or there is no thread to be had. */
struct aside *aside_start(uv_loop_t *loop, void (*work)(void *room), const void *room, size_t size,
                          void (*done)(void *ctx, void *room), void *ctx, struct err *e);
/* Before done: it is not called. The thread ends when its call does; the loop has nothing more to do with it. */
void aside_leave(struct aside *a);

#endif
