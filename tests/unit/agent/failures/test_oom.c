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

#define BEFORE "low 0\nhigh 9\nmax 7\noom 1\noom_kill 1\noom_group_kill 5\n"

#define LONG "a-name-of-sixty-four-characters-of-which-eight-are-too-many-aaaa"

/* The cgroup that /proc names, and the counters and the limit at the death. */
static const struct {
  const char *cgroup, *events, *max, *said; /* said NULL: not the kernel */
} deaths[] = {
    {"0::/worker\n", "oom 2\noom_kill 2\n", "4294967296\n", "out of memory (cgroup limit 4 GiB)"},
    {"9:name=systemd:/\n4:memory:/x\n0::/worker\n", "oom 2\noom_kill 2\n", "max\n", "out of memory"},
    {"0::/worker\n", "oom 2\noom_kill 2\n", "1610612736\n", "out of memory (cgroup limit 1.5 GiB)"},
    {"0::/worker\n", "oom 2\noom_kill 2\n", "1000\n", "out of memory (cgroup limit 1000 bytes)"},
    {"0::/worker\n", "oom 2\noom_kill 2\n", "18446744073709551615\n", "out of memory (cgroup limit 1.678e+07 TiB)"},
    {"0::/worker\n", "oom 2\noom_kill 2\n", "12x\n", "out of memory"},
    {"0::/worker\n", "oom 2\noom_kill 2\n", "", "out of memory"},
    {"0::/worker\n", "oom 2\noom_kill x\n", "1000\n", NULL},
    {"0::/worker\n", "low 0\nhigh 0\n", "1000\n", NULL},
    {"0::/worker\n", "", "1000\n", NULL},
    {"0::/\n", "oom 2\noom_kill 2\n", "1000\n", NULL}, /* the root has no limit and no counters */
    {"4:memory:/worker\n", "oom 2\noom_kill 2\n", "1000\n", NULL},
    {"10::/worker\n", "oom 2\noom_kill 2\n", "1000\n", NULL},
    {"", "oom 2\noom_kill 2\n", "1000\n", NULL},
    {"0::/" LONG LONG LONG LONG LONG LONG LONG LONG "\n", "oom 2\noom_kill 2\n", "1000\n", NULL}, /* no room for it */
};

UNIT_TEST(test_forms_of_counters) {
  for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
    struct bench b;
    struct oom_mark m = {0};
    bench_open(&b);
    put(b.proc, "cgroup", "w", deaths[i].cgroup);
    put(b.cgroup, "memory.events", "w", BEFORE);
    struct oom_watch *w = oom_watch_create(b.dir, b.dir, "/dev/null");
    oom_watch_begin(w, &m, PID);
    put(b.cgroup, "memory.events", "w", deaths[i].events);
    put(b.cgroup, "memory.max", "w", deaths[i].max);
    const char *said = oom_watch_died(w, &m, PID);
    assert_string_equal(said ? said : "-", deaths[i].said ? deaths[i].said : "-");
    oom_watch_destroy(w);
    bench_close(&b);
  }
}

/* Records of the kernel's log, one after the other; that of pid 77 is the last. */
static const struct {
  const char *records[4], *said;
} logs[] = {
    {{"4,412,75,-;python3 invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0",
      "6,416,75,-;memory: usage 262144kB, limit 262144kB, failcnt 53",
      "6,423,75,-;oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=77,uid=0",
      "3,424,75,-;Memory cgroup out of memory: Killed process 77 (python3) total-vm:2kB"},
     "out of memory (cgroup limit 256 MiB)"},
    {{"6,416,75,-;memory: usage 262144kB, limit 262144kB, failcnt 53",
      "4,499,75,-;python3 invoked oom-killer: gfp_mask=0xcc0",
      "3,500,76,-;Memory cgroup out of memory: Killed process 77 (x)"},
     "out of memory (cgroup limit)"},
    {{"3,500,76,-;Out of memory: Killed process 77 (a) b) total-vm:2kB"}, "out of memory"},
    {{";", "3,1,1,-;", "3,1,1,-;Out of memory: Killed process ", "3,1,1,-;Out of memory: Killed process x"}, NULL},
    {{"Out of memory: Killed process 77", "12,1,1,-;a user writes: Out of memory: Killed process 77"}, NULL},
};

UNIT_TEST(test_forms_of_the_log) {
  for (size_t i = 0; i < sizeof logs / sizeof *logs; i++) {
    struct bench b;
    struct oom_mark m[2] = {0};
    bench_open(&b);
    struct oom_watch *w = oom_watch_create(b.dir, b.dir, b.kmsg);
    for (int k = 0; k < 2; k++) oom_watch_begin(w, &m[k], 77 + k);
    for (int k = 0; k < 4 && logs[i].records[k]; k++) {
      put(b.dir, "kmsg", "a", logs[i].records[k]);
      assert_null(oom_watch_died(w, &m[1], 78)); /* reads it */
    }
    const char *said = oom_watch_died(w, &m[0], 77);
    assert_string_equal(said ? said : "-", logs[i].said ? logs[i].said : "-");
    oom_watch_destroy(w);
    bench_close(&b);
  }
}

UNIT_TEST(test_nothing_can_be_read) {
  struct oom_mark m[2] = {0};
  struct oom_watch *w = oom_watch_create(NULL, "/no/such/mount", "/no/such/log");
  oom_watch_begin(w, &m[0], getpid());
  assert_null(oom_watch_died(w, &m[0], getpid()));
  assert_null(oom_watch_died(w, &m[0], 0));
  oom_watch_destroy(w);
}
