/* SPDX-License-Identifier: Apache-2.0 */
/* c10d_server: who may connect, and who may stay. Connections over TCP, their options, addresses and limits; then
 * those that say nothing, among which the second connection of a PyTorch 1.13 client is kept, and which numbering of
 * the operations an old client means. */

#include "tests/rig/c10d_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <string.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

static int open_listener(struct sockaddr_in *sa) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  socklen_t len = sizeof(*sa);
  *sa = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  assert_int_equal(bind(fd, (struct sockaddr *)sa, len), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)sa, &len), 0);
  struct err e = ERR_INIT;
  if (c10d_server_listen(server, fd, &e) < 0) fail_msg("%s", e.text);
  return fd;
}

static int connect_from(const char *from, const struct sockaddr_in *to) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in sa = {.sin_family = AF_INET};
  inet_pton(AF_INET, from, &sa.sin_addr);
  assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
  assert_int_equal(connect(fd, (const struct sockaddr *)to, sizeof(*to)), 0);
  set_nonblocking(fd);
  return keep(fd);
}

/* Our descriptor of the server's end. */
static int other_end(int fd) {
  struct sockaddr_in own, peer;
  socklen_t len = sizeof(own);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&own, &len), 0);
  for (int i = 3; i < 200; i++) {
    len = sizeof(peer);
    if (i == fd || getpeername(i, (struct sockaddr *)&peer, &len) < 0 || peer.sin_family != AF_INET) continue;
    if (peer.sin_port == own.sin_port && peer.sin_addr.s_addr == own.sin_addr.s_addr) return i;
  }
  fail_msg("no such connection");
  return -1;
}

static int option_of(int fd, int level, int option) {
  int value = -1;
  socklen_t len = sizeof(value);
  assert_int_equal(getsockopt(fd, level, option, &value, &len), 0);
  return value;
}

/* They are set on the listening socket only. */
SERVER_TEST(test_options_of_accepted_connections) {
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){0});
  open_listener(&sa);
  int fd = connect_from("127.0.0.1", &sa);
  spin();
  int served = other_end(fd);
  assert_true(option_of(served, IPPROTO_TCP, TCP_NODELAY) > 0);
  assert_true(option_of(served, SOL_SOCKET, SO_KEEPALIVE) > 0);
  int notices = option_of(served, IPPROTO_TCP, TCP_KEEPIDLE) +
                option_of(served, IPPROTO_TCP, TCP_KEEPINTVL) * option_of(served, IPPROTO_TCP, TCP_KEEPCNT);
  assert_true(notices >= 20 && notices <= 40);
  assert_true(option_of(served, IPPROTO_TCP, TCP_USER_TIMEOUT) > C10D_STALL_MS);
  assert_true(fcntl(served, F_GETFD) & FD_CLOEXEC);
  assert_true(fcntl(served, F_GETFL) & O_NONBLOCK);
}

struct door {
  int asked, undecided;
  struct c10d_caller last;
};

/* By the last byte of its address: even ones may come in, 3 may not, 5 is gone, others have to wait. */
static enum c10d_admission judge(void *ctx, const struct c10d_caller *caller, struct err *why) {
  struct door *d = ctx;
  uint8_t last = caller->from.bytes[3];
  assert_true(caller->to.family == 4 && caller->to.bytes[0] == 127 && caller->to_port && caller->from_port);
  d->asked++;
  d->last = *caller;
  if (last % 2 == 0) return C10D_ADMIT;
  if (last == 3) err_set(why, -EACCES, "three is not let in");
  return last <= 5 ? C10D_REFUSE : C10D_LATER;
}

static void note_undecided(void *ctx, const struct c10d_caller *caller, struct err *why) {
  ((struct door *)ctx)->undecided++;
  err_set(why, -ETIMEDOUT, "node %u has not answered", (unsigned)caller->from.bytes[3]);
}

SERVER_TEST(test_at_once) {
  struct door d = {0};
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){.admit = judge, .ctx = &d});
  open_listener(&sa);
  int a = connect_from("127.0.0.2", &sa), b = connect_from("127.0.0.3", &sa), c = connect_from("127.0.0.5", &sa);
  put(a, hello, sizeof(hello));
  spin();
  assert_int_equal(d.asked, 3);
  assert_false(got(a, "", 0));
  assert_true(got(b, "", 0));
  assert_true(got(c, "", 0));
  assert_int_equal(c10d_server_connections(server), 1);
  expect_line("store: 127.0.0.3:");
  expect_line("refused: three is not let in");
  assert_null(strstr(buf_text(&lines), "127.0.0.5")); /* quietly */
}

