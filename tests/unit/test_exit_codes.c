/* exit_codes: every code has a text, none twice, all where scripts expect them. */

#include "common/exit_codes.h"

#include <string.h>
#include "tests/unit/unit.h"

static void test_texts(void **state) {
#define X(name, code, help) assert_string_equal(exit_code_text(EXIT_CODE_##name), help);
  EXIT_CODE_LIST(X)
#undef X
}

static void test_range(void **state) {
#define X(name, code, help) assert_true((code) == 0 || ((code) >= 64 && (code) <= 82));
  EXIT_CODE_LIST(X)
#undef X
  assert_int_equal(EXIT_CODE_OK, 0);
  assert_int_equal(EXIT_CODE_USAGE, 64);
  assert_int_equal(EXIT_CODE_PREEMPTED, 75);
}

static void test_others_have_none(void **state) {
  int known = 0, listed = 0;
#define X(name, code, help) listed++;
  EXIT_CODE_LIST(X)
#undef X
  for (int code = -10; code < 300; code++) known += exit_code_text(code) != NULL;
  assert_int_equal(known, listed);
  assert_null(exit_code_text(1));
  assert_null(exit_code_text(137));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_texts),
      cmocka_unit_test(test_range),
      cmocka_unit_test(test_others_have_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
