/* What is decided about devices and products without either. */

#include "agent/trainer/gpu/datasheet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

static void test_peaks(void **state) {
  assert_true(rules_peak_flops("NVIDIA H100 80GB HBM3", COMPUTE_BF16) == 989.4e12);
  assert_true(rules_peak_flops("NVIDIA H200", COMPUTE_FP16) == 989.4e12);
  assert_true(rules_peak_flops("NVIDIA H100 PCIe", COMPUTE_BF16) == 756e12);
  assert_true(rules_peak_flops("NVIDIA A100-SXM4-40GB", COMPUTE_FP32) == 19.5e12);
  assert_true(rules_peak_flops("NVIDIA A100-SXM4-40GB", COMPUTE_TF32) == 156e12);
  assert_true(rules_peak_flops("NVIDIA L40S", COMPUTE_FP32) == 91.6e12); /* neither L4 nor L40 */
  assert_true(rules_peak_flops("NVIDIA L4", COMPUTE_FP32) == 30.3e12);
}

static void test_no_peak_is_guessed(void **state) {
  assert_true(rules_peak_flops("NVIDIA H100 80GB HBM3 MIG 1g.10gb", COMPUTE_BF16) == 0);
  assert_true(rules_peak_flops("NVIDIA A1000", COMPUTE_BF16) == 0); /* not an A100 */
  assert_true(rules_peak_flops("", COMPUTE_BF16) == 0);
}

static void test_precision(void **state) {
  assert_null(rules_precision_refused(7, 5, COMPUTE_FP32));
  assert_null(rules_precision_refused(7, 5, COMPUTE_FP16));
  assert_non_null(strstr(rules_precision_refused(7, 5, COMPUTE_BF16), "fp16"));
  assert_non_null(strstr(rules_precision_refused(7, 5, COMPUTE_TF32), "fp32"));
  for (int p = COMPUTE_FP32; p <= COMPUTE_FP16; p++)
    assert_null(rules_precision_refused(9, 0, (enum compute_precision)p));
}

static void test_alignment(void **state) {
  assert_int_equal(rules_alignment(0x1000), 256);
  assert_int_equal(rules_alignment(0x1010), 16);
  assert_int_equal(rules_alignment(0x1002), 2);
  assert_int_equal(rules_alignment(0x1001), 1);
  assert_int_equal(rules_alignment(0x1000 + 2 * 100100), 8); /* the second layer of 1000-100-1000 in bf16 */
}

/* A mask's leading dimension is a multiple of 128 bits, and no less than the width. */
static void test_masks(void **state) {
  for (size_t width = 1; width < 1000; width++) {
    int64_t ld = rules_mask_ld(width);
    assert_true(ld % 128 == 0 && (size_t)ld >= width && (size_t)ld < width + 128);
    assert_int_equal(rules_mask_bytes(width, 7), (size_t)ld / 8 * 7);
  }
}

static void test_ways(void **state) {
  enum rules_matmul m;
  struct err e = ERR_INIT;
  assert_int_equal(rules_matmul_parse("fused", &m, &e), 0);
  assert_int_equal(m, RULES_FUSED);
  assert_int_equal(rules_matmul_parse("own", &m, &e), 0);
  assert_int_equal(m, RULES_OWN);
  assert_int_equal(rules_matmul_parse("ownx", &m, &e), -EINVAL);
  assert_non_null(strstr(e.text, "ownx"));
}

/* An algorithm is good for another product only if everything is the same that it was looked up for. */
static void test_keys(void **state) {
  struct rules_key a = {RULES_FORWARD, 4, 64, 16, 16, 16, 16};
  struct rules_key all[] = {a, a, a, a, a, a, a};
  all[0].product = RULES_WEIGHT_GRAD;
  all[1].epilogue = 6;
  all[2].rows = 63;
  all[3].align_a = 8;
  all[4].align_b = 8;
  all[5].align_d = 8;
  all[6].align_bias = 8;
  assert_true(rules_key_equal(&a, &a));
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) assert_false(rules_key_equal(&a, &all[i]));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_peaks),     cmocka_unit_test(test_no_peak_is_guessed),
      cmocka_unit_test(test_precision), cmocka_unit_test(test_alignment),
      cmocka_unit_test(test_masks),     cmocka_unit_test(test_ways),
      cmocka_unit_test(test_keys),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