/* What it has sent stays in the kernel until it is let in. */
SERVER_TEST(test_later) {
  struct door d = {0};
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){.admit = judge, .ctx = &d});
  open_listener(&sa);
  struct buf ping = BUF_INIT;
  int in = connect_from("127.0.0.7", &sa);
  buf_append(&ping, hello, sizeof(hello));
  ask_add(&ping, "k", 1);
  put_buf(in, &ping);
  spin();
  uint64_t first = d.last.id;
  int out = connect_from("127.0.0.9", &sa), quiet = connect_from("127.0.0.9", &sa);
  spin();
  assert_int_equal(d.asked, 3);
  assert_int_equal(c10d_server_callers(server), 3);
  assert_int_equal(c10d_server_connections(server), 0);
  assert_int_equal(store_count(c10d_server_store(server)), 0);
  c10d_server_admit(server, first);
  c10d_server_refuse(server, d.last.id - 1, "it is not ours");
  c10d_server_refuse(server, d.last.id, NULL);
  c10d_server_admit(server, first); /* again, and one that never was */
  c10d_server_refuse(server, 4711, "nobody");
  spin();
  struct buf one = BUF_INIT;
  put_number(&one, 1);
  assert_false(got_buf(in, &one));
  assert_true(got(out, "", 0));
  assert_true(got(quiet, "", 0));
  assert_int_equal(c10d_server_callers(server), 0);
  assert_int_equal(c10d_server_accepted(server), 1);
  expect_line("store: 127.0.0.9:");
  expect_line("refused: it is not ours");
  assert_null(strstr(buf_text(&lines), "nobody"));
}

/* Its owner was found by the numbers of the connection, which another one may have by then. */
SERVER_TEST(test_reset_meanwhile) {
  struct door d = {0};
  struct sockaddr_in sa;
  SCOPED(buf_finish) struct buf add = BUF_INIT;
  const struct linger at_once = {.l_onoff = 1};
  const char *const from[] = {"127.0.0.2", "127.0.0.7"}; /* is let in; has to wait */
  start(&(struct c10d_server_config){.admit = judge, .ctx = &d});
  open_listener(&sa);
  buf_append(&add, hello, sizeof(hello));
  ask_add(&add, "k", 1);
  for (int i = 0; i < 2; i++) {
    int fd = connect_from(from[i], &sa);
    assert_int_equal(send(fd, add.data, add.len, MSG_NOSIGNAL), add.len);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    drop(fd);
    spin();
  }
  assert_int_equal(d.asked, 2);
  assert_int_equal(c10d_server_callers(server), 1);
  c10d_server_admit(server, d.last.id);
  spin();
  assert_int_equal(c10d_server_callers(server), 0);
  assert_int_equal(c10d_server_connections(server), 0);
  assert_int_equal(c10d_server_accepted(server), 0);
  assert_int_equal(store_count(c10d_server_store(server)), 0);
}

SERVER_TEST(test_nobody_decides) {
  enum { DECIDE_MS = 100 };
  struct door d = {0};
  struct sockaddr_in sa;
  start(
      &(struct c10d_server_config){.admit = judge, .on_undecided = note_undecided, .decide_ms = DECIDE_MS, .ctx = &d});
  open_listener(&sa);
  uint64_t end = uv_hrtime() + DECIDE_MS * 1000000ull;
  int fd = connect_from("127.0.0.7", &sa);
  spin();
  for (int i = 0; uv_hrtime() < end; i++) {
    bool ended = got(fd, "", 0);
    if (uv_hrtime() < end) assert_false(ended); /* a busy machine may have let the time pass */
    wait_ms(10);
  }
  wait_ms(20);
  assert_true(got(fd, "", 0));
  assert_int_equal(d.undecided, 1);
  assert_int_equal(c10d_server_callers(server), 0);
  expect_line("refused: node 7 has not answered");
}

