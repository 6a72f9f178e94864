/* SPDX-License-Identifier: Apache-2.0 */
/* round_store: the sockets that are ready, the store that is served on one of them, and what is left of it afterwards.
 * Over loopback, from this user, who is always let in. Others: tests/e2e/test_store_door.py. */

#include "agent/store/round_store.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "agent/link/host_addrs.h"
#include "common/net/socket.h"
#include "tests/rig/unit.h"

enum { PATIENCE_MS = 20000, PORTS_MAX = 16 };

static struct {
  uv_loop_t loop;
  uv_timer_t alive; /* for what does not keep a loop alive by itself */
  struct round_store *r;
  uint16_t told[PORTS_MAX];
  size_t n_told;
} f;

static void on_port(void *ctx, uint16_t port) {
  assert_true(f.n_told < PORTS_MAX);
  f.told[f.n_told++] = port;
}

static void on_send(void *ctx, const struct msg *m) {
  fail_msg("nobody else is to be asked about a connection of this machine");
}

static void on_alive(uv_timer_t *timer) {}

/* Another one in place of that which is there. */
static int reopen(struct round_store_options o, struct err *e) {
  round_store_destroy(f.r);
  f.r = NULL;
  o.loop = &f.loop;
  o.on_port = on_port;
  o.send = on_send;
  return round_store_create(&o, &f.r, e);
}

static void open_place(enum store_place place, uint16_t port) {
  struct err e = ERR_INIT;
  assert_int_equal(reopen((struct round_store_options){.place = place, .port = port}, &e), 0);
}

static int set_up(void **state) {
  memset(&f, 0, sizeof f);
  uv_loop_init(&f.loop);
  uv_timer_init(&f.loop, &f.alive);
  uv_timer_start(&f.alive, on_alive, PATIENCE_MS, PATIENCE_MS);
  open_place(STORE_AGENT, 0);
  return 0;
}

static int tear_down(void **state) {
  round_store_destroy(f.r);
  uv_close((uv_handle_t *)&f.alive, NULL);
  uv_run(&f.loop, UV_RUN_DEFAULT);
  return uv_loop_close(&f.loop);
}

static int begin_at(int64_t round, const char *addr, uint16_t port, struct err *e) {
  struct start s = {.incarnation = "0",
                    .round = round,
                    .nodes = 1,
                    .world_size = 2,
                    .store_port = port,
                    .head_addr = addr,
                    .head_host = "n0",
                    .node_addr = addr};
  access_check_know(round_store_access(f.r), &s);
  return round_store_open(f.r, &s, NULL, e);
}

static int begin(int64_t round, uint16_t port, struct err *e) {
  return begin_at(round, "127.0.0.1", port, e);
}

static void begin_well(int64_t round, uint16_t port) {
  struct err e = ERR_INIT;
  int rc = begin(round, port, &e);
  if (rc) fail_msg("%s", e.text);
}

/* A client. -------------------------------------------------------------------------------------------------------- */

static int dial_at(const char *addr, uint16_t port) {
  struct ipaddr ip = ipaddr_parse(addr);
  union socket_address a = socket_address_make(&ip, port);
  int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, &a.any, socket_address_size(&a)) == 0) return fd;
  int rc = -errno;
  close(fd);
  return rc;
}

static int dial(uint16_t port) {
  return dial_at("127.0.0.1", port);
}

/* The loop runs until n bytes have come; how many have: less where the other end is closed. */
static size_t hear(int fd, void *to, size_t n) {
  uint64_t until = uv_hrtime() / 1000000 + PATIENCE_MS;
  size_t have = 0;
  while (have < n && uv_hrtime() / 1000000 < until) {
    uv_run(&f.loop, UV_RUN_NOWAIT);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, 1) <= 0) continue;
    ssize_t got = recv(fd, (char *)to + have, n - have, 0);
    if (got <= 0) break;
    have += (size_t)got;
  }
  return have;
}

static void say(int fd, const char *bytes, size_t n) {
  assert_int_equal(send(fd, bytes, n, MSG_NOSIGNAL), n);
}

#define SAY(fd, text) say(fd, text, sizeof(text) - 1)
static const char hello[] = "\x00\xce\xf7\x85\x3c\x0d"
                            "ping";
static const char set_key[] = "\x01\x02\0\0\0\0\0\0\0/k\x02\0\0\0\0\0\0\0v1";

static void greet(int fd) {
  char pong[4];
  say(fd, hello, sizeof hello - 1);
  assert_int_equal(hear(fd, pong, 4), 4);
  assert_memory_equal(pong, "ping", 4);
}

