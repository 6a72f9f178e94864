/* SPDX-License-Identifier: Apache-2.0 */
/* agent/devices/facts.c: lists of facts, and the lines of rdzv-devices. */

#include <stdio.h>
#include <string.h>
#include "agent/devices/facts.h"
#include "tests/rig/unit.h"

static int parse(const char *text, struct facts_line *line, struct err *e) {
  *e = (struct err)ERR_INIT;
  return facts_parse(text, strlen(text), line, e);
}

UNIT_TEST(reads_what_it_prints) {
  struct facts_line line = {.part = FACTS_GPUS, .missing = "a \"reason\""}, again;
  struct err e;
  SCOPED(buf_finish) struct buf text = BUF_INIT;
  facts_number(&line.facts, "gpu3", "recovery_action", 0);
  facts_number(&line.facts, "", "memlock_kib", -1);
  facts_text(&line.facts, "mlx5_0/1", "port_state", "ACTIVE");
  facts_text(&line.facts, "", "nothing", "");
  facts_print(&line, &text);
  assert_int_equal(text.data[text.len - 1], '\n');
  assert_int_equal(facts_parse(text.data, text.len - 1, &again, &e), 0);
  assert_int_equal(again.part, FACTS_GPUS);
  assert_string_equal(again.missing, "a \"reason\"");
  assert_int_equal(again.facts.n, 3);
  assert_true(facts_equal(&again.facts, &line.facts));
  assert_int_equal(facts_find(&again.facts, "", "memlock_kib")->value, -1);
  assert_string_equal(facts_find(&again.facts, "mlx5_0/1", "port_state")->text, "ACTIVE");
  assert_null(facts_find(&again.facts, "gpu3", "port_state"));
  facts_number(&again.facts, "", "cpus", 2);
  assert_false(facts_equal(&again.facts, &line.facts));
  facts_finish(&line.facts);
  facts_finish(&again.facts);

  struct facts_line xid = {.part = FACTS_PARTS, .xid = {79, 3, "GPU-1", "0000:65:00.0"}};
  buf_clear(&text);
  facts_print(&xid, &text);
  assert_int_equal(parse(buf_text(&text), &again, &e), 0);
  assert_int_equal(again.part, FACTS_PARTS);
  assert_memory_equal(&again.xid, &xid.xid, sizeof xid.xid);
}

UNIT_TEST(refuses_what_is_none) {
  static const struct {
    const char *text, *why;
  } bad[] = {
      {"", "line 1"},
      {"GPU is lost", "line 1"},
      {"{}", "an XID is from 1 to 1000"},
      {"{\"xid\":0}", "an XID is from 1 to 1000"},
      {"{\"xid\":1001}", "an XID is from 1 to 1000"},
      {"{\"xid\":79,\"gpu\":256}", "a GPU's number is from 0 to 255"},
      {"{\"xid\":79,\"gpu\":-1}", "a GPU's number is from 0 to 255"},
      {"{\"part\":\"moon\",\"facts\":[]}", "unknown part"},
      {"{\"part\":\"host\"}", "no list of facts"},
      {"{\"part\":\"host\",\"facts\":[{\"value\":1}]}", "a fact has no name, or a bad one"},
      {"{\"part\":\"host\",\"facts\":[{\"name\":\"a b\",\"value\":1}]}", "a fact has no name, or a bad one"},
      {"{\"part\":\"host\",\"facts\":[{\"name\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\",\"value\":1}]}", "or a bad one"},
      {"{\"part\":\"host\",\"facts\":[{\"name\":\"a\"}]}", "a has neither a number nor a text, or both"},
      {"{\"part\":\"host\",\"facts\":[{\"name\":\"a\",\"value\":1.5}]}", "a has neither"},
      {"{\"part\":\"host\",\"facts\":[{\"name\":\"a\",\"value\":1,\"text\":\"b\"}]}", "a has neither"},
      {"{\"part\":\"host\",\"facts\":[{\"name\":\"a\",\"value\":-9223372036854775808}]}", "a has neither"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    struct facts_line line;
    struct err e;
    assert_int_not_equal(parse(bad[i].text, &line, &e), 0);
    assert_non_null(strstr(e.text, bad[i].why));
    assert_int_equal(line.facts.n, 0);
  }
}

UNIT_TEST(bounds_what_it_takes) {
  struct fact_list all = {0}, more = {0};
  char text[600];
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  memcpy(text + REASON_MAX - 1, "\xc3\xa9", 2); /* a character across the limit */
  facts_text(&all, "", "kernel", text);
  assert_int_equal(strlen(all.v[0].text), REASON_MAX - 1);
  for (int i = 0; i < FACTS_MAX + 5; i++) facts_number(&all, "gpu0", "n", i);
  assert_int_equal(all.n, FACTS_MAX);
  facts_add(&more, &all);
  facts_add(&more, &all);
  assert_int_equal(more.n, FACTS_MAX);
  assert_true(facts_equal(&more, &all));
  facts_finish(&all);
  facts_finish(&more);
}

UNIT_TEST(coarse_numbers_stay_for_a_while) {
  static const int64_t pairs[][2] = {{0, 0},    {7, 7},    {8, 8},     {9, 8},
                                     {100, 96}, {111, 96}, {112, 112}, {1 << 30, 1 << 30}};
  for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) assert_int_equal(facts_coarse(pairs[i][0]), pairs[i][1]);
}
