/* SPDX-License-Identifier: Apache-2.0 */
/* Reads files of others: whole, within a limit, and never a device, which might block the agent's start. Files of
 * /proc report no size, so the bytes read count.
 *
 * A pipe is accepted where a user named it: `--hostfile <(scontrol show hostnames)`. Its writer may take a moment, but
 * not forever. A scheduler's variable must name a file. */

#include "agent/launch/host_file.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/system/clock.h"

enum { CHUNK = 16384 };

char *host_file_read(void *wait, const char *path, size_t max, struct err *e) {
  uint32_t wait_ms = wait ? *(const uint32_t *)wait : 0;
  struct buf text = BUF_INIT;
  struct stat st = {0};
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  int rc = fd < 0 || fstat(fd, &st) != 0 ? -errno : 0;
  bool pipe = rc == 0 && wait_ms && S_ISFIFO(st.st_mode);
  if (rc == 0 && !pipe && !S_ISREG(st.st_mode)) rc = -EINVAL;
  uint64_t now = monotonic_ms(), until = now + wait_ms;
  for (bool more = rc == 0; more && rc == 0; now = monotonic_ms()) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int ready = !pipe ? 1 : until > now ? poll(&p, 1, (int)(until - now)) : 0; /* a file does not block */
    ssize_t n = ready > 0 ? read(fd, buf_reserve(&text, CHUNK), CHUNK) : ready;
    if (n > 0) buf_commit(&text, (size_t)n);
    if (n < 0 && errno != EINTR && errno != EAGAIN) rc = -errno;
    if (ready == 0) rc = -ETIMEDOUT;
    if (text.len > max) rc = -EFBIG;
    more = n != 0;
  }
  if (fd >= 0) close(fd);
  for (size_t i = 0; i < text.len; i++)
    if (!text.data[i]) text.data[i] = '\n';
  if (rc == 0) return text.data ? buf_steal(&text) : calloc(1, 1);
  buf_finish(&text);
  if (rc == -EINVAL)
    err_set(e, rc, "%s cannot be read: it is %s", path, wait_ms ? "neither a file nor a pipe" : "not a file");
  else if (rc == -ETIMEDOUT)
    err_set(e, rc, "%s did not end within %u s: its writer is still running", path, wait_ms / 1000);
  else
    err_sys(e, rc, "%s cannot be read", path);
  return NULL;
}
