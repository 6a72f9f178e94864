/* SPDX-License-Identifier: Apache-2.0 */
/* Many agents in one process: the load of tests/bench/scale.
 *
 *   stdin: a command a line --> workers that die, agents that come and go --> supervisor_step --> frames --> rdzvd
 *                                             rdzvd --> frames, and when the kernel had them --> tallies --> stdout:
 *                                             JSON
 *
 * Each agent has the real mind (agent/supervisor), a connection of its own from an address of its own, and ids,
 * names and addresses of the size that they have in a cluster. What it lacks is processes: workers that are to be
 * spawned run at once, those that are to be stopped are dead at once, and nothing is served. So what is measured is
 * the daemon and the protocol, not fork().
 *
 * The load shares its machine with the daemon, and decoding ten thousand pushes takes the load longer than sending
 * them takes the daemon. "Told" is therefore the time at which the kernel put the bytes into the agent's socket
 * (SO_TIMESTAMPNS), not that at which this program came to read them; the answers of the agents, on the other hand,
 * take their real time, and all phases that need them are slower than they would be with ten thousand machines.
 *
 * A socket that cannot take what is written waits in a buffer, as libuv would have it. Deadlines of the minds
 * (heartbeats) are looked through every few milliseconds: a heap would be faster and nobody would notice. */

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "agent/supervisor/supervisor.h"
#include "common/key/secret.h"
#include "common/key/source.h"
#include "common/system/clock.h"
#include "common/mem.h"
#include "proto/channel.h"
#include "proto/msg.h"

enum { READ_CHUNK = 256 * 1024, EVENTS_MAX = 512, TICK_MS = 5, DIAL_MS = 10000 };

struct agent {
  struct supervisor *mind;
  int index, fd; /* fd -1: not connected */
  bool connecting, done;
  struct buf in, out;
  struct channel channel;
  struct channel_ticket *ticket; /* for the next channel; NULL: none */
  struct buf wire;               /* with a key: what has come, still sealed */
  struct bytes *death_report;
  char id[AGENT_ID_MAX + 1], job[JOB_ID_MAX + 1], host[64], address[32], addrs[128];
  uint64_t deadline_ms, dial_deadline_ms;
  const struct sockaddr_in *to, *welcomed_by; /* of load.daemons; NULL: none yet */
  uint32_t round, port;
  bool runs; /* its workers do */
};

/* What has been said of one kind since the last reset. */
struct tally {
  uint64_t n, first_ns, last_ns;
};

struct notice {
  struct agent *agent;
  struct supervisor_event event;
};

struct load {
  struct agent *agents;
  int count, joined, first, epoll, failed, nodes_per_job; /* 0: all are of one job */
  int64_t workers;
  const char *job;
  struct key *key;                         /* of RDZV_KEY; NULL: connections are plain */
  struct sockaddr_in daemons[DAEMONS_MAX]; /* the first is met at, the others stand by */
  char endpoint[DAEMONS_MAX][32];
  uint32_t n_daemons;
  struct settings settings;
  struct notice *notices; /* for minds, in order: never from inside a step */
  size_t n_notices, cap_notices, next_notice;
  struct tally told[MSG_COUNT], said[MSG_COUNT], dialled;
  uint64_t in_bytes, out_bytes, acted_ns;
  char *chunk;
  char command[4096];
  size_t command_len;
  bool over;
};

static struct load load;

static uint64_t real_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void count(struct tally *t, uint64_t at_ns) {
  if (!t->n++ || at_ns < t->first_ns) t->first_ns = at_ns;
  if (at_ns > t->last_ns) t->last_ns = at_ns;
}

static _Noreturn void die(const char *what) {
  fprintf(stderr, "scale-agents: %s: %s\n", what, strerror(errno));
  exit(1);
}

static _Noreturn void give_up(const char *why) {
  fprintf(stderr, "scale-agents: %s\n", why);
  exit(1);
}

static void notify(struct agent *a, struct supervisor_event ev) {
  if (load.n_notices == load.cap_notices) {
    load.cap_notices = load.cap_notices ? 2 * load.cap_notices : 1024;
    load.notices = xrealloc(load.notices, load.cap_notices * sizeof *load.notices);
  }
  load.notices[load.n_notices++] = (struct notice){a, ev};
}

/* Sockets. --------------------------------------------------------------------------------------------------------- */

static void watch(struct agent *a, int op, uint32_t events) {
  struct epoll_event ev = {.events = events, .data.ptr = a};
  if (epoll_ctl(load.epoll, op, a->fd, &ev) < 0) die("epoll_ctl");
}

