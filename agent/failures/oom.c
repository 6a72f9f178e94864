/* SPDX-License-Identifier: Apache-2.0 */
/* A SIGKILL may come from the kernel, for lack of memory, or from another process. Two places tell which: the counters
 * of the worker's cgroup, and the kernel's log, which names the pid. The formats are the kernel's (mm/oom_kill.c,
 * mm/memcontrol.c) and have not changed since Linux 5. Text in any other format is ignored. */

#include "agent/failures/oom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool oom_cgroup(const char *text, char *out, size_t size) {
  const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
  if (!line) return false;
  line += *line == '\n' ? 4 : 3;
  size_t n = strcspn(line, "\n");
  if (n < 2 || n >= size || line[0] != '/') return false;
  memcpy(out, line, n);
  out[n] = '\0';
  return true;
}

/* The number after `key` at the beginning of a line. */
static bool value_of(const char *text, const char *key, uint64_t *out) {
  size_t n = strlen(key);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (strncmp(line, key, n) != 0 || line[n] != ' ') continue;
    char *end;
    *out = strtoull(line + n + 1, &end, 10);
    return end > line + n + 1;
  }
  return false;
}

bool oom_events_parse(struct oom_events *e, const char *text) {
  *e = (struct oom_events){0};
  return value_of(text, "oom_kill", &e->kills) && value_of(text, "oom", &e->oom);
}

bool oom_limit(const char *memory_max, uint64_t *bytes) {
  char *end;
  if (memory_max[0] < '0' || memory_max[0] > '9') return false;
  *bytes = strtoull(memory_max, &end, 10);
  return *end == '\0' || *end == '\n';
}

bool oom_log_read(struct oom_log *l, const char *record) {
  static const char machine[] = "Out of memory: Killed process ",
                    cgroup[] = "Memory cgroup out of memory: Killed process ", usage[] = "memory: usage ",
                    limit[] = "kB, limit ";
  const char *text = strchr(record, ';'); /* after priority, number, time */
  if (!text++) return false;
  if (strstr(text, " invoked oom-killer: ")) l->last_limit = 0;
  const char *max = strncmp(text, usage, sizeof(usage) - 1) == 0 ? strstr(text, limit) : NULL;
  if (max) l->last_limit = strtoull(max + sizeof(limit) - 1, NULL, 10) * 1024;
  size_t n = 0;
  if (strncmp(text, machine, sizeof(machine) - 1) == 0) n = sizeof(machine) - 1;
  if (strncmp(text, cgroup, sizeof(cgroup) - 1) == 0) n = sizeof(cgroup) - 1;
  if (!n) return false;
  l->cgroup = text[0] == 'M';
  l->pid = (int)strtol(text + n, NULL, 10);
  l->limit = l->cgroup ? l->last_limit : 0;
  return l->pid > 0;
}

void oom_text(bool cgroup, uint64_t limit, char out[OOM_TEXT_MAX]) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t u = 0;
  double n = (double)limit;
  for (; n >= 1024 && u + 1 < sizeof(units) / sizeof(units[0]); u++) n /= 1024;
  if (cgroup && limit)
    snprintf(out, OOM_TEXT_MAX, "out of memory (cgroup limit %.4g %s)", n, units[u]);
  else
    snprintf(out, OOM_TEXT_MAX, "out of memory%s", cgroup ? " (cgroup limit)" : "");
}
