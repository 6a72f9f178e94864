/* SPDX-License-Identifier: Apache-2.0 */
/* The agent does not run the workers' command itself: the guard does, with the worker's own PATH. The agent looks for
 * it only to report a typing error before a rendezvous. The other programs of this project are looked for beside the
 * agent's binary first, so that a build tree, an installation and a copied folder each use their own; PATH comes last.
 * Helpers that are not called by hand are installed in their own folder (RDZV_HELPERS, from meson: ../libexec/rdzv/,
 * relative, so that an installed tree can be moved). /proc/self/exe names the binary, since the caller chooses argv[0].
 *
 * access(2) decides whether a file can be run. A missing interpreter of a script shows only when it is run.
 *
 * torchrun's users give a script any name. A word that cannot be run as a program is left to Python if Python would
 * take it: a folder with __main__.py, a zip archive (.pyz), a file whose first line names Python, and text that has
 * neither such a line nor a suffix. For a program of another kind (train.sh) the error says what is missing. */

#include "common/system/command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/trust.h"

enum { PYTHON_HEAD_MAX = 256 };

static const char archive[] = ".pyz";
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
    err_set(e, why, "%s cannot be run: it is a directory, or it lacks the execute permission (chmod +x)", name);
  else
    err_set(e, why, "%s: command not found%s", name, slash ? "" : " in PATH");
  return NULL;
}

/* The kind of a file, from its name and first bytes. */
static bool looks_like_python(const char *name, const char *head, size_t n) {
  static const char zip[] = {'P', 'K', 3, 4};
  if (n >= sizeof(zip) && memcmp(head, zip, sizeof(zip)) == 0) return true;
  size_t line = 0;
  while (line < n && head[line] != '\n') line++;
  if (n >= 2 && head[0] == '#' && head[1] == '!') return memmem(head, line, "python", 6) != NULL;
  const char *slash = strrchr(name, '/');
  return !strchr(slash ? slash + 1 : name, '.') && memchr(head, '\0', n) == NULL;
}

static bool is_python_file(const char *file) {
  char head[PYTHON_HEAD_MAX];
  struct stat st;
  int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  bool plain = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
  ssize_t n = plain ? read(fd, head, sizeof(head)) : -1;
  close(fd);
  return n > 0 && looks_like_python(file, head, (size_t)n);
}

static bool has_main(const char *folder) {
  char *file = xasprintf("%s/__main__.py", folder);
  bool there = access(file, F_OK) == 0;
  free(file);
  return there;
}

bool command_is_python_file(const char *name, const char *path) {
  size_t n = strlen(name), k = strlen(archive);
  bool is_archive = n > k && strcmp(name + n - k, archive) == 0; /* exec would give it to the shell */
  char *program = command_find(name, path, NULL);
  free(program);
  return (!program || is_archive) && (has_main(name) || is_python_file(name));
}

/* The folder of this binary, with a slash at its end; its length. 0: not known. */
static int own_folder(char dir[PATH_MAX]) {
  ssize_t n = readlink("/proc/self/exe", dir, PATH_MAX - 1);
  while (n > 0 && dir[n - 1] != '/') n--;
  return n > 0 ? (int)n : 0;
}

char *command_companion(const char *name, const char *built, const char *path, struct err *e) {
  const char *const places[] = {"", built ? built : "", RDZV_HELPERS};
  char dir[PATH_MAX];
  int n = own_folder(dir);
  for (size_t i = 0; n > 0 && i < sizeof(places) / sizeof(*places); i++) {
    char *file = xasprintf("%.*s%s%s", n, dir, places[i], name);
    bool found = try_file(file) == 0;
    char *real = found ? trust_resolve(file, e) : NULL;
    free(file);
    if (found) return real;
  }
  char *file = command_find(name, path, NULL);
  if (!file) err_set(e, -ENOENT, "%s is neither beside this program (in %.*s) nor in PATH", name, n, dir);
  return file;
}

char *command_library(const char *name, const char *built) {
  const char *const places[] = {"", built, RDZV_HELPERS};
  char dir[PATH_MAX];
  int n = own_folder(dir);
  char *found = NULL;
  for (size_t i = 0; n > 0 && i < sizeof(places) / sizeof(*places) && !found; i++) {
    char *file = xasprintf("%.*s%s%s", n, dir, places[i], name);
    if (access(file, R_OK) == 0) found = trust_resolve(file, NULL);
    free(file);
  }
  return found;
}

char *command_data(const char *name, const char *built, struct err *e) {
  const char *const places[][2] = {{RDZV_DATA, name}, {"", built}};
  char dir[PATH_MAX];
  int n = own_folder(dir);
  for (size_t i = 0; n > 0 && i < sizeof(places) / sizeof(*places); i++) {
    char *file = xasprintf("%.*s%s%s", n, dir, places[i][0], places[i][1]);
    if (access(file, R_OK) == 0) return file;
    free(file);
  }
  err_set(e, -ENOENT, "%.*s" RDZV_DATA "%s cannot be read: install the share folder of rdzv with its programs", n, dir,
          name);
  return NULL;
}

/* What marks a folder as an environment, on the heap. NULL: it is none. */
static char *find_mark(const char *root, int n) {
  static const char *const marks[] = {"pyvenv.cfg", "conda-meta"};
  for (size_t i = 0; i < sizeof(marks) / sizeof(*marks); i++) {
    char *mark = xasprintf("%.*s%s", n, root, marks[i]);
    if (access(mark, F_OK) == 0) return mark;
    free(mark);
  }
  return NULL;
}

/* Python is run by its name in the environment, where it is a link: by that it knows its modules. */
static bool trust_both(const char *mark, const char *python, struct err *e) {
  char *real = trust_resolve(mark, e), *program = real ? trust_resolve(python, e) : NULL;
  bool ok = program != NULL;
  free(real);
  free(program);
  return ok;
}

/* Programs are installed in bin/, helpers in libexec/rdzv/: the environment's folder is one or two above. */
char *command_own_python(struct err *e) {
  char dir[PATH_MAX];
  int n = own_folder(dir);
  for (int up = 0; n > 1 && up < 2; up++) {
    for (n--; n > 0 && dir[n - 1] != '/';) n--;
    char *mark = find_mark(dir, n), *python = mark ? xasprintf("%.*sbin/python3", n, dir) : NULL;
    bool found = python && try_file(python) == 0, ok = found && trust_both(mark, python, e);
    free(mark);
    if (ok) return python;
    free(python);
    if (found) return NULL;
  }
  return NULL;
}
