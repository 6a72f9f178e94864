/* SPDX-License-Identifier: Apache-2.0 */
/* proto/nccl.c and agent/nccl/record.c: ids without NCCL. */

#include <errno.h>
#include <string.h>
#include "agent/nccl/record.h"
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

/* The record. ------------------------------------------------------------------------------------------------------ */

struct record {
  struct buf b;
  char ids[3 * NCCL_ID_SIZE];
};

static void fill(struct record *r, uint32_t count) {
  r->b = (struct buf)BUF_INIT;
  for (size_t i = 0; i < sizeof r->ids; i++) r->ids[i] = (char)(i * 7);
  nccl_record_put(&r->b, 22809, r->ids, count);
}

static int parse(const struct record *r, size_t len, uint32_t count, int64_t *version, const void **ids) {
  struct err e = ERR_INIT;
  return nccl_record_parse(r->b.data, len, count, version, ids, &e);
}

UNIT_TEST(test_a_record_in_pieces) {
  struct record r;
  const void *ids = NULL;
  int64_t version = 0;
  fill(&r, 3);
  for (size_t n = 0; n < r.b.len; n++) assert_int_equal(parse(&r, n, 3, &version, &ids), 0);
  assert_int_equal(parse(&r, r.b.len, 3, &version, &ids), 1);
  assert_int_equal(version, 22809);
  assert_memory_equal(ids, r.ids, sizeof r.ids);
  buf_finish(&r.b);
}

UNIT_TEST(test_what_is_no_record) {
  struct record r;
  const void *ids;
  int64_t version;
  fill(&r, 2);
  assert_int_equal(parse(&r, r.b.len, 3, &version, &ids), -EPROTO); /* another number than was asked for */
  for (size_t i = 0; i < r.b.len; i++) {
    r.b.data[i] ^= 0x10;
    assert_int_not_equal(parse(&r, r.b.len, 2, &version, &ids), 1);
    r.b.data[i] ^= 0x10;
  }
  buf_putc(&r.b, 'x');
  assert_int_equal(parse(&r, r.b.len, 2, &version, &ids), -EPROTO);
  buf_clear(&r.b);
  buf_puts(&r.b, "host:1:1 [0] NCCL INFO");
  assert_int_equal(parse(&r, 1, 2, &version, &ids), -EPROTO); /* its first byte tells */
  buf_finish(&r.b);
}

static void check_failure(const char *text, bool lasting, const char *told) {
  struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  const void *ids;
  int64_t version;
  nccl_record_put_failure(&b, text, lasting);
  assert_int_equal(nccl_record_parse(b.data, b.len - 1, 2, &version, &ids, &e), 0);
  assert_int_equal(nccl_record_parse(b.data, b.len, 2, &version, &ids, &e), lasting ? -ENOENT : -EIO);
  assert_string_equal(e.text, told);
  buf_finish(&b);
}

UNIT_TEST(test_failures) {
  char text[REASON_MAX + 100];
  check_failure("no socket", false, "no socket");
  check_failure("no such library", true, "no such library");
  check_failure("", false, "it did not say why");
  memset(text, 'x', sizeof text - 1);
  text[sizeof text - 1] = '\0';
  char cut[REASON_MAX + 1];
  memcpy(cut, text, REASON_MAX);
  cut[REASON_MAX] = '\0';
  check_failure(text, false, cut);
}
