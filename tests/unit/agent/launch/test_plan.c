/* SPDX-License-Identifier: Apache-2.0 */
/* agent/launch/plan.c and env.c: a plan survives encoding, whatever its words are; which variables travel. */

#include "agent/launch/plan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/key/secret.h"
#include "tests/rig/unit.h"

/* Words with '|' between them, on the heap. */
static char **words(const char *text) {
  char **v = xcalloc(strlen(text) + 2, sizeof(*v)), *copy = xstrdup(text), *rest = copy, *word;
  for (size_t n = 0; (word = strsep(&rest, "|")); n++) v[n] = xstrdup(word);
  free(copy);
  return v;
}

static struct launch_plan make(size_t n) {
  struct launch_plan p = {.n = n, .fan_out = 3, .stop_ms = 30000, .ranks = 2, .give_slots = true, .hush = true};
  p.seats = xcalloc(n, sizeof(*p.seats));
  for (size_t i = 0; i < n; i++)
    p.seats[i] = (struct launch_seat){.host = xasprintf("n%zu", i), .slots = (int64_t)i, .index = (uint32_t)i};
  p.argv = words("rdzv-agent|--|a\nb|$(x) 'q' \"d\"||\xff\x80 caf\xc3\xa9");
  p.env = words("A=1|B=\xe4\n|PWD=/elsewhere");
  p.settings = words("RDZV_AGENT_NNODES=3");
  p.shell = words("ssh|-o|X=1 2");
  p.cwd = xstrdup("/tmp/a b");
  p.program = xstrdup("/opt/it's/rdzv-agent");
  p.expect = xstrdup("n[0-2]");
  return p;
}

static void same_words(char *const *a, char *const *b) {
  for (; *a && *b; a++, b++) assert_string_equal(*a, *b);
  assert_true(!*a && !*b);
}

static void are_words(char *const *a, const char *text) {
  char **b = words(text);
  same_words(a, b);
  launch_words_free(b);
}

UNIT_TEST(test_comes_out_as_it_went_in) {
  struct launch_plan p = make(5), q = {0};
  struct buf text = BUF_INIT;
  struct err e = ERR_INIT;
  size_t len;
  launch_plan_encode(&p, 1, 3, &text);
  char *end = strchr(text.data, '\n');
  *end = '\0';
  assert_int_equal(launch_header_parse(&q, text.data, &len, &e), 0);
  assert_null(q.key);
  assert_int_equal(len, text.len - (size_t)(end + 1 - text.data));
  assert_int_equal(launch_plan_decode(&q, end + 1, len, &e), 0);
  assert_int_equal(q.n, 3);
  for (size_t i = 0; i < 3; i++) {
    assert_string_equal(q.seats[i].host, p.seats[i + 1].host);
    assert_int_equal(q.seats[i].slots, i + 1);
    assert_int_equal(q.seats[i].index, i + 1);
  }
  same_words(q.argv, p.argv);
  same_words(q.env, p.env);
  same_words(q.settings, p.settings);
  same_words(q.shell, p.shell);
  assert_string_equal(q.cwd, p.cwd);
  assert_string_equal(q.program, p.program);
  assert_string_equal(q.expect, p.expect);
  assert_true(q.give_slots && q.hush && !q.only_there);
  assert_int_equal(q.ranks, 2);
  assert_int_equal(q.fan_out, 3);
  assert_int_equal(q.stop_ms, 30000);
  launch_plan_finish(&q);
  launch_plan_finish(&p);
  buf_finish(&text);
}

/* Every prefix of it, and every one without one byte, is refused or whole; ASan watches. */
UNIT_TEST(test_torn_ones_are_refused) {
  struct launch_plan p = make(2), q = {0};
  struct buf text = BUF_INIT;
  launch_plan_encode(&p, 0, 2, &text);
  char *json = strchr(text.data, '\n') + 1;
  size_t len = strlen(json);
  for (size_t n = 0; n < len; n++) assert_int_not_equal(launch_plan_decode(&q, json, n, NULL), 0);
  for (size_t i = 0; i < len; i++) {
    char *copy = xstrdup(json);
    memmove(copy + i, copy + i + 1, len - i);
    if (launch_plan_decode(&q, copy, len - 1, NULL) == 0) launch_plan_finish(&q);
    free(copy);
  }
  launch_plan_finish(&p);
  buf_finish(&text);
}

static int parse_header(struct launch_plan *p, const char *text, size_t *len, struct err *e) {
  char line[2 * LAUNCH_HEADER_MAX];
  snprintf(line, sizeof(line), "%s", text);
  int rc = launch_header_parse(p, line, len, e);
  if (strlen(text) < LAUNCH_HEADER_MAX) assert_null(memmem(line, sizeof(line), "0102030405", 10)); /* it was wiped */
  return rc;
}

#define DIGITS "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

