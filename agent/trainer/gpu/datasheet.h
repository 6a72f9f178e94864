#ifndef AGENT_TRAINER_GPU_RULES_H
#define AGENT_TRAINER_GPU_RULES_H

/* What can be decided about a device and a matrix product without either: pure, so tests cover it on any machine. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "agent/trainer/compute/compute.h"

/* How a layer's products are made. */
enum rules_matmul {
  RULES_FUSED, /* cuBLASLt with epilogues where it has an algorithm, else as RULES_PLAIN */
  RULES_PLAIN, /* cuBLASLt without epilogues, bias, ReLU, mask and sums by own kernels; where it has no algorithm, as RULES_OWN */
  RULES_OWN,   /* own kernels alone: slow, the yardstick */
};

/* Dense matrix products per second, by the data sheet of the device that calls itself `name`, in FLOP/s; 0: not in the table, or a part of
 * a device (MIG). */
double rules_peak_flops(const char *name, enum compute_precision p);

/* NULL, or why a device of this compute capability cannot do it, as the rest of a sentence. */
const char *rules_precision_refused(int major, int minor, enum compute_precision p);

/* The greatest power of two, up to 256, that divides an address: what cuBLASLt is told of it. */
uint32_t rules_alignment(uintptr_t at);

/* How a bias, or its gradient, must be aligned to be part of a product: no preference tells cuBLASLt where it lies, its search has been seen to
 * offer kernels that take sixteen bytes of it at once, and what they read wrongly is the end of the process. */
enum { RULES_BIAS_ALIGN = 16 };

/* The leading dimension, in bits, of the mask that a ReLU epilogue writes for `width` values per row, and the bytes of one for `rows`. */
int64_t rules_mask_ld(size_t width);
size_t rules_mask_bytes(size_t width, size_t rows);

/* "fused", "plain", "own"; -EINVAL and a sentence. */
int rules_matmul_parse(const char *text, enum rules_matmul *out, struct err *e);

/* What an algorithm was looked up for. Which kernels can be used depends on how addresses are aligned, not on the addresses. */
enum rules_product { RULES_FORWARD, RULES_INPUT_GRAD, RULES_WEIGHT_GRAD };

struct rules_key {
  enum rules_product product;
  uint32_t epilogue; /* as cuBLASLt numbers them */
  size_t rows;
  uint32_t align_a, align_b, align_d, align_bias;
};

bool rules_key_equal(const struct rules_key *a, const struct rules_key *b);

#endif
