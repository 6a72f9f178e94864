/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv: ncclUniqueIds as the agent tells them. */

#include "tests/rig/sdk.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/rig/unit.h"

static struct sdk_rig rig;

static struct sdk_ids make(uint32_t round, uint32_t count, const char *text) {
  struct sdk_ids ids = {.round = round, .count = count, .version = 22809};
  for (size_t i = 0; i < (size_t)count * RDZV_NCCL_ID_SIZE; i++) ids.ids[i] = (uint8_t)(round + i % 251);
  snprintf(ids.text, sizeof ids.text, "%s", text);
  return ids;
}

static int get(struct rdzv *r, int timeout_ms, uint8_t first[1], int *n) {
  static _Thread_local uint8_t ids[RDZV_NCCL_IDS_MAX * RDZV_NCCL_ID_SIZE];
  int version = 0;
  int rc = rdzv_nccl_ids(r, ids, sizeof ids, n, &version, timeout_ms);
  if (rc) return rc;
  assert_int_equal(version, 22809);
  for (int i = 0; i < *n * RDZV_NCCL_ID_SIZE; i++)
    if (ids[i] != (uint8_t)(ids[0] + i % 251)) return -EBADMSG;
  first[0] = ids[0];
  return 0;
}

static int play_waits(struct rdzv *r) {
  uint8_t first = 0;
  int n = 0, rc = get(r, PATIENCE_MS, &first, &n);
  if (rc) return rc;
  rc = get(r, 0, &first, &n); /* once more: from memory */
  if (rc) return rc;
  rc = rdzv_nccl_up(r);
  return rc ? rc : n * 1000 + first;
}

/* They come when both have asked, after a word of who is waited for. */
static void tell_later(struct sdk_rig *d) {
  static int turns;
  if (d->hellos < 2) turns = 0;
  if (d->hellos == 2 && ++turns == 10) {
    struct sdk_ids ids = make(ROUND, 0, "to come from n9");
    sdk_server_ids(d->s, &ids);
  }
  if (turns == 20) {
    struct sdk_ids ids = make(ROUND, 64, "");
    sdk_server_ids(d->s, &ids);
  }
}

UNIT_TEST(test_all_ids_for_all) {
  struct player p[2];
  sdk_rig_open(&rig, 2, 4);
  drive(&rig, p, 2, play_waits, tell_later);
  for (int i = 0; i < 2; i++) assert_int_equal(p[i].result, 64 * 1000 + ROUND);
  assert_int_equal(rig.ups, 2);
  sdk_rig_close(&rig);
}

/* Told before the round is open, as they may come while devices are waited for. */
UNIT_TEST(test_they_were_there_before) {
  struct player p[1];
  struct sdk_welcome w = {.round = 9, .world_size = 1, .local_world_size = 1, .node_count = 1};
  struct sdk_ids ids = make(9, 1, "");
  sdk_rig_open(&rig, 1, 2);
  sdk_server_ids(rig.s, &ids);
  sdk_server_open_round(rig.s, &w, 1);
  setenv("RDZV_ROUND", "9", 1);
  drive(&rig, p, 1, play_waits, NULL);
  assert_int_equal(p[0].result, 1009);
  sdk_rig_close(&rig);
}

static int play_impatient(struct rdzv *r) {
  uint8_t first;
  int n;
  return get(r, 200, &first, &n);
}

/* Until the agent has said who is waited for: its turn may come after the patience of a call. */
static int play_informed(struct rdzv *r) {
  int rc = play_impatient(r);
  for (int i = 0; i < 100 && strstr(rdzv_error(r), "the agent did not report"); i++) rc = play_impatient(r);
  return rc;
}

static int play_patient(struct rdzv *r) {
  uint8_t first;
  int n;
  return get(r, PATIENCE_MS, &first, &n);
}

