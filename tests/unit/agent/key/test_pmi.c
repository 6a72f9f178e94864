/* SPDX-License-Identifier: Apache-2.0 */
/* A key from mpiexec's key-value space, from a proxy that this test plays, and from Open MPI's number. */

#include "agent/key/pmi.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/key/secret.h"
#include "tests/rig/unit.h"

#define HEX "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"

enum { DEADLINE_MS = 10000 };

UNIT_TEST(test_values_of_a_line) {
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

UNIT_TEST(test_answers_are_checked) {
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

static int share(struct proxy *p, uint32_t deadline_ms, struct key *key, struct err *e) {
  int fd[2];
  pthread_t thread;
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
  p->fd = fd[1];
  assert_int_equal(pthread_create(&thread, NULL, play, p), 0);
  int rc = pmi_share_key(&(struct pmi){.fd = fd[0], .rank = 1, .agents = 2}, deadline_ms, key, e);
  shutdown(fd[0], SHUT_RDWR);
  pthread_join(thread, NULL);
  close(fd[0]);
  close(fd[1]);
  return rc;
}

/* mpiexec with its space: `agents` of them, each with a connection and a thread. */
enum { AGENTS = 3, ENTRIES = 2 * AGENTS };

static struct {
  pthread_mutex_t mutex;
  pthread_cond_t all_in;
  int agents, in, barriers;
  char entries[ENTRIES][512]; /* "rdzv-key-1 HEX" */
  int n;
} mpiexec = {.mutex = PTHREAD_MUTEX_INITIALIZER, .all_in = PTHREAD_COND_INITIALIZER};

static void answer_line(const char *line, char *out, size_t size) {
  char name[64], value[400];
  pthread_mutex_lock(&mpiexec.mutex);
  if (strcmp(line, "cmd=get_my_kvsname\n") == 0) {
    snprintf(out, size, "cmd=my_kvsname kvsname=k\n");
  } else if (strcmp(line, "cmd=barrier_in\n") == 0) {
    int here = mpiexec.barriers;
    if (++mpiexec.in == mpiexec.agents) {
      mpiexec.in = 0;
      mpiexec.barriers++;
      pthread_cond_broadcast(&mpiexec.all_in);
    }
    while (here == mpiexec.barriers) pthread_cond_wait(&mpiexec.all_in, &mpiexec.mutex);
    snprintf(out, size, "cmd=barrier_out\n");
  } else if (sscanf(line, "cmd=put kvsname=k key=%63s value=%399s\n", name, value) == 2 && mpiexec.n < ENTRIES) {
    snprintf(mpiexec.entries[mpiexec.n++], sizeof mpiexec.entries[0], "%s %s", name, value);
    snprintf(out, size, "cmd=put_result rc=0 msg=success\n");
  } else if (sscanf(line, "cmd=get kvsname=k key=%63s\n", name) == 1) {
    snprintf(out, size, "cmd=get_result rc=-1 msg=key_not_found\n");
    for (int i = 0; i < mpiexec.n; i++)
      if (strncmp(mpiexec.entries[i], name, strlen(name)) == 0 && mpiexec.entries[i][strlen(name)] == ' ')
        snprintf(out, size, "cmd=get_result rc=0 msg=success value=%s\n", mpiexec.entries[i] + strlen(name) + 1);
  } else {
    snprintf(out, size, "cmd=what\n");
  }
  pthread_mutex_unlock(&mpiexec.mutex);
}

static void *serve(void *arg) {
  int fd = *(int *)arg;
  char line[512], out[512];
  for (ssize_t n; (n = recv(fd, line, sizeof line - 1, 0)) > 0;) {
    line[n] = '\0';
    answer_line(line, out, sizeof out);
    send(fd, out, strlen(out), MSG_NOSIGNAL);
  }
  return NULL;
}

struct agent {
  struct pmi pmi;
  struct key key;
  struct err e;
  int rc;
};

static void *run_agent(void *arg) {
  struct agent *a = arg;
  a->rc = pmi_share_key(&a->pmi, DEADLINE_MS, &a->key, &a->e);
  return NULL;
}

static void share_among(struct agent *agents, int n) {
  pthread_t servers[AGENTS], threads[AGENTS];
  int fds[AGENTS][2];
  mpiexec.agents = n;
  mpiexec.n = mpiexec.in = mpiexec.barriers = 0;
  for (int i = 0; i < n; i++) {
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fds[i]), 0);
    agents[i] = (struct agent){.pmi = {.fd = fds[i][0], .rank = i, .agents = n}};
    pthread_create(&servers[i], NULL, serve, &fds[i][1]);
    pthread_create(&threads[i], NULL, run_agent, &agents[i]);
  }
  for (int i = 0; i < n; i++) {
    pthread_join(threads[i], NULL);
    shutdown(fds[i][0], SHUT_RDWR);
    pthread_join(servers[i], NULL);
    close(fds[i][0]);
    close(fds[i][1]);
  }
}

