/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv, the worker's side: records over one SOCK_SEQPACKET socket to the agent that started this process.
 *
 * The library uses libc only, and of this project only rdzv*.[ch], wire.h and the store's protocol (proto/c10d), so
 * these files can be compiled into any program. It has no thread, no signal handler and no timer: a program that does
 * not call it is never interrupted.
 *
 * The socket never blocks. A call that must wait (init, the store's calls) polls it against a deadline. Every record
 * passes through receive(), which keeps what concerns the whole context (the bits of REQUEST, the loss of the agent)
 * and returns the record to the call that waits. So a request to stop, or the end of the round, is seen in the middle
 * of a wait for the store.
 *
 * Progress is sent at most every 20 ms, since a training step may take microseconds; the first and the last step are
 * sent at once. A report that was held back is sent by the first call after that time, at the latest by rdzv_done or
 * rdzv_finish.
 *
 * Every record is checked for its size, and text is terminated here, because an error of the agent must not crash the
 * training. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
  PROGRESS_EVERY_MS = 20,
};

static _Thread_local char init_text[RDZV_TEXT_MAX];

int rdzv_fail(struct rdzv *r, int code, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(r->text, sizeof(r->text), fmt, ap);
  va_end(ap);
  return code;
}

uint64_t rdzv_now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

uint64_t rdzv_deadline_in(int timeout_ms) {
  return rdzv_now_ms() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0);
}

/* 0: `events` have come; -ETIMEDOUT. */
static int wait_for(int fd, short events, uint64_t deadline) {
  for (;;) {
    uint64_t now = rdzv_now_ms(), left = deadline > now ? deadline - now : 0;
    struct pollfd p = {.fd = fd, .events = events};
    int n = poll(&p, 1, left > 1000000 ? 1000000 : (int)left);
    if (n > 0) return 0;
    if (n == 0 && left == 0) return -ETIMEDOUT;
    if (n < 0 && errno != EINTR) return -errno;
  }
}

struct sdk_head rdzv_head_of(uint16_t type) {
  return (struct sdk_head){.magic = SDK_MAGIC, .version = SDK_VERSION, .type = type};
}

/* The received record if it is a whole REFUSED, else NULL. */
static struct sdk_refused *as_refused(struct rdzv *r, size_t size) {
  struct sdk_refused *f = &r->record.refused;
  if (size != sizeof(*f) || f->head.type != SDK_REFUSED || f->head.magic != SDK_MAGIC) return NULL;
  f->text[sizeof(f->text) - 1] = '\0';
  if (f->code >= 0) f->code = -EPROTO;
  return f;
}

static ssize_t receive_raw(struct rdzv *r) {
  ssize_t n;
  do n = recv(r->fd, &r->record, sizeof(r->record), MSG_DONTWAIT);
  while (n < 0 &&
         (errno == EINTR || errno == ECONNRESET)); /* a reset is reported once, in front of records that still wait */
  return n;
}

/* The connection ends. The agent's last records, and with them the reason, may still wait in the socket. */
static int disconnect(struct rdzv *r) {
  ssize_t n;
  while (r->fd >= 0 && !r->lost_code && (n = receive_raw(r)) > 0) {
    const struct sdk_refused *f = as_refused(r, (size_t)n);
    if (!f) continue;
    r->lost_code = f->code;
    memcpy(r->lost_text, f->text, sizeof(r->lost_text));
  }
  if (r->fd >= 0) close(r->fd);
  r->fd = -1;
  return r->lost_code ? r->lost_code : -EPIPE;
}

int rdzv_lost(struct rdzv *r, const char *what) {
  if (!r->lost_code) return rdzv_fail(r, -EPIPE, "%s: the agent is gone", what);
  return rdzv_fail(r, r->lost_code, "%s: %s", what, r->lost_text);
}

