/* SPDX-License-Identifier: Apache-2.0 */
/* c10d_server: the store behind sockets. What clients ask is answered in its order, however it was cut; waiters are
 * released; connections end for a reason; sessions and quotas are the store's own. Large values and many of them are
 * test_c10d_server_room's, listening and silence test_c10d_server_listen's. */

#include "tests/rig/c10d_server.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

SERVER_TEST(test_split_at_every_byte) {
  SCOPED(buf_finish) struct buf q = BUF_INIT, a = BUF_INIT;
  buf_append(&q, hello, sizeof(hello));
  ask(&q, (struct c10d_request){.op = C10D_PING, .number = 0x1234});
  ask_set(&q, "k", text("value"));
  ask_get(&q, "k");
  ask_add(&q, "n", -7);
  char nonce[4];
  le32_put(nonce, 0x1234);
  buf_append(&a, nonce, 4);
  put_string(&a, text("value"));
  put_number(&a, -7);
  for (size_t at = 1; at < q.len; at++) {
    start(&(struct c10d_server_config){0});
    int fd = connect_unix(q.data, at);
    spin();
    put(fd, q.data + at, q.len - at);
    spin();
    assert_false(got(fd, a.data, a.len));
    drop(fd);
    stop();
  }
  start(&(struct c10d_server_config){0});
  int fd = connect_unix(NULL, 0);
  for (size_t at = 0; at < q.len; at++) {
    put(fd, q.data + at, 1);
    spin();
  }
  assert_false(got(fd, a.data, a.len));
  assert_int_equal(c10d_server_connections(server), 1);
  drop(fd);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  assert_string_equal(buf_text(&lines), "");
}

SERVER_TEST(test_pipelined) {
  start(&(struct c10d_server_config){0});
  int fd = connect_new();
  struct buf q = BUF_INIT, a = BUF_INIT;
  for (int i = 1; i <= 1000; i++) {
    ask_add(&q, "n", 1);
    put_number(&a, i);
  }
  put_buf(fd, &q);
  spin();
  assert_false(got_buf(fd, &a));
}

/* Waiters are answered in the order in which they asked, in the turn of the request that releases them. */
SERVER_TEST(test_release) {
  enum { N = 50 };
  start(&(struct c10d_server_config){0});
  int fd[N], setter = connect_new();
  struct buf q = BUF_INIT;
  for (int i = 0; i < N; i++) {
    fd[i] = connect_new();
    ask_wait(&q, "k");
    put_buf(fd[i], &q);
    spin();
    assert_false(got(fd[i], "", 0));
  }
  ask_set(&q, "k", text("v"));
  ask_get(&q, "k");
  put_buf(setter, &q);
  uv_run(&loop, UV_RUN_NOWAIT);
  struct buf a = BUF_INIT;
  put_string(&a, text("v"));
  assert_false(got_buf(setter, &a));
  for (int i = 0; i < N; i++) assert_false(got(fd[i], "", 1));
}

/* Who gives up after its release finds the release in front of the answer to its giving up. */
SERVER_TEST(test_cancel_after_release) {
  start(&(struct c10d_server_config){0});
  int waiter = connect_new(), setter = connect_new();
  struct buf q = BUF_INIT;
  ask_wait(&q, "k");
  put_buf(waiter, &q);
  spin();
  ask_set(&q, "k", text("v"));
  put_buf(setter, &q);
  ask(&q, (struct c10d_request){.op = C10D_CANCEL_WAIT});
  put_buf(waiter, &q);
  spin();
  SCOPED(buf_finish) struct buf in = BUF_INIT;
  get(waiter, &in);
  if (in.len == 2)
    assert_memory_equal(in.data, "\0\1", 2);
  else
    assert_memory_equal(in.data, "\1", in.len);
}

SERVER_TEST(test_malformed) {
  start(&(struct c10d_server_config){0});
  int fd = connect_new();
  struct buf q = BUF_INIT, a = BUF_INIT;
  ask_add(&q, "n", 1);
  buf_putc(&q, 99);
  put_buf(fd, &q);
  spin();
  put_number(&a, 1);
  assert_true(got_buf(fd, &a)); /* what was right before is answered, then the end */
  expect_line("store: local socket:0: closed: ");
  assert_int_equal(c10d_server_connections(server), 1);
  drop(fd); /* it has seen the end */
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  fd = connect_unix("GET / HTTP/1.1\r\n\r\n", 18);
  spin();
  assert_true(got(fd, "", 0));
}

