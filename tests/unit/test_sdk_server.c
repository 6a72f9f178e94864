/* The agent's end of the socket: workers that misbehave (raw sockets play them), answers that find nobody. */

#include "tests/unit/sdk_help.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

static int raw_connect(const struct desk *d) {
  struct sockaddr_un addr = {.sun_family = AF_UNIX};
  const char *name = sdk_server_name(d->s);
  size_t n = strlen(name);
  memcpy(addr.sun_path, name, n);
  addr.sun_path[0] = '\0';
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  assert_int_equal(
      connect(fd, (struct sockaddr *)&addr, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)), 0);
  return fd;
}

static struct sdk_head head(uint16_t type) {
  return (struct sdk_head){.magic = SDK_MAGIC, .version = SDK_VERSION, .type = type};
}

static void raw_hello(struct desk *d, int fd) {
  struct sdk_hello h = {.head = head(SDK_HELLO), .round = ROUND};
  struct sdk_welcome w;
  assert_int_equal(send(fd, &h, sizeof(h), 0), sizeof(h));
  pump(d, 1000);
  pump(d, 0);
  assert_int_equal(recv(fd, &w, sizeof(w), 0), sizeof(w));
  assert_int_equal(w.head.type, SDK_WELCOME);
}

/* Sends the bytes as one record; the answer must be a refusal that says so, then the end. */
static void check_bad(struct desk *d, bool greeted, const void *bytes, size_t n, const char *sentence) {
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

static void test_bad_records(void **state) {
  struct desk d;
  static char long_record[SDK_RECORD_MAX + 1];
  desk_open(&d, 1, 2);
  struct sdk_hello h = {.head = head(SDK_HELLO), .round = ROUND};
  struct sdk_progress p = {.head = head(SDK_PROGRESS)};
  struct sdk_exchange x = {.head = head(SDK_EXCHANGE), .size = 4, .key = "k"};
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
  x.size = 0;
  check_bad(&d, true, &x, sizeof(x), "a value of 0 bytes");
  x.size = SDK_VALUE_MAX + 1;
  check_bad(&d, true, &x, sizeof(x), "a value of 257 bytes");
  x.size = 1;
  memset(x.key, 'k', sizeof(x.key)); /* no end */
  check_bad(&d, true, &x, sizeof(x), "without a key");
  memset(x.key, 0, sizeof(x.key));
  check_bad(&d, true, &x, sizeof(x), "without a key");
  struct sdk_who who = {.head = head(SDK_WHO)};
  check_bad(&d, true, &who, sizeof(who), "without a key");
  h.head.version = 9;
  check_bad(&d, false, &h, sizeof(h), "version 9");
  assert_int_equal(d.given, 0);
  desk_close(&d);
}

static int part_rank(struct rdzv *r) {
  return rdzv_rank(r);
}

/* A worker that asks and asks and never reads is let go; the others do not notice. */
static void test_who_does_not_read_is_let_go(void **state) {
  struct desk d;
  desk_open(&d, 1, 2);
  int fd = raw_connect(&d);
  raw_hello(&d, fd);
  struct sdk_exchange x = {.head = head(SDK_EXCHANGE), .size = 1, .key = "again"};
  for (int i = 0; i < 100000 && d.troubles == 0; i++) {
    if (send(fd, &x, sizeof(x), MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) break;
    pump(&d, 0);
  }
  assert_int_equal(d.troubles, 1);
  assert_non_null(strstr(d.trouble, "does not read"));
  close(fd);
  struct player p;
  drive(&d, &p, 1, part_rank, NULL);
  assert_int_equal(p.result, 1);
  desk_close(&d);
}

/* An exchange gives its value and its connection ends; the answer must find nobody. */
static void test_gone_before_the_answer(void **state) {
  struct desk d;
  desk_open(&d, 1, 2);
  d.answer = false;
  int fd = raw_connect(&d);
  raw_hello(&d, fd);
  struct sdk_exchange x = {.head = head(SDK_EXCHANGE), .size = 1, .key = "k"};
  assert_int_equal(send(fd, &x, sizeof(x), 0), sizeof(x));
  pump(&d, 1000);
  assert_int_equal(d.given, 1);
  close(fd);
  pump(&d, 1000);
  sdk_server_exchanged(d.s, ROUND, "k", "ab", 2);
  sdk_server_exchanged(d.s, ROUND, "unknown", "ab", 2);
  sdk_server_exchanged(d.s, ROUND - 1, "k", "ab", 2);
  sdk_server_refuse(d.s, ROUND, "k", -EINVAL, "late");
  pump(&d, 0);
  assert_int_equal(d.troubles, 0);
  desk_close(&d);
}

static void test_path_socket(void **state) {
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
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_bad_records),
      cmocka_unit_test(test_who_does_not_read_is_let_go),
      cmocka_unit_test(test_gone_before_the_answer),
      cmocka_unit_test(test_path_socket),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
