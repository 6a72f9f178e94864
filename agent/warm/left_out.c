/* SPDX-License-Identifier: Apache-2.0 */
/* What template.py has remembered of a script, for --explain. The folder holds one file of text for each interpreter and
 * script; its class Cache says how such a file looks. A file's second line ends with the script's path, or with the
 * module and its folder. */

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/warm/warm.h"
#include "common/mem.h"

enum { MEMORY_SIZE_MAX = 1 << 20, MEMORY_FILES_MAX = 64, REASON_SHOWN_MAX = 200 }; /* as in template.py */

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n >= m && strcmp(text + n - m, end) == 0;
}

static bool is_of(const char *key, char *const *argv) {
  char path[PATH_MAX], folder[PATH_MAX];
  bool found = false;
  if (!getcwd(folder, sizeof(folder))) return false;
  for (size_t i = 1; argv[i] && !found; i++) {
    char *script = realpath(argv[i], path) ? xasprintf(" %s", path) : NULL;
    char *module = xasprintf(" module %s %s", argv[i], folder);
    found = (script && ends_with(key, script)) || ends_with(key, module);
    free(script);
    free(module);
  }
  return found;
}

/* The whole file, if nobody else can have written it; or NULL. */
static char *read_memory(int dir, const char *name) {
  struct stat st;
  int fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return NULL;
  bool own = fstat(fd, &st) == 0 && st.st_uid == geteuid() && S_ISREG(st.st_mode) && !(st.st_mode & 022) &&
             st.st_size <= MEMORY_SIZE_MAX;
  char *text = own ? xcalloc(1, (size_t)st.st_size + 1) : NULL;
  if (own && read(fd, text, (size_t)st.st_size) != st.st_size) *text = '\0';
  close(fd);
  return text;
}

static void add_left_out(char *text, char *const *argv, struct buf *out) {
  char *rest = NULL, *line = strtok_r(text, "\n", &rest), *key = strtok_r(NULL, "\n", &rest);
  if (!line || strcmp(line, "rdzv-warm 1") != 0 || !key || !is_of(key, argv)) return;
  while ((line = strtok_r(NULL, "\n", &rest))) {
    char *name = line + 5, *reason = strncmp(line, "skip ", 5) == 0 ? strchr(name, ' ') : NULL;
    if (!reason) continue;
    *reason++ = '\0';
    buf_puts(out, out->len ? "; " : "without ");
    buf_put_escaped(out, name, strlen(name), REASON_SHOWN_MAX);
    buf_puts(out, ": ");
    buf_put_escaped(out, reason, strlen(reason), REASON_SHOWN_MAX);
  }
}

void warm_left_out(char *const *argv, const char *cache, const char *home, struct buf *out) {
  char *path = cache ? xasprintf("%s/rdzv/warm", cache) : home ? xasprintf("%s/.cache/rdzv/warm", home) : NULL;
  DIR *d = path && *path == '/' ? opendir(path) : NULL;
  const struct dirent *e;
  for (int files = 0; d && files < MEMORY_FILES_MAX && (e = readdir(d));) {
    char *text = *e->d_name == '.' ? NULL : read_memory(dirfd(d), e->d_name);
    if (!text) continue;
    files++;
    add_left_out(text, argv, out);
    free(text);
  }
  if (d) closedir(d);
  free(path);
}
