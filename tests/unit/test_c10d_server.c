/* c10d_server: the store behind sockets. The clients are plain descriptors driven by the test, the loop is turned by hand; what the
 * server says in its log is collected. */

#include "proto/c10d_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/log.h"
#include "common/mem.h"
#include "proto/c10d.h"
#include "tests/unit/conn_help.h"
#include "tests/unit/unit.h"

static struct c10d_server *server;
static struct buf lines;

static void collect(void *ctx, enum log_level level, const char *line) {
  buf_printf(&lines, "%s\n", line);
}

static void start(const struct c10d_server_config *config) {
  struct c10d_server_config c = *config;
  struct err e = ERR_INIT;
  c.name = "store";
  c.store.seed = 7;
  log_init("test", LOG_INFO);
  log_set_sink(collect, NULL);
  if (c10d_server_create(&loop, &c, &server, &e) < 0) fail_msg("%s", e.text);
}

static void on_closed(void *ctx) {
  *(bool *)ctx = true;
}

static void stop(void) {
  bool closed = false;
  c10d_server_close(server, on_closed, &closed);
  spin();
  assert_true(closed);
  buf_finish(&lines);
  log_set_sink(NULL, NULL);
}

static void expect_line(const char *part) {
  if (!strstr(buf_text(&lines), part)) fail_msg("\nlog:     %s\nwithout: %s", buf_text(&lines), part);
}

/* Clients. ---------------------------------------------------------------------------------------------------------- */

static int connect_unix(const char *first, size_t len) {
  int fds[2];
  struct err e = ERR_INIT;
  pair_unix(fds);
  if (c10d_server_adopt(server, fds[0], first, len, &e) < 0) fail_msg("%s", e.text);
  return fds[1];
}

static const char hello[] = {0x00, (char)0xce, (char)0xf7, (char)0x85, 0x3c};

static int connect_new(void) {
  return connect_unix(hello, sizeof(hello));
}

static struct slice text(const char *s) {
  return (struct slice){s, strlen(s)};
}

static void ask_in(enum c10d_dialect dialect, struct buf *b, struct c10d_request r) {
  size_t n = c10d_encode(dialect, &r, NULL, 0);
  assert_true(n > 0);
  assert_int_equal(c10d_encode(dialect, &r, buf_reserve(b, n), n), n);
  buf_commit(b, n);
}

static void ask(struct buf *b, struct c10d_request r) {
  ask_in(C10D_SINCE_2_2, b, r);
}

static void ask_set(struct buf *b, const char *key, struct slice value) {
  ask(b, (struct c10d_request){.op = C10D_SET, .key = text(key), .value = value});
}

static void ask_get(struct buf *b, const char *key) {
  ask(b, (struct c10d_request){.op = C10D_GET, .key = text(key)});
}

static void ask_add(struct buf *b, const char *key, int64_t delta) {
  ask(b, (struct c10d_request){.op = C10D_ADD, .key = text(key), .number = delta});
}

static void ask_wait(struct buf *b, const char *key) {
  struct slice k = text(key);
  ask(b, (struct c10d_request){.op = C10D_WAIT, .count = 1, .keys = &k});
}

static void put_buf(int fd, struct buf *b) {
  put(fd, b->data, b->len);
  buf_finish(b);
}

/* What has come is exactly data; true: and then the end. */
static bool got(int fd, const void *data, size_t len) {
  struct buf b = BUF_INIT;
  bool ended = get(fd, &b);
  if (b.len != len || (len && memcmp(b.data, data, len) != 0))
    fail_msg("%zu bytes came, not the %zu", b.len, len);
  buf_finish(&b);
  return ended;
}

static void put_string(struct buf *b, struct slice s) {
  char n[8];
  le64_put(n, s.len);
  buf_append(b, n, 8);
  buf_append(b, s.data, s.len);
}

static void put_number(struct buf *b, int64_t v) {
  char n[8];
  le64_put(n, (uint64_t)v);
  buf_append(b, n, 8);
}

static bool got_buf(int fd, struct buf *b) {
  bool ended = got(fd, b->data, b->len);
  buf_finish(b);
  return ended;
}

