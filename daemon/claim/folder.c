/* SPDX-License-Identifier: Apache-2.0 */
/* A claim is a file whose name is given once. link(2) gives a name to a file that is already whole and on the disk, and
 * fails if the name exists. So no reader sees half a claim, and of two daemons one alone gets the name. rename would
 * replace the other's file, and O_EXCL would show an empty one.
 *
 *   temporary file -> write -> fsync -> link -> look -> fsync of the folder -> unlink of the temporary name
 *
 * The end of a job is a claim as well. It is created before the others are removed; whoever links a claim looks for the
 * end afterwards. So a claim came before the end, or its daemon sees the end. An NFS client remembers for a while that a
 * name does not exist, but not beyond its own change of the folder: link is one, or the temporary file.
 *
 * The run of a job belongs to one incarnation until that has ended. Each attempt has a file of its own,
 * JOB,run,INCARNATION,RANDOM, which nobody else removes before the end. It is created, and then the folder is listed: of
 * two that create one at once, at least one sees the other. Whoever sees another incarnation without an end removes its
 * own file, and tries again after a random pause.
 *
 * A file server may carry out a link and lose its answer; the client asks again and gets EEXIST, or an error. So the
 * answer of link does not decide: the temporary file has two links, or it has one. If the server cannot be asked, the
 * claim has failed, which says nothing. The daemon asks again with the same content, and finds its own claim.
 *
 * Whoever can remove a file can make a claim be given twice, and whoever can create one can make the next claim, or the
 * end of a job. So the folder belongs to us or to root, and other users cannot write to it, even if it is sticky, as
 * /tmp. root may use another user's folder: on NFS with root_squash, root's own folder belongs to nobody.
 *
 * The folder is opened for each call: a file system that was mounted over it meanwhile is the one that the other daemons
 * see. It may be read-only, full or away for a while, and a daemon that starts then must not end its agent. So each claim
 * fails with the reason until the folder can be used. What only a person can mend ends the daemon: another owner, or a
 * folder that is nowhere.
 *
 * The name of a temporary file begins with a dot, as no claim's does. A process that died leaves one behind. It is
 * removed by its age, on the clock of the file server: the pid of another machine says nothing here. */

#include "daemon/claim/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/file.h"
#include "common/system/user.h"
#include "daemon/claim/name.h"

#define TEMP_PREFIX ".claim-"

enum {
  TEMP_SIZE = sizeof(TEMP_PREFIX) + FILE_RANDOM_SIZE,
  RUN_TRIES = 5,
  RUN_PAUSE_MS = 20, /* and up to eight times as long */
};

struct folder {
  char *path;
  bool made; /* it was there once */
};

/* The folder while a call uses it. */
struct open_folder {
  const char *path;
  int fd;
};

/* Temporary files. ------------------------------------------------------------------------------------------------- */

