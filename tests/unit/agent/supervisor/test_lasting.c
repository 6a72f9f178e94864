/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that no restart can mend are distinguished from others. */

#include "agent/supervisor/internal.h"
#include "tests/rig/unit.h"

static void check(enum lasting want, int code, const char *text, const char *error) {
  assert_int_equal(find_lasting(code, text, error, false), want);
}

UNIT_TEST(test_of_the_trainer) {
  assert_int_equal(find_lasting(64, "", "", true), LASTING_TRAINER);
  assert_int_equal(find_lasting(65, "", "", true), LASTING_TRAINER);
  assert_int_equal(find_lasting(1, "train.py: error: x", "ImportError: x", true), LASTING_NO);
  check(LASTING_NO, 64, "", ""); /* anybody's 64 is just a number */
}

UNIT_TEST(test_of_arguments) {
  check(LASTING_USAGE, 2, "usage: train.py [-h] [--lr LR]\ntrain.py: error: unrecognized arguments: --rl", "");
  check(LASTING_USAGE, 2, "  [--many]\npython3 -m a.b: error: argument --lr: invalid float value: 'x'", "");
  check(LASTING_USAGE, 2, "warned first\nUsage: train.py [OPTIONS]\n\nError: No such option: --rl", "");
}

UNIT_TEST(test_of_a_script) {
  check(LASTING_SCRIPT, 2, "/usr/bin/python3: can't open file '/home/ada/train.py': [Errno 2] No such file", "");
  check(LASTING_SCRIPT, 2, "sh: 0: cannot open run.sh: No such file", "");
  check(LASTING_SCRIPT, 1, "/usr/bin/python3: No module named train", "/usr/bin/python3: No module named train");
  check(LASTING_SCRIPT, 1,
        "python3: Error while finding module specification for 'a.b' (ModuleNotFoundError: No module named 'a')", "");
}

UNIT_TEST(test_of_python) {
  check(LASTING_SYNTAX, 1, "", "SyntaxError: invalid syntax");
  check(LASTING_SYNTAX, 1, "", "IndentationError: unexpected indent");
  check(LASTING_SYNTAX, 1, "", "TabError: inconsistent use of tabs and spaces in indentation");
  check(LASTING_IMPORT, 1, "", "ImportError: cannot import name 'x' from 'y' (y.py)");
  check(LASTING_IMPORT, 1, "Traceback", "ModuleNotFoundError: No module named 'x'");
}

UNIT_TEST(test_of_a_command) {
  check(LASTING_COMMAND, 127, "sh: 1: trian: not found", "");
  check(LASTING_COMMAND, 127, "bash: line 1: trian: command not found", "");
  check(LASTING_COMMAND, 127, "./a: error while loading shared libraries: libx.so.1: cannot open shared object file",
        "");
  check(LASTING_COMMAND, 126, "sh: 1: ./plain: Permission denied", "");
}

UNIT_TEST(test_of_what_a_restart_may_cure) {
  check(LASTING_NO, 2, "", "");
  check(LASTING_NO, 2, "memory usage: 12 GiB", "");
  check(LASTING_NO, 2, "RuntimeError: usage", "RuntimeError: usage");
  check(LASTING_NO, 1, "train.py: error: unrecognized arguments", "");
  check(LASTING_NO, 3, "usage: x", "");
  check(LASTING_NO, 3, "", "ImportError: x");
  check(LASTING_NO, 1, "ModuleNotFoundError: No module named 'x'", "RuntimeError: tried that"); /* it was caught */
  check(LASTING_NO, 1, "", "ImportErrors: x");
  check(LASTING_NO, 1, "", "MyImportError: x");
  check(LASTING_NO, 1, "sh: 1: trian: not found", "");
  check(LASTING_NO, 127, "", "");
  check(LASTING_NO, 126, "boom", "");
  check(LASTING_NO, 2, "cannot open the door", "");
}
