/* SPDX-License-Identifier: Apache-2.0 */
/* peers: which connections come over the control socket is what peers_listen was told, whatever address they have. */

#include "daemon/server/peers.h"

#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/buf.h"
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

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_only_the_control_socket_is_local)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
