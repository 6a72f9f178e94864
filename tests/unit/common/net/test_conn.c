/* SPDX-License-Identifier: Apache-2.0 */
/* conn: a connection in a loop, its peer a plain non-blocking socket driven by the test (or another connection). What
 * happens is written down as a line of text (tests/rig/conn.h), so that each test compares one string. */

#include "common/net/conn.h"

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
#include "tests/rig/conn.h"
#include "tests/rig/unit.h"

UNIT_TEST_WITH(test_split_at_every_byte, set_up, tear_down) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_append(&b, frame_preface, FRAME_PREFACE_SIZE);
  bye(&b, "one");
  bye(&b, "");
  bye(&b, "three");
  for (size_t at = 0; at <= b.len; at++) {
    struct side s = {0};
    int fd = serve(&s);
    if (at) put(fd, b.data, at);
    spin();
    if (at < b.len) put(fd, b.data + at, b.len - at);
    spin();
    assert_null(s.conn.in.data); /* an idle connection holds no buffer */
    finish(&s, fd, "native msg:one msg: msg:three closed");
  }
  struct side s = {0};
  int fd = serve(&s);
  for (size_t at = 0; at < b.len; at++) {
    put(fd, b.data + at, 1);
    spin();
  }
  finish(&s, fd, "native msg:one msg: msg:three closed");
}

/* The owner has read the first bytes: they count as bytes that were read, wherever they were cut. */
UNIT_TEST_WITH(test_fed_bytes, set_up, tear_down) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_append(&b, frame_preface, FRAME_PREFACE_SIZE);
  bye(&b, "one");
  bye(&b, "two");
  for (size_t at = 1; at <= b.len; at++) {
    struct side s = {0};
    int fd = serve(&s);
    conn_feed(&s.conn, b.data, at);
    if (at < b.len) put(fd, b.data + at, b.len - at);
    spin();
    assert_null(s.conn.in.data);
    finish(&s, fd, "native msg:one msg:two closed");
  }
}

/* One message after each pause, whatever comes meanwhile; and the end of the stream after all of them. */
UNIT_TEST_WITH(test_pauses, set_up, tear_down) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  struct side s = {.on_msg = PAUSE};
  int fd = serve(&s);
  buf_append(&b, frame_preface, FRAME_PREFACE_SIZE);
  bye(&b, "one");
  bye(&b, "two");
  put(fd, b.data, b.len);
  spin();
  assert_int_equal(s.n_msgs, 1);
  buf_clear(&b);
  bye(&b, "three");
  put(fd, b.data, b.len);
  refused(&s, "written meanwhile");
  spin();
  SCOPED(buf_finish) struct buf got = BUF_INIT;
  get(fd, &got);
  assert_true(got.len > 0);
  close(fd);
  spin();
  for (size_t n = 1; n < 3; n++) {
    assert_int_equal(s.n_msgs, n);
    conn_resume(&s.conn);
    spin();
  }
  say(&s, "resumed");
  conn_resume(&s.conn);
  spin();
  conn_resume(&s.conn); /* nothing */
  finish(&s, -1, "native msg:one msg:two msg:three resumed end:0:closed by the peer closed");
  struct side closed = {.on_msg = PAUSE};
  fd = serve(&closed);
  put(fd, frame_preface, FRAME_PREFACE_SIZE);
  put(fd, b.data, b.len);
  put(fd, b.data, b.len);
  spin();
  conn_close_flushed(&closed.conn);
  conn_resume(&closed.conn); /* nothing */
  finish(&closed, fd, "native msg:three closed");
}

/* How many messages the owner lets pass. */
static int allowed;

static bool may_take(struct conn *c, enum msg_type type) {
  assert_int_equal(type, MSG_BYE);
  return allowed-- > 0;
}