/* Turns the loop until the client has read `len` bytes or `end` of the stream. */
static void exchange(int fd, struct buf *in, size_t len) {
  for (int i = 0; i < 100000 && in->len < len; i++) {
    uv_run(&loop, UV_RUN_NOWAIT);
    get(fd, in);
  }
  assert_int_equal(in->len, len);
}

static void wait_ms(unsigned ms) {
  uint64_t end = uv_hrtime() + ms * 1000000ull;
  while (uv_hrtime() < end) {
    uv_run(&loop, UV_RUN_NOWAIT);
    poll(NULL, 0, 5);
  }
}

/* ------------------------------------------------------------------------------------------------------------------- */

static void test_split_at_every_byte(void **state) {
  struct buf q = BUF_INIT, a = BUF_INIT;
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
    close(fd);
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
  close(fd);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  assert_string_equal(buf_text(&lines), "");
  stop();
  buf_finish(&q);
  buf_finish(&a);
}

static void test_pipelined(void **state) {
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
  close(fd);
  stop();
}

/* A value of the greatest size, many times: through sockets that hold far less. */
static void test_large_values(void **state) {
  start(&(struct c10d_server_config){0});
  int fd = connect_new();
  char *value = xmalloc(C10D_VALUE_MAX);
  for (size_t i = 0; i < C10D_VALUE_MAX; i++) value[i] = (char)(i * 2654435761u >> 13);
  struct buf q = BUF_INIT, a = BUF_INIT, in = BUF_INIT;
  ask_set(&q, "big", (struct slice){value, C10D_VALUE_MAX});
  for (int i = 0; i < 3; i++) {
    ask_get(&q, "big");
    put_string(&a, (struct slice){value, C10D_VALUE_MAX});
  }
  for (size_t at = 0; at < q.len;) {
    ssize_t n = write(fd, q.data + at, q.len - at);
    if (n > 0) at += (size_t)n;
    uv_run(&loop, UV_RUN_NOWAIT);
  }
  exchange(fd, &in, a.len);
  assert_memory_equal(in.data, a.data, a.len);
  buf_finish(&q);
  buf_finish(&a);
  buf_finish(&in);
  free(value);
  close(fd);
  stop();
}

/* It asks for much and reads nothing: no more requests are taken; when it reads at last, everything comes, in order. */
static void test_slow_reader(void **state) {
  enum { SIZE = 100000, N = 400 };
  start(&(struct c10d_server_config){0});
  int fd = connect_new(), other = connect_new();
  char *value = xcalloc(1, SIZE);
  struct buf q = BUF_INIT, a = BUF_INIT, in = BUF_INIT;
  ask_set(&q, "v", (struct slice){value, SIZE});
  for (int i = 0; i < N; i++) {
    ask_get(&q, "v");
    ask_add(&q, "n", 1);
    put_string(&a, (struct slice){value, SIZE});
    put_number(&a, i + 1);
  }
  for (size_t at = 0; at < q.len;) {
    ssize_t n = write(fd, q.data + at, q.len - at);
    if (n > 0) at += (size_t)n;
    uv_run(&loop, UV_RUN_NOWAIT);
  }
  spin();
  ask_add(&q, "n", 0);
  buf_clear(&q);
  ask_add(&q, "n", 0);
  put_buf(other, &q); /* others are served, and see how far it came */
  spin();
  struct buf n = BUF_INIT;
  get(other, &n);
  assert_int_equal(n.len, 8);
  assert_true(le64_get(n.data) < N / 2);
  assert_int_equal(uv_backend_timeout(&loop) < 0, 0); /* it has a deadline */
  exchange(fd, &in, a.len);
  assert_memory_equal(in.data, a.data, a.len);
  wait_ms(1);
  buf_finish(&n);
  buf_finish(&a);
  buf_finish(&in);
  free(value);
  close(fd);
  close(other);
  stop();
}

static void test_who_takes_nothing_is_dropped(void **state) {
  enum { SIZE = 4000000 };
  start(&(struct c10d_server_config){.stall_ms = 100});
  int fd = connect_new();
  char *value = xcalloc(1, SIZE);
  struct buf q = BUF_INIT;
  ask_set(&q, "v", (struct slice){value, SIZE});
  ask_get(&q, "v");
  for (size_t at = 0; at < q.len;) {
    ssize_t n = write(fd, q.data + at, q.len - at);
    if (n > 0) at += (size_t)n;
    uv_run(&loop, UV_RUN_NOWAIT);
  }
  assert_int_equal(c10d_server_connections(server), 1);
  wait_ms(250);
  assert_int_equal(c10d_server_connections(server), 0);
  expect_line("store: local socket:0: closed: it does not read");
  free(value);
  buf_finish(&q);
  close(fd);
  stop();
}

