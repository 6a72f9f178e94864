/* SPDX-License-Identifier: Apache-2.0 */
/* peers: which connections come over the control socket is what peers_listen was told, whatever address they have; and
 * how much memory the connections of one user may hold. */

#include "daemon/server/peers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/mem.h"
#include "proto/frame.h"
#include "proto/socket.h"
#include "tests/rig/unit.h"

struct seen {
  int n, n_local;
};

static void on_msg(void *ctx, const struct peer_info *peer, const struct msg *m) {
  struct seen *seen = ctx;
  seen->n++;
  seen->n_local += peer->local;
}

static void on_gone(void *ctx, const struct peer_info *peer) {}

static void on_deadline(void *ctx) {}

/* Sends a CONTROL over a unix socket, whose connections have no address. */
static struct seen send_control(bool control) {
  static const struct peers_callbacks callbacks = {.on_msg = on_msg, .on_gone = on_gone, .on_deadline = on_deadline};
  struct sockaddr_un sa = {.sun_family = AF_UNIX};
  socklen_t len = sizeof(sa);
  struct seen seen = {0};
  struct err e = ERR_INIT;
  struct msg m;
  uv_loop_t loop;
  uv_loop_init(&loop);
  struct peers *peers =
      peers_create(&(struct peers_options){.loop = &loop, .max = 100, .seed = 1, .cb = &callbacks, .ctx = &seen});
  int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  assert_int_equal(bind(listener, (struct sockaddr *)&sa, sizeof(sa.sun_family)), 0); /* the kernel names it */
  assert_int_equal(getsockname(listener, (struct sockaddr *)&sa, &len), 0);
  if (peers_listen(peers, listener, control, &e) < 0) fail_msg("%s", e.text);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&sa, len), 0);
  msg_init(&m, MSG_CONTROL);
  m.control.verb = "status";
  struct bytes *b = msg_bytes(&m);
  assert_int_equal(send(fd, frame_preface, FRAME_PREFACE_SIZE, MSG_NOSIGNAL), FRAME_PREFACE_SIZE);
  assert_int_equal(send(fd, b->data, b->len, MSG_NOSIGNAL), b->len);
  bytes_unref(b);
  for (int i = 0; i < 10; i++) uv_run(&loop, UV_RUN_NOWAIT);
  close(fd);
  peers_close_all(peers);
  uv_run(&loop, UV_RUN_DEFAULT);
  peers_destroy(peers);
  assert_int_equal(uv_loop_close(&loop), 0);
  return seen;
}

static void test_only_the_control_socket_is_local(void **state) {
  struct seen seen = send_control(true);
  assert_true(seen.n == 1 && seen.n_local == 1);
  seen = send_control(false); /* it may be closed, since TCP's options cannot be set */
  assert_int_equal(seen.n_local, 0);
}

/* Shares of memory. ------------------------------------------------------------------------------------------------ */

enum { MEMBERS = 40, SHARE = 16 * 1024 * 1024, UNFINISHED = 900 * 1024, UNREAD = 1024 * 1024 };

struct crowd {
  uv_loop_t loop;
  struct peers *peers;
  int fds[MEMBERS];
  uint64_t ids[MEMBERS];
  size_t n, n_gone;
};

static void on_member(void *ctx, const struct peer_info *peer, const struct msg *m) {
  struct crowd *c = ctx;
  peers_identify(c->peers, peer->id, "a member", 0);
  c->ids[c->n++] = peer->id;
}

static void on_member_gone(void *ctx, const struct peer_info *peer) {
  ((struct crowd *)ctx)->n_gone++;
}

static void spin(struct crowd *c) {
  for (int i = 0; i < 200; i++) uv_run(&c->loop, UV_RUN_NOWAIT);
}

static int dial(const struct sockaddr_in *to) {
  static const char beat[FRAME_HEADER_SIZE] = {[4] = MSG_HEARTBEAT};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (const struct sockaddr *)to, sizeof(*to)), 0);
  assert_int_equal(send(fd, frame_preface, FRAME_PREFACE_SIZE, MSG_NOSIGNAL), FRAME_PREFACE_SIZE);
  assert_int_equal(send(fd, beat, sizeof(beat), MSG_NOSIGNAL), sizeof(beat));
  return fd;
}

static void gather(struct crowd *c) {
  static const struct peers_callbacks callbacks = {
      .on_msg = on_member, .on_gone = on_member_gone, .on_deadline = on_deadline};
  union socket_address at = {.v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};
  socklen_t len = sizeof(at);
  struct err e = ERR_INIT;
  *c = (struct crowd){.n = 0};
  uv_loop_init(&c->loop);
  c->peers = peers_create(&(struct peers_options){
      .loop = &c->loop, .max = 1000, .user_bytes = SHARE, .seed = 1, .cb = &callbacks, .ctx = c});
  int listener = socket_bind(&at, 0);
  assert_int_equal(getsockname(listener, &at.any, &len), 0);
  if (peers_listen(c->peers, listener, false, &e) < 0) fail_msg("%s", e.text);
  for (size_t i = 0; i < MEMBERS; i++) {
    c->fds[i] = dial(&at.v4);
    while (c->n == i) uv_run(&c->loop, UV_RUN_ONCE);
  }
}

static void disperse(struct crowd *c) {
  for (size_t i = 0; i < MEMBERS; i++) close(c->fds[i]);
  peers_close_all(c->peers);
  uv_run(&c->loop, UV_RUN_DEFAULT);
  peers_destroy(c->peers);
  assert_int_equal(uv_loop_close(&c->loop), 0);
}

static void weigh(struct crowd *c) {
  assert_true(peers_deadline(c->peers) < UINT64_MAX);
  peers_expire(c->peers, peers_deadline(c->peers));
  spin(c);
}

/* Each of the first n begins a message that it does not end. */
static void begin_messages(struct crowd *c, size_t n) {
  char *part = xcalloc(1, UNFINISHED);
  le32_put(part, FRAME_MAX_TO_DAEMON);
  le16_put(part + 4, MSG_HEARTBEAT);
  for (size_t i = 0; i < n; i++)
    for (size_t at = 0; at < UNFINISHED;) {
      ssize_t sent = send(c->fds[i], part + at, UNFINISHED - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) at += (size_t)sent;
      uv_run(&c->loop, UV_RUN_NOWAIT);
    }
  free(part);
  spin(c);
}

static void test_unfinished_messages_of_a_user(void **state) {
  struct crowd c;
  gather(&c);
  begin_messages(&c, 10);
  weigh(&c);
  assert_int_equal(c.n_gone, 0);
  disperse(&c);
  gather(&c);
  begin_messages(&c, MEMBERS);
  weigh(&c);
  assert_in_range(c.n_gone, MEMBERS - SHARE / UNFINISHED, MEMBERS / 2 + MEMBERS / 4);
  size_t gone = c.n_gone;
  weigh(&c);
  assert_int_equal(c.n_gone, gone);
  disperse(&c);
}

static void test_unread_messages_of_a_user(void **state) {
  struct crowd c;
  char *text = xcalloc(1, UNREAD);
  gather(&c);
  for (int k = 0; k < 16; k++)
    for (size_t i = 0; i < 4; i++) peers_send(c.peers, c.ids[i], bytes_create(text, UNREAD));
  weigh(&c);
  assert_in_range(c.n_gone, 1, 4);
  disperse(&c);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_only_the_control_socket_is_local),
      cmocka_unit_test(test_unfinished_messages_of_a_user),
      cmocka_unit_test(test_unread_messages_of_a_user),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