/* A message that waits holds up what is behind it, wherever that was cut, and the end of the connection. */
UNIT_TEST_WITH(test_messages_that_wait, set_up, tear_down) {
  struct conn_callbacks cb = callbacks;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  cb.may_take = may_take;
  buf_append(&b, frame_preface, FRAME_PREFACE_SIZE);
  bye(&b, "one");
  bye(&b, "two");
  bye(&b, "three");
  for (size_t at = 1; at <= b.len; at++) {
    struct side s = {0};
    int fds[2];
    pair_unix(fds);
    begin(&s, &cb, true, false, fds[0]);
    allowed = 1;
    put(fds[1], b.data, at);
    spin();
    if (at < b.len) put(fds[1], b.data + at, b.len - at);
    close(fds[1]);
    spin();
    assert_string_equal(buf_text(&s.log), "native msg:one");
    spin();
    assert_string_equal(buf_text(&s.log), "native msg:one");
    allowed = 1;
    conn_resume(&s.conn);
    spin();
    assert_string_equal(buf_text(&s.log), "native msg:one msg:two");
    allowed = 1;
    conn_resume(&s.conn);
    conn_resume(&s.conn); /* nothing waits */
    spin();
    finish(&s, -1, "native msg:one msg:two msg:three end:0:closed by the peer closed");
  }
}

UNIT_TEST_WITH(test_a_connection_that_waits_is_closed, set_up, tear_down) {
  for (int flushed = 0; flushed < 2; flushed++) {
    struct conn_callbacks cb = callbacks;
    struct side s = {0};
    int fds[2];
    cb.may_take = may_take;
    pair_unix(fds);
    begin(&s, &cb, true, false, fds[0]);
    allowed = 0;
    put_greeting(fds[1], "one", "two");
    spin();
    if (flushed)
      conn_close_flushed(&s.conn);
    else
      conn_close(&s.conn);
    conn_resume(&s.conn);
    close(fds[1]);
    spin();
    finish(&s, -1, "native closed");
  }
}

UNIT_TEST_WITH(test_ten_thousand_frames_in_one_write, set_up, tear_down) {
  int fds[2];
  struct side server = {.quiet = true}, client = {.quiet = true};
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  char text[16];
  for (int i = 0; i < 10000; i++) {
    snprintf(text, sizeof(text), "%d", i);
    bye(&b, text);
  }
  pair_unix(fds);
  begin(&server, &callbacks, true, false, fds[0]);
  begin(&client, &callbacks, false, false, fds[1]);
  conn_send_bytes(&client.conn, bytes_create(b.data, b.len));
  for (int i = 0; i < 10000 && server.n_msgs < 10000; i++) uv_run(&loop, UV_RUN_NOWAIT);
  assert_int_equal(server.n_msgs, 10000);
  assert_int_equal(client.conn.queued, 0);
  finish(&server, -1, "");
  finish(&client, -1, "");
}

UNIT_TEST_WITH(test_messages_both_ways, set_up, tear_down) {
  int fds[2];
  struct side server = {0}, client = {0};
  pair_tcp(AF_INET, "127.0.0.1", fds);
  begin(&server, &callbacks, true, true, fds[0]);
  begin(&client, &callbacks, false, true, fds[1]);
  refused(&server, "no");
  struct msg m;
  msg_init(&m, MSG_BYE);
  m.bye.text = "hi";
  conn_send(&client.conn, &m);
  m.bye.text = "there";
  conn_send(&client.conn, &m);
  spin();
  finish(&client, -1, "msg:no closed");
  finish(&server, -1, "native msg:hi msg:there end:0:closed by the peer closed");
}

