/* SPDX-License-Identifier: Apache-2.0 */
/* Where the site's defaults are, and whether they can be trusted.
 *
 * The build has the path: absolute if the build's sysconfdir is not below its prefix (/etc for the prefix /usr), else
 * relative to the folder of this binary, so that a tree that was moved or unpacked takes its file along.
 *
 * The file names programs that rdzv-agent runs, so common/system/trust.h decides whether it counts. A file that cannot
 * be read or trusted ends the agent: on one node of a job other settings than on the others would count. */

#include "agent/options/options.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/file.h"
#include "common/system/trust.h"

int site_conf_read(struct opts_file *f, char *const *env, struct err *e) {
  const char *variable = "RDZV_AGENT_CONF=", *given = agent_options_variable(env, "RDZV_AGENT_CONF");
  if (given) given += strlen(variable); /* "" counts: there is no file */
  *f = (struct opts_file){0};
  if (given && !*given) return 0;
  char dir[PATH_MAX] = "";
  ssize_t n = RDZV_SITE_CONF[0] == '/' ? 0 : readlink("/proc/self/exe", dir, sizeof(dir) - 1);
  while (n > 0 && dir[n - 1] != '/') n--;
  char *path = given ? xstrdup(given) : xasprintf("%.*s%s", n > 0 ? (int)n : 0, dir, RDZV_SITE_CONF);
  struct err why = ERR_INIT;
  char *real = trust_resolve(path, &why);
  free(path);
  if (!real && !given && (why.code == -ENOENT || why.code == -ENOTDIR)) return 0;
  if (!real) return err_set(e, why.code, "%s%s", given ? variable : "", why.text);
  struct stat st = {0};
  struct buf text = BUF_INIT;
  int fd = open(real, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY), rc = fd < 0 || fstat(fd, &st) ? -errno : 0;
  if (rc == 0 && S_ISREG(st.st_mode)) rc = file_drain(fd, OPTS_FILE_MAX, &text), fd = -1;
  if (fd >= 0) close(fd);
  if (rc)
    err_sys(e, rc, "%s%s cannot be read", given ? variable : "", real);
  else if (!S_ISREG(st.st_mode))
    rc = err_set(e, -EINVAL, "%s is not a file: give a file with a setting on a line", real);
  else if (text.len > OPTS_FILE_MAX)
    rc = err_set(e, -EINVAL, "%s is longer than %d bytes: a setting on a line is all that it needs", real,
                 OPTS_FILE_MAX);
  size_t len = text.len;
  if (rc == 0) return opts_file_parse(f, &agent_options_spec, real, buf_steal(&text), len, e);
  buf_finish(&text);
  free(real);
  return rc;
}
