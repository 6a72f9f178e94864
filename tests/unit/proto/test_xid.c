/* SPDX-License-Identifier: Apache-2.0 */
/* proto/xid.c: NVIDIA's catalogue. */

#include "proto/xid.h"

#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(classes) {
  static const int apps[] = {13, 31, 43, 94}, hardware[] = {48, 64, 74, 119, 140, 145}, echoes[] = {45, 154};
  for (size_t i = 0; i < sizeof apps / sizeof *apps; i++) assert_int_equal(xid_class_of(apps[i]), XID_APP);
  for (size_t i = 0; i < sizeof hardware / sizeof *hardware; i++)
    assert_int_equal(xid_class_of(hardware[i]), XID_HARDWARE);
  for (size_t i = 0; i < sizeof echoes / sizeof *echoes; i++) assert_int_equal(xid_class_of(echoes[i]), XID_ECHO);
  int certain = 0;
  for (int xid = 0; xid <= XID_MAX; xid++) {
    certain += xid_class_of(xid) == XID_CERTAIN;
    assert_true(strlen(xid_words(xid)) < XID_WORDS_MAX);
  }
  assert_int_equal(certain, 2);
  assert_int_equal(xid_class_of(79), XID_CERTAIN);
  assert_int_equal(xid_class_of(95), XID_CERTAIN);
  assert_int_equal(xid_class_of(999), XID_EITHER);
}

UNIT_TEST(words) {
  assert_string_equal(xid_words(79), "GPU has fallen off the bus");
  assert_string_equal(xid_words(31), "GPU memory page fault");
  assert_string_equal(xid_words(40), "copy engine exception"); /* of a range */
  assert_string_equal(xid_words(999), "not in NVIDIA's catalogue");
}

UNIT_TEST(weights) {
  assert_true(xid_outweighs(31, 0));
  assert_false(xid_outweighs(0, 31));
  assert_true(xid_outweighs(79, 31));
  assert_false(xid_outweighs(31, 79));
  assert_false(xid_outweighs(13, 31)); /* the earlier one stays */
}
