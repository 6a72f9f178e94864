/* SPDX-License-Identifier: Apache-2.0 */
/* claim.c: which run may write to a folder, what it may resume from, what it may remove. No files, no processes. */

#include "agent/trainer/checkpoint/codec.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static struct ckpt_owner owner(const char *job, const char *incarnation, uint32_t round, uint64_t pid) {
  struct ckpt_owner o = {
      .round = round, .generation = 3, .host = "node1", .boot = "b-1", .pid_space = 4, .pid = pid, .started = 9};
  snprintf(o.job, sizeof o.job, "%s", job);
  snprintf(o.incarnation, sizeof o.incarnation, "%s", incarnation);
  return o;
}

static bool same(const struct ckpt_owner *a, const struct ckpt_owner *b) {
  char x[CKPT_OWNER_MAX], y[CKPT_OWNER_MAX];
  ckpt_owner_format(a, x);
  ckpt_owner_format(b, y);
  return strcmp(x, y) == 0;
}

UNIT_TEST(test_owners_are_exact) {
  struct ckpt_owner o = owner("user@node1:29400", "01a2-ff", 12, 4711), back;
  char text[CKPT_OWNER_MAX], who[200];
  ckpt_owner_format(&o, text);
  assert_true(ckpt_owner_parse(text, &back) && same(&o, &back));
  ckpt_owner_describe(&o, who, sizeof who);
  assert_string_equal(who, "job user@node1:29400, round 12, pid 4711 on node1");
  for (size_t n = 0; n < strlen(text); n++) {
    char cut[CKPT_OWNER_MAX];
    memcpy(cut, text, n);
    cut[n] = 0;
    if (ckpt_owner_parse(cut, &back) && same(&o, &back)) fail_msg("'%s' is taken", cut);
  }
  o = owner("-", CKPT_ALONE, 1, 5);
  ckpt_owner_describe(&o, who, sizeof who);
  assert_string_equal(who, "a trainer without an agent, pid 5 on node1");
}

UNIT_TEST(test_who_takes_a_folder) {
  static const struct {
    const char *job, *incarnation;
    uint32_t round;
    enum ckpt_life life;
    enum ckpt_claim claim;
  } held[] = {
      {"a", "05", 2, CKPT_ALIVE, CKPT_TAKE},   /* the round before, whose rank 0 still stops */
      {"a", "05", 4, CKPT_ALIVE, CKPT_FENCED}, /* this process belongs to a finished round */
      {"a", "05", 4, CKPT_GONE, CKPT_FENCED},  /* although the newer one has crashed since */
      {"a", "04", 9, CKPT_ALIVE, CKPT_TAKE},   /* the daemon was restarted */
      {"a", "06", 1, CKPT_ALIVE, CKPT_WAIT},   /* the same, with a clock that is behind */
      {"a", "06", 1, CKPT_UNKNOWN, CKPT_WAIT},
      {"a", "06", 1, CKPT_GONE, CKPT_TAKE}, /* power was cut, and the job requeued */
      {"b", "04", 1, CKPT_ALIVE, CKPT_BUSY},
      {"b", "06", 1, CKPT_ALIVE, CKPT_BUSY},
      {"b", "04", 1, CKPT_UNKNOWN, CKPT_WAIT},
      {"b", "04", 1, CKPT_GONE, CKPT_TAKE},
      {"-", CKPT_ALONE, 1, CKPT_ALIVE, CKPT_BUSY},
      {"-", CKPT_ALONE, 1, CKPT_GONE, CKPT_TAKE},
  };
  struct ckpt_owner me = owner("a", "05", 3, 70), alone = owner("-", CKPT_ALONE, 1, 71);
  assert_int_equal(ckpt_claim_decide(&me, NULL, CKPT_GONE), CKPT_TAKE);
  for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
    struct ckpt_owner o = owner(held[i].job, held[i].incarnation, held[i].round, 80);
    if (ckpt_claim_decide(&me, &o, held[i].life) != held[i].claim) fail_msg("holder number %zu", i);
  }
  /* Two trainers without an agent are two jobs. A process does not lock itself out. */
  struct ckpt_owner other = owner("-", CKPT_ALONE, 1, 72);
  assert_int_equal(ckpt_claim_decide(&alone, &other, CKPT_ALIVE), CKPT_BUSY);
  assert_int_equal(ckpt_claim_decide(&alone, &alone, CKPT_ALIVE), CKPT_TAKE);
}

