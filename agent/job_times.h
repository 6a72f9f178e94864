#ifndef AGENT_JOB_TIMES_H
#define AGENT_JOB_TIMES_H

/* When the scheduler ends the job, by the clock on the wall, and --leave-before-end. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/options/options.h"
#include "common/err.h"

enum { JOB_TIMES_LEN = 40 };

/* The end as people read it, "2026-09-21 15:33:20", in this machine's time zone; false: it is not known. */
bool job_times_end(const struct agent_options *o, char out[JOB_TIMES_LEN]);
/* -EINVAL and a sentence: the moment to leave has passed already. */
int job_times_check(const struct agent_options *o, struct err *e);
/* One line at the start: when the job ends, and that it was started before; by the first agent alone. */
void job_times_say(const struct agent_options *o);
/* Milliseconds until this agent is to leave, 0 where that moment has passed; -1: it is to stay. */
int64_t job_times_left_ms(const struct agent_options *o);
/* "the scheduler ends the job in 10m" */
void job_times_reason(const struct agent_options *o, struct buf *out);

#endif
