/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/server/documents.c: the facts of this process, on kernels that know the number of its descriptors and on older
 * ones. */

#include "daemon/server/documents.h"

#include <sys/resource.h>
#include <unistd.h>
#include "tests/rig/unit.h"

enum { MORE = 1500 };

UNIT_TEST(test_descriptors) {
  struct rlimit limit = {MORE + 100, MORE + 100};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  int64_t before = process_facts(0).open_fds;
  assert_true(before >= 3);
  for (int i = 0; i < MORE; i++) assert_true(dup(0) >= 0);
  assert_int_equal(process_facts(0).open_fds, before + MORE);
  assert_int_equal(process_facts(0).max_fds, MORE + 100);
  assert_int_equal(process_count_fds(), before + MORE);
}

UNIT_TEST(test_the_rest) {
  struct process_facts f = process_facts(1234.5);
  assert_true(f.cpu_s > 0 && f.cpu_s < 60);
  assert_true(f.resident_bytes > 100000 && f.resident_bytes < f.virtual_bytes);
  assert_true(f.started_wall_s > 1234 && f.started_wall_s < 1235);
}
