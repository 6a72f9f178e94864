/* SPDX-License-Identifier: Apache-2.0 */
/* The connection to the agent that started this process: records over one SOCK_SEQPACKET socket.
 *
 * A call that must wait polls the socket against a deadline. Every record passes through receive(), which keeps what
 * concerns the whole context (the bits of REQUEST, the loss of the agent) and returns the record to the call that
 * waits. So a request to stop, or the end of the round, is seen in the middle of a wait for the store.
 *
 * One thread receives; several may send, since the kernel keeps records whole. The socket stays open until rdzv_finish,
 * so that no thread can meet a closed or another descriptor. The loss and its reason lie behind the lock, as does
 * progress. Sentences belong to the thread that failed.
 *
 * After fork() both processes have the socket, and a record would reach either of them. So only the process that made
 * the context uses it.
 *
 * Every record is checked for its size, and text is terminated here, because an error of the agent must not crash the
 * training. A record of another version is not looked at, beyond its head. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "common/printable.h"

/* Sentences -------------------------------------------------------------------------------------------------------- */

static _Thread_local struct {
  unsigned of; /* the context's number; 0: rdzv_init */
  char text[RDZV_TEXT_MAX];
} failure;

int rdzv_fail(struct rdzv *r, int code, const char *fmt, ...) {
  char text[RDZV_TEXT_MAX];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  /* Programs print the sentence, and names of hosts, keys and variables in it are of others. So it is one
   * printable line, and each character is there whole or not at all. */
  size_t left = strlen(text), len = 0;
  const char *at = text;
  for (size_t n; left > 0; at += n, left -= n) {
    char shown[PRINTABLE_ESCAPE_MAX];
    n = printable_char(at, left, shown);
    if (len + strlen(shown) >= sizeof(failure.text)) break;
    memcpy(failure.text + len, shown, strlen(shown));
    len += strlen(shown);
  }
  failure.text[len] = '\0';
  failure.of = r ? r->number : 0;
  return code;
}

const char *rdzv_error(const struct rdzv *r) {
  return failure.of == (r ? r->number : 0) ? failure.text : "";
}

/* getpid() in every report of progress would be a system call. */
static atomic_uint forks;

static void count_fork(void) {
  atomic_fetch_add(&forks, 1);
}

static void watch_forks(void) {
  pthread_atfork(NULL, NULL, count_fork);
}

unsigned rdzv_forks(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  return atomic_load(&forks);
}

bool rdzv_is_foreign(const struct rdzv *r) {
  return !r->alone && r->forks != atomic_load_explicit(&forks, memory_order_relaxed);
}

int rdzv_lost(struct rdzv *r, const char *what) {
  char text[sizeof(r->shared.lost_text)];
  if (rdzv_is_foreign(r))
    return rdzv_fail(r, -EINVAL,
                     "%s: process %d was forked from process %d, which has this context; call rdzv_init in the new one",
                     what, (int)getpid(), (int)r->pid);
  pthread_mutex_lock(&r->shared.lock);
  int code = r->shared.lost_code;
  memcpy(text, r->shared.lost_text, sizeof(text));
  pthread_mutex_unlock(&r->shared.lock);
  return code ? rdzv_fail(r, code, "%s: %s", what, text) : rdzv_fail(r, -EPIPE, "%s: the agent is gone", what);
}

bool rdzv_is_lost(struct rdzv *r) {
  if (rdzv_is_foreign(r)) return true;
  pthread_mutex_lock(&r->shared.lock);
  bool gone = r->shared.gone;
  pthread_mutex_unlock(&r->shared.lock);
  return gone;
}

/* Waiting ---------------------------------------------------------------------------------------------------------- */

uint64_t rdzv_now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t rdzv_deadline_in(int timeout_ms) {
  return rdzv_now_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);
}

void rdzv_heed_flag(struct rdzv *r, bool waits) {
  r->waits = waits;
  r->flag_seen_ms = 0;
}

bool rdzv_is_interrupted(struct rdzv *r) {
  if (!r->interrupt || !*r->interrupt) return false;
  uint64_t now = rdzv_now_ms();
  if (!r->flag_seen_ms) r->flag_seen_ms = now;
  return now - r->flag_seen_ms >= RDZV_FLAG_MS;
}

int rdzv_poll_ms(const struct rdzv *r, uint64_t deadline) {
  uint64_t now = rdzv_now_ms(), left = deadline > now ? deadline - now : 0,
           most = r->interrupt ? RDZV_FLAG_MS : 1000000;
  return (int)(left < most ? left : most);
}