static int64_t count_keys(int fd) {
  int64_t n;
  SAY(fd, "\x07");
  assert_int_equal(hear(fd, &n, sizeof n), sizeof n);
  return n;
}

/* The agent's store. ----------------------------------------------------------------------------------------------- */

static bool address_is(const char *addr) {
  struct ipaddr own[HOST_ADDRS_MAX], a = ipaddr_parse(addr);
  for (size_t i = 0, n = socket_host_addrs(0, own); i < n; i++)
    if (ipaddr_compare(&own[i], &a) == 0) return true;
  return false;
}

UNIT_TEST_WITH(test_a_port_is_ready_before_the_round, set_up, tear_down) {
  uint16_t port = round_store_port(f.r);
  assert_int_not_equal(port, 0);
  int early = dial(port); /* a worker elsewhere that has had START before us */
  assert_true(early >= 0);
  say(early, hello, sizeof hello - 1);
  begin_well(1, port);
  char pong[4];
  assert_int_equal(hear(early, pong, 4), 4);
  assert_int_equal(f.n_told, 1);
  assert_int_equal(f.told[0], round_store_port(f.r));
  assert_int_not_equal(f.told[0], port);
  close(early);
}

static void reach(const char *daemon) {
  struct ipaddr a = ipaddr_parse(daemon);
  round_store_reach(f.r, &a);
}

/* All of 127.0.0.0/8 is this machine's: a socket on one of them is not reached by another. */
UNIT_TEST_WITH(test_it_listens_on_one_address, set_up, tear_down) {
  uint16_t port = round_store_port(f.r);
  reach("127.0.0.1"); /* as before: nothing changes */
  assert_int_equal(f.n_told, 0);
  for (int served = 0; served < 2; served++) {
    if (served) begin_well(1, port);
    int fd = dial_at("127.0.0.1", port);
    assert_true(fd >= 0);
    close(fd);
    assert_int_equal(dial_at("127.0.0.2", port), -ECONNREFUSED);
    if (address_is("::1")) assert_int_equal(dial_at("::1", port), -ECONNREFUSED);
  }
}

/* --local-addr, and then an agent whose daemon is elsewhere. */
UNIT_TEST_WITH(test_the_address_that_was_given, set_up, tear_down) {
  struct err e = ERR_INIT;
  struct round_store_options o = {.place = STORE_AGENT};
  o.addr = "127.0.0.7";
  assert_int_equal(reopen(o, &e), 0);
  reach("127.0.0.1");
  assert_int_equal(f.n_told, 1);
  uint16_t port = round_store_port(f.r);
  assert_int_equal(f.told[0], port);
  assert_int_equal(dial_at("127.0.0.1", port), -ECONNREFUSED);
  assert_int_equal(begin_at(1, "127.0.0.7", port, &e), 0);
  int fd = dial_at("127.0.0.7", port);
  assert_true(fd >= 0);
  greet(fd);
  close(fd);
}

UNIT_TEST_WITH(test_ipv6, set_up, tear_down) {
  struct err e = ERR_INIT;
  if (!address_is("::1")) skip();
  reach("::1");
  uint16_t port = round_store_port(f.r);
  assert_int_equal(f.n_told, 1);
  assert_int_equal(begin_at(1, "::1", port, &e), 0);
  int fd = dial_at("::1", port);
  assert_true(fd >= 0);
  greet(fd);
  assert_int_equal(dial_at("127.0.0.1", port), -ECONNREFUSED);
  close(fd);
}

static int listen_on(const struct ipaddr *addr, uint16_t port) {
  union socket_address a = socket_address_make(addr, port);
  return socket_bind(&a, SOCKET_LISTEN);
}

/* The daemon is on this machine, and START names the address by which other nodes know it. The port was held there. */
UNIT_TEST_WITH(test_the_address_that_start_names, set_up, tear_down) {
  struct ipaddr own[HOST_ADDRS_MAX];
  struct err e = ERR_INIT;
  char addr[INET6_ADDRSTRLEN] = "";
  for (size_t i = 0, n = socket_host_addrs(0, own); i < n && !*addr; i++)
    if (!ipaddr_is_loopback(&own[i]) && !ipaddr_is_linklocal(&own[i])) socket_format(&own[i], addr);
  if (!*addr) skip(); /* this machine has only loopback */
  uint16_t port = round_store_port(f.r);
  assert_int_equal(dial_at(addr, port), -ECONNREFUSED); /* held, not listened on */
  struct ipaddr there = ipaddr_parse(addr);
  assert_int_equal(listen_on(&there, port), -EADDRINUSE);
  assert_int_equal(begin_at(1, addr, port, &e), 0);
  int fd = dial_at(addr, port);
  assert_true(fd >= 0);
  greet(fd);
  assert_int_equal(dial_at("127.0.0.1", port), -ECONNREFUSED);
  close(fd);
}

