/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_GUARD_H
#define TESTS_RIG_GUARD_H

/* A guard with real processes under a test: every wait is for an event and has a deadline, every failure fails the
 * test. The round is always 7. This process is a subreaper (guard_start makes it one), so "nothing survives" can be
 * asked of /proc exactly: the test has no living descendant. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/guard/guard.h"

enum {
  PATIENCE_MS = 20000,
  STAFF = 2, /* the guard and its backstop: what lives when nothing of a worker does */
};

extern const char *const plain_env[]; /* PATH, and MARK=yes */

uint64_t now_ms(void);
extern struct guard g; /* the guard of the test, if it has one alone */
/* A test that begins with a guard, and ends with its end. */
#define GUARD_TEST(f) UNIT_TEST_WITH(f, guard_setup, guard_teardown)
int guard_setup(void **state);
int guard_teardown(void **state);
void start(void);
/* *out (may be NULL) gets the read end of its stdout and stderr. */
void spawn_env(uint32_t rank, uint32_t count, const char *const *argv, const char *const *env, int *out);
void spawn_shell(uint32_t rank, uint32_t count, const char *script, int *out);
/* The same, and the worker has printed a line since. Returns the read end. */
int spawn_env_ready(uint32_t rank, uint32_t count, const char *const *argv, const char *const *env);
int spawn_ready(uint32_t rank, uint32_t count, const char *script);
/* Forks a process that plays an agent, with a pipe that tells that it is ready; this one inherits its orphans. */
pid_t fork_agent(int ready[2]);
struct guard_event next_event(void);
struct guard_event expect(enum guard_event_kind kind); /* the next one is of this kind */
struct guard_event await(enum guard_event_kind kind);  /* skips others */
void stop(uint32_t grace_ms);
void finish(void);
char *read_all(int fd); /* to its end, closes it; free() */
void read_line(int fd, char *out, size_t size);
size_t living(pid_t spare); /* descendants of this process that are no zombies */
int clean(void **state);    /* teardown: what a failed test left must not fail the next */

/* Stopped in a way that SIGCONT does not end, as by a debugger; false: it may not be traced here. */
bool freeze(void);
void thaw(void);

/* A shell line that starts processes in many sessions and depths, says "ready" and goes on to what is put behind. */
#define TREE                                                                                                           \
  "setsid sh -c 'trap \"\" TERM; sleep 60 & setsid sleep 61 & wait' & "      /* sessions below sessions */             \
  "(setsid sh -c 'trap \"\" TERM HUP; sleep 62 & wait' &) ; "                /* a daemon, forked twice */              \
  "setsid sh -c 'setsid sh -c \"setsid sleep 63 & sleep 64\" & sleep 65' & " /* its parents go first */                \
  "sleep 66 & echo ready; "
enum { TREE_SLEEPS = 7 };
void wait_trees(size_t n); /* until n of them stand: a shell is ready before its children are */
int spawn_deaf_tree(void); /* a worker and its whole tree, which ignore SIGTERM; returns the worker's output */

#endif
