/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv and a store that is played byte by byte: answers in pieces, late, twice, never; and its end at every bad
 * moment. */

#include "tests/rig/sdk.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "proto/c10d.h"
#include "tests/rig/unit.h"

/* ------------------------------------------------------------- the stage */

/* A store that one thread plays, to one connection after the other. */
static struct stage {
  int listener;
  uint16_t port;
  pthread_t thread;
  void (*play)(int fd, int connection);
  int connections; /* that will come */
  char wrong[256]; /* what it was told and did not expect; read it when the thread has ended */
} stage;

static size_t from_hex(const char *hex, uint8_t *out) {
  size_t n = 0;
  for (unsigned byte; *hex; hex += 2) {
    while (*hex == ' ') hex++;
    if (sscanf(hex, "%2x", &byte) != 1) break;
    out[n++] = (uint8_t)byte;
  }
  return n;
}

static void say(int fd, const char *hex) {
  uint8_t bytes[256];
  size_t n = from_hex(hex, bytes);
  (void)!send(fd, bytes, n, MSG_NOSIGNAL);
}

static void say_slowly(int fd, const char *hex) {
  uint8_t bytes[256];
  size_t n = from_hex(hex, bytes);
  for (size_t i = 0; i < n; i++) {
    (void)!send(fd, bytes + i, 1, MSG_NOSIGNAL);
    poll(NULL, 0, 1);
  }
}

static void expect(int fd, const char *hex) {
  uint8_t bytes[256], got[256];
  size_t n = from_hex(hex, bytes);
  ssize_t have = recv(fd, got, n, MSG_WAITALL);
  if (have == (ssize_t)n && memcmp(bytes, got, n) == 0) return;
  int len = snprintf(stage.wrong, sizeof(stage.wrong), "expected %s, got", hex);
  for (ssize_t i = 0; i < have && len < 240; i++) len += snprintf(stage.wrong + len, 16, " %02x", got[i]);
}

/* VALIDATE, PING with our process id, and its answer. */
static void greet(int fd) {
  char hex[64];
  uint32_t pid = (uint32_t)getpid();
  snprintf(hex, sizeof(hex), "00cef7853c 0d %02x%02x%02x%02x", pid & 255, pid >> 8 & 255, pid >> 16 & 255, pid >> 24);
  expect(fd, hex);
  say(fd, hex + 14);
}

#define SET_K "01 0200000000000000 2f6b 0200000000000000 7631"

/* What warm_up asks for. */
static void greet_warmly(int fd) {
  greet(fd);
  expect(fd, SET_K);
}

/* Until the test has come to a point, so that nothing hangs on how fast a machine is. */
static atomic_int point;

static void await_point(int n) {
  while (atomic_load(&point) < n) poll(NULL, 0, 1);
}

static void *perform(void *arg) {
  for (int i = 0; i < stage.connections; i++) {
    int fd = accept(stage.listener, NULL, NULL);
    if (fd < 0) break;
    stage.play(fd, i);
    close(fd);
  }
  return NULL;
}

