/* Files that others wrote: read whole, within a limit, and not at all where the name is that of a pipe or a device, which would keep the agent
 * waiting at its start. Files of /proc tell no size, so what is read is what counts. */

#include "agent/host_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"

enum { CHUNK = 16384 };

static int read_all(int fd, size_t max, struct buf *out) {
  for (;;) {
    char *at = buf_reserve(out, CHUNK);
    ssize_t n = read(fd, at, CHUNK);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return -errno;
    if (n == 0) return 0;
    buf_commit(out, (size_t)n);
    if (out->len > max) return -EFBIG;
  }
}

char *host_file_read(void *ctx, const char *path, size_t max, struct err *e) {
  struct buf text = BUF_INIT;
  struct stat st;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  int rc = fd < 0 || fstat(fd, &st) != 0 ? -errno : S_ISREG(st.st_mode) ? read_all(fd, max, &text) : -EINVAL;
  (void)ctx;
  if (fd >= 0) close(fd);
  if (rc == 0) return text.data ? buf_steal(&text) : calloc(1, 1);
  buf_finish(&text);
  err_sys(e, rc, "%s cannot be read", path);
  return NULL;
}
