/* SPDX-License-Identifier: Apache-2.0 */
/* The failures that libuv does not survive are tried before libuv meets them.
 *
 * The pool. libuv creates its threads at the first request, which may be the one that reads why a worker died, and
 * aborts if it cannot. So they are created before, when nothing is lost yet. Before that n threads of our own
 * show that there is room: all at once, with the same stacks. The kernel counts a thread for some time after
 * pthread_join, so each one is awaited until its number is unknown (ESRCH). In the microseconds until libuv's turn
 * another process of the user may take the place; that risk remains.
 *
 * The loop. libuv has a pipe for its signals and aborts if it cannot create it. uv_loop_init returns all other
 * errors. */

#include "common/system/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/system/file.h"
#include "common/system/log.h"
#include "common/mem.h"

enum {
  GONE_MS = 1000,
  LOOP_DESCRIPTORS = 6, /* epoll, an eventfd, a pipe of the loop, and one for all loops */
};

/* The loop. -------------------------------------------------------------------------------------------------------- */

static bool opened;

bool loop_was_opened(void) {
  return opened;
}

int loop_open(uv_loop_t *loop, struct err *e) {
  opened = true;
  int rc = file_fill_standard(e);
  if (rc) return rc;
  /* So many descriptors must be free at once. */
  int fds[LOOP_DESCRIPTORS], n = 0;
  while (n < LOOP_DESCRIPTORS && (fds[n] = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0)) >= 0) n++;
  if (n < LOOP_DESCRIPTORS) rc = -errno;
  while (n > 0) close(fds[--n]);
  if (rc == 0) rc = uv_loop_init(loop);
  if (rc == 0) return 0;
  return err_sys(e, rc, "no event loop");
}

/* The pool. -------------------------------------------------------------------------------------------------------- */

struct trial {
  pthread_t thread;
  sem_t *go;
  pid_t tid; /* read after the join */
};

static void *wait_for_others(void *arg) {
  struct trial *t = arg;
  t->tid = (pid_t)syscall(SYS_gettid);
  while (sem_wait(t->go) != 0) {
  }
  return NULL;
}

/* Creates n threads at once. 0, or a negative errno; none of them is left. */
static int try_threads(unsigned n) {
  struct trial trials[LOOP_POOL_MAX];
  sem_t go;
  unsigned made = 0;
  int rc = 0;
  sem_init(&go, 0, 0);
  for (; made < n && rc == 0; made += rc == 0) {
    trials[made].go = &go;
    rc = -pthread_create(&trials[made].thread, NULL, wait_for_others, &trials[made]);
  }
  for (unsigned i = 0; i < made; i++) sem_post(&go);
  for (unsigned i = 0; i < made; i++) pthread_join(trials[i].thread, NULL);
  uint64_t deadline = monotonic_ms() + GONE_MS;
  for (unsigned i = 0; i < made; i++)
    while (syscall(SYS_tgkill, getpid(), trials[i].tid, 0) == 0 && monotonic_ms() < deadline) sched_yield();
  sem_destroy(&go);
  return rc;
}

static void do_nothing(uv_work_t *work) {}

int loop_start_pool(uv_loop_t *loop, unsigned n, struct err *e) {
  static bool started;
  if (started) return 0;
  int rc = n > LOOP_POOL_MAX ? -EINVAL : try_threads(n);
  if (rc == 0) {
    /* libuv reads the size from the environment, once. The variable is meant for the workers, so it is restored. */
    static const char name[] = "UV_THREADPOOL_SIZE";
    static uv_work_t first; /* outlives a loop that is closed early */
    char size[12];
    const char *before = getenv(name);
    char *kept = before ? xstrdup(before) : NULL;
    snprintf(size, sizeof(size), "%u", n);
    rc = setenv(name, size, 1) ? -errno : uv_queue_work(loop, &first, do_nothing, NULL);
    if (kept)
      setenv(name, kept, 1);
    else
      unsetenv(name);
    free(kept);
  }
  started = rc == 0;
  if (started) return 0;
  return err_sys(e, rc, "%u thread%s for files and names cannot be started", n, n == 1 ? "" : "s");
}

void loop_work(uv_loop_t *loop, uv_work_t *work, uv_work_cb what, uv_after_work_cb after) {
  if (loop_start_pool(loop, LOOP_POOL_AGENT, NULL) == 0 && uv_queue_work(loop, work, what, after) == 0) return;
  what(work);
  after(work, 0);
}

struct replacing {
  uv_work_t work;
  const char *what;
  char *path;
  struct buf text;
  bool through;
  int error;
};

static unsigned writes;

static void do_replace(uv_work_t *work) {
  struct replacing *w = work->data;
  w->error = file_replace(w->path, w->text.data, w->text.len, 0666, w->through);
}

static void on_replaced(uv_work_t *work, int status) {
  struct replacing *w = work->data;
  if (w->error) log_warn("%s %s cannot be written: %s", w->what, w->path, strerror(-w->error));
  writes--;
  buf_finish(&w->text);
  free(w->path);
  free(w);
}

void loop_replace_file(uv_loop_t *loop, const char *what, const char *path, struct buf *text, bool through) {
  struct replacing *w = xcalloc(1, sizeof(*w));
  *w = (struct replacing){.what = what, .path = xstrdup(path), .text = *text, .through = through};
  w->work.data = w;
  *text = (struct buf)BUF_INIT;
  writes++;
  loop_work(loop, &w->work, do_replace, on_replaced);
}

unsigned loop_writes(void) {
  return writes;
}

void loop_timer_in(uv_timer_t *timer, uv_timer_cb cb, uint64_t ms) {
  uv_update_time(timer->loop);
  uv_timer_start(timer, cb, ms, 0);
}

void loop_timer_at(uv_timer_t *timer, uv_timer_cb cb, uint64_t at_ms, uint64_t now_ms) {
  uv_timer_stop(timer);
  if (at_ms != UINT64_MAX) loop_timer_in(timer, cb, at_ms > now_ms ? at_ms - now_ms : 0);
}

void loop_free(uv_handle_t *handle) {
  free(handle->data);
}
