/* SPDX-License-Identifier: Apache-2.0 */
/* link: attempts at several addresses, at another agent's daemon, and at our own on its reserved port; with a real
 * rdzvd. forward: who is told, and how often. */

#include "agent/link/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/link/forward.h"
#include "agent/link/local_daemon.h"
#include "common/mem.h"
#include "common/system/loop.h"
#include "tests/rig/unit.h"

enum { PATIENCE_MS = 20000, LEASE_MS = 5000 };

/* What one link said: "up greeting", "down:nothing listens ...". */
static struct {
  uv_loop_t loop;
  struct link *link;
  struct link_options options;
  struct local_daemon *daemon;
  char said[512];
  int ups, downs, greetings, user_keys;
  bool moved, left;
  bool timer_was_first; /* at the last end of an attempt: on_timer's had come */
  bool timer_has_come;
  uint16_t told_port;
} t;

static void on_up(void *ctx, bool moved) {
  t.ups++;
  t.moved = moved;
}

static void on_down(void *ctx, const struct link_down *down) {
  t.downs++;
  t.timer_was_first = t.timer_has_come;
  snprintf(t.said, sizeof(t.said), "%s", down->why);
}

static void on_other_program(void *ctx, const char *who) {}

static void on_msg(void *ctx, struct msg *m) {
  t.greetings += m->type == MSG_GREETING;
}

static void on_user_key(void *ctx) {
  t.user_keys++;
}

static void on_port(void *ctx, uint16_t port) {
  t.told_port = port;
}

static void on_left(void *ctx) {
  t.left = true;
}

static void on_late(uv_timer_t *timer) {
  fail_msg("%s did not come; last: %s", (const char *)timer->data, t.said);
}

/* Runs the loop until *count is at least n. again: where the link tries again after each failure; NULL: it does not. */
static void await_trying(const struct link_to *again, const int *count, int n, const char *what) {
  uv_timer_t late;
  uv_timer_init(&t.loop, &late);
  late.data = (void *)(uintptr_t)what;
  uv_timer_start(&late, on_late, PATIENCE_MS, 0);
  while (*count < n) {
    if (again && link_is_shut(t.link)) link_open(t.link, again);
    uv_run(&t.loop, UV_RUN_ONCE);
  }
  uv_close((uv_handle_t *)&late, NULL);
  uv_run(&t.loop, UV_RUN_NOWAIT);
}

static void await(const int *count, int n, const char *what) {
  await_trying(NULL, count, n, what);
}

/* As an agent does: an attempt that fails, for whatever reason, is made again. */
static void reach(const struct link_to *to, const char *what) {
  int greetings = t.greetings;
  link_open(t.link, to);
  await_trying(to, &t.greetings, greetings + 1, what);
}

static void hold_child_signals(bool held) {
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(held ? SIG_BLOCK : SIG_UNBLOCK, &child, NULL);
}

/* Kills our daemon. Its connection ends before its process does, so the link tries its old port at least once. */
static void kill_daemon(const struct link_to *to) {
  int downs = t.downs, greetings = t.greetings;
  hold_child_signals(true);
  kill(local_daemon_pid(t.daemon), SIGKILL);
  await_trying(to, &t.downs, downs + 2, "a refusal");
  hold_child_signals(false);
  await_trying(to, &t.greetings, greetings + 1, "a greeting of the restarted daemon");
}

static int set_up(void **state) {
  memset(&t, 0, sizeof(t));
  signal(SIGPIPE, SIG_IGN);
  return loop_open(&t.loop, NULL);
}