static void test_buffers_are_bounded_together(void **state) {
  enum { N = 20, SIZE = 60000 };
  start(&(struct c10d_server_config){.max_buffered = 1 << 20});
  int fd[N];
  char *part = xcalloc(1, SIZE);
  struct buf q = BUF_INIT;
  ask_set(&q, "v", (struct slice){part, SIZE});
  for (int i = 0; i < N; i++) {
    fd[i] = connect_new();
    put(fd[i], q.data, q.len - 1);
    spin();
  }
  expect_line("exceed 1 MiB");
  assert_in_range(c10d_server_connections(server), 1, N);
  for (int i = 0; i < N; i++) close(fd[i]);
  wait_ms(10);
  assert_int_equal(c10d_server_connections(server), 0);
  free(part);
  buf_finish(&q);
  stop();
}

/* Each of them has sent half of something large: they become whole, some after the others. */
static void test_large_requests_wait_for_room(void **state) {
  enum { N = 12, SIZE = 4 << 20 };
  start(&(struct c10d_server_config){.max_buffered = 32 << 20});
  char *value = xcalloc(1, SIZE);
  struct buf q = BUF_INIT;
  int fd[N], whole = 0;
  size_t at[N] = {0};
  ask_set(&q, "v", (struct slice){value, SIZE});
  ask(&q, (struct c10d_request){.op = C10D_PING, .number = 1});
  for (int i = 0; i < N; i++) fd[i] = connect_new();
  for (int turns = 0; turns < 100000 && whole < N; turns++)
    for (int i = 0; i < N; i++) {
      ssize_t n = at[i] < q.len ? write(fd[i], q.data + at[i], q.len - at[i]) : 0;
      if (n > 0) at[i] += (size_t)n;
      uv_run(&loop, UV_RUN_NOWAIT);
      struct buf in = BUF_INIT;
      assert_false(get(fd[i], &in));
      whole += in.len == 4;
      buf_finish(&in);
    }
  assert_int_equal(whole, N);
  assert_string_equal(buf_text(&lines), "");
  for (int i = 0; i < N; i++) close(fd[i]);
  wait_ms(10);
  assert_int_equal(c10d_server_connections(server), 0);
  free(value);
  buf_finish(&q);
  stop();
}

/* Who was granted room and says no more loses it to who wants it, and only then. */
static void test_who_keeps_room_is_dropped(void **state) {
  enum { SIZE = 4 << 20 };
  start(&(struct c10d_server_config){.max_buffered = 16 << 20, .stall_ms = 100});
  char *value = xcalloc(1, SIZE);
  struct buf q = BUF_INIT, in = BUF_INIT;
  ask_set(&q, "v", (struct slice){value, SIZE});
  ask(&q, (struct c10d_request){.op = C10D_PING, .number = 1});
  int idle = connect_new(), busy = connect_new();
  put(idle, q.data, 1000);
  wait_ms(250);
  assert_string_equal(buf_text(&lines), "");
  for (size_t at = 0; at < q.len;) {
    ssize_t n = write(busy, q.data + at, q.len - at);
    if (n > 0) at += (size_t)n;
    uv_run(&loop, UV_RUN_NOWAIT);
  }
  exchange(busy, &in, 4);
  expect_line("closed: nothing more came of a request of");
  assert_int_equal(c10d_server_connections(server), 1);
  close(idle);
  close(busy);
  free(value);
  buf_finish(&q);
  buf_finish(&in);
  stop();
}

