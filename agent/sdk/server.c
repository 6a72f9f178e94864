/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's socket for its workers: accepting, reading, writing without ever waiting, and the meaning of records.
 *
 * All connections and the listener are in one epoll, which the agent's loop watches as one descriptor. It is
 * level-triggered: work that a turn leaves undone makes the descriptor readable again. Only small records are sent:
 * WELCOME once, then REQUEST and IDS, of which only the latest counts. So nothing is ever queued, and a worker that
 * does not read costs nothing.
 *
 * Only the agent's own user and root may connect. The kernel names the peer (SO_PEERCRED), since an abstract name has
 * no permissions. Every record is checked whole before anything of it is used. A record that fails ends the connection
 * with a sentence, for the worker and for the log. */

#include "agent/sdk/server.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include "common/mem.h"
#include "common/system/user.h"

enum { TURN_CONNECTIONS = 64, TURN_RECORDS = 16, BACKLOG = 1024 };

/* Of a connection: it has sent CAN_CHECKPOINT; it has sent SAVING with `on`. */
enum property { CAN, SAVING };

struct worker_conn {
  struct sdk_server *of;
  size_t index; /* in the server's array */
  int fd;
  pid_t pid;
  uid_t uid;
  bool greeted;
  bool writing;                           /* epoll is asked for room */
  bool welcome_due, request_due, ids_due; /* there was no room for it yet */
  uint32_t ids_wanted;                    /* of which round; 0: none */
  bool has[2];                            /* enum property */
  bool rejoins;                           /* it has sent CAN_REJOIN */
  bool parked;                            /* it waits for the next round */
  uint32_t local_rank;
};

/* The server's record of one local rank in a round. */
struct rank {
  struct sdk_welcome welcome;
  struct sdk_progress progress;
  bool progressed;              /* not yet reported */
  bool placed;                  /* where it resumed is known: it has said so, or its first step tells */
  uint32_t n[2];                /* how many of its connections have each property */
  struct worker_conn *rejoiner; /* the one that has sent CAN_REJOIN; NULL: none */
  uint32_t bits;                /* the requests to it */
};

struct sdk_server {
  char name[112];
  int listener, epoll;
  struct worker_conn **conns;
  size_t n_conns, cap_conns;
  struct sdk_event *events;
  size_t n_events, cap_events;
  bool open; /* a round is */
  uint32_t round, n_ranks, checkpoint;
  uint64_t saved_step; /* the last that a worker has reported, in any round */
  struct sdk_ids ids;  /* round 0: nothing is known */
  struct rank *ranks;  /* by local rank */
  size_t n_progressed;
};

static struct sdk_head head_of(uint16_t type) {
  return (struct sdk_head){.magic = SDK_MAGIC, .version = SDK_VERSION, .type = type};
}

/* Valid until the next. */
static struct sdk_event *add_event(struct sdk_server *s, enum sdk_event_kind kind, const struct worker_conn *c) {
  s->events = xgrow(s->events, s->n_events, &s->cap_events, sizeof(*s->events));
  struct sdk_event *ev = &s->events[s->n_events++];
  *ev = (struct sdk_event){.kind = kind, .round = s->round, .local_rank = c->local_rank, .pid = c->pid, .uid = c->uid};
  return ev;
}

/* Connections. ----------------------------------------------------------------------------------------------------- */

/* The rank has a property as long as one of its connections does. */
static void set_property(struct worker_conn *c, enum property which, bool on) {
  static const enum sdk_event_kind kinds[] = {[CAN] = SDK_EVENT_CAN, [SAVING] = SDK_EVENT_SAVING};
  if (c->has[which] == on) return;
  c->has[which] = on;
  uint32_t *n = &c->of->ranks[c->local_rank].n[which];
  *n += on ? 1 : (uint32_t)-1;
  if (*n == (on ? 1 : 0)) add_event(c->of, kinds[which], c)->on = on;
}

