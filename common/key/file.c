/* SPDX-License-Identifier: Apache-2.0 */
/* Files with keys.
 *
 * The default file is created by the first program that needs it, and eight may be the first at once, on several
 * machines that share a home folder. Each writes a key to a file of a random name and links that file to the right
 * name. The file server lets one link succeed; all read what is there then. A file that is renamed would replace the
 * key that another program already uses. NFS may report a link that succeeded as failed, since a repeated request finds
 * the name taken: the number of links is the truth.
 *
 * A key is refused if other users can read it, or could have put it there. Otherwise a job would look safe and would
 * not be. Group bits are the mask of an access list where systemd passes a credential to a service: root's group may
 * read. A FIFO must not hang the program, so files are opened without waiting.
 *
 * The default file is never a link. A file that a person names may be one: Kubernetes mounts secrets so. */

#include "common/key/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pwd.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/key/secret.h"
#include "common/key/source.h"
#include "common/system/file.h"
#include "common/system/user.h"

enum {
  FILE_TEXT_MAX = SECRET_SIZE - 1, /* a key, and blanks around it */
  ASIDE_MAX = 40,
  CREATE_TRIES = 5,
};

static const char make_one[] =
    "give --key-file FILE, a file of mode 600 with 64 hex digits that is the same on all nodes";

/* Reading. --------------------------------------------------------------------------------------------------------- */

static bool is_trusted(uid_t uid) {
  return uid == 0 || user_is_self(uid);
}

static int check_file(const struct stat *st, struct err *e) {
  mode_t open_bits = st->st_mode & 077;
  if (st->st_uid == 0 && st->st_gid == 0) open_bits &= ~(mode_t)S_IRGRP;
  if (!S_ISREG(st->st_mode)) return err_set(e, -EINVAL, "it is not a regular file");
  if (!is_trusted(st->st_uid))
    return err_set(e, -EPERM, "it belongs to uid %u: a key must belong to this user or root", (unsigned)st->st_uid);
  if (open_bits)
    return err_set(
        e, -EPERM,
        "other users have access to it (mode %04o): chmod 600 it, and replace the key if they may have read it",
        (unsigned)st->st_mode & 07777);
  return 0;
}

static int read_text(int fd, char *text, struct key *key, struct err *e) {
  size_t len = 0;
  for (ssize_t n; len <= FILE_TEXT_MAX; len += (size_t)n) {
    n = read(fd, text + len, SECRET_SIZE - len);
    if (n < 0) return err_sys(e, -errno, "cannot read it");
    if (n == 0) break;
  }
  if (len > FILE_TEXT_MAX) return err_set(e, -EINVAL, "it is larger than a key");
  if (len == 0)
    return err_set(e, -EINVAL, "it is empty: remove it for a new key, or copy the key of the job's other machines");
  return key_parse(text, len, key, e);
}

static int read_key(int fd, struct key **out, struct err *e) {
  struct stat st;
  if (fstat(fd, &st) < 0) return err_sys(e, -errno, "cannot read it");
  int rc = check_file(&st, e);
  if (rc) return rc;
  char *text = secret_alloc();
  struct key *key = secret_alloc();
  rc = read_text(fd, text, key, e);
  secret_free(text);
  if (rc)
    secret_free(key);
  else
    *out = key;
  return rc;
}

enum { OPEN_FLAGS = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC };

static int open_named(const char *path, struct err *e) {
  int fd = open(path, OPEN_FLAGS | O_NOFOLLOW);
  if (fd >= 0 || errno != ELOOP) return fd >= 0 ? fd : err_sys(e, -errno, "cannot open it");
  struct stat st;
  if (lstat(path, &st) < 0) return err_sys(e, -errno, "cannot open it");
  if (!is_trusted(st.st_uid))
    return err_set(e, -EPERM, "it is a symbolic link of uid %u: a key must belong to this user or root",
                   (unsigned)st.st_uid);
  fd = open(path, OPEN_FLAGS);
  return fd >= 0 ? fd : err_sys(e, -errno, "cannot open it");
}

