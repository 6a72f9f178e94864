/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_PROCESS_DESCRIPTION_H
#define AGENT_DEVICES_PROCESS_DESCRIPTION_H

/* Describes a process from /proc, for sentences about the holder of a device. Reading it may hang in the kernel, so
 * only rdzv-devices does. */

#include <stdbool.h>
#include <sys/types.h>

enum { PROCESS_USER_MAX = 33, PROCESS_COMMAND_MAX = 81, PROCESS_JOB_MAX = 129 }; /* with the NUL */

struct process_description {
  bool gone;                         /* no such process here (another container?), or a zombie */
  char user[PROCESS_USER_MAX];       /* user name, or number; "": not known */
  char command[PROCESS_COMMAND_MAX]; /* its command line, cut; or its name in brackets; "": not known */
  char job[PROCESS_JOB_MAX];         /* RDZV_RUN_ID in its environment; "": none, or not readable */
  long long round;                   /* RDZV_ROUND there; 0: none */
};

/* proc: path of /proc. */
void process_description_read(struct process_description *h, const char *proc, pid_t pid);

#endif
