/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that no restart can mend are distinguished from others. */

#include "agent/supervisor/usage_error.h"
#include "tests/rig/unit.h"

static void test_of_the_trainer(void **state) {
  assert_true(is_usage_error(64, "", true));
  assert_true(is_usage_error(65, "", true));
  assert_false(is_usage_error(1, "train.py: error: x", true));
  assert_false(is_usage_error(64, "", false)); /* anybody's 64 is just a number */
}

static void test_of_python(void **state) {
  assert_true(
      is_usage_error(2, "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --rl", false));
  assert_true(is_usage_error(2, "  [--many]\npython3 -m a.b: error: argument --lr: invalid float value: 'x'", false));
  assert_true(is_usage_error(2, "warned first\nUsage: train.py [OPTIONS]\n\nError: No such option: --rl", false));
  assert_true(
      is_usage_error(2, "/usr/bin/python3: can't open file '/home/ada/train.py': [Errno 2] No such file", false));
  assert_true(is_usage_error(1, "/usr/bin/python3: No module named train", false));
  assert_true(is_usage_error(1,
                             "python3: Error while finding module specification for 'a.b' "
                             "(ModuleNotFoundError: No module named 'a')",
                             false));
}

static void test_of_what_a_restart_may_cure(void **state) {
  assert_false(is_usage_error(2, "", false));
  assert_false(is_usage_error(2, "memory usage: 12 GiB", false));
  assert_false(is_usage_error(2, "RuntimeError: usage", false));
  assert_false(is_usage_error(1, "train.py: error: unrecognized arguments", false));
  assert_false(is_usage_error(1, "ModuleNotFoundError: No module named 'x'", false));
  assert_false(is_usage_error(3, "usage: x", false));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_of_the_trainer),
      cmocka_unit_test(test_of_python),
      cmocka_unit_test(test_of_what_a_restart_may_cure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
