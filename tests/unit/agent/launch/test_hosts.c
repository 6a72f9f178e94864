/* SPDX-License-Identifier: Apache-2.0 */
/* agent/launch/hosts.c: hosts as people and other launchers write them. */

#include "agent/launch/hosts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "tests/rig/unit.h"

/* "n1:4 n2:0" */
static void print(const struct launch_hosts *h, struct buf *out) {
  for (size_t i = 0; i < h->n; i++) buf_printf(out, "%s%s:%lld", i ? " " : "", h->v[i].name, (long long)h->v[i].slots);
}

struct row {
  const char *text, *want; /* want NULL: refused, */
  const char *says;        /* with these words */
};

static void check(const struct row *rows, bool file) {
  for (const struct row *r = rows; r->text; r++) {
    struct launch_hosts h;
    struct buf got = BUF_INIT;
    struct err e = ERR_INIT;
    launch_hosts_init(&h);
    int rc =
        file ? launch_hosts_file(&h, "hosts.txt", r->text, strlen(r->text), &e) : launch_hosts_list(&h, r->text, &e);
    if (rc == 0) print(&h, &got);
    if (r->want && (rc || strcmp(buf_text(&got), r->want) != 0))
      fail_msg("%s: %s, %s", r->text, buf_text(&got), e.text);
    if (!r->want && (rc == 0 || !strstr(e.text, r->says))) fail_msg("%s is not refused so: %s", r->text, e.text);
    launch_hosts_finish(&h);
    buf_finish(&got);
  }
}

UNIT_TEST(test_lists) {
  static const struct row rows[] = {
      {"n1", "n1:0", NULL},
      {"n1:4,n2:4", "n1:4 n2:4", NULL},
      {" n1:4 , n2 ", "n1:4 n2:0", NULL},
      {"gpu[08-10]:8,login1", "gpu08:8 gpu09:8 gpu10:8 login1:0", NULL},
      {"r[1-2]n[3,5]:2", "r1n3:2 r1n5:2 r2n3:2 r2n5:2", NULL},
      {"[fd00::1]:2,n1:1", "fd00::1:2 n1:1", NULL},
      {"fd00::1,n1:1", "fd00::1:0 n1:1", NULL},
      {"::1", "::1:0", NULL},
      {"10.0.0.1:3,a-b.example.org", "10.0.0.1:3 a-b.example.org:0", NULL},
      {"ada@n1:2,ada@[fd00::1],bob@gpu[1-2]:4", "ada@n1:2 ada@fd00::1:0 bob@gpu1:4 bob@gpu2:4", NULL},
      {"n1,n1", "n1:2", NULL},
      {"n1,n2:3,n1:4", "n1:5 n2:3", NULL},
      {"", NULL, "a host is missing"},
      {"n1,,n2", NULL, "a host is missing"},
      {"n1,", NULL, "a host is missing"},
      {"n1:0", NULL, "slots"},
      {"n1:x", NULL, "\"x\" is not a number of slots"},
      {"n1:", NULL, "slots"},
      {"n1:1025", NULL, "from 1 to 1024"},
      {"n1:1024,n1:1", NULL, "at most 1024 workers"},
      {":4", NULL, "name is missing"},
      {"-oProxyCommand=x", NULL, "is not a list of hosts"},
      {"-n1", NULL, "begins with a letter or a digit"},
      {"@n1", NULL, "not a user's name"},
      {"a b@n1", NULL, "not a user's name"},
      {"-l@n1", NULL, "not a user's name"},
      {"n1;rm", NULL, "letters, digits"},
      {"n$(x)", NULL, "letters, digits"},
      {"[fd00::1", NULL, "[fd00::1]:4"},
      {"[n1]", NULL, "IPv6 address"},
      {"[fd00::1]x", NULL, "[fd00::1]:4"},
      {"gpu[1-", NULL, "closing bracket"},
      {"gpu[2-1]", NULL, "goes down"},
      {"gpu[1-99999]", NULL, "more than"},
      {"n\xff", NULL, "letters, digits"},
      {0},
  };
  check(rows, false);
}

