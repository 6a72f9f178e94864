/* SPDX-License-Identifier: Apache-2.0 */
/* A SIGKILL may come from the kernel, for lack of memory, or from another process. The counters of the worker's cgroup
 * (version 2) tell which: when the worker starts, and after its death. Their format is the kernel's (mm/memcontrol.c).
 * Text in any other format is ignored. These files do not block.
 *
 * A counter does not name a process. A cgroup that several workers share has grown by the number of kills, and each death
 * that is reported uses up one of them. */

#include "agent/failures/oom.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/system/file.h"

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

/* "out of memory (cgroup limit 4 GiB)"; limit 0: unknown. */
static void put_text(uint64_t limit, char out[OOM_TEXT_MAX]) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t u = 0;
  double n = (double)limit;
  for (; n >= 1024 && u + 1 < sizeof(units) / sizeof(units[0]); u++) n /= 1024;
  snprintf(out, OOM_TEXT_MAX, "out of memory");
  if (limit) snprintf(out, OOM_TEXT_MAX, "out of memory (cgroup limit %.4g %s)", n, units[u]);
}

/* The watch. ------------------------------------------------------------------------------------------------------- */

static bool read_in(const struct oom_watch *w, const struct oom_mark *m, const char *name, char *out, size_t size) {
  char *path = xasprintf("%s%s/%s", w->root, m->cgroup, name);
  bool there = file_read_text(path, out, size) >= 0;
  free(path);
  return there;
}

static bool read_events(const struct oom_watch *w, const struct oom_mark *m, struct oom_events *e) {
  char text[1024];
  return m->cgroup[0] && read_in(w, m, "memory.events", text, sizeof(text)) && value_of(text, "oom_kill", &e->kills) &&
         value_of(text, "oom", &e->oom);
}

void oom_watch_begin(struct oom_watch *w, struct oom_mark *m, pid_t pid) {
  char text[4096];
  struct oom_mark **at = &w->marks;
  while (*at && *at != m) at = &(*at)->next;
  if (*at) *at = m->next;
  *m = (struct oom_mark){.next = w->marks};
  w->marks = m;
  char *path = xasprintf("%s/%d/cgroup", w->proc, (int)pid);
  bool there = file_read_text(path, text, sizeof(text)) >= 0;
  free(path);
  if (!there) return;
  /* The cgroup of version 2, "0::/job/step0". The root has neither counters nor a limit. */
  const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
  size_t n = 0;
  if (line) line += *line == '\n' ? 4 : 3;
  if (line) n = strcspn(line, "\n");
  if (n < 2 || n >= sizeof(m->cgroup) || line[0] != '/') return;
  memcpy(m->cgroup, line, n);
  if (!read_events(w, m, &m->before)) m->cgroup[0] = '\0';
}

const char *oom_watch_died(struct oom_watch *w, const struct oom_mark *m) {
  struct oom_events now;
  uint64_t limit = 0;
  char max[64], *end;
  if (!read_events(w, m, &now) || now.kills <= m->before.kills) return NULL;
  if (now.oom > m->before.oom && read_in(w, m, "memory.max", max, sizeof(max))) {
    limit = strtoull(max, &end, 10);
    if (max[0] < '0' || max[0] > '9' || (*end && *end != '\n')) limit = 0; /* "max" */
  }
  put_text(limit, w->text);
  /* The same kill must not explain another death in that cgroup. */
  for (struct oom_mark *other = w->marks; m->cgroup[0] && other; other = other->next)
    if (strcmp(other->cgroup, m->cgroup) == 0) {
      other->before.kills++;
      other->before.oom += limit > 0;
    }
  return w->text;
}
