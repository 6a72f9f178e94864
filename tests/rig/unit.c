/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rig/unit.h"

#include <stdlib.h>

enum { TESTS_MAX = 256 };

static struct CMUnitTest tests[TESTS_MAX];
static size_t n;

void unit_add(struct CMUnitTest test) {
  if (n == TESTS_MAX) abort();
  tests[n++] = test;
}

int unit_run(CMFixtureFunction setup, CMFixtureFunction teardown) {
  return _cmocka_run_group_tests("tests", tests, n, setup, teardown);
}

__attribute__((weak)) int main(void) {
  return unit_run(NULL, NULL);
}
