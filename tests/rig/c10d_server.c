/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of the c10d server: a server with a log that is collected, and clients, which are plain
 * descriptors that send what c10d_encode wrote and compare the answer byte by byte. The loop, the sockets and their
 * reading and writing are rig/conn's: nothing runs but what a test turns by hand. */

#include "tests/rig/c10d_server.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>
#include "common/system/log.h"
#include "tests/rig/unit.h"

enum { CLIENTS_MAX = 64 };

struct c10d_server *server;
struct buf lines;

static void collect(void *ctx, enum log_level level, const char *line) {
  buf_printf(&lines, "%s\n", line);
}

void start(const struct c10d_server_config *config) {
  struct c10d_server_config c = *config;
  struct err e = ERR_INIT;
  c.name = "store";
  c.store.seed = 7;
  log_init("test", LOG_INFO);
  log_set_sink(collect, NULL);
  if (c10d_server_create(&loop, &c, &server, &e) < 0) fail_msg("%s", e.text);
}

static int clients[CLIENTS_MAX];
static size_t n_clients;

int keep(int fd) {
  assert_true(n_clients < CLIENTS_MAX);
  return clients[n_clients++] = fd;
}

void drop(int fd) {
  for (size_t i = 0; i < n_clients; i++)
    if (clients[i] == fd) clients[i] = clients[--n_clients];
  close(fd);
}

static void on_closed(void *ctx) {
  *(bool *)ctx = true;
}

void stop_server(void) {
  bool closed = false;
  c10d_server_close(server, on_closed, &closed);
  spin();
  assert_true(closed);
  server = NULL;
}

void stop(void) {
  if (server) stop_server();
  while (n_clients) close(clients[--n_clients]);
  buf_finish(&lines);
  log_set_sink(NULL, NULL);
}

int end_server_test(void **state) {
  stop();
  return tear_down(state);
}

void expect_line(const char *part) {
  if (!strstr(buf_text(&lines), part)) fail_msg("\nlog:     %s\nwithout: %s", buf_text(&lines), part);
}

int connect_unix(const char *first, size_t len) {
  int fds[2];
  struct err e = ERR_INIT;
  pair_unix(fds);
  if (c10d_server_adopt(server, fds[0], &(struct ipaddr){0}, 0, first, len, &e) < 0) fail_msg("%s", e.text);
  return keep(fds[1]);
}

const char hello[HELLO_SIZE] = {0x00, (char)0xce, (char)0xf7, (char)0x85, 0x3c};

int connect_new(void) {
  return connect_unix(hello, sizeof(hello));
}

struct slice text(const char *s) {
  return (struct slice){s, strlen(s)};
}

void ask_in(enum c10d_dialect dialect, struct buf *b, struct c10d_request r) {
  size_t n = c10d_encode(dialect, &r, NULL, 0);
  assert_true(n > 0);
  assert_int_equal(c10d_encode(dialect, &r, buf_reserve(b, n), n), n);
  buf_commit(b, n);
}

void ask(struct buf *b, struct c10d_request r) {
  ask_in(C10D_SINCE_2_2, b, r);
}

void ask_set(struct buf *b, const char *key, struct slice value) {
  ask(b, (struct c10d_request){.op = C10D_SET, .key = text(key), .value = value});
}

void ask_get(struct buf *b, const char *key) {
  ask(b, (struct c10d_request){.op = C10D_GET, .key = text(key)});
}

void ask_add(struct buf *b, const char *key, int64_t delta) {
  ask(b, (struct c10d_request){.op = C10D_ADD, .key = text(key), .number = delta});
}

void ask_wait(struct buf *b, const char *key) {
  struct slice k = text(key);
  ask(b, (struct c10d_request){.op = C10D_WAIT, .count = 1, .keys = &k});
}

void push(int fd, const char *data, size_t len) {
  for (size_t at = 0; at < len;) {
    ssize_t n = write(fd, data + at, len - at);
    if (n > 0) at += (size_t)n;
    uv_run(&loop, UV_RUN_NOWAIT);
  }
}

void put_buf(int fd, struct buf *b) {
  put(fd, b->data, b->len);
  buf_finish(b);
}

bool got(int fd, const void *data, size_t len) {
  struct buf b = BUF_INIT;
  bool ended = get(fd, &b);
  if (b.len != len || (len && memcmp(b.data, data, len) != 0)) fail_msg("%zu bytes came, not the %zu", b.len, len);
  buf_finish(&b);
  return ended;
}

void put_string(struct buf *b, struct slice s) {
  char n[8];
  le64_put(n, s.len);
  buf_append(b, n, 8);
  buf_append(b, s.data, s.len);
}

void put_number(struct buf *b, int64_t v) {
  char n[8];
  le64_put(n, (uint64_t)v);
  buf_append(b, n, 8);
}

bool got_buf(int fd, struct buf *b) {
  bool ended = got(fd, b->data, b->len);
  buf_finish(b);
  return ended;
}

void exchange(int fd, struct buf *in, size_t len) {
  for (int i = 0; i < 100000 && in->len < len; i++) {
    uv_run(&loop, UV_RUN_NOWAIT);
    get(fd, in);
  }
  assert_int_equal(in->len, len);
}

void wait_ms(unsigned ms) {
  uint64_t end = uv_hrtime() + ms * 1000000ull;
  while (uv_hrtime() < end) {
    uv_run(&loop, UV_RUN_NOWAIT);
    poll(NULL, 0, 5);
  }
  spin(); /* however few turns a busy machine left */
}
