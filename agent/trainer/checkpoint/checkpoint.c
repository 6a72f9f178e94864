/* Writing so that a crash at any moment leaves either the whole checkpoint or none:
 *
 *   .tmp-NAME/state.bin   written, fsynced           a crash leaves rubbish that nobody reads
 *   .tmp-NAME             fsynced, renamed to NAME   a crash leaves NAME without a marker: none
 *   DIR                   fsynced
 *   NAME/COMMIT.tmp       written, fsynced, renamed to COMMIT, NAME fsynced
 *
 * The marker carries size and checksum of state.bin, so a file system that reorders what it was told in
 * order is found out as well. Reading checks the marker against the directory's name, the file against the
 * marker, and the state against itself; what fails is passed over, and the one before it is taken.
 *
 * The name holds the fencing token (incarnation, round): a writer of an older round that is still alive
 * somewhere cannot touch what a newer one wrote, and what it writes itself sorts below. */

#include "agent/trainer/checkpoint/checkpoint.h"

#include "common/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define TMP_PREFIX ".tmp-"
static const char state_name[] = "state.bin", marker_name[] = "COMMIT", marker_tmp[] = "COMMIT.tmp";

static int open_dir(const char *path, struct err *e) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 ? err_sys(e, -errno, "checkpoint directory %s", path) : fd;
}

int ckpt_dir_open(const char *dir, struct err *e) {
  if (mkdir(dir, 0777) < 0 && errno != EEXIST)
    return err_sys(e, -errno, "cannot make checkpoint directory %s", dir);
  int fd = open_dir(dir, e);
  if (fd < 0) return fd;
  int rc = faccessat(fd, ".", W_OK | X_OK, 0) < 0
               ? err_sys(e, -errno, "cannot write to checkpoint directory %s", dir)
               : 0;
  close(fd);
  return rc;
}

static int newest_first(const void *a, const void *b) {
  return ckpt_id_compare(b, a);
}

int ckpt_list(const char *dir, struct ckpt_list *out, struct err *e) {
  struct ckpt_list l = {0};
  DIR *d = opendir(dir);
  if (!d) return err_sys(e, -errno, "checkpoint directory %s", dir);
  struct dirent *entry;
  while ((errno = 0, entry = readdir(d))) {
    struct ckpt_id id;
    if (!ckpt_name_parse(entry->d_name, &id)) continue;
    if ((l.n & (l.n + 1)) == 0)
      l.v = xrealloc(l.v, (2 * l.n + 1) * sizeof *l.v); /* grows at 0, 1, 3, 7, ... */
    l.v[l.n++] = id;
  }
  int rc = errno ? err_sys(e, -errno, "checkpoint directory %s", dir) : 0;
  closedir(d);
  if (l.v) qsort(l.v, l.n, sizeof *l.v, newest_first);
  *out = l;
  if (rc) ckpt_list_finish(out);
  return rc;
}

void ckpt_list_finish(struct ckpt_list *l) {
  free(l->v);
  *l = (struct ckpt_list){0};
}

static int write_piece(int fd, const char *name, const struct ckpt_piece *p, struct err *e) {
  for (size_t at = 0; at < p->n;) {
    ssize_t n = write(fd, (const char *)p->data + at, p->n - at);
    if (n < 0 && errno != EINTR) return err_sys(e, -errno, "%s", name);
    if (n > 0) at += (size_t)n;
  }
  return 0;
}

/* A file of `n` pieces, on disk when this returns. */
static int write_file(int dirfd, const char *name, const struct ckpt_piece *p, int n, struct err *e) {
  int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return err_sys(e, -errno, "%s", name);
  int rc = 0;
  for (int i = 0; i < n && rc == 0; i++) rc = write_piece(fd, name, &p[i], e);
  if (rc == 0 && fsync(fd) < 0) rc = err_sys(e, -errno, "%s: fsync", name);
  if (close(fd) < 0 && rc == 0) rc = err_sys(e, -errno, "%s: close", name);
  return rc;
}

/* The files that a checkpoint can have, marker first, then the directory. */
static int remove_one(int dirfd, const char *name, struct err *e) {
  int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : err_sys(e, -errno, "cannot remove %s", name);
  const char *const files[] = {marker_name, marker_tmp, state_name};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlinkat(fd, files[i], 0);
  close(fd);
  if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
    return err_sys(e, -errno, "cannot remove %s", name);
  return 0;
}

static int sync_dir(int fd, const char *name, struct err *e) {
  return fsync(fd) < 0 ? err_sys(e, -errno, "%s: fsync", name) : 0;
}