int rdzv_send_record(struct rdzv *r, const void *record, size_t size, uint64_t deadline) {
  for (;;) {
    if (r->fd < 0) return disconnect(r);
    if (send(r->fd, record, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return 0;
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != ENOBUFS) return disconnect(r);
    if (deadline == 0) return -EAGAIN;
    if (wait_for(r->fd, POLLOUT, deadline)) return -ETIMEDOUT;
  }
}

/* Takes one record into r->record. Returns its type; 0: there is none now; negative: the agent is lost. *size: of the
 * record. Records about the whole context are handled here. */
static int receive(struct rdzv *r, size_t *size) {
  if (r->fd < 0) return disconnect(r);
  ssize_t n = receive_raw(r);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  if (n <= 0) return disconnect(r);
  struct sdk_head head = {0};
  if ((size_t)n >= sizeof(head)) head = r->record.head;
  const struct sdk_refused *f = as_refused(r, (size_t)n);
  if (f) {
    r->lost_code = f->code;
    memcpy(r->lost_text, f->text, sizeof(r->lost_text));
    return disconnect(r);
  }
  if (head.magic != SDK_MAGIC || head.version != SDK_VERSION || head.type == 0) {
    r->lost_code = -EPROTO;
    snprintf(r->lost_text, sizeof(r->lost_text), "the agent speaks another version of the protocol than this librdzv");
    return disconnect(r);
  }
  *size = (size_t)n;
  if (head.type == SDK_REQUEST && *size == sizeof(struct sdk_request)) {
    r->requested = r->record.request.bits;
    r->checkpoints.asked = r->record.request.checkpoint;
  }
  if (head.type == SDK_IDS) rdzv_take_ids(r, *size);
  return head.type;
}

int rdzv_hear_agent(struct rdzv *r) {
  size_t size = 0;
  int type = 0;
  do type = receive(r, &size);
  while (type > 0);
  if (type == 0) return 0;
  return rdzv_store_fail(r, type, "%s", r->lost_code ? r->lost_text : "the agent is gone");
}

int rdzv_await(struct rdzv *r, size_t *size, uint64_t deadline) {
  for (;;) {
    int type = receive(r, size);
    if (type != 0) return type;
    int rc = wait_for(r->fd, POLLIN, deadline);
    if (rc) return rc;
  }
}

/* Beginning -------------------------------------------------------------------------------------------------------- */

static int parse_env_u32(struct rdzv *r, const char *name, uint32_t *value) {
  const char *text = getenv(name);
  char *end = NULL;
  errno = 0;
  unsigned long v = text ? strtoul(text, &end, 10) : 0;
  if (!text || text[0] < '0' || text[0] > '9' || *end || errno || v > UINT32_MAX)
    return rdzv_fail(r, -EINVAL,
                     "RDZV_AGENT_SOCKET is set, but %s is %s%s%s: start this program through rdzv-agent, or unset "
                     "RDZV_AGENT_SOCKET",
                     name, text ? "\"" : "", text ? text : "not", text ? "\", which is not a number" : "");
  *value = (uint32_t)v;
  return 0;
}

static int socket_address(struct rdzv *r, const char *name, struct sockaddr_un *addr, socklen_t *len) {
  size_t n = strlen(name);
  if (n < 2 || n >= sizeof(addr->sun_path))
    return rdzv_fail(r, -EINVAL, "RDZV_AGENT_SOCKET is \"%s\": a path or @name of 2 to %zu bytes is needed", name,
                     sizeof(addr->sun_path) - 1);
  memset(addr, 0, sizeof(*addr));
  addr->sun_family = AF_UNIX;
  memcpy(addr->sun_path, name, n);
  *len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + (name[0] != '@'));
  if (name[0] == '@') addr->sun_path[0] = '\0';
  return 0;
}

static int connect_agent(struct rdzv *r, const char *name, uint64_t deadline) {
  struct sockaddr_un addr;
  socklen_t len = 0;
  int rc = socket_address(r, name, &addr, &len);
  if (rc) return rc;
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
  return 0;
}

int rdzv_take_welcome(struct rdzv *r, size_t size) {
  if (size != sizeof(r->is))
    return rdzv_fail(r, -EPROTO,
                     "the agent's answer has %zu bytes, expected %zu: agent and librdzv are of different versions",
                     size, sizeof(r->is));
  r->is = r->record.welcome;
  r->is.run_id[sizeof(r->is.run_id) - 1] = r->is.incarnation[sizeof(r->is.incarnation) - 1] = '\0';
  r->is.head_addr[sizeof(r->is.head_addr) - 1] = r->is.node_addr[sizeof(r->is.node_addr) - 1] = '\0';
  r->requested = r->is.requested;
  r->checkpoints.asked = r->is.checkpoint;
  if (r->is.rank >= r->is.world_size || r->is.world_size > INT32_MAX)
    return rdzv_fail(r, -EPROTO, "the agent reports rank %u of %u", r->is.rank, r->is.world_size);
  return 0;
}

static int say_hello(struct rdzv *r, uint64_t deadline) {
  struct sdk_hello hello = {.head = rdzv_head_of(SDK_HELLO)};
  int rc = parse_env_u32(r, "RDZV_ROUND", &hello.round);
  if (!rc) rc = parse_env_u32(r, "RDZV_LOCAL_RANK", &hello.local_rank);
  if (rc) return rc;
  /* An error is ignored: an agent that refuses may have closed already, and its sentence is there to read. */
  send(r->fd, &hello, sizeof(hello), MSG_DONTWAIT | MSG_NOSIGNAL);
  for (;;) {
    size_t size = 0;
    int type = rdzv_await(r, &size, deadline);
    if (type == -ETIMEDOUT) return rdzv_fail(r, -ETIMEDOUT, "the agent did not answer in time");
    if (type < 0) return rdzv_lost(r, "hello to the agent");
    if (type == SDK_WELCOME) return rdzv_take_welcome(r, size);
  }
}

static void fill_world_of_one(struct rdzv *r) {
  r->alone = true;
  r->is.world_size = r->is.local_world_size = r->is.node_count = 1;
  snprintf(r->is.head_addr, sizeof(r->is.head_addr), "127.0.0.1");
  snprintf(r->is.node_addr, sizeof(r->is.node_addr), "127.0.0.1");
}

