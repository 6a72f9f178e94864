/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints on disk. A crash at any moment leaves a complete checkpoint or none:
 *
 *   .tmp-NAME/model.safetensors   written, fsynced           a crash leaves a file that nobody reads
 *   .tmp-NAME             fsynced, renamed to NAME   a crash leaves NAME without a marker: no checkpoint
 *   DIR                   fsynced
 *   NAME/COMMIT.tmp       written, fsynced, renamed to COMMIT, NAME fsynced
 *
 * The marker holds size and checksum of model.safetensors, so a file system that reorders writes is found out. Reading checks
 * the marker against the name of the folder, the file against the marker, and the state against itself. A checkpoint
 * that fails is skipped, and the one before it is used.
 *
 * The name holds the generation and the fencing token (incarnation, round). So a writer of an older round that is still
 * alive cannot touch what a newer one wrote, and its own checkpoints sort below. */

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

enum { PIECE_MAX = 8 << 20 }; /* bytes read or written at once, so that a tally moves */

#define TMP_PREFIX ".tmp-"
static const char state_name[] = CKPT_STATE_FILE, marker_name[] = "COMMIT", marker_tmp[] = "COMMIT.tmp";

static int open_dir(const char *path, struct err *e) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  return fd < 0 ? err_sys(e, -errno, "checkpoint directory %s", path) : fd;
}

int ckpt_dir_open(const char *dir, struct err *e) {
  if (mkdir(dir, 0777) < 0 && errno != EEXIST) return err_sys(e, -errno, "cannot create checkpoint directory %s", dir);
  int fd = open_dir(dir, e);
  if (fd < 0) return fd;
  int rc =
      faccessat(fd, ".", W_OK | X_OK, 0) < 0 ? err_sys(e, -errno, "cannot write to checkpoint directory %s", dir) : 0;
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
    if ((l.n & (l.n + 1)) == 0) l.v = xrealloc(l.v, (2 * l.n + 1) * sizeof *l.v); /* grows at 0, 1, 3, 7, ... */
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

/* A file of `n` pieces, on disk when this returns. */
static int write_file(int dirfd, const char *name, const struct ckpt_piece *p, int n, struct tally *tally,
                      struct err *e) {
  int fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return err_sys(e, -errno, "%s", name);
  int rc = 0;
  for (int i = 0; i < n; i++)
    for (size_t at = 0; at < p[i].n && rc == 0;) {
      size_t left = p[i].n - at;
      ssize_t k = write(fd, (const char *)p[i].data + at, left < PIECE_MAX ? left : PIECE_MAX);
      if (k < 0 && errno != EINTR) rc = err_sys(e, -errno, "%s", name);
      if (k <= 0) continue;
      at += (size_t)k;
      tally_add(tally, (uint64_t)k);
    }
  if (rc == 0 && fsync(fd) < 0) rc = err_sys(e, -errno, "%s: fsync", name);
  if (close(fd) < 0 && rc == 0) rc = err_sys(e, -errno, "%s: close", name);
  return rc;
}

/* Removes the files that a checkpoint can have, marker first, then the folder. */
static int remove_checkpoint(int dirfd, const char *name, struct err *e) {
  int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 0 : err_sys(e, -errno, "cannot remove %s", name);
  const char *const files[] = {marker_name, marker_tmp, state_name};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) unlinkat(fd, files[i], 0);
  close(fd);
  if (unlinkat(dirfd, name, AT_REMOVEDIR) < 0 && errno != ENOENT) return err_sys(e, -errno, "cannot remove %s", name);
  return 0;
}

static int sync_dir(int fd, const char *name, struct err *e) {
  return fsync(fd) < 0 ? err_sys(e, -errno, "%s: fsync", name) : 0;
}