/* Many ask for something large and read late. They get it one after the other, nobody is dropped, and small things are answered meanwhile. */
static void test_large_replies_wait_for_room(void **state) {
  enum { N = 20, SIZE = 4 << 20 };
  start(&(struct c10d_server_config){.max_buffered = 24 << 20});
  char *value = xcalloc(1, SIZE);
  struct buf q = BUF_INIT, a = BUF_INIT;
  int fd[N], other = connect_new();
  ask_set(&q, "v", (struct slice){value, SIZE});
  for (size_t at = 0; at < q.len;) {
    ssize_t n = write(other, q.data + at, q.len - at);
    if (n > 0) at += (size_t)n;
    uv_run(&loop, UV_RUN_NOWAIT);
  }
  for (int i = 0; i < N; i++) {
    fd[i] = connect_new();
    buf_clear(&q);
    ask_get(&q, "v");
    ask_add(&q, "n", 1);
    put(fd[i], q.data, q.len);
  }
  spin();
  buf_clear(&q);
  ask_add(&q, "n", 100);
  put(other, q.data, q.len);
  spin();
  buf_clear(&a);
  get(other, &a);
  assert_int_equal(a.len, 8);
  assert_in_range(le64_get(a.data), 100, 100 + N / 2); /* most are not served yet */
  struct buf in[N] = {0};
  size_t whole = 0;
  for (int turns = 0; turns < 100000 && whole < N; turns++) {
    uv_run(&loop, UV_RUN_NOWAIT);
    whole = 0;
    for (int i = 0; i < N; i++) {
      get(fd[i], &in[i]);
      whole += in[i].len == 8 + SIZE + 8;
    }
  }
  assert_int_equal(whole, N);
  for (int i = 0; i < N; i++) {
    assert_int_equal(le64_get(in[i].data), SIZE);
    buf_finish(&in[i]);
    close(fd[i]);
  }
  assert_string_equal(buf_text(&lines), "");
  close(other);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  free(value);
  buf_finish(&q);
  buf_finish(&a);
  stop();
}

/* Who waits for room may go, and the server may. */
static void test_end_of_who_waits_for_room(void **state) {
  enum { N = 8, SIZE = 4 << 20 };
  start(&(struct c10d_server_config){.max_buffered = 8 << 20, .stall_ms = 100});
  char *value = xcalloc(1, SIZE);
  struct buf q = BUF_INIT;
  int fd[N];
  ask_set(&q, "v", (struct slice){value, SIZE});
  for (int i = 0; i < N; i++) {
    fd[i] = connect_new();
    for (size_t at = 0; i == 0 && at < q.len;) {
      ssize_t n = write(fd[0], q.data + at, q.len - at);
      if (n > 0) at += (size_t)n;
      uv_run(&loop, UV_RUN_NOWAIT);
    }
    buf_clear(&q);
    ask_get(&q, "v");
    put(fd[i], q.data, q.len);
    spin();
  }
  close(fd[N - 1]);
  wait_ms(250); /* nobody reads: those who were answered are dropped, and make room for the next */
  expect_line("closed: it does not read");
  assert_in_range(c10d_server_connections(server), 1, N - 2);
  stop();
  for (int i = 0; i < N - 1; i++) close(fd[i]);
  free(value);
  buf_finish(&q);
}

/* Twenty clients ask for something expensive at once: the loop comes back after a few of them, and all have their turns in the end. */
static void test_no_turn_of_the_loop_is_long(void **state) {
  enum { N = 20, KEYS = C10D_KEYS_MAX };
  start(&(struct c10d_server_config){0});
  struct slice *keys = xcalloc(KEYS, sizeof(*keys));
  struct buf q = BUF_INIT;
  int fd[N], answered = 0, first = 0;
  bool done[N] = {false};
  ask(&q, (struct c10d_request){.op = C10D_WAIT, .count = KEYS, .keys = keys});
  ask(&q, (struct c10d_request){.op = C10D_PING, .number = 1});
  for (int i = 0; i < N; i++) {
    fd[i] = connect_new();
    for (size_t at = 0, n = q.len - 9; at < n;) {
      ssize_t sent = write(fd[i], q.data + at, n - at);
      if (sent > 0) at += (size_t)sent;
      uv_run(&loop, UV_RUN_NOWAIT);
    }
    spin();
  }
  for (int i = 0; i < N; i++) put(fd[i], q.data + q.len - 9, 9);
  for (int turns = 0; turns < 2 * N && answered < N; turns++) {
    uv_run(&loop, UV_RUN_NOWAIT);
    for (int i = 0; i < N; i++) {
      struct buf in = BUF_INIT;
      get(fd[i], &in);
      if (in.len && !done[i]) answered++;
      done[i] |= in.len > 0;
      buf_finish(&in);
    }
    if (turns == 0) first = answered;
  }
  assert_int_equal(answered, N);
  assert_in_range(first, 1, N / 2);
  for (int i = 0; i < N; i++) close(fd[i]);
  for (int i = 0; i < 1000 && c10d_server_connections(server); i++) uv_run(&loop, UV_RUN_NOWAIT);
  assert_int_equal(c10d_server_connections(server), 0);
  free(keys);
  buf_finish(&q);
  stop();
}

