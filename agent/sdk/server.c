/* The agent's socket for its workers: accepting, reading, and writing without ever waiting.
 *
 * All connections and the listener are in one epoll, and an epoll is itself a descriptor that can be polled, so the
 * agent's loop watches one number and knows nothing of ours. Level-triggered: what a turn leaves undone makes the
 * descriptor readable again. A turn takes at most 64 connections and 16 records of each.
 *
 * A record is a packet, so there is nothing to reassemble and no half-read state. What is sent is small: WELCOME, once, and REQUEST and IDS, of
 * which only the latest counts; so nothing is ever queued, and a worker that does not read costs nothing.
 *
 * Only the own user and root may connect: the kernel tells who is there (SO_PEERCRED), since an abstract name has no
 * permissions. Whoever has our uid could as well attach a debugger to the agent; beyond that, what comes is checked
 * so that a mistake of a worker ends its connection, not the agent. */

#include "agent/sdk/server.h"
#include "agent/sdk/server_internal.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/mem.h"

enum { TURN_CONNECTIONS = 64, TURN_RECORDS = 16, BACKLOG = 1024 };

struct sdk_head sdk_head_of(uint16_t type) {
  return (struct sdk_head){.magic = SDK_MAGIC, .version = SDK_VERSION, .type = type};
}

struct sdk_event *sdk_event_add(struct sdk_server *s, enum sdk_event_kind kind, const struct conn *c) {
  if (s->n_events == s->cap_events) {
    s->cap_events = s->cap_events ? s->cap_events * 2 : 16;
    s->events = xrealloc(s->events, s->cap_events * sizeof(*s->events));
  }
  struct sdk_event *ev = &s->events[s->n_events++];
  *ev = (struct sdk_event){.kind = kind, .round = s->round, .local_rank = c->local_rank, .pid = c->pid};
  return ev;
}

/* ----------------------------------------------------------- connections */

static void conn_close(struct conn *c) {
  struct sdk_server *s = c->of;
  sdk_conn_leave(c);
  close(c->fd);
  s->conns[c->index] = s->conns[--s->n_conns];
  s->conns[c->index]->index = c->index;
  free(c);
}

static struct sdk_refused refusal(int code, const char *text) {
  struct sdk_refused r = {.head = sdk_head_of(SDK_REFUSED), .code = code};
  snprintf(r.text, sizeof(r.text), "%s", text);
  return r;
}

void sdk_conn_refuse(struct conn *c, int code, const char *text, const char *trouble) {
  struct sdk_refused r = refusal(code, text);
  send(c->fd, &r, sizeof(r),
       MSG_DONTWAIT | MSG_NOSIGNAL); /* no room: it reads nothing, the close says enough */
  if (trouble) {
    struct sdk_event *ev = sdk_event_add(c->of, SDK_EVENT_TROUBLE, c);
    snprintf(ev->text, sizeof(ev->text), "worker process %d: %s", (int)c->pid, trouble);
  }
  conn_close(c);
}

