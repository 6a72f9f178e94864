/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_JOB_TIMES_H
#define AGENT_JOB_TIMES_H

/* When the scheduler ends the job, by the wall clock, and --leave-before-end. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/options/options.h"
#include "common/err.h"

enum { JOB_TIMES_LEN = 40 };

/* The end, "2026-09-21 15:33:20", in local time; false: not known. */
bool job_times_end(const struct agent_options *o, char out[JOB_TIMES_LEN]);
/* -EINVAL and a sentence if the moment to leave has passed already. */
int job_times_check(const struct agent_options *o, struct err *e);
/* Logs, on the first agent only, when the job ends and how often it was restarted. */
void job_times_say(const struct agent_options *o);
/* Milliseconds until this agent must leave, 0: now; -1: never. */
int64_t job_times_left_ms(const struct agent_options *o);
/* "the scheduler ends the job in 10m" */
void job_times_reason(const struct agent_options *o, struct buf *out);

#endif
