/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/trainer/checkpoint/checkpoint.h"

#include "common/system/clock.h"
#include "common/system/file.h"
#include "common/system/log.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_MS = 250, WAIT_MAX_MS = CKPT_STALE_MS + 5000, LEAVE_S = 5 };

struct ckpt_lock {
  char *path;
  char text[CKPT_OWNER_MAX];
  struct ckpt_owner me;
  struct ckpt_thread beat;
};

/* Owners. ---------------------------------------------------------------------------------------------------------- */

uint64_t ckpt_started_at(uint64_t pid) {
  char path[64], text[1024], state = 0;
  unsigned long long ticks = 0;
  snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", pid);
  if (file_read_text(path, text, sizeof text) <= 0) return 0;
  const char *p = strrchr(text, ')'); /* behind the name: the state, 18 fields, then starttime */
  if (!p || sscanf(p + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &state,
                   &ticks) != 2)
    return 0;
  return state == 'Z' || state == 'X' ? 0 : ticks;
}

void ckpt_lock_self(struct ckpt_owner *me) {
  char text[128] = "";
  struct stat st;
  gethostname(text, sizeof text - 1);
  ckpt_word(text, me->host, sizeof me->host);
  file_read_text("/proc/sys/kernel/random/boot_id", text, sizeof text);
  text[strcspn(text, "\n")] = 0;
  ckpt_word(text, me->boot, sizeof me->boot);
  me->pid_space = stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
  me->pid = (uint64_t)getpid();
  me->started = ckpt_started_at(me->pid);
}

/* Reading the lock. ------------------------------------------------------------------------------------------------ */

struct seen {
  char text[CKPT_OWNER_MAX];
  struct ckpt_owner who; /* all zero: not the text of a holder */
  bool known;
  int64_t touched_ns;
};

/* When a link was last touched. A network file system asks its server, not its cache. */
static int read_touch_time(const char *path, int64_t *ns) {
  struct statx st;
  if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC, STATX_MTIME, &st) < 0) return -errno;
  *ns = (int64_t)st.stx_mtime.tv_sec * 1000000000 + st.stx_mtime.tv_nsec;
  return 0;
}

/* 0, or -ENOENT: there is no holder. */
static int read_lock(const char *path, struct seen *s) {
  *s = (struct seen){0};
  ssize_t n = readlink(path, s->text, sizeof s->text - 1);
  int rc = n < 0 ? -errno : read_touch_time(path, &s->touched_ns);
  if (rc == -EINVAL) rc = read_touch_time(path, &s->touched_ns); /* not a link: an unknown holder */
  if (rc == 0) s->known = ckpt_owner_parse(s->text, &s->who);
  return rc;
}

/* A name beside the lock that no process of any host has: two containers may have the same pid. Heap. */
static char *name_beside(const char *path) {
  char name[FILE_RANDOM_SIZE];
  file_random_name(name);
  return xasprintf("%s-%s", path, name);
}

static enum ckpt_life life_of(const struct seen *s, const struct ckpt_owner *me, int64_t now_ns, int64_t first_ns) {
  const struct ckpt_owner *o = &s->who;
  if (s->known && !strcmp(o->boot, me->boot) && o->pid_space == me->pid_space)
    return ckpt_started_at(o->pid) == o->started ? CKPT_ALIVE : CKPT_GONE;
  if (now_ns - s->touched_ns > (int64_t)CKPT_STALE_MS * 1000000) return CKPT_GONE;
  return s->touched_ns != first_ns ? CKPT_ALIVE : CKPT_UNKNOWN;
}

/* Keeping the lock. ------------------------------------------------------------------------------------------------ */

static bool is_mine(const struct ckpt_lock *l) {
  struct seen s;
  return read_lock(l->path, &s) == 0 && !strcmp(s.text, l->text);
}

static void *beat_main(void *arg) {
  struct ckpt_lock *l = arg;
  struct ckpt_thread *t = &l->beat;
  pthread_mutex_lock(&t->mutex);
  for (uint64_t at_ms = monotonic_ms() + CKPT_BEAT_MS; !t->stop;) {
    if (ckpt_thread_wait(t, at_ms)) continue;
    pthread_mutex_unlock(&t->mutex);
    if (is_mine(l)) utimensat(AT_FDCWD, l->path, NULL, AT_SYMLINK_NOFOLLOW);
    at_ms = monotonic_ms() + CKPT_BEAT_MS;
    pthread_mutex_lock(&t->mutex);
  }
  pthread_mutex_unlock(&t->mutex);
  return NULL;
}

