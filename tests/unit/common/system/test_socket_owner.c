/* SPDX-License-Identifier: Apache-2.0 */
/* socket_owner: whose connection it is, with real sockets of two users over loopback, by netlink and by the tables. */

#include "common/system/socket_owner.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "common/net/socket.h"
#include "tests/rig/unit.h"

enum { EVE = 60101 };

static struct socket_owners by_netlink, by_table = {.netlink = -1, .asked = true};

struct pair {
  int listener, accepted;
  pid_t client; /* holds the other end; 0: `fd` does */
  int fd;
  struct socket_end from, to;
};

static union socket_address loopback(int family, bool mapped, uint16_t port) {
  union socket_address a = {.room = {0}};
  if (family == AF_INET)
    a.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  else
    a.v6 = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  if (mapped) inet_pton(AF_INET6, "::ffff:127.0.0.1", &a.v6.sin6_addr);
  return a;
}

static int dial(const union socket_address *to) {
  int fd = socket(to->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t len = to->any.sa_family == AF_INET ? sizeof to->v4 : sizeof to->v6;
  return fd >= 0 && connect(fd, &to->any, len) == 0 ? fd : -1;
}

/* False: this machine has no such family. uid 0: this process connects. */
static bool open_pair(struct pair *p, int family, bool mapped, uid_t uid) {
  union socket_address at = loopback(family, false, 0);
  struct ipaddr addr;
  uint16_t port;
  *p = (struct pair){.listener = socket_bind(&at, SOCKET_LISTEN), .fd = -1};
  if (p->listener < 0) return false;
  socket_local(p->listener, &addr, &port);
  union socket_address to = loopback(mapped ? AF_INET6 : family, mapped, port);
  if (uid) {
    p->client = fork();
    if (p->client == 0) {
      if (setgid(uid) || setuid(uid) || dial(&to) < 0) _exit(1);
      for (;;) pause();
    }
  } else {
    p->fd = dial(&to);
    assert_true(p->fd >= 0);
  }
  while ((p->accepted = accept(p->listener, NULL, NULL)) < 0) usleep(1000);
  socket_peer(p->accepted, &p->from.addr, &p->from.port);
  socket_local(p->accepted, &p->to.addr, &p->to.port);
  return true;
}

static void end_client(struct pair *p) {
  if (p->client) {
    kill(p->client, SIGKILL);
    waitpid(p->client, NULL, 0);
  }
  if (p->fd >= 0) close(p->fd);
  p->client = 0;
  p->fd = -1;
}

static void close_pair(struct pair *p) {
  end_client(p);
  close(p->accepted);
  close(p->listener);
}

static void expect(struct pair *p, enum socket_owner_answer answer, int64_t uid) {
  struct socket_owners *both[] = {&by_netlink, &by_table};
  for (size_t i = 0; i < 2; i++) {
    struct socket_owner found = {.uid = -1};
    assert_int_equal(socket_owner_find(both[i], &p->from, &p->to, &found), answer);
    assert_int_equal(found.uid, uid);
  }
}

UNIT_TEST(test_own) {
  static const struct {
    int family;
    bool mapped;
  } kinds[] = {{AF_INET, false}, {AF_INET6, false}, {AF_INET, true}};
  struct pair p;
  for (size_t i = 0; i < 3; i++) {
    if (!open_pair(&p, kinds[i].family, kinds[i].mapped, 0)) continue;
    expect(&p, SOCKET_OWNER_FOUND, getuid());
    close_pair(&p);
  }
}

UNIT_TEST(test_of_another_user) {
  struct pair p;
  struct socket_owner found;
  struct port_holder h;
  if (getuid() != 0) skip(); /* becoming another user needs root */
  for (int i = 0; i < 3; i++) {
    if (!open_pair(&p, i == 1 ? AF_INET6 : AF_INET, i == 2, EVE)) continue;
    expect(&p, SOCKET_OWNER_FOUND, EVE);
    assert_int_equal(socket_owner_find(&by_netlink, &p.from, &p.to, &found), SOCKET_OWNER_FOUND);
    assert_true(socket_owner_process(&found, &h));
    assert_int_equal(h.pid, p.client);
    assert_non_null(strstr(h.name, "test_common"));
    found.uid++; /* processes of that user alone are looked at */
    assert_false(socket_owner_process(&found, &h));
    close_pair(&p);
  }
}

/* The kernel says uid 0 of what no process holds any more. */
UNIT_TEST(test_who_is_gone) {
  struct pair p;
  assert_true(open_pair(&p, AF_INET, false, 0));
  end_client(&p);
  expect(&p, SOCKET_OWNER_GONE, -1);
  close_pair(&p);
}

UNIT_TEST(test_half_closed) {
  struct pair p;
  assert_true(open_pair(&p, AF_INET, false, 0));
  shutdown(p.fd, SHUT_WR);
  expect(&p, SOCKET_OWNER_FOUND, getuid());
  close_pair(&p);
}

/* A listening socket on the port of a connection that is gone must not speak for it. */
UNIT_TEST(test_a_listener_is_not_a_connection) {
  struct pair p;
  assert_true(open_pair(&p, AF_INET, false, 0));
  struct pair other = p;
  other.from = p.to;
  other.to = (struct socket_end){.addr = p.to.addr, .port = 1};
  expect(&other, SOCKET_OWNER_GONE, -1);
  close_pair(&p);
}

/* accept() has not come yet: no process holds that end. */
UNIT_TEST(test_nobody_has_accepted) {
  struct pair p, end;
  assert_true(open_pair(&p, AF_INET, false, 0));
  union socket_address to = loopback(AF_INET, false, p.to.port);
  int fd = dial(&to);
  socket_local(fd, &end.to.addr, &end.to.port);
  end.from = p.to;
  expect(&end, SOCKET_OWNER_GONE, -1);
  close(fd);
  close_pair(&p);
}

/* Its listener's queue is full: it has the numbers of a connection, and nobody can have accepted it. */
UNIT_TEST(test_who_dials) {
  union socket_address at = loopback(AF_INET, false, 0);
  struct pair p = {.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  struct tcp_info info = {0};
  socklen_t len = sizeof info;
  int fds[4];
  assert_int_equal(bind(p.listener, &at.any, sizeof at.v4), 0);
  assert_int_equal(listen(p.listener, 0), 0);
  socket_local(p.listener, &p.to.addr, &p.to.port);
  at = loopback(AF_INET, false, p.to.port);
  for (size_t i = 0; i < 4; i++) {
    fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)connect(fds[i], &at.any, sizeof at.v4);
  }
  assert_int_equal(getsockopt(fds[3], IPPROTO_TCP, TCP_INFO, &info, &len), 0);
  assert_int_equal(info.tcpi_state, TCP_SYN_SENT);
  socket_local(fds[3], &p.from.addr, &p.from.port);
  expect(&p, SOCKET_OWNER_GONE, -1);
  for (size_t i = 0; i < 4; i++) close(fds[i]);
  close(p.listener);
}

/* Somebody who takes all of this process's descriptors must not blind it. */
UNIT_TEST(test_no_descriptors) {
  struct pair p;
  struct rlimit old, none;
  assert_true(open_pair(&p, AF_INET, false, 0));
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
  none = (struct rlimit){.rlim_cur = 0, .rlim_max = old.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  struct socket_owner found;
  enum socket_owner_answer answer = socket_owner_find(&by_table, &p.from, &p.to, &found);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
  assert_int_equal(answer, SOCKET_OWNER_GONE);
  close_pair(&p);
}

static int open_all(void **state) {
  struct pair p;
  struct socket_owner found;
  socket_owners_init(&by_netlink);
  if (open_pair(&p, AF_INET, false, 0)) {
    socket_owner_find(&by_netlink, &p.from, &p.to, &found); /* the first question opens it */
    close_pair(&p);
  }
  if (by_netlink.netlink < 0) print_message("the kernel has no sock_diag here: the tables are tested twice\n");
  return 0;
}

static int close_all(void **state) {
  socket_owners_close(&by_netlink);
  return 0;
}

int main(void) {
  return unit_run(open_all, close_all);
}