/* n endpoints; the daemon of the first is on loopback. */
static void open_link(const struct endpoint *endpoints, size_t n, enum hosting hosting, struct reserved_port port) {
  static const struct link_callbacks cb = {on_up, on_down, on_other_program, on_msg, on_user_key};
  t.daemon = local_daemon_create(&(struct local_daemon_options){.loop = &t.loop,
                                                                .host = "127.0.0.1",
                                                                .port = endpoints->port,
                                                                .reserved = port,
                                                                .on_port = on_port,
                                                                .on_left = on_left});
  t.options = (struct link_options){.loop = &t.loop,
                                    .endpoints = endpoints,
                                    .n_endpoints = n,
                                    .local_addr = "127.0.0.2",
                                    .words = {"in --endpoint", RESOLVE_REMEDY},
                                    .hosting = hosting,
                                    .daemon = t.daemon,
                                    .user_timeout_ms = LEASE_MS,
                                    .cb = &cb};
  t.link = link_create(&t.options);
}

/* The daemon serves nobody, so it is idle at once when its agent leaves. */
static int tear_down(void **state) {
  if (!t.link) return uv_loop_close(&t.loop);
  if (t.daemon && local_daemon_pid(t.daemon)) kill(local_daemon_pid(t.daemon), SIGKILL);
  if (t.daemon) local_daemon_destroy(t.daemon);
  link_destroy(t.link);
  uv_run(&t.loop, UV_RUN_DEFAULT);
  return uv_loop_close(&t.loop);
}

static void bind_address(struct sockaddr_in *a, const char *addr, uint16_t port) {
  *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
  inet_pton(AF_INET, addr, &a->sin_addr);
}

static bool can_bind(const char *addr, uint16_t port) {
  struct sockaddr_in a;
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bind_address(&a, addr, port);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  bool bound = bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0;
  close(fd);
  return bound;
}

static struct reserved_port reserve(const char *addr) {
  struct reserved_port s;
  struct err e = ERR_INIT;
  if (reserve_port(addr, &s, &e)) fail_msg("%s", e.text);
  return s;
}

/* A port of 127.0.0.1 that nobody has a moment later. */
static struct endpoint free_endpoint(void) {
  struct endpoint ep = {.host = "127.0.0.1"};
  struct reserved_port s = reserve("127.0.0.1");
  ep.port = s.port;
  reserved_port_close(&s);
  return ep;
}

static const struct link_to to_own = {.where = LINK_TO_OWN, .timeout_ms = 1000};

/* Over the socket that the daemon was started with, and once more without it, at the port of the same daemon. */
UNIT_TEST_WITH(test_standalone, set_up, tear_down) {
  static const struct link_callbacks cb = {on_up, on_down, on_other_program, on_msg, on_user_key};
  const struct link_to to = {.where = LINK_TO_ENDPOINT};
  union socket_address peer;
  struct ipaddr addr;
  uint16_t port = 0;
  t.daemon = local_daemon_create(&(struct local_daemon_options){
      .loop = &t.loop, .loopback = true, .reserved = {.fd = -1}, .on_port = on_port, .on_left = on_left});
  t.link = link_create(&(struct link_options){
      .loop = &t.loop, .standalone = true, .daemon = t.daemon, .user_timeout_ms = LEASE_MS, .cb = &cb});
  link_open(t.link, &to);
  int talk = local_daemon_take_talk(t.daemon);
  assert_true(talk >= 0); /* the daemon starts, and the link has not taken it yet */
  close(talk);            /* the daemon loses its agent, and serves it at its port */
  await_trying(&to, &t.greetings, 1, "a greeting at the port");
  pid_t first = local_daemon_pid(t.daemon);
  kill_daemon(&to);
  assert_int_equal(local_daemon_take_talk(t.daemon), -1);
  link_peer(t.link, &peer); /* the guard's death report goes there */
  socket_address_read(&peer, &addr, &port);
  assert_true(port > 0 && ipaddr_is_loopback(&addr));
  pid_t second = local_daemon_pid(t.daemon);
  assert_true(second > 0 && second != first);
  link_shut(t.link);
  reach(&to, "a greeting at its port");
  assert_int_equal(local_daemon_pid(t.daemon), second);
}