static void stop_rejoining(struct worker_conn *c) {
  if (!c->rejoins) return;
  c->rejoins = c->parked = false;
  if (c->local_rank < c->of->n_ranks) c->of->ranks[c->local_rank].rejoiner = NULL;
  add_event(c->of, SDK_EVENT_CAN_REJOIN, c)->on = false;
}

static void conn_close(struct worker_conn *c) {
  struct sdk_server *s = c->of;
  if (c->local_rank < s->n_ranks) {
    set_property(c, SAVING, false);
    set_property(c, CAN, false);
  }
  stop_rejoining(c);
  epoll_ctl(s->epoll, EPOLL_CTL_DEL, c->fd, NULL); /* close() does not, while a forked process has the descriptor too */
  close(c->fd);
  s->conns[c->index] = s->conns[--s->n_conns];
  s->conns[c->index]->index = c->index;
  free(c);
}

static struct sdk_refused refusal(int code, const char *text) {
  struct sdk_refused r = {.head = head_of(SDK_REFUSED), .code = code};
  snprintf(r.text, sizeof(r.text), "%s", text);
  return r;
}

/* REFUSED for the whole connection, and close; trouble is for the log, NULL: nothing to log. c is gone. */
static void refuse(struct worker_conn *c, int code, const char *text, const char *trouble) {
  struct sdk_refused r = refusal(code, text);
  send(c->fd, &r, sizeof(r), MSG_DONTWAIT | MSG_NOSIGNAL); /* without room the close is the message */
  if (trouble) {
    struct sdk_event *ev = add_event(c->of, SDK_EVENT_TROUBLE, c);
    snprintf(ev->text, sizeof(ev->text), "worker process %d: %s", (int)c->pid, trouble);
  }
  conn_close(c);
}

