/* SPDX-License-Identifier: Apache-2.0 */
/* proto/nccl.c: ids without NCCL. */

#include "proto/msg.h"
#include "tests/rig/unit.h"

static void check_version(int64_t version, const char *text) {
  struct buf b = BUF_INIT;
  nccl_version_text(version, &b);
  assert_string_equal(buf_text(&b), text);
  buf_finish(&b);
}

UNIT_TEST(test_versions) {
  check_version(22809, "2.28.9");
  check_version(23203, "2.32.3");
  check_version(21003, "2.10.3");
  check_version(20908, "2.9.8");
  check_version(2804, "2.8.4"); /* the old numbering */
  assert_true(nccl_versions_fit(22809, 22803));
  assert_false(nccl_versions_fit(22809, 22709));
  assert_false(nccl_versions_fit(22809, 32809));
  assert_false(nccl_versions_fit(2804, 22804));
}

UNIT_TEST(test_one_id_for_256_ranks) {
  assert_int_equal(nccl_ids_for(1), 1);
  assert_int_equal(nccl_ids_for(256), 1);
  assert_int_equal(nccl_ids_for(257), 2);
  assert_int_equal(nccl_ids_for(16384), 64);
  assert_int_equal(nccl_ids_for(WORLD_MAX), NCCL_IDS_MAX);
}

/* bootstrap.cc of NCCL: the first nranks % n roots have one rank more than the others. */
static int64_t root_of(int64_t rank, int64_t nranks, int64_t n) {
  int64_t larger = nranks % n, share = nranks / n, d = larger * (share + 1);
  return rank < d ? rank / (share + 1) : (rank - d) / share + larger;
}

UNIT_TEST(test_who_meets_where) {
  for (int64_t world = 1; world < 700; world += 13)
    for (int64_t n = 1; n <= 7 && n <= world; n++)
      for (int64_t i = 0; i < n; i++) {
        int64_t first = nccl_id_first_rank(i, n, world);
        assert_int_equal(root_of(first, world, n), i);
        if (i) assert_int_equal(root_of(first - 1, world, n), i - 1);
      }
}