static void want_write(struct conn *c, bool on) {
  if (c->writing == on) return;
  struct epoll_event ev = {.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
  epoll_ctl(c->of->epoll, EPOLL_CTL_MOD, c->fd, &ev);
  c->writing = on;
}

/* False: no room now; another error will be read as the connection's end. */
static bool send_packet(const struct conn *c, const void *record, size_t size) {
  for (;;) {
    if (send(c->fd, record, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
    if (errno == EAGAIN || errno == ENOBUFS) return false;
    if (errno != EINTR) return true;
  }
}

static size_t ids_size(const struct sdk_ids *ids) {
  return offsetof(struct sdk_ids, ids) + (size_t)ids->count * RDZV_NCCL_ID_SIZE;
}

static bool ids_are_due(const struct conn *c) {
  return c->ids_due && c->ids_wanted == c->of->ids.round;
}

void sdk_conn_flush(struct conn *c) {
  struct sdk_request q = {
      .head = sdk_head_of(SDK_REQUEST), .bits = sdk_conn_bits(c), .checkpoint = c->of->checkpoint};
  const struct sdk_ids *ids = &c->of->ids;
  struct sdk_welcome w = {0};
  if (c->welcome_due) w = sdk_conn_welcome(c);
  if (c->welcome_due) c->welcome_due = !send_packet(c, &w, sizeof(w));
  if (c->request_due && !c->welcome_due) c->request_due = !send_packet(c, &q, sizeof(q));
  if (ids_are_due(c) && !c->welcome_due) c->ids_due = !send_packet(c, ids, ids_size(ids));
  want_write(c, c->welcome_due || c->request_due || ids_are_due(c));
}

void sdk_conn_welcome_again(struct conn *c) {
  c->welcome_due = true;
  sdk_conn_flush(c);
}

void sdk_conn_send(struct conn *c, const void *record, size_t size) {
  send_packet(c, record, size);
}

/* Reads some records; c may be gone afterwards. */
static void conn_read(struct conn *c) {
  union sdk_record r;
  for (int i = 0; i < TURN_RECORDS; i++) {
    struct iovec iov = {&r, sizeof(r)};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == ECONNRESET))
      continue; /* told once, before the rest of what is there */
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      conn_close(c);
      return;
    }
    if (m.msg_flags & MSG_TRUNC) {
      sdk_conn_refuse(c, -EPROTO, "a record is too long", "sent a record that is too long");
      return;
    }
    if (!sdk_conn_record(c, &r, (size_t)n)) return;
  }
}

static void conn_create(struct sdk_server *s, int fd, pid_t pid) {
  struct conn *c = xcalloc(1, sizeof(*c));
  *c = (struct conn){.of = s, .fd = fd, .pid = pid, .index = s->n_conns};
  if (s->n_conns == s->cap_conns) {
    s->cap_conns = s->cap_conns ? s->cap_conns * 2 : 16;
    s->conns = xrealloc(s->conns, s->cap_conns * sizeof(struct conn *));
  }
  s->conns[s->n_conns++] = c;
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev))
    sdk_conn_refuse(c, -ENOMEM, "the agent cannot watch more connections", "one too many for epoll");
}

static void accept_some(struct sdk_server *s) {
  for (int i = 0; i < TURN_CONNECTIONS; i++) {
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    struct ucred who = {0};
    socklen_t len = sizeof(who);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) || (who.uid != geteuid() && who.uid != 0)) {
      struct conn stranger = {.pid = who.pid};
      struct sdk_event *ev = sdk_event_add(s, SDK_EVENT_TROUBLE, &stranger);
      snprintf(ev->text, sizeof(ev->text), "process %d of user %u was refused: not the user of this agent",
               (int)who.pid, who.uid);
      close(fd);
    } else if (s->n_conns >= SDK_CONNECTIONS_MAX) {
      struct sdk_refused r = refusal(-EMFILE, "too many connections to this agent");
      send(fd, &r, sizeof(r), MSG_DONTWAIT | MSG_NOSIGNAL);
      close(fd);
    } else {
      conn_create(s, fd, who.pid);
    }
  }
}

/* ---------------------------------------------------------------- server */

void sdk_server_work(struct sdk_server *s) {
  struct epoll_event ev[TURN_CONNECTIONS];
  int n = epoll_wait(s->epoll, ev, TURN_CONNECTIONS, 0);
  for (int i = 0; i < n; i++) {
    struct conn *c = ev[i].data.ptr;
    if (!c) {
      accept_some(s);
      continue;
    }
    if (ev[i].events & EPOLLOUT) sdk_conn_flush(c);
    if (ev[i].events & ~(uint32_t)EPOLLOUT) conn_read(c); /* closes no other than c */
  }
}

int sdk_server_next(struct sdk_server *s, struct sdk_event *ev) {
  if (s->n_events > 0) {
    *ev = s->events[0];
    memmove(s->events, s->events + 1, --s->n_events * sizeof(*s->events));
    return 1;
  }
  for (uint32_t i = 0; s->n_progressed > 0 && i < s->n_workers; i++) {
    if (!s->progressed[i]) continue;
    s->progressed[i] = false;
    s->n_progressed--;
    *ev = (struct sdk_event){
        .kind = SDK_EVENT_PROGRESS, .round = s->round, .local_rank = i, .progress = s->progress[i]};
    return 1;
  }
  return 0;
}

