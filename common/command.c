/* Finding programs.
 *
 * The agent does not run anything itself: the guard does, by the worker's own PATH. What is found here is
 * only told to a person early (a typo should not take a rendezvous to be noticed), or is one of our own
 * programs. Those are looked for beside the agent's binary first, so that a build tree, an installation and a
 * copied folder each use what belongs together, and PATH comes last. Helpers that nobody calls by hand are
 * installed in a folder of their own (RDZV_HELPERS, from meson: ../libexec/rdzv/, relative, so that an installed
 * tree may be moved). /proc/self/exe and not argv[0]: the latter is whatever the caller likes.
 *
 * What can be run is what access(2) says; that a script's interpreter is missing only shows when it is tried. */

#include "common/command.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"

static const char default_path[] = "/usr/local/bin:/bin:/usr/bin";

/* 0, -EACCES or -ENOENT. */
static int try_file(const char *file) {
  struct stat st;
  if (stat(file, &st) != 0) return errno == EACCES ? -EACCES : -ENOENT;
  return S_ISREG(st.st_mode) && access(file, X_OK) == 0 ? 0 : -EACCES;
}

static char *find_in_path(const char *name, const char *path, int *why) {
  *why = -ENOENT;
  for (const char *p = path; p; p = strchr(p, ':') ? strchr(p, ':') + 1 : NULL) {
    size_t n = strcspn(p, ":");
    char *file = xasprintf("%.*s%s%s", (int)n, p, n ? "/" : "./", name); /* an empty entry is "." */
    int rc = try_file(file);
    if (rc == 0) return file;
    if (rc == -EACCES) *why = rc;
    free(file);
  }
  return NULL;
}

char *command_find(const char *name, const char *path, struct err *e) {
  bool slash = strchr(name, '/') != NULL;
  int why = -ENOENT;
  char *file = NULL;
  if (slash)
    why = try_file(name);
  else if (*name)
    file = find_in_path(name, path ? path : default_path, &why);
  if (slash && why == 0) return xstrdup(name);
  if (file) return file;
  if (why == -EACCES)
    err_set(e, why, "%s cannot be run: it is a directory, or lacks the permission (chmod +x)", name);
  else
    err_set(e, why, "%s: command not found%s", name, slash ? "" : " in PATH");
  return NULL;
}

char *command_companion(const char *name, const char *built, const char *path) {
  const char *const places[] = {"", built ? built : "", RDZV_HELPERS};
  char dir[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
  while (n > 0 && dir[n - 1] != '/') n--;
  for (size_t i = 0; n > 0 && i < sizeof(places) / sizeof(*places); i++) {
    char *file = xasprintf("%.*s%s%s", (int)n, dir, places[i], name);
    if (try_file(file) == 0) return file;
    free(file);
  }
  return command_find(name, path, NULL);
}
