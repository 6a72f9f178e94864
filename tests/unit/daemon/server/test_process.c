/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/server/process.c: the facts of this process, on kernels that know the number of its descriptors and on older
 * ones. */

#include "daemon/server/documents.h"

#include <sys/resource.h>
#include <unistd.h>
#include "tests/rig/unit.h"

enum { MORE = 1500 };

static int64_t count(struct process *p, int *turns) {
  for (*turns = 1; process_more(p); ++*turns) continue;
  process_finish(p);
  return p->facts.open_fds;
}

UNIT_TEST(test_descriptors) {
  struct rlimit limit = {MORE + 100, MORE + 100};
  struct process p;
  int turns;
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
  process_begin(&p, 0);
  int64_t before = count(&p, &turns);
  assert_true(before >= 3);
  for (int i = 0; i < MORE; i++) assert_true(dup(0) >= 0);
  process_begin(&p, 0);
  assert_int_equal(count(&p, &turns), before + MORE);
  assert_int_equal(p.facts.max_fds, MORE + 100);
  process_finish(&p);
  process_begin(&p, 0);
  process_begin_counting(&p);
  assert_int_equal(count(&p, &turns), before + MORE);
  assert_true(turns > 2); /* in pieces */
}

UNIT_TEST(test_a_count_that_is_given_up) {
  struct process p;
  process_begin(&p, 0);
  process_begin_counting(&p);
  assert_true(process_more(&p));
  process_finish(&p);
}

UNIT_TEST(test_the_rest) {
  struct process p;
  process_begin(&p, 1234.5);
  process_finish(&p);
  assert_true(p.facts.cpu_s > 0 && p.facts.cpu_s < 60);
  assert_true(p.facts.resident_bytes > 100000 && p.facts.resident_bytes < p.facts.virtual_bytes);
  assert_true(p.facts.started_wall_s > 1234 && p.facts.started_wall_s < 1235);
}
