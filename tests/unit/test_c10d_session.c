/* c10d_session: what PyTorch's clients send and are answered, byte for byte as PyTorch 2.13's own server answers. */

#include "proto/c10d_session.h"

#include <errno.h>
#include <string.h>
#include "tests/unit/c10d_help.h"
#include "tests/unit/unit.h"

static struct c10d_test t;

static int setup(void **state) {
  c10d_test_init(&t, NULL);
  return 0;
}

static int teardown(void **state) {
  c10d_test_finish(&t);
  return 0;
}

/* As a 2.6 client and the real libuv server were seen to talk. */
static void test_golden_trace(void **state) {
  c10d_ask(&t, 0, "00cef7853c 0d 31580000", "31580000");
  c10d_ask(&t, 0, "01 02000000000000002f6b 02000000000000007631", "");
  c10d_ask(&t, 0, "06 0100000000000000 02000000000000002f6b", "00");
  c10d_ask(&t, 0, "03 02000000000000002f6b", "0200000000000000 7631");
  c10d_ask(&t, 0, "01 02000000000000002f6e 01000000000000003501 02000000000000002f6e 01000000000000003a", "");
}

static void test_ops(void **state) {
  c10d_greet(&t, 0);
  c10d_ask(&t, 0, "01 '/n' '5' 04 '/n' #-7", "#-2");
  c10d_ask(&t, 0, "03 '/n'", "'-2'");
  c10d_ask(&t, 0, "02 '/c' '' 'X'", "'X'");
  c10d_ask(&t, 0, "05 #2 '/c' '/zz'", "01");
  c10d_ask(&t, 0, "09 '/a' '12' 09 '/a' '3' 03 '/a'", "'123'");
  c10d_ask(&t, 0, "0b #2 '/x' '1' '/y' '2' 0a #3 '/x' '/none' '/y'", "'1' '' '2'");
  c10d_ask(&t, 0, "07", "#5");
  c10d_ask(&t, 0, "08 '/a' 08 '/a'", "#1 #0");
  c10d_ask(&t, 0, "11", "#4 '/n' '/c' '/x' '/y'");
  c10d_ask(&t, 0, "04 'init/' #1", "#1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_golden_trace, setup, teardown),
      cmocka_unit_test_setup_teardown(test_ops, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