UNIT_TEST_WITH(test_slow_reader_is_closed_by_name, set_up, tear_down) {
  struct side slow = {.on_end = CLOSE}, closed = {0};
  SCOPED(unit_free) char *data = xcalloc(1, 1024 * 1024);
  struct bytes *b = bytes_create(data, 1024 * 1024);
  int fd = serve(&slow);
  slow.sending = true;
  for (int i = 0; i < 80; i++) {
    conn_send_bytes(&slow.conn, bytes_ref(b));
    assert_true(slow.conn.queued <= CONN_QUEUE_MAX);
  }
  slow.sending = false;
  assert_true(slow.conn.queued > CONN_QUEUE_MAX - 2 * 1024 * 1024);
  spin();
  assert_int_equal(b->refs, 1); /* what was queued is let go */
  finish(&slow, fd, "end:-105:does not read: 64 MiB queued closed");
  fd = serve(&closed);
  for (int i = 0; i < 10; i++) conn_send_bytes(&closed.conn, bytes_ref(b));
  assert_true(b->refs > 5);
  finish(&closed, fd, "closed");
  assert_int_equal(b->refs, 1);
  bytes_unref(b);
}

static void check_foreign(const char *first, size_t len, const char *expected) {
  struct side s = {0};
  int fd = serve(&s);
  put(fd, first, len);
  spin();
  finish(&s, fd, expected);
}

UNIT_TEST_WITH(test_foreign_bytes, set_up, tear_down) {
  check_foreign("GET / HTTP/1.1\r\n", 16, "foreign:HTTP:16 end:-71:speaks HTTP, which is not served here closed");
  check_foreign("\x00\xce\xf7\x85\x3c", 5, "foreign:c10d:5 end:-71:speaks c10d, which is not served here closed");
  check_foreign("\x07", 1,
                "foreign:c10d (old numbering):1 end:-71:speaks c10d (old numbering), which is not served here closed");
  check_foreign("\x16\x03\x01\xff more than what is shown here, of all of it", 47,
                "foreign:unknown:47 end:-71:speaks a protocol that is not served here; it begins with "
                "\"\\x16\\x03\\x01\\xff more than what is shown here, of al...\" closed");
  check_foreign("RDZV\x02\0\0\0", 8, "end:-71:speaks version 2 of the frames, this side speaks 1 closed");
  check_foreign("RDZV\x02", 5, "closed"); /* not all there yet */
  check_foreign("GE", 2, "closed");
  int fds[2];
  struct side s = {0};
  pair_unix(fds);
  begin(&s, &no_foreign, true, false, fds[0]);
  put(fds[1], "GET /", 5);
  spin();
  finish(&s, fds[1], "end:-71:speaks HTTP, which is not served here closed");
}

static char taken[64];
static void on_owner_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf) {
  *buf = uv_buf_init(taken, sizeof(taken));
}
static void on_owner_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf) {
  struct conn *c = stream->data;
  if (n > 0) say(c->owner, "owner:%.*s", (int)n, buf->base);
}

UNIT_TEST_WITH(test_owner_takes_over, set_up, tear_down) {
  struct side s = {.on_foreign = TAKE_OVER};
  int fd = serve(&s);
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  put(fd, "HEAD / x", 8);
  spin();
  assert_int_equal(uv_read_start(&s.conn.stream, on_owner_alloc, on_owner_read), 0);
  put(fd, "more", 4);
  spin();
  conn_send_bytes(&s.conn, bytes_create("answer", 6));
  conn_close_flushed(&s.conn);
  spin();
  assert_true(get(fd, &b));
  assert_string_equal(buf_text(&b), "answer");
  close(fd);
  spin();
  assert_true(s.closed);
  finish(&s, -1, "foreign:HTTP:8 owner:more closed");
}

UNIT_TEST_WITH(test_close_inside_every_callback, set_up, tear_down) {
  static const enum action ways[] = {CLOSE, CLOSE_FLUSHED};
  for (int i = 0; i < 2; i++) {
    struct side m = {.on_msg = ways[i]}, n = {.on_preface = ways[i]}, f = {.on_foreign = ways[i]},
                e = {.on_end = ways[i]};
    int fd = serve(&m);
    put_greeting(fd, "one", "two");
    spin();
    finish(&m, fd, "native msg:one closed");
    fd = serve(&n);
    put_greeting(fd, "one", "two");
    spin();
    finish(&n, fd, "native closed");
    fd = serve(&f);
    put(fd, "GET / HTTP", 10);
    spin();
    finish(&f, fd, "foreign:HTTP:10 closed");
    fd = serve(&e);
    put_greeting(fd, "one", NULL);
    close(fd);
    spin();
    finish(&e, -1, "native msg:one end:0:closed by the peer closed");
  }
}

