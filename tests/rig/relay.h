#ifndef TESTS_UNIT_RELAY_HELP_H
#define TESTS_UNIT_RELAY_HELP_H

/* A relay between pipes of ours, its output in memory files or in what the test gives it. Every wait has a deadline,
 * every failure fails the test. */

#include <semaphore.h>
#include <stdint.h>
#include "agent/output/relay.h"

enum { DEADLINE_MS = 20000 };

struct desk {
  struct relay *r;
  int out, err;
  sem_t woken;
};

/* o.out, o.err 0: memory files. They are closed by desk_close. */
void desk_open(struct desk *d, struct relay_options o);
void desk_close(struct desk *d);
/* Of round 3; shown, no files. */
void open_worker(struct desk *d, uint32_t rank, const char *prefix, int *out, int *err);
void open_any(struct desk *d, struct relay_worker w, int *out, int *err);
struct relay_event next_event(struct desk *d);
void expect_drained(struct desk *d, uint32_t rank);
char *content(int fd); /* of a file, from its beginning; free() */
void check_content(int fd, const char *expected);
void check_file(const char *dir, const char *name, const char *expected);
void put(int fd, const char *text);
/* A terminal of 12 columns in raw mode: its master, and what programs write to. */
int open_terminal(int *slave);
char *read_until(int fd, const char *end); /* free() */
void check_terminal(int fd, const char *end, const char *expected);

#endif