SERVER_TEST(test_lingering_has_an_end) {
  start(&(struct c10d_server_config){0});
  int fd = connect_new();
  put(fd, "\x63", 1);
  wait_ms(100);
  assert_int_equal(c10d_server_connections(server), 1);
  wait_ms(C10D_LINGER_MS);
  assert_int_equal(c10d_server_connections(server), 0);
}

/* What was sent before the end is obeyed, even where the end is a reset. */
SERVER_TEST(test_last_words) {
  start(&(struct c10d_server_config){0});
  int fds[2];
  struct err e = ERR_INIT;
  struct buf q = BUF_INIT, a = BUF_INIT;
  pair_tcp(AF_INET, "127.0.0.1", fds);
  assert_int_equal(c10d_server_adopt(server, fds[0], &(struct ipaddr){0}, 0, hello, sizeof(hello), &e), 0);
  ask_set(&q, "k", text("last"));
  put_buf(fds[1], &q);
  struct linger reset = {.l_onoff = 1};
  assert_int_equal(setsockopt(fds[1], SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)), 0);
  close(fds[1]);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  int fd = connect_new();
  ask_get(&q, "k");
  put_buf(fd, &q);
  spin();
  put_string(&a, text("last"));
  assert_false(got_buf(fd, &a));
}

/* Asks for much, closes its sending direction, then reads. */
SERVER_TEST(test_half_closed) {
  enum { SIZE = 3000000 };
  start(&(struct c10d_server_config){0});
  int fd = connect_new();
  SCOPED(unit_free) char *value = xcalloc(1, SIZE);
  SCOPED(buf_finish) struct buf q = BUF_INIT, a = BUF_INIT, in = BUF_INIT;
  struct slice v = {value, SIZE};
  ask_set(&q, "v", v);
  ask_get(&q, "v");
  put_string(&a, v);
  push(fd, q.data, q.len);
  shutdown(fd, SHUT_WR);
  spin();
  exchange(fd, &in, a.len);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
}

SERVER_TEST(test_close_while_busy) {
  enum { SIZE = 4000000 };
  start(&(struct c10d_server_config){0});
  int stalled = connect_new(), waiting = connect_new(), partial = connect_new(), silent = connect_unix(NULL, 0);
  SCOPED(unit_free) char *value = xcalloc(1, SIZE);
  struct buf q = BUF_INIT;
  ask_set(&q, "v", (struct slice){value, SIZE});
  ask_get(&q, "v");
  push(stalled, q.data, q.len);
  put(partial, q.data, 1000);
  buf_clear(&q);
  ask_wait(&q, "never");
  put_buf(waiting, &q);
  spin();
  assert_int_equal(c10d_server_connections(server), 4);
  stop_server();
  assert_true(got(waiting, "", 0));
  assert_true(got(silent, "", 0));
}

/* Sessions: the daemon's keys of a rendezvous go with their deadline, for which the server sets its timer. */
SERVER_TEST(test_session_deadline) {
  start(&(struct c10d_server_config){.store = {.session_prefix = "/s.", .session_ttl_ms = 100}});
  int fd = connect_new();
  connect_new();
  struct buf q = BUF_INIT;
  ask_set(&q, "/s.a", text("v"));
  ask_set(&q, "other", text("v"));
  put_buf(fd, &q);
  spin();
  assert_int_equal(store_count(c10d_server_store(server)), 2);
  drop(fd);
  spin();
  assert_int_equal(store_count(c10d_server_store(server)), 2);
  wait_ms(200);
  assert_int_equal(store_count(c10d_server_store(server)), 1);
  assert_int_equal(uv_backend_timeout(&loop), -1);
}

SERVER_TEST(test_quota_names_itself) {
  start(&(struct c10d_server_config){.store = {.max_keys = 2}});
  int fd = connect_new(), other = connect_new();
  struct buf q = BUF_INIT, a = BUF_INIT;
  ask_set(&q, "a", text("1"));
  ask_set(&q, "b", text("2"));
  ask_get(&q, "a");
  ask_set(&q, "c", text("3"));
  put_buf(fd, &q);
  spin();
  put_string(&a, text("1"));
  assert_true(got_buf(fd, &a));
  expect_line("closed: ");
  ask_get(&q, "b");
  put_buf(other, &q);
  spin();
  put_string(&a, text("2"));
  assert_false(got_buf(other, &a));
}
