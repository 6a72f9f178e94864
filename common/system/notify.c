/* SPDX-License-Identifier: Apache-2.0 */
/* The service manager's socket.
 *
 * The protocol is one datagram of some lines to the unix socket that NOTIFY_SOCKET names: a path, or with '@' an
 * abstract name. libsystemd does no more, so it is not linked. The socket is not connected, because a manager that was
 * executed again has the same name and another socket.
 *
 * The variables are removed from the environment at once: a child that inherits them would send messages in our name.
 * SYSTEMD_EXEC_PID stays, since it names its process. If it is not our pid, a script stands between the manager and us.
 * Then MAINPID goes with READY, so that signals, the exit code and the watchdog concern this process (NotifyAccess=all
 * has to allow it).
 *
 * Signs of life come from the caller's loop: one that is stuck must fall silent. The manager asks for a sign at half of
 * WATCHDOG_USEC, and every_ms divides that half evenly.
 *
 * A manager's queue is short, and a blocking send would stop our loop. A STATUS or WATCHDOG that is lost is sent again
 * with the next beat; READY and STOPPING are repeated until they are sent. A status is one line of ASCII: the manager
 * drops text that is not UTF-8, and a line break would begin another message. */

#include "common/system/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "common/system/log.h"
#include "common/printable.h"

static bool is_other_pid(const char *text) {
  return text && strtol(text, NULL, 10) != (long)getpid();
}

/* Half of it, from microseconds to milliseconds. */
static uint64_t read_watchdog(const char *usec, const char *pid) {
  char *end;
  if (!usec || is_other_pid(pid)) return 0;
  errno = 0;
  unsigned long long v = strtoull(usec, &end, 10);
  if (*usec < '0' || *usec > '9' || *end || errno || v == 0) {
    log_warn("WATCHDOG_USEC=%.40s is not a number of microseconds: no signs of life are sent", usec);
    return 0;
  }
  uint64_t half = v / 2000;
  return half ? half : 1;
}

void notify_init(struct notify *n) {
  const char *to = getenv("NOTIFY_SOCKET");
  *n = (struct notify){.fd = -1};
  if (to && *to) {
    size_t len = strlen(to);
    int rc = (*to != '/' && *to != '@') || len < 2 ? -EAFNOSUPPORT : len >= sizeof(n->to.sun_path) ? -ENAMETOOLONG : 0;
    if (rc == 0) {
      n->to = (struct sockaddr_un){.sun_family = AF_UNIX};
      memcpy(n->to.sun_path, to, len);
      if (*to == '@') n->to.sun_path[0] = '\0';
      n->to_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len + (*to == '/'));
    }
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

/* Whether the datagram was sent. */
static bool send_text(struct notify *n, const struct buf *text) {
  struct iovec part = {.iov_base = text->data, .iov_len = text->len};
  struct msghdr m = {.msg_name = &n->to, .msg_namelen = n->to_len, .msg_iov = &part, .msg_iovlen = 1};
  if (sendmsg(n->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && !n->complained) {
    log_warn("cannot send to the service manager (NOTIFY_SOCKET): %s", strerror(errno));
    n->complained = true;
  }
  return false;
}

/* True: it differs from the last one sent. */
static bool put_status(const struct notify *n, const char *status, char now[NOTIFY_STATUS_MAX + 1]) {
  size_t left = strlen(status), len = 0;
  for (size_t n_char; left > 0; status += n_char, left -= n_char) {
    char shown[PRINTABLE_ESCAPE_MAX];
    n_char = printable_char(status, left, shown);
    if (len + strlen(shown) > NOTIFY_STATUS_MAX) break;
    memcpy(now + len, shown, strlen(shown));
    len += strlen(shown);
  }
  now[len] = '\0';
  return strcmp(now, n->status) != 0;
}

/* Sends everything that is due in one datagram. */
static void tell(struct notify *n, const char *status, bool alive, bool busy) {
  char now[NOTIFY_STATUS_MAX + 1];
  struct buf text = BUF_INIT;
  bool news = status && put_status(n, status, now);
  if (n->owes_ready) buf_puts(&text, "READY=1\n");
  if (n->owes_ready && n->indirect) buf_printf(&text, "MAINPID=%ld\n", (long)getpid());
  if (n->owes_stopping) buf_puts(&text, "STOPPING=1\n");
  if (news) buf_printf(&text, "STATUS=%s\n", now);
  if (alive) buf_puts(&text, "WATCHDOG=1\n");
  if (busy) buf_printf(&text, "EXTEND_TIMEOUT_USEC=%" PRIu64 "\n", (uint64_t)NOTIFY_EXTEND_MS * 1000);
  if (text.len > 0 && send_text(n, &text)) {
    n->owes_ready = n->owes_stopping = false;
    if (news) memcpy(n->status, now, sizeof(now));
  }
  buf_finish(&text);
}

/* The interval of beats; 0: never. */
static uint64_t every_ms(const struct notify *n) {
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
  bool alive = n->watchdog_ms && now_ms + every_ms(n) / 2 >= n->beat_ms;
  if (alive) n->beat_ms = now_ms + n->watchdog_ms;
  tell(n, status, alive, busy);
}

/* A timer of the loop whose life it proves. A late beat is sent late, on purpose. The timer does not keep the loop alive,
 * so a program ends as it does without a manager. */

static void on_beat(uv_timer_t *timer) {
  struct notify_timer *t = timer->data;
  struct buf status = BUF_INIT;
  bool busy = false;
  t->get_status(t->ctx, &status, &busy);
  notify_beat(t->notify, monotonic_ms(), buf_text(&status), busy);
  buf_finish(&status);
}

void notify_timer_start(struct notify_timer *t, uv_loop_t *loop, struct notify *n,
                        void (*get_status)(void *ctx, struct buf *out, bool *busy), void *ctx) {
  uint64_t pause_ms = every_ms(n);
  *t = (struct notify_timer){.notify = n, .get_status = get_status, .ctx = ctx};
  if (!pause_ms) return;
  uv_timer_init(loop, &t->timer);
  t->timer.data = t;
  uv_timer_start(&t->timer, on_beat, 0, pause_ms);
  uv_unref((uv_handle_t *)&t->timer);
}

void notify_timer_ready(struct notify_timer *t) {
  struct buf status = BUF_INIT;
  bool busy = false;
  if (!t->timer.data || t->notify->ready) return;
  t->get_status(t->ctx, &status, &busy);
  notify_ready(t->notify, buf_text(&status));
  buf_finish(&status);
}

void notify_timer_stopping(struct notify_timer *t, const char *status) {
  if (t->timer.data) notify_stopping(t->notify, status);
}

void notify_timer_close(struct notify_timer *t) {
  if (t->timer.data && !uv_is_closing((uv_handle_t *)&t->timer)) uv_close((uv_handle_t *)&t->timer, NULL);
}
