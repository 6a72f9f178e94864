/* SPDX-License-Identifier: Apache-2.0 */
/* Two hold the memory: the thread, and the loop's handle. The last to let go frees it. The thread wakes the loop under
 * the mutex, so never after the handle began to close.
 *
 * A room may hold a key (MUNGE) for as long as a call hangs, so it is left out of core dumps, and locked if possible. */

#include "common/system/aside.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "common/mem.h"

enum { STACK_SIZE = 256 * 1024 };

struct aside {
  uv_async_t async;
  uv_mutex_t mutex;
  bool left; /* under mutex */
  atomic_int holders;
  void (*work)(void *room);
  void (*done)(void *ctx, void *room);
  void *ctx;
  void *room;
  size_t size;
};

static atomic_int threads;

static void let_go(struct aside *a) {
  if (atomic_fetch_sub(&a->holders, 1) > 1) return;
  explicit_bzero(a->room, a->size);
  munmap(a->room, a->size);
  uv_mutex_destroy(&a->mutex);
  free(a);
}

static void run(void *arg) {
  struct aside *a = arg;
  a->work(a->room);
  uv_mutex_lock(&a->mutex);
  if (!a->left) uv_async_send(&a->async);
  uv_mutex_unlock(&a->mutex);
  let_go(a);
  atomic_fetch_sub(&threads, 1);
}

static void on_closed(uv_handle_t *handle) {
  let_go(handle->data);
}

void aside_leave(struct aside *a) {
  uv_mutex_lock(&a->mutex);
  a->left = true;
  uv_mutex_unlock(&a->mutex);
  uv_close((uv_handle_t *)&a->async, on_closed);
}

static void on_done(uv_async_t *async) {
  struct aside *a = async->data;
  aside_leave(a);
  a->done(a->ctx, a->room);
}

struct aside *aside_start(uv_loop_t *loop, void (*work)(void *room), const void *room, size_t size,
                          void (*done)(void *ctx, void *room), void *ctx, struct err *e) {
  if (atomic_fetch_add(&threads, 1) >= ASIDE_MAX) {
    atomic_fetch_sub(&threads, 1);
    err_set(e, -EAGAIN, "%d calls still hang", ASIDE_MAX);
    return NULL;
  }
  struct aside *a = xcalloc(1, sizeof(*a));
  void *own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) {
    free(a);
    atomic_fetch_sub(&threads, 1);
    err_set(e, -ENOMEM, "out of memory");
    return NULL;
  }
  (void)madvise(own, size, MADV_DONTDUMP);
  (void)mlock(own, size);
  *a = (struct aside){
      .holders = 2, .work = work, .done = done, .ctx = ctx, .size = size, .room = memcpy(own, room, size)};
  a->async.data = a;
  uv_mutex_init(&a->mutex);
  uv_async_init(loop, &a->async, on_done);
  /* Signals are for the other threads. */
  uv_thread_t thread;
  uv_thread_options_t options = {.flags = UV_THREAD_HAS_STACK_SIZE, .stack_size = STACK_SIZE};
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int rc = uv_thread_create_ex(&thread, &options, run, a);
  pthread_sigmask(SIG_SETMASK, &old, NULL);
  if (rc == 0) pthread_detach(thread);
  if (rc == 0) return a;
  err_sys(e, -EAGAIN, "no thread can be started");
  atomic_fetch_sub(&threads, 1);
  atomic_store(&a->holders, 1); /* without the thread */
  aside_leave(a);
  return NULL;
}
