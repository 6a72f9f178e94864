/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_PROCESS_H
#define DAEMON_SERVER_PROCESS_H

/* What /proc and the clocks say of this process, for /metrics. */

#include <dirent.h>
#include "daemon/core/metrics.h"

struct process {
  struct process_facts facts; /* when process_more has returned false */
  DIR *fds;
};

/* started_wall_s: when the daemon started, in seconds since 1970. */
void process_begin(struct process *p, double started_wall_s);
/* Counts open descriptors, some at a time: kernels before 6.2 only list them. False: they are counted. */
bool process_more(struct process *p);
void process_finish(struct process *p);

/* For tests: as if the kernel did not know their number. */
void process_begin_counting(struct process *p);

#endif