/* A job of this machine alone holds nothing elsewhere. */
UNIT_TEST_WITH(test_alone, set_up, tear_down) {
  struct ipaddr own[HOST_ADDRS_MAX];
  struct err e = ERR_INIT;
  size_t n = socket_host_addrs(0, own);
  struct round_store_options o = {.place = STORE_AGENT};
  o.alone = true;
  assert_int_equal(reopen(o, &e), 0);
  for (size_t i = 0; i < n; i++) {
    if (ipaddr_is_loopback(&own[i]) || ipaddr_is_linklocal(&own[i])) continue;
    int fd = listen_on(&own[i], round_store_port(f.r));
    assert_true(fd >= 0);
    close(fd);
  }
}

/* Memory. ---------------------------------------------------------------------------------------------------------- */

UNIT_TEST_WITH(test_its_memory_is_limited, set_up, tear_down) {
  struct err e = ERR_INIT;
  struct round_store_options o = {.place = STORE_AGENT};
  o.max_bytes = 64 * 1024;
  assert_int_equal(reopen(o, &e), 0);
  uint16_t port = round_store_port(f.r);
  begin_well(1, port);
  int fd = dial(port);
  greet(fd);
  static char value[60 * 1024];
  for (char key = 'a'; key <= 'b'; key++) {
    char head[] = "\x01\x02\0\0\0\0\0\0\0/k";
    uint64_t size = sizeof value;
    head[10] = key;
    say(fd, head, sizeof head - 1);
    say(fd, (char *)&size, sizeof size);
    say(fd, value, sizeof value);
  }
  char c;
  assert_int_equal(hear(fd, &c, 1), 0); /* the second one is refused */
  close(fd);
  fd = dial(port);
  greet(fd);
  assert_int_equal(count_keys(fd), 1);
  close(fd);
}

UNIT_TEST_WITH(test_each_round_has_an_empty_store_and_its_own_port, set_up, tear_down) {
  uint16_t before = 0;
  for (int64_t round = 1; round <= 3; round++) {
    uint16_t port = round_store_port(f.r);
    assert_int_not_equal(port, before);
    begin_well(round, port);
    int fd = dial(port);
    assert_true(fd >= 0);
    greet(fd);
    assert_int_equal(count_keys(fd), 0);
    say(fd, set_key, sizeof set_key - 1);
    assert_int_equal(count_keys(fd), 1);
    round_store_close(f.r);
    char c;
    assert_int_equal(hear(fd, &c, 1), 0);
    assert_int_equal(dial(port), -ECONNREFUSED);
    close(fd);
    before = port;
  }
  round_store_close(f.r); /* nothing is served: nothing happens */
}

UNIT_TEST_WITH(test_shut_keeps_who_is_connected, set_up, tear_down) {
  uint16_t port = round_store_port(f.r);
  round_store_shut(f.r); /* nothing is served: nothing happens */
  begin_well(1, port);
  int fd = dial(port), late = dial(port);
  greet(fd);
  round_store_shut(f.r);
  assert_int_equal(dial(port), -ECONNREFUSED);
  say(fd, set_key, sizeof set_key - 1);
  assert_int_equal(count_keys(fd), 1);
  round_store_shut(f.r);
  round_store_close(f.r);
  char c;
  assert_int_equal(hear(fd, &c, 1), 0);
  close(fd);
  close(late);
}

UNIT_TEST_WITH(test_a_start_for_another_port, set_up, tear_down) {
  struct err e = ERR_INIT;
  uint16_t port = round_store_port(f.r);
  assert_int_equal(begin(1, (uint16_t)(port ^ 1), &e), -ESTALE);
  char want[64];
  snprintf(want, sizeof want, "port %u is ready on this node", (unsigned)port);
  assert_non_null(strstr(e.text, want));
  assert_int_equal(round_store_port(f.r), port);
  begin_well(2, port);
}

UNIT_TEST_WITH(test_destroying_closes_all, set_up, tear_down) {
  uint16_t port = round_store_port(f.r);
  begin_well(1, port);
  uint16_t next = round_store_port(f.r);
  int fd = dial(port);
  greet(fd);
  tear_down(state);
  char c;
  assert_int_equal(recv(fd, &c, 1, 0), 0);
  assert_int_equal(dial(port), -ECONNREFUSED);
  assert_int_equal(dial(next), -ECONNREFUSED);
  close(fd);
  set_up(state);
}

