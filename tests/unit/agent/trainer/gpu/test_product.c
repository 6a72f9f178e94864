/* SPDX-License-Identifier: Apache-2.0 */
/* Decisions about matrix products that need no device. */

#include "agent/trainer/gpu/product.h"

#include <errno.h>
#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_alignment) {
  assert_int_equal(product_alignment(0x1000), 256);
  assert_int_equal(product_alignment(0x1010), 16);
  assert_int_equal(product_alignment(0x1002), 2);
  assert_int_equal(product_alignment(0x1001), 1);
  assert_int_equal(product_alignment(0x1000 + 2 * 100100), 8); /* the second layer of 1000-100-1000 in bf16 */
}

/* A mask's leading dimension is a multiple of 128 bits, and no less than the width. */
UNIT_TEST(test_masks) {
  for (size_t width = 1; width < 1000; width++) {
    int64_t ld = product_mask_ld(width);
    assert_true(ld % 128 == 0 && (size_t)ld >= width && (size_t)ld < width + 128);
    assert_int_equal(product_mask_bytes(width, 7), (size_t)ld / 8 * 7);
  }
}

/* An algorithm may be reused only if everything equals what it was looked up for. */
UNIT_TEST(test_keys) {
  struct product_key a = {PRODUCT_FORWARD, 4, 64, 16, 16, 16, 16};
  struct product_key all[] = {a, a, a, a, a, a, a};
  all[0].product = PRODUCT_WEIGHT_GRAD;
  all[1].epilogue = 6;
  all[2].rows = 63;
  all[3].align_a = 8;
  all[4].align_b = 8;
  all[5].align_d = 8;
  all[6].align_bias = 8;
  assert_true(product_key_equal(&a, &a));
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) assert_false(product_key_equal(&a, &all[i]));
}
