#ifndef AGENT_OOM_WATCH_H
#define AGENT_OOM_WATCH_H

/* Whether a worker that died of SIGKILL was killed by the kernel for want of memory. */

#include <stdint.h>
#include <sys/types.h>

struct oom_watch;
/* proc: PID/cgroup in it; cgroups: where version 2 is mounted; kmsg: the kernel's log from now on. NULL: the system's own;
 * what is not there or may not be read tells nothing. */
struct oom_watch *oom_watch_create(uint32_t count, const char *proc, const char *cgroups, const char *kmsg);
void oom_watch_destroy(struct oom_watch *w);
void oom_watch_begin(struct oom_watch *w, uint32_t local_rank,
                     pid_t pid); /* it runs: its cgroup, as it stands */
/* After its death by SIGKILL: "out of memory (...)", or NULL: nothing is known of who sent it. Valid until the next call. */
const char *oom_watch_died(struct oom_watch *w, uint32_t local_rank, pid_t pid);

#endif