void sdk_server_request(struct sdk_server *s, const struct local_set *of, uint32_t bits,
                        uint32_t checkpoint) {
  bool all = s->checkpoint != checkpoint;
  s->checkpoint = checkpoint;
  for (size_t i = 0; i < s->n_conns; i++) {
    struct conn *c = s->conns[i];
    if (!c->greeted || c->local_rank >= s->n_workers) continue;
    bool other = s->bits[c->local_rank] != bits && (!of || local_set_has(of, c->local_rank));
    if (!all && !other) continue;
    c->request_due = true;
  }
  for (uint32_t i = 0; i < s->n_workers; i++)
    if (!of || local_set_has(of, i)) s->bits[i] = bits;
  for (size_t i = 0; i < s->n_conns; i++)
    if (s->conns[i]->request_due) sdk_conn_flush(s->conns[i]);
}

void sdk_server_ids(struct sdk_server *s, const struct sdk_ids *ids) {
  s->ids = *ids;
  s->ids.head = sdk_head_of(SDK_IDS);
  for (size_t i = 0; i < s->n_conns; i++) {
    if (s->conns[i]->ids_wanted != ids->round) continue;
    s->conns[i]->ids_due = true;
    sdk_conn_flush(s->conns[i]);
  }
}

const char *sdk_server_name(const struct sdk_server *s) {
  return s->name;
}

int sdk_server_fd(const struct sdk_server *s) {
  return s->epoll;
}

static int choose_name(struct sdk_server *s, const char *name, struct err *e) {
  uint32_t salt = 0;
  struct sockaddr_un addr;
  if (name && (strlen(name) < 2 || strlen(name) >= sizeof(addr.sun_path)))
    return err_set(e, -EINVAL, "\"%s\" is no name for a socket: a path or @name of 2 to %zu bytes", name,
                   sizeof(addr.sun_path) - 1);
  if (!name && getrandom(&salt, sizeof(salt), GRND_NONBLOCK) < 0)
    salt = 0; /* the pid is enough for one network namespace */
  if (name)
    snprintf(s->name, sizeof(s->name), "%s", name);
  else
    snprintf(s->name, sizeof(s->name), "@rdzv-agent-%d-%08x", (int)getpid(), salt);
  return 0;
}

static int listen_at(struct sdk_server *s, struct err *e) {
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  size_t n = strlen(s->name);
  memcpy(addr.sun_path, s->name, n);
  bool abstract = s->name[0] == '@';
  if (abstract) addr.sun_path[0] = '\0';
  socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n + !abstract);
  s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s->listener < 0) return err_sys(e, -errno, "no socket for the workers");
  if (bind(s->listener, (const struct sockaddr *)&addr, len)) {
    int rc = err_sys(e, -errno, "cannot listen for the workers at %s", s->name);
    s->name[0] = '\0'; /* not ours to remove */
    return rc;
  }
  if (!abstract) chmod(s->name, 0600);
  s->epoll = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event ev = {.events = EPOLLIN};
  if (listen(s->listener, BACKLOG) || s->epoll < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, s->listener, &ev))
    return err_sys(e, -errno, "cannot listen for the workers at %s", s->name);
  return 0;
}

int sdk_server_create(struct sdk_server **out, const char *name, struct err *e) {
  struct sdk_server *s = xcalloc(1, sizeof(*s));
  s->listener = s->epoll = -1;
  int rc = choose_name(s, name, e);
  if (!rc) rc = listen_at(s, e);
  if (rc)
    sdk_server_destroy(s);
  else
    *out = s;
  return rc;
}

void sdk_server_destroy(struct sdk_server *s) {
  if (!s) return;
  sdk_server_close_round(s);
  while (s->n_conns > 0) conn_close(s->conns[s->n_conns - 1]);
  if (s->listener >= 0) close(s->listener);
  if (s->epoll >= 0) close(s->epoll);
  if (s->name[0] && s->name[0] != '@') unlink(s->name);
  free(s->conns);
  free(s->events);
  free(s);
}