static int write_temp(const struct open_folder *f, const char *content, char temp[TEMP_SIZE], struct err *e) {
  char random[FILE_RANDOM_SIZE];
  file_random_name(random);
  snprintf(temp, TEMP_SIZE, TEMP_PREFIX "%s", random);
  int fd = openat(f->fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return err_sys(e, -errno, "cannot create a file in %s", f->path);
  int rc = file_write_all(fd, content, strlen(content));
  if (rc == 0 && fsync(fd) < 0) rc = -errno;
  if (close(fd) < 0 && rc == 0) rc = -errno;
  if (rc == 0) return 0;
  unlinkat(f->fd, temp, 0);
  return err_sys(e, rc, "cannot write a file in %s", f->path);
}

/* Calls fn for each name in the folder. */
static int list(const struct open_folder *f, void (*fn)(void *ctx, const char *name), void *ctx, struct err *e) {
  int fd = openat(f->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR *dir = fd < 0 ? NULL : fdopendir(fd);
  if (!dir) {
    int code = -errno;
    if (fd >= 0) close(fd);
    return err_sys(e, code, "cannot list %s", f->path);
  }
  errno = 0;
  for (struct dirent *d; (d = readdir(dir)); errno = 0) fn(ctx, d->d_name);
  int rc = errno ? err_sys(e, -errno, "cannot list %s", f->path) : 0;
  closedir(dir);
  return rc;
}

/* Claims. ---------------------------------------------------------------------------------------------------------- */

static int sync_folder(const struct open_folder *f, struct err *e) {
  if (fsync(f->fd) == 0 || errno == EINVAL) return 0; /* EINVAL: a file system without a disk behind it */
  return err_sys(e, -errno, "cannot write %s to its disk", f->path);
}

/* What a claim holds. -ENOENT: there is none. */
static int read_claim(const struct open_folder *f, const char *file, struct buf *out, struct err *e) {
  struct stat st;
  int fd = openat(f->fd, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), rc = 0;
  if (fd < 0) return errno == ENOENT ? -ENOENT : err_sys(e, -errno, "cannot read %s/%s", f->path, file);
  if (fstat(fd, &st) < 0) rc = err_sys(e, -errno, "cannot read %s/%s", f->path, file);
  if (rc == 0 && (!S_ISREG(st.st_mode) || st.st_size > CLAIM_CONTENT_MAX))
    rc = err_set(e, -EBADMSG, "%s/%s is not a claim: a claim is a file of at most %d bytes; remove it", f->path, file,
                 CLAIM_CONTENT_MAX);
  for (ssize_t n = 1; rc == 0 && n > 0 && out->len <= CLAIM_CONTENT_MAX;) {
    n = read(fd, buf_reserve(out, 4096), 4096);
    if (n >= 0) buf_commit(out, (size_t)n); /* an empty one is a string too */
    if (n < 0) rc = err_sys(e, -errno, "cannot read %s/%s", f->path, file);
  }
  close(fd);
  return rc;
}

/* 0: the job has no end yet. Else as read_claim. */
static int look_for_end(const struct open_folder *f, const char *name, struct buf *out, struct err *e) {
  char end[CLAIM_END_NAME_MAX + 1], file[CLAIM_FILE_MAX + 1];
  claim_end_name(name, end);
  int rc = claim_file_name(end, file, e);
  if (rc == 0) rc = read_claim(f, file, out, e);
  return rc == -ENOENT ? 0 : rc ? rc : 1;
}

/* An open asks an NFS server for the attributes, which the client else remembers for seconds. */
static int read_attributes(int folder, const char *name, struct stat *st) {
  int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return -errno;
  int rc = fstat(fd, st) < 0 ? -errno : 0;
  close(fd);
  return rc;
}

int folder_has_linked(int fd, const char *temp, const char *file) {
  struct stat ours, there;
  int rc = read_attributes(fd, temp, &ours);
  if (rc) return rc;
  if (ours.st_nlink < 2) return 0;
  rc = read_attributes(fd, file, &there);
  return rc ? rc : ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

static int link_claim(const struct open_folder *f, const char *temp, const char *file, const char *content,
                      enum claim_answer *answer, struct buf *text, struct err *e) {
  int code = linkat(f->fd, temp, f->fd, file, 0) < 0 ? -errno : 0, linked = folder_has_linked(f->fd, temp, file);
  if (linked > 0) {
    *answer = CLAIM_WON;
    return sync_folder(f, e);
  }
  /* Says what is there: ours, or another daemon's. Ours was perhaps made by a call that failed before its end. */
  int rc = read_claim(f, file, text, e);
  if (rc == 0) {
    bool ours = text->len == strlen(content) && memcmp(buf_text(text), content, text->len) == 0;
    *answer = ours ? CLAIM_WON : CLAIM_TAKEN;
    return ours ? sync_folder(f, e) : 0;
  }
  if (rc != -ENOENT) return rc;
  if (code == -EPERM || code == -EOPNOTSUPP || code == -EMLINK)
    return err_sys(e, code, "the file system of %s has no hard links, which claims need", f->path);
  return err_sys(e, code ? code : -EIO, "cannot link a file in %s", f->path);
}

static int create_file(const struct open_folder *f, const char *file, const char *content, enum claim_answer *answer,
                       struct buf *text, struct err *e) {
  char temp[TEMP_SIZE];
  int rc = write_temp(f, content, temp, e);
  if (rc) return rc;
  rc = link_claim(f, temp, file, content, answer, text, e);
  unlinkat(f->fd, temp, 0);
  return rc;
}

/* A claim that the end removes at once looks like a failure: the end is looked for in any case. */
static int create(const struct open_folder *f, const char *name, const char *content, enum claim_answer *answer,
                  struct buf *text, struct err *e) {
  char file[CLAIM_FILE_MAX + 1];
  struct buf end = BUF_INIT;
  int rc = claim_name_check(name, false, e);
  if (rc == 0) rc = claim_file_name(name, file, e);
  if (rc) return rc;
  int made = create_file(f, file, content, answer, text, e), ended = look_for_end(f, name, &end, e);
  if (ended > 0) {
    if (made == 0 && *answer == CLAIM_WON) unlinkat(f->fd, file, 0);
    *answer = CLAIM_TAKEN;
    buf_clear(text);
    buf_append(text, buf_text(&end), end.len);
  }
  buf_finish(&end);
  return ended > 0 ? 0 : made ? made : ended;
}

/* The run. --------------------------------------------------------------------------------------------------------- */

/* Looks for another incarnation that has the run. */
struct rivals {
  const struct open_folder *f;
  const char *runs, *own; /* what their files begin with; and those of this incarnation */
  struct buf *text;       /* of one */
  bool found;
  int code;
  struct err *e;
};

/* "1000,job,run,5f2e-1,RANDOM" -> "1000,job,5f2e-1,end" */
static bool end_of_run(const struct rivals *r, const char *name, char out[CLAIM_FILE_MAX + 1]) {
  const char *incarnation = name + strlen(r->runs), *behind = strchr(incarnation, ',');
  size_t job = strlen(r->runs) - strlen("run,");
  if (!behind) return false;
  return snprintf(out, CLAIM_FILE_MAX + 1, "%.*s%.*s,end", (int)job, name, (int)(behind - incarnation), incarnation) <=
         CLAIM_FILE_MAX;
}

static void look_at_rival(void *ctx, const char *name) {
  struct rivals *r = ctx;
  struct buf text = BUF_INIT;
  char end[CLAIM_FILE_MAX + 1];
  if (r->found || r->code || strncmp(name, r->runs, strlen(r->runs)) != 0) return;
  if (!strncmp(name, r->own, strlen(r->own)) || !end_of_run(r, name, end)) return;
  int ended = read_claim(r->f, end, &text, r->e), rc = ended;
  if (ended == -ENOENT) {
    buf_clear(&text);
    rc = read_claim(r->f, name, &text, r->e); /* -ENOENT: it has gone since */
    r->found = rc == 0;
    if (r->found) buf_append(r->text, buf_text(&text), text.len);
  } else if (ended == 0) {
    unlinkat(r->f->fd, name, 0); /* whoever has ended it died then */
  }
  if (rc && rc != -ENOENT) r->code = rc;
  buf_finish(&text);
}

static int find_rival(const struct open_folder *f, const char *runs, const char *own, bool *found, struct buf *text,
                      struct err *e) {
  struct rivals r = {.f = f, .runs = runs, .own = own, .text = text, .e = e};
  int rc = list(f, look_at_rival, &r, e);
  *found = r.found;
  return rc ? rc : r.code;
}

/* What the files of the run of all incarnations begin with, and those of this one. */
static int name_runs(const char *prefix, char runs[CLAIM_FILE_MAX + 1], char own[CLAIM_FILE_MAX + 1], struct err *e) {
  char name[CLAIM_RUN_NAME_MAX + 2];
  size_t job = claim_run_name(prefix, name);
  snprintf(name + strlen(name), 2, "/");
  int rc = claim_file_name(name, own, e);
  name[job] = '\0';
  return rc ? rc : claim_file_name(name, runs, e);
}

/* 0: it is ours, or taken. 1: somebody else tries as well. */
static int try_run(const struct open_folder *f, const char *prefix, const char *content, enum claim_answer *answer,
                   struct buf *text, struct err *e) {
  char runs[CLAIM_FILE_MAX + 1], own[CLAIM_FILE_MAX + 1], file[CLAIM_FILE_MAX + FILE_RANDOM_SIZE + 1],
      random[FILE_RANDOM_SIZE];
  struct buf end = BUF_INIT;
  bool found = false;
  int rc = name_runs(prefix, runs, own, e);
  if (rc == 0) rc = find_rival(f, runs, own, &found, text, e);
  *answer = CLAIM_TAKEN;
  if (rc || found) return rc;
  file_random_name(random);
  if (snprintf(file, sizeof file, "%s%s", own, random) > CLAIM_FILE_MAX)
    return err_set(e, -EINVAL, "the claim's name has too many long parts for a file name of %d bytes", CLAIM_FILE_MAX);
  int made = create_file(f, file, content, answer, text, e), ended = look_for_end(f, prefix, &end, e);
  if (made == 0 && ended == 0) rc = find_rival(f, runs, own, &found, text, e);
  bool ours = made == 0 && ended == 0 && rc == 0 && !found;
  int gone = ours || unlinkat(f->fd, file, 0) == 0 || errno == ENOENT ? 0 : -errno;
  if (gone && made == 0 && rc == 0) rc = err_sys(e, gone, "cannot remove a file in %s", f->path);
  if (ended > 0) {
    *answer = CLAIM_TAKEN;
    buf_clear(text);
    buf_append(text, buf_text(&end), end.len);
  }
  buf_finish(&end);
  if (ours || ended > 0) return 0;
  return made ? made : ended ? ended : rc ? rc : 1;
}

static int claim_run(const struct open_folder *f, const char *prefix, const char *content, enum claim_answer *answer,
                     struct buf *text, struct err *e) {
  int rc = claim_name_check(prefix, true, e);
  if (rc) return rc;
  for (int i = 0;; i++) {
    char random[FILE_RANDOM_SIZE];
    buf_clear(text);
    rc = try_run(f, prefix, content, answer, text, e);
    if (rc <= 0) return rc;
    *answer = CLAIM_TAKEN;
    if (i + 1 == RUN_TRIES) return 0;
    file_random_name(random);
    usleep(RUN_PAUSE_MS * 1000 * (1 + (unsigned char)random[0] % 8));
  }
}

/* The end. --------------------------------------------------------------------------------------------------------- */

struct removal {
  const struct open_folder *f;
  const char *prefix, *end; /* of files, and the one that stays; NULL: only sweeps */
  const char *run;          /* of the files that claim the run */
  time_t now;
  int code;
};

static void remove_one(void *ctx, const char *name) {
  struct removal *r = ctx;
  /* A claim that is being made has a young file. */
  struct stat st;
  size_t n = strlen(name);
  bool temp = !strncmp(name, TEMP_PREFIX, sizeof(TEMP_PREFIX) - 1), end = n > 4 && !strcmp(name + n - 4, ",end");
  if ((temp || end) && fstatat(r->f->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
      st.st_mtime + (temp ? FOLDER_TEMP_AGE_S : FOLDER_END_AGE_S) < r->now)
    unlinkat(r->f->fd, name, 0);
  if (!r->prefix || !strcmp(name, r->end)) return;
  if (strncmp(name, r->prefix, strlen(r->prefix)) != 0 && strncmp(name, r->run, strlen(r->run)) != 0) return;
  if (unlinkat(r->f->fd, name, 0) < 0 && errno != ENOENT) r->code = -errno;
}

/* The time of the file server: that of a file which was just written. */
static int read_time(const struct open_folder *f, const char *temp, time_t *now, struct err *e) {
  struct stat st = {.st_mtime = 0};
  int rc = read_attributes(f->fd, temp, &st);
  *now = st.st_mtime;
  return rc ? err_sys(e, rc, "cannot read a file in %s", f->path) : 0;
}

static int end_claims(const struct open_folder *f, const char *prefix, const char *content, struct err *e) {
  char file[CLAIM_FILE_MAX + 1], end[CLAIM_FILE_MAX + 1], name[CLAIM_END_NAME_MAX + 1], temp[TEMP_SIZE];
  char runs[CLAIM_FILE_MAX + 1], run[CLAIM_FILE_MAX + 1];
  struct removal r = {.f = f, .prefix = file, .end = end, .run = run};
  struct buf text = BUF_INIT;
  enum claim_answer answer;
  int rc = claim_name_check(prefix, true, e);
  if (rc) return rc;
  claim_end_name(prefix, name);
  rc = claim_file_name(prefix, file, e);
  if (rc == 0) rc = claim_file_name(name, end, e);
  if (rc == 0) rc = name_runs(prefix, runs, run, e);
  if (rc == 0) rc = create_file(f, end, content, &answer, &text, e);
  buf_finish(&text);
  if (rc == 0) rc = write_temp(f, "", temp, e);
  if (rc) return rc;
  rc = read_time(f, temp, &r.now, e);
  unlinkat(f->fd, temp, 0);
  if (rc == 0) rc = list(f, remove_one, &r, e);
  if (rc == 0 && r.code) rc = err_sys(e, r.code, "cannot remove a file in %s", f->path);
  return rc ? rc : sync_folder(f, e);
}

/* The folder. ------------------------------------------------------------------------------------------------------ */

static int check_owner(const struct open_folder *f, struct err *e) {
  struct stat st;
  if (fstat(f->fd, &st) < 0) return err_sys(e, -errno, "%s", f->path);
  if (st.st_uid != 0 && !user_is_self(st.st_uid) && geteuid() != 0)
    return err_set(e, -EPERM,
                   "%s belongs to another user (uid %u), who could make and remove claims; name a folder of your own",
                   f->path, (unsigned)st.st_uid);
  if (st.st_mode & (S_IWGRP | S_IWOTH))
    return err_set(e, -EPERM,
                   "other users can write to %s and could make the next claim; chmod go-w it, or name a folder of your "
                   "own, such as %s/claims-%u, which is created",
                   f->path, f->path, (unsigned)geteuid());
  return 0;
}

static int enter(struct folder *f, struct open_folder *at, struct err *e) {
  struct stat st;
  if (!f->made && mkdir(f->path, 0700) < 0 && errno != EEXIST) return err_sys(e, -errno, "cannot create %s", f->path);
  f->made = true;
  *at = (struct open_folder){.path = f->path, .fd = open(f->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  if (at->fd < 0) {
    int code = -errno;
    if (lstat(f->path, &st) == 0 && S_ISLNK(st.st_mode))
      return err_set(e, code, "%s is a symbolic link, which could be changed; name the folder itself", f->path);
    return err_sys(e, code, "cannot open %s", f->path);
  }
  int rc = check_owner(at, e);
  if (rc) close(at->fd);
  return rc;
}

/* One claim that nobody else makes: permissions, a full disk and missing links are found now. */
static int try_links(const struct open_folder *f, struct err *e) {
  char temp[TEMP_SIZE], other[TEMP_SIZE + 1];
  struct removal r = {.f = f};
  int rc = write_temp(f, "", temp, e);
  if (rc) return rc;
  snprintf(other, sizeof other, "%s2", temp);
  if (linkat(f->fd, temp, f->fd, other, 0) < 0)
    rc = err_sys(e, -errno, "the file system of %s has no hard links, which claims need", f->path);
  if (rc == 0) rc = read_time(f, temp, &r.now, e);
  unlinkat(f->fd, other, 0);
  unlinkat(f->fd, temp, 0);
  return rc ? rc : list(f, remove_one, &r, e);
}

/* The usual ones, by the numbers of statfs(2); NULL: it may be shared. */
static const char *local_file_system(int fd) {
  static const struct {
    unsigned long magic;
    const char *name;
  } local[] = {{0xEF53, "ext4"},      {0x58465342, "xfs"},   {0x9123683E, "btrfs"},
               {0x01021994, "tmpfs"}, {0x858458F6, "ramfs"}, {0x794C7630, "overlayfs"}};
  struct statfs st;
  if (fstatfs(fd, &st) < 0) return NULL;
  for (size_t i = 0; i < sizeof local / sizeof *local; i++)
    if ((unsigned long)st.f_type == local[i].magic) return local[i].name;
  return NULL;
}

/* Nobody has to change the command line: the file server may be restarted, or mount the folder for writing again. A
 * folder of our own that we may not write to was closed by us, and we may open it. */
static bool may_pass(const struct folder *f, int rc) {
  struct stat st;
  switch (-rc) {
  case EROFS:
  case ENOSPC:
  case EDQUOT:
  case EIO:
  case ESTALE:
  case ETIMEDOUT:
  case ENOTCONN:
  case EHOSTDOWN:
  case EHOSTUNREACH: return true;
  case EACCES: return stat(f->path, &st) == 0 && st.st_uid == geteuid();
  default: return false;
  }
}

struct folder *folder_at(const char *path, bool made) {
  struct folder *f = xcalloc(1, sizeof *f);
  size_t len = strlen(path);
  while (len > 1 && path[len - 1] == '/') len--; /* a link with a slash behind it would be followed */
  f->path = xstrndup(path, len);
  f->made = made;
  return f;
}

bool folder_is_made(const struct folder *f) {
  return f->made;
}

int folder_open(const char *path, struct folder **out, struct buf *warning, struct err *e) {
  struct folder *f = folder_at(path, false);
  struct open_folder at = {.fd = -1};
  int rc = enter(f, &at, e);
  if (rc == 0) {
    const char *local = local_file_system(at.fd);
    if (local)
      buf_printf(warning, "%s is on %s, a local file system; daemons on other machines do not see its claims", f->path,
                 local);
    rc = try_links(&at, e);
    close(at.fd);
  }
  if (rc && may_pass(f, rc)) {
    buf_printf(warning, "%s%s; jobs wait until that has changed", warning->len ? "; " : "", e->text);
    *e = (struct err)ERR_INIT;
    rc = 0;
  }
  if (rc)
    folder_close(f);
  else
    *out = f;
  return rc;
}

void folder_close(struct folder *f) {
  if (!f) return;
  free(f->path);
  free(f);
}

static enum claim_answer carry_out(struct folder *f,
                                   int (*fn)(const struct open_folder *f, const char *name, const char *content,
                                             enum claim_answer *answer, struct buf *text, struct err *e),
                                   const char *name, const char *content, struct buf *text) {
  struct err e = ERR_INIT;
  struct open_folder at = {.fd = -1};
  enum claim_answer answer = CLAIM_FAILED;
  int rc = enter(f, &at, &e);
  if (rc == 0) {
    rc = fn(&at, name, content, &answer, text, &e);
    close(at.fd);
  }
  if (rc || answer == CLAIM_WON) buf_clear(text);
  if (rc) buf_puts(text, e.text);
  return rc ? CLAIM_FAILED : answer;
}

enum claim_answer folder_create(struct folder *f, const char *name, const char *content, struct buf *text) {
  return carry_out(f, create, name, content, text);
}

enum claim_answer folder_claim_run(struct folder *f, const char *prefix, const char *content, struct buf *text) {
  return carry_out(f, claim_run, prefix, content, text);
}

int folder_end(struct folder *f, const char *prefix, const char *content, struct err *e) {
  struct open_folder at = {.fd = -1};
  int rc = enter(f, &at, e);
  if (rc) return rc;
  rc = end_claims(&at, prefix, content, e);
  close(at.fd);
  return rc;
}