int key_file_read(const char *path, struct key **key, struct err *e) {
  struct err local = ERR_INIT;
  int fd = open_named(path, &local), rc = fd < 0 ? fd : read_key(fd, key, &local);
  if (fd >= 0) close(fd);
  return rc ? err_set(e, rc, "%s: %s", path, local.text) : 0;
}

/* The default file: its place. ------------------------------------------------------------------------------------- */

struct default_file {
  char parent[PATH_MAX]; /* created if it is missing, as is `folder`; "": it must be there */
  char folder[PATH_MAX], path[PATH_MAX];
  const char *shown; /* for people */
  enum key_source kind;
};

static int too_long(struct err *e) {
  return err_set(e, -ENAMETOOLONG, "the path of the default key file is too long: %s", make_one);
}

static int set_default_file(struct default_file *p, const char *parent, const char *folder, const char *shown,
                            struct err *e) {
  int n = snprintf(p->folder, PATH_MAX, "%s%s", parent, folder);
  if (n < 0 || n >= PATH_MAX - 8) return too_long(e);
  snprintf(p->parent, PATH_MAX, "%s", *folder ? parent : "");
  n = snprintf(p->path, PATH_MAX, "%s/key", p->folder);
  if (n < 0 || n >= PATH_MAX) return too_long(e);
  p->shown = shown ? shown : p->path;
  return 0;
}

static const char *home_folder(void) {
  const char *home = getenv("HOME");
  if (home && *home == '/') return home;
  const struct passwd *user = getpwuid(geteuid());
  return user && user->pw_dir && user->pw_dir[0] == '/' ? user->pw_dir : NULL;
}

/* The variables hold absolute paths; others are ignored, as their specifications ask. */
static int find_default_file(struct default_file *p, struct err *e) {
  const char *state = getenv("STATE_DIRECTORY"), *config = getenv("XDG_CONFIG_HOME"), *home;
  char text[PATH_MAX];
  p->kind = KEY_SOURCE_HOME;
  if (state && *state == '/') {
    int n = snprintf(text, sizeof(text), "%.*s", (int)strcspn(state, ":"), state); /* the first of several */
    if (n < 0 || (size_t)n >= sizeof(text)) return too_long(e);
    p->kind = KEY_SOURCE_STATE;
    return set_default_file(p, text, "", NULL, e);
  }
  if (config && *config == '/') return set_default_file(p, config, "/rdzv", NULL, e);
  if (!(home = home_folder()))
    return err_set(e, -ENOENT, "uid %u has no home folder for ~/.config/rdzv/key: %s", (unsigned)geteuid(), make_one);
  int n = snprintf(text, sizeof(text), "%s/.config", home);
  if (n < 0 || (size_t)n >= sizeof(text)) return too_long(e);
  return set_default_file(p, text, "/rdzv", "~/.config/rdzv/key", e);
}

/* The default file: creation. -------------------------------------------------------------------------------------- */

static int make_folders(const struct default_file *p, struct err *e) {
  const char *const paths[] = {p->parent, p->folder};
  for (int i = 0; i < 2; i++)
    if (mkdir(paths[i], 0700) < 0 && errno != EEXIST) return err_sys(e, -errno, "cannot create %s", paths[i]);
  return 0;
}

