/* SPDX-License-Identifier: Apache-2.0 */
/* The agent's end of the socket: workers that misbehave (raw sockets play them). */

#include "tests/rig/sdk.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "tests/rig/unit.h"

static int raw_connect(const struct sdk_rig *d) {
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  const char *name = sdk_server_name(d->s);
  size_t n = strlen(name);
  memcpy(addr.sun_path, name, n);
  addr.sun_path[0] = '\0';
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_int_equal(connect(fd, (struct sockaddr *)&addr, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)), 0);
  return fd;
}

static struct sdk_head head(uint16_t type) {
  return (struct sdk_head){.magic = SDK_MAGIC, .version = SDK_VERSION, .type = type};
}

static void raw_hello(struct sdk_rig *d, int fd) {
  struct sdk_hello h = {.head = head(SDK_HELLO), .round = ROUND};
  struct sdk_welcome w;
  assert_int_equal(send(fd, &h, sizeof(h), 0), sizeof(h));
  pump(d, 1000);
  pump(d, 0);
  assert_int_equal(recv(fd, &w, sizeof(w), 0), sizeof(w));
  assert_int_equal(w.head.type, SDK_WELCOME);
}

/* Sends the bytes as one record; the answer must be a refusal that says so, then the end. */
static void check_bad(struct sdk_rig *d, bool greeted, const void *bytes, size_t n, const char *sentence) {
  struct sdk_refused f = {0};
  int fd = raw_connect(d), troubles = d->troubles;
  if (greeted) raw_hello(d, fd);
  assert_int_equal(send(fd, bytes, n, 0), n);
  pump(d, 1000);
  pump(d, 0);
  ssize_t got = recv(fd, &f, sizeof(f), 0);
  if (got < 0 && errno == ECONNRESET) got = recv(fd, &f, sizeof(f), 0);
  assert_int_equal(got, sizeof(f));
  assert_int_equal(f.head.type, SDK_REFUSED);
  assert_int_equal(f.code, -EPROTO);
  if (!strstr(f.text, sentence)) fail_msg("\"%s\" does not say \"%s\"", f.text, sentence);
  assert_int_equal(recv(fd, &f, sizeof(f), 0), 0);
  assert_int_equal(d->troubles, troubles + 1);
  assert_non_null(strstr(d->trouble, sentence));
  close(fd);
}

UNIT_TEST(test_bad_records) {
  struct sdk_rig d;
  static char long_record[SDK_RECORD_MAX + 1];
  sdk_rig_open(&d, 1, 2);
  struct sdk_hello h = {.head = head(SDK_HELLO), .round = ROUND};
  struct sdk_progress p = {.head = head(SDK_PROGRESS)};
  struct sdk_head other = head(SDK_WELCOME);
  check_bad(&d, false, "x", 1, "does not speak the protocol");
  check_bad(&d, false, "GET / HTTP/1.1\r\n", 16, "does not speak the protocol");
  check_bad(&d, false, long_record, sizeof(long_record), "too long");
  check_bad(&d, false, &p, sizeof(p), "before HELLO");
  check_bad(&d, false, &h, sizeof(h) - 1, "expected");
  check_bad(&d, true, &h, sizeof(h), "HELLO twice");
  check_bad(&d, true, &other, sizeof(other), "workers do not send");
  other.type = 999;
  check_bad(&d, true, &other, sizeof(other), "workers do not send");
  other.type = 0;
  check_bad(&d, true, &other, sizeof(other), "workers do not send");
  check_bad(&d, true, &p, sizeof(p) - 1, "expected");
  struct sdk_checkpointed c = {.head = head(SDK_CHECKPOINTED), .checkpoint = 1};
  check_bad(&d, false, &c, sizeof(c), "before HELLO");
  check_bad(&d, true, &c, sizeof(c), "checkpoint 1, which was not requested");
  sdk_server_request(d.s, NULL, 0, 1);
  c.checkpoint = 0;
  check_bad(&d, true, &c, sizeof(c), "checkpoint 0, which was not requested");
  c.checkpoint = 2;
  check_bad(&d, true, &c, sizeof(c), "checkpoint 2, which was not requested");
  sdk_rig_close(&d);
}

/* Round 0 is the current one. If there is none, that is no trouble. */
UNIT_TEST(test_whatever_round) {
  struct sdk_rig d;
  struct sdk_hello h = {.head = head(SDK_HELLO)};
  union sdk_record r;
  sdk_rig_open(&d, 1, 2);
  for (int i = 0; i < 2; i++) {
    int fd = raw_connect(&d);
    assert_int_equal(send(fd, &h, sizeof(h), 0), sizeof(h));
    pump(&d, 1000);
    pump(&d, 0);
    assert_true(recv(fd, &r, sizeof(r), 0) > 0);
    assert_int_equal(r.head.type, i ? SDK_REFUSED : SDK_WELCOME);
    if (i) assert_string_equal(r.refused.text, "no round runs here");
    close(fd);
    sdk_server_close_round(d.s);
  }
  pump(&d, 0);
  assert_int_equal(d.troubles, 0);
  sdk_rig_close(&d);
}

