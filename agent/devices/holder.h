#ifndef AGENT_HOLDER_H
#define AGENT_HOLDER_H

/* Who a process is, as far as /proc tells: for sentences about who holds a device. Reading the memory of another process
 * may hang in the kernel, so this is for rdzv-devices alone. */

#include <stdbool.h>
#include <sys/types.h>

enum { HOLDER_USER_MAX = 33, HOLDER_COMMAND_MAX = 81, HOLDER_JOB_MAX = 129 }; /* with the NUL */

struct holder {
  bool gone;                        /* no such process here (of another container?), or a zombie */
  char user[HOLDER_USER_MAX];       /* its name, or number; "": not known */
  char command[HOLDER_COMMAND_MAX]; /* its command line, cut; or its name in brackets; "": not known */
  char job[HOLDER_JOB_MAX];         /* RDZV_RUN_ID in its environment; "": none, or it may not be read */
  long long round;                  /* RDZV_ROUND there; 0: none */
};

/* proc: where /proc is. */
void holder_read(struct holder *h, const char *proc, pid_t pid);

#endif
