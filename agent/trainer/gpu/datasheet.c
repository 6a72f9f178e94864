/* SPDX-License-Identifier: Apache-2.0 */
/* The table of data sheets.
 *
 * Peaks are those of matrix products without sparsity, with sums in float, as the makers publish them: TF32, BF16 and
 * FP16 on tensor cores, FP32 on the ordinary ones. Where a data sheet has only the sparse figure, the peak is half of
 * it. A device outside the table has no peak, because a utilization against a guess would mislead. Longer names stand
 * before the names that they contain. */

#include "agent/trainer/gpu/datasheet.h"

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

/* true: `word` is in `text` as a whole word. "L4" is not in "L40". */
static bool has_word(const char *text, const char *word) {
  size_t n = strlen(word);
  for (const char *at = text; (at = strstr(at, word)); at++)
    if ((at == text || !is_digit_or_letter(at[-1])) && !is_digit_or_letter(at[n])) return true;
  return false;
}

double datasheet_peak_flops(const char *name, enum compute_precision p) {
  if (has_word(name, "MIG")) return 0;
  for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++) {
    const struct peak *k = &peaks[i];
    if (!has_word(name, k->name)) continue;
    return 1e12 * (p == COMPUTE_FP32 ? k->fp32 : p == COMPUTE_TF32 ? k->tf32 : k->half);
  }
  return 0;
}

const char *datasheet_precision_refused(int major, int minor, enum compute_precision p) {
  (void)minor;
  if (major < 8 && p == COMPUTE_BF16) return "does not support bf16, which needs compute capability 8.0; use fp16";
  if (major < 8 && p == COMPUTE_TF32) return "does not support TF32, which needs compute capability 8.0; use fp32";
  return NULL;
}
