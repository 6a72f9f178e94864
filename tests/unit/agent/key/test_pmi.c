/* SPDX-License-Identifier: Apache-2.0 */
/* A key from mpiexec's key-value space, from a proxy that this test plays, and from Open MPI's number. */

#include "agent/key/pmi.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tests/rig/unit.h"

#define HEX "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"

enum { DEADLINE_MS = 10000 };

static void test_values_of_a_line(void **state) {
  static const char line[] = "cmd=get_result rc=0 msg=success value=abc=d";
  char out[8];
  assert_true(pmi_value(line, strlen(line), "value", out, sizeof out));
  assert_string_equal(out, "abc=d");
  assert_true(pmi_value(line, strlen(line), "rc", out, sizeof out));
  assert_string_equal(out, "0");
  assert_false(pmi_value(line, strlen(line), "cmd", out, sizeof out)); /* too long for out */
  assert_false(pmi_value(line, strlen(line), "alue", out, sizeof out));
  assert_false(pmi_value(line, strlen(line), "d", out, sizeof out));
  assert_false(pmi_value("", 0, "cmd", out, sizeof out));
}

static void test_answers_are_checked(void **state) {
  struct err e = ERR_INIT;
  assert_int_equal(pmi_check("cmd=barrier_out", 15, "barrier_out", NULL), 0);
  assert_int_equal(pmi_check("cmd=get_result rc=0", 19, "get_result", NULL), 0);
  assert_int_equal(pmi_check("cmd=get_result rc=-1 msg=no", 27, "get_result", &e), -EPROTO);
  assert_non_null(strstr(e.text, "get_result and code -1"));
  assert_int_equal(pmi_check("cmd=barrier_out", 15, "put_result", &e), -EPROTO);
  assert_non_null(strstr(e.text, "barrier_out instead of put_result"));
  assert_int_equal(pmi_check("hello", 5, "put_result", NULL), -EPROTO);
}

/* What a proxy answers, one line to each line that comes; NULL: it is silent from then on. */
struct proxy {
  int fd;
  const char *answers[8];
  char heard[8][512];
  int n;
};

static void *play(void *arg) {
  struct proxy *p = arg;
  for (p->n = 0; p->answers[p->n]; p->n++) {
    char *at = p->heard[p->n];
    ssize_t n = recv(p->fd, at, sizeof p->heard[0] - 1, 0);
    if (n <= 0) break;
    at[n] = '\0';
    send(p->fd, p->answers[p->n], strlen(p->answers[p->n]), MSG_NOSIGNAL);
  }
  return NULL;
}

static int share(struct proxy *p, int64_t rank, uint32_t deadline_ms, struct key *key, struct err *e) {
  int fd[2];
  pthread_t thread;
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
  p->fd = fd[1];
  assert_int_equal(pthread_create(&thread, NULL, play, p), 0);
  int rc = pmi_share_key(&(struct pmi){.fd = fd[0], .rank = rank}, deadline_ms, key, e);
  shutdown(fd[0], SHUT_RDWR);
  pthread_join(thread, NULL);
  close(fd[0]);
  close(fd[1]);
  return rc;
}

static void test_rank_0_gives_a_key(void **state) {
  struct proxy p = {.answers = {"cmd=my_kvsname kvsname=kvs_1_0\n", "cmd=put_result rc=0 msg=success\n",
                                "cmd=barrier_out\n", "cmd=get_result rc=0 msg=success value=" HEX "\n"}};
  struct key key;
  assert_int_equal(share(&p, 0, DEADLINE_MS, &key, NULL), 0);
  assert_true(key.uid == KEY_OWN && key.bytes[0] == 0x20 && key.bytes[31] == 0x3f);
  assert_string_equal(p.heard[0], "cmd=get_my_kvsname\n");
  assert_memory_equal(p.heard[1], "cmd=put kvsname=kvs_1_0 key=rdzv-key value=", 43);
  assert_int_equal(strlen(p.heard[1]), 43 + 64 + 1);
  assert_string_equal(p.heard[2], "cmd=barrier_in\n");
  assert_string_equal(p.heard[3], "cmd=get kvsname=kvs_1_0 key=rdzv-key\n");
}

static void test_others_take_it(void **state) {
  struct proxy p = {.answers = {"cmd=my_kvsname kvsname=kvs_1_0\n", "cmd=barrier_out\n",
                                "cmd=get_result rc=0 msg=success value=" HEX "\n"}};
  struct key key;
  assert_int_equal(share(&p, 1, DEADLINE_MS, &key, NULL), 0);
  assert_int_equal(p.n, 3);
}

static void test_a_missing_agent_is_named(void **state) {
  struct proxy p = {.answers = {"cmd=my_kvsname kvsname=kvs_1_0\n"}};
  struct key key;
  struct err e = ERR_INIT;
  assert_int_equal(share(&p, 1, 50, &key, &e), -ETIMEDOUT);
  assert_non_null(strstr(e.text, "an agent of this start is missing"));
  assert_non_null(strstr(e.text, "--key-file"));
}

static void test_other_answers_are_refused(void **state) {
  static const struct {
    const char *answers[4];
    const char *why;
  } cases[] = {
      {{"cmd=my_kvsname\n"}, "does not name"},
      {{"cmd=finalize_ack\n"}, "instead of my_kvsname"},
      {{"cmd=my_kvsname kvsname=k\n", "cmd=barrier_out\n", "cmd=get_result rc=-1 msg=key_not_found\n"}, "code -1"},
      {{"cmd=my_kvsname kvsname=k\n", "cmd=barrier_out\n", "cmd=get_result rc=0\n"}, "has no key"},
      {{"cmd=my_kvsname kvsname=k\n", "cmd=barrier_out\n", "cmd=get_result rc=0 value=abc\n"}, "a key is 64"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct proxy p = {.fd = -1};
    struct key key;
    struct err e = ERR_INIT;
    memcpy(p.answers, cases[i].answers, sizeof cases[i].answers);
    assert_true(share(&p, 1, DEADLINE_MS, &key, &e) < 0);
    if (!strstr(e.text, cases[i].why)) fail_msg("'%s' is not in: %s", cases[i].why, e.text);
  }
}

static void test_open_mpis_number(void **state) {
  static const char *const others[] = {
      "",
      "0-0",
      "78b98479c21b457819fa2b5a6c06e26a0",
      "78b98479c21b4578-19fa2b5a6c06e26",
      "78b98479c21b4578-19fa2b5a6c06e26g",
      "78b98479c21b4578-19fa2b5a6c06e26a ",
  };
  struct key a, b;
  assert_true(open_mpi_key("78b98479c21b4578-19fa2b5a6c06e26a", &a));
  assert_true(open_mpi_key("78b98479c21b4578-19fa2b5a6c06e26a", &b));
  assert_true(a.uid == KEY_OWN && key_equal(&a, &b));
  assert_true(open_mpi_key("78b98479c21b4578-19fa2b5a6c06e26b", &b));
  assert_false(key_equal(&a, &b));
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_false(open_mpi_key(others[i], &a));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_values_of_a_line),         cmocka_unit_test(test_answers_are_checked),
      cmocka_unit_test(test_rank_0_gives_a_key),       cmocka_unit_test(test_others_take_it),
      cmocka_unit_test(test_a_missing_agent_is_named), cmocka_unit_test(test_other_answers_are_refused),
      cmocka_unit_test(test_open_mpis_number),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
