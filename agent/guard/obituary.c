/* SPDX-License-Identifier: Apache-2.0 */
/* The guard's last act: it sends the message that the agent left with it for the case of its death.
 *
 * The agent encoded the bytes when it had a daemon and an identity; the guard knows neither protocol nor names, and the
 * address is numeric. Nothing else is left to do in this process, so it may wait, but shortly: the daemon learns of the
 * death from the closed connection too. The obituary only spares everybody the grace in which that agent might come
 * back. */

#include "agent/guard/wire.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>
#include "common/system/clock.h"

enum { SEND_MS = 2000, CLOSE_MS = 1000 };

static int wait_for(int fd, short events, int64_t deadline) {
  for (;;) {
    int64_t left = deadline - (int64_t)monotonic_ms();
    int n = poll(&(struct pollfd){.fd = fd, .events = events}, 1, left > 0 ? (int)left : 0);
    if (n > 0) return 0;
    if (n == 0 || errno != EINTR) return -1;
  }
}

static int write_all(int fd, const uint8_t *bytes, size_t len, int64_t deadline) {
  while (len > 0) {
    ssize_t n = send(fd, bytes, len, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      bytes += n;
      len -= (size_t)n;
    } else if (errno != EAGAIN && errno != EINTR) {
      return -1;
    } else if (wait_for(fd, POLLOUT, deadline)) {
      return -1;
    }
  }
  return 0;
}

/* Reads and drops what the peer sends until it closes: a close with unread bytes is a reset, and could drop our
 * bytes. */
static void wait_close(int fd, int64_t deadline) {
  char drop[512];
  while (wait_for(fd, POLLIN, deadline) == 0) {
    ssize_t n = recv(fd, drop, sizeof(drop), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
  }
}

void guard_send_obituary(const struct guard_cmd_obituary *o) {
  if (o->len == 0) return;
  int64_t deadline = (int64_t)monotonic_ms() + SEND_MS;
  int fd = socket(o->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  int rc = connect(fd, (const struct sockaddr *)&o->addr, o->addr_len);
  if (rc && errno == EINPROGRESS) rc = wait_for(fd, POLLOUT, deadline);
  if (rc == 0 && write_all(fd, o->bytes, o->len, deadline) == 0) {
    shutdown(fd, SHUT_WR);
    wait_close(fd, (int64_t)monotonic_ms() + CLOSE_MS);
  }
  close(fd);
}