/* Of a record of another version only the head and librdzv's release are looked at. */
UNIT_TEST(test_other_versions) {
  struct sdk_rig d;
  struct {
    struct sdk_hello hello;
    char more[100];
  } newer = {.hello = {.head = head(SDK_HELLO), .release = "0.2.0\033"}};
  struct sdk_head older[2] = {head(SDK_HELLO)}; /* version 6: round and local rank followed the head */
  sdk_rig_open(&d, 1, 2);
  newer.hello.head.version = SDK_VERSION + 1;
  older->version = 6;
  check_bad(&d, false, &newer, sizeof(newer),
            "librdzv 0.2.0? speaks version 10 of the workers' protocol, and rdzv-agent " RDZV_VERSION
            " version 9; install librdzv " RDZV_VERSION " where the worker runs");
  check_bad(&d, false, older, sizeof(older), "librdzv speaks version 6 of the workers' protocol, and rdzv-agent");
  check_bad(&d, true, &newer, sizeof(newer.hello.head), "librdzv speaks version 10 of");
  memset(newer.hello.release, 'x', sizeof(newer.hello.release)); /* no end */
  check_bad(&d, false, &newer, sizeof(newer), "librdzv xxxxxxxxxxxxxxx speaks version 10");
  sdk_rig_close(&d);
}

/* Two connections of one rank: it can as long as one of them can. */
UNIT_TEST(test_who_can_and_cannot_any_more) {
  struct sdk_rig d;
  struct sdk_head can = head(SDK_CAN_CHECKPOINT);
  struct sdk_head done = head(SDK_DONE);
  sdk_rig_open(&d, 1, 2);
  int fd[2] = {raw_connect(&d), raw_connect(&d)};
  for (int i = 0; i < 2; i++) {
    raw_hello(&d, fd[i]);
    for (int k = 0; k < 2; k++) assert_int_equal(send(fd[i], &can, sizeof(can), 0), sizeof(can));
    pump(&d, 1000);
  }
  assert_int_equal(d.can, 1);
  close(fd[0]);
  pump(&d, 1000);
  assert_int_equal(d.cannot, 0);
  assert_int_equal(send(fd[1], &done, sizeof(done), 0), sizeof(done));
  pump(&d, 1000);
  assert_int_equal(d.cannot, 1);
  close(fd[1]);
  pump(&d, 1000);
  assert_int_equal(d.cannot, 1);
  assert_int_equal(d.troubles, 0);
  sdk_rig_close(&d);
}

static int part_rank(struct rdzv *r) {
  return rdzv_rank(r);
}

/* A worker that never reads: it costs nothing, the others do not notice, and when it reads it is told the latest. */
UNIT_TEST(test_who_does_not_read) {
  struct sdk_rig d;
  struct player p;
  sdk_rig_open(&d, 1, 2);
  int fd = raw_connect(&d);
  raw_hello(&d, fd);
  for (uint32_t i = 0; i < 100000; i++) sdk_server_request(d.s, NULL, 0, i);
  sdk_server_request(d.s, NULL, RDZV_STOP, 0);
  drive(&d, &p, 1, part_rank, NULL);
  assert_int_equal(p.result, 1);
  struct sdk_request q = {0};
  for (int i = 0; i < 1000000 && q.bits != RDZV_STOP; i++) {
    pump(&d, 0);
    assert_int_equal(recv(fd, &q, sizeof(q), 0), sizeof(q));
  }
  assert_int_equal(q.bits, RDZV_STOP);
  assert_int_equal(d.troubles, 0);
  close(fd);
  sdk_rig_close(&d);
}

UNIT_TEST(test_path_socket) {
  struct sdk_server *s, *other;
  struct err e = ERR_INIT;
  char path[64];
  snprintf(path, sizeof(path), "/tmp/rdzv-sdk-%d", (int)getpid());
  assert_int_equal(sdk_server_create(&s, path, &e), 0);
  assert_int_equal(access(path, F_OK), 0);
  assert_int_equal(sdk_server_create(&other, path, &e), -EADDRINUSE);
  assert_non_null(strstr(e.text, path));
  assert_int_equal(access(path, F_OK), 0); /* the loser does not remove it */
  sdk_server_destroy(s);
  assert_int_equal(access(path, F_OK), -1);
  assert_int_equal(sdk_server_create(&s, "/no/such/folder/socket", &e), -ENOENT);
  assert_int_equal(sdk_server_create(&s, "@", &e), -EINVAL);
  sdk_server_destroy(NULL);
}

int main(void) {
  alarm(100);
  return unit_run(NULL, NULL);
}
