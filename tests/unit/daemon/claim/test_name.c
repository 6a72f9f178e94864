/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a claim: never outside of the folder, never that of another name, always below its prefix. */

#include "daemon/claim/name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static const char *file_of(const char *name) {
  static char file[CLAIM_FILE_MAX + 1];
  assert_int_equal(claim_file_name(name, file, NULL), 0);
  assert_null(strchr(file, '/'));
  assert_int_not_equal(file[0], '.');
  return file;
}

UNIT_TEST(test_what_becomes_of_a_name) {
  assert_string_equal(file_of("1000/train/01a2-5f/3"), "1000,train,01a2-5f,3");
  assert_string_equal(file_of("1000/my%20job_v1.2/5f/12"), "1000,my%20job_v1.2,5f,12");
  assert_string_equal(file_of("1000/train/"), "1000,train,");
  assert_string_equal(file_of("../../etc/passwd"), "+2e.,..,etc,passwd");
  assert_string_equal(file_of(".claim-1"), "+2eclaim-1");
  assert_string_equal(file_of("a,b+c~d"), "a+2cb+2bc+7ed");
}

UNIT_TEST(test_a_long_part_is_hashed) {
  char name[CLAIM_NAME_MAX + 1], first[CLAIM_FILE_MAX + 1], prefix[CLAIM_NAME_MAX + 1];
  char job[385];
  memset(job, 'x', sizeof job - 1);
  job[sizeof job - 1] = '\0';
  snprintf(name, sizeof name, "4294967295/%s/0123456789012345678901234567890123456789/4294967295", job);
  snprintf(prefix, sizeof prefix, "4294967295/%s/", job);
  strcpy(first, file_of(name));
  assert_true(strlen(first) < 200);
  assert_int_equal(strncmp(first, file_of(prefix), strlen(file_of(prefix))), 0);
  job[383] = 'y';
  snprintf(name, sizeof name, "4294967295/%s/0123456789012345678901234567890123456789/4294967295", job);
  assert_string_not_equal(first, file_of(name));
}

/* Every pair of short names from an alphabet with all special characters. */
UNIT_TEST(test_names_do_not_meet) {
  enum { ALPHABET = 9, NAMES = ALPHABET * ALPHABET * ALPHABET };
  static const char letters[ALPHABET + 1] = "a2ce,+~./";
  static char files[NAMES][CLAIM_FILE_MAX + 1];
  size_t n = 0;
  for (int i = 0; i < NAMES; i++) {
    const char name[] = {
        letters[i / (ALPHABET * ALPHABET)], letters[i / ALPHABET % ALPHABET], letters[i % ALPHABET], '/', 'x', 0};
    if (claim_name_check(name, false, NULL) == 0) strcpy(files[n++], file_of(name));
  }
  assert_true(n > 500);
  for (size_t i = 0; i < n; i++)
    for (size_t k = 0; k < i; k++) assert_string_not_equal(files[i], files[k]);
}

static void check_end(const char *name, const char *wanted) {
  char end[CLAIM_END_NAME_MAX + 1];
  claim_end_name(name, end);
  assert_string_equal(end, wanted);
}

UNIT_TEST(test_the_end_of_a_prefix) {
  char longest[CLAIM_NAME_MAX + 1];
  check_end("0/j/i/12", "0/j/i/end");
  check_end("0/j/i/", "0/j/i/end");
  memset(longest, 'x', CLAIM_NAME_MAX);
  longest[CLAIM_NAME_MAX - 1] = '/';
  longest[CLAIM_NAME_MAX] = '\0';
  char end[CLAIM_END_NAME_MAX + 1];
  claim_end_name(longest, end);
  assert_int_equal(strlen(end), CLAIM_END_NAME_MAX);
}

static void check_refused(const char *name, bool prefix, const char *why) {
  struct err e = ERR_INIT;
  assert_int_equal(claim_name_check(name, prefix, &e), -EINVAL);
  if (!strstr(e.text, why)) fail_msg("'%s' does not say '%s'", e.text, why);
}

UNIT_TEST(test_refused) {
  char longest[CLAIM_NAME_MAX + 2];
  memset(longest, 'x', sizeof longest - 1);
  longest[sizeof longest - 1] = '\0';
  check_refused("", false, "1 to 512 bytes");
  check_refused(longest, false, "this one has 513");
  longest[CLAIM_NAME_MAX] = '\0';
  longest[1] = '/';
  assert_int_equal(claim_name_check(longest, false, NULL), 0);
  check_refused("/a", false, "empty part");
  check_refused("a//b", false, "empty part");
  check_refused("a", false, "has a slash");
  check_refused("a/", false, "does not end with a slash");
  check_refused("a/b", true, "ends with a slash");
  assert_int_equal(claim_name_check("a/", true, NULL), 0);
  check_refused("a /b", false, "printable ASCII");
  check_refused("a/\nb", false, "printable ASCII");
  check_refused("a/\xc3\xbc", false, "printable ASCII");
  check_refused("a/\x7f", false, "printable ASCII");
  for (size_t i = 0; i < CLAIM_NAME_MAX; i++) longest[i] = i % 100 == 99 ? '/' : 'x';
  assert_int_equal(claim_file_name(longest, (char[CLAIM_FILE_MAX + 1]){0}, NULL), -EINVAL);
}

UNIT_TEST(test_runs) {
  static const char *const runs[][2] = {{"1000/my%20job/5f-1/", "1000/my%20job/run/5f-1"}, {"0/j/", "0/run/j"}};
  for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
    char name[CLAIM_RUN_NAME_MAX + 1];
    size_t common = claim_run_name(runs[i][0], name);
    assert_string_equal(name, runs[i][1]);
    assert_int_equal(memcmp(name + common - 5, "/run/", 5), 0);
  }
}
