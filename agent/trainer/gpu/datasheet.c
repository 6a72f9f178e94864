/* The table of data sheets, and rules of alignment.
 *
 * Peaks are those of matrix products without sparsity, with sums in float, as the makers print them: TF32, BF16 and FP16 on tensor cores,
 * FP32 on the ordinary ones. Where data sheets print only the sparse figure, half of it. A device that is not in the table has no peak: a
 * utilization against a guess would be worse than none. Longer names come before those that they contain. */

#include "agent/trainer/gpu/datasheet.h"

#include <errno.h>
#include <string.h>

struct peak {
  const char *name;
  double fp32, tf32, half; /* TFLOP/s */
};

static const struct peak peaks[] = {
    {"H100 PCIe", 51.2, 378, 756},  {"H100 NVL", 60, 417.5, 835.5},  {"H100", 66.9, 494.7, 989.4},
    {"H200 NVL", 60, 417.5, 835.5}, {"H200", 66.9, 494.7, 989.4},    {"GH200", 66.9, 494.7, 989.4},
    {"A100", 19.5, 156, 312},       {"A800", 19.5, 156, 312},        {"A30", 10.3, 82, 165},
    {"A40", 37.4, 74.8, 149.7},     {"A10G", 31.5, 35, 70},          {"A10", 31.2, 62.5, 125},
    {"L40S", 91.6, 183, 362.05},    {"L40", 90.5, 90.5, 181.05},     {"L4", 30.3, 60, 121},
    {"B200", 80, 1100, 2250},       {"RTX 4090", 82.6, 82.6, 165.2}, {"RTX 3090", 35.6, 35.6, 71},
};

static bool is_digit_or_letter(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Is `word` in `text`, and not as a part of a longer word? ("L4" is not in "L40".) */
static bool has_word(const char *text, const char *word) {
  size_t n = strlen(word);
  for (const char *at = text; (at = strstr(at, word)); at++)
    if ((at == text || !is_digit_or_letter(at[-1])) && !is_digit_or_letter(at[n])) return true;
  return false;
}

double rules_peak_flops(const char *name, enum compute_precision p) {
  if (has_word(name, "MIG")) return 0;
  for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++) {
    const struct peak *k = &peaks[i];
    if (!has_word(name, k->name)) continue;
    return 1e12 * (p == COMPUTE_FP32 ? k->fp32 : p == COMPUTE_TF32 ? k->tf32 : k->half);
  }
  return 0;
}

const char *rules_precision_refused(int major, int minor, enum compute_precision p) {
  (void)minor;
  if (major < 8 && p == COMPUTE_BF16)
    return "has no bf16, which begins with compute capability 8.0: try fp16";
  if (major < 8 && p == COMPUTE_TF32)
    return "has no TF32, which begins with compute capability 8.0: try fp32";
  return NULL;
}

uint32_t rules_alignment(uintptr_t at) {
  uint32_t n = 256;
  while (at % n) n /= 2;
  return n;
}

int64_t rules_mask_ld(size_t width) {
  return (int64_t)((width + 127) / 128 * 128);
}

size_t rules_mask_bytes(size_t width, size_t rows) {
  return (size_t)rules_mask_ld(width) / 8 * rows;
}

int rules_matmul_parse(const char *text, enum rules_matmul *out, struct err *e) {
  static const char *const names[] = {[RULES_FUSED] = "fused", [RULES_PLAIN] = "plain", [RULES_OWN] = "own"};
  for (unsigned i = 0; i < 3; i++) {
    if (strcmp(text, names[i]) != 0) continue;
    *out = (enum rules_matmul)i;
    return 0;
  }
  return err_set(e, -EINVAL, "RDZV_CUDA_MATMUL is '%.40s': fused, plain or own is wanted", text);
}

bool rules_key_equal(const struct rules_key *a, const struct rules_key *b) {
  return a->product == b->product && a->epilogue == b->epilogue && a->rows == b->rows &&
         a->align_a == b->align_a && a->align_b == b->align_b && a->align_d == b->align_d &&
         a->align_bias == b->align_bias;
}