/* Waiters are answered in the order in which they asked, in the turn of the request that releases them. */
static void test_release(void **state) {
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
  for (int i = 0; i < N; i++) {
    assert_false(got(fd[i], "", 1));
    close(fd[i]);
  }
  close(setter);
  stop();
}

/* Who gives up after its release finds the release in front of the answer to its giving up. */
static void test_cancel_after_release(void **state) {
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
  struct buf in = BUF_INIT;
  get(waiter, &in);
  if (in.len == 2)
    assert_memory_equal(in.data, "\0\1", 2);
  else
    assert_memory_equal(in.data, "\1", in.len);
  buf_finish(&in);
  close(waiter);
  close(setter);
  stop();
}

static void test_malformed(void **state) {
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
  close(fd); /* it has seen the end */
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  fd = connect_unix("GET / HTTP/1.1\r\n\r\n", 18);
  spin();
  assert_true(got(fd, "", 0));
  close(fd);
  stop();
}

static void test_lingering_has_an_end(void **state) {
  start(&(struct c10d_server_config){0});
  int fd = connect_new();
  put(fd, "\x63", 1);
  wait_ms(100);
  assert_int_equal(c10d_server_connections(server), 1);
  wait_ms(C10D_LINGER_MS);
  assert_int_equal(c10d_server_connections(server), 0);
  close(fd);
  stop();
}

/* What was sent before the end is obeyed, even where the end is a reset. */
static void test_last_words(void **state) {
  start(&(struct c10d_server_config){0});
  int fds[2];
  struct err e = ERR_INIT;
  struct buf q = BUF_INIT, a = BUF_INIT;
  pair_tcp(AF_INET, "127.0.0.1", fds);
  assert_int_equal(c10d_server_adopt(server, fds[0], hello, sizeof(hello), &e), 0);
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
  close(fd);
  stop();
}

/* Asks for much, closes its sending direction, then reads. */
static void test_half_closed(void **state) {
  enum { SIZE = 3000000 };
  start(&(struct c10d_server_config){0});
  int fd = connect_new();
  char *value = xcalloc(1, SIZE);
  struct buf q = BUF_INIT, a = BUF_INIT, in = BUF_INIT;
  struct slice v = {value, SIZE};
  ask_set(&q, "v", v);
  ask_get(&q, "v");
  put_string(&a, v);
  for (size_t at = 0; at < q.len;) {
    ssize_t n = write(fd, q.data + at, q.len - at);
    if (n > 0) at += (size_t)n;
    uv_run(&loop, UV_RUN_NOWAIT);
  }
  shutdown(fd, SHUT_WR);
  spin();
  exchange(fd, &in, a.len);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  free(value);
  buf_finish(&q);
  buf_finish(&a);
  buf_finish(&in);
  close(fd);
  stop();
}

static void test_close_while_busy(void **state) {
  enum { SIZE = 4000000 };
  start(&(struct c10d_server_config){0});
  int stalled = connect_new(), waiting = connect_new(), partial = connect_new(),
      silent = connect_unix(NULL, 0);
  char *value = xcalloc(1, SIZE);
  struct buf q = BUF_INIT;
  ask_set(&q, "v", (struct slice){value, SIZE});
  ask_get(&q, "v");
  for (size_t at = 0; at < q.len;) {
    ssize_t n = write(stalled, q.data + at, q.len - at);
    if (n > 0) at += (size_t)n;
    uv_run(&loop, UV_RUN_NOWAIT);
  }
  put(partial, q.data, 1000);
  buf_clear(&q);
  ask_wait(&q, "never");
  put_buf(waiting, &q);
  spin();
  assert_int_equal(c10d_server_connections(server), 4);
  stop();
  assert_true(got(waiting, "", 0));
  assert_true(got(silent, "", 0));
  free(value);
  close(stalled);
  close(waiting);
  close(partial);
  close(silent);
}