/* False: no room now; another error will be read as the connection's end. */
static bool send_packet(const struct worker_conn *c, const void *record, size_t size) {
  for (;;) {
    if (send(c->fd, record, size, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
    if (errno == EAGAIN || errno == ENOBUFS) return false;
    if (errno != EINTR) return true;
  }
}

static bool ids_are_due(const struct worker_conn *c) {
  return c->ids_due && c->ids_wanted == c->of->ids.round;
}

static uint32_t bits_of(const struct worker_conn *c) {
  return c->local_rank < c->of->n_ranks ? c->of->ranks[c->local_rank].bits : 0;
}

static struct sdk_welcome welcome_of(const struct worker_conn *c) {
  struct sdk_welcome w = c->of->ranks[c->local_rank].welcome;
  w.head = head_of(SDK_WELCOME);
  w.requested = bits_of(c);
  w.checkpoint = c->of->checkpoint;
  w.saved_step = c->of->saved_step;
  return w;
}

/* Sends what is due, as far as there is room. */
static void flush(struct worker_conn *c) {
  struct sdk_request q = {.head = head_of(SDK_REQUEST), .bits = bits_of(c), .checkpoint = c->of->checkpoint};
  const struct sdk_ids *ids = &c->of->ids;
  struct sdk_welcome w = {0};
  if (c->welcome_due) w = welcome_of(c);
  if (c->welcome_due) c->welcome_due = !send_packet(c, &w, sizeof(w));
  if (c->request_due && !c->welcome_due) c->request_due = !send_packet(c, &q, sizeof(q));
  if (ids_are_due(c) && !c->welcome_due)
    c->ids_due = !send_packet(c, ids, offsetof(struct sdk_ids, ids) + (size_t)ids->count * RDZV_NCCL_ID_SIZE);
  bool due = c->welcome_due || c->request_due || ids_are_due(c);
  if (c->writing == due) return;
  struct epoll_event ev = {.events = due ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = c};
  epoll_ctl(c->of->epoll, EPOLL_CTL_MOD, c->fd, &ev);
  c->writing = due;
}

/* Rounds. ---------------------------------------------------------------------------------------------------------- */

static void forget_round(struct sdk_server *s) {
  free(s->ranks);
  s->ranks = NULL;
  s->n_progressed = 0;
  s->n_ranks = s->checkpoint = 0;
  s->open = false;
}

static void close_conns(struct sdk_server *s, bool parked_too) {
  char text[64];
  snprintf(text, sizeof(text), "round %u is over", s->round);
  for (size_t i = s->n_conns; i-- > 0;)
    if (s->conns[i]->greeted && (parked_too || !s->conns[i]->parked)) refuse(s->conns[i], -ESTALE, text, NULL);
}

void sdk_server_close_round(struct sdk_server *s) {
  close_conns(s, true);
  forget_round(s);
}

void sdk_server_open_round(struct sdk_server *s, const struct sdk_welcome *workers, uint32_t n) {
  close_conns(s, false);
  for (size_t i = s->n_conns; i-- > 0;)
    if (s->conns[i]->parked && s->conns[i]->local_rank >= n)
      refuse(s->conns[i], -ESTALE, "there are fewer workers here now", NULL);
  forget_round(s);
  s->ranks = xcalloc(n, sizeof(*s->ranks));
  for (uint32_t i = 0; i < n; i++) s->ranks[i] = (struct rank){.welcome = workers[i], .bits = workers[i].requested};
  s->n_ranks = n;
  s->round = n ? workers[0].round : 0;
  s->checkpoint = n ? workers[0].checkpoint : 0;
  s->open = true;
  for (size_t i = 0; i < s->n_conns; i++) {
    struct worker_conn *c = s->conns[i];
    if (!c->parked) continue;
    bool can = c->has[CAN];
    c->parked = c->request_due = c->has[CAN] = false;
    s->ranks[c->local_rank].rejoiner = c;
    add_event(s, SDK_EVENT_HELLO, c);
    add_event(s, SDK_EVENT_CAN_REJOIN, c)->on = true;
    if (can) set_property(c, CAN, true);
    c->welcome_due = true;
    flush(c);
  }
  if (s->ids.round != s->round) s->ids = (struct sdk_ids){.round = 0};
}

/* Records. --------------------------------------------------------------------------------------------------------- */

/* Closes the connection for a bad record. */
__attribute__((format(printf, 2, 3))) static bool bad(struct worker_conn *c, const char *fmt, ...) {
  char text[200], trouble[256];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  if (c->greeted)
    snprintf(trouble, sizeof(trouble), "local rank %u: %s", c->local_rank, text);
  else
    snprintf(trouble, sizeof(trouble), "%s", text);
  refuse(c, -EPROTO, text, trouble);
  return false;
}

static bool on_hello(struct worker_conn *c, const struct sdk_hello *h) {
  struct sdk_server *s = c->of;
  char text[128], trouble[160];
  if (c->greeted) return bad(c, "said HELLO twice");
  if (!s->open && !h->round) { /* whoever asks for none is not late */
    refuse(c, -ESTALE, "no round runs here", NULL);
    return false;
  }
  if (!s->open || (h->round && h->round != s->round)) {
    snprintf(text, sizeof(text), s->open && h->round > s->round ? "round %u has not begun" : "round %u is over",
             h->round);
    snprintf(trouble, sizeof(trouble), "%s, it was refused", text);
    refuse(c, -ESTALE, text, trouble);
    return false;
  }
  if (h->local_rank >= s->n_ranks)
    return bad(c, "says it is local rank %u, but there are %u workers here", h->local_rank, s->n_ranks);
  c->greeted = true;
  c->local_rank = h->local_rank;
  struct sdk_welcome w = welcome_of(c);
  send_packet(c, &w, sizeof(w)); /* the first of its connection: there is room */
  add_event(s, SDK_EVENT_HELLO, c);
  return true;
}

static bool on_checkpointed(struct worker_conn *c, const struct sdk_checkpointed *p) {
  if (p->checkpoint == 0 || p->checkpoint > c->of->checkpoint)
    return bad(c, "reports checkpoint %u, which was not requested", p->checkpoint);
  struct sdk_event *ev = add_event(c->of, SDK_EVENT_CHECKPOINTED, c);
  ev->checkpoint = p->checkpoint;
  ev->step = p->step;
  return true;
}

static bool on_can_rejoin(struct worker_conn *c) {
  struct sdk_server *s = c->of;
  if (s->ranks[c->local_rank].rejoiner && s->ranks[c->local_rank].rejoiner != c)
    return bad(c, "says that it can rejoin, but so did another process (%d) of this local rank",
               (int)s->ranks[c->local_rank].rejoiner->pid);
  if (c->rejoins) return true;
  c->rejoins = true;
  s->ranks[c->local_rank].rejoiner = c;
  add_event(s, SDK_EVENT_CAN_REJOIN, c)->on = true;
  return true;
}

static bool on_rejoin(struct worker_conn *c, const struct sdk_rejoin *p) {
  if (!c->rejoins) return bad(c, "rejoins, and has not said that it can");
  if (c->parked || p->round != c->of->round)
    return bad(c, "leaves round %u, and is %s round %u", p->round, c->parked ? "parked since" : "in", c->of->round);
  set_property(c, SAVING, false);
  c->parked = true;
  struct sdk_event *ev = add_event(c->of, SDK_EVENT_PARKED, c);
  snprintf(ev->text, sizeof(ev->text), "%.*s", SDK_REASON_MAX - 1, p->text);
  return true;
}

/* The agent and the worker may come from different places: the node, and a container. */
static bool refuse_version(struct worker_conn *c, const union sdk_record *r, size_t size) {
  char release[SDK_RELEASE_MAX] = "";
  bool named = r->head.type == SDK_HELLO && size >= offsetof(struct sdk_hello, release) + sizeof(release);
  for (size_t i = 0; named && i + 1 < sizeof(release) && r->hello.release[i]; i++)
    release[i] = r->hello.release[i] > ' ' && r->hello.release[i] < 127 ? r->hello.release[i] : '?';
  return bad(c,
             "librdzv%s%s speaks version %u of the workers' protocol, and rdzv-agent " RDZV_VERSION
             " version %d; install librdzv " RDZV_VERSION " where the worker runs",
             release[0] ? " " : "", release, r->head.version, SDK_VERSION);
}

/* False: the connection is gone. */
static bool take_record(struct worker_conn *c, const union sdk_record *r, size_t size) {
  static const size_t sizes[] = {
      [SDK_HELLO] = sizeof(struct sdk_hello),
      [SDK_PROGRESS] = sizeof(struct sdk_progress),
      [SDK_DONE] = sizeof(struct sdk_head),
      [SDK_CAN_CHECKPOINT] = sizeof(struct sdk_head),
      [SDK_CHECKPOINTED] = sizeof(struct sdk_checkpointed),
      [SDK_CAN_REJOIN] = sizeof(struct sdk_head),
      [SDK_REJOIN] = sizeof(struct sdk_rejoin),
      [SDK_IDS_WANTED] = sizeof(struct sdk_number),
      [SDK_NCCL_UP] = sizeof(struct sdk_number),
      [SDK_SAVED] = sizeof(struct sdk_step),
      [SDK_RESUMED] = sizeof(struct sdk_step),
      [SDK_SAVING] = sizeof(struct sdk_number),
      [SDK_PACE] = sizeof(struct sdk_pace),
  };
  if (size < sizeof(r->head) || r->head.magic != SDK_MAGIC) return bad(c, "does not speak the protocol of librdzv");
  if (r->head.version != SDK_VERSION) return refuse_version(c, r, size);
  unsigned type = r->head.type;
  size_t expected = type < sizeof(sizes) / sizeof(sizes[0]) ? sizes[type] : 0;
  if (expected == 0) return bad(c, "sent a record of type %u, which workers do not send", type);
  if (size < expected || size > expected + SDK_GROWTH_MAX)
    return bad(c, "sent a record of type %u with %zu bytes, expected %zu", type, size, expected);
  if (!c->greeted && type != SDK_HELLO) return bad(c, "sent a record of type %u before HELLO", type);
  switch (type) {
  case SDK_HELLO: return on_hello(c, &r->hello);
  case SDK_PROGRESS: {
    struct rank *m = &c->of->ranks[c->local_rank];
    /* The agent may be late, and then it sees the latest step alone. */
    if (!m->placed && !c->parked)
      add_event(c->of, SDK_EVENT_RESUMED, c)->step = r->progress.step - (r->progress.step > 0);
    m->placed |= !c->parked;
    m->progress = r->progress;
    c->of->n_progressed += !m->progressed;
    m->progressed = true;
    break;
  }
  case SDK_CAN_CHECKPOINT: set_property(c, CAN, true); break;
  case SDK_CHECKPOINTED: return on_checkpointed(c, &r->checkpointed);
  case SDK_CAN_REJOIN: return on_can_rejoin(c);
  case SDK_REJOIN: return on_rejoin(c, &r->rejoin);
  case SDK_IDS_WANTED: /* a round that is over gets no answer except that it is over */
    if (r->number.number == 0) return bad(c, "asks for the ids of round 0, but rounds begin with 1");
    c->ids_wanted = r->number.number;
    c->ids_due = true;
    flush(c);
    break;
  case SDK_NCCL_UP:
    if (r->number.number == c->of->round) add_event(c->of, SDK_EVENT_NCCL_UP, c);
    break;
  case SDK_SAVED:
    c->of->saved_step = r->step.step;
    if (!c->parked) add_event(c->of, SDK_EVENT_SAVED, c)->step = r->step.step;
    break;
  case SDK_RESUMED:
    c->of->ranks[c->local_rank].placed |= !c->parked;
    if (!c->parked) add_event(c->of, SDK_EVENT_RESUMED, c)->step = r->step.step;
    break;
  case SDK_PACE:
    if (!r->pace.group || r->pace.group > INT64_MAX) return bad(c, "names a communicator by a number out of bounds");
    if (!c->parked) add_event(c->of, SDK_EVENT_PACE, c)->pace = r->pace;
    break;
  case SDK_SAVING:
    if (!c->parked) set_property(c, SAVING, r->number.number != 0);
    break;
  default: /* DONE */
    set_property(c, CAN, false);
    set_property(c, SAVING, false);
    stop_rejoining(c);
    add_event(c->of, SDK_EVENT_DONE, c);
  }
  return true;
}

/* Reads some records; c may be gone afterwards. */
static void conn_read(struct worker_conn *c) {
  union sdk_record r;
  for (int i = 0; i < TURN_RECORDS; i++) {
    struct iovec iov = {&r, sizeof(r)};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    ssize_t n = recvmsg(c->fd, &m, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == ECONNRESET))
      continue; /* it comes once, before the records that are there */
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      conn_close(c);
      return;
    }
    if (m.msg_flags & MSG_TRUNC) {
      refuse(c, -EPROTO, "a record is too long", "sent a record that is too long");
      return;
    }
    if (!take_record(c, &r, (size_t)n)) return;
  }
}