UNIT_TEST(test_reserved_port) {
  struct reserved_port s = reserve("127.0.0.2");
  char want[ENDPOINT_TEXT_MAX];
  snprintf(want, sizeof(want), "127.0.0.2:%u", (unsigned)s.port);
  assert_string_equal(s.text, want);
  assert_false(can_bind("127.0.0.2", s.port));
  assert_false(can_bind("0.0.0.0", s.port));
  reserved_port_close(&s);
  assert_true(can_bind("127.0.0.2", s.port));
  s = reserve("");
  assert_false(can_bind("127.0.0.1", s.port));
  reserved_port_close(&s);
  s = reserve("192.0.2.1"); /* the address of a gateway */
  assert_false(can_bind("127.0.0.1", s.port));
  reserved_port_close(&s);
}

UNIT_TEST_WITH(test_own_daemon, set_up, tear_down) {
  struct endpoint ep = free_endpoint();
  struct reserved_port s = reserve("127.0.0.2");
  union socket_address peer;
  struct ipaddr addr, want = ipaddr_parse("127.0.0.2");
  uint16_t port;
  open_link(&ep, 1, HOST_NEVER, s);
  assert_int_equal(local_daemon_standby_port(t.daemon), s.port);
  reach(&to_own, "a greeting of our own daemon");
  link_peer(t.link, &peer);
  socket_address_read(&peer, &addr, &port);
  assert_int_equal(port, s.port);
  assert_int_equal(ipaddr_compare(&addr, &want), 0);
  assert_int_equal(t.told_port, s.port);
  /* it comes back on the same port, for everybody who knows it */
  pid_t first = local_daemon_pid(t.daemon);
  kill_daemon(&to_own);
  assert_int_not_equal(local_daemon_pid(t.daemon), first);
  link_peer(t.link, &peer);
  socket_address_read(&peer, &addr, &port);
  assert_int_equal(port, s.port);
}

/* An agent has one rdzvd: where newcomers look for it. */
UNIT_TEST_WITH(test_daemon_of_the_endpoint_stands_by, set_up, tear_down) {
  struct endpoint ep = free_endpoint();
  struct reserved_port s = reserve("127.0.0.1");
  open_link(&ep, 1, HOST_AUTO, s);
  reach(&(struct link_to){.where = LINK_TO_ENDPOINT}, "a greeting at the endpoint");
  pid_t first = local_daemon_pid(t.daemon);
  assert_int_equal(t.told_port, ep.port);
  assert_int_equal(local_daemon_standby_port(t.daemon), ep.port);
  assert_true(can_bind("127.0.0.1", s.port)); /* given back */
  link_shut(t.link);
  reach(&to_own, "another greeting");
  assert_int_equal(local_daemon_pid(t.daemon), first);
}

UNIT_TEST_WITH(test_no_reserved_port, set_up, tear_down) {
  struct endpoint ep = free_endpoint();
  open_link(&ep, 1, HOST_AUTO, (struct reserved_port){.fd = -1});
  link_open(t.link, &to_own);
  assert_int_equal(t.downs, 1);
  assert_string_equal(t.said, "this agent has reserved no port for rdzvd");
  assert_int_equal(local_daemon_pid(t.daemon), 0);
}

/* The key that the job turned out to have is no daemon's. */
UNIT_TEST_WITH(test_forbidden, set_up, tear_down) {
  struct endpoint ep = free_endpoint();
  struct reserved_port s = reserve("127.0.0.2");
  open_link(&ep, 1, HOST_AUTO, s);
  local_daemon_forbid_standby(t.daemon);
  assert_int_equal(local_daemon_standby_port(t.daemon), 0);
  assert_true(can_bind("127.0.0.2", s.port));
  link_open(t.link, &to_own);
  assert_int_equal(t.downs, 1);
}

