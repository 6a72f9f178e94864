/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_RELAY_H
#define TESTS_RIG_RELAY_H

/* A relay between pipes of ours, its output in memory files or in what the test gives it. Every wait has a deadline,
 * every failure fails the test. */

#include <semaphore.h>
#include <stdint.h>
#include "agent/output/relay.h"

enum { DEADLINE_MS = 20000 };

enum { RELAY_RIG_RANKS = 8 };

/* Of a test file: relay_rig_close is its teardown. */
extern struct relay_rig {
  struct relay *r;
  struct relay_pipes *pipes[RELAY_RIG_RANKS]; /* the newest of each local rank */
  int out, err;
  int master; /* of open_desk; -1: there is none */
  sem_t woken;
} d;

/* o.out, o.err 0: memory files. They are closed by relay_rig_close. */
void relay_rig_open(struct relay_options o);
/* Both streams of the relay are one terminal, as they mostly are; returns its master. */
int open_desk(bool status);
int relay_rig_close(void **state);
/* Shown, no files. The one of that local rank before it is released. */
void open_worker(uint32_t rank, const char *prefix, int *out, int *err);
void open_any(struct relay_source w, int *out, int *err);
void next_trouble(char text[RELAY_TROUBLE_MAX]);
void close_worker(uint32_t rank, int out, int err); /* its end, and all its output is written */
char *content(int fd);                              /* of a file, from its beginning; free() */
void check_content(int fd, const char *expected);
void check_file(const char *dir, const char *name, const char *expected);
void put(int fd, const char *text);
/* A terminal of 12 columns in raw mode: its master, and what programs write to. */
int open_terminal(int *slave);
char *read_until(int fd, const char *end); /* free() */
void check_terminal(int fd, const char *end, const char *expected);

#endif