UNIT_TEST(test_files) {
  static const struct row rows[] = {
      {"n1 slots=4 max_slots=8\nn2 slots=2\n", "n1:4 n2:2", NULL},
      {"n1 slots = 4\t max-slots= 8\n", "n1:4", NULL},
      {"# hosts\r\n\r\nn1:4\r\nn2:4 # the other\r\n", "n1:4 n2:4", NULL},
      {"n1:4 binding=user:4 ifname=ib0\nn2", "n1:4 n2:0", NULL},
      {"n1\nn1\nn2\nn1\nn2\n", "n1:3 n2:2", NULL},
      {"n1 4 all.q@n1 UNDEFINED\nn2 4 all.q@n2 <NULL>\n", "n1:4 n2:4", NULL},
      {"worker-1 slots=4\nworker-2 slots=4\n", "worker-1:4 worker-2:4", NULL},
      {"gpu[01-02] slots=2\n", "gpu01:2 gpu02:2", NULL},
      {"n1 user=ada slots=2\nbob@n2\n", "ada@n1:2 bob@n2:0", NULL},
      {"[fd00::1] slots=2\n", "fd00::1:2", NULL},
      {"  n1\t\n", "n1:0", NULL},
      {"n1 slots=4\nn2 solts=4\n", NULL, "hosts.txt, line 2: \"solts=...\" is unknown"},
      {"n1 slots=0\n", NULL, "hosts.txt, line 1: \"0\" is not a number of slots"},
      {"n1 slots=\n", NULL, "not a number of slots"},
      {"n1 four\n", NULL, "\"four\" is unknown"},
      {"\n\n^n1\n", NULL, "hosts.txt, line 3"},
      {"+n0\n", NULL, "hosts.txt, line 1"},
      {"# nobody\n", NULL, "hosts.txt names no host"},
      {"", NULL, "names no host"},
      {0},
  };
  check(rows, true);
}

UNIT_TEST(test_what_is_no_text) {
  struct launch_hosts h;
  struct err e = ERR_INIT;
  char line[LAUNCH_LINE_MAX + 2];
  launch_hosts_init(&h);
  assert_int_equal(launch_hosts_file(&h, "f", "n1\n\0\n", 5, &e), -EINVAL);
  assert_string_equal(e.text, "f, line 2: it is not text");
  memset(line, 'a', sizeof(line));
  assert_int_equal(launch_hosts_file(&h, "f", line, sizeof(line), &e), -E2BIG);
  launch_hosts_finish(&h);
}

/* A host a line, once for each slot, as PBS has it for a thousand hosts. */
UNIT_TEST(test_a_thousand) {
  struct launch_hosts h;
  struct err e = ERR_INIT;
  struct buf text = BUF_INIT;
  for (int slot = 0; slot < 8; slot++)
    for (int i = 0; i < 1000; i++) buf_printf(&text, "node%04d\n", i);
  launch_hosts_init(&h);
  assert_int_equal(launch_hosts_file(&h, "f", text.data, text.len, &e), 0);
  assert_int_equal(h.n, 1000);
  assert_string_equal(h.v[999].name, "node0999");
  for (size_t i = 0; i < h.n; i++) assert_int_equal(h.v[i].slots, 8);
  launch_hosts_finish(&h);
  launch_hosts_init(&h);
  assert_int_equal(launch_hosts_list(&h, "n[1-16385]", &e), -E2BIG);
  assert_non_null(strstr(e.text, "more than 16384 hosts"));
  launch_hosts_finish(&h);
  buf_finish(&text);
}

UNIT_TEST(test_which_are_this_machine) {
  assert_true(launch_host_is_loopback("localhost"));
  assert_true(launch_host_is_loopback("LOCALHOST.localdomain"));
  assert_true(launch_host_is_loopback("127.0.1.1"));
  assert_true(launch_host_is_loopback("::1"));
  assert_false(launch_host_is_loopback("localhosts"));
  assert_false(launch_host_is_loopback("10.0.0.1"));
  assert_string_equal(launch_host_bare("ada@n1"), "n1");
  assert_string_equal(launch_host_bare("n1"), "n1");
}
