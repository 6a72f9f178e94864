/* SPDX-License-Identifier: Apache-2.0 */
/* proto/facts: the table, and values as people read them. */

#include "proto/facts.h"

#include <string.h>
#include "proto/msg.h"
#include "tests/rig/unit.h"

UNIT_TEST(test_names) {
  for (int i = 0; i < FACT_COUNT; i++) {
    const struct fact_kind *kind = &fact_kinds[i];
    assert_int_equal(fact_find(kind->name), i);
    assert_true(strlen(kind->name) <= FACT_NAME_MAX);
    assert_true(kind->compare == FACT_NEVER || kind->odd != FACT_FINE);
    assert_int_equal(kind->type == FACT_COUNTER, kind->compare == FACT_RISES);
    if (kind->type == FACT_TEXT) assert_true(kind->compare == FACT_NEVER || kind->compare == FACT_SAME);
  }
  assert_int_equal(fact_find("a_fact_of_tomorrow"), FACT_COUNT);
  assert_int_equal(fact_find(""), FACT_COUNT);
}

static void expect(enum fact_id id, int64_t value, const char *text, const char *want) {
  struct buf out = BUF_INIT;
  fact_put_value(id, value, text, &out);
  assert_string_equal(buf_text(&out), want);
  buf_finish(&out);
}

UNIT_TEST(test_values) {
  expect(FACT_PCIE_WIDTH, 8, "", "x8");
  expect(FACT_GPUS, 8, "", "8");
  expect(FACT_KERNEL, 0, "6.8.0", "6.8.0");
  expect(FACT_MEM_MIB, 2063590, "", "2015 GiB");
  expect(FACT_TMP_FREE_MIB, 40, "", "40 MiB");
  expect(FACT_MEMLOCK_KIB, -1, "", "unlimited");
  expect(FACT_MEMLOCK_KIB, 64, "", "64 KiB");
  expect(FACT_PORT_RATE, 400, "", "400 Gb/s");
  expect(FACT_RECOVERY_ACTION, 1, "", "GPU reset");
  expect(FACT_RECOVERY_ACTION, 9, "", "9"); /* of a later driver */
  expect(FACT_XID, 79, "", "79 (GPU has fallen off the bus)");
  expect(FACT_DEVICE_NODE, 0, "", "missing");
  expect(FACT_CLOCK_SKEW_MS, -1540, "", "-1.5 s");
}

UNIT_TEST(test_classes) {
  assert_int_equal(fact_judge(FACT_XID, 79, ""), FACT_CERTAIN);
  assert_int_equal(fact_judge(FACT_XID, 95, ""), FACT_CERTAIN);
  static const int of_applications[] = {13, 31, 43, 45, 94};
  for (int i = 0; i < 5; i++) assert_true(fact_judge(FACT_XID, of_applications[i], "") <= FACT_HINT);
  assert_int_equal(fact_judge(FACT_XID, 0, ""), FACT_FINE);
  assert_int_equal(fact_judge(FACT_GPU_ERROR, 0, ""), FACT_FINE);
  assert_int_equal(fact_judge(FACT_RECOVERY_ACTION, 4, ""), FACT_CERTAIN);
  assert_int_equal(fact_judge(FACT_RECOVERY_ACTION, -1, ""), FACT_FINE);
  assert_int_equal(fact_judge(FACT_CPUS, 0, ""), FACT_FINE);
  assert_int_equal(fact_judge_odd(FACT_PORT_STATE, "DOWN", "ACTIVE"), FACT_SUSPECT);
  assert_int_equal(fact_judge_odd(FACT_PORT_STATE, "DOWN", "ACTIVE_DEFER"), FACT_SUSPECT);
  assert_int_equal(fact_judge_odd(FACT_PORT_STATE, "DOWN", "INIT"), FACT_HINT);
  assert_int_equal(fact_judge_odd(FACT_PORT_STATE, "INIT, was ACTIVE", "DOWN"), FACT_SUSPECT);
  assert_int_equal(fact_judge_odd(FACT_PORT_STATE, "ACTIVE", "DOWN"), FACT_FINE);
  assert_int_equal(fact_judge(FACT_PORT_STATE, 0, "DOWN"), FACT_FINE);
  assert_int_equal(fact_judge(FACT_PORT_STATE, 0, "DOWN, was ACTIVE"), FACT_SUSPECT);
  assert_int_equal(fact_judge_odd(FACT_FABRIC, "ready", "in progress"), FACT_FINE);
  assert_true(fact_amount(FACT_MEMLOCK_KIB, -1) > fact_amount(FACT_MEMLOCK_KIB, INT32_MAX));
}
