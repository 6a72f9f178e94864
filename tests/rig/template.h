/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_TEMPLATE_H
#define TESTS_RIG_TEMPLATE_H

/* The guard's side of a template. The test plays the template: it says words, reads SPAWN commands, and answers them
 * with bytes or with real children. This process is the guard, so it is a subreaper. The clock stands until a test
 * moves it (-Wl,--wrap=boot_ms). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "agent/guard/template.h"

enum {
  CLOCK_MS = 1000000,
  FIRST_WORD_MS = 10000, /* as in template.c */
  FORK_MS = 5000,
  EXIT_RAN = 7, /* a stand-in for a worker got its 'g' */
  EXIT_TURNED_AWAY = 9,
};

extern struct template_rig {
  struct template t;
  int far; /* the template's end; -1: closed */
  uint64_t now_ms;
  size_t fds; /* of this process, before all */
} rig;

/* A SPAWN as the template got it. */
struct asked {
  uint32_t words[6]; /* argc, envc, cpus_size, size, record, round */
  int fds[GUARD_SPAWN_FDS + 2];
  uint32_t rank; /* as the worker's memory file has it */
};

size_t count_fds(void);
/* A setup and a teardown. The teardown fails if a descriptor or a child is left. */
int rig_open(void **state);
int rig_close(void **state);

void say(const void *packet, size_t len);
/* Hears all that was said; how many words. */
size_t hear_all(void);
void queue_worker(uint32_t rank);
bool read_spawn(struct asked *a); /* false: none now */
void answer(const struct asked *a, const void *bytes, size_t len);
void forget(struct asked *a);
/* A worker that answers with its pid and waits for 'g', as template.py makes it. twice: through a process between,
 * which has ended; 0 is returned. Else its pid. */
pid_t fork_worker(const struct asked *a, bool twice);
/* Waits until a worker is due. */
enum template_next await_next(struct waiting_worker *w, pid_t *pid);
/* The next worker is to be exec'd: its local rank. */
uint32_t expect_exec(bool late);
void expect_nobody(void);
void close_worker(const struct waiting_worker *w);
/* The exit code of a child, or of any (-1), once it has ended; *pid may be NULL. */
int reap_one(pid_t which, pid_t *pid);

#endif
