#ifndef AGENT_OOM_H
#define AGENT_OOM_H

/* What the kernel says of its out-of-memory killer, in its own formats. Pure: text in, facts out. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* /proc/PID/cgroup: the cgroup of the second version, "/job/step0". False: it has none but the root, or it is too long. */
bool oom_cgroup(const char *text, char *out, size_t size);

/* memory.events of a cgroup: how often its limit, or one below it, was met without help (oom), and how many of its
 * processes were killed (oom_kill). False where it says neither. */
struct oom_events {
  uint64_t oom, kills;
};
bool oom_events_parse(struct oom_events *e, const char *text);
bool oom_limit(const char *memory_max, uint64_t *bytes); /* false: "max", or no number */

/* One record of /dev/kmsg after the other. True: it says that `pid` was killed; then cgroup says for whose lack of memory,
 * and limit (bytes; 0: not told) what the cgroup was allowed. */
struct oom_log {
  uint64_t last_limit; /* of the report under way */
  int pid;
  bool cgroup;
  uint64_t limit;
};
bool oom_log_read(struct oom_log *l, const char *record);

/* "out of memory (cgroup limit 4 GiB)"; limit 0: not known. */
enum { OOM_TEXT_MAX = 64 };
void oom_text(bool cgroup, uint64_t limit, char out[OOM_TEXT_MAX]);

#endif