/* Listening. -------------------------------------------------------------------------------------------------------- */

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
  return fd;
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
static void test_options_of_accepted_connections(void **state) {
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
  close(fd);
  stop();
}

static bool is_even(void *ctx, const struct ipaddr *peer, const struct ipaddr *local) {
  assert_true(local->family == 4 && local->bytes[0] == 127);
  ++*(int *)ctx;
  return peer->bytes[3] % 2 == 0;
}

static void test_allow(void **state) {
  int asked = 0;
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){.allow = is_even, .ctx = &asked});
  open_listener(&sa);
  int a = connect_from("127.0.0.2", &sa), b = connect_from("127.0.0.3", &sa);
  put(a, hello, sizeof(hello));
  spin();
  assert_int_equal(asked, 2);
  assert_false(got(a, "", 0));
  assert_true(got(b, "", 0));
  assert_int_equal(c10d_server_connections(server), 1);
  expect_line("store: 127.0.0.3:");
  expect_line("refused: this store is not for its address");
  close(a);
  close(b);
  stop();
}

static void test_limits(void **state) {
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
  expect_line("refused: there are 2 connections of its address already");
  expect_line("refused: there are 3 connections already");
  for (int i = 0; i < 5; i++) close(fd[i]);
  stop();
}

/* Without descriptors nobody is accepted, nothing spins, and those who wait are taken when there is room again. */
static void test_no_descriptors(void **state) {
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
  close(first); /* its end makes room */
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
  spin();
  assert_int_equal(c10d_server_connections(server), 1);
  close(second);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  stop();
}

/* Silence. ---------------------------------------------------------------------------------------------------------- */

static void test_silent_is_closed(void **state) {
  start(&(struct c10d_server_config){.silent_ms = 100});
  int silent = connect_unix(NULL, 0), half = connect_unix(hello, 3), known = connect_new();
  int byte = connect_unix("\3", 1); /* GET as before 2.2, and no more of it */
  spin();
  assert_int_equal(c10d_server_connections(server), 4);
  wait_ms(200);
  assert_int_equal(c10d_server_connections(server), 1);
  assert_true(got(silent, "", 0));
  assert_true(got(half, "", 0));
  assert_true(got(byte, "", 0));
  close(byte);
  expect_line("closed: it said nothing within 100 ms");
  expect_line("closed: it did not say what it is within 100 ms");
  assert_int_equal(uv_backend_timeout(&loop), -1); /* at rest there is no timer */
  close(silent);
  close(half);
  close(known);
  stop();
}

static void put_old(int fd) {
  struct buf q = BUF_INIT;
  ask_in(C10D_1_13, &q, (struct c10d_request){.op = C10D_SET, .key = text("k"), .value = text("v")});
  put_buf(fd, &q);
}

/* 1.13: as many silent ones of an address as it has others, and not longer than they. */
static void test_silent_second(void **state) {
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
  close(first);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  assert_true(got(second, "", 0));
  close(second);
  close(third);
  close(foreign);
  stop();
}

/* Number 8 deletes in 1.13 and appends in 2.1. */
static void test_companion_tells_the_numbering(void **state) {
  struct sockaddr_in sa;
  start(&(struct c10d_server_config){0});
  open_listener(&sa);
  struct buf q = BUF_INIT, a = BUF_INIT;
  int old = connect_from("127.0.0.2", &sa), silent = connect_from("127.0.0.2", &sa);
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
  int young = connect_from("127.0.0.4", &sa), its_silent = connect_from("127.0.0.4", &sa);
  put_old(young);
  ask_in(C10D_1_13, &q, (struct c10d_request){.op = C10D_DELETE_KEY, .key = text("k")});
  put_buf(young, &q);
  wait_ms(50);
  put_number(&a, 1);
  assert_false(got_buf(young, &a));
  int younger = connect_from("127.0.0.5", &sa), another = connect_from("127.0.0.5", &sa);
  ask_in(C10D_1_13, &q, (struct c10d_request){.op = C10D_DELETE_KEY, .key = text("k")});
  put_buf(younger, &q); /* as its very first words */
  wait_ms(50);
  put_number(&a, 0);
  assert_false(got_buf(younger, &a));
  close(younger);
  close(another);
  close(young);
  close(its_silent);
  close(old);
  close(silent);
  close(lone);
  stop();
}