static void check_sentence(const struct sdk_ids *ids, int (*part)(struct rdzv *), int code, const char *sentence) {
  struct player p[1];
  sdk_rig_open(&rig, 1, 2);
  if (ids) sdk_server_ids(rig.s, ids);
  drive(&rig, p, 1, part, NULL);
  assert_int_equal(p[0].result, code);
  if (!strstr(p[0].text, sentence)) fail_msg("%s", p[0].text);
  sdk_rig_close(&rig);
}

static int play_interrupted(struct rdzv *r) {
  volatile sig_atomic_t stopped = 1;
  uint8_t first;
  int n;
  rdzv_set_interrupt(r, &stopped);
  int rc = get(r, PATIENCE_MS, &first, &n);
  rdzv_set_interrupt(r, NULL);
  return rc;
}

static int play_without_room(struct rdzv *r) {
  uint8_t one[RDZV_NCCL_ID_SIZE];
  int n, version;
  return rdzv_nccl_ids(r, one, sizeof one, &n, &version, PATIENCE_MS);
}

UNIT_TEST(test_sentences) {
  struct sdk_ids late = make(ROUND, 0, "0 of 1 are here, to come from n9 (node 9)");
  struct sdk_ids none = make(ROUND, 0, "this job has none: its agents run with --nccl-ids never");
  struct sdk_ids two = make(ROUND, 2, ""), old = make(ROUND - 1, 1, "");
  none.code = -ENOTSUP;
  check_sentence(&late, play_informed, -ETIMEDOUT,
                 "nccl ids: they did not come in time: 0 of 1 are here, to come from n9 (node 9)");
  check_sentence(NULL, play_impatient, -ETIMEDOUT, "the agent did not report who is missing");
  check_sentence(&old, play_impatient, -ETIMEDOUT, "the agent did not report who is missing"); /* of another round */
  check_sentence(NULL, play_interrupted, -EINTR, "nccl ids: interrupted");
  check_sentence(&none, play_patient, -ENOTSUP, "this job has none: its agents run with --nccl-ids never");
  check_sentence(&two, play_without_room, -EMSGSIZE, "nccl ids: 2 ids take 256 bytes, and there is room for 128");
}

static void end_the_round(struct sdk_rig *d) {
  if (d->hellos) sdk_server_close_round(d->s);
}

UNIT_TEST(test_the_round_ends) {
  struct player p[1];
  sdk_rig_open(&rig, 1, 2);
  drive(&rig, p, 1, play_waits, end_the_round);
  assert_int_equal(p[0].result, -ESTALE);
  assert_string_equal(p[0].text, "nccl ids: round 4 is over");
  sdk_rig_close(&rig);
}

UNIT_TEST(test_alone) {
  struct rdzv *r;
  uint8_t first;
  int n;
  unsetenv("RDZV_AGENT_SOCKET");
  assert_int_equal(rdzv_init(&r, 0), 0);
  assert_int_equal(get(r, 1000, &first, &n), -ENOTSUP);
  assert_non_null(strstr(rdzv_error(r), "ncclGetUniqueId"));
  assert_int_equal(rdzv_nccl_up(r), 0);
  rdzv_finish(r);
}

/* A worker that does not read is told when it does, and the last word alone. */
UNIT_TEST(test_who_does_not_read) {
  sdk_rig_open(&rig, 1, 2);
  struct rdzv *r = sdk_rig_join(&rig);
  uint8_t first;
  int n;
  assert_int_equal(get(r, 0, &first, &n), -ETIMEDOUT); /* it has asked */
  for (int i = 0; i < 3; i++) pump(&rig, 5);
  for (int i = 0; i < 2000; i++) {
    struct sdk_ids late = make(ROUND, 64, "");
    if (i % 2) late.count = 0;
    sdk_server_ids(rig.s, &late);
  }
  struct sdk_ids ids = make(ROUND, 3, "");
  sdk_server_ids(rig.s, &ids);
  for (int i = 0, rc = -ETIMEDOUT; i < 1000 && (rc || n != 3); i++) {
    pump(&rig, 0);
    rc = get(r, 1, &first, &n);
    assert_true(rc == 0 || rc == -ETIMEDOUT);
  }
  rdzv_finish(r);
  sdk_rig_close(&rig);
}
