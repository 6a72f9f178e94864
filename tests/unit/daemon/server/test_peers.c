/* SPDX-License-Identifier: Apache-2.0 */
/* peers: which connections come over the control socket is what peers_listen was told, whatever address they have; and
 * how much memory the connections of one user may hold; and when a peer gets another ticket. */

#include "daemon/server/peers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "common/buf.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "proto/frame.h"
#include "common/net/socket.h"
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

UNIT_TEST(test_only_the_control_socket_is_local) {
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
  if (c->n < MEMBERS) c->ids[c->n] = peer->id;
  c->n++;
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

static void gather(struct crowd *c, size_t user_bytes) {
  static const struct peers_callbacks callbacks = {
      .on_msg = on_member, .on_gone = on_member_gone, .on_deadline = on_deadline};
  union socket_address at = {.v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};
  socklen_t len = sizeof(at);
  struct err e = ERR_INIT;
  *c = (struct crowd){.n = 0};
  uv_loop_init(&c->loop);
  c->peers = peers_create(&(struct peers_options){
      .loop = &c->loop, .max = 1000, .user_bytes = user_bytes, .seed = 1, .cb = &callbacks, .ctx = c});
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

UNIT_TEST(test_unfinished_messages_of_a_user) {
  struct crowd c;
  gather(&c, SHARE);
  begin_messages(&c, 10);
  weigh(&c);
  assert_int_equal(c.n_gone, 0);
  disperse(&c);
  gather(&c, SHARE);
  begin_messages(&c, MEMBERS);
  weigh(&c);
  assert_in_range(c.n_gone, MEMBERS - SHARE / UNFINISHED, MEMBERS / 2 + MEMBERS / 4);
  size_t gone = c.n_gone;
  weigh(&c);
  assert_int_equal(c.n_gone, gone);
  disperse(&c);
}

UNIT_TEST(test_unread_messages_of_a_user) {
  struct crowd c;
  char *text = xcalloc(1, UNREAD);
  gather(&c, SHARE);
  for (int k = 0; k < 16; k++)
    for (size_t i = 0; i < 4; i++) peers_send(c.peers, c.ids[i], bytes_create(text, UNREAD));
  weigh(&c);
  assert_in_range(c.n_gone, 1, 4);
  disperse(&c);
  free(text);
}

/* Pauses. ---------------------------------------------------------------------------------------------------------- */

static void beat(const struct crowd *c, size_t i) {
  static const char message[FRAME_HEADER_SIZE] = {[4] = MSG_HEARTBEAT};
  assert_int_equal(send(c->fds[i], message, sizeof(message), MSG_NOSIGNAL), sizeof(message));
}

UNIT_TEST(test_a_pause) {
  struct crowd c;
  gather(&c, (size_t)64 << 30); /* so that nobody weighs them */
  for (size_t i = 0; i < 3; i++) peers_pause(c.peers, c.ids[i]);
  peers_pause(c.peers, c.ids[0]); /* it is paused */
  peers_pause(c.peers, 12345);    /* nobody */
  uint64_t at = peers_deadline(c.peers);
  assert_in_range(at, boot_ms(), boot_ms() + PEERS_PAUSE_MS);
  for (size_t i = 0; i < 4; i++) beat(&c, i);
  spin(&c);
  peers_expire(c.peers, at - 1);
  spin(&c);
  assert_int_equal(c.n, MEMBERS + 1); /* that of the one who is read from */
  peers_close(c.peers, c.ids[2]);     /* while it is paused */
  peers_expire(c.peers, at + PEERS_PAUSE_MS);
  spin(&c);
  assert_int_equal(c.n, MEMBERS + 3);
  assert_int_equal(peers_deadline(c.peers), UINT64_MAX);
  peers_pause(c.peers, c.ids[0]);
  beat(&c, 0);
  disperse(&c); /* while it is paused */
  assert_int_equal(c.n, MEMBERS + 3);
}

/* Tickets. --------------------------------------------------------------------------------------------------------- */

static uint64_t slept_ms; /* the machine was suspended, as far as boot_ms knows */
uint64_t __real_boot_ms(void);
uint64_t __wrap_boot_ms(void);

uint64_t __wrap_boot_ms(void) {
  return __real_boot_ms() + slept_ms;
}

struct guest {
  struct conn conn;
  size_t greetings;
  char ticket[TICKET_TEXT_MAX + 1];
};

static void on_guest_msg(struct conn *c, struct msg *m) {
  struct guest *g = c->owner;
  assert_int_equal(m->type, MSG_GREETING);
  snprintf(g->ticket, sizeof(g->ticket), "%s", m->greeting.ticket);
  g->greetings++;
}

static void on_guest_end(struct conn *c, int code, const char *reason) {
  conn_close(c);
}

static void on_guest_closed(struct conn *c) {}

static void heartbeat(struct crowd *c, struct guest *g, size_t n) {
  struct msg m;
  msg_init(&m, MSG_HEARTBEAT);
  conn_send(&g->conn, &m);
  while (c->n < n) uv_run(&c->loop, UV_RUN_ONCE);
  spin(c);
}

UNIT_TEST(test_a_ticket_is_renewed_before_it_is_too_old) {
  static const struct peers_callbacks callbacks = {
      .on_msg = on_member, .on_gone = on_member_gone, .on_deadline = on_deadline};
  static const struct conn_callbacks guest_callbacks = {
      .on_msg = on_guest_msg, .on_end = on_guest_end, .on_closed = on_guest_closed};
  static const struct key key = {.bytes = {1, 2, 3}, .uid = KEY_OWN};
  char first[TICKET_TEXT_MAX + 1];
  struct err e = ERR_INIT;
  struct crowd c = {.n = 0};
  struct guest g = {.greetings = 0};
  union socket_address at = {.v4 = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}};
  socklen_t len = sizeof(at);
  uv_loop_init(&c.loop);
  c.peers = peers_create(
      &(struct peers_options){.loop = &c.loop, .max = 10, .seed = 1, .key = &key, .cb = &callbacks, .ctx = &c});
  int listener = socket_bind(&at, 0);
  assert_int_equal(getsockname(listener, &at.any, &len), 0);
  if (peers_listen(c.peers, listener, false, &e) < 0) fail_msg("%s", e.text);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, &at.any, len), 0);
  conn_init_tcp(&g.conn, &c.loop, &guest_callbacks, &g, false);
  assert_int_equal(uv_tcp_open(&g.conn.tcp, fd), 0);
  conn_use_key(&g.conn, &key);
  if (conn_start(&g.conn, 5000, &e) < 0) fail_msg("%s", e.text);
  heartbeat(&c, &g, 1);
  assert_int_equal(g.greetings, 1);
  memcpy(first, g.ticket, sizeof(first));
  slept_ms = 1000ull * CHANNEL_TICKET_S / 2 - 60000;
  heartbeat(&c, &g, 2);
  assert_int_equal(g.greetings, 1);
  slept_ms += 60000;
  for (size_t n = 3; n < 5; n++) { /* once */
    heartbeat(&c, &g, n);
    assert_int_equal(g.greetings, 2);
  }
  assert_string_not_equal(g.ticket, first);
  conn_close(&g.conn);
  peers_close_all(c.peers);
  uv_run(&c.loop, UV_RUN_DEFAULT);
  peers_destroy(c.peers);
  assert_int_equal(uv_loop_close(&c.loop), 0);
  slept_ms = 0;
}
