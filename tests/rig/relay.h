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

struct relay_rig {
  struct relay *r;
  struct relay_pipes *pipes[RELAY_RIG_RANKS]; /* the newest of each local rank */
  int out, err;
  sem_t woken;
};

/* o.out, o.err 0: memory files. They are closed by relay_rig_close. */
void relay_rig_open(struct relay_rig *d, struct relay_options o);
void relay_rig_close(struct relay_rig *d);
/* Shown, no files. The one of that local rank before it is released. */
void open_worker(struct relay_rig *d, uint32_t rank, const char *prefix, int *out, int *err);
void open_any(struct relay_rig *d, struct relay_source w, int *out, int *err);
void next_trouble(struct relay_rig *d, char text[RELAY_TROUBLE_MAX]);
void expect_drained(struct relay_rig *d, uint32_t rank);
char *content(int fd); /* of a file, from its beginning; free() */
void check_content(int fd, const char *expected);
void check_file(const char *dir, const char *name, const char *expected);
void put(int fd, const char *text);
/* A terminal of 12 columns in raw mode: its master, and what programs write to. */
int open_terminal(int *slave);
char *read_until(int fd, const char *end); /* free() */
void check_terminal(int fd, const char *end, const char *expected);

#endif
