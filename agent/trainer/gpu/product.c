/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/trainer/gpu/product.h"

uint32_t product_alignment(uintptr_t at) {
  uint32_t n = 256;
  while (at % n) n /= 2;
  return n;
}

int64_t product_mask_ld(size_t width) {
  return (int64_t)((width + 127) / 128 * 128);
}

size_t product_mask_bytes(size_t width, size_t rows) {
  return (size_t)product_mask_ld(width) / 8 * rows;
}

bool product_key_equal(const struct product_key *a, const struct product_key *b) {
  return a->product == b->product && a->epilogue == b->epilogue && a->rows == b->rows && a->part == b->part &&
         a->align_a == b->align_a && a->align_b == b->align_b && a->align_d == b->align_d &&
         a->align_bias == b->align_bias;
}
