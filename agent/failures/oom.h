/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_FAILURES_OOM_H
#define AGENT_FAILURES_OOM_H

/* The kernel's reports of its out-of-memory killer, in the kernel's formats. Pure: text in, facts out. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* /proc/PID/cgroup: the cgroup of version 2, "/job/step0". False: it is the root, or its name is too long. */
bool oom_cgroup(const char *text, char *out, size_t size);

/* memory.events of a cgroup: how often memory ran out at its limit or at one below it (oom), and how many of its
 * processes were killed (oom_kill). False: the text has neither. */
struct oom_events {
  uint64_t oom, kills;
};
bool oom_events_parse(struct oom_events *e, const char *text);
bool oom_limit(const char *memory_max, uint64_t *bytes); /* false: "max", or not a number */

/* Takes one record of /dev/kmsg after the other. True: the record reports that `pid` was killed. `cgroup`: for lack of
 * memory in a cgroup, whose limit is `limit` bytes (0: not known); else in the whole machine. */
struct oom_log {
  uint64_t last_limit; /* of the report being read */
  int pid;
  bool cgroup;
  uint64_t limit;
};
bool oom_log_read(struct oom_log *l, const char *record);

/* "out of memory (cgroup limit 4 GiB)"; limit 0: unknown. */
enum { OOM_TEXT_MAX = 64 };
void oom_text(bool cgroup, uint64_t limit, char out[OOM_TEXT_MAX]);

#endif
