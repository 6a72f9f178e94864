/* SPDX-License-Identifier: Apache-2.0 */
/* Log files, written by the relay's thread.
 *
 * A file is opened for appending and gets bytes as they come, unbuffered: a worker's last words survive a crash of the
 * machine, and `tail -f` shows them. Appending also lets several streams share a file (the filtered lines of all
 * ranks).
 *
 * The first failure ends it. A full disk may get room again, but a log with an unnoticed hole is worse than one with a
 * reported end. */

#include "agent/output/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"

void relay_file_init(struct relay_file *f, const char *name) {
  *f = (struct relay_file){.name = xstrdup(name), .fd = -1};
}

void relay_file_close(struct relay_file *f) {
  if (f->fd >= 0) close(f->fd);
  f->fd = -1;
}

void relay_file_finish(struct relay_file *f) {
  relay_file_close(f);
  free(f->name);
  f->name = NULL;
}

static int give_up(struct relay_file *f, int error) {
  relay_file_close(f);
  f->failed = true;
  return error;
}

int relay_file_open(struct relay_file *f) {
  if (!f->name || !f->name[0]) return 0;
  /* Opening the file shows whether that worked. */
  for (char *p = strchr(f->name + 1, '/'); p; p = strchr(p + 1, '/')) {
    *p = '\0';
    mkdir(f->name, 0777);
    *p = '/';
  }
  f->fd = open(f->name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  return f->fd < 0 ? give_up(f, -errno) : 0;
}

int relay_file_write(struct relay_file *f, const char *data, size_t n) {
  while (f->fd >= 0 && n > 0) {
    ssize_t done = write(f->fd, data, n);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return give_up(f, -errno);
    data += done;
    n -= (size_t)done;
  }
  return 0;
}
