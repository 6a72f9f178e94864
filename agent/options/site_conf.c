/* SPDX-License-Identifier: Apache-2.0 */
/* Where the site's defaults are, and whether they can be trusted.
 *
 * The build has the path: absolute if the build's sysconfdir is not below its prefix (/etc for the prefix /usr), else
 * relative to the folder of this binary, so that a tree that was moved or unpacked takes its file along.
 *
 * The file names programs that rdzv-agent runs, so common/system/trust.h decides whether it counts. A file that cannot
 * be read or trusted ends the agent: on one node of a job other settings than on the others would count. */

#include "agent/options/site_conf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/options/options.h"
#include "common/mem.h"
#include "common/system/trust.h"

static const char variable[] = "RDZV_AGENT_CONF=";

/* The variable's value, or NULL; here "" says something. */
static const char *find_given(char *const *env) {
  for (; env && *env; env++)
    if (strncmp(*env, variable, sizeof(variable) - 1) == 0) return *env + sizeof(variable) - 1;
  return NULL;
}

static char *own_path(void) {
  char dir[PATH_MAX];
  ssize_t n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
  if (RDZV_SITE_CONF[0] == '/' || n <= 0) return xstrdup(RDZV_SITE_CONF);
  while (n > 0 && dir[n - 1] != '/') n--;
  return xasprintf("%.*s%s", (int)n, dir, RDZV_SITE_CONF);
}

static int check_file(int fd, const char *path, struct err *e) {
  struct stat st;
  if (fstat(fd, &st) != 0) return err_sys(e, -errno, "%s cannot be read", path);
  if (!S_ISREG(st.st_mode)) return err_set(e, -EINVAL, "%s is not a file: give a file with a setting on a line", path);
  return 0;
}

/* The file's text on the heap, of at most OPTS_FILE_MAX bytes and a NUL; or NULL. */
static char *read_text(int fd, const char *path, size_t *len, struct err *e) {
  char *text = xcalloc(1, OPTS_FILE_MAX + 2);
  ssize_t n = 0;
  for (*len = 0; *len <= OPTS_FILE_MAX; *len += (size_t)n) {
    do n = read(fd, text + *len, OPTS_FILE_MAX + 1 - *len);
    while (n < 0 && errno == EINTR);
    if (n <= 0) break;
  }
  if (n == 0 && *len <= OPTS_FILE_MAX) return text;
  if (n < 0)
    err_sys(e, -errno, "%s cannot be read", path);
  else
    err_set(e, -EINVAL, "%s is longer than %d bytes: a setting on a line is all that it needs", path, OPTS_FILE_MAX);
  free(text);
  return NULL;
}

/* Takes the path. */
static int read_file(struct opts_file *f, int fd, char *path, struct err *e) {
  size_t len = 0;
  int rc = check_file(fd, path, e);
  char *text = rc ? NULL : read_text(fd, path, &len, e);
  if (text) return opts_file_parse(f, &agent_options_spec, path, text, len, e);
  free(path);
  return rc ? rc : -EIO;
}

int site_conf_read(struct opts_file *f, char *const *env, struct err *e) {
  const char *given = find_given(env);
  *f = (struct opts_file){0};
  if (given && !*given) return 0;
  struct err why = ERR_INIT;
  char *path = given ? xstrdup(given) : own_path(), *real = trust_resolve(path, &why);
  free(path);
  if (!real && !given && (why.code == -ENOENT || why.code == -ENOTDIR)) return 0;
  if (!real) return err_set(e, why.code, "%s%s", given ? variable : "", why.text);
  int fd = open(real, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    int rc = err_sys(e, -errno, "%s%s cannot be read", given ? variable : "", real);
    free(real);
    return rc;
  }
  int rc = read_file(f, fd, real, e);
  close(fd);
  return rc;
}