static int listen_at(uint16_t *port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(*port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof(a);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
  *port = ntohs(a.sin_port);
  return fd;
}

static void open_stage(void (*play)(int fd, int connection), int connections) {
  stage = (struct stage){.play = play, .connections = connections};
  atomic_store(&point, 0);
  stage.listener = listen_at(&stage.port);
  assert_int_equal(listen(stage.listener, 8), 0);
  pthread_create(&stage.thread, NULL, perform, NULL);
}

static void close_stage(void) {
  pthread_join(stage.thread, NULL);
  close(stage.listener);
  if (stage.wrong[0]) fail_msg("%s", stage.wrong);
}

/* ------------------------------------------------------------- the worker */

static struct sdk_rig rig;
static struct rdzv *r;

static void join(void) {
  sdk_rig_open_store(&rig, 1, 2, stage.port);
  r = sdk_rig_join(&rig);
}

static void leave(void) {
  rdzv_finish(r);
  close_stage(); /* before the rig: a play may close the round */
  sdk_rig_close(&rig);
}

static uint64_t now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void check_error(int rc, int code, const char *sentence) {
  if (rc != code || !strstr(rdzv_error(r), sentence))
    fail_msg("%d \"%s\", expected %d \"%s\"", rc, rdzv_error(r), code, sentence);
}

#define SET_K  "01 0200000000000000 2f6b 0200000000000000 7631"
#define GET_K  "05 0100000000000000 0200000000000000 2f6b 03 0200000000000000 2f6b"
#define WAIT_K "06 0100000000000000 0200000000000000 2f6b"
#define ADD_N  "04 0200000000000000 2f6e 0100000000000000"
#define V1     "0200000000000000 7631"
#define CANCEL "0c"

static void check_get(int timeout_ms) {
  char *value;
  size_t size;
  int rc = rdzv_store_get(r, "k", &value, &size, timeout_ms);
  if (rc) fail_msg("%d: %s", rc, rdzv_error(r));
  assert_int_equal(size, 2);
  assert_string_equal(value, "v1");
  free(value);
}

static void check_add(int64_t expected) {
  int64_t total = 0;
  int rc = rdzv_store_add(r, "n", 1, &total, PATIENCE_MS);
  if (rc) fail_msg("%d: %s", rc, rdzv_error(r));
  assert_int_equal(total, expected);
}

/* Connected, before short deadlines begin. */
static void join_warmly(void) {
  join();
  if (rdzv_store_set(r, "k", "v1", 2, PATIENCE_MS)) fail_msg("%s", rdzv_error(r));
}

/* ----------------------------------------------------------------- tests */

static void play_pieces(int fd, int connection) {
  char nonce[16];
  uint32_t pid = (uint32_t)getpid();
  snprintf(nonce, sizeof(nonce), "%02x%02x%02x%02x", pid & 255, pid >> 8 & 255, pid >> 16 & 255, pid >> 24);
  expect(fd, "00cef7853c 0d");
  expect(fd, nonce);
  say_slowly(fd, nonce);
  expect(fd, SET_K GET_K);
  say_slowly(fd, "00" V1);
  expect(fd, GET_K);
  say_slowly(fd, "01 0000000000000000");
  expect(fd, WAIT_K);
  say_slowly(fd, "00");
  expect(fd, GET_K);
  say_slowly(fd, "00" V1);
}

UNIT_TEST(test_answers_in_pieces) {
  open_stage(play_pieces, 1);
  join();
  assert_int_equal(rdzv_store_set(r, "k", "v1", 2, PATIENCE_MS), 0);
  check_get(PATIENCE_MS);
  check_get(PATIENCE_MS);
  leave();
}

/* A wait is cancelled; what follows is its own answer and the confirmation, or the confirmation alone. */
static void play_cancel(int fd, int connection) {
  greet_warmly(fd);
  expect(fd, GET_K);
  say(fd, "01 0000000000000000");
  expect(fd, WAIT_K);
  expect(fd, CANCEL);
  say(fd, connection == 0 ? "00 01" : "01");
  expect(fd, ADD_N);
  say(fd, "0700000000000000");
  expect(fd, GET_K);
  say(fd, "00" V1);
}

static void check_cancel(void) {
  char *value = NULL;
  join_warmly();
  check_error(rdzv_store_get(r, "k", &value, NULL, 1000), -ETIMEDOUT,
              "store get \"k\": it did not come within 1000 ms");
  assert_null(value);
  check_add(7);
  check_get(PATIENCE_MS);
  rdzv_finish(r);
  sdk_rig_close(&rig);
}

UNIT_TEST(test_cancelled_waits) {
  open_stage(play_cancel, 2);
  check_cancel();
  check_cancel();
  close_stage();
}

/* The answer of the wait comes alone first; that of the cancellation when the next call has begun to wait for it. */
static void play_torn_cancel(int fd, int connection) {
  greet_warmly(fd);
  expect(fd, GET_K);
  say(fd, "01 0000000000000000");
  expect(fd, WAIT_K);
  expect(fd, CANCEL);
  say(fd, "00");
  await_point(1);
  poll(NULL, 0, 20);
  say(fd, "01");
  expect(fd, ADD_N);
  say_slowly(fd, "ffffffffffffffff");
}

UNIT_TEST(test_cancellation_in_two_pieces) {
  char *value;
  open_stage(play_torn_cancel, 1);
  join_warmly();
  check_error(rdzv_store_get(r, "k", &value, NULL, 1000), -ETIMEDOUT, "did not come");
  atomic_store(&point, 1);
  check_add(-1);
  leave();
}

/* RDZV_REJOIN came before the wait, and nothing comes any more. */
static void play_silence(int fd, int connection) {
  greet_warmly(fd);
  await_point(1);
}

UNIT_TEST(test_a_round_that_ends_before_a_wait) {
  int64_t total;
  open_stage(play_silence, 1);
  join_warmly();
  assert_int_equal(rdzv_can_rejoin(r), 0);
  for (int i = 0; i < 100 && !rig.can_rejoin; i++) pump(&rig, 5);
  sdk_server_request(rig.s, NULL, RDZV_REJOIN, 0);
  pump(&rig, 5);
  assert_int_equal(rdzv_requested(r), RDZV_REJOIN);
  check_error(rdzv_store_add(r, "n", 1, &total, PATIENCE_MS), -ECANCELED, "rdzv_rejoin waits for the next one");
  atomic_store(&point, 1);
  leave();
}

static void play_late(int fd, int connection) {
  greet_warmly(fd);
  expect(fd, ADD_N);
  await_point(1);
  say(fd, "0100000000000000");
  expect(fd, ADD_N);
  say(fd, "0200000000000000");
  expect(fd, GET_K);
  say(fd, "00 0200");
  await_point(2);
  say(fd, "000000000000 7631");
  expect(fd, ADD_N);
  say(fd, "0300000000000000");
}

UNIT_TEST(test_late_answers_are_dropped) {
  int64_t total = 42;
  char *value;
  open_stage(play_late, 1);
  join_warmly();
  check_error(rdzv_store_add(r, "n", 1, &total, 20), -ETIMEDOUT, "store add \"n\": the store did not answer in time");
  assert_int_equal(total, 42);
  atomic_store(&point, 1);
  check_add(2);
  check_error(rdzv_store_get(r, "k", &value, NULL, 20), -ETIMEDOUT, "did not answer");
  atomic_store(&point, 2);
  check_add(3);
  leave();
}

static void play_dumb(int fd, int connection) {
  char byte;
  greet_warmly(fd);
  expect(fd, ADD_N);
  while (recv(fd, &byte, 1, 0) > 0) {
  }
}

UNIT_TEST(test_a_store_that_never_answers) {
  int64_t n;
  open_stage(play_dumb, 1);
  join_warmly();
  uint64_t begin = now_ms();
  for (int i = 0; i < 5; i++) check_error(rdzv_store_add(r, "n", 1, &n, 40), -ETIMEDOUT, "did not answer in time");
  check_error(rdzv_store_set(r, "n", "", 0, 0), -ETIMEDOUT, "did not answer in time");
  assert_true(now_ms() - begin >= 195);
  leave();
}

/* What did not fit into the socket goes on with the next call. */
static void play_slow_reader(int fd, int connection) {
  enum { SIZE = 1 + 8 + 2 + 8 + 8 * 1024 * 1024 };
  char *bytes = malloc(SIZE);
  greet_warmly(fd);
  await_point(1);
  if (recv(fd, bytes, SIZE, MSG_WAITALL) != SIZE || bytes[0] != 1 || bytes[SIZE - 1] != 'x')
    snprintf(stage.wrong, 64, "no whole SET");
  free(bytes);
  expect(fd, ADD_N);
  say(fd, "0100000000000000");
}

UNIT_TEST(test_a_store_that_reads_late) {
  char *big = malloc(RDZV_VALUE_MAX);
  memset(big, 'x', RDZV_VALUE_MAX);
  open_stage(play_slow_reader, 1);
  join_warmly();
  check_error(rdzv_store_set(r, "k", big, RDZV_VALUE_MAX, 50), -ETIMEDOUT, "store set \"k\"");
  atomic_store(&point, 1);
  memset(big, 'y', RDZV_VALUE_MAX); /* the value is not looked at any more */
  check_add(1);
  free(big);
  leave();
}

static const char *last_words;

static void play_death(int fd, int connection) {
  greet(fd);
  expect(fd, GET_K);
  say(fd, last_words);
}

static void check_death(const char *words, int code, const char *sentence) {
  char *value = NULL;
  size_t size = 42;
  int64_t n;
  last_words = words;
  open_stage(play_death, 1);
  join();
  check_error(rdzv_store_get(r, "k", &value, &size, PATIENCE_MS), code, sentence);
  check_error(rdzv_store_set(r, "k", "v", 1, PATIENCE_MS), code, sentence); /* no SIGPIPE */
  check_error(rdzv_store_add(r, "n", 1, &n, PATIENCE_MS), code, sentence);
  assert_null(value);
  assert_int_equal(size, 42);
  leave();
}

UNIT_TEST(test_death_in_the_middle) {
  const char *gone = "the store closed the connection: the round is over, or node rank 0 (127.0.0.1) is gone";
  check_death("", -ECONNRESET, gone);
  check_death("00", -ECONNRESET, gone);
  check_death("00 05000000", -ECONNRESET, gone);
  check_death("00 0500000000000000 7631", -ECONNRESET, gone);
  check_death("01 0000000000000000", -ECONNRESET, gone); /* while we wait */
}

UNIT_TEST(test_nonsense) {
  check_death("00 ffffffffffffffff", -EPROTO, "the store's answer is malformed");
  last_words = "00" V1 "00";
  open_stage(play_death, 1);
  join();
  check_get(PATIENCE_MS);
  check_error(rdzv_store_set(r, "k", "v", 1, PATIENCE_MS), -EPROTO, "sent an answer that was not due");
  leave();
}

/* Nothing is on its way when it closes: a call without an answer notices all the same. */
static void play_leave(int fd, int connection) {
  greet(fd);
}

UNIT_TEST(test_a_set_notices_the_end) {
  int rc = 0;
  open_stage(play_leave, 1);
  join();
  for (int i = 0; i < 2000 && rc == 0; i++) {
    rc = rdzv_store_set(r, "k", "v", 1, PATIENCE_MS);
    poll(NULL, 0, 1);
  }
  check_error(rc, -ECONNRESET, "store set \"k\": the store closed the connection");
  leave();
}

static void play_impostor(int fd, int connection) {
  expect(fd, "00cef7853c");
  say(fd, "48545450 2f312e31");
}

UNIT_TEST(test_who_answers_is_no_store) {
  open_stage(play_impostor, 1);
  join();
  check_error(rdzv_store_set(r, "k", "v", 1, PATIENCE_MS), -EPROTO, "not a store");
  check_error(rdzv_store_set(r, "k", "v", 1, PATIENCE_MS), -EPROTO, "not a store");
  leave();
}

/* Not let in at first: tried again. */
static void play_closed_door(int fd, int connection) {
  if (connection < 2) return;
  greet(fd);
  expect(fd, GET_K);
  say(fd, "00" V1);
}

UNIT_TEST(test_a_door_that_opens) {
  open_stage(play_closed_door, 3);
  join();
  check_get(PATIENCE_MS);
  leave();
}

static void *listen_later(void *arg) {
  poll(NULL, 0, 150);
  assert_int_equal(listen(stage.listener, 8), 0);
  return perform(NULL);
}

UNIT_TEST(test_a_store_that_opens_late) {
  char *value;
  stage = (struct stage){.play = play_closed_door, .connections = 3};
  stage.listener = listen_at(&stage.port); /* bound, so nobody else gets it, but it refuses */
  join();
  check_error(rdzv_store_get(r, "k", &value, NULL, 60), -ECONNREFUSED, "port ");
  assert_non_null(strstr(rdzv_error(r), "Connection refused; the round is over, or node rank 0 is gone"));
  check_error(rdzv_store_get(r, "k", &value, NULL, 0), -ECONNREFUSED, "127.0.0.1");
  pthread_create(&stage.thread, NULL, listen_later, NULL);
  check_get(PATIENCE_MS);
  leave();
}

static void play_wait(int fd, int connection) {
  char byte;
  greet(fd);
  expect(fd, GET_K);
  say(fd, "01 0000000000000000");
  expect(fd, WAIT_K);
  sdk_server_request(rig.s, NULL, 0, 1); /* is heard, and the wait goes on */
  poll(NULL, 0, 20);
  sdk_server_close_round(rig.s);
  while (recv(fd, &byte, 1, 0) > 0) {
  }
}

/* The agent's word counts, also while we wait for the store. */
UNIT_TEST(test_the_round_ends_in_a_wait) {
  char *value;
  open_stage(play_wait, 1);
  join();
  check_error(rdzv_store_get(r, "k", &value, NULL, PATIENCE_MS), -ESTALE, "store get \"k\": round 4 is over");
  check_error(rdzv_store_set(r, "k", "v", 1, PATIENCE_MS), -ESTALE, "store set \"k\": round 4 is over");
  leave();
}

UNIT_TEST(test_no_store_in_this_job) {
  sdk_rig_open_store(&rig, 1, 2, 0);
  r = sdk_rig_join(&rig);
  check_error(rdzv_store_set(r, "k", "v", 1, PATIENCE_MS), -ENOTSUP, "--store worker");
  rdzv_finish(r);
  sdk_rig_close(&rig);
}

int main(void) {
  alarm(100);
  return unit_run(NULL, NULL);
}
