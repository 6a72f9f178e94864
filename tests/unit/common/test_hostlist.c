/* SPDX-License-Identifier: Apache-2.0 */
/* hostlist: what Slurm writes, what people read, and what is neither. */

#include "common/hostlist.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

/* The names of a list, a blank behind each. */
static void check(const char *text, const char *want) {
  SCOPED(buf_finish) struct buf names = BUF_INIT;
  struct err e = ERR_INIT;
  size_t n;
  buf_puts(&names, "before");
  if (hostlist_expand(text, &names, &n, &e)) fail_msg("%s: %s", text, e.text);
  for (size_t i = 6; i < names.len; i++)
    if (!names.data[i]) names.data[i] = ' ';
  assert_string_equal(names.data + 6, want);
  size_t blanks = 0;
  for (const char *p = want; *p; p++) blanks += *p == ' ';
  assert_int_equal(n, blanks);
}

static void check_refused(const char *text, int code, const char *why) {
  SCOPED(buf_finish) struct buf names = BUF_INIT;
  struct err e = ERR_INIT;
  size_t n = 7;
  buf_puts(&names, "before");
  if (hostlist_expand(text, &names, &n, &e) != code) fail_msg("'%s': %d %s", text, e.code, e.text);
  if (!strstr(e.text, why)) fail_msg("'%s' does not say '%s'", e.text, why);
  assert_string_equal(buf_text(&names), "before");
  assert_int_equal(n, 0);
  assert_int_equal(hostlist_expand(text, &names, &n, NULL), code);
}

UNIT_TEST(test_lists) {
  check("login1", "login1 ");
  check("b,a,b", "b a b ");
  check("gpu[001-003,20],login1", "gpu001 gpu002 gpu003 gpu20 login1 ");
  check("r[1-2]n[01-02]-ib", "r1n01-ib r1n02-ib r2n01-ib r2n02-ib ");
  check("n[8-11]", "n8 n9 n10 n11 ");
  check("n[08-11]", "n08 n09 n10 n11 ");
  check("n[098-101]", "n098 n099 n100 n101 ");
  check("n[3],n[3-3]", "n3 n3 ");
  check("[1-3]", "1 2 3 ");
  check("gpu[1-2].example.org,10.0.0.7", "gpu1.example.org gpu2.example.org 10.0.0.7 ");
  check("n[0-0]", "n0 ");
  check("n[000000001]", "n000000001 ");
  check("a[1][1][1][1][1][1][1][1]", "a11111111 ");
}

UNIT_TEST(test_what_is_no_list) {
  check_refused("", -EINVAL, "a name between commas is missing");
  check_refused("a,", -EINVAL, "a name between commas is missing");
  check_refused(",a", -EINVAL, "a name between commas is missing");
  check_refused("a,,b", -EINVAL, "a name between commas is missing");
  check_refused("a b", -EINVAL, "letters, digits, dots and dashes");
  check_refused("a;b", -EINVAL, "letters, digits, dots and dashes");
  check_refused("a[1-3", -EINVAL, "a closing bracket is missing");
  check_refused("a1-3]", -EINVAL, "closes nothing");
  check_refused("a[]", -EINVAL, "brackets hold numbers and ranges, as in [1-4,7]");
  check_refused("a[1,]", -EINVAL, "brackets hold");
  check_refused("a[x]", -EINVAL, "brackets hold");
  check_refused("a[1-]", -EINVAL, "brackets hold");
  check_refused("a[-1]", -EINVAL, "brackets hold");
  check_refused("a[1-2-3]", -EINVAL, "brackets hold");
  check_refused("a[1-5:2]", -EINVAL, "brackets hold");
  check_refused("a[1[2]]", -EINVAL, "brackets hold");
  check_refused("a[3-1]", -EINVAL, "a range goes down");
  check_refused("good,a[1-2]b[4-3]", -EINVAL, "a range goes down");
}

UNIT_TEST(test_limits) {
  SCOPED(buf_finish) struct buf names = BUF_INIT;
  size_t n;
  char text[300];
  assert_int_equal(hostlist_expand("n[1-65536]", &names, &n, NULL), 0);
  assert_int_equal(n, HOSTLIST_NAMES_MAX);
  check_refused("n[1-65537]", -E2BIG, "more than 65536 names");
  check_refused("n[0-999999999][0-999999999]", -E2BIG, "more than 65536 names");
  check_refused("a[1][1][1][1][1][1][1][1][1]", -E2BIG, "more than 8 brackets");
  check_refused("a[1234567890]", -E2BIG, "more than 9 digits");
  check_refused("a[1-1234567890]", -E2BIG, "more than 9 digits");
  memset(text, 'a', sizeof(text));
  text[HOSTLIST_NAME_MAX] = '\0';
  assert_int_equal(hostlist_expand(text, &names, &n, NULL), 0);
  snprintf(text + HOSTLIST_NAME_MAX - 1, 4, "[7]");
  assert_int_equal(hostlist_expand(text, &names, &n, NULL), 0);
  snprintf(text + HOSTLIST_NAME_MAX - 1, 5, "[07]");
  check_refused(text, -E2BIG, "longer than 255");
  snprintf(text + HOSTLIST_NAME_MAX - 50, 16, "[1-65536]");
  check_refused(text, -E2BIG, "more than 4 MiB");
}