/* Writes model.safetensors in the temporary folder, which then gets its name; *named: it has. */
static int write_state(int dirfd, const char *tmp, const char *name, const struct ckpt_bytes *b, bool *named,
                       struct tally *tally, struct err *e) {
  if (mkdirat(dirfd, tmp, 0777) < 0) return err_sys(e, -errno, "%s", tmp);
  int fd = openat(dirfd, tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  int rc = fd < 0 ? err_sys(e, -errno, "%s", tmp) : write_file(fd, state_name, b->pieces, b->n, tally, e);
  if (rc == 0) rc = sync_dir(fd, tmp, e);
  if (fd >= 0) close(fd);
  if (rc == 0 && renameat(dirfd, tmp, dirfd, name) < 0) rc = err_sys(e, -errno, "rename to %s", name);
  *named = rc == 0;
  return rc ? rc : sync_dir(dirfd, name, e);
}

static int write_marker(int dirfd, const char *name, const struct ckpt_marker *m, struct err *e) {
  struct buf text = BUF_INIT;
  int fd = openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return err_sys(e, -errno, "%s", name);
  ckpt_marker_format(m, &text);
  int rc = write_file(fd, marker_tmp, &(struct ckpt_piece){text.data, text.len}, 1, NULL, e);
  if (rc == 0 && renameat(fd, marker_tmp, fd, marker_name) < 0)
    rc = err_sys(e, -errno, "rename to %s%s", marker_name, errno == ENOENT ? " (another process removed it)" : "");
  if (rc == 0) rc = sync_dir(fd, name, e);
  close(fd);
  buf_finish(&text);
  return rc;
}

int ckpt_write(const char *dir, const struct ckpt_marker *about, const struct ckpt_bytes *b, struct tally *tally,
               struct err *e) {
  char name[CKPT_NAME_MAX], tmp[CKPT_NAME_MAX + 32];
  struct ckpt_marker marker = *about;
  struct stat st;
  marker.size = b->size;
  marker.crc = b->crc;
  ckpt_name_format(&about->id, name);
  snprintf(tmp, sizeof tmp, TMP_PREFIX "%s-%ld", name, (long)getpid());
  int fd = open_dir(dir, e);
  if (fd < 0) return fd;
  if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
    close(fd);
    return err_set(e, -EEXIST, "checkpoint %s/%s already exists and is not overwritten", dir, name);
  }
  bool named = false; /* a folder of that name that another process made in the meantime is not ours to remove */
  tally_begin(tally, b->size);
  int rc = write_state(fd, tmp, name, b, &named, tally, e);
  if (rc) remove_checkpoint(fd, tmp, NULL);
  if (rc == 0) rc = write_marker(fd, name, &marker, e);
  if (rc && named) remove_checkpoint(fd, name, NULL);
  close(fd);
  if (rc == 0) return 0;
  struct statvfs v;
  struct err why = e ? *e : (struct err)ERR_INIT;
  double needed = (double)b->size / 1e6;
  if ((rc == -ENOSPC || rc == -EDQUOT) && statvfs(dir, &v) == 0)
    return err_set(e, rc, "checkpoint %s/%s could not be written: %s (it needs %.3g MB, %.3g MB are free)", dir, name,
                   why.text, needed, (double)v.f_bavail * (double)v.f_frsize / 1e6);
  return err_set(e, rc, "checkpoint %s/%s (%.3g MB) could not be written: %s", dir, name, needed, why.text);
}

/* Reads a file of at most max bytes; `want` bytes are expected (0: any). Does not wait for a pipe of that name. */
static int read_file(const char *path, uint64_t want, uint64_t max, struct buf *out, struct tally *tally,
                     struct err *e) {
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY), rc = 0;
  if (fd < 0 && errno != ELOOP && errno != ENXIO) return err_sys(e, -errno, "%s", path);
  if (fd < 0) return err_set(e, -EBADMSG, "%s is not a regular file", path);
  if (fstat(fd, &st) < 0)
    rc = err_sys(e, -errno, "%s", path);
  else if (!S_ISREG(st.st_mode))
    rc = err_set(e, -EBADMSG, "%s is not a regular file", path);
  uint64_t size = rc ? 0 : (uint64_t)st.st_size;
  if (rc == 0 && want && size != want)
    rc = err_set(e, -EBADMSG, "%s has %" PRIu64 " bytes instead of %" PRIu64, path, size, want);
  if (rc == 0 && size > max) rc = err_set(e, -EBADMSG, "%s has %" PRIu64 " bytes, which is too large", path, size);
  if (rc == 0) tally_begin(tally, size);
  while (rc == 0 && out->len < size) {
    size_t left = (size_t)size - out->len;
    ssize_t n = read(fd, buf_reserve(out, left), left < PIECE_MAX ? left : PIECE_MAX);
    if (n == 0) rc = err_set(e, -EBADMSG, "%s ends early", path);
    if (n < 0 && errno != EINTR) rc = err_sys(e, -errno, "%s", path);
    if (n <= 0) continue;
    buf_commit(out, (size_t)n);
    tally_add(tally, (uint64_t)n);
  }
  close(fd);
  return rc;
}

static int read_marker(const char *dir, const struct ckpt_id *id, struct ckpt_marker *m, struct err *e) {
  char name[CKPT_NAME_MAX];
  struct buf text = BUF_INIT;
  ckpt_name_format(id, name);
  char *path = xasprintf("%s/%s/%s", dir, name, marker_name);
  int rc = read_file(path, 0, CKPT_MARKER_MAX, &text, NULL, e);
  if (rc == -ENOENT) err_set(e, rc, "it has no marker: its writer did not finish it");
  int version = CKPT_VERSION;
  if (rc == 0 && sscanf(buf_text(&text), "rdzv-trainer checkpoint %9d", &version) == 1 && version != CKPT_VERSION)
    rc = err_set(e, -EBADMSG,
                 "%s is of format version %d, and this trainer reads version %d; end that run with the release that "
                 "began it, or give its --save-weights to this one",
                 path, version, CKPT_VERSION);
  if (rc == 0 && (!ckpt_marker_parse(buf_text(&text), text.len, m) || ckpt_id_compare(&m->id, id) != 0))
    rc = err_set(e, -EBADMSG, "%s is incomplete, or belongs to another checkpoint", path);
  buf_finish(&text);
  free(path);
  return rc;
}

