/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a process: its owner, its command line, and the job whose worker it is or descends from.
 *
 * The text is shown to people and not trusted: bytes that are not text become question marks, long texts are cut. For
 * a process that is gone, a zombie, or in another container, unreadable fields stay empty. The job's name comes from
 * the environment at the process's start, which only its user and root may read. */

#include "agent/devices/process_description.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "common/mem.h"
#include "common/system/file.h"

enum { ENVIRON_MAX = 1 << 20, COMM_MAX = 64, STAT_MAX = 512 };

/* Returns how many bytes there are; 0: unreadable. */
static size_t read_some(const char *proc, pid_t pid, const char *name, char *out, size_t size) {
  char path[256];
  snprintf(path, sizeof path, "%s/%d/%s", proc, (int)pid, name);
  ssize_t n = file_read_text(path, out, size);
  return n > 0 ? (size_t)n : 0;
}

static void make_text(char *s, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (s[i] == '\0' || s[i] == '\n') s[i] = ' ';
    if ((unsigned char)s[i] < 0x20 || (unsigned char)s[i] > 0x7e) s[i] = '?';
  }
  while (n > 0 && s[n - 1] == ' ') s[--n] = '\0';
}

static const char *find_variable(const char *text, size_t n, const char *name) {
  size_t len = strlen(name);
  for (size_t at = 0; at < n; at += strlen(text + at) + 1)
    if (strncmp(text + at, name, len) == 0) return text + at + len;
  return NULL;
}

void process_description_read(struct process_description *h, const char *proc, pid_t pid) {
  *h = (struct process_description){0};
  char path[256];
  struct stat st;
  snprintf(path, sizeof path, "%s/%d", proc, (int)pid);
  if (stat(path, &st) == 0) {
    const struct passwd *who = getpwuid(st.st_uid);
    if (who)
      snprintf(h->user, sizeof h->user, "%s", who->pw_name);
    else
      snprintf(h->user, sizeof h->user, "uid %u", (unsigned)st.st_uid);
    make_text(h->user, strlen(h->user));
  }
  char text[STAT_MAX];
  read_some(proc, pid, "stat", text, sizeof text);
  const char *p = strrchr(text, ')');
  h->gone = !h->user[0] || (p && p[1] == ' ' && (p[2] == 'Z' || p[2] == 'X'));
  size_t n = read_some(proc, pid, "cmdline", h->command, sizeof h->command);
  make_text(h->command, n);
  if (!h->command[0]) {
    char name[COMM_MAX];
    n = read_some(proc, pid, "comm", name, sizeof name);
    make_text(name, n);
    if (name[0]) snprintf(h->command, sizeof h->command, "[%s]", name);
  }
  char *env = xmalloc(ENVIRON_MAX);
  n = read_some(proc, pid, "environ", env, ENVIRON_MAX);
  const char *job = find_variable(env, n, "RDZV_RUN_ID="), *round = find_variable(env, n, "RDZV_ROUND=");
  if (job) snprintf(h->job, sizeof h->job, "%s", job);
  if (job && round) h->round = strtoll(round, NULL, 10);
  make_text(h->job, strlen(h->job));
  free(env);
}