static void accept_some(struct sdk_server *s) {
  for (int i = 0; i < TURN_CONNECTIONS; i++) {
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) return;
    struct ucred who = {0};
    socklen_t len = sizeof(who);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) || (who.uid != 0 && !user_is_self(who.uid))) {
      struct worker_conn unknown = {.pid = who.pid, .uid = who.uid};
      struct sdk_event *ev = add_event(s, SDK_EVENT_TROUBLE, &unknown);
      snprintf(ev->text, sizeof(ev->text),
               "process %d of user %u was refused: only the agent's user and root may connect", (int)who.pid,
               (unsigned)who.uid);
      close(fd);
    } else if (s->n_conns >= SDK_CONNECTIONS_MAX) {
      struct sdk_refused r = refusal(-EMFILE, "too many connections to this agent");
      send(fd, &r, sizeof(r), MSG_DONTWAIT | MSG_NOSIGNAL);
      close(fd);
    } else {
      struct worker_conn *c = xcalloc(1, sizeof(*c));
      *c = (struct worker_conn){.of = s, .fd = fd, .pid = who.pid, .uid = who.uid, .index = s->n_conns};
      s->conns = xgrow(s->conns, s->n_conns, &s->cap_conns, sizeof(*s->conns));
      s->conns[s->n_conns++] = c;
      struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
      if (epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &ev))
        refuse(c, -ENOMEM, "the agent cannot watch more connections", "one too many for epoll");
    }
  }
}