UNIT_TEST(test_a_sentence_is_one_line) {
  SCOPED(buf_finish) struct buf names = BUF_INIT;
  struct err e = ERR_INIT;
  size_t n;
  assert_int_equal(hostlist_expand("\x1b[1m\n", &names, &n, &e), -EINVAL);
  assert_string_equal(e.text,
                      "\"\\x1b[1m\\n\" is not a list of hosts: a host has letters, digits, dots and dashes only");
}

/* Compressing. ----------------------------------------------------------------------------------------------------- */

enum { SOME_MAX = 32 };

/* names, parted by blanks, as a list of at most max bytes; told: how many of them it tells. */
static void check_short(const char *names, size_t max, const char *want, size_t told) {
  char copy[512], *rest = copy, *name;
  const char *v[SOME_MAX];
  size_t n = 0;
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  buf_puts(&out, "before ");
  snprintf(copy, sizeof(copy), "%s", names);
  while ((name = strsep(&rest, " "))) v[n++] = name;
  assert_int_equal(hostlist_compress(v, n, max, &out), told);
  assert_string_equal(buf_text(&out) + 7, want);
  assert_true(out.len - 7 <= max);
}

UNIT_TEST(test_compress) {
  check_short("n1", 99, "n1", 1);
  check_short("gpu009 gpu003 login gpu007 gpu008", 99, "gpu[003,007-009],login", 5);
  check_short("n10 n9 n8 n11", 99, "n[8-11]", 4);
  check_short("n099 n100 n098 n101", 99, "n[098-101]", 4);
  check_short("n09 n9 n10", 99, "n[9,09-10]", 3);
  check_short("n9 n010", 99, "n[9,010]", 2);
  check_short("r1n01-ib r1n02-ib r2n01-ib r2n02", 99, "r1n[01-02]-ib,r2n02,r2n01-ib", 4);
  check_short("a b c", 99, "a,b,c", 3);
  check_short("1 2 3 7", 99, "[1-3,7]", 4);
  check_short("n1.x n2.x n1.y", 99, "n[1-2].x,n1.y", 3);
  check_short("n1 n2 n1 n1 n2", 99, "n[1-2]", 5);
  check_short("n1 n1", 99, "n1", 2);
  check_short("99999999999998 99999999999999", 99, "99999[999999998-999999999]", 2);
  check_short("\x1b[31m", 99, "\\x1b[31m", 1);
}

UNIT_TEST(test_compress_to_a_size) {
  check_short("gpu003 gpu007 gpu008 gpu009 login", 22, "gpu[003,007-009],login", 5);
  check_short("gpu003 gpu007 gpu008 gpu009 login", 21, "gpu[003,007-009]", 4);
  check_short("gpu003 gpu007 gpu008 gpu009 login", 15, "gpu[003]", 1);
  check_short("gpu003 gpu007", 7, "", 0);
  check_short("gpu003", 5, "", 0);
  check_short("gpu003", 6, "gpu003", 1);
  check_short("a b c", 4, "a,b", 2);
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  assert_int_equal(hostlist_compress(NULL, 0, 10, &out), 0);
  assert_string_equal(buf_text(&out), "");
}

/* All hosts of a list, and back. */
static void check_round_trip(const char *text) {
  static const char *v[HOSTLIST_NAMES_MAX];
  SCOPED(buf_finish) struct buf names = BUF_INIT, out = BUF_INIT;
  size_t n;
  assert_int_equal(hostlist_expand(text, &names, &n, NULL), 0);
  const char *p = names.data;
  for (size_t i = n; i-- > 0; p += strlen(p) + 1) v[i] = p; /* the last first */
  assert_int_equal(hostlist_compress(v, n, 4096, &out), n);
  assert_string_equal(buf_text(&out), text);
}

UNIT_TEST(test_round_trips) {
  check_round_trip("n[1-65536]");
  check_round_trip("n[00001-65536]");
  check_round_trip("gpu[001-016,020],login1");
  check_round_trip("r1n[01-04]-ib,r2n[01-04]-ib");
  check_round_trip("a-[1-3,5,7-9],b[2-4].example.org,c");
}