int rdzv_init(struct rdzv **out, int timeout_ms) {
  const char *name = getenv("RDZV_AGENT_SOCKET");
  struct rdzv *r = calloc(1, sizeof(*r));
  if (!r) return snprintf(init_text, sizeof(init_text), "out of memory"), -ENOMEM;
  r->fd = r->conn.fd = -1;
  int rc = 0;
  if (!name || !*name) {
    fill_world_of_one(r);
  } else {
    uint64_t deadline = rdzv_deadline_in(timeout_ms);
    rc = connect_agent(r, name, deadline);
    if (!rc) rc = say_hello(r, deadline);
  }
  if (!rc) return *out = r, 0;
  memcpy(init_text, r->text, sizeof(init_text));
  rdzv_finish(r);
  return rc;
}

static void flush_progress(struct rdzv *r, uint64_t deadline) {
  if (!r->progress_held) return;
  if (rdzv_send_record(r, &r->progress, sizeof(r->progress), deadline) == 0) r->progress_held = false;
}

void rdzv_finish(struct rdzv *r) {
  if (!r) return;
  flush_progress(r, 0);
  rdzv_conn_finish(r);
  rdzv_alone_destroy(r->store);
  rdzv_names_free(r);
  if (r->fd >= 0) close(r->fd);
  free(r);
}

const char *rdzv_version(void) {
  return RDZV_VERSION;
}

const char *rdzv_error(const struct rdzv *r) {
  return r ? r->text : init_text;
}

/* Identity. -------------------------------------------------------------------------------------------------------- */

int rdzv_rank(const struct rdzv *r) {
  return (int)r->is.rank;
}
int rdzv_world_size(const struct rdzv *r) {
  return (int)r->is.world_size;
}
int rdzv_local_rank(const struct rdzv *r) {
  return (int)r->is.local_rank;
}
int rdzv_local_world_size(const struct rdzv *r) {
  return (int)r->is.local_world_size;
}
int rdzv_node_rank(const struct rdzv *r) {
  return (int)r->is.node_rank;
}
int rdzv_node_count(const struct rdzv *r) {
  return (int)r->is.node_count;
}
uint32_t rdzv_round(const struct rdzv *r) {
  return r->is.round;
}
uint32_t rdzv_restart_count(const struct rdzv *r) {
  return r->is.restart_count;
}
const char *rdzv_run_id(const struct rdzv *r) {
  return r->is.run_id;
}
const char *rdzv_incarnation(const struct rdzv *r) {
  return r->is.incarnation;
}
const char *rdzv_head_addr(const struct rdzv *r) {
  return r->is.head_addr;
}
const char *rdzv_node_addr(const struct rdzv *r) {
  return r->is.node_addr;
}
bool rdzv_alone(const struct rdzv *r) {
  return r->alone;
}

/* Progress and requests -------------------------------------------------------------------------------------------- */

int rdzv_progress(struct rdzv *r, uint64_t step, uint64_t of, double loss, double samples_per_second) {
  if (r->alone) return 0;
  if (r->fd < 0) return rdzv_lost(r, "progress");
  r->progress = (struct sdk_progress){.head = rdzv_head_of(SDK_PROGRESS),
                                      .step = step,
                                      .of = of,
                                      .loss = loss,
                                      .samples_per_second = samples_per_second};
  r->progress_held = true;
  uint64_t now = rdzv_now_ms();
  if (r->progress_sent_ms && step != of && now - r->progress_sent_ms < PROGRESS_EVERY_MS) return 0;
  r->progress_sent_ms = now;
  flush_progress(r, 0); /* no room: the agent has enough to read; a later report replaces this one */
  return r->fd < 0 ? rdzv_lost(r, "progress") : 0;
}

unsigned rdzv_requested(struct rdzv *r) {
  if (r->alone) return 0;
  if (r->progress_held && rdzv_now_ms() - r->progress_sent_ms >= PROGRESS_EVERY_MS) flush_progress(r, 0);
  size_t size = 0;
  int type;
  do type = receive(r, &size);
  while (type > 0);
  unsigned bits = r->can_rejoin ? r->requested : r->requested & ~(unsigned)RDZV_REJOIN;
  return type < 0 ? bits | RDZV_STOP | RDZV_LOST : bits | rdzv_checkpoint_bit(r);
}

int rdzv_done(struct rdzv *r) {
  if (r->alone) return 0;
  uint64_t deadline = rdzv_deadline_in(RDZV_LAST_MS);
  flush_progress(r, deadline);
  r->can_rejoin = false;
  struct sdk_done done = {.head = rdzv_head_of(SDK_DONE)};
  int rc = rdzv_send_record(r, &done, sizeof(done), deadline);
  if (rc == -ETIMEDOUT) return rdzv_fail(r, rc, "done: the agent does not read");
  return rc ? rdzv_lost(r, "done") : 0;
}
