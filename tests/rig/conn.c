/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the tests of connections: sides that keep a diary, pairs of sockets, and a loop that is turned until
 * nothing more happens at once. The peer is a plain non-blocking descriptor, so that a test can send any byte at any
 * time. */

#include "tests/rig/conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

uv_loop_t loop;

void say(struct side *s, const char *fmt, ...) {
  if (s->closed) fail_msg("a callback after on_closed");
  if (s->quiet) return;
  if (s->log.len) buf_putc(&s->log, ' ');
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(&s->log, fmt, ap);
  va_end(ap);
}

static void act(struct conn *c, enum action a) {
  if (a == CLOSE) conn_close(c);
  if (a == CLOSE_FLUSHED) conn_close_flushed(c);
  if (a == PAUSE) conn_pause(c);
  if (a == RAISE_LIMIT) c->max_body = FRAME_MAX_TO_DAEMON;
}

static void on_msg(struct conn *c, struct msg *m) {
  struct side *s = c->owner;
  s->n_msgs++;
  assert_true(c->in.len <= c->max_body + FRAME_HEADER_SIZE);
  const char *text = m->type == MSG_BYE ? m->bye.text : m->type == MSG_REFUSED ? m->refused.text : msg_name(m->type);
  if (strlen(text) < 100)
    say(s, "msg:%s", text);
  else
    say(s, "msg:%zu bytes", strlen(text));
  act(c, s->on_msg);
}

static void on_preface(struct conn *c) {
  struct side *s = c->owner;
  say(s, "native");
  act(c, s->on_preface);
}

static bool on_foreign(struct conn *c, enum frame_protocol p, const char *data, size_t len) {
  struct side *s = c->owner;
  say(s, "foreign:%s:%zu", frame_protocol_name(p), len);
  act(c, s->on_foreign);
  return s->on_foreign == TAKE_OVER;
}

static void on_end(struct conn *c, int code, const char *reason) {
  struct side *s = c->owner;
  if (s->sending) fail_msg("on_end inside conn_send");
  say(s, "end:%d:%s", code, reason);
  act(c, s->on_end);
}

static void on_closed(struct conn *c) {
  struct side *s = c->owner;
  say(s, "closed");
  s->closed = true;
}

static enum channel_status on_opening(struct conn *c, int64_t uid, struct conn_terms *t) {
  static struct ephemeral *ephemeral;
  if (!ephemeral) ephemeral = ephemeral_create();
  if (uid != KEY_OWN && uid != 1000) return CHANNEL_BUSY;
  static struct key tickets;
  key_of_tickets(&rig_key, &tickets);
  *t = (struct conn_terms){.key = rig_key, .tickets = &tickets, .source = CHANNEL_SOURCE_HOME, .ephemeral = ephemeral};
  if (uid != KEY_OWN) key_derive(&rig_key, (uint32_t)uid, &t->key);
  return CHANNEL_OK;
}

const struct key rig_key = {.bytes = "a key of thirty-two bytes: 31...", .uid = KEY_OWN};
const struct conn_callbacks callbacks = {
    .on_msg = on_msg, .on_preface = on_preface, .on_foreign = on_foreign, .on_end = on_end, .on_closed = on_closed};
const struct conn_callbacks no_foreign = {.on_msg = on_msg, .on_end = on_end, .on_closed = on_closed};
const struct conn_callbacks keyed = {.on_msg = on_msg,
                                     .on_opening = on_opening,
                                     .on_preface = on_preface,
                                     .on_foreign = on_foreign,
                                     .on_end = on_end,
                                     .on_closed = on_closed};

void spin(void) {
  for (int i = 0; i < 20; i++) uv_run(&loop, UV_RUN_NOWAIT);
}

void set_nonblocking(int fd) {
  assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
}

void pair_unix(int fds[2]) {
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  set_nonblocking(fds[0]);
  set_nonblocking(fds[1]);
}

void pair_tcp(int family, const char *address, int fds[2]) {
  struct sockaddr_in6 a6 = {.sin6_family = AF_INET6};
  struct sockaddr_in a4 = {.sin_family = AF_INET};
  bool six = family == AF_INET6;
  struct sockaddr *sa = six ? (struct sockaddr *)&a6 : (struct sockaddr *)&a4;
  socklen_t len = six ? sizeof(a6) : sizeof(a4);
  assert_int_equal(inet_pton(family, address, six ? (void *)&a6.sin6_addr : (void *)&a4.sin_addr), 1);
  int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(listener >= 0);
  assert_int_equal(bind(listener, sa, len), 0);
  assert_int_equal(listen(listener, 1), 0);
  assert_int_equal(getsockname(listener, sa, &len), 0);
  fds[1] = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fds[1], sa, len), 0);
  fds[0] = accept(listener, NULL, NULL);
  assert_true(fds[0] >= 0);
  close(listener);
  set_nonblocking(fds[0]);
  set_nonblocking(fds[1]);
}

void begin(struct side *s, const struct conn_callbacks *cb, bool server, bool tcp, int fd) {
  if (tcp) {
    conn_init_tcp(&s->conn, &loop, cb, s, server);
    assert_int_equal(uv_tcp_open(&s->conn.tcp, fd), 0);
  } else {
    conn_init_pipe(&s->conn, &loop, cb, s, server);
    assert_int_equal(uv_pipe_open(&s->conn.pipe, fd), 0);
  }
  struct err e = ERR_INIT;
  conn_use_key(&s->conn, s->key);
  conn_use_ticket(&s->conn, s->ticket);
  if (conn_start(&s->conn, 5000, &e) != 0) fail_msg("%s", e.text);
}

int serve(struct side *s) {
  int fds[2];
  pair_unix(fds);
  begin(s, &callbacks, true, false, fds[0]);
  return fds[1];
}

void put(int fd, const void *data, size_t len) {
  assert_int_equal(write(fd, data, len), (ssize_t)len);
}

void bye(struct buf *b, const char *text) {
  struct msg m;
  msg_init(&m, MSG_BYE);
  m.bye.text = text;
  msg_encode(b, &m);
}

void refused(struct side *s, const char *text) {
  struct msg m;
  msg_init(&m, MSG_REFUSED);
  m.refused.code = 72;
  m.refused.text = text;
  s->sending = true;
  conn_send(&s->conn, &m);
  s->sending = false;
}

void put_greeting(int fd, const char *first, const char *second) {
  struct buf b = BUF_INIT;
  buf_append(&b, frame_preface, FRAME_PREFACE_SIZE);
  bye(&b, first);
  if (second) bye(&b, second);
  put(fd, b.data, b.len);
  buf_finish(&b);
}

void finish(struct side *s, int fd, const char *expected) {
  conn_close(&s->conn);
  spin();
  assert_true(s->closed);
  if (strcmp(buf_text(&s->log), expected) != 0) fail_msg("\nis:     %s\nshould: %s", buf_text(&s->log), expected);
  buf_finish(&s->log);
  if (fd >= 0) close(fd);
}

bool get(int fd, struct buf *b) {
  for (;;) {
    ssize_t n = read(fd, buf_reserve(b, 65536), 65536);
    if (n <= 0) return n == 0;
    buf_commit(b, (size_t)n);
  }
}

int set_up(void **state) {
  signal(SIGPIPE, SIG_IGN);
  return uv_loop_init(&loop);
}

int tear_down(void **state) {
  spin();
  return uv_loop_close(&loop); /* UV_EBUSY: a test left a handle open */
}