UNIT_TEST(test_all_get_one_key) {
  static const uint8_t none[KEY_BYTES];
  struct agent agents[AGENTS], later[AGENTS];
  for (int n = 1; n <= AGENTS; n++) {
    share_among(agents, n);
    for (int i = 0; i < n; i++) {
      if (agents[i].rc) fail_msg("agent %d: %s", i, agents[i].e.text);
      assert_true(agents[i].key.uid == KEY_OWN && key_equal(&agents[i].key, &agents[0].key));
    }
    assert_memory_not_equal(agents[0].key.bytes, none, sizeof none);
    assert_int_equal(mpiexec.n, 2 * (n - 1));
  }
  share_among(later, 2);
  assert_false(key_equal(&later[0].key, &agents[0].key));
}

/* A worker inherits the socket and can ask for all that is there. */
UNIT_TEST(test_nobody_else_can_read_it) {
  struct agent agents[AGENTS];
  char text[KEY_TEXT_MAX + 1];
  share_among(agents, AGENTS);
  key_format(&agents[0].key, text);
  text[32] = '\0';
  for (int i = 0; i < mpiexec.n; i++)
    if (strstr(mpiexec.entries[i], text)) fail_msg("the key is in %s", mpiexec.entries[i]);
  assert_int_equal(mpiexec.n, 2 * (AGENTS - 1));
}

UNIT_TEST(test_a_missing_agent_is_named) {
  struct proxy p = {.answers = {"cmd=my_kvsname kvsname=kvs_1_0\n"}};
  struct key key;
  struct err e = ERR_INIT;
  assert_int_equal(share(&p, 50, &key, &e), -ETIMEDOUT);
  assert_non_null(strstr(e.text, "an agent of this start is missing"));
  assert_non_null(strstr(e.text, "--key-file"));
}

#define BEGINNING "cmd=my_kvsname kvsname=k\n", "cmd=put_result rc=0\n", "cmd=barrier_out\n", "cmd=barrier_out\n"

UNIT_TEST(test_other_answers_are_refused) {
  static const struct {
    const char *answers[6];
    const char *why;
  } cases[] = {
      {{"cmd=my_kvsname\n"}, "does not name"},
      {{"cmd=finalize_ack\n"}, "instead of my_kvsname"},
      {{BEGINNING, "cmd=get_result rc=-1 msg=key_not_found\n"}, "code -1"},
      {{BEGINNING, "cmd=get_result rc=0\n"}, "has no rdzv-key-1: an agent of this start is no rdzv-agent"},
      {{BEGINNING, "cmd=get_result rc=0 value=abc\n"}, "has no rdzv-key-1"},
      {{BEGINNING, "cmd=get_result rc=0 value=" HEX HEX HEX "\n"}, "has no rdzv-key-1"},
      {{BEGINNING, "cmd=get_result rc=0 value=" HEX HEX "20212223242526272829202122232425\n"}, "is for another agent"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct proxy p = {.fd = -1};
    struct key key;
    struct err e = ERR_INIT;
    memcpy(p.answers, cases[i].answers, sizeof cases[i].answers);
    assert_true(share(&p, DEADLINE_MS, &key, &e) < 0);
    if (!strstr(e.text, cases[i].why)) fail_msg("'%s' is not in: %s", cases[i].why, e.text);
  }
}

UNIT_TEST(test_open_mpis_number) {
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

/* Of one number all workers get one other number, which looks like mpirun's. */
UNIT_TEST(test_open_mpis_number_is_hidden) {
  static const char other[] = "A=78b98479c21b4578-19fa2b5a6c06e26a";
  char text[] = "OMPI_MCA_orte_precondition_transports=78b98479c21b4578-19fa2b5a6c06e26a", same[sizeof text];
  char bad[] = "OMPI_MCA_orte_precondition_transports=1", first[] = "A=78b98479c21b4578-19fa2b5a6c06e26a";
  char *env[] = {first, bad, text, NULL}, *again[] = {same, NULL}, *none[] = {first, bad, NULL};
  struct key key, theirs;
  memcpy(same, text, sizeof text);
  assert_true(open_mpi_key(strchr(text, '=') + 1, &key));
  struct key *taken = open_mpi_take(env);
  assert_true(taken && key_equal(taken, &key));
  assert_string_equal(first, other);
  assert_string_not_equal(text, same);
  assert_null(strstr(text, "78b98479c21b4578"));
  assert_true(open_mpi_key(strchr(text, '=') + 1, &theirs));
  assert_false(key_equal(&theirs, &key));
  secret_free(taken);
  secret_free(open_mpi_take(again));
  assert_string_equal(text, same);
  assert_null(open_mpi_take(none));
}