UNIT_TEST(test_headers) {
  struct launch_plan p = {0};
  struct err e = ERR_INIT;
  size_t len;
  assert_int_equal(parse_header(&p, "RDZV-LAUNCH " RDZV_VERSION "/1/1 100 -", &len, &e), 0);
  assert_int_equal(len, 100);
  assert_null(p.key);
  /* Of a later release: more behind its versions, and a source of the key. */
  assert_int_equal(parse_header(&p, "RDZV-LAUNCH 9.0.0/2/1/tidings 100 " DIGITS ".9", &len, &e), 0);
  assert_int_equal(p.key_source, KEY_SOURCE_OTHER);
  launch_plan_finish(&p);
  assert_int_equal(parse_header(&p, "RDZV-LAUNCH 0.0.9 100", &len, &e), -EPROTO);
  assert_non_null(strstr(e.text, "0.0.9"));
  static const char *const bad[] = {"",
                                    "x",
                                    "RDZV-LAUNCH",
                                    "RDZV-LAUNCH ",
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1",
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1 -1 -",
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1 99999999999 -",
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1 100",
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1 100 ",
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1 100 " DIGITS,
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1 100 " DIGITS ".x",
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1 100 " DIGITS "0.4",
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1 100 " DIGITS ".4 ",
                                    "RDZV-LAUNCH " RDZV_VERSION "/1/1 100 4294967296:" DIGITS ".4",
                                    "RDZV-LAUNCHED 0.1.0/1/1 100 -"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
    e = (struct err)ERR_INIT;
    assert_int_equal(parse_header(&p, bad[i], &len, &e), -EBADMSG);
    assert_true(e.text[0] && !strstr(e.text, "0102030405"));
    assert_null(p.key);
  }
}

/* Every plan carries it, in its header alone. */
UNIT_TEST(test_the_key_travels_in_the_header) {
  static const char *const keys[] = {DIGITS, "4294967294:" DIGITS};
  for (int i = 0; i < 2; i++) {
    struct launch_plan p = make(2), q = {0};
    struct buf text = BUF_INIT;
    size_t len;
    p.key = secret_alloc();
    p.key_source = KEY_SOURCE_ENV;
    assert_int_equal(key_parse(keys[i], strlen(keys[i]), p.key, NULL), 0);
    launch_plan_encode(&p, 0, 2, &text);
    char *end = strchr(text.data, '\n');
    *end = '\0';
    assert_true(strlen(text.data) < LAUNCH_HEADER_MAX);
    assert_non_null(strstr(text.data, keys[i]));
    assert_null(strstr(end + 1, DIGITS));
    assert_int_equal(launch_header_parse(&q, text.data, &len, NULL), 0);
    assert_int_equal(launch_plan_decode(&q, end + 1, len, NULL), 0);
    assert_true(key_equal(p.key, q.key));
    assert_int_equal(q.key_source, KEY_SOURCE_ENV);
    launch_plan_finish(&q);
    launch_plan_finish(&p);
    buf_finish(&text);
  }
}