UNIT_TEST_WITH(test_how_it_ends, set_up, tear_down) {
  struct side clean = {0}, early = {0}, middle = {0}, bad = {0}, garbage = {0}, wrong_way = {0};
  int fd = serve(&clean);
  put_greeting(fd, "a", NULL);
  shutdown(fd, SHUT_WR);
  spin();
  finish(&clean, fd, "native msg:a end:0:closed by the peer closed");
  fd = serve(&early);
  close(fd);
  spin();
  finish(&early, -1, "end:0:closed by the peer closed");
  fd = serve(&middle);
  put_greeting(fd, "a", NULL);
  put(fd, "\x08\0\0\0", 4);
  close(fd);
  spin();
  finish(&middle, -1, "native msg:a end:-104:closed by the peer in the middle of a message closed");
  fd = serve(&bad);
  put_greeting(fd, "a", NULL);
  put(fd, "\x02\0\0\0\x0d\0\0\0\0\0\0\0\x02\0\0\0[]", 18);
  put_greeting(fd, "never seen", NULL);
  spin();
  finish(&bad, fd, "native msg:a end:-71:BYE: bad JSON at line 1, column 1: an object { } is expected closed");
  int fds[2];
  pair_unix(fds);
  begin(&garbage, &callbacks, false, false, fds[0]);
  put(fds[1], "220 mail.example.com ESMTP\r\n", 28);
  spin();
  finish(&garbage, fds[1],
         "end:-90:does not seem to be rdzv: it begins with \"220 mail.example.com ESMTP\\r\\n\" closed");
  fd = serve(&wrong_way);
  put(fd, frame_preface, FRAME_PREFACE_SIZE);
  put(fd, "\0\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0", 16);
  spin();
  finish(&wrong_way, fd, "native end:-71:does not seem to be rdzv: REFUSED is not for a daemon to receive closed");
}

UNIT_TEST_WITH(test_reset, set_up, tear_down) {
  int fds[2];
  struct side s = {0};
  pair_tcp(AF_INET, "127.0.0.1", fds);
  begin(&s, &callbacks, true, true, fds[0]);
  put_greeting(fds[1], "a", NULL);
  spin();
  struct linger hard = {1, 0};
  assert_int_equal(setsockopt(fds[1], SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)), 0);
  close(fds[1]);
  spin();
  finish(&s, -1, "native msg:a end:-104:reset by the peer closed");
}

/* A peer says why and closes; we are just writing. Its words are read before the end is told, and never inside the
 * send. */
UNIT_TEST_WITH(test_last_words_come_before_a_failed_write, set_up, tear_down) {
  struct side s = {0};
  int fd = serve(&s);
  put_greeting(fd, "last words", NULL);
  close(fd);
  refused(&s, "into nothing");
  assert_true(s.conn.broken);
  refused(&s, "again"); /* dropped */
  assert_string_equal(buf_text(&s.log), "");
  spin();
  finish(&s, -1, "native msg:last words end:0:closed by the peer closed");
}

/* The peer's end of its reading alone: nothing to read tells us, so the failed write does, by itself. */
UNIT_TEST_WITH(test_a_failed_write_is_told_from_the_loop, set_up, tear_down) {
  struct side s = {0};
  int fd = serve(&s);
  put_greeting(fd, "a", NULL);
  spin();
  shutdown(fd, SHUT_RD);
  refused(&s, "into nothing");
  spin();
  finish(&s, fd, "native msg:a end:-32:reset by the peer closed");
}

