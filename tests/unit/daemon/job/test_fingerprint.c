/* SPDX-License-Identifier: Apache-2.0 */
/* What differs from run to run does not make two failures different, and all else does. */

#include "daemon/job/fingerprint.h"

#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static void check(const char *line, const char *want) {
  struct buf out = BUF_INIT;
  fingerprint_line(line, strlen(line), &out);
  assert_string_equal(buf_text(&out), want);
  buf_finish(&out);
}

UNIT_TEST(test_numbers) {
  check("loss is nan at step 1713", "loss is nan at step #");
  check("tried 2.00 GiB of 1,024.5 MiB, 1e-05 left, -3 or +4", "tried # GiB of # MiB, # left, # or #");
  check("2026-11-22 20:39:09.113 E gone", "# # E gone");
  check("2026-11-22T20:39:09Z E gone", "#T#Z E gone");
  check("10.0.0.3:29400 refused", "# refused");
  check("cuda:1 of gpu017, conv2d, sm_90", "cuda:# of gpu#, conv#d, sm_#");
  check("[rank3]: RuntimeError: x", "[rank#]: RuntimeError: x");
  check("a-1 x - 2", "a-# x - #");
}

UNIT_TEST(test_addresses_and_ids) {
  check("<object at 0x7f32a0b1c2d0>", "<object at #>");
  check("0X1F", "#");
  check("run fcf44a4417eb0347 ended", "run # ended");
  check("id 123e4567-e89b-12d3-a456-426614174000.", "id #.");
  check("dead beef deadbeef", "dead beef deadbeef"); /* words */
  check("job 8f3k2j of ada", "job # of ada");
}

UNIT_TEST(test_temporary_names) {
  check("/tmp/tmpk3j2_x9a/model.pt: gone", "/tmp/#/model.pt: gone");
  check("/tmp/torchelastic_ab12xy/none_zz/0", "/tmp/#/none_zz/#");
  check("/dev/shm/torch_4711_1234 /var/tmp/a.b", "/dev/shm/# /var/tmp/#");
  check("/proc/4711/fd/12 in /scratch/tmpab12cd_x/f", "/proc/#/fd/# in /scratch/#/f");
  check("tmp and tmpl", "tmp and tmpl");
}

UNIT_TEST(test_blanks_and_escapes) {
  check("  a \t b\x1b[31m c \r\n", "a b c");
  check("\x1b[1;35mValueError\x1b[0m: boom", "ValueError: boom");
  check("\x1b[", "");
}

UNIT_TEST(test_a_long_line) {
  static char line[3 * FINGERPRINT_LINE_MAX];
  struct buf out = BUF_INIT;
  memset(line, 'a', sizeof line - 1);
  fingerprint_line(line, sizeof line - 1, &out);
  assert_int_equal(out.len, FINGERPRINT_LINE_MAX);
  buf_finish(&out);
}

static struct verdict exited(const char *error, const char *text) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXIT;
  v.code = 1;
  v.error = error;
  v.text = text;
  return v;
}

UNIT_TEST(test_of_a_verdict) {
  struct verdict a = exited("ValueError: boom at 17", ""), b = exited("ValueError: boom at 3\nmore", "x\n");
  b.rank = 5;
  b.pid = 77;
  b.host = "n9";
  b.step = 9;
  assert_int_equal(fingerprint(&a), fingerprint(&b));
  assert_true(fingerprint(&a) > 0);
  b.code = 2;
  assert_int_not_equal(fingerprint(&a), fingerprint(&b));
  b = exited("ValueError: bang at 17", "");
  assert_int_not_equal(fingerprint(&a), fingerprint(&b));
  b = exited("", "first\nValueError: boom at 99\n\n");
  assert_int_equal(fingerprint(&a), fingerprint(&b)); /* of stderr, where there is no error */
  b = a;
  b.cause = CAUSE_WORKER_SIGNAL;
  assert_int_not_equal(fingerprint(&a), fingerprint(&b));
  a = b;
  a.signal = 11;
  assert_int_not_equal(fingerprint(&a), fingerprint(&b));
  a = exited("", "");
  assert_true(fingerprint(&a) > 0);
}

/* The agent has cut it at 400 bytes, behind numbers of other lengths. */
UNIT_TEST(test_of_a_line_that_was_cut) {
  static const char *const heads[] = {
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 9.51 GiB free. ",
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 GiB. GPU 13 has 10.02 GiB free. "};
  int64_t seen[2];
  for (int i = 0; i < 2; i++) {
    char line[600];
    snprintf(line, sizeof line, "%s", heads[i]);
    while (strlen(line) < 500) strcat(line, "Of the allocated memory some is reserved. ");
    strcpy(line + 400, "...");
    struct verdict v = exited(line, "");
    seen[i] = fingerprint(&v);
  }
  assert_int_equal(seen[0], seen[1]);
}

/* A hang's text tells of other ranks, and of states that change by the moment. */
UNIT_TEST(test_of_a_hang) {
  struct verdict a = exited("", "its process waits (state S)"), b = exited("", "its process runs (state R)");
  a.cause = b.cause = CAUSE_WORKER_HUNG;
  assert_int_equal(fingerprint(&a), fingerprint(&b));
}