/* 0: `events` have come; -ETIMEDOUT. heeds: -EINTR. */
static int wait_for(struct rdzv *r, short events, bool heeds, uint64_t deadline) {
  for (;;) {
    if (heeds && rdzv_is_interrupted(r)) return -EINTR;
    struct pollfd p = {.fd = r->fd, .events = events};
    int ms = rdzv_poll_ms(r, deadline), n = poll(&p, 1, ms);
    if (n > 0) return 0;
    if (n == 0 && ms == 0) return -ETIMEDOUT;
    if (n < 0 && errno != EINTR) return -errno;
  }
}

/* The agent is lost ------------------------------------------------------------------------------------------------ */

/* With the lock. The first reason counts. */
static void keep_reason(struct rdzv *r, struct sdk_refused *f) {
  r->shared.gone = true;
  if (r->shared.lost_code) return;
  f->text[sizeof(f->text) - 1] = '\0';
  r->shared.lost_code = f->code < 0 ? f->code : -EPROTO;
  memcpy(r->shared.lost_text, f->text, sizeof(r->shared.lost_text));
}

static bool is_refused(const struct sdk_head *head, size_t size) {
  return size >= sizeof(struct sdk_refused) && head->magic == SDK_MAGIC && head->version == SDK_VERSION &&
         head->type == SDK_REFUSED;
}

static ssize_t receive_raw(struct rdzv *r, void *record, size_t size) {
  ssize_t n;
  do n = recv(r->fd, record, size, MSG_DONTWAIT | MSG_TRUNC);
  while (n < 0 &&
         (errno == EINTR || errno == ECONNRESET)); /* a reset is reported once, in front of records that still wait */
  return n;
}

/* With the lock. The agent's last records, and with them the reason, may still wait in the socket. */
static int note_loss(struct rdzv *r) {
  struct sdk_refused f;
  ssize_t n;
  while (!r->shared.gone && (n = receive_raw(r, &f, sizeof(f))) > 0)
    if ((size_t)n >= sizeof(f.head) && is_refused(&f.head, (size_t)n)) keep_reason(r, &f);
  r->shared.gone = true;
  return r->shared.lost_code ? r->shared.lost_code : -EPIPE;
}

/* Returns the code. */
static int disconnect(struct rdzv *r) {
  pthread_mutex_lock(&r->shared.lock);
  int code = note_loss(r);
  pthread_mutex_unlock(&r->shared.lock);
  return code;
}

static int refuse(struct rdzv *r, struct sdk_refused *f) {
  pthread_mutex_lock(&r->shared.lock);
  keep_reason(r, f);
  int code = r->shared.lost_code;
  pthread_mutex_unlock(&r->shared.lock);
  return code;
}

/* The peer has another version, or is not an agent. */
static int refuse_other_version(struct rdzv *r, const struct sdk_head *head) {
  struct sdk_refused f = {.code = -EPROTO};
  if (head->magic == SDK_MAGIC)
    snprintf(f.text, sizeof(f.text),
             "librdzv " RDZV_VERSION " speaks version %d of the workers' protocol, and this rdzv-agent version %u; use "
             "librdzv and rdzv-agent of one release in the worker's environment and on the node",
             SDK_VERSION, head->version);
  else
    snprintf(f.text, sizeof(f.text),
             "RDZV_AGENT_SOCKET does not lead to an rdzv-agent: the answer is not of its "
             "protocol; start this program through rdzv-agent");
  return refuse(r, &f);
}

/* Records ---------------------------------------------------------------------------------------------------------- */

struct sdk_head rdzv_head_of(uint16_t type) {
  return (struct sdk_head){.magic = SDK_MAGIC, .version = SDK_VERSION, .type = type};
}