int ckpt_read(const char *dir, const struct ckpt_id *id, uint64_t max, struct ckpt_marker *m, struct buf *out,
              struct tally *tally, struct err *e) {
  char name[CKPT_NAME_MAX];
  int rc = read_marker(dir, id, m, e);
  if (rc) return rc;
  ckpt_name_format(id, name);
  char *path = xasprintf("%s/%s/%s", dir, name, state_name);
  buf_clear(out);
  rc = m->size ? read_file(path, m->size, max, out, tally, e) : err_set(e, -EBADMSG, "%s is empty", path);
  if (rc == 0 && ckpt_crc(out->data, out->len) != m->crc)
    rc = err_set(e, -EBADMSG, "%s does not have the checksum of its marker", path);
  free(path);
  return rc;
}

/* The largest state of any kind. ckpt_decode checks the size against the header. */
#define STATE_MAX (CKPT_HEADER + MODEL_PARAMS_MAX * 4 * (1 + COMPUTE_STATES))

static bool is_of_incarnation(const struct ckpt_id *id, const char *incarnation) {
  return !incarnation || strcmp(id->incarnation, incarnation) == 0;
}

int ckpt_latest(const char *dir, const char *incarnation, struct ckpt_marker *m, struct ckpt_state *s, struct buf *out,
                ckpt_refused_fn refused, void *ctx, struct tally *tally, struct err *e) {
  struct ckpt_list l = {0};
  char name[CKPT_NAME_MAX];
  int rc = ckpt_list(dir, &l, e), found = 0;
  for (size_t i = 0; i < l.n && !found; i++) {
    struct err why = ERR_INIT;
    if (!is_of_incarnation(&l.v[i], incarnation)) continue;
    int bad = ckpt_read(dir, &l.v[i], STATE_MAX, m, out, tally, &why);
    if (bad == 0) bad = ckpt_decode(out->data, out->len, s, &why);
    if (bad == 0 && s->step != l.v[i].step) bad = err_set(&why, -EBADMSG, "its state is of step %" PRIu64, s->step);
    found = bad == 0;
    ckpt_name_format(&l.v[i], name);
    if (!found) refused(ctx, name, &why);
  }
  ckpt_list_finish(&l);
  return rc ? rc : found;
}

int ckpt_latest_marker(const char *dir, const char *incarnation, struct ckpt_marker *m) {
  struct ckpt_list l = {0};
  int found = 0;
  ckpt_list(dir, &l, NULL);
  for (size_t i = 0; i < l.n && !found; i++)
    found = is_of_incarnation(&l.v[i], incarnation) && read_marker(dir, &l.v[i], m, NULL) == 0;
  ckpt_list_finish(&l);
  return found;
}

/* Removing. -------------------------------------------------------------------------------------------------------- */

/* Removes .tmp-NAME-PID of writers before this one. */
static int clean_temporaries(int dirfd, const char *dir, const struct ckpt_id *mine, struct err *e) {
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
    bool parsed = pid && ckpt_name_parse(name, &id);
    free(name);
    bool older = id.generation < mine->generation || (id.generation == mine->generation && id.round < mine->round);
    if (parsed && older && rc == 0) rc = remove_checkpoint(dirfd, entry->d_name, e);
  }
  closedir(d);
  return rc;
}

static bool has_marker(int dirfd, const char *name) {
  char path[CKPT_NAME_MAX + sizeof marker_name];
  snprintf(path, sizeof path, "%s/%s", name, marker_name);
  return faccessat(dirfd, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

int ckpt_prune(const char *dir, const struct ckpt_marker *mine, int keep, struct err *e) {
  struct ckpt_list l = {0};
  char name[CKPT_NAME_MAX];
  int fd = open_dir(dir, e);
  if (fd < 0) return fd;
  int rc = ckpt_list(dir, &l, e);
  struct ckpt_marker *markers = xcalloc(l.n + 1, sizeof *markers);
  const struct ckpt_marker **whole = xcalloc(l.n + 1, sizeof(const struct ckpt_marker *));
  bool *goes = xcalloc(l.n + 1, sizeof *goes);
  for (size_t i = 0; i < l.n; i++)
    if (read_marker(dir, &l.v[i], &markers[i], NULL) == 0) whole[i] = &markers[i];
  ckpt_claim_prune(l.v, whole, l.n, mine, keep, goes);
  for (size_t i = 0; i < l.n && rc == 0; i++) {
    ckpt_name_format(&l.v[i], name);
    /* One that is not whole, although it has a marker, may be of another release, which reads it. */
    if (goes[i] && (whole[i] || !has_marker(fd, name))) rc = remove_checkpoint(fd, name, e);
  }
  rc = rc ? -EIO : clean_temporaries(fd, dir, &mine->id, e);
  free(goes);
  free((void *)whole);
  free(markers);
  ckpt_list_finish(&l);
  close(fd);
  return rc;
}
