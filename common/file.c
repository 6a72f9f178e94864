/* Reading and writing small files, where the only thing to get right is what read and write may do besides: stop early, be
 * interrupted, find that a process has gone between open and read. */

#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

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

int file_write_all(int fd, const void *data, size_t len) {
  for (size_t done = 0; done < len;) {
    ssize_t n = write(fd, (const char *)data + done, len - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? -errno : -EIO;
    done += (size_t)n;
  }
  return 0;
}