/* What a run writes is newer than all that it found, whatever the daemons' clocks were. */
UNIT_TEST(test_generations) {
  static const struct ckpt_id v[] = {{5, "09", 1, 10}, {4, "05", 2, 10}, {4, "05", 1, 10}};
  struct ckpt_owner me = owner("a", "05", 3, 70), newer = owner("a", "09", 2, 70),
                    alone = owner("-", CKPT_ALONE, 1, 71);
  assert_int_equal(ckpt_claim_generation(&me, NULL, NULL, 0), 1);
  assert_int_equal(ckpt_claim_generation(&me, NULL, v + 1, 2), 4); /* a later round of the same life */
  assert_int_equal(ckpt_claim_generation(&me, NULL, v, 3), 6);     /* another run has written since */
  assert_int_equal(ckpt_claim_generation(&newer, NULL, v, 3), 5);
  assert_int_equal(ckpt_claim_generation(&alone, NULL, v, 3), 6);
  static const struct ckpt_id by_hand[] = {{5, CKPT_ALONE, 1, 10}};
  assert_int_equal(ckpt_claim_generation(&alone, NULL, by_hand, 1), 6);
  struct ckpt_owner held = owner("a", "04", 1, 80); /* it has claimed 7, and written nothing yet */
  held.generation = 7;
  assert_int_equal(ckpt_claim_generation(&me, &held, v, 3), 8);
  held = me;
  held.generation = 7;
  assert_int_equal(ckpt_claim_generation(&me, &held, v, 3), 7);
}

static struct ckpt_kind kind(double lr, double batch) {
  return (struct ckpt_kind){
      .shape = {.n = 2, .width = {4, 4}}, .seed = 7, .samples = 100, .options = {[CKPT_LR] = lr, [CKPT_BATCH] = batch}};
}

UNIT_TEST(test_what_a_run_may_go_on_from) {
  struct ckpt_marker have = {.job = "a"}, by_hand = {.job = "-"};
  struct ckpt_kind had = kind(0.001, 16), same = kind(0.001, 16), other = kind(0.01, 32), model = kind(0.001, 16);
  struct err e = ERR_INIT;
  model.shape.width[1] = 5;
  assert_int_equal(ckpt_fit(&have, &had, "b", &same, &e), 0); /* the same run under another name: a new sbatch */
  assert_int_equal(ckpt_fit(&by_hand, &had, "-", &same, &e), 0);
  assert_int_equal(ckpt_fit(&have, &had, "b", &other, &e), -EPERM);
  assert_string_equal(e.text,
                      "was made with other options (--batch 16 there and 32 here, --lr 0.001 there and 0.01 here)");
  assert_int_equal(ckpt_fit(&have, &had, "a", &other, &e), 1);
  assert_non_null(strstr(e.text, "--lr 0.001 there and 0.01 here"));
  assert_int_equal(ckpt_fit(&by_hand, &had, "-", &other, &e), -EPERM); /* "-" names no job */
  assert_int_equal(ckpt_fit(&have, &had, "a", &model, &e), -EINVAL);
}

/* Checkpoints of other runs stay, and so do the newest of this one, even if others are newer. */
UNIT_TEST(test_what_is_removed) {
  static const struct ckpt_id v[] = {{9, "x", 1, 50}, {8, "a", 2, 40}, {8, "a", 2, 30}, {8, "a", 2, 20},
                                     {8, "a", 1, 35}, {7, "b", 1, 90}, {7, "b", 1, 80}, {6, "a", 1, 10}};
  struct ckpt_marker m[8], mine = {.id = {8, "a", 2, 40}, .origin = 6};
  const struct ckpt_marker *whole[8];
  bool goes[8];
  for (size_t i = 0; i < 8; i++) {
    m[i] = (struct ckpt_marker){.id = v[i], .origin = v[i].generation == 7 || v[i].generation == 9 ? 7 : 6};
    whole[i] = &m[i];
  }
  whole[4] = NULL; /* an older round did not finish it */
  ckpt_claim_prune(v, whole, 8, &mine, 2, goes);
  static const bool expected[] = {false, false, false, true, true, false, false, true};
  for (size_t i = 0; i < 8; i++)
    if (goes[i] != expected[i]) fail_msg("checkpoint number %zu", i);
}
