/* SPDX-License-Identifier: Apache-2.0 */
/* exit_codes: every code has a text, none twice, all where scripts expect them. */

#include "common/exit_codes.h"

#include <string.h>
#include "agent/trainer/run/options.h"
#include "tests/rig/unit.h"

UNIT_TEST(test_texts) {
#define X(name, code, help) assert_string_equal(exit_code_text(EXIT_CODE_##name), help);
  EXIT_CODE_LIST(X)
#undef X
}

UNIT_TEST(test_range) {
#define X(name, code, help)                                                                                            \
  assert_true((code) == 0 || (code) == 16 || (code) == 17 || ((code) >= 64 && (code) <= 85)); /* 16, 17: Megatron-LM */
  EXIT_CODE_LIST(X)
#undef X
  assert_int_equal(EXIT_CODE_OK, 0);
  assert_int_equal(EXIT_CODE_USAGE, 64);
  assert_int_equal(EXIT_CODE_PREEMPTED, 75);
}

UNIT_TEST(test_others_have_none) {
  int known = 0, listed = 0;
#define X(name, code, help) listed++;
  EXIT_CODE_LIST(X)
#undef X
  for (int code = -10; code < 300; code++) known += exit_code_text(code) != NULL;
  assert_int_equal(known, listed);
  assert_null(exit_code_text(1));
  assert_null(exit_code_text(137));
}

/* An agent exits with its worker's code: where that is rdzv-trainer's, nobody must take it for the agent's own. */
UNIT_TEST(test_the_trainers_are_others) {
#define X(name, code, help)                                                                                            \
  assert_true(!exit_code_text(code) || (code) == EXIT_CODE_OK || (code) == EXIT_CODE_USAGE ||                          \
              (code) == EXIT_CODE_SYSTEM || (code) == EXIT_CODE_PREEMPTED || (code) == EXIT_CODE_OTHER_HOST ||         \
              (code) == EXIT_CODE_WRONG_RESULT);
  TRAINER_EXIT_LIST(X)
#undef X
}
