/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about devices that follow from their names. */

#include "agent/trainer/gpu/datasheet.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

static void test_peaks(void **state) {
  assert_true(datasheet_peak_flops("NVIDIA H100 80GB HBM3", COMPUTE_BF16) == 989.4e12);
  assert_true(datasheet_peak_flops("NVIDIA H200", COMPUTE_FP16) == 989.4e12);
  assert_true(datasheet_peak_flops("NVIDIA H100 PCIe", COMPUTE_BF16) == 756e12);
  assert_true(datasheet_peak_flops("NVIDIA A100-SXM4-40GB", COMPUTE_FP32) == 19.5e12);
  assert_true(datasheet_peak_flops("NVIDIA A100-SXM4-40GB", COMPUTE_TF32) == 156e12);
  assert_true(datasheet_peak_flops("NVIDIA L40S", COMPUTE_FP32) == 91.6e12); /* neither L4 nor L40 */
  assert_true(datasheet_peak_flops("NVIDIA L4", COMPUTE_FP32) == 30.3e12);
}

static void test_no_peak_is_guessed(void **state) {
  assert_true(datasheet_peak_flops("NVIDIA H100 80GB HBM3 MIG 1g.10gb", COMPUTE_BF16) == 0);
  assert_true(datasheet_peak_flops("NVIDIA A1000", COMPUTE_BF16) == 0); /* not an A100 */
  assert_true(datasheet_peak_flops("", COMPUTE_BF16) == 0);
}

static void test_precision(void **state) {
  assert_null(datasheet_precision_refused(7, 5, COMPUTE_FP32));
  assert_null(datasheet_precision_refused(7, 5, COMPUTE_FP16));
  assert_non_null(strstr(datasheet_precision_refused(7, 5, COMPUTE_BF16), "fp16"));
  assert_non_null(strstr(datasheet_precision_refused(7, 5, COMPUTE_TF32), "fp32"));
  for (int p = COMPUTE_FP32; p <= COMPUTE_FP16; p++)
    assert_null(datasheet_precision_refused(9, 0, (enum compute_precision)p));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_peaks),
      cmocka_unit_test(test_no_peak_is_guessed),
      cmocka_unit_test(test_precision),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