/* Callers of a stranger take no place of a client, and have a limit of their own. */
SERVER_TEST(test_callers_have_limits) {
  struct door d = {0};
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){.admit = judge, .max_connections = 1, .max_callers = 2, .ctx = &d});
  open_listener(&sa);
  int waiting[3];
  for (int i = 0; i < 3; i++) {
    waiting[i] = connect_from("127.0.0.7", &sa);
    spin();
  }
  assert_false(got(waiting[1], "", 0));
  assert_true(got(waiting[2], "", 0));
  expect_line("refused: 2 connections wait already to be let in");
  connect_from("127.0.0.2", &sa);
  spin();
  assert_int_equal(c10d_server_connections(server), 1);
  c10d_server_admit(server, 1); /* the place is taken meanwhile */
  spin();
  assert_true(got(waiting[0], "", 0));
  expect_line("refused: there are 1 connections already");
}

SERVER_TEST(test_limits) {
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){.max_connections = 3, .max_per_address = 2});
  open_listener(&sa);
  int fd[5];
  for (int i = 0; i < 5; i++) {
    fd[i] = connect_from(i < 3 ? "127.0.0.2" : "127.0.0.3", &sa);
    spin();
  }
  assert_int_equal(c10d_server_connections(server), 3);
  assert_false(got(fd[1], "", 0));
  assert_true(got(fd[2], "", 0));
  assert_false(got(fd[3], "", 0));
  assert_true(got(fd[4], "", 0));
  expect_line("refused: there are 2 connections from its address already");
  expect_line("refused: there are 3 connections already");
}

/* Without descriptors nobody is accepted, nothing spins, and those who wait are taken when there is room again. */
SERVER_TEST(test_no_descriptors) {
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){0});
  open_listener(&sa);
  int first = connect_from("127.0.0.1", &sa), second = connect_from("127.0.0.1", &sa);
  struct rlimit old, tight;
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
  tight = old;
  int next = dup(0);
  close(next);
  tight.rlim_cur = (rlim_t)next + 1;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &tight), 0);
  spin();
  assert_int_equal(c10d_server_connections(server), 1);
  expect_line("no descriptors for more connections");
  put(first, hello, sizeof(hello));
  int turns = 0;
  uint64_t end = uv_hrtime() + 200000000ull;
  while (uv_hrtime() < end) {
    uv_run(&loop, UV_RUN_ONCE);
    turns++;
    if (turns > 10) break;
    struct pollfd p = {uv_backend_fd(&loop), POLLIN, 0};
    poll(&p, 1, 200);
  }
  assert_true(turns < 10);
  drop(first); /* its end makes room */
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
  spin();
  assert_int_equal(c10d_server_connections(server), 1);
  drop(second);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
}

SERVER_TEST(test_silent_is_closed) {
  start(&(struct c10d_server_config){.silent_ms = 100});
  int silent = connect_unix(NULL, 0), half = connect_unix(hello, 3);
  connect_new();
  int byte = connect_unix("\3", 1); /* GET as before 2.2, and no more of it */
  spin();
  assert_int_equal(c10d_server_connections(server), 4);
  wait_ms(200);
  assert_int_equal(c10d_server_connections(server), 1);
  assert_true(got(silent, "", 0));
  assert_true(got(half, "", 0));
  assert_true(got(byte, "", 0));
  expect_line("closed: it sent nothing within 100 ms");
  expect_line("closed: it sent no whole request within 100 ms");
  assert_int_equal(uv_backend_timeout(&loop), -1); /* at rest there is no timer */
}

static void put_old(int fd) {
  struct buf q = BUF_INIT;
  ask_in(C10D_1_13, &q, (struct c10d_request){.op = C10D_SET, .key = text("k"), .value = text("v")});
  put_buf(fd, &q);
}

/* 1.13: as many silent ones of an address as it has others, and not longer than they. */
SERVER_TEST(test_silent_second) {
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){.silent_ms = 100});
  open_listener(&sa);
  int first = connect_from("127.0.0.2", &sa), second = connect_from("127.0.0.2", &sa);
  int third = connect_from("127.0.0.2", &sa), foreign = connect_from("127.0.0.3", &sa);
  put_old(first);
  spin();
  wait_ms(200);
  assert_int_equal(c10d_server_connections(server), 2);
  assert_false(got(second, "", 0));
  assert_true(got(third, "", 0));
  assert_true(got(foreign, "", 0));
  assert_int_equal(uv_backend_timeout(&loop), -1);
  drop(first);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  assert_true(got(second, "", 0));
}