/* The first is tried for itself; so is the second, where no daemon is started. */
UNIT_TEST_WITH(test_endpoints, set_up, tear_down) {
  struct reserved_port refuses = reserve("127.0.0.1");
  struct endpoint list[2] = {free_endpoint(), {.host = "127.0.0.1", .port = refuses.port}};
  char want[ENDPOINT_TEXT_MAX + 60];
  open_link(list, 2, HOST_AUTO, (struct reserved_port){.fd = -1});
  link_open(t.link, &(struct link_to){.where = LINK_TO_ENDPOINT, .endpoint = 1});
  await(&t.downs, 1, "a refusal");
  snprintf(want, sizeof(want), "nothing listens at 127.0.0.1:%u: start rdzvd there", (unsigned)list[1].port);
  assert_string_equal(t.said, want);
  assert_int_equal(local_daemon_pid(t.daemon), 0);
  reach(&(struct link_to){.where = LINK_TO_ENDPOINT, .endpoint = 0}, "a greeting");
  assert_false(t.moved);
  reserved_port_close(&refuses);
}

UNIT_TEST_WITH(test_another_agents_daemon, set_up, tear_down) {
  struct endpoint ep = free_endpoint();
  struct reserved_port gone = reserve("127.0.0.1");
  char want[ENDPOINT_TEXT_MAX + 80];
  open_link(&ep, 1, HOST_AUTO, (struct reserved_port){.fd = -1});
  link_open(t.link, &(struct link_to){.where = LINK_TO_ADDRESS, .addr = "127.0.0.1", .port = gone.port});
  await(&t.downs, 1, "a refusal");
  snprintf(want, sizeof(want), "nothing listens at 127.0.0.1:%u: the agent there has not started rdzvd yet",
           (unsigned)gone.port);
  assert_string_equal(t.said, want);
  reach(&(struct link_to){.where = LINK_TO_ENDPOINT}, "a greeting");
  link_shut(t.link);
  reach(&(struct link_to){.where = LINK_TO_ADDRESS, .addr = "127.0.0.1", .port = ep.port}, "a greeting at the address");
  link_shut(t.link);
  int downs = t.downs;
  link_open(t.link, &(struct link_to){.where = LINK_TO_ADDRESS, .addr = "gpu2", .port = ep.port});
  assert_int_equal(t.downs, downs + 1);
  assert_string_equal(t.said, "the next daemon has no numeric address");
  reserved_port_close(&gone);
}

static void on_listen(uv_timer_t *timer) {
  const struct reserved_port *s = timer->data;
  assert_int_equal(listen(s->fd, 8), 0);
}

/* The other agent has not noticed yet that the old daemon is gone: its port is waited for, but not for ever. */
UNIT_TEST_WITH(test_refusal_of_a_reserved_port, set_up, tear_down) {
  struct endpoint ep = free_endpoint();
  struct reserved_port s = reserve("127.0.0.1");
  struct link_to to = {.where = LINK_TO_ADDRESS, .addr = "127.0.0.1", .port = s.port, .timeout_ms = 200};
  uv_timer_t timer = {.data = &s};
  open_link(&ep, 1, HOST_AUTO, (struct reserved_port){.fd = -1});
  uint64_t began = uv_hrtime();
  link_open(t.link, &to);
  await(&t.downs, 1, "a refusal");
  assert_true((uv_hrtime() - began) / 1000000 >= 590);
  uv_timer_init(&t.loop, &timer);
  timer.data = &s;
  uv_timer_start(&timer, on_listen, 300, 0);
  to.timeout_ms = PATIENCE_MS;
  link_open(t.link, &to);
  await(&t.ups, 1, "a connection");
  assert_int_equal(t.downs, 1);
  uv_close((uv_handle_t *)&timer, NULL);
  uv_run(&t.loop, UV_RUN_NOWAIT);
  link_shut(t.link);
  reserved_port_close(&s);
}

