/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_GOODPUT_H
#define DAEMON_JOB_GOODPUT_H

/* What a job's time went to, how it came forward, and what failed: for status, metrics, events and the page. Pure.
 *
 * Read an account for a while, and its buckets grow. Only `productive` may shrink, when work turns out to be lost, to
 * have waited for a checkpoint, or (at a job's first reported step) to have been the start. Their sum never shrinks. */

#include "daemon/job/history.h"
#include "daemon/job/job.h"
#include "daemon/job/ledger.h"
#include "daemon/job/recovery.h"

/* The account as of now, the running period included. waited_for borrows from j, until its next event. */
void job_goodput(const struct job *j, uint64_t now_ms, struct goodput *out);
/* Oldest first; 0: no step was reported. They borrow from j, until its next event. */
size_t job_history(const struct job *j, const struct history_point **points);
/* Of the last recovery; a phase that this daemon has not seen from its beginning to its end is not known. */
const struct recovery_times *job_recovery_times(const struct job *j);
uint64_t job_failures(const struct job *j, enum cause cause); /* settled rounds, since this daemon knows the job */
uint64_t job_restarts(const struct job *j);                   /* rounds after its first one, as far as is known */

#endif