/* Number 8 deletes in 1.13 and appends in 2.1. */
SERVER_TEST(test_companion_tells_the_numbering) {
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){0});
  open_listener(&sa);
  struct buf q = BUF_INIT, a = BUF_INIT;
  int old = connect_from("127.0.0.2", &sa);
  connect_from("127.0.0.2", &sa); /* silent */
  int lone = connect_from("127.0.0.3", &sa);
  put_old(old);
  put_old(lone);
  wait_ms(50);
  ask_in(C10D_1_13, &q, (struct c10d_request){.op = C10D_DELETE_KEY, .key = text("k")});
  put_buf(old, &q);
  spin();
  put_number(&a, 1);
  assert_false(got_buf(old, &a));
  ask_in(C10D_2_1, &q, (struct c10d_request){.op = C10D_APPEND, .key = text("k"), .value = text("w")});
  ask_in(C10D_2_1, &q, (struct c10d_request){.op = C10D_GET, .key = text("k")});
  put_buf(lone, &q);
  spin();
  put_string(&a, text("w"));
  assert_false(got_buf(lone, &a));
  put_old(old);
  spin();
  int young = connect_from("127.0.0.4", &sa);
  connect_from("127.0.0.4", &sa);
  put_old(young);
  ask_in(C10D_1_13, &q, (struct c10d_request){.op = C10D_DELETE_KEY, .key = text("k")});
  put_buf(young, &q);
  wait_ms(50);
  put_number(&a, 1);
  assert_false(got_buf(young, &a));
  int younger = connect_from("127.0.0.5", &sa);
  connect_from("127.0.0.5", &sa);
  ask_in(C10D_1_13, &q, (struct c10d_request){.op = C10D_DELETE_KEY, .key = text("k")});
  put_buf(younger, &q); /* as its very first words */
  wait_ms(50);
  put_number(&a, 0);
  assert_false(got_buf(younger, &a));
}

/* A request of an old client's that came in pieces, and in the piece that completes it something that ends the
 * connection. */
SERVER_TEST(test_old_client_ends_behind_a_large_request) {
  enum { SIZE = 1 << 20, LAST = 100 };
  start(&(struct c10d_server_config){0});
  char *value = xcalloc(1, SIZE), many[9] = {10, 0, 0, 0, 0, 0, 1};
  SCOPED(buf_finish) struct buf q = BUF_INIT;
  ask_in(C10D_2_1, &q, (struct c10d_request){.op = C10D_SET, .key = text("k"), .value = {value, SIZE}});
  buf_append(&q, many, sizeof(many)); /* MULTI_SET of 2^40 keys */
  int fd = connect_unix(NULL, 0);
  push(fd, q.data, q.len - LAST);
  put(fd, q.data + q.len - LAST, LAST);
  spin();
  expect_line("more than 131072 keys");
  drop(fd);
  wait_ms(10);
  assert_int_equal(c10d_server_connections(server), 0);
  free(value);
}

SERVER_TEST(test_adopt_silent) {
  int fds[2][2];
  struct err e = ERR_INIT;
  SCOPED(buf_finish) struct buf q = BUF_INIT;
  struct ipaddr peer = ipaddr_parse("127.0.0.1");
  start(&(struct c10d_server_config){.silent_ms = 100});
  pair_tcp(AF_INET, "127.0.0.1", fds[0]);
  pair_tcp(AF_INET, "127.0.0.1", fds[1]);
  assert_false(c10d_server_adopt_silent(server, fds[1][0], &peer, 1));
  ask_in(C10D_1_13, &q, (struct c10d_request){.op = C10D_SET, .key = text("k"), .value = text("v")});
  assert_int_equal(c10d_server_adopt(server, fds[0][0], &peer, 1, q.data, q.len, &e), 0);
  spin();
  assert_true(c10d_server_adopt_silent(server, fds[1][0], &peer, 1));
  wait_ms(200);
  assert_int_equal(c10d_server_connections(server), 2);
  close(fds[0][1]);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  assert_true(got(fds[1][1], "", 0));
  close(fds[1][1]);
}
