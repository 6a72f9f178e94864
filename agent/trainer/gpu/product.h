/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_PRODUCT_H
#define AGENT_TRAINER_GPU_PRODUCT_H

/* Decisions about a matrix product that need no device. Pure, so tests cover it on any machine. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The largest power of two, up to 256, that divides an address; cuBLASLt needs to know it. */
uint32_t product_alignment(uintptr_t at);

/* Alignment that a bias, or its gradient, needs to be part of a product. No preference passes it to cuBLASLt. Its
 * search has offered kernels that read sixteen bytes at once, and a misaligned read ends the process. */
enum { PRODUCT_BIAS_ALIGN = 16 };

/* The leading dimension, in bits, of the mask that a ReLU epilogue writes for `width` values per row; and the size of a
 * mask of `rows`, in bytes. */
int64_t product_mask_ld(size_t width);
size_t product_mask_bytes(size_t width, size_t rows);

/* The key of an algorithm. The alignment of addresses decides which kernels can be used, not the addresses. */
enum product_kind { PRODUCT_FORWARD, PRODUCT_INPUT_GRAD, PRODUCT_WEIGHT_GRAD };

struct product_key {
  enum product_kind product;
  uint32_t epilogue; /* cuBLASLt's number */
  size_t rows, part; /* part: outputs of a gradient of weights */
  uint32_t align_a, align_b, align_d, align_bias;
};

bool product_key_equal(const struct product_key *a, const struct product_key *b);

#endif