int ckpt_thread_start(struct ckpt_thread *t, void *(*body)(void *), void *arg) {
  sigset_t all, before;
  pthread_condattr_t attr;
  pthread_mutex_init(&t->mutex, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&t->changed, &attr);
  pthread_condattr_destroy(&attr);
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int rc = pthread_create(&t->thread, NULL, body, arg);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (rc == 0) return 0;
  pthread_cond_destroy(&t->changed);
  pthread_mutex_destroy(&t->mutex);
  return -rc;
}

bool ckpt_thread_wait(struct ckpt_thread *t, uint64_t until_ms) {
  struct timespec at = {.tv_sec = (time_t)(until_ms / 1000), .tv_nsec = (long)(until_ms % 1000) * 1000000};
  return pthread_cond_timedwait(&t->changed, &t->mutex, &at) == 0;
}

bool ckpt_thread_end(struct ckpt_thread *t, int seconds) {
  struct timespec by;
  pthread_mutex_lock(&t->mutex);
  t->stop = true;
  pthread_cond_broadcast(&t->changed);
  pthread_mutex_unlock(&t->mutex);
  clock_gettime(CLOCK_REALTIME, &by);
  by.tv_sec += seconds;
  if (pthread_timedjoin_np(t->thread, NULL, &by)) {
    pthread_detach(t->thread);
    return false;
  }
  pthread_cond_destroy(&t->changed);
  pthread_mutex_destroy(&t->mutex);
  return true;
}

/* Taking the lock. ------------------------------------------------------------------------------------------------- */

static void describe_holder(const struct seen *s, char *who, size_t size) {
  snprintf(who, size, "an unknown process");
  if (s->known) ckpt_owner_describe(&s->who, who, size);
}

/* A full disk may have no room for a long text. Then this host's clock must do, and the run continues without a lock
 * until ckpt_lock_check can make one. */
static bool has_no_room(int rc, int64_t *now_ns) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  if (rc != -ENOSPC && rc != -EDQUOT) return false;
  *now_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
  return true;
}

/* Moves the lock that was seen out of the way. Another process may have replaced it since: that one is put back. 1: it
 * is gone. 0: look again. */
static int remove_seen(const struct ckpt_lock *l, const struct seen *s, struct err *e) {
  struct seen moved;
  int now = read_lock(l->path, &moved);
  if (now == -ENOENT || strcmp(moved.text, s->text) != 0) return 0;
  char *aside = name_beside(l->path);
  int rc = rename(l->path, aside) < 0 ? -errno : 0;
  if (rc == 0) rc = read_lock(aside, &moved);
  bool same = rc == 0 && !strcmp(moved.text, s->text);
  if (rc == 0 && !same) (void)!symlink(moved.text, l->path);
  unlink(aside);
  free(aside);
  return same ? 1 : rc == 0 || rc == -ENOENT ? 0 : err_sys(e, rc, "%s", l->path);
}

