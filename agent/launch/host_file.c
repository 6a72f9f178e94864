/* Files that others wrote: read whole, within a limit, and not at all where the name is that of a device, which might keep the agent
 * waiting at its start. Files of /proc tell no size, so what is read is what counts.
 *
 * A pipe is read where its name was typed: `--hostfile <(scontrol show hostnames)`. Whoever writes to it may take a moment, but not for ever. What
 * a scheduler's variable names is a file. */

#include "agent/launch/host_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"

enum { CHUNK = 16384 };

static int64_t now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Until there is something to read, or nothing more to come. */
static int await(int fd, int64_t until_ms) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  int n;
  do {
    int64_t left = until_ms - now_ms();
    n = left > 0 ? poll(&p, 1, (int)left) : 0;
  } while (n < 0 && errno == EINTR);
  return n < 0 ? -errno : n ? 0 : -ETIMEDOUT;
}

/* until_ms 0: it is a file, which keeps nobody waiting. */
static int read_all(int fd, size_t max, int64_t until_ms, struct buf *out) {
  for (;;) {
    int rc = until_ms ? await(fd, until_ms) : 0;
    if (rc) return rc;
    char *at = buf_reserve(out, CHUNK);
    ssize_t n = read(fd, at, CHUNK);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n < 0) return -errno;
    if (n == 0) return 0;
    buf_commit(out, (size_t)n);
    if (out->len > max) return -EFBIG;
  }
}

static int refuse(const char *path, uint32_t wait_ms, int rc, struct err *e) {
  if (rc == -EINVAL)
    return err_set(e, rc, "%s cannot be read: it is %s", path,
                   wait_ms ? "neither a file nor a pipe" : "no file");
  if (rc == -ETIMEDOUT)
    return err_set(e, rc, "%s has not come to its end in %u s: who writes to it is still there", path,
                   wait_ms / 1000);
  return err_sys(e, rc, "%s cannot be read", path);
}

static char *read_whole(const char *path, size_t max, uint32_t wait_ms, struct err *e) {
  struct buf text = BUF_INIT;
  struct stat st = {0};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  int rc = fd < 0 || fstat(fd, &st) != 0 ? -errno : 0;
  bool pipe = rc == 0 && wait_ms && S_ISFIFO(st.st_mode);
  if (rc == 0 && !pipe && !S_ISREG(st.st_mode)) rc = -EINVAL;
  if (rc == 0) rc = read_all(fd, max, pipe ? now_ms() + wait_ms : 0, &text);
  if (fd >= 0) close(fd);
  for (size_t i = 0; i < text.len; i++)
    if (!text.data[i]) text.data[i] = '\n';
  if (rc == 0) return text.data ? buf_steal(&text) : calloc(1, 1);
  buf_finish(&text);
  refuse(path, wait_ms, rc, e);
  return NULL;
}

char *host_file_read(void *ctx, const char *path, size_t max, struct err *e) {
  (void)ctx;
  return read_whole(path, max, 0, e);
}

char *host_file_read_given(const char *path, size_t max, uint32_t wait_ms, struct err *e) {
  return read_whole(path, max, wait_ms, e);
}
