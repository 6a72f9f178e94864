/* SPDX-License-Identifier: Apache-2.0 */
/* agent/advice.c: advice before the first round, and its absence. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "agent/advice.h"

static char slurm[] = "SLURM_JOB_ID=7", threads[] = "OMP_NUM_THREADS=2";
static char *in_slurm[] = {slurm, NULL}, *with_threads[] = {threads, NULL};

static void counts_cpus(void **state) {
  struct buf text = BUF_INIT;
  assert_false(advice_cpus(1, 1, NULL, &text));
  assert_false(advice_cpus(4, 4, NULL, &text));
  assert_int_equal(text.len, 0);
  assert_true(advice_cpus(1, 4, NULL, &text));
  assert_string_equal(buf_text(&text), "4 workers share 1 CPU: this process may use no more");
  buf_finish(&text);
}

static void names_slurms_remedy(void **state) {
  struct buf text = BUF_INIT;
  assert_false(advice_cpus(8, 8, in_slurm, &text));
  assert_true(advice_cpus(2, 8, in_slurm, &text));
  assert_string_equal(
      buf_text(&text),
      "8 workers share 2 CPUs: this process may use no more; if the machine has more, ask Slurm for them: srun -c 8 "
      "(--cpus-per-task) or more");
  buf_finish(&text);
}

static void tells_of_few_gpus(void **state) {
  struct buf text = BUF_INIT;
  assert_false(advice_gpus(0, 4, &text));
  assert_false(advice_gpus(4, 4, &text));
  assert_int_equal(text.len, 0);
  assert_true(advice_gpus(1, 4, &text));
  assert_string_equal(buf_text(&text),
                      "4 workers share 1 GPU: this process sees no more; ask the scheduler for 4, or start --nproc 1");
  buf_finish(&text);
}

static void tells_of_threads(void **state) {
  struct buf text = BUF_INIT;
  assert_false(advice_threads(1, NULL, &text));
  assert_false(advice_threads(4, with_threads, &text));
  assert_int_equal(text.len, 0);
  assert_true(advice_threads(4, in_slurm, &text));
  assert_string_equal(buf_text(&text), "OMP_NUM_THREADS is not set: each of the 4 workers gets 1; set it to tune");
  buf_finish(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_cpus),
      cmocka_unit_test(names_slurms_remedy),
      cmocka_unit_test(tells_of_few_gpus),
      cmocka_unit_test(tells_of_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