static void disconnect(struct agent *a) {
  if (a->fd >= 0) close(a->fd);
  a->fd = -1;
  a->connecting = false;
  channel_finish(&a->channel);
  buf_finish(&a->in);
  buf_finish(&a->out);
  buf_finish(&a->wire);
}

static void link_down(struct agent *a, int code) {
  disconnect(a);
  notify(a, (struct supervisor_event){.kind = SUP_LINK_DOWN, .text = strerror(code)});
}

/* Of this agent's own address, so that ten thousand do not share the ports of one. */
static int open_socket(const struct agent *a) {
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) die("socket (raise ulimit -n)");
  struct sockaddr_in from = {.sin_family = AF_INET};
  inet_pton(AF_INET, a->address, &from.sin_addr);
  setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &on, sizeof on);
  if (bind(fd, (const struct sockaddr *)&from, sizeof from) < 0) die("bind");
  return fd;
}

static void dial(struct agent *a, uint32_t which, uint32_t timeout_ms) {
  disconnect(a);
  count(&load.dialled, real_ns());
  a->fd = open_socket(a);
  a->connecting = true;
  a->to = &load.daemons[which];
  a->dial_deadline_ms = boot_ms() + (timeout_ms ? timeout_ms : DIAL_MS);
  int rc = connect(a->fd, (const struct sockaddr *)a->to, sizeof *a->to);
  watch(a, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
  if (rc < 0 && errno != EINPROGRESS) link_down(a, errno);
}

static void flush(struct agent *a) {
  ssize_t n = send(a->fd, a->out.data, a->out.len, MSG_NOSIGNAL);
  if (n > 0) buf_consume(&a->out, (size_t)n);
  if (n < 0 && errno != EAGAIN) {
    link_down(a, errno);
    return;
  }
  if (!a->out.len) buf_finish(&a->out);
  watch(a, EPOLL_CTL_MOD, a->out.len ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void transmit(struct agent *a, const void *data, size_t len) {
  if (a->fd < 0 || a->connecting) return;
  ssize_t n = a->out.len ? -1 : send(a->fd, data, len, MSG_NOSIGNAL);
  size_t sent = n > 0 ? (size_t)n : 0;
  load.out_bytes += len;
  if (sent == len) return;
  buf_append(&a->out, (const char *)data + sent, len - sent);
  flush(a);
}

static void mind(struct agent *a, struct supervisor_event *ev);

static void say(struct agent *a, const struct bytes *b) {
  if (a->fd < 0 || a->connecting) return;
  unsigned type = le16_get(b->data + 4);
  if (type < MSG_COUNT) count(&load.said[type], real_ns());
  if (!load.key) {
    transmit(a, b->data, b->len);
    return;
  }
  struct buf sealed = BUF_INIT;
  channel_seal(&a->channel, b->data, b->len, &sealed);
  transmit(a, sealed.data, sealed.len);
  buf_finish(&sealed);
}

/* A dead agent's guard has only one thing to say. */
static void begin_talking(struct agent *a) {
  if (a->mind)
    mind(a,
         &(struct supervisor_event){.kind = SUP_LINK_UP, .link_up.moved = a->welcomed_by && a->welcomed_by != a->to});
  else if (a->death_report)
    say(a, a->death_report);
}

/* Minds. ----------------------------------------------------------------------------------------------------------- */

/* In the order in which a guard tells it. */
static void workers_end(struct agent *a, int status, bool unasked) {
  if (a->runs)
    for (uint32_t i = 0; i < load.workers; i++)
      notify(a, (struct supervisor_event){.kind = SUP_EXITED,
                                          .round = a->round,
                                          .local_rank = i,
                                          .when_ms = boot_ms(),
                                          .exited = {.status = status, .unasked = unasked},
                                          .text = ""});
  a->runs = false;
  notify(a, (struct supervisor_event){.kind = SUP_CLEAR, .round = a->round});
}

static void spawn(struct agent *a, const struct start *start) {
  a->round = (uint32_t)start->round;
  a->runs = true;
  for (uint32_t i = 0; i < load.workers; i++)
    notify(a,
           (struct supervisor_event){.kind = SUP_SPAWNED, .round = a->round, .local_rank = i, .pid = 100000 + (int)i});
  if (start->node_rank != 0) return;
  a->port = a->port % 20000 + 20001; /* another one is ready for the next round */
  notify(a, (struct supervisor_event){.kind = SUP_STORE, .port = a->port});
}

static void perform(struct agent *a, struct supervisor_effect *fx) {
  switch (fx->kind) {
  case SUP_CONNECT:
    if (fx->connect.to != CONNECT_ENDPOINT) give_up("a shared daemon has no successors among its agents");
    dial(a, fx->connect.endpoint, fx->connect.timeout_ms);
    break;
  case SUP_DISCONNECT: disconnect(a); break;
  case SUP_SEND: say(a, fx->bytes); break;
  case SUP_SPAWN: spawn(a, fx->spawn.start); break;
  case SUP_STOP_TREES: workers_end(a, SIGTERM, false); break;
  case SUP_DEATH_REPORT:
    bytes_unref(a->death_report);
    a->death_report = fx->bytes ? bytes_ref(fx->bytes) : NULL;
    break;
  case SUP_EXIT:
    if (fx->exit.code && !load.failed++) fprintf(stderr, "scale-agents: %s exits with %d\n", a->host, fx->exit.code);
    a->done = true;
    break;
  default: break; /* lines for people, the store, what a guard would keep */
  }
}

static void leave(struct agent *a) {
  disconnect(a);
  supervisor_destroy(a->mind);
  a->mind = NULL;
  a->deadline_ms = UINT64_MAX;
}

static void mind(struct agent *a, struct supervisor_event *ev) {
  static struct supervisor_effects fx;
  if (!a->mind) return;
  ev->now_ms = boot_ms();
  supervisor_step(a->mind, ev, &fx);
  for (size_t i = 0; i < fx.n; i++) perform(a, &fx.v[i]);
  supervisor_effects_clear(&fx);
  a->deadline_ms = supervisor_deadline(a->mind);
  if (a->done) leave(a);
}

static void mind_notices(void) {
  while (load.next_notice < load.n_notices) {
    struct notice n = load.notices[load.next_notice++];
    mind(n.agent, &n.event);
  }
  load.n_notices = load.next_notice = 0;
}

/* What comes. ------------------------------------------------------------------------------------------------------ */

/* When the kernel had the last of these bytes. */
static uint64_t arrived_ns(struct msghdr *h) {
  for (struct cmsghdr *c = CMSG_FIRSTHDR(h); c; c = CMSG_NXTHDR(h, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPNS) continue;
    struct timespec t;
    memcpy(&t, CMSG_DATA(c), sizeof t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
  }
  return real_ns();
}

static void keep_ticket(struct agent *a, struct channel_ticket *ticket) {
  secret_free(a->ticket);
  a->ticket = ticket;
}

static void take_messages(struct agent *a, uint64_t at_ns) {
  size_t at = 0, size;
  struct frame f;
  struct msg m;
  struct err e = ERR_INIT;
  while (a->fd >= 0) {
    int rc = frame_parse(a->in.data + at, a->in.len - at, FRAME_MAX_TO_AGENT, &f, &size, &e);
    if (rc == 0) break;
    if (rc < 0 || msg_decode(&f, TO_AGENT, &m, &e) < 0) {
      fprintf(stderr, "scale-agents: the daemon sent what cannot be read: %s\n", e.text);
      exit(1);
    }
    at += size;
    count(&load.told[m.type], at_ns);
    if (m.type == MSG_WELCOME) a->welcomed_by = a->to;
    if (m.type == MSG_GREETING) keep_ticket(a, channel_take_ticket(&a->channel, m.greeting.ticket));
    mind(a, &(struct supervisor_event){.kind = SUP_MSG, .msg = &m});
    msg_finish(&m);
  }
  if (a->fd < 0) return;
  buf_consume(&a->in, at);
  if (!a->in.len) buf_finish(&a->in);
}

/* Unseals what has come. */
static void take_records(struct agent *a) {
  size_t at = 0, used = 0;
  struct err e = ERR_INIT;
  if (a->channel.state == CHANNEL_IS_OPENING) {
    enum channel_status status;
    enum channel_source source;
    int rc = channel_take_answer(&a->channel, a->wire.data, a->wire.len, &at, &status, &source);
    if (rc < 0) give_up("the daemon refuses the key");
    if (rc == 0) return;
    begin_talking(a);
  }
  for (int rc; (rc = channel_unseal(&a->channel, a->wire.data + at, a->wire.len - at, &used, &a->in, &e)); at += used)
    if (rc < 0) give_up(e.text);
  buf_consume(&a->wire, at);
  if (!a->wire.len) buf_finish(&a->wire);
}

/* True: something has come. */
static bool receive_some(struct agent *a) {
  char control[128];
  struct iovec part = {load.chunk, READ_CHUNK};
  struct msghdr h = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  ssize_t n = recvmsg(a->fd, &h, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    if (a->mind)
      link_down(a, n < 0 ? errno : ECONNRESET);
    else
      disconnect(a); /* the guard of a dead agent has been heard */
    return false;
  }
  load.in_bytes += (uint64_t)n;
  if (!a->mind && a->channel.state != CHANNEL_IS_OPENING) return false;
  buf_append(load.key ? &a->wire : &a->in, load.chunk, (size_t)n);
  if (load.key) take_records(a);
  if (!a->mind) return false;
  take_messages(a, arrived_ns(&h));
  return true;
}

/* What is longer than a socket's buffer, as START of node rank 0 with all addresses is, does not wait for its rest
 * until all others have had their turn. */
static void receive(struct agent *a) {
  while (receive_some(a) && a->fd >= 0 && (a->in.len || a->wire.len)) continue;
}

static void connected(struct agent *a);

/* If this process had no time to look, it may have been answered long ago. */
static void end_dial(struct agent *a) {
  struct pollfd p = {.fd = a->fd, .events = POLLOUT};
  if (poll(&p, 1, 0) > 0)
    connected(a);
  else
    link_down(a, ETIMEDOUT);
}

/* An agent reads what has come before it says anything of its own accord, as one with a machine of its own has done
 * long before: else the answer to its heartbeat would lie behind a START that this process had no time to read yet,
 * and be taken for the time of both. */
static void tick(void) {
  uint64_t now = boot_ms();
  for (int i = 0; i < load.joined; i++) {
    struct agent *a = &load.agents[i];
    if (a->fd >= 0 && a->connecting && now >= a->dial_deadline_ms) end_dial(a);
    if (now < a->deadline_ms) continue;
    if (a->fd >= 0 && !a->connecting) receive(a);
    mind(a, &(struct supervisor_event){.kind = SUP_TICK});
  }
}

static void connected(struct agent *a) {
  int code = 0;
  socklen_t len = sizeof code;
  getsockopt(a->fd, SOL_SOCKET, SO_ERROR, &code, &len);
  if (code) {
    link_down(a, code);
    return;
  }
  a->connecting = false;
  watch(a, EPOLL_CTL_MOD, EPOLLIN);
  if (!load.key) {
    transmit(a, frame_preface, FRAME_PREFACE_SIZE);
    begin_talking(a);
    return;
  }
  struct buf opening = BUF_INIT;
  uint8_t random[NOISE_KEY];
  if (a->ticket) {
    channel_resume(&a->channel, a->ticket, &opening);
    keep_ticket(a, NULL);
  } else {
    randombytes_buf(random, sizeof random);
    channel_open(&a->channel, load.key, random, &opening);
  }
  transmit(a, opening.data, opening.len);
  buf_finish(&opening);
}

static void on_ready(struct agent *a, uint32_t events) {
  if (a->fd >= 0 && a->connecting && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
    connected(a);
  else if (a->fd >= 0 && a->out.len && (events & EPOLLOUT))
    flush(a);
  if (a->fd >= 0 && !a->connecting && (events & (EPOLLIN | EPOLLERR | EPOLLHUP))) receive(a);
}

/* Commands. -------------------------------------------------------------------------------------------------------- */

static void make_agent(struct agent *a, int i) {
  int n = load.first + i;
  a->index = n;
  a->fd = -1;
  a->deadline_ms = UINT64_MAX;
  a->port = 20001 + (uint32_t)n % 20000;
  snprintf(a->id, sizeof a->id, "%016" PRIx64 "%016" PRIx64, (uint64_t)(n + 1) * 0x9e3779b97f4a7c15u,
           real_ns() * 0xbf58476d1ce4e5b9u);
  if (load.nodes_per_job)
    snprintf(a->job, sizeof a->job, "%s-%05d", load.job, n / load.nodes_per_job);
  else
    snprintf(a->job, sizeof a->job, "%s", load.job);
  snprintf(a->host, sizeof a->host, "gpu-r%02d-n%05d.cluster.example.org", n / 512, n);
  snprintf(a->address, sizeof a->address, "127.%d.%d.%d", 1 + n / 62500, n / 250 % 250, 1 + n % 250);
  snprintf(a->addrs, sizeof a->addrs, "%s 10.%d.%d.%d fd00:1234:5678::%x", a->address, 1 + n / 62500, n / 250 % 250,
           1 + n % 250, (unsigned)n + 1);
}

static void join(struct agent *a, int i) {
  make_agent(a, i);
  static const char *endpoints[DAEMONS_MAX]; /* the minds keep it */
  for (uint32_t k = 0; k < load.n_daemons; k++) endpoints[k] = load.endpoint[k];
  const struct supervisor_config config = {.agent_id = a->id,
                                           .job = a->job,
                                           .host = a->host,
                                           .local_addr = "",
                                           .addrs = a->addrs,
                                           .endpoint = load.endpoint[0],
                                           .n_endpoints = load.n_daemons,
                                           .endpoints = endpoints,
                                           .pid = 4000 + i,
                                           .workers = load.workers,
                                           .want_rank = -1,
                                           .order_key = a->index,
                                           .settings = load.settings};
  a->mind = supervisor_create(&config);
  mind(a, &(struct supervisor_event){.kind = SUP_STORE, .port = a->port});
  mind(a, &(struct supervisor_event){.kind = SUP_BEGIN});
}

/* kill -9 of an agent: its connection closes, its guard kills what there is and says so. */
static void kill_agent(struct agent *a) {
  disconnect(a);
  supervisor_destroy(a->mind);
  a->mind = NULL;
  a->deadline_ms = UINT64_MAX;
  dial(a, (uint32_t)(a->to - load.daemons), 0);
}

/* The power of its host fails: nobody says anything. (The daemon whose connection this closes is gone already.) */
static void lose_agent(struct agent *a) {
  disconnect(a);
  supervisor_destroy(a->mind);
  a->mind = NULL;
  a->deadline_ms = UINT64_MAX;
}

static void kill_worker(struct agent *a, uint32_t local_rank) {
  notify(a, (struct supervisor_event){.kind = SUP_EXITED,
                                      .round = a->round,
                                      .local_rank = local_rank,
                                      .when_ms = boot_ms(),
                                      .exited = {.status = SIGKILL, .unasked = true},
                                      .text = "Traceback (most recent call last):\n  File \"train.py\", "
                                              "line 12, in <module>\nRuntimeError: boom"});
}

static void progress(struct agent *a, uint64_t step) {
  for (uint32_t i = 0; a->runs && i < load.workers; i++)
    notify(a, (struct supervisor_event){
                  .kind = SUP_PROGRESS,
                  .round = a->round,
                  .local_rank = i,
                  .progress = {.step = step, .of = 1000000, .loss = 2.125, .samples_per_second = 1234.5}});
}

static void put_tallies(struct buf *out, const char *name, const struct tally *tallies) {
  buf_printf(out, "\"%s\":{", name);
  const char *before = "";
  for (int i = 1; i < MSG_COUNT; i++) {
    const struct tally *t = &tallies[i];
    if (!t->n) continue;
    buf_printf(out, "%s\"%s\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", before, msg_name((enum msg_type)i), t->n,
               t->first_ns, t->last_ns);
    before = ",";
  }
  buf_puts(out, "}");
}

static void report(void) {
  struct buf out = BUF_INIT;
  int states[SUPERVISOR_STATE_COUNT] = {0};
  for (int i = 0; i < load.joined; i++)
    if (load.agents[i].mind) states[supervisor_state(load.agents[i].mind)]++;
  buf_puts(&out, "{\"states\":{");
  for (int i = 0; i < SUPERVISOR_STATE_COUNT; i++)
    buf_printf(&out, "%s\"%s\":%d", i ? "," : "", supervisor_state_name((enum supervisor_state)i), states[i]);
  buf_puts(&out, "},");
  put_tallies(&out, "told", load.told);
  buf_puts(&out, ",");
  put_tallies(&out, "said", load.said);
  buf_printf(&out, ",\"failed\":%d", load.failed);
  buf_printf(&out, ",\"dialled_ns\":%" PRIu64, load.dialled.first_ns);
  buf_printf(&out, ",\"in_bytes\":%" PRIu64 ",\"out_bytes\":%" PRIu64 ",\"acted_ns\":%" PRIu64 "}\n", load.in_bytes,
             load.out_bytes, load.acted_ns);
  if (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout)) load.over = true;
  buf_finish(&out);
}

static void reset(void) {
  memset(load.told, 0, sizeof load.told);
  memset(load.said, 0, sizeof load.said);
  load.dialled = (struct tally){0};
  load.in_bytes = load.out_bytes = load.acted_ns = 0;
}

static void obey(const char *line) {
  int n = 0;
  uint64_t now = real_ns();
  if (!strcmp(line, "report")) {
    report();
  } else if (!strcmp(line, "reset")) {
    reset();
  } else if (sscanf(line, "join %d", &n) == 1) { /* so many in all */
    load.acted_ns = now;
    for (; load.joined < n && load.joined < load.count; load.joined++) join(&load.agents[load.joined], load.joined);
  } else if (sscanf(line, "kill-worker %d", &n) == 1 && n < load.joined) {
    load.acted_ns = now;
    kill_worker(&load.agents[n], 0);
  } else if (sscanf(line, "kill-agent %d", &n) == 1 && n < load.joined) {
    load.acted_ns = now;
    kill_agent(&load.agents[n]);
  } else if (sscanf(line, "lose-agent %d", &n) == 1 && n < load.joined) {
    load.acted_ns = now;
    lose_agent(&load.agents[n]);
  } else if (sscanf(line, "progress %d", &n) == 1) {
    for (int i = 0; i < load.joined; i++) progress(&load.agents[i], (uint64_t)n);
  } else if (!strcmp(line, "finish")) {
    load.acted_ns = now;
    for (int i = 0; i < load.joined; i++)
      if (load.agents[i].mind) workers_end(&load.agents[i], 0, true);
  } else {
    fprintf(stderr, "scale-agents: no such command: %s\n", line);
    load.over = true;
  }
}

static void on_commands(void) {
  ssize_t n = read(STDIN_FILENO, load.command + load.command_len, sizeof load.command - load.command_len - 1);
  if (n <= 0) {
    load.over = true;
    return;
  }
  load.command_len += (size_t)n;
  load.command[load.command_len] = '\0';
  for (char *end; (end = strchr(load.command, '\n'));) {
    *end = '\0';
    obey(load.command);
    load.command_len -= (size_t)(end + 1 - load.command);
    memmove(load.command, end + 1, load.command_len + 1);
  }
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void run(void) {
  struct epoll_event events[EVENTS_MAX], in = {.events = EPOLLIN, .data.ptr = NULL};
  uint64_t tick_ms = 0;
  load.epoll = epoll_create1(EPOLL_CLOEXEC);
  if (load.epoll < 0 || epoll_ctl(load.epoll, EPOLL_CTL_ADD, STDIN_FILENO, &in) < 0) die("epoll");
  while (!load.over) {
    int n = epoll_wait(load.epoll, events, EVENTS_MAX, TICK_MS);
    for (int i = 0; i < n; i++) {
      if (events[i].data.ptr)
        on_ready(events[i].data.ptr, events[i].events);
      else
        on_commands();
    }
    mind_notices();
    if (boot_ms() >= tick_ms) {
      tick();
      mind_notices();
      tick_ms = boot_ms() + TICK_MS;
    }
  }
}

static void raise_limit(void) {
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv) {
  struct key_env env;
  key_env_take(&env);
  load.key = env.key;
  if (argc < 8 || argc > 10)
    return fprintf(stderr,
                   "usage: [RDZV_KEY=KEY] scale-agents PORT[,PORT...] JOB FIRST COUNT MIN_NODES MAX_NODES WORKERS "
                   "[NODES_PER_JOB [LEASE_MS]]\n"),
           64;
  load.job = argv[2];
  load.first = atoi(argv[3]);
  load.count = atoi(argv[4]);
  load.workers = atoi(argv[7]);
  load.nodes_per_job = argc > 8 ? atoi(argv[8]) : 0;
  for (char *port = strtok(argv[1], ","); port && load.n_daemons < DAEMONS_MAX;
       port = strtok(NULL, ","), load.n_daemons++) {
    struct sockaddr_in *d = &load.daemons[load.n_daemons];
    *d = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    d->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    snprintf(load.endpoint[load.n_daemons], sizeof load.endpoint[0], "127.0.0.1:%s", port);
  }
  load.settings = (struct settings){.min_nodes = atoi(argv[5]),
                                    .max_nodes = atoi(argv[6]),
                                    .max_restarts = 3,
                                    .last_call_ms = 60000,
                                    .join_timeout_ms = 600000,
                                    .stop_timeout_ms = 15000,
                                    .lease_ms = argc > 9 ? atoi(argv[9]) : 5000,
                                    .daemons = load.n_daemons > 1 ? load.n_daemons : 0};
  load.agents = xcalloc((size_t)load.count, sizeof *load.agents);
  load.chunk = xmalloc(READ_CHUNK);
  raise_limit();
  run();
  return 0;
}
