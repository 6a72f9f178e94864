/* SPDX-License-Identifier: Apache-2.0 */
/* Three looks: at each link on the way; at what they lead to; at the folder of that. The sentence is about the first of
 * them that fails. */

#include "common/system/trust.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/user.h"

enum { LINKS_MAX = 40 }; /* on the way to a file, as for the kernel */

static bool is_trusted_owner(uid_t uid) {
  struct stat program;
  return uid == 0 || user_is_self(uid) || (stat("/proc/self/exe", &program) == 0 && program.st_uid == uid);
}

static bool is_private_group(uid_t uid, gid_t gid) {
  const struct passwd *user = getpwuid(uid);
  const struct group *group = user && user->pw_gid == gid ? getgrgid(gid) : NULL;
  if (!group || strcmp(group->gr_name, user->pw_name) != 0) return false;
  for (char **member = group->gr_mem; *member; member++)
    if (strcmp(*member, user->pw_name) != 0) return false;
  return true;
}

static bool is_trusted_group(const char *path, const struct stat *st) {
  if (lgetxattr(path, "system.posix_acl_access", NULL, 0) > 0) return false;
  return st->st_gid == 0 || (S_ISDIR(st->st_mode) && st->st_uid == 0) || is_private_group(st->st_uid, st->st_gid);
}

static int check_owner(const char *path, const char *what, const struct stat *st, struct err *e) {
  if (is_trusted_owner(st->st_uid)) return 0;
  const struct passwd *known = getpwuid(st->st_uid);
  unsigned uid = (unsigned)st->st_uid;
  char *user = known ? xasprintf("user %s (uid %u)", known->pw_name, uid) : xasprintf("uid %u", uid);
  err_set(e, -EPERM,
          "%s%s belongs to %s, and would decide what runs here: it must belong to root, to this user or to the owner "
          "of this program; remove it, or chown it if its contents are right",
          what, path, user);
  free(user);
  return -EPERM;
}

static int check_mode(const char *path, const char *what, const struct stat *st, struct err *e) {
  bool all = st->st_mode & S_IWOTH, group = st->st_mode & S_IWGRP && !is_trusted_group(path, st);
  if (!all && !group) return 0;
  const struct group *known = all ? NULL : getgrgid(st->st_gid);
  char *who = all     ? xstrdup("every user")
              : known ? xasprintf("group %s", known->gr_name)
                      : xasprintf("group %u", (unsigned)st->st_gid);
  err_set(e, -EPERM, "%s%s can be changed by %s, and decides what runs here: chmod %s %s", what, path, who,
          !group ? "o-w"
          : all  ? "go-w"
                 : "g-w",
          path);
  free(who);
  return -EPERM;
}

static int check(const char *path, const char *what, struct err *e) {
  struct stat st;
  if (stat(path, &st) != 0) return err_sys(e, -errno, "%s%s cannot be read", what, path);
  int rc = check_owner(path, what, &st, e);
  return rc ? rc : check_mode(path, what, &st, e);
}

/* The folder of a link to which another one led. Nobody can exchange the link on a mount that is read-only, as those of
 * Kubernetes are, although their modes let everybody write. */
static int check_link_folder(const char *folder, struct err *e) {
  struct statvfs mount;
  if (statvfs(folder, &mount) == 0 && mount.f_flag & ST_RDONLY) return 0;
  return check(folder, "the folder ", e);
}

/* Goes from `at`, which has no links, to `path`, and looks at each link as the kernel would follow it. led: a link led to
 * `path`. */
static int check_links(char at[PATH_MAX], const char *path, bool led, int *links, struct err *e) {
  int rc = 0;
  if (*path == '/') *at = '\0';
  for (size_t n; rc == 0 && *path; path += n + (path[n] == '/')) {
    char target[PATH_MAX], *slash = strrchr(at, '/');
    size_t len = strlen(at);
    struct stat st;
    n = strcspn(path, "/");
    if (n == 0 || (n == 1 && path[0] == '.')) continue;
    if (n == 2 && path[0] == '.' && path[1] == '.') {
      if (slash) *slash = '\0';
      continue;
    }
    int put = snprintf(at + len, PATH_MAX - len, "/%.*s", (int)n, path);
    if (put >= (int)(PATH_MAX - len)) return err_sys(e, -ENAMETOOLONG, "%s cannot be read", path);
    ssize_t size = readlink(at, target, sizeof(target) - 1);
    if (size < 0) continue; /* it is no link */
    target[size] = '\0';
    if (++*links > LINKS_MAX || lstat(at, &st) != 0) return err_sys(e, -ELOOP, "%s cannot be read", path);
    rc = check_owner(at, "the link ", &st, e);
    at[len] = '\0';
    if (rc == 0 && led) rc = check_link_folder(len ? at : "/", e);
    if (rc == 0) rc = check_links(at, target, true, links, e);
  }
  return rc;
}

char *trust_resolve(const char *path, struct err *e) {
  char at[PATH_MAX] = "", *real = realpath(path, NULL);
  int links = 0;
  if (!real || (*path != '/' && !getcwd(at, sizeof(at)))) {
    err_sys(e, -errno, "%s cannot be read", path);
    free(real);
    return NULL;
  }
  if (!strcmp(at, "/")) at[0] = '\0';
  int rc = check_links(at, path, false, &links, e);
  if (rc == 0) rc = check(real, "", e);
  if (rc == 0) {
    const char *slash = strrchr(real, '/');
    char *folder = slash == real ? xstrdup("/") : xasprintf("%.*s", (int)(slash - real), real);
    rc = check(folder, "the folder ", e);
    free(folder);
  }
  if (rc == 0) return real;
  free(real);
  return NULL;
}