int rdzv_send_locked(struct rdzv *r, const void *record, size_t size) {
  ssize_t n = -1;
  if (r->shared.gone) return note_loss(r);
  do n = send(r->fd, record, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (n < 0 && errno == EINTR);
  if (n >= 0) return 0;
  return errno == EAGAIN || errno == ENOBUFS ? -EAGAIN : note_loss(r);
}

int rdzv_send_record(struct rdzv *r, const void *record, size_t size, uint64_t deadline) {
  if (rdzv_is_foreign(r)) return -EINVAL;
  for (;;) {
    pthread_mutex_lock(&r->shared.lock);
    int rc = rdzv_send_locked(r, record, size);
    pthread_mutex_unlock(&r->shared.lock);
    if (rc != -EAGAIN) return rc;
    if (rdzv_now_ms() >= deadline || wait_for(r, POLLOUT, false, deadline)) return -ETIMEDOUT;
  }
}

int rdzv_sent(struct rdzv *r, int rc, const char *what) {
  if (rc == -ETIMEDOUT) return rdzv_fail(r, rc, "%s: the agent does not read", what);
  return rc ? rdzv_lost(r, what) : 0;
}

int rdzv_tell(struct rdzv *r, const void *record, size_t size, const char *what) {
  return r->alone ? 0 : rdzv_sent(r, rdzv_send_record(r, record, size, rdzv_deadline_in(RDZV_LAST_MS)), what);
}

/* Takes one record into r->record. Returns its type; 0: there is none now; negative: the agent is lost. *size: of the
 * record. Records about the whole context are handled here. */
static int receive(struct rdzv *r, size_t *size) {
  if (rdzv_is_foreign(r)) return -EINVAL;
  if (rdzv_is_lost(r)) return disconnect(r);
  ssize_t n = receive_raw(r, &r->record, sizeof(r->record));
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  if (n <= 0) return disconnect(r);
  struct sdk_head head = {0};
  if ((size_t)n >= sizeof(head)) head = r->record.head;
  if (head.magic != SDK_MAGIC || head.version != SDK_VERSION || head.type == 0 || (size_t)n > sizeof(r->record))
    return refuse_other_version(r, &head);
  if (is_refused(&head, (size_t)n)) return refuse(r, &r->record.refused);
  *size = (size_t)n;
  if (head.type == SDK_REQUEST && *size >= sizeof(struct sdk_request)) {
    r->requested = r->record.request.bits;
    r->checkpoints.asked = r->record.request.checkpoint;
  }
  if (head.type == SDK_IDS) rdzv_take_ids(r, *size);
  return head.type;
}

int rdzv_hear(struct rdzv *r) {
  size_t size = 0;
  int type = 0;
  do type = receive(r, &size);
  while (type > 0);
  return type;
}

int rdzv_hear_agent(struct rdzv *r) {
  int rc = rdzv_hear(r);
  if (rc == 0) return 0;
  char what[160];
  return rdzv_lost(r, rdzv_describe_call(r, what, sizeof(what)));
}

int rdzv_await(struct rdzv *r, size_t *size, uint64_t deadline) {
  for (;;) {
    int type = receive(r, size);
    if (type != 0) return type;
    int rc = wait_for(r, POLLIN, true, deadline);
    if (rc) return rc;
  }
}

/* Connecting ------------------------------------------------------------------------------------------------------- */

int rdzv_connect_agent(struct rdzv *r, const char *name, uint64_t deadline) {
  struct sockaddr_un addr;
  socklen_t len = sdk_address(name, &addr);
  if (!len)
    return rdzv_fail(r, -EINVAL, "RDZV_AGENT_SOCKET is \"%s\": a path or @name of 2 to %zu bytes is needed", name,
                     sizeof(addr.sun_path) - 1);
  r->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (r->fd < 0) return rdzv_fail(r, -errno, "no socket for the agent: %s", strerror(errno));
  while (connect(r->fd, (struct sockaddr *)&addr, len) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) /* EAGAIN: the queue of its socket is full */
      return rdzv_fail(r, -errno, "no agent answers at RDZV_AGENT_SOCKET=%s: %s", name, strerror(errno));
    if (rdzv_now_ms() >= deadline)
      return rdzv_fail(r, -ETIMEDOUT, "the agent at %s did not accept the connection in time", name);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
  }
  /* An abstract name has no permissions: when an agent has died, any user can take its name. A process of root may have
   * become that, and its agent may be any user's. */
  struct ucred who = {.uid = (uid_t)-1};
  len = sizeof(who);
  if (getsockopt(r->fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
    return rdzv_fail(r, -errno, "the user of the agent at %s is unknown: %s", name, strerror(errno));
  if (who.uid == 0 || who.uid == geteuid() || geteuid() == 0) return 0;
  return rdzv_fail(
      r, -EPERM,
      "RDZV_AGENT_SOCKET=%s is served by process %d of user %u, which is not the agent of user %u: the agent "
      "is gone, or the variable is of another job",
      name, (int)who.pid, (unsigned)who.uid, (unsigned)geteuid());
}
