/* SPDX-License-Identifier: Apache-2.0 */
/* Small files. read and write may stop early or be interrupted, and a process may be gone between open and read.
 *
 * A file that is replaced is written under another name first. In /tmp another user could make that name, if it could
 * be guessed, as a link to one of the user's own files. So it is random, and O_EXCL refuses everything that exists,
 * links too. */

#include "common/system/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"

ssize_t file_read_text(const char *path, char *text, size_t size) {
  text[0] = '\0';
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  ssize_t n = read(fd, text, size - 1);
  if (n < 0) n = -errno;
  close(fd);
  if (n > 0) text[n] = '\0';
  return n;
}

int file_drain(int fd, size_t max, struct buf *out) {
  if (fd < 0) return -errno;
  ssize_t n = 1;
  while (n != 0 && out->len <= max) {
    n = read(fd, buf_reserve(out, 4096), 4096);
    if (n < 0 && errno != EINTR) break;
    if (n > 0) buf_commit(out, (size_t)n);
  }
  int rc = n < 0 ? -errno : 0;
  close(fd);
  return rc;
}

int file_write_all(int fd, const void *data, size_t len) {
  for (size_t done = 0; done < len;) {
    ssize_t n = write(fd, (const char *)data + done, len - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? -errno : -EIO;
    done += (size_t)n;
  }
  return 0;
}

void file_random_name(char out[FILE_RANDOM_SIZE]) {
  uint64_t bits;
  if (getrandom(&bits, sizeof(bits), 0) != (ssize_t)sizeof(bits))
    abort(); /* so few bytes always come, since Linux 3.17 */
  snprintf(out, FILE_RANDOM_SIZE, "%016" PRIx64, bits);
}

static int write_new(const char *path, const void *data, size_t len, mode_t mode, bool through) {
  int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
  if (fd < 0) return -errno;
  int rc = file_write_all(fd, data, len);
  if (rc == 0 && through && fsync(fd) < 0 && errno != EINVAL) rc = -errno; /* EINVAL: it has no disk */
  if (close(fd) < 0 && rc == 0) rc = -errno;
  if (rc) unlink(path);
  return rc;
}

int file_replace(const char *path, const void *data, size_t len, mode_t mode, bool through) {
  char name[FILE_RANDOM_SIZE];
  file_random_name(name);
  char *aside = xasprintf("%s.%s.new", path, name);
  int rc = write_new(aside, data, len, mode, through);
  if (rc == 0 && rename(aside, path) < 0) {
    rc = -errno;
    unlink(aside);
  }
  free(aside);
  return rc;
}

int file_fill_standard(struct err *e) {
  int fd;
  do fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= 2);
  if (fd < 0) return err_sys(e, -errno, "cannot open /dev/null");
  close(fd);
  return 0;
}

/* NFS and autofs may refuse to make a folder without looking whether it is there. */
int file_make_folders(const char *file) {
  char *path = xstrdup(file);
  int rc = 0;
  struct stat st;
  for (char *p = *path ? strchr(path + 1, '/') : NULL; p && !rc; p = strchr(p + 1, '/')) {
    *p = '\0';
    if (mkdir(path, 0777) != 0 && errno != EEXIST) rc = -errno;
    if (rc && stat(path, &st) == 0) rc = 0;
    *p = '/';
  }
  free(path);
  return rc;
}

void file_empty_folder(int fd, int depth) {
  DIR *dir = fdopendir(fd);
  if (!dir) {
    close(fd);
    return;
  }
  for (struct dirent *f; (f = readdir(dir));) {
    if (strcmp(f->d_name, ".") == 0 || strcmp(f->d_name, "..") == 0) continue;
    if (unlinkat(fd, f->d_name, 0) == 0 || depth == 0) continue;
    int below = openat(fd, f->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (below >= 0) file_empty_folder(below, depth - 1);
    unlinkat(fd, f->d_name, AT_REMOVEDIR); /* fails if it is not empty */
  }
  closedir(dir);
}

void file_remove_folder(const char *dir, int depth) {
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  file_empty_folder(fd, depth);
  rmdir(dir);
}
