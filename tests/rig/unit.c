/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rig/unit.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

void unit_free(void *pointer) {
  free(*(void **)pointer);
}

char unit_folder[32];

int unit_make_folder(void **state) {
  strcpy(unit_folder, "/tmp/rdzv-unit-XXXXXX");
  return mkdtemp(unit_folder) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where) {
  return remove(path);
}

int unit_remove_folder(void **state) {
  return nftw(unit_folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

__attribute__((weak)) int main(void) {
  return unit_run(NULL, NULL);
}
