/* SPDX-License-Identifier: Apache-2.0 */
/* near: which names are meant by a misspelt one. */

#include "common/did_you_mean.h"

#include <stdint.h>
#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_near) {
  static const struct {
    const char *word, *name;
    size_t distance; /* 0: not near */
  } cases[] = {
      {"trian.py", "train.py", 1},
      {"tran.py", "train.py", 1},
      {"train.px", "train.py", 1},
      {"ni", "nproc", 0},
      {"np", "nproc", 1},
      {"endpoint-url", "endpoint", 2},
      {"nproc-per-worker", "nproc-per-node", 1},
      {"nproc-x", "nproc-per-node", 0},
      {"elastic", "expect", 0},
      {"evaluate.py", "train.py", 0},
      {"a", "b", 0},
      {"", "train.py", 0},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    size_t d = near_distance(cases[i].word, cases[i].name), want = cases[i].distance ? cases[i].distance : SIZE_MAX;
    if (d != want) fail_msg("%s and %s: %zu", cases[i].word, cases[i].name, d);
  }
}

UNIT_TEST(test_long_names) {
  char longest[NEAR_MAX + 1], longer[NEAR_MAX + 2];
  memset(longest, 'x', NEAR_MAX);
  memset(longer, 'x', NEAR_MAX + 1);
  longest[NEAR_MAX] = longer[NEAR_MAX + 1] = '\0';
  assert_int_equal(near_distance(longest, longest), 0);
  assert_true(near_distance(longest, longer) == SIZE_MAX);
  assert_true(near_distance(longer, longest) == SIZE_MAX);
}
