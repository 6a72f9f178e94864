/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_HOLDER_H
#define AGENT_DEVICES_HOLDER_H

/* Describes a process from /proc, for sentences about the holder of a device. Reading it may hang in the kernel, so
 * only rdzv-devices does. */

#include <stdbool.h>
#include <sys/types.h>

enum { HOLDER_USER_MAX = 33, HOLDER_COMMAND_MAX = 81, HOLDER_JOB_MAX = 129 }; /* with the NUL */

struct holder {
  bool gone;                        /* no such process here (another container?), or a zombie */
  char user[HOLDER_USER_MAX];       /* user name, or number; "": not known */
  char command[HOLDER_COMMAND_MAX]; /* its command line, cut; or its name in brackets; "": not known */
  char job[HOLDER_JOB_MAX];         /* RDZV_RUN_ID in its environment; "": none, or not readable */
  long long round;                  /* RDZV_ROUND there; 0: none */
};

/* proc: path of /proc. */
void holder_read(struct holder *h, const char *proc, pid_t pid);

#endif