/* A listener whose queue is full: the kernel drops further connections. */
static int fill_queue(struct endpoint *ep, int fds[2]) {
  struct sockaddr_in a;
  socklen_t len = sizeof(a);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bind_address(&a, "127.0.0.1", 0);
  assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
  assert_int_equal(listen(fd, 0), 0);
  getsockname(fd, (struct sockaddr *)&a, &len);
  *ep = (struct endpoint){.host = "127.0.0.1", .port = ntohs(a.sin_port)};
  for (int i = 0; i < 2; i++) {
    fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    connect(fds[i], (struct sockaddr *)&a, sizeof(a));
  }
  return fd;
}

static void on_timer(uv_timer_t *timer) {
  t.timer_has_come = true;
}

UNIT_TEST_WITH(test_timeout, set_up, tear_down) {
  struct endpoint ep;
  uv_timer_t own;
  int fds[2], fd = fill_queue(&ep, fds);
  open_link(&ep, 1, HOST_NEVER, (struct reserved_port){.fd = -1});
  uint64_t began = uv_hrtime();
  link_open(t.link, &(struct link_to){.where = LINK_TO_ENDPOINT, .timeout_ms = 100});
  uv_timer_init(&t.loop, &own);
  uv_timer_start(&own, on_timer, 1900, 0); /* the link's own timeout is 2 s */
  await(&t.downs, 1, "the end of the attempt");
  assert_true(strstr(t.said, "does not answer") != NULL);
  assert_true((uv_hrtime() - began) / 1000000 >= 99);
  assert_false(t.timer_was_first);
  uv_close((uv_handle_t *)&own, NULL);
  uv_run(&t.loop, UV_RUN_NOWAIT);
  close(fds[0]);
  close(fds[1]);
  close(fd);
}

/* A daemon counts each FORWARD of a job on `port`. It answers with the older run that it knows, if any. */
struct listener {
  uv_tcp_t tcp;
  struct endpoint ep;
  uint16_t port;
  const char *older;
  int conns, told, foreign;
};

struct accepted {
  struct conn conn;
  struct listener *of;
};

static void on_preface(struct conn *c) {
  struct msg m;
  msg_init(&m, MSG_GREETING);
  m.greeting.version = PROTO_VERSION;
  conn_send(c, &m);
}

static void on_told(struct conn *c, struct msg *m) {
  struct listener *l = ((struct accepted *)c->owner)->of;
  if (m->type == MSG_FORWARD && !strcmp(m->forward.job, "j") && m->forward.port == l->port)
    l->told++;
  else
    l->foreign++;
  if (!l->older) return;
  struct msg answer;
  msg_init(&answer, MSG_MOVED);
  answer.moved.host = "gpu9";
  answer.moved.addr = "10.0.0.9";
  answer.moved.port = 9;
  answer.moved.incarnation = answer.moved.origin = l->older;
  answer.moved.daemon = "99";
  answer.moved.round = 3;
  conn_send(c, &answer);
}

static void on_peer_end(struct conn *c, int code, const char *reason) {
  conn_close(c);
}

static void on_peer_closed(struct conn *c) {
  free(c->owner);
}

static const struct conn_callbacks peer = {
    .on_msg = on_told, .on_preface = on_preface, .on_end = on_peer_end, .on_closed = on_peer_closed};

static void on_connection(uv_stream_t *stream, int status) {
  struct listener *l = stream->data;
  struct accepted *a = xcalloc(1, sizeof(*a));
  a->of = l;
  l->conns++;
  conn_init_tcp(&a->conn, &t.loop, &peer, a, true);
  assert_int_equal(uv_accept(stream, &a->conn.stream), 0);
  assert_int_equal(conn_start(&a->conn, 0, NULL), 0);
}

static void listen_at(struct listener *l) {
  struct sockaddr_in a;
  int len = sizeof(a);
  bind_address(&a, "127.0.0.1", 0);
  uv_tcp_init(&t.loop, &l->tcp);
  l->tcp.data = l;
  uv_tcp_bind(&l->tcp, (struct sockaddr *)&a, 0);
  assert_int_equal(uv_listen((uv_stream_t *)&l->tcp, 16, on_connection), 0);
  uv_tcp_getsockname(&l->tcp, (struct sockaddr *)&a, &len);
  l->ep = (struct endpoint){.host = "127.0.0.1", .port = ntohs(a.sin_port)};
}