/* A request of an old client's that came in pieces, and in the piece that completes it something that ends the connection. */
static void test_old_client_ends_behind_a_large_request(void **state) {
  enum { SIZE = 1 << 20, LAST = 100 };
  start(&(struct c10d_server_config){0});
  char *value = xcalloc(1, SIZE), many[9] = {10, 0, 0, 0, 0, 0, 1};
  struct buf q = BUF_INIT;
  ask_in(C10D_2_1, &q, (struct c10d_request){.op = C10D_SET, .key = text("k"), .value = {value, SIZE}});
  buf_append(&q, many, sizeof(many)); /* MULTI_SET of 2^40 keys */
  int fd = connect_unix(NULL, 0);
  for (size_t at = 0, n = q.len - LAST; at < n;) {
    ssize_t sent = write(fd, q.data + at, n - at);
    if (sent > 0) at += (size_t)sent;
    spin();
  }
  put(fd, q.data + q.len - LAST, LAST);
  spin();
  expect_line("more than 131072 keys");
  close(fd);
  wait_ms(10);
  assert_int_equal(c10d_server_connections(server), 0);
  free(value);
  buf_finish(&q);
  stop();
}

static void test_adopt_silent(void **state) {
  int fds[2][2];
  struct err e = ERR_INIT;
  struct buf q = BUF_INIT;
  start(&(struct c10d_server_config){.silent_ms = 100});
  pair_tcp(AF_INET, "127.0.0.1", fds[0]);
  pair_tcp(AF_INET, "127.0.0.1", fds[1]);
  assert_false(c10d_server_adopt_silent(server, fds[1][0]));
  ask_in(C10D_1_13, &q, (struct c10d_request){.op = C10D_SET, .key = text("k"), .value = text("v")});
  assert_int_equal(c10d_server_adopt(server, fds[0][0], q.data, q.len, &e), 0);
  spin();
  assert_true(c10d_server_adopt_silent(server, fds[1][0]));
  wait_ms(200);
  assert_int_equal(c10d_server_connections(server), 2);
  close(fds[0][1]);
  spin();
  assert_int_equal(c10d_server_connections(server), 0);
  assert_true(got(fds[1][1], "", 0));
  close(fds[1][1]);
  buf_finish(&q);
  stop();
}

/* Sessions: the daemon's keys of a rendezvous go with their deadline, for which the server sets its timer. */
static void test_session_deadline(void **state) {
  start(&(struct c10d_server_config){.store = {.session_prefix = "/s.", .session_ttl_ms = 100}});
  int fd = connect_new(), bystander = connect_new();
  struct buf q = BUF_INIT;
  ask_set(&q, "/s.a", text("v"));
  ask_set(&q, "other", text("v"));
  put_buf(fd, &q);
  spin();
  assert_int_equal(store_count(c10d_server_store(server)), 2);
  close(fd);
  spin();
  assert_int_equal(store_count(c10d_server_store(server)), 2);
  wait_ms(200);
  assert_int_equal(store_count(c10d_server_store(server)), 1);
  assert_int_equal(uv_backend_timeout(&loop), -1);
  close(bystander);
  stop();
}

static void test_quota_names_itself(void **state) {
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
  close(fd);
  close(other);
  stop();
}

#define test(name) cmocka_unit_test_setup_teardown(test_##name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      test(split_at_every_byte),
      test(pipelined),
      test(large_values),
      test(slow_reader),
      test(who_takes_nothing_is_dropped),
      test(buffers_are_bounded_together),
      test(large_requests_wait_for_room),
      test(who_keeps_room_is_dropped),
      test(large_replies_wait_for_room),
      test(end_of_who_waits_for_room),
      test(no_turn_of_the_loop_is_long),
      test(release),
      test(cancel_after_release),
      test(malformed),
      test(lingering_has_an_end),
      test(last_words),
      test(half_closed),
      test(close_while_busy),
      test(options_of_accepted_connections),
      test(allow),
      test(limits),
      test(no_descriptors),
      test(silent_is_closed),
      test(silent_second),
      test(companion_tells_the_numbering),
      test(old_client_ends_behind_a_large_request),
      test(adopt_silent),
      test(session_deadline),
      test(quota_names_itself),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
