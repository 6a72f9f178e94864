/* SPDX-License-Identifier: Apache-2.0 */
/* The lock: held, released, and left behind by dead processes and hosts without power. Holders on other hosts are made
 * by hand. */

#include "agent/trainer/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "tests/rig/unit.h"

static char path[64];

static struct ckpt_owner owner(const char *job, const char *incarnation, uint32_t round) {
  struct ckpt_owner o = {.round = round};
  snprintf(o.job, sizeof o.job, "%s", job);
  snprintf(o.incarnation, sizeof o.incarnation, "%s", incarnation);
  ckpt_lock_self(&o);
  return o;
}

/* A lock of another host, touched age_s ago. */
static void hold(struct ckpt_owner o, int age_s) {
  char text[CKPT_OWNER_MAX];
  struct timespec t[2];
  snprintf(o.boot, sizeof o.boot, "another");
  ckpt_owner_format(&o, text);
  assert_int_equal(symlink(text, path), 0);
  clock_gettime(CLOCK_REALTIME, &t[0]);
  t[0].tv_sec -= age_s;
  t[1] = t[0];
  assert_int_equal(utimensat(AT_FDCWD, path, t, AT_SYMLINK_NOFOLLOW), 0);
}

static int take(struct ckpt_owner o, struct ckpt_lock **l, struct err *e) {
  *l = NULL;
  int rc = ckpt_lock_take(unit_folder, &o, l, e);
  if (rc) fprintf(stderr, "%s\n", e->text);
  return rc;
}

static size_t entries(void) {
  char command[64], line[16];
  snprintf(command, sizeof command, "ls -A %s | wc -l", unit_folder);
  FILE *f = popen(command, "r");
  assert_non_null(fgets(line, sizeof line, f));
  pclose(f);
  return strtoul(line, NULL, 10);
}

static int fresh_dir(void **state) {
  int rc = unit_make_folder(state);
  snprintf(path, sizeof path, "%s/.lock", unit_folder);
  return rc;
}

UNIT_TEST_WITH(test_one_after_the_other, fresh_dir, unit_remove_folder) {
  struct ckpt_lock *l;
  struct err e = ERR_INIT;
  for (int i = 0; i < 2; i++) {
    assert_int_equal(take(owner("-", CKPT_ALONE, 1), &l, &e), 0);
    assert_int_equal(entries(), 1);
    assert_int_equal(ckpt_lock_check(l, &e), 0);
    ckpt_lock_release(l);
    assert_int_equal(entries(), 0);
  }
  ckpt_lock_release(NULL);
}

/* The child holds it and is killed. */
UNIT_TEST_WITH(test_a_process_of_this_host, fresh_dir, unit_remove_folder) {
  struct ckpt_lock *l;
  struct err e = ERR_INIT;
  int ready[2];
  char c;
  assert_int_equal(pipe(ready), 0);
  pid_t pid = fork();
  if (pid == 0) {
    struct ckpt_owner me = owner("x", "01", 1);
    _exit(ckpt_lock_take(unit_folder, &me, &l, &e) || write(ready[1], "r", 1) != 1 || pause());
  }
  assert_int_equal(read(ready[0], &c, 1), 1);
  assert_int_equal(take(owner("y", "02", 1), &l, &e), -EBUSY);
  assert_non_null(strstr(e.text, unit_folder));
  assert_non_null(strstr(e.text, "job x, round 1, pid "));
  kill(pid, SIGKILL);
  siginfo_t info;
  assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0); /* a zombie holds nothing either */
  assert_int_equal(take(owner("y", "02", 1), &l, &e), 0);
  ckpt_lock_release(l);
  waitpid(pid, NULL, 0);
  close(ready[0]);
  close(ready[1]);
}

enum { RACERS = 8, RACES = 40 };

/* In a child: waits for the start, takes the lock for a job of its own, tells the result, and holds it until the end. */
static void race(int number, int start, int told, int end) {
  struct ckpt_lock *l;
  struct err e = ERR_INIT;
  char job[16], c;
  snprintf(job, sizeof job, "job%d", number);
  struct ckpt_owner me = owner(job, "01", 1);
  if (read(start, &c, 1) != 0) _exit(1);
  int rc = ckpt_lock_take(unit_folder, &me, &l, &e);
  if (write(told, &rc, sizeof rc) != sizeof rc || read(end, &c, 1) != 0) _exit(1);
  if (rc == 0 && ckpt_lock_check(l, &e)) _exit(2); /* it was taken from the winner */
  _exit(0);
}

/* Jobs that start at the same moment: one gets the folder and keeps it, all others are refused at once. */
static void run_race(void) {
  int start[2], told[2], end[2], winners = 0, rc, status;
  pid_t pids[RACERS];
  assert_int_equal(pipe2(start, O_CLOEXEC) || pipe2(told, O_CLOEXEC) || pipe2(end, O_CLOEXEC), 0);
  for (int i = 0; i < RACERS; i++) {
    pids[i] = fork();
    if (pids[i] == 0) {
      close(start[1]);
      close(end[1]);
      race(i, start[0], told[1], end[0]);
    }
  }
  close(start[1]);
  for (int i = 0; i < RACERS; i++) {
    assert_int_equal(read(told[0], &rc, sizeof rc), sizeof rc);
    assert_true(rc == 0 || rc == -EBUSY);
    winners += rc == 0;
  }
  close(end[1]);
  for (int i = 0; i < RACERS; i++) {
    assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
    assert_int_equal(status, 0);
  }
  close(start[0]);
  close(told[0]);
  close(told[1]);
  close(end[0]);
  assert_int_equal(winners, 1);
}

