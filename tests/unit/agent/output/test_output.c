/* SPDX-License-Identifier: Apache-2.0 */
/* agent/output/output.c: the options together, and the prefix of a line. */

#include "agent/output/output.h"

#include <string.h>
#include "tests/rig/unit.h"

static void check_route(const struct output_settings *o, uint32_t local_rank, int std, const char *expected) {
  struct output_route r = output_route(o, local_rank, std);
  char text[32] = "";
  if (r.file) strcat(text, "file ");
  if (r.shown) strcat(text, "shown ");
  if (r.filtered) strcat(text, "filtered ");
  if (text[0]) text[strlen(text) - 1] = '\0';
  assert_string_equal(text, expected);
}

UNIT_TEST(test_neither) {
  static struct output_settings o;
  check_route(&o, 0, STD_OUT, "shown");
  check_route(&o, 1023, STD_ERR, "shown");
  assert_false(output_has_files(&o));
  assert_false(output_has_no_files(&o));
}

UNIT_TEST(test_maps) {
  static struct output_settings o = {.redirects.of = {[0] = STD_ALL, [1] = STD_ERR},
                                     .tee.of = {[1] = STD_OUT, [2] = STD_ALL}};
  check_route(&o, 0, STD_OUT, "file");
  check_route(&o, 0, STD_ERR, "file");
  check_route(&o, 1, STD_OUT, "file shown");
  check_route(&o, 1, STD_ERR, "file");
  check_route(&o, 2, STD_ERR, "file shown");
  check_route(&o, 3, STD_OUT, "shown");
  o.redirects.of[2] = STD_ALL; /* --tee wins */
  check_route(&o, 2, STD_ERR, "file shown");
  o.log_dir = "/logs"; /* a place, no more: */
  o.streams_named = true;
  check_route(&o, 3, STD_OUT, "shown");
  assert_true(output_has_files(&o));
}

UNIT_TEST(test_log_dir_alone) {
  static struct output_settings o = {.log_dir = "/logs"};
  check_route(&o, 0, STD_OUT, "file shown");
  check_route(&o, 7, STD_ERR, "file shown");
  assert_true(output_has_files(&o));
}

UNIT_TEST(test_no_files) {
  static struct output_settings o = {.log_dir = "/dev/null", .duplicate_stdout_filters = {.n = 1, .v = {"x"}}};
  memset(o.redirects.of, STD_ALL, sizeof(o.redirects.of));
  check_route(&o, 0, STD_OUT, "shown"); /* it has to go somewhere */
  assert_true(output_has_no_files(&o));
  assert_false(output_has_files(&o));
}

UNIT_TEST(test_some_ranks_are_shown) {
  static struct output_settings o = {.shown = {.some = true, .in = {[1] = true}},
                                     .duplicate_stderr_filters = {.n = 1, .v = {"x"}}};
  check_route(&o, 0, STD_OUT, "");
  check_route(&o, 1, STD_OUT, "shown");
  check_route(&o, 0, STD_ERR, "");
  check_route(&o, 1, STD_ERR, "shown filtered");
  memset(o.tee.of, STD_ALL, sizeof(o.tee.of));
  check_route(&o, 0, STD_ERR, "file");
  check_route(&o, 1, STD_ERR, "file shown filtered");
  memset(o.tee.of, 0, sizeof(o.tee.of));
  memset(o.redirects.of, STD_ALL, sizeof(o.redirects.of));
  check_route(&o, 1, STD_ERR, "file");
  assert_true(output_has_files(&o));
}

static const char *role = "default";

static void check_prefix(const struct output_settings *o, int64_t world_size, const char *prefix, const char *label) {
  struct output_name n = {.role = role, .rank = 13, .world_size = world_size, .local_rank = 5, .host = "gpu7"};
  struct buf b = BUF_INIT;
  output_prefix(o, &n, &b);
  assert_string_equal(buf_text(&b), prefix);
  buf_clear(&b);
  output_label(o, &n, &b);
  assert_string_equal(buf_text(&b), label);
  buf_finish(&b);
}

UNIT_TEST(test_prefixes) {
  static struct output_settings o;
  check_prefix(&o, 1, "", "[default5]:");
  check_prefix(&o, 16, "[13] ", "[default5]:");
  o.log_line_prefix = ""; /* as none, as under torchrun */
  check_prefix(&o, 16, "[13] ", "[default5]:");
  role = "trainer";
  o.log_dir = "/logs";
  check_prefix(&o, 16, "[13] ", "[trainer5]:");
  o.tee.of[5] = STD_ERR;
  check_prefix(&o, 16, "[13] ", "[trainer5]:"); /* files change nothing */
  check_prefix(&o, 1, "", "[trainer5]:");
  o.log_dir = "/dev/null";
  check_prefix(&o, 16, "[13] ", "[trainer5]:");
}

static void check_template(const char *template, const char *expected) {
  static struct output_settings o;
  role = "trainer";
  o.log_line_prefix = template;
  check_prefix(&o, 1, expected, expected);
}

UNIT_TEST(test_templates) {
  check_template("[${role_name}/${local_rank}]: ", "[trainer/5]: ");
  check_template("$rank>", "13>");
  check_template("[${hostname}:${rank}] ", "[gpu7:13] ");
  check_template("$$rank $$$rank", "$rank $13");
  check_template("${unknown} $unknown ${rank", "${unknown} $unknown ${rank");
  check_template("$", "$");
  check_template("${}$ ${1rank}$5", "${}$ ${1rank}$5");
  check_template("$ranks $rank_", "$ranks $rank_");
  char many[2048], expected[OUTPUT_PREFIX_MAX + 1];
  memset(many, 'x', sizeof(many) - 1);
  many[sizeof(many) - 1] = '\0';
  memset(expected, 'x', OUTPUT_PREFIX_MAX);
  expected[OUTPUT_PREFIX_MAX] = '\0';
  check_template(many, expected);
  memcpy(many + OUTPUT_PREFIX_MAX - 1, "\u00e4", 2); /* would be halved */
  expected[OUTPUT_PREFIX_MAX - 1] = '\0';
  memcpy(many + OUTPUT_PREFIX_MAX + 1, "${role_name}", 12);
  check_template(many, expected);
}

static void check_name(const char *run_id, const char *expected) {
  struct buf b = BUF_INIT;
  output_file_name(run_id, &b);
  assert_string_equal(buf_text(&b), expected);
  buf_finish(&b);
}

UNIT_TEST(test_file_names) {
  check_name("job-1.2_x", "job-1.2_x");
  check_name("user@node1:29400", "user@node1_29400");
  check_name("../../etc/passwd", "_._.._etc_passwd");
  check_name("..", "_.");
  check_name("a b\n$(\u00e4)'", "a_b_______");
}