UNIT_TEST(test_reports) {
  struct launch_report r = {.index = 7, .event = LAUNCH_FAILED, .code = 3}, q;
  struct buf text = BUF_INIT;
  struct err e = ERR_INIT;
  snprintf(r.text, sizeof(r.text), "no \"folder\"\xff");
  launch_report_print(&r, &text);
  assert_memory_equal(text.data, "J {", 3);
  assert_int_equal(launch_report_parse(&q, text.data + 2, text.len - 3, &e), 0);
  assert_int_equal(q.index, 7);
  assert_int_equal(q.event, LAUNCH_FAILED);
  assert_int_equal(q.code, 3);
  assert_string_equal(q.text, r.text);
  static const char *const bad[] = {"",
                                    "{}",
                                    "{\"host\":0,\"event\":\"x\",\"code\":0,\"text\":\"\"}",
                                    "{\"host\":-1,\"event\":\"up\",\"code\":0,\"text\":\"\"}",
                                    "{\"host\":0,\"event\":\"up\",\"code\":256,\"text\":\"\"}",
                                    "{\"host\":0,\"event\":\"up\",\"code\":0,\"text\":\"\\u4e00\"}"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
    assert_int_not_equal(launch_report_parse(&q, bad[i], strlen(bad[i]), NULL), 0);
  buf_finish(&text);
}

/* Everybody is in exactly one branch, none is empty, and none is longer than another by two. */
UNIT_TEST(test_split) {
  for (size_t n = 0; n < 70; n++) {
    for (uint32_t k = 1; k < 40; k++) {
      size_t at = 0, first, count, branches = launch_split(n, k, 0, &first, &count);
      assert_int_equal(branches, n < k ? n : k);
      for (size_t i = 0; i < branches; i++) {
        launch_split(n, k, i, &first, &count);
        assert_int_equal(first, at);
        assert_true(count >= 1 && count >= n / k && count <= n / k + 1);
        at += count;
      }
      assert_int_equal(at, n);
    }
  }
}

UNIT_TEST(test_words_of_ssh) {
  struct err e = ERR_INIT;
  char **got = launch_words("  ssh -p 22 -i '~/my key'  -o \"A=\\\"b\\\" c\" x\\ y ''", &e);
  are_words(got, "ssh|-p|22|-i|~/my key|-o|A=\"b\" c|x y|");
  char **copy = launch_words_copy(got);
  assert_true(copy != got && copy[0] != got[0]);
  launch_words_free(got);
  are_words(copy, "ssh|-p|22|-i|~/my key|-o|A=\"b\" c|x y|");
  launch_words_free(copy);
  assert_null(launch_words("ssh 'x", &e));
  assert_non_null(strstr(e.text, "quotation mark"));
  assert_null(launch_words("  ", &e));
}

UNIT_TEST(test_what_a_shell_is_given) {
  struct launch_plan p = make(1);
  char **argv = launch_shell_argv(&p, "n1");
  for (size_t i = 0; i < 3; i++) assert_string_equal(argv[i], p.shell[i]);
  assert_string_equal(argv[3], "n1");
  assert_string_equal(argv[4], "test -x '/opt/it'\\''s/rdzv-agent' && exec '/opt/it'\\''s/rdzv-agent' "
                               "--launched || exec rdzv-agent --launched");
  launch_words_free(argv);
  p.only_there = true;
  argv = launch_shell_argv(&p, "n1");
  assert_string_equal(argv[4], "exec '/opt/it'\\''s/rdzv-agent' --launched");
  launch_words_free(argv);
  launch_plan_finish(&p);
}

UNIT_TEST(test_what_travels) {
  char **env =
      words("PATH=/bin|HOME=/root|SSH_AUTH_SOCK=/x|XDG_RUNTIME_DIR=/run|SLURM_JOB_ID=7|SLURM_PROCID=1|SLURM_STEP_ID=0|"
            "OMPI_COMM_WORLD_RANK=1|PBS_NODEFILE=/f|TERM=xterm|TERMINAL=1|odd|RDZV_AGENT_SOCKET=@x|"
            "RDZV_AGENT_LEASE=3s|_=/bin/x|_X=1");
  char **got = launch_env_travels(env);
  are_words(got, "PATH=/bin|SLURM_JOB_ID=7|PBS_NODEFILE=/f|TERMINAL=1|RDZV_AGENT_LEASE=3s|_X=1");
  launch_words_free(env);
  launch_words_free(got);
}

static const char *value(char *const *env, const char *name) {
  const char *found = NULL;
  size_t n = strlen(name);
  for (; *env; env++)
    if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') {
      assert_null(found);
      found = *env + n + 1;
    }
  return found;
}

UNIT_TEST(test_what_an_agent_is_told) {
  struct launch_plan p = make(3);
  char **own = words("HOME=/home/ada|A=mine|LOCAL=1|SLURM_PROCID=3|RDZV_AGENT_SOCKET=@x|SSH_CLIENT=192.0.2.1 4711 22|"
                     "SSH_CONNECTION=x|SSH_TTY=/dev/pts/0|SSH_AUTH_SOCK=/tmp/agent");
  p.seats[0].index = 1;
  p.seats[0].slots = 4;
  char **env = launch_env_agent(&p, own, "n1.example.org", 77);
  assert_string_equal(value(env, "RDZV_AGENT_LAUNCHER"), "77");
  assert_string_equal(value(env, "PWD"), "/tmp/a b");
  assert_string_equal(value(env, "HOME"), "/home/ada");
  assert_string_equal(value(env, "A"), "1");
  assert_string_equal(value(env, "LOCAL"), "1");
  assert_string_equal(value(env, "RDZV_AGENT_NNODES"), "3");
  assert_string_equal(value(env, "RDZV_AGENT_NODE_RANK"), "1");
  assert_string_equal(value(env, "RDZV_AGENT_NPROC"), "4");
  assert_string_equal(value(env, "RDZV_AGENT_EXPECT"), "n[0-2]");
  assert_string_equal(value(env, "RDZV_AGENT_QUIET"), "yes");
  assert_null(value(env, "SLURM_PROCID"));
  assert_null(value(env, "SSH_CLIENT"));
  assert_null(value(env, "SSH_CONNECTION"));
  assert_null(value(env, "SSH_TTY"));
  assert_string_equal(value(env, "SSH_AUTH_SOCK"), "/tmp/agent");
  assert_null(value(env, "RDZV_AGENT_SOCKET"));
  launch_words_free(env);
  p.seats[0].index = 2; /* a spare, under a name that the list does not have */
  env = launch_env_agent(&p, own, "other", 77);
  assert_null(value(env, "RDZV_AGENT_NODE_RANK"));
  assert_null(value(env, "RDZV_AGENT_EXPECT"));
  launch_words_free(env);
  p.seats[0].index = 0; /* the first one speaks */
  env = launch_env_agent(&p, own, "n0", 77);
  assert_null(value(env, "RDZV_AGENT_QUIET"));
  launch_words_free(env);
  launch_words_free(own);
  launch_plan_finish(&p);
}
