/* SPDX-License-Identifier: Apache-2.0 */
/* agent/failures/oom.c: out of memory or another SIGKILL, from counters of the test. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/failures/oom.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

/* A mount with the cgroup of this process in it. */
struct bench {
  char dir[32];
  char *proc, *cgroup;
};

static void put(const char *dir, const char *name, const char *text) {
  char *path = xasprintf("%s/%s", dir, name);
  FILE *f = fopen(path, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
  free(path);
}

enum { PID = 4713 };

static void bench_open(struct bench *b) {
  strcpy(b->dir, "/tmp/rdzv-test-XXXXXX");
  assert_non_null(mkdtemp(b->dir));
  b->proc = xasprintf("%s/%d", b->dir, PID);
  b->cgroup = xasprintf("%s/worker", b->dir);
  assert_int_equal(mkdir(b->proc, 0700) | mkdir(b->cgroup, 0700), 0);
  put(b->proc, "cgroup", "4:memory:/of/version/one\n0::/worker\n");
}

static void bench_close(struct bench *b) {
  char *command = xasprintf("rm -r %s", b->dir);
  assert_int_equal(system(command), 0);
  free(command);
  free(b->cgroup);
  free(b->proc);
}

/* One kill of two deaths: the first that is told has it. */
UNIT_TEST(test_counters) {
  struct bench b;
  bench_open(&b);
  put(b.cgroup, "memory.events", "oom 1\noom_kill 1\n");
  put(b.cgroup, "memory.max", "2147483648\n");
  struct oom_mark m[2] = {0};
  struct oom_watch w = {.proc = b.dir, .root = b.dir};
  for (uint32_t i = 0; i < 2; i++) oom_watch_begin(&w, &m[i], PID);
  assert_null(oom_watch_died(&w, &m[0]));
  put(b.cgroup, "memory.events", "oom 2\noom_kill 2\n");
  assert_string_equal(oom_watch_died(&w, &m[1]), "out of memory (cgroup limit 2 GiB)");
  assert_null(oom_watch_died(&w, &m[0]));
  put(b.cgroup, "memory.events", "oom 2\noom_kill 3\n"); /* not for want of its own cgroup's */
  assert_string_equal(oom_watch_died(&w, &m[0]), "out of memory");
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
    put(b.proc, "cgroup", deaths[i].cgroup);
    put(b.cgroup, "memory.events", BEFORE);
    struct oom_watch w = {.proc = b.dir, .root = b.dir};
    oom_watch_begin(&w, &m, PID);
    put(b.cgroup, "memory.events", deaths[i].events);
    put(b.cgroup, "memory.max", deaths[i].max);
    const char *said = oom_watch_died(&w, &m);
    assert_string_equal(said ? said : "-", deaths[i].said ? deaths[i].said : "-");
    bench_close(&b);
  }
}

UNIT_TEST(test_nothing_can_be_read) {
  struct oom_mark m = {0};
  struct oom_watch w = {.proc = "/proc", .root = "/no/such/mount"};
  oom_watch_begin(&w, &m, getpid());
  assert_null(oom_watch_died(&w, &m));
}