/* One attempt. 1: taken. 0: wait. */
static int try_lock(struct ckpt_lock *l, const char *dir, int64_t *first_ns, struct seen *s, enum ckpt_claim *claim,
                    struct err *e) {
  int64_t now_ns = 0;
  int held = read_lock(l->path, s);
  if (held && held != -ENOENT) return err_sys(e, held, "%s", l->path);
  if (!*first_ns) *first_ns = s->touched_ns;
  struct ckpt_list there = {0};
  ckpt_list(dir, &there, NULL);
  l->me.generation = ckpt_claim_generation(&l->me, s->known ? &s->who : NULL, there.v, there.n);
  ckpt_list_finish(&there);
  ckpt_owner_format(&l->me, l->text);
  /* The file server's current time: that of a link which is made and removed. */
  char *name = name_beside(l->path);
  int rc = symlink(l->text, name) < 0 ? -errno : read_touch_time(name, &now_ns);
  unlink(name);
  free(name);
  if (rc == -EPERM || rc == -EOPNOTSUPP || rc == -ENOSYS) {
    log_warn("checkpoint directory %s cannot be locked: its file system has no symbolic links", dir);
    return 1;
  }
  if (rc && !has_no_room(rc, &now_ns)) return err_sys(e, rc, "%s", l->path);
  struct seen unknown = {.who.job = "?", .who.incarnation = CKPT_ALONE};
  const struct ckpt_owner *who = held ? NULL : s->known ? &s->who : &unknown.who;
  *claim = ckpt_claim_decide(&l->me, who, held ? CKPT_GONE : life_of(s, &l->me, now_ns, *first_ns));
  if (*claim != CKPT_TAKE) return 0;
  rc = held ? 1 : remove_seen(l, s, e);
  if (rc != 1) return rc;
  /* Of several processes one alone can make the link. A full disk does without one for now. */
  if (symlink(l->text, l->path) == 0) return 1;
  rc = -errno;
  if (rc == -EEXIST) return is_mine(l); /* a network file system may have repeated the request */
  return has_no_room(rc, &now_ns) ? 1 : err_sys(e, rc, "%s", l->path);
}

static int wait_for_lock(struct ckpt_lock *l, const char *dir, struct err *e) {
  struct seen s;
  enum ckpt_claim claim = CKPT_WAIT;
  int64_t first_ns = 0;
  for (int waited = 0;; waited += LOOK_MS) {
    int rc = try_lock(l, dir, &first_ns, &s, &claim, e);
    if (rc) return rc < 0 ? rc : 0;
    char who[320];
    describe_holder(&s, who, sizeof who);
    if (claim == CKPT_FENCED)
      return err_set(e, -ESTALE, "checkpoint directory %s is held by a newer round of this job (%s)", dir, who);
    if (claim == CKPT_WAIT && waited >= WAIT_MAX_MS)
      return err_set(e, -ESTALE,
                     "checkpoint directory %s is still held by %s; end that run, or use another --checkpoint-dir", dir,
                     who);
    if (claim == CKPT_BUSY || waited >= WAIT_MAX_MS)
      return err_set(e, -EBUSY,
                     "checkpoint directory %s is in use by another run (%s); wait for its end, or use another "
                     "--checkpoint-dir",
                     dir, who);
    if (waited == 0 && claim == CKPT_WAIT)
      log_info("checkpoint directory %s is held by %s, which may have ended; waiting %d s at most", dir, who,
               WAIT_MAX_MS / 1000);
    nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000L}, NULL);
  }
}

int ckpt_lock_take(const char *dir, struct ckpt_owner *me, struct ckpt_lock **out, struct err *e) {
  struct ckpt_lock *l = xcalloc(1, sizeof *l);
  l->path = xasprintf("%s/.lock", dir);
  l->me = *me;
  int rc = wait_for_lock(l, dir, e);
  if (rc == 0 && ckpt_thread_start(&l->beat, beat_main, l))
    rc = err_sys(e, -EAGAIN, "a thread that keeps the lock of %s", dir);
  if (rc) {
    free(l->path);
    free(l);
    return rc;
  }
  me->generation = l->me.generation;
  *out = l;
  return 0;
}

int ckpt_lock_check(struct ckpt_lock *l, struct err *e) {
  struct seen s;
  int rc = read_lock(l->path, &s);
  if (rc == -ENOENT && symlink(l->text, l->path) < 0 && errno == EEXIST) rc = read_lock(l->path, &s);
  if (rc || !strcmp(s.text, l->text)) return 0; /* writing a checkpoint will report what is wrong with the folder */
  char who[320];
  describe_holder(&s, who, sizeof who);
  if (s.known && ckpt_owner_same_job(&l->me, &s.who))
    return err_set(e, -ESTALE, "%s was taken by another run (%s): this run no longer writes there", l->path, who);
  return err_set(e, -EBUSY,
                 "%s was taken by another run (%s): this run no longer writes there. Give each job a --checkpoint-dir "
                 "of its own",
                 l->path, who);
}

void ckpt_lock_release(struct ckpt_lock *l) {
  if (!l || !ckpt_thread_end(&l->beat, LEAVE_S)) return; /* one that hangs in the file system keeps its memory */
  if (is_mine(l)) unlink(l->path);
  free(l->path);
  free(l);
}