static struct bytes *forward_frame(const char *addr, uint16_t port) {
  struct msg m;
  msg_init(&m, MSG_FORWARD);
  m.forward.job = "j";
  m.forward.incarnation = m.forward.origin = "05";
  m.forward.round = 1;
  m.forward.daemon = "00";
  m.forward.host = "gpu2";
  m.forward.addr = addr;
  m.forward.port = port;
  return msg_bytes(&m);
}

UNIT_TEST_WITH(test_forward, set_up, tear_down) {
  enum { EVERY_MS = 200 };
  static struct listener a, b;
  struct endpoint list[4];
  struct endpoint quiet;
  struct reserved_port refuses = reserve("127.0.0.1");
  int fds[2], fd = fill_queue(&quiet, fds);
  a = b = (struct listener){.port = 7};
  listen_at(&a);
  listen_at(&b);
  list[0] = a.ep;
  list[1] = b.ep;
  list[2] = (struct endpoint){.host = "127.0.0.1", .port = refuses.port};
  list[3] = quiet; /* neither a refusal nor a silence delays the others */
  open_link(list, 4, HOST_NEVER, (struct reserved_port){.fd = -1});
  struct forwarder *f = forwarder_create(t.link, &t.options, EVERY_MS);
  uint64_t began = uv_hrtime();
  forwarder_set(f, forward_frame("10.0.0.2", 7), 0, false);
  await(&b.told, 3, "the third telling");
  assert_int_equal(a.conns, 0); /* the job is there */
  assert_in_range(b.conns, b.told, (uv_hrtime() - began) / 1000000 / EVERY_MS + 2);
  forwarder_set(f, forward_frame("10.0.0.2", 7), 1, false);
  await(&a.told, 2, "the second telling of the other");
  forwarder_set(f, NULL, UINT32_MAX, false);
  int before = a.conns + b.conns;
  forwarder_destroy(f);
  uv_close((uv_handle_t *)&a.tcp, NULL);
  uv_close((uv_handle_t *)&b.tcp, NULL);
  local_daemon_destroy(t.daemon);
  t.daemon = NULL;
  link_shut(t.link);
  assert_int_equal(a.foreign + b.foreign, 0);
  assert_int_equal(a.conns + b.conns, before);
  close(fds[0]);
  close(fds[1]);
  close(fd);
  reserved_port_close(&refuses);
}

/* One daemon of --endpoint knows an older run, and another one a younger run. */
UNIT_TEST_WITH(test_an_older_run, set_up, tear_down) {
  static struct listener knows, younger, own;
  knows = (struct listener){.older = "04"};
  younger = (struct listener){.older = "06"};
  own = (struct listener){.port = 9, .older = "03"};
  listen_at(&knows);
  listen_at(&younger);
  listen_at(&own);
  knows.port = younger.port = own.ep.port;
  const struct endpoint list[] = {knows.ep, younger.ep};
  open_link(list, 2, HOST_NEVER, (struct reserved_port){.fd = -1});
  struct forwarder *f = forwarder_create(t.link, &t.options, 200);
  forwarder_set(f, forward_frame("127.0.0.1", own.ep.port), UINT32_MAX, false);
  await(&own.told, 2, "the second word of the older run");
  forwarder_set(f, NULL, UINT32_MAX, false);
  forwarder_destroy(f);
  struct listener *all[] = {&knows, &younger, &own};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(all[i]->foreign, 0);
    assert_in_range(all[i]->told, 2, 3);
    uv_close((uv_handle_t *)&all[i]->tcp, NULL);
  }
  local_daemon_destroy(t.daemon);
  t.daemon = NULL;
  link_shut(t.link);
}

int main(void) {
  setenv("PATH", RDZVD_FOLDER, 1);
  return unit_run(NULL, NULL);
}