UNIT_TEST_WITH(test_limit_is_raised_by_the_owner, set_up, tear_down) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_append(&b, frame_preface, FRAME_PREFACE_SIZE);
  bye(&b, "first");
  size_t start = b.len;
  bye(&b, "second");
  size_t json = b.len - start - FRAME_HEADER_SIZE;
  le32_put(b.data + start, (uint32_t)json + FRAME_MAX_UNIDENTIFIED); /* and raw bytes behind it */
  memset(buf_reserve(&b, FRAME_MAX_UNIDENTIFIED), 'r', FRAME_MAX_UNIDENTIFIED);
  buf_commit(&b, FRAME_MAX_UNIDENTIFIED);
  for (int raise = 0; raise < 2; raise++) {
    struct side s = {.on_msg = raise ? RAISE_LIMIT : GO_ON};
    int fd = serve(&s);
    for (size_t at = 0; at < b.len; at += 7000) {
      if (write(fd, b.data + at, b.len - at < 7000 ? b.len - at : 7000) < 0) break;
      uv_run(&loop, UV_RUN_NOWAIT);
      assert_true(s.conn.in.len <= s.conn.max_body + FRAME_HEADER_SIZE);
    }
    spin();
    finish(&s, fd,
           raise ? "native msg:first msg:second closed"
                 : "native msg:first end:-90:a frame of 65553 bytes is longer than the 65536 allowed here closed");
  }
}

/* The longest frame but for a byte, then that byte with much behind it: on_msg sees that not more was read than one
 * such frame holds. */
UNIT_TEST_WITH(test_reading_is_bounded, set_up, tear_down) {
  struct side s = {0};
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  bye(&b, "long");
  size_t json = b.len - FRAME_HEADER_SIZE, raw = FRAME_MAX_UNIDENTIFIED - json;
  le32_put(b.data, FRAME_MAX_UNIDENTIFIED);
  memset(buf_reserve(&b, raw), 'r', raw);
  buf_commit(&b, raw);
  size_t end = b.len;
  for (int i = 0; i < 100; i++) bye(&b, "short");
  int fd = serve(&s);
  put(fd, frame_preface, FRAME_PREFACE_SIZE);
  spin();
  put(fd, b.data, end - 1);
  spin();
  assert_int_equal(s.n_msgs, 0);
  put(fd, b.data + end - 1, b.len - end + 1);
  spin();
  assert_int_equal(s.n_msgs, 101);
  buf_clear(&s.log);
  finish(&s, fd, "closed");
}

/* All that was sent arrives, although the peer's own words were never read, and then the end. */
UNIT_TEST_WITH(test_flush, set_up, tear_down) {
  enum { N = 30, SIZE = 1024 * 1024 };
  int fds[2];
  struct side s = {0};
  SCOPED(buf_finish) struct buf got = BUF_INIT;
  pair_tcp(AF_INET, "127.0.0.1", fds);
  begin(&s, &callbacks, true, true, fds[0]);
  SCOPED(unit_free) char *data = xcalloc(1, SIZE);
  for (int i = 0; i < N; i++) conn_send_bytes(&s.conn, bytes_create(data, SIZE));
  assert_true(s.conn.queued > 0);
  put_greeting(fds[1], "unread", NULL);
  conn_close_flushed(&s.conn);
  refused(&s, "too late"); /* dropped */
  bool ended = false;
  for (int i = 0; i < 100000 && !ended; i++) {
    uv_run(&loop, UV_RUN_NOWAIT);
    ended = get(fds[1], &got);
  }
  assert_true(ended);
  assert_int_equal(got.len, (size_t)N * SIZE);
  assert_false(s.closed); /* waits for the peer's end */
  close(fds[1]);
  uv_run(&loop, UV_RUN_DEFAULT);
  assert_true(s.closed);
  finish(&s, -1, "closed");
}

