/* SPDX-License-Identifier: Apache-2.0 */
/* The guard's last act: it sends the message that the agent left with it for the case of its death.
 *
 * The agent encoded the bytes when it had a daemon and an identity; the guard knows no messages and no names, and the
 * address is numeric. With a key it opens a channel of its own: the agent's died with it. Nothing else is left to do in
 * this process, so it may wait, but shortly: the daemon learns of the death from the closed connection too. The report
 * only saves the time in which that agent might come back. */

#include "agent/guard/wire.h"

#include <errno.h>
#include <poll.h>
#include <sodium.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "proto/channel.h"

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

/* The daemon's answer to the opening. True: the channel is open. */
static bool read_answer(int fd, struct channel *c, int64_t deadline) {
  char answer[CHANNEL_ANSWER_SIZE];
  size_t len = 0, used;
  enum channel_status status;
  enum channel_source source;
  for (;;) {
    ssize_t n = recv(fd, answer + len, sizeof(answer) - len, MSG_DONTWAIT);
    if (n > 0) {
      len += (size_t)n;
      int rc = channel_take_answer(c, answer, len, &used, &status, &source);
      if (rc != 0) return rc > 0;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR) || wait_for(fd, POLLIN, deadline)) {
      return false;
    }
  }
}

void guard_send_death_report(const struct guard_cmd_death_report *o, const struct key *key) {
  if (o->len == 0) return;
  int64_t deadline = (int64_t)monotonic_ms() + SEND_MS;
  int fd = socket(o->addr.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  int rc = connect(fd, (const struct sockaddr *)&o->addr, o->addr_len);
  if (rc && errno == EINPROGRESS) rc = wait_for(fd, POLLOUT, deadline);
  if (rc == 0 && !key) rc = write_all(fd, o->bytes, o->len, deadline);
  if (rc == 0 && key) {
    struct channel c = {.secret = NULL};
    struct buf out = BUF_INIT;
    uint8_t random[NOISE_KEY];
    randombytes_buf(random, sizeof(random));
    channel_open(&c, key, random, &out);
    rc = write_all(fd, (const uint8_t *)out.data, out.len, deadline);
    if (rc == 0 && !read_answer(fd, &c, deadline)) rc = -1;
    buf_clear(&out);
    if (rc == 0) {
      channel_seal(&c, o->bytes, o->len, &out);
      rc = write_all(fd, (const uint8_t *)out.data, out.len, deadline);
    }
    channel_finish(&c);
    buf_finish(&out);
  }
  if (rc == 0) {
    shutdown(fd, SHUT_WR);
    int64_t until = (int64_t)monotonic_ms() + CLOSE_MS;
    /* A close with unread bytes is a reset, and could drop ours: what the peer sends is dropped until it closes. */
    char drop[512];
    for (ssize_t n = 1; n && wait_for(fd, POLLIN, until) == 0;) {
      n = recv(fd, drop, sizeof(drop), MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN && errno != EINTR) break;
    }
  }
  close(fd);
}