/* state.bin in the temporary directory, which then gets its name. */
static int write_state(int dirfd, const char *tmp, const char *name, const struct ckpt_bytes *b,
                       struct err *e) {
  if (mkdirat(dirfd, tmp, 0777) < 0) return err_sys(e, -errno, "%s", tmp);
  int fd = openat(dirfd, tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int rc = fd < 0 ? err_sys(e, -errno, "%s", tmp) : write_file(fd, state_name, b->pieces, b->n, e);
  if (rc == 0) rc = sync_dir(fd, tmp, e);
  if (fd >= 0) close(fd);
  if (rc == 0 && renameat(dirfd, tmp, dirfd, name) < 0) rc = err_sys(e, -errno, "rename to %s", name);
  return rc ? rc : sync_dir(dirfd, name, e);
}

static int write_marker(int dirfd, const char *name, const struct ckpt_marker *m, struct err *e) {
  struct buf text = BUF_INIT;
  int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return err_sys(e, -errno, "%s", name);
  ckpt_marker_format(m, &text);
  int rc = write_file(fd, marker_tmp, &(struct ckpt_piece){text.data, text.len}, 1, e);
  if (rc == 0 && renameat(fd, marker_tmp, fd, marker_name) < 0)
    rc = err_sys(e, -errno, "rename to %s%s", marker_name,
                 errno == ENOENT ? " (it was removed meanwhile: does another job write there too?)" : "");
  if (rc == 0) rc = sync_dir(fd, name, e);
  close(fd);
  buf_finish(&text);
  return rc;
}

/* The sentence about a checkpoint that could not be written names the space where that may be the reason. */
static int explain(const char *dir, const char *name, size_t len, int rc, struct err *e) {
  struct statvfs v;
  struct err why = e ? *e : (struct err)ERR_INIT;
  if ((rc == -ENOSPC || rc == -EDQUOT) && statvfs(dir, &v) == 0) {
    double have = (double)v.f_bavail * (double)v.f_frsize / 1e6;
    return err_set(e, rc,
                   "checkpoint %s/%s could not be written: %s (it needs %.3g MB, %.3g MB are free there)",
                   dir, name, why.text, (double)len / 1e6, have);
  }
  return err_set(e, rc, "checkpoint %s/%s (%.3g MB) could not be written: %s", dir, name, (double)len / 1e6,
                 why.text);
}

int ckpt_write(const char *dir, const struct ckpt_id *id, const struct ckpt_bytes *b, struct err *e) {
  char name[CKPT_NAME_MAX], tmp[CKPT_NAME_MAX + 32];
  struct ckpt_marker marker = {.id = *id, .size = b->size, .crc = b->crc};
  struct stat st;
  ckpt_name_format(id, name);
  snprintf(tmp, sizeof tmp, TMP_PREFIX "%s-%ld", name, (long)getpid());
  int fd = open_dir(dir, e);
  if (fd < 0) return fd;
  if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
    close(fd);
    return err_set(e, -EEXIST, "checkpoint %s/%s is there already; nothing is overwritten", dir, name);
  }
  int rc = write_state(fd, tmp, name, b, e);
  if (rc) remove_one(fd, tmp, NULL);
  if (rc == 0) rc = write_marker(fd, name, &marker, e);
  if (rc) remove_one(fd, name, NULL);
  close(fd);
  return rc ? explain(dir, name, (size_t)b->size, rc, e) : 0;
}

/* At most max bytes; `want` bytes are expected (0: any). */
static int read_file(const char *path, uint64_t want, uint64_t max, struct buf *out, struct err *e) {
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return err_sys(e, -errno, "%s", path);
  int rc = fstat(fd, &st) < 0 ? err_sys(e, -errno, "%s", path) : 0;
  uint64_t size = rc ? 0 : (uint64_t)st.st_size;
  if (rc == 0 && want && size != want)
    rc = err_set(e, -EBADMSG, "%s has %" PRIu64 " bytes instead of %" PRIu64, path, size, want);
  if (rc == 0 && size > max)
    rc = err_set(e, -EBADMSG, "%s has %" PRIu64 " bytes, which is too much", path, size);
  while (rc == 0 && out->len < size) {
    ssize_t n = read(fd, buf_reserve(out, (size_t)size - out->len), (size_t)size - out->len);
    if (n == 0) rc = err_set(e, -EBADMSG, "%s ends early", path);
    if (n < 0 && errno != EINTR) rc = err_sys(e, -errno, "%s", path);
    if (n > 0) out->len += (size_t)n;
  }
  close(fd);
  return rc;
}