/* The peer has closed its direction long ago and still reads: flushing does not take its end for an answer. */
UNIT_TEST_WITH(test_flush_to_a_half_closed_peer, set_up, tear_down) {
  struct side s = {.on_end = CLOSE_FLUSHED};
  SCOPED(buf_finish) struct buf got = BUF_INIT;
  int fd = serve(&s);
  spin();
  SCOPED(unit_free) char *data = xcalloc(1, 4 * 1024 * 1024);
  conn_send_bytes(&s.conn, bytes_create(data, 4 * 1024 * 1024));
  shutdown(fd, SHUT_WR);
  bool ended = false;
  for (int i = 0; i < 100000 && !ended; i++) {
    uv_run(&loop, UV_RUN_NOWAIT);
    ended = get(fd, &got);
  }
  assert_int_equal(got.len, 4 * 1024 * 1024);
  spin();
  assert_true(s.closed); /* both directions are at their end: nothing to wait for */
  finish(&s, fd, "end:0:closed by the peer closed");
}

UNIT_TEST_WITH(test_flush_has_a_deadline, set_up, tear_down) {
  struct side s = {0};
  int fd = serve(&s); /* never reads, never closes */
  uv_update_time(&loop);
  uint64_t start = uv_now(&loop);
  conn_close_flushed(&s.conn);
  conn_close_flushed(&s.conn);
  uv_run(&loop, UV_RUN_DEFAULT);
  assert_true(s.closed);
  assert_true(uv_now(&loop) - start >= CONN_CLOSE_FLUSH_MS);
  finish(&s, fd, "closed");
}

UNIT_TEST_WITH(test_closed_before_it_was_opened, set_up, tear_down) {
  struct side tcp = {0}, unix_ = {0};
  conn_init_tcp(&tcp.conn, &loop, &callbacks, &tcp, true);
  conn_close_flushed(&tcp.conn);
  conn_close(&tcp.conn);
  conn_send_bytes(&tcp.conn, bytes_create("x", 1)); /* dropped */
  finish(&tcp, -1, "closed");
  conn_init_pipe(&unix_.conn, &loop, &callbacks, &unix_, false);
  finish(&unix_, -1, "closed");
}

static void check_addresses(int family, const char *address) {
  int fds[2], value = 0;
  struct side s = {0};
  char peer[ADDR_MAX + 1], local[ADDR_MAX + 1];
  uint16_t port;
  pair_tcp(family, address, fds);
  begin(&s, &callbacks, true, true, fds[0]);
  conn_addresses(&s.conn, peer, local, &port);
  bool mapped = strncmp(address, "::ffff:", 7) == 0;
  assert_string_equal(peer, mapped ? address + 7 : address);
  assert_string_equal(local, mapped ? address + 7 : address);
  assert_true(port > 0);
  socklen_t len = sizeof(value);
  assert_int_equal(getsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &value, &len), 0);
  assert_int_not_equal(value, 0);
  char control[16] = "";
  len = sizeof(control) - 1;
  assert_int_equal(getsockopt(fds[0], IPPROTO_TCP, TCP_CONGESTION, control, &len), 0);
  assert_string_equal(control, "reno"); /* under BBR thin streams wait ever longer */
  len = sizeof(value);
  assert_int_equal(getsockopt(fds[0], IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &value, &len), 0);
  assert_int_equal(value, 1);
  conn_set_user_timeout(&s.conn, 7000);
  assert_int_equal(getsockopt(fds[0], IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &len), 0);
  assert_int_equal(value, 7000);
  finish(&s, fds[1], "closed");
}

UNIT_TEST_WITH(test_addresses_and_options, set_up, tear_down) {
  check_addresses(AF_INET, "127.0.0.1");
  int probe = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  bool has_v6 = probe >= 0 && bind(probe, (struct sockaddr *)&any, sizeof(any)) == 0;
  if (probe >= 0) close(probe);
  if (has_v6) check_addresses(AF_INET6, "::1");
  if (has_v6) check_addresses(AF_INET6, "::ffff:127.0.0.1");
  struct side s = {0};
  char peer[ADDR_MAX + 1], local[ADDR_MAX + 1];
  uint16_t port;
  int fd = serve(&s);
  conn_addresses(&s.conn, peer, local, &port);
  assert_string_equal(peer, "");
  assert_string_equal(local, "");
  assert_int_equal(port, 0);
  finish(&s, fd, "closed");
}
