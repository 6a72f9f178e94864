/* SPDX-License-Identifier: Apache-2.0 */
/* bytes: one copy, as many holders as there are. A leak or a use after the last one is for ASan to see. */

#include "common/bytes.h"

#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_references) {
  char source[] = "push";
  struct bytes *b = bytes_create(source, 4);
  source[0] = 'x'; /* they were copied */
  assert_int_equal(b->refs, 1);
  assert_int_equal(b->len, 4);
  for (int i = 0; i < 1000; i++) assert_ptr_equal(bytes_ref(b), b);
  assert_int_equal(b->refs, 1001);
  for (int i = 0; i < 1000; i++) bytes_unref(b);
  assert_int_equal(b->refs, 1);
  assert_memory_equal(b->data, "push", 4);
  bytes_unref(b);
}

UNIT_TEST(test_empty) {
  struct bytes *b = bytes_create(NULL, 0);
  assert_int_equal(b->len, 0);
  bytes_unref(b);
  bytes_unref(NULL);
}
