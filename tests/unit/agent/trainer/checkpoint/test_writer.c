/* SPDX-License-Identifier: Apache-2.0 */
/* The writer: one checkpoint at a time, in its own thread, with its own end. */

#include "agent/trainer/checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "tests/rig/unit.h"

static float floats[3 * 40000];

static struct ckpt_state big(uint64_t step) {
  struct ckpt_state s = {
      .kind = {.shape = {.n = 2, .width = {199, 200}}, .loss = COMPUTE_MSE, .seed = 7, .samples = 100}, .step = step};
  for (size_t i = 0; i < 3 * 40000; i++) floats[i] = (float)step + (float)i;
  s.params = floats;
  s.states[0] = floats + 40000;
  s.states[1] = floats + 80000;
  return s;
}

static struct ckpt_marker about(uint64_t step) {
  return (struct ckpt_marker){.id = {1, "2026", 1, step}, .job = "-", .origin = 1};
}

static void refused(void *ctx, const char *name, const struct err *why) {
  fail_msg("%s: %s", name, why->text);
}

static struct ckpt_writer *open_writer(const char *where) {
  struct ckpt_writer *w = NULL;
  struct err e = ERR_INIT;
  assert_int_equal(ckpt_writer_create(where, 2, NULL, &w, &e), 0);
  return w;
}

/* Twenty checkpoints over the same floats, one after the other: the newest is complete and the last one, the others are
 * gone. */
FOLDER_TEST(test_one_after_the_other) {
  struct ckpt_writer *w = open_writer(unit_folder);
  struct ckpt_written r;
  assert_false(ckpt_writer_busy(w));
  assert_false(ckpt_writer_wait(w, 10, &r));
  for (uint64_t step = 1; step <= 20; step++) {
    struct ckpt_marker id = about(step);
    struct ckpt_state s = big(step);
    ckpt_writer_begin(w, &id, &s);
    assert_true(ckpt_writer_busy(w));
    assert_true(ckpt_writer_wait(w, 20000, &r));
    assert_int_equal(r.rc, 0);
    assert_int_equal(r.unpruned.code, 0);
    assert_true(r.id.step == step && r.bytes == ckpt_size(&s.kind) && r.us > 0);
    assert_false(ckpt_writer_busy(w));
  }
  assert_true(ckpt_writer_destroy(w, 20000));
  struct ckpt_list l;
  struct ckpt_marker m;
  struct ckpt_state got;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  assert_int_equal(ckpt_list(unit_folder, &l, &e), 0);
  assert_int_equal(l.n, 2);
  ckpt_list_finish(&l);
  assert_int_equal(ckpt_latest(unit_folder, NULL, &m, &got, &b, refused, NULL, NULL, &e), 1);
  assert_int_equal(got.step, 20);
  assert_memory_equal(got.params, floats, 40000 * sizeof(float));
}

/* A checkpoint in progress is finished before the writer ends, even if nobody asked for the result. */
FOLDER_TEST(test_the_end_waits_for_what_is_being_written) {
  struct ckpt_writer *w = open_writer(unit_folder);
  struct ckpt_marker id = about(5), found;
  struct ckpt_state s = big(5), got;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  struct err e = ERR_INIT;
  ckpt_writer_begin(w, &id, &s);
  assert_true(ckpt_writer_destroy(w, 20000));
  assert_int_equal(ckpt_latest(unit_folder, NULL, &found, &got, &b, refused, NULL, NULL, &e), 1);
}

UNIT_TEST(test_failures_come_with_their_sentence) {
  struct ckpt_writer *w = open_writer("/nowhere");
  struct ckpt_written r;
  struct ckpt_marker id = about(5);
  struct ckpt_state s = big(5);
  ckpt_writer_begin(w, &id, &s);
  assert_true(ckpt_writer_wait(w, 20000, &r));
  assert_int_equal(r.rc, -ENOENT);
  assert_non_null(strstr(r.why.text, "/nowhere"));
  assert_true(ckpt_writer_destroy(w, 20000));
  assert_true(ckpt_writer_destroy(NULL, 0));
}

static const struct ckpt_owner *taker; /* NULL: nobody takes the folder */

/* Takes the place of libc's, and gives the folder to the taker before the unfinished checkpoint gets its name. As every
 * run does at its first checkpoint, that one removes what is unfinished. */
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
  if (taker) {
    char text[CKPT_OWNER_MAX], path[CKPT_NAME_MAX + 64];
    ckpt_owner_format(taker, text);
    unlinkat(to_dir, ".lock", 0);
    if (symlinkat(text, to_dir, ".lock")) abort();
    snprintf(path, sizeof path, "%s/model.safetensors", from);
    if (unlinkat(from_dir, path, 0) || unlinkat(from_dir, from, AT_REMOVEDIR)) abort();
  }
  return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}

static struct ckpt_owner owner(const char *job, uint32_t round) {
  struct ckpt_owner o = {.round = round, .incarnation = "2026"};
  snprintf(o.job, sizeof o.job, "%s", job);
  ckpt_lock_self(&o);
  return o;
}

/* The run was stopped in the middle of a write. It says who has the folder, and not that its file has gone. */
FOLDER_TEST(test_taken_in_the_middle_of_a_write) {
  const struct ckpt_owner takers[] = {owner("x", 2), owner("y", 1)};
  const int codes[] = {-ESTALE, -EBUSY};
  const char *const says[] = {"was taken by another run (job x, round 2, pid ",
                              "was taken by another run (job y, round 1, pid "};
  for (int i = 0; i < 2; i++) {
    struct ckpt_owner me = owner("x", 1);
    struct ckpt_lock *lock = NULL;
    struct ckpt_writer *w = NULL;
    struct ckpt_written r;
    struct ckpt_marker id = about(5);
    struct ckpt_state s = big(5);
    struct err e = ERR_INIT;
    char path[64];
    assert_int_equal(ckpt_lock_take(unit_folder, &me, &lock, &e), 0);
    assert_int_equal(ckpt_writer_create(unit_folder, 2, lock, &w, &e), 0);
    taker = &takers[i];
    ckpt_writer_begin(w, &id, &s);
    assert_true(ckpt_writer_wait(w, 20000, &r));
    taker = NULL;
    assert_int_equal(r.rc, codes[i]);
    assert_non_null(strstr(r.why.text, says[i]));
    assert_true(ckpt_writer_destroy(w, 1000));
    ckpt_lock_release(lock);
    snprintf(path, sizeof path, "%s/.lock", unit_folder);
    assert_int_equal(unlink(path), 0); /* the taker's stays */
  }
}
