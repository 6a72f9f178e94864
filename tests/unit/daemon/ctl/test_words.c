/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl's words. (Each mistake's exit code and line: tests/e2e/test_rdzvd_control.py.) */

#include "daemon/ctl/options.h"

#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_what_stands_where) {
  struct ctl_request r = {0};
  const char *kill[] = {"kill-worker", "job", "12"}, *drain[] = {"drain", "n1"}, *status[] = {"status"};
  assert_int_equal(ctl_read_words(kill, 3, "term", &r, NULL), 0);
  assert_string_equal(r.job, "job");
  assert_string_equal(r.host, "");
  assert_int_equal(r.rank, 12);
  assert_int_equal(r.signal, 15);
  r = (struct ctl_request){.force = true};
  assert_int_equal(ctl_read_words(drain, 2, NULL, &r, NULL), 0);
  assert_string_equal(r.host, "n1");
  assert_string_equal(r.job, "");
  assert_int_equal(r.rank, -1);
  const char *stop[] = {"stop", "job"};
  r = (struct ctl_request){.user = "ada"};
  assert_int_equal(ctl_read_words(stop, 2, NULL, &r, NULL), 0);
  assert_string_equal(r.user, "ada");
  assert_int_equal(r.owner, -1);
  r = (struct ctl_request){.user = "1000"};
  assert_int_equal(ctl_read_words(stop, 2, NULL, &r, NULL), 0);
  assert_null(r.user);
  assert_int_equal(r.owner, 1000);
  r = (struct ctl_request){.watch = true}; /* alone */
  assert_int_equal(ctl_read_words(status, 0, NULL, &r, NULL), 0);
  assert_string_equal(r.verb, "status");
  assert_string_equal(r.job, "");
  const char *logs[] = {"logs", "job", "7"}, *top[] = {"top"};
  r = (struct ctl_request){.follow = true, .has_tail = true, .tail = 0, .json = true};
  assert_int_equal(ctl_read_words(logs, 3, NULL, &r, NULL), 0);
  assert_int_equal(r.rank, 7);
  assert_int_equal(ctl_read_words(logs, 2, NULL, &r, NULL), 0);
  assert_int_equal(r.rank, -1);
  r = (struct ctl_request){0};
  assert_int_equal(ctl_read_words(top, 1, NULL, &r, NULL), 0);
  assert_string_equal(r.job, "");
  r = (struct ctl_request){.watch = true};
  assert_int_equal(ctl_read_words(status, 1, NULL, &r, NULL), 0);
  assert_string_equal(r.job, "");
}

UNIT_TEST(test_mistakes) {
  static const struct {
    const char *words[4];
    int n;
    struct ctl_request flags;
    const char *signal, *says;
  } t[] = {
      {{0}, 0, {0}, NULL, "status, jobs, nodes, drain, undrain, hosts, stop, kill-worker"},
      {{"drian", "n1"}, 2, {0}, NULL, "\"drian\" is not a command: did you mean drain?"},
      {{"frobnicate"}, 1, {0}, NULL, "\"frobnicate\" is not a command: status, jobs"},
      {{"drain"}, 1, {0}, NULL, "rdzvctl drain HOST"},
      {{"drain", ""}, 2, {0}, NULL, "a host's name has 1 to 255 bytes"},
      {{"drain", "a", "b"}, 3, {0}, NULL, "\"b\" is one argument too many"},
      {{"stop", ""}, 2, {0}, NULL, "a job's name has 1 to 128 bytes"},
      {{"kill-worker", "job"}, 2, {0}, NULL, "rdzvctl kill-worker JOB RANK"},
      {{"kill-worker", "job", "three"}, 3, {0}, NULL, "\"three\" is not a rank"},
      {{"kill-worker", "job", "-1"}, 3, {0}, NULL, "\"-1\" is not a rank"},
      {{"kill-worker", "job", "99999999"}, 3, {0}, NULL, "is not a rank"},
      {{"kill-worker", "job", "3"}, 3, {0}, "SIGBOO", "unknown signal"},
      {{"kill-worker", "job", "3"}, 3, {0}, "0", "unknown signal"},
      {{"kill-worker", "job", "3"}, 3, {0}, "65", "unknown signal"},
      {{"kill-worker", "job", "3"}, 3, {0}, "", "unknown signal"},
      {{"stop", "job"}, 2, {.force = true}, NULL, "--force is for drain"},
      {{"undrain", "n1"}, 2, {.force = true}, NULL, "--force is for drain"},
      {{"drain", "n1"}, 2, {.watch = true}, NULL, "--watch is for status and jobs"},
      {{"drain", "n1"},
       2,
       {.user = "ada"},
       NULL,
       "--user is for status, jobs, nodes, stop, kill-worker, confirm-dead, logs, check and top"},
      {{"stop", "job"}, 2, {.user = ""}, NULL, "give a user's name or uid"},
      {{"jobs"}, 1, {0}, "9", "--signal is for kill-worker"},
      {{"stop", "job"}, 2, {.svg = "map.svg"}, NULL, "--svg is for check"},
      {{"logs"}, 1, {0}, NULL, "rdzvctl logs JOB [RANK]"},
      {{"logs", "job", "x"}, 3, {0}, NULL, "\"x\" is not a rank"},
      {{"logs", "job", "1", "2"}, 4, {0}, NULL, "\"2\" is one argument too many"},
      {{"status", "job"}, 2, {.follow = true}, NULL, "--follow is for logs"},
      {{"top"}, 1, {.has_tail = true, .tail = 3}, NULL, "--tail is for logs"},
      {{"top"}, 1, {.json = true}, NULL, "use status --json"},
  };
  for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
    struct ctl_request r = t[i].flags;
    struct err e = ERR_INIT;
    assert_true(ctl_read_words(t[i].words, t[i].n, t[i].signal, &r, &e) < 0);
    if (!strstr(e.text, t[i].says)) fail_msg("%s", e.text);
  }
}

UNIT_TEST(test_signals) {
  static const struct {
    const char *text;
    int signo;
  } t[] = {{"9", 9}, {"KILL", 9}, {"SIGKILL", 9}, {"sigkill", 9}, {"Usr1", 10}, {"64", 64}, {"segv", 11}};
  for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
    int signo = 0;
    assert_int_equal(ctl_read_signal(t[i].text, &signo, NULL), 0);
    assert_int_equal(signo, t[i].signo);
  }
}
