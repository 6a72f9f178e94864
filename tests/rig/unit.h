/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_UNIT_H
#define TESTS_RIG_UNIT_H

/* cmocka, with the headers that must precede its own, and tests that register themselves:
 *
 *   UNIT_TEST(test_words) {
 *     ...
 *   }
 *
 * They run in the order of their lines. A program needs no main; one that has a main calls unit_run there. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

/* A test with functions before and after it; NULL: none. Priorities of constructors up to 100 are not ours. */
#define UNIT_TEST_WITH(name, setup, teardown)                                                                          \
  static void name(void **state);                                                                                      \
  __attribute__((constructor(101 + __LINE__))) static void add_##name(void) {                                          \
    unit_add((struct CMUnitTest){#name, name, setup, teardown, NULL});                                                 \
  }                                                                                                                    \
  static void name(void **state)
#define UNIT_TEST(name) UNIT_TEST_WITH(name, NULL, NULL)

void unit_add(struct CMUnitTest test);
/* Runs all tests, with functions before and after all of them; NULL: none. Returns how many failed. */
int unit_run(CMFixtureFunction setup, CMFixtureFunction teardown);

/* A variable that this function finishes when its scope ends: SCOPED(buf_finish) struct buf b = BUF_INIT; */
#define SCOPED(finish) __attribute__((cleanup(finish)))
void unit_free(void *pointer); /* of a variable that points to the heap */

/* A test in an empty folder below /tmp, which is removed with its contents. */
#define FOLDER_TEST(name) UNIT_TEST_WITH(name, unit_make_folder, unit_remove_folder)
extern char unit_folder[32];
int unit_make_folder(void **state);
int unit_remove_folder(void **state);

#endif