/* The server. ------------------------------------------------------------------------------------------------------ */

void sdk_server_work(struct sdk_server *s) {
  struct epoll_event ev[TURN_CONNECTIONS];
  int n = epoll_wait(s->epoll, ev, TURN_CONNECTIONS, 0);
  for (int i = 0; i < n; i++) {
    struct worker_conn *c = ev[i].data.ptr;
    if (!c) {
      accept_some(s);
      continue;
    }
    if (ev[i].events & EPOLLOUT) flush(c);
    if (ev[i].events & ~(uint32_t)EPOLLOUT) conn_read(c); /* closes no other than c */
  }
}

int sdk_server_next(struct sdk_server *s, struct sdk_event *ev) {
  if (s->n_events > 0) {
    *ev = s->events[0];
    memmove(s->events, s->events + 1, --s->n_events * sizeof(*s->events));
    return 1;
  }
  for (uint32_t i = 0; s->n_progressed > 0 && i < s->n_ranks; i++) {
    struct rank *m = &s->ranks[i];
    if (!m->progressed) continue;
    m->progressed = false;
    s->n_progressed--;
    *ev = (struct sdk_event){.kind = SDK_EVENT_PROGRESS, .round = s->round, .local_rank = i, .progress = m->progress};
    return 1;
  }
  return 0;
}