/* One port for all rounds. ----------------------------------------------------------------------------------------- */

static int bind_port(uint16_t port, uint16_t *got) {
  struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = IN6ADDR_ANY_INIT};
  struct sockaddr_in b = {.sin_family = AF_INET, .sin_port = htons(port)};
  socklen_t len = sizeof a;
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int rc = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&a, sizeof a);
  if (fd < 0) {
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    rc = bind(fd, (struct sockaddr *)&b, sizeof b);
  }
  int code = errno;
  if (rc == 0 && listen(fd, 1) == 0) {
    getsockname(fd, (struct sockaddr *)&a, &len);
    if (got) *got = ntohs(a.sin6_port);
    return fd;
  }
  close(fd);
  return -code;
}

UNIT_TEST_WITH(test_a_given_port_in_every_round, set_up, tear_down) {
  uint16_t port;
  int holder = bind_port(0, &port);
  assert_true(holder >= 0);
  open_place(STORE_AGENT, port); /* nothing is opened before START */
  assert_int_equal(round_store_port(f.r), port);
  struct err e = ERR_INIT;
  assert_int_equal(begin(1, port, &e), -EADDRINUSE);
  assert_non_null(strstr(e.text, "--store-port"));
  close(holder);
  for (int64_t round = 2; round <= 4; round++) {
    begin_well(round, port);
    int fd = dial(port);
    greet(fd);
    assert_int_equal(count_keys(fd), 0);
    say(fd, set_key, sizeof set_key - 1);
    round_store_close(f.r); /* our end closes first: the port lingers in TIME_WAIT */
    close(fd);
  }
  assert_int_equal(f.n_told, 0);
}

/* The worker's own store. ------------------------------------------------------------------------------------------ */

UNIT_TEST_WITH(test_a_worker_finds_its_port_free, set_up, tear_down) {
  open_place(STORE_WORKER, 0);
  for (int64_t round = 1; round <= 3; round++) {
    uint16_t port = round_store_port(f.r);
    assert_int_equal(bind_port(port, NULL), -EADDRINUSE); /* held for it */
    assert_int_equal(dial(port), -ECONNREFUSED);          /* and nobody listens */
    begin_well(round, port);
    int fd = bind_port(port, NULL);
    assert_true(fd >= 0);
    assert_int_not_equal(round_store_port(f.r), port);
    round_store_close(f.r);
    close(fd);
  }
  assert_int_equal(f.n_told, 3);
}

UNIT_TEST_WITH(test_a_workers_given_port_is_left_alone, set_up, tear_down) {
  uint16_t port;
  int holder = bind_port(0, &port); /* whoever it is: the worker's business */
  open_place(STORE_WORKER, port);
  begin_well(1, port);
  round_store_close(f.r);
  begin_well(2, port);
  assert_int_equal(round_store_port(f.r), port);
  close(holder);
}

/* No descriptor. --------------------------------------------------------------------------------------------------- */

static void allow_descriptors(rlim_t n) {
  struct rlimit l;
  getrlimit(RLIMIT_NOFILE, &l);
  l.rlim_cur = n < l.rlim_max ? n : l.rlim_max;
  setrlimit(RLIMIT_NOFILE, &l);
}

UNIT_TEST_WITH(test_without_a_descriptor_there_is_none_and_later_one, set_up, tear_down) {
  struct rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  open_place(STORE_WORKER, 0);
  uint16_t port = round_store_port(f.r);
  allow_descriptors(3);
  begin_well(1, port);
  assert_int_equal(f.n_told, 1);
  assert_int_equal(f.told[0], 0);
  assert_int_equal(round_store_port(f.r), 0);
  allow_descriptors(before.rlim_cur);
  uint64_t until = uv_hrtime() / 1000000 + PATIENCE_MS;
  while (f.n_told < 2 && uv_hrtime() / 1000000 < until) {
    uv_run(&f.loop, UV_RUN_NOWAIT);
    poll(NULL, 0, 10);
  }
  assert_int_equal(f.n_told, 2);
  assert_int_not_equal(f.told[1], 0);
  assert_int_equal(f.told[1], round_store_port(f.r));
}

UNIT_TEST_WITH(test_without_a_descriptor_at_all, set_up, tear_down) {
  struct err e = ERR_INIT;
  struct rlimit before;
  getrlimit(RLIMIT_NOFILE, &before);
  allow_descriptors(3);
  int rc = reopen((struct round_store_options){.place = STORE_AGENT}, &e);
  allow_descriptors(before.rlim_cur);
  assert_int_equal(rc, -EMFILE);
  assert_non_null(strstr(e.text, "no socket for the round's store"));
}
