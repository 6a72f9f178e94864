/* The service manager's socket.
 *
 * The protocol is a line or several in one datagram to the unix socket that NOTIFY_SOCKET names: a path, or with '@' an abstract name.
 * That is all that libsystemd does too, so it is not linked. The socket is not connected: a manager that was executed anew has the
 * same name and another socket.
 *
 * The variables are taken out of the environment at once. What inherits them speaks in our name: a worker that sends READY=1
 * by its own library, or an rdzvd of our own whose watchdog would stand for ours. SYSTEMD_EXEC_PID stays: it says by itself whom it means.
 * Where it is not our pid, a script stands between the manager and us; then MAINPID goes with READY, so that signals, the exit code and
 * the watchdog concern us and not the script (NotifyAccess=all has to allow it).
 *
 * Signs of life come from the caller's loop, never from a thread or a timer signal: a loop that is stuck must fall silent. WATCHDOG_USEC is
 * when the manager gives up; half of it is how often we speak, as the manual asks. notify_every_ms divides that half evenly, so
 * that a status is never older than a second and a sign of life never late.
 *
 * The manager may be slow: its queue is short, and a blocking send would stop our loop for it. What is lost of STATUS and WATCHDOG comes again
 * with the next beat; READY and STOPPING are owed until they are sent. A manager that is gone is one warning.
 *
 * A status is one line of ASCII: the manager drops what is not UTF-8, and a line break in it would be another message. */

#include "common/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/log.h"

static bool is_other_pid(const char *text) {
  return text && strtol(text, NULL, 10) != (long)getpid();
}

/* Microseconds to the half of it in milliseconds. */
static uint64_t read_watchdog(const char *usec, const char *pid) {
  char *end;
  if (!usec || is_other_pid(pid)) return 0;
  errno = 0;
  unsigned long long v = strtoull(usec, &end, 10);
  if (*usec < '0' || *usec > '9' || *end || errno || v == 0) {
    log_warn("WATCHDOG_USEC=%.40s is no number of microseconds: no signs of life are sent", usec);
    return 0;
  }
  uint64_t half = v / 2000;
  return half ? half : 1;
}

static int make_address(struct notify *n, const char *text) {
  size_t len = strlen(text);
  n->to = (struct sockaddr_un){.sun_family = AF_UNIX};
  if ((text[0] != '/' && text[0] != '@') || len < 2) return -EAFNOSUPPORT;
  if (len >= sizeof(n->to.sun_path)) return -ENAMETOOLONG;
  memcpy(n->to.sun_path, text, len);
  if (text[0] == '@') n->to.sun_path[0] = '\0';
  n->to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (text[0] == '/'));
  return 0;
}

void notify_init(struct notify *n) {
  const char *to = getenv("NOTIFY_SOCKET");
  *n = (struct notify){.fd = -1};
  if (to && *to) {
    int rc = make_address(n, to);
    if (rc == 0) n->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (rc == 0 && n->fd < 0) rc = -errno;
    if (rc < 0) log_warn("NOTIFY_SOCKET=%.120s cannot be used: %s", to, strerror(-rc));
  }
  if (n->fd >= 0) n->watchdog_ms = read_watchdog(getenv("WATCHDOG_USEC"), getenv("WATCHDOG_PID"));
  n->indirect = is_other_pid(getenv("SYSTEMD_EXEC_PID"));
  unsetenv("NOTIFY_SOCKET");
  unsetenv("WATCHDOG_USEC");
  unsetenv("WATCHDOG_PID");
}

void notify_finish(struct notify *n) {
  if (n->fd >= 0) close(n->fd);
  n->fd = -1;
}

/* Whether it is on its way. */
static bool send_text(struct notify *n, const struct buf *text) {
  struct iovec part = {.iov_base = text->data, .iov_len = text->len};
  struct msghdr m = {.msg_name = &n->to, .msg_namelen = n->to_len, .msg_iov = &part, .msg_iovlen = 1};
  if (sendmsg(n->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && !n->complained) {
    log_warn("the service manager cannot be told anything: NOTIFY_SOCKET: %s", strerror(errno));
    n->complained = true;
  }
  return false;
}

/* True: it is another one than was told last. */
static bool put_status(const struct notify *n, const char *status, char now[NOTIFY_STATUS_MAX + 1]) {
  size_t len = 0;
  for (; status[len] && len < NOTIFY_STATUS_MAX; len++)
    now[len] = status[len] >= 0x20 && status[len] < 0x7F ? status[len] : '?';
  now[len] = '\0';
  return strcmp(now, n->status) != 0;
}

static void put_owed(const struct notify *n, struct buf *text) {
  if (n->owes_ready) buf_puts(text, "READY=1\n");
  if (n->owes_ready && n->indirect) buf_printf(text, "MAINPID=%ld\n", (long)getpid());
  if (n->owes_stopping) buf_puts(text, "STOPPING=1\n");
}

/* Everything that is to be said now, in one datagram. */
static void tell(struct notify *n, const char *status, bool alive, bool busy) {
  char now[NOTIFY_STATUS_MAX + 1];
  struct buf text = BUF_INIT;
  bool news = status && put_status(n, status, now);
  put_owed(n, &text);
  if (news) buf_printf(&text, "STATUS=%s\n", now);
  if (alive) buf_puts(&text, "WATCHDOG=1\n");
  if (busy) buf_printf(&text, "EXTEND_TIMEOUT_USEC=%" PRIu64 "\n", (uint64_t)NOTIFY_EXTEND_MS * 1000);
  if (text.len > 0 && send_text(n, &text)) {
    n->owes_ready = n->owes_stopping = false;
    if (news) memcpy(n->status, now, sizeof(now));
  }
  buf_finish(&text);
}

uint64_t notify_every_ms(const struct notify *n) {
  if (n->fd < 0) return 0;
  if (!n->watchdog_ms) return NOTIFY_EVERY_MS;
  return n->watchdog_ms / ((n->watchdog_ms + NOTIFY_EVERY_MS - 1) / NOTIFY_EVERY_MS);
}

void notify_ready(struct notify *n, const char *status) {
  if (n->fd < 0 || n->ready) return;
  n->ready = n->owes_ready = true;
  tell(n, status, false, false);
}

void notify_stopping(struct notify *n, const char *status) {
  if (n->fd < 0 || n->stopping) return;
  n->stopping = n->owes_stopping = true;
  tell(n, status, false, true);
}

void notify_beat(struct notify *n, uint64_t now_ms, const char *status, bool busy) {
  if (n->fd < 0) return;
  /* Half of a pause early is in time: a whole one later would be too late. */
  bool alive = n->watchdog_ms && now_ms + notify_every_ms(n) / 2 >= n->beat_ms;
  if (alive) n->beat_ms = now_ms + n->watchdog_ms;
  tell(n, status, alive, busy);
}
