/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_JOB_HEALTH_H
#define DAEMON_JOB_HEALTH_H

#include "daemon/health/findings.h"
#include "daemon/job/job.h"

/* FACTS of m. */
void job_take_facts(struct member *m, const struct facts *said, uint64_t now_ms);
/* What is odd now, for people and programs. NULL: no node has said facts. */
const struct findings *job_findings(const struct job *j);
/* The host's record; NULL: nothing about it was ever odd. */
const struct odd_host *job_odd_host(const struct job *j, const char *host);
size_t job_count_odd(const struct job *j); /* findings that hold now */

#endif
