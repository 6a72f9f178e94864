/* SPDX-License-Identifier: Apache-2.0 */
/* opts_value: numbers, times and sizes as people write them. */

#include "common/opts/opts.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static void check_time(const char *text, int64_t want) {
  int64_t ms = -1;
  assert_int_equal(parse_duration_ms(text, &ms, NULL), 0);
  assert_int_equal(ms, want);
}

UNIT_TEST(test_durations) {
  check_time("0", 0);
  check_time("30", 30000);
  check_time("30s", 30000);
  check_time("500ms", 500);
  check_time("1.5s", 1500);
  check_time("1.5", 1500);
  check_time("0.0015s", 2); /* to the nearest */
  check_time("0.25m", 15000);
  check_time("5m", 300000);
  check_time("2h", 7200000);
  check_time("2H", 7200000);
  check_time("0.1s", 100);
  check_time("0.3h", 1080000);
  check_time("9223372036854775807ms", INT64_MAX);
}

UNIT_TEST(test_bad_durations) {
  static const char *const bad[] = {"",     "s",   "-1s",  "+1s", "1 s",  " 1s",   "1s ",  "1.s", ".5s",
                                    "1.5.", "1e3", "0x10", "1d",  "1sec", "1m30s", "1,5s", "inf"};
  struct err e = ERR_INIT;
  int64_t ms = 77;
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    if (parse_duration_ms(bad[i], &ms, &e) != -EINVAL) fail_msg("'%s' was let in", bad[i]);
    assert_string_equal(e.text, "not a time: write 500ms, 30s, 5m or 2h");
    assert_int_equal(ms, 77);
  }
  assert_int_equal(parse_duration_ms("99999999999999999999", &ms, &e), -EINVAL);
  assert_string_equal(e.text, "the time is too long");
  assert_int_equal(parse_duration_ms("9223372036854775807h", &ms, &e), -EINVAL);
  assert_int_equal(parse_duration_ms("9223372036854775807.9ms", &ms, &e), -EINVAL);
}

UNIT_TEST(test_sizes) {
  static const struct {
    const char *text;
    int64_t want;
  } good[] = {{"0", 0},        {"4096", 4096}, {"64k", 65536},    {"25m", 25 << 20}, {"25M", 25 << 20},
              {"1g", 1 << 30}, {"1.5k", 1536}, {"2t", 2LL << 40}, {"0.5", 1}};
  for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
    int64_t v = -1;
    assert_int_equal(parse_size(good[i].text, &v, NULL), 0);
    assert_int_equal(v, good[i].want);
  }
  int64_t v = 0;
  assert_int_equal(parse_size("k", &v, NULL), -EINVAL);
  assert_int_equal(parse_size("1kb", &v, NULL), -EINVAL);
  assert_int_equal(parse_size("-1k", &v, NULL), -EINVAL);
  assert_int_equal(parse_size("9999999999t", &v, NULL), -EINVAL);
}

UNIT_TEST(test_ints) {
  int64_t v = 0;
  assert_int_equal(parse_int("9223372036854775807", INT64_MIN, INT64_MAX, &v, NULL), 0);
  assert_true(v == INT64_MAX);
  assert_int_equal(parse_int("-9223372036854775808", INT64_MIN, INT64_MAX, &v, NULL), 0);
  assert_true(v == INT64_MIN);
  assert_int_equal(parse_int("007", 0, 10, &v, NULL), 0);
  assert_int_equal(v, 7);
  assert_int_equal(parse_int("-0", 0, 10, &v, NULL), 0);
  assert_int_equal(v, 0);
}

static void check_int(const char *text, int64_t min, int64_t max, const char *sentence) {
  struct err e = ERR_INIT;
  int64_t v = 77;
  assert_int_equal(parse_int(text, min, max, &v, &e), -EINVAL);
  assert_string_equal(e.text, sentence);
  assert_int_equal(v, 77);
}

UNIT_TEST(test_bad_ints) {
  static const char *const bad[] = {"", "-", "+1", " 1", "1 ", "0x1", "1e3", "1.0", "--1", "one"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) check_int(bad[i], 0, 10, "not a whole number");
  check_int("9223372036854775808", INT64_MIN, INT64_MAX, "the number is too large");
  check_int("-9223372036854775809", INT64_MIN, INT64_MAX, "the number is too small");
  check_int("18446744073709551617", 0, 10, "must be from 0 to 10"); /* 1 after a silent wrap */
  check_int("-1", 0, INT64_MAX, "must be at least 0");
  check_int("9223372036854775808", 0, INT64_MAX, "the number is too large");
  check_int("11", INT64_MIN, 10, "must be at most 10");
}

UNIT_TEST(test_bools) {
  static const char *const yes[] = {"1", "true", "yes", "YES", "True"}, *const no[] = {"0", "false", "no", "No"};
  bool v = false;
  for (size_t i = 0; i < 5; i++) {
    v = false;
    assert_int_equal(parse_bool(yes[i], &v, NULL), 0);
    assert_true(v);
  }
  for (size_t i = 0; i < 4; i++) {
    v = true;
    assert_int_equal(parse_bool(no[i], &v, NULL), 0);
    assert_false(v);
  }
  assert_int_equal(parse_bool("", &v, NULL), -EINVAL);
  assert_int_equal(parse_bool("2", &v, NULL), -EINVAL);
  assert_int_equal(parse_bool("y", &v, NULL), -EINVAL);
}

static double float_of(const char *text, int want) {
  static const struct opt table[] = {{.name = "x", .type = OPT_FLOAT}, {0}};
  const struct opts_spec spec = {.program = "t", .usage = "t", .table = table};
  char arg[64] = "--x=", name[] = "t", *argv[] = {name, arg, NULL};
  double v = -77;
  struct opts_parsed p;
  for (size_t n = 4; n < sizeof(arg) - 1 && *text; n++) arg[n] = *text++;
  assert_int_equal(opts_parse(&spec, 2, argv, NULL, &v, &p, NULL), want);
  return v;
}

UNIT_TEST(test_floats) {
  assert_true(float_of("1", 0) == 1.0);
  assert_true(float_of("-2.5e-3", 0) == -2.5e-3);
  assert_true(float_of(".5", 0) == 0.5);
  assert_true(float_of("1e-320", 0) < 1e-300); /* a denormal is a number */
  static const char *const bad[] = {"", "x", "1x", "inf", "nan", "0x10", "1e999", "1 ", " 1", "e", "1,5", "-"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) assert_true(float_of(bad[i], -EINVAL) == -77);
}

UNIT_TEST(test_words) {
  static const struct opt table[] = {{.name = "x", .type = OPT_WORD, .label = "a|bc|d", .min = 1}, {0}};
  const struct opts_spec spec = {.program = "t", .usage = "t", .table = table};
  static const struct {
    const char *arg;
    int number;
  } cases[] = {{"--x=a", 1}, {"--x=bc", 2}, {"--x=d", 3}, {"--x=b", 0}, {"--x=a|bc", 0}, {"--x=bcd", 0}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    char name[] = "t", arg[16], *argv[] = {name, arg, NULL};
    struct opts_parsed p;
    struct err e = ERR_INIT;
    int number = 0;
    snprintf(arg, sizeof(arg), "%s", cases[i].arg);
    assert_int_equal(opts_parse(&spec, 2, argv, NULL, &number, &p, &e), cases[i].number ? 0 : -EINVAL);
    assert_int_equal(number, cases[i].number);
    if (!number) assert_non_null(strstr(e.text, ": must be a, bc or d"));
  }
}