/* -ENOENT: it is not there, and was not to be created. */
static int open_folder(const struct default_file *p, bool create, struct err *e) {
  struct stat st;
  int fd = open(p->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT && create && p->parent[0]) {
    int rc = make_folders(p, e);
    if (rc) return rc;
    fd = open(p->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  }
  if (fd < 0) return err_sys(e, -errno, "cannot open its folder");
  if (fstat(fd, &st) == 0 && is_trusted(st.st_uid) && (st.st_mode & 022) == 0) return fd;
  close(fd);
  return err_set(e, -EPERM, "others can write to its folder (uid %u, mode %04o): chmod go-w %s", (unsigned)st.st_uid,
                 (unsigned)st.st_mode & 07777, p->folder);
}

static int write_aside(int dir, const char *aside, const struct key *key, struct err *e) {
  int fd = openat(dir, aside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return err_sys(e, -errno, "cannot create it");
  char *text = secret_alloc();
  key_format(key, text);
  size_t len = strlen(text);
  text[len++] = '\n';
  int rc = file_write_all(fd, text, len);
  secret_free(text);
  if (rc == 0 && fchmod(fd, 0600) < 0) rc = -errno; /* whatever the umask is */
  if (rc == 0 && fsync(fd) < 0 && errno != EINVAL) rc = -errno;
  if (close(fd) < 0 && rc == 0) rc = -errno;
  return rc ? err_sys(e, rc, "cannot write it") : 0;
}

/* True: our file has the name now. False with *rc 0: another program was faster. */
static bool take_name(int dir, const char *aside, int *rc) {
  struct stat st;
  *rc = 0;
  if (linkat(dir, aside, dir, "key", 0) == 0) return true;
  int error = errno;
  if (fstatat(dir, aside, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_nlink == 2) return true;
  if (error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK) { /* it knows no links */
    if (renameat2(dir, aside, dir, "key", RENAME_NOREPLACE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS) error = errno;
  }
  if (error != EEXIST) *rc = -error;
  return false;
}

static int create_file(int dir, bool *created, struct err *e) {
  char name[FILE_RANDOM_SIZE], aside[ASIDE_MAX];
  struct key *key = NULL;
  struct key_origin unused;
  int rc = key_random(&key, &unused, "", e);
  if (rc) return rc;
  rc = file_random_name(name);
  if (rc) {
    secret_free(key);
    return err_sys(e, rc, "no random numbers");
  }
  snprintf(aside, sizeof(aside), ".key.%s", name);
  rc = write_aside(dir, aside, key, e);
  secret_free(key);
  if (rc == 0) {
    *created = take_name(dir, aside, &rc);
    if (rc) err_sys(e, rc, "cannot create it");
  }
  unlinkat(dir, aside, 0);
  if (rc == 0) (void)fsync(dir); /* a folder that cannot be synced is as good as it gets */
  return rc;
}

/* A file server may still answer "not there" to the reader after another machine created the file. */
static int read_or_create(int dir, bool create, struct key **key, bool *created, struct err *e) {
  for (int i = 0; i < CREATE_TRIES; i++) {
    int fd = openat(dir, "key", OPEN_FLAGS | O_NOFOLLOW);
    if (fd >= 0) {
      int rc = read_key(fd, key, e);
      close(fd);
      return rc;
    }
    if (errno == ELOOP) return err_set(e, -ELOOP, "it is a symbolic link: the default key file must be a file");
    if (errno != ENOENT) return err_sys(e, -errno, "cannot open it");
    if (!create) return 0;
    int rc = create_file(dir, created, e);
    if (rc) return rc;
  }
  return err_set(e, -EAGAIN, "it was created and is not there");
}

int key_find_default(bool create, struct key **key, struct key_origin *from, struct err *e) {
  struct default_file place;
  struct err local = ERR_INIT;
  bool created = false;
  *key = NULL;
  *from = (struct key_origin){.kind = KEY_SOURCE_UNSET};
  int rc = find_default_file(&place, e);
  if (rc) return rc;
  int dir = open_folder(&place, create, &local);
  rc = dir < 0 ? dir : read_or_create(dir, create, key, &created, &local);
  if (dir >= 0) close(dir);
  if (rc && !(rc == -ENOENT && !create))
    return err_set(e, rc, "the key's default file %s: %s; otherwise %s", place.path, local.text, make_one);
  from->kind = place.kind;
  snprintf(from->text, sizeof(from->text), "%s%s", place.shown,
           created ? " (created)"
           : *key  ? ""
                   : " (will be created)");
  return 0;
}