UNIT_TEST_WITH(test_several_jobs_at_once, fresh_dir, unit_remove_folder) {
  for (int i = 0; i < RACES; i++) {
    run_race(); /* from the second time on over the lock of a dead process */
    assert_int_equal(entries(), 1);
  }
}

/* In containers of two hosts the trainers may have the same pid. */
UNIT_TEST_WITH(test_a_process_of_another_host_with_our_pid, fresh_dir, unit_remove_folder) {
  struct ckpt_lock *l;
  struct err e = ERR_INIT;
  char theirs[96], text[CKPT_OWNER_MAX];
  snprintf(theirs, sizeof theirs, "%s-%ld", path, (long)getpid());
  assert_int_equal(symlink("theirs", theirs), 0);
  assert_int_equal(take(owner("x", "01", 1), &l, &e), 0);
  ckpt_lock_release(l);
  ssize_t n = readlink(theirs, text, sizeof text);
  assert_int_equal(n, strlen("theirs"));
  assert_int_equal(entries(), 1);
}

/* The run that lost its folder to another job is not restarted there. */
UNIT_TEST_WITH(test_another_job_takes_it, fresh_dir, unit_remove_folder) {
  struct ckpt_lock *l;
  struct err e = ERR_INIT;
  assert_int_equal(take(owner("x", "01", 1), &l, &e), 0);
  unlink(path);
  hold(owner("y", "01", 1), 0);
  assert_int_equal(ckpt_lock_check(l, &e), -EBUSY);
  assert_non_null(strstr(e.text, "was taken by another run (job y, round 1, pid "));
  assert_non_null(strstr(e.text, "Give each job a --checkpoint-dir of its own"));
  ckpt_lock_release(l);
  assert_int_equal(entries(), 1);
}

/* Within a job nobody waits: the newer round continues, and the older one finds out before it writes. */
UNIT_TEST_WITH(test_a_newer_round_takes_it, fresh_dir, unit_remove_folder) {
  struct ckpt_lock *old, *l;
  struct err e = ERR_INIT;
  struct ckpt_owner first = owner("x", "01", 1);
  assert_int_equal(take(first, &old, &e), 0);
  unlink(path);
  first.round = 2;
  hold(first, 0);
  assert_int_equal(ckpt_lock_check(old, &e), -ESTALE);
  assert_non_null(strstr(e.text, "round 2"));
  ckpt_lock_release(old);
  assert_int_equal(entries(), 1); /* it no longer belongs to it */
  assert_int_equal(take(owner("x", "01", 1), &l, &e), -ESTALE);
  assert_non_null(strstr(e.text, "a newer round of this job"));
  assert_int_equal(take(owner("x", "02", 1), &l, &e), 0);
  ckpt_lock_release(l);
  assert_int_equal(entries(), 0);
}

UNIT_TEST_WITH(test_a_host_without_power, fresh_dir, unit_remove_folder) {
  struct ckpt_lock *l;
  struct err e = ERR_INIT;
  hold(owner("x", "09", 4), CKPT_STALE_MS / 1000 + 2);
  assert_int_equal(take(owner("y", "01", 1), &l, &e), 0);
  ckpt_lock_release(l);
  hold(owner("x", "09", 4), CKPT_STALE_MS / 1000 - 2); /* it may still live for two seconds */
  assert_int_equal(take(owner("y", "01", 1), &l, &e), 0);
  ckpt_lock_release(l);
  assert_int_equal(symlink("of somebody else", path), 0);
  struct timespec t[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
  assert_int_equal(utimensat(AT_FDCWD, path, t, AT_SYMLINK_NOFOLLOW), 0);
  assert_int_equal(take(owner("y", "01", 1), &l, &e), 0);
  ckpt_lock_release(l);
}

/* It is touched while another process waits for it. */
UNIT_TEST_WITH(test_a_host_that_lives, fresh_dir, unit_remove_folder) {
  struct ckpt_lock *l;
  struct err e = ERR_INIT;
  hold(owner("x", "09", 4), 1);
  pid_t pid = fork();
  if (pid == 0)
    for (;;) {
      usleep(100000);
      utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
    }
  int rc = take(owner("y", "01", 1), &l, &e);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  assert_int_equal(rc, -EBUSY);
  assert_int_equal(entries(), 1);
}

/* The holder does the same by itself. */
UNIT_TEST_WITH(test_the_holder_touches_it, fresh_dir, unit_remove_folder) {
  struct ckpt_lock *l;
  struct err e = ERR_INIT;
  struct stat st;
  struct timespec long_ago[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
  assert_int_equal(take(owner("x", "01", 1), &l, &e), 0);
  assert_int_equal(utimensat(AT_FDCWD, path, long_ago, AT_SYMLINK_NOFOLLOW), 0);
  time_t end = time(NULL) + 60;
  do {
    usleep(50000);
    assert_int_equal(lstat(path, &st), 0);
  } while (st.st_mtim.tv_sec == 1 && time(NULL) < end);
  assert_true(st.st_mtim.tv_sec > 1);
  unlink(path); /* somebody has removed it: it is made again */
  assert_int_equal(ckpt_lock_check(l, &e), 0);
  assert_int_equal(lstat(path, &st), 0);
  ckpt_lock_release(l);
}
