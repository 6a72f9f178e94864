/* SPDX-License-Identifier: Apache-2.0 */
/* agent/failures/oom.c: out of memory or another SIGKILL, from counters and logs of the test. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/failures/oom.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

UNIT_TEST(test_cgroup) {
  char path[32];
  assert_true(oom_cgroup("0::/job/step0\n", path, sizeof(path)));
  assert_string_equal(path, "/job/step0");
  assert_true(oom_cgroup("9:name=systemd:/\n4:memory:/x\n0::/user.slice\n", path, sizeof(path)));
  assert_string_equal(path, "/user.slice");
  assert_false(oom_cgroup("0::/\n", path, sizeof(path))); /* the root has no limit and no counters */
  assert_false(oom_cgroup("4:memory:/x\n", path, sizeof(path)));
  assert_false(oom_cgroup("10::/x\n", path, sizeof(path)));
  assert_false(oom_cgroup("", path, sizeof(path)));
  assert_false(oom_cgroup("0::/a-name-that-is-longer-than-there-is-room-for\n", path, sizeof(path)));
}

UNIT_TEST(test_events) {
  struct oom_events e;
  assert_true(oom_events_parse(&e, "low 0\nhigh 9\nmax 7\noom 3\noom_kill 2\noom_group_kill 5\n"));
  assert_int_equal(e.oom, 3);
  assert_int_equal(e.kills, 2);
  assert_false(oom_events_parse(&e, "low 0\nhigh 0\n"));
  assert_false(oom_events_parse(&e, "oom 1\noom_kill x\n"));
  assert_false(oom_events_parse(&e, ""));
}

static void assert_text(bool cgroup, uint64_t limit, const char *text) {
  char out[OOM_TEXT_MAX];
  oom_text(cgroup, limit, out);
  assert_string_equal(out, text);
}

UNIT_TEST(test_limit) {
  uint64_t n;
  assert_true(oom_limit("4294967296\n", &n));
  assert_text(true, n, "out of memory (cgroup limit 4 GiB)");
  assert_false(oom_limit("max\n", &n));
  assert_false(oom_limit("", &n));
  assert_false(oom_limit("12x\n", &n));
  assert_text(true, 1610612736, "out of memory (cgroup limit 1.5 GiB)");
  assert_text(true, 1000, "out of memory (cgroup limit 1000 bytes)");
  assert_text(true, UINT64_MAX, "out of memory (cgroup limit 1.678e+07 TiB)");
  assert_text(true, 0, "out of memory (cgroup limit)");
  assert_text(false, 0, "out of memory");
}

UNIT_TEST(test_log) {
  struct oom_log l = {0};
  assert_false(oom_log_read(&l, "4,412,75,-;python3 invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0"));
  assert_false(oom_log_read(&l, "6,416,75,-;memory: usage 262144kB, limit 262144kB, failcnt 53"));
  assert_false(oom_log_read(&l, "6,423,75,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=6114,uid=0"));
  assert_true(oom_log_read(&l, "3,424,75,-;Memory cgroup out of memory: Killed process 6114 (python3) total-vm:2kB"));
  assert_int_equal(l.pid, 6114);
  assert_true(l.cgroup);
  assert_int_equal(l.limit, 262144 * 1024);
  assert_true(oom_log_read(&l, "3,500,76,-;Out of memory: Killed process 77 (a) b) total-vm:2kB"));
  assert_int_equal(l.pid, 77);
  assert_false(l.cgroup);
  assert_int_equal(l.limit, 0);
  static const char *const others[] = {"",
                                       ";",
                                       "3,1,1,-;",
                                       "3,1,1,-;Out of memory: Killed process ",
                                       "3,1,1,-;Out of memory: Killed process x",
                                       "Out of memory: Killed process 5",
                                       "12,1,1,-;a user writes: Out of memory: Killed process 5"};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_false(oom_log_read(&l, others[i]));
}

/* A mount with the cgroup of this process in it, and a log. */
struct bench {
  char dir[32];
  char *proc, *cgroup, *kmsg;
};