void sdk_server_request(struct sdk_server *s, const struct local_set *of, uint32_t bits, uint32_t checkpoint) {
  bool all = s->checkpoint != checkpoint;
  s->checkpoint = checkpoint;
  for (size_t i = 0; i < s->n_conns; i++) {
    struct worker_conn *c = s->conns[i];
    if (!c->greeted || c->local_rank >= s->n_ranks) continue;
    bool other = s->ranks[c->local_rank].bits != bits && (!of || local_set_has(of, c->local_rank));
    if (!all && !other) continue;
    c->request_due = true;
  }
  for (uint32_t i = 0; i < s->n_ranks; i++)
    if (!of || local_set_has(of, i)) s->ranks[i].bits = bits;
  for (size_t i = 0; i < s->n_conns; i++)
    if (s->conns[i]->request_due) flush(s->conns[i]);
}

void sdk_server_ids(struct sdk_server *s, const struct sdk_ids *ids) {
  s->ids = *ids;
  s->ids.head = head_of(SDK_IDS);
  for (size_t i = 0; i < s->n_conns; i++) {
    if (s->conns[i]->ids_wanted != ids->round) continue;
    s->conns[i]->ids_due = true;
    flush(s->conns[i]);
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
  if (name && !sdk_address(name, &addr))
    return err_set(e, -EINVAL, "\"%s\" is not a name for a socket: a path or @name of 2 to %zu bytes", name,
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
  struct sockaddr_un addr;
  socklen_t len = sdk_address(s->name, &addr); /* choose_name has checked it */
  s->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (s->listener < 0) return err_sys(e, -errno, "no socket for the workers");
  if (bind(s->listener, (const struct sockaddr *)&addr, len)) {
    int rc = err_sys(e, -errno, "cannot listen for the workers at %s", s->name);
    s->name[0] = '\0'; /* not ours to remove */
    return rc;
  }
  if (s->name[0] != '@') chmod(s->name, 0600);
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
  for (size_t i = s->n_conns; i-- > 0;) conn_close(s->conns[i]);
  if (s->listener >= 0) close(s->listener);
  if (s->epoll >= 0) close(s->epoll);
  if (s->name[0] && s->name[0] != '@') unlink(s->name);
  free(s->conns);
  free(s->events);
  free(s);
}