int ckpt_read(const char *dir, const struct ckpt_id *id, uint64_t max, struct buf *out, struct err *e) {
  char name[CKPT_NAME_MAX];
  struct buf text = BUF_INIT;
  struct ckpt_marker m = {0};
  ckpt_name_format(id, name);
  char *path = xasprintf("%s/%s/%s", dir, name, marker_name);
  int rc = read_file(path, 0, CKPT_MARKER_MAX, &text, e);
  if (rc == -ENOENT) err_set(e, rc, "it has no marker: its writer did not finish it");
  if (rc == 0 && (!ckpt_marker_parse(buf_text(&text), text.len, &m) || ckpt_id_compare(&m.id, id) != 0))
    rc = err_set(e, -EBADMSG, "%s is torn, or belongs to another checkpoint", path);
  buf_finish(&text);
  free(path);
  if (rc) return rc;
  path = xasprintf("%s/%s/%s", dir, name, state_name);
  buf_clear(out);
  rc = m.size ? read_file(path, m.size, max, out, e) : err_set(e, -EBADMSG, "%s is empty", path);
  if (rc == 0 && ckpt_crc(out->data, out->len) != m.crc)
    rc = err_set(e, -EBADMSG, "%s does not have the checksum in its marker", path);
  free(path);
  return rc;
}

/* What a state of any kind may need: as large as its own header says, which ckpt_decode checks. */
#define STATE_MAX (CKPT_HEADER + MODEL_PARAMS_MAX * 4 * (1 + COMPUTE_STATES_MAX) + 4)

int ckpt_latest(const char *dir, const struct ckpt_kind *want, struct ckpt_id *id, struct ckpt_state *s,
                struct buf *out, ckpt_refused_fn refused, void *ctx, struct err *e) {
  struct ckpt_list l = {0};
  char name[CKPT_NAME_MAX];
  int rc = ckpt_list(dir, &l, e), found = 0;
  if (rc) return rc;
  for (size_t i = 0; i < l.n && !found && rc == 0; i++) {
    struct err why = ERR_INIT;
    ckpt_name_format(&l.v[i], name);
    int bad = ckpt_read(dir, &l.v[i], STATE_MAX, out, &why);
    if (bad == 0) bad = ckpt_decode(out->data, out->len, s, &why);
    if (bad == 0 && s->step != l.v[i].step)
      bad = err_set(&why, -EBADMSG, "its state is of step %" PRIu64, s->step);
    if (bad) {
      refused(ctx, name, &why);
      continue;
    }
    *id = l.v[i];
    found = 1;
    rc = ckpt_kind_check(&s->kind, want, e);
    if (rc) err_wrap(e, "checkpoint %s/%s", dir, name);
  }
  ckpt_list_finish(&l);
  return rc ? rc : found;
}

static bool has_marker(int dirfd, const char *name) {
  char path[CKPT_NAME_MAX + 16];
  snprintf(path, sizeof path, "%s/%s", name, marker_name);
  return faccessat(dirfd, path, F_OK, 0) == 0;
}

/* .tmp-NAME-PID of a writer before us. */
static int prune_temporaries(int dirfd, const char *dir, const struct ckpt_id *mine, struct err *e) {
  DIR *d = opendir(dir);
  struct dirent *entry;
  int rc = 0;
  if (!d) return err_sys(e, -errno, "checkpoint directory %s", dir);
  while ((entry = readdir(d))) {
    struct ckpt_id id = {0};
    const size_t skip = sizeof TMP_PREFIX - 1;
    if (strncmp(entry->d_name, TMP_PREFIX, skip) != 0) continue;
    char *name = xstrdup(entry->d_name + skip), *pid = strrchr(name, '-');
    if (pid) *pid = 0;
    bool older = pid && ckpt_name_parse(name, &id) &&
                 (strcmp(id.incarnation, mine->incarnation) < 0 ||
                  (strcmp(id.incarnation, mine->incarnation) == 0 && id.round < mine->round));
    free(name);
    if (older && rc == 0) rc = remove_one(dirfd, entry->d_name, e);
  }
  closedir(d);
  return rc;
}

int ckpt_prune(const char *dir, const struct ckpt_id *mine, int keep, struct err *e) {
  struct ckpt_list l = {0};
  char name[CKPT_NAME_MAX];
  int fd = open_dir(dir, e);
  if (fd < 0) return fd;
  int rc = ckpt_list(dir, &l, e), seen = 0;
  for (size_t i = 0; rc == 0 && i < l.n; i++) {
    ckpt_name_format(&l.v[i], name);
    bool whole = has_marker(fd, name);
    bool goes = whole ? seen++ >= keep : ckpt_id_compare(&l.v[i], mine) < 0;
    if (goes) rc = remove_one(fd, name, e);
  }
  if (rc == 0) rc = prune_temporaries(fd, dir, mine, e);
  ckpt_list_finish(&l);
  close(fd);
  return rc;
}
