/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_RUN_WAIT_LOG_H
#define AGENT_TRAINER_RUN_WAIT_LOG_H

/* The log of what a run waits for: a checkpoint of many gigabytes, a slow disk, ranks that have not come.
 *
 *   wait_log_begin(w, &t->tally, NULL, "reading checkpoint %s", path);
 *   ... the work, which adds its bytes to the tally ...
 *   wait_log_end(w);
 *
 * A thread logs a line each time that `every_ms` have passed, and the end of a wait that was logged. So a call that
 * never returns is logged as well. NULL is a log that logs nothing. One thread calls these functions. */

#include "common/buf.h"
#include "common/tally.h"

struct wait_log;

/* NULL if the thread cannot be created. */
struct wait_log *wait_log_create(uint64_t every_ms);
void wait_log_destroy(struct wait_log *w);
/* Ends the wait before, if there is one. tally NULL: the work is not counted; else it lives until wait_log_end. unit: the
 * plural of what it counts, which must stay valid; NULL: bytes. */
void wait_log_begin(struct wait_log *w, const struct tally *tally, const char *unit, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void wait_log_end(struct wait_log *w);

/* The lines. Pure. "WHAT: 2.1 of 8.4 GB after 5.0 s, about 15 s left". still_ms: since the last progress; a wait that
 * has made no progress for every_ms is reported as such. */
struct wait_state {
  const char *what, *unit;
  uint64_t ms, still_ms, every_ms, done, total;
};
void wait_log_line(const struct wait_state *s, struct buf *out);
void wait_log_last_line(const struct wait_state *s, struct buf *out); /* "WHAT ended after 21 s: 8.4 GB, 400 MB/s" */

#endif