static void put(const char *dir, const char *name, const char *mode, const char *text) {
  char *path = xasprintf("%s/%s", dir, name);
  FILE *f = fopen(path, mode);
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
  free(path);
}

enum { PID = 4713 };

static void bench_open(struct bench *b) {
  strcpy(b->dir, "/tmp/rdzv-test-XXXXXX");
  assert_non_null(mkdtemp(b->dir));
  b->kmsg = xasprintf("%s/kmsg", b->dir);
  put(b->dir, "kmsg", "w", "3,1,1,-;Out of memory: Killed process 1 (before we came)\n");
  b->proc = xasprintf("%s/%d", b->dir, PID);
  b->cgroup = xasprintf("%s/worker", b->dir);
  assert_int_equal(mkdir(b->proc, 0700) | mkdir(b->cgroup, 0700), 0);
  put(b->proc, "cgroup", "w", "4:memory:/of/version/one\n0::/worker\n");
}

static void bench_close(struct bench *b) {
  char *command = xasprintf("rm -r %s", b->dir);
  assert_int_equal(system(command), 0);
  free(command);
  free(b->cgroup);
  free(b->proc);
  free(b->kmsg);
}

UNIT_TEST(test_the_log_names_the_pid) {
  struct bench b;
  bench_open(&b);
  struct oom_mark m[2] = {0};
  struct oom_watch *w = oom_watch_create(b.dir, b.dir, b.kmsg);
  oom_watch_begin(w, &m[0], 1);
  oom_watch_begin(w, &m[1], 4712);
  assert_null(oom_watch_died(w, &m[0], 1)); /* that was before */
  put(b.dir, "kmsg", "a", "6,2,2,-;memory: usage 1024kB, limit 1024kB, failcnt 53");
  assert_null(oom_watch_died(w, &m[1], 4712));
  put(b.dir, "kmsg", "a", "3,3,3,-;Memory cgroup out of memory: Killed process 4712 (python3) total-vm:2kB");
  assert_null(oom_watch_died(w, &m[0], 1));
  assert_string_equal(oom_watch_died(w, &m[1], 4712), "out of memory (cgroup limit 1 MiB)");
  oom_watch_begin(w, &m[1], 4712); /* another process with that number */
  assert_null(oom_watch_died(w, &m[1], 4712));
  oom_watch_destroy(w);
  bench_close(&b);
}

/* One kill of two deaths: the first that is told has it. */
UNIT_TEST(test_counters) {
  struct bench b;
  bench_open(&b);
  put(b.cgroup, "memory.events", "w", "oom 1\noom_kill 1\n");
  put(b.cgroup, "memory.max", "w", "2147483648\n");
  struct oom_mark m[2] = {0};
  struct oom_watch *w = oom_watch_create(b.dir, b.dir, "/dev/null");
  for (uint32_t i = 0; i < 2; i++) oom_watch_begin(w, &m[i], PID);
  assert_null(oom_watch_died(w, &m[0], PID));
  put(b.cgroup, "memory.events", "w", "oom 2\noom_kill 2\n");
  assert_string_equal(oom_watch_died(w, &m[1], PID), "out of memory (cgroup limit 2 GiB)");
  assert_null(oom_watch_died(w, &m[0], PID));
  put(b.cgroup, "memory.events", "w", "oom 2\noom_kill 3\n"); /* not for want of its own cgroup's */
  assert_string_equal(oom_watch_died(w, &m[0], PID), "out of memory");
  oom_watch_destroy(w);
  bench_close(&b);
}

UNIT_TEST(test_nothing_can_be_read) {
  struct oom_mark m[2] = {0};
  struct oom_watch *w = oom_watch_create(NULL, "/no/such/mount", "/no/such/log");
  oom_watch_begin(w, &m[0], getpid());
  assert_null(oom_watch_died(w, &m[0], getpid()));
  assert_null(oom_watch_died(w, &m[0], 0));
  oom_watch_destroy(w);
}
