/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv_exchange and rdzv_barrier over a real store: who meets whom, who is missing, who differs. */

#include "tests/rig/sdk.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/mem.h"
#include "tests/rig/store.h"
#include "tests/rig/unit.h"

static struct player players[MAX_LOCAL];
static atomic_int turn; /* what the parts tell each other past the store */

/* n workers of a world play the part; ranks 0.. where the world is these. */
static void play(uint32_t n, uint32_t world, int (*part)(struct rdzv *)) {
  struct sdk_rig d;
  atomic_store(&turn, 0);
  sdk_rig_open_store(&d, n, world, store_thread_start());
  drive(&d, players, n, part, NULL);
  sdk_rig_close(&d);
  store_thread_stop();
}

static void play_well(uint32_t n, uint32_t world, int (*part)(struct rdzv *)) {
  play(n, world, part);
  for (uint32_t i = 0; i < n; i++)
    if (players[i].result) fail_msg("%u: %d: %s", i, players[i].result, players[i].text);
}

static void check_player(uint32_t i, int code, const char *sentence) {
  if (players[i].result != code || !strstr(players[i].text, sentence))
    fail_msg("%u: %d \"%s\", expected %d \"%s\"", i, players[i].result, players[i].text, code, sentence);
}

static void value_of(uint32_t rank, int call, size_t size, char *out) {
  for (size_t i = 0; i < size; i++) out[i] = (char)(rank * 31 + i * 7 + (size_t)call);
}

static int exchange(struct rdzv *r, const char *name, int call, size_t size) {
  size_t world = (size_t)rdzv_world_size(r);
  char *mine = xmalloc(size), *all = xmalloc(world * size), *expected = xmalloc(size);
  value_of((uint32_t)rdzv_rank(r), call, size, mine);
  int rc = rdzv_exchange(r, name, mine, size, all, world * size, PATIENCE_MS);
  for (uint32_t i = 0; rc == 0 && i < world; i++) {
    value_of(i, call, size, expected);
    if (memcmp(all + i * size, expected, size) != 0) rc = 1000 + (int)i;
  }
  free(expected);
  free(all);
  free(mine);
  return rc;
}

static int part_sizes(struct rdzv *r) {
  static const size_t sizes[] = {1, 8, 256, 70000, 8 * 1024 * 1024 - 8};
  char name[RDZV_NAME_MAX + 1];
  int rc = 0;
  for (int i = 0; i < 5 && !rc; i++) {
    snprintf(name, sizeof(name), "size %d", i);
    rc = exchange(r, name, i, sizes[i]);
  }
  memset(name, 'n', RDZV_NAME_MAX);
  name[RDZV_NAME_MAX] = '\0';
  return rc ? rc : exchange(r, name, 0, 5);
}

UNIT_TEST(test_exchange) {
  play_well(MAX_LOCAL, MAX_LOCAL, part_sizes);
}

static int part_again(struct rdzv *r) {
  int rc = 0;
  int64_t keys;
  for (int i = 0; i < 200 && !rc; i++) {
    rc = exchange(r, "again", i, 24);
    if (!rc && i % 3 == 0) rc = rdzv_barrier(r, "again", PATIENCE_MS); /* apart from the exchange of this name */
  }
  if (!rc) rc = rdzv_barrier(r, "end", PATIENCE_MS); /* rank 0 has cleared up what was before */
  if (!rc) rc = rdzv_store_num_keys(r, &keys, PATIENCE_MS);
  return rc ? rc : keys > 6 ? (int)keys : 0;
}

UNIT_TEST(test_a_name_again_and_again) {
  play_well(MAX_LOCAL, MAX_LOCAL, part_again);
}

static atomic_int came;

static int part_barrier(struct rdzv *r) {
  for (int i = 0; i < 20; i++) {
    poll(NULL, 0, rdzv_rank(r));
    atomic_fetch_add(&came, 1);
    int rc = rdzv_barrier(r, "b", PATIENCE_MS);
    if (rc) return rc;
    if (atomic_load(&came) < (i + 1) * MAX_LOCAL) return 1000 + i; /* somebody was still on the way */
    if (rdzv_barrier(r, "and on", PATIENCE_MS)) return 2000 + i;
  }
  return 0;
}

UNIT_TEST(test_barrier) {
  atomic_store(&came, 0);
  play_well(MAX_LOCAL, MAX_LOCAL, part_barrier);
}

/* What must pass although somebody waits: far more than an answer of the store takes on a machine that is busy with
 * other things. */
enum { MISSED_MS = 2000 };

/* Ranks 1 to 3 of 16 come. */
static int part_three_of_many(struct rdzv *r) {
  int all[16], mine = 1;
  if (rdzv_barrier(r, "b", MISSED_MS) != -ETIMEDOUT ||
      !strstr(rdzv_error(r), "barrier \"b\": rank 0, 4, 5, 6, 7, 8, 9, 10 and 5 more did not come within 2000 ms"))
    return 1;
  return rdzv_exchange(r, "hello", &mine, sizeof(mine), all, sizeof(all), MISSED_MS + 50 * rdzv_local_rank(r));
}

UNIT_TEST(test_the_missing_are_named) {
  play(3, 16, part_three_of_many);
  for (uint32_t i = 0; i < 3; i++)
    check_player(i, -ETIMEDOUT, "exchange \"hello\": rank 0, 4, 5, 6, 7, 8, 9, 10 and 5 more did not come within ");
}

/* Local rank 2 comes when the others have given up; it is well served, and they all go on. */
static int part_late(struct rdzv *r) {
  int all[3], mine = rdzv_rank(r), rc = 0;
  if (mine == 2) {
    while (atomic_load(&turn) < 2) poll(NULL, 0, 1);
    rc = rdzv_exchange(r, "late", &mine, sizeof(mine), all, sizeof(all), PATIENCE_MS);
    if (rc == 0 && (all[0] != 0 || all[1] != 1 || all[2] != 2)) rc = 1;
  } else {
    if (rdzv_exchange(r, "late", &mine, sizeof(mine), all, sizeof(all), MISSED_MS) != -ETIMEDOUT) return 2;
    if (!strstr(rdzv_error(r), "rank 2 did not come within 2000 ms")) return 3;
    atomic_fetch_add(&turn, 1);
  }
  for (int i = 0; i < 3 && !rc; i++) rc = exchange(r, "late", i, 8);
  return rc;
}

UNIT_TEST(test_one_comes_late) {
  play_well(3, 3, part_late);
}

static int part_sizes_differ(struct rdzv *r) {
  char mine[8] = {0}, all[64];
  return rdzv_exchange(r, "k", mine, rdzv_rank(r) == 2 ? 7 : 8, all, sizeof(all), PATIENCE_MS);
}

/* All values of the ranks that come are untouched unless the call succeeds: here, in a timeout, in no room. */
static int part_room(struct rdzv *r) {
  struct {
    int all[2], behind;
  } x = {{-1, -1}, -1};
  int mine = rdzv_rank(r), world = rdzv_world_size(r);
  size_t room = sizeof(mine) * (size_t)world;
  if (rdzv_exchange(r, "room", &mine, sizeof(mine), x.all, room - 1, PATIENCE_MS) != -EMSGSIZE) return 1;
  if (!strstr(rdzv_error(r), "exchange \"room\": there is room for 7 bytes, and 2 ranks give 4 bytes each")) return 2;
  if (rdzv_exchange(r, "room", &mine, sizeof(mine), x.all, 0, PATIENCE_MS) != -EMSGSIZE) return 3;
  if (rdzv_exchange(r, "room", &mine, SIZE_MAX, x.all, SIZE_MAX, PATIENCE_MS) != -EMSGSIZE) return 4;
  if (rdzv_exchange(r, "room", &mine, sizeof(mine), NULL, room, PATIENCE_MS) != -EINVAL) return 5;
  if (x.all[0] != -1 || x.all[1] != -1) return 6;
  x.all[mine] = mine; /* in place */
  int rc = rdzv_exchange(r, "room", &x.all[mine], sizeof(mine), x.all, room, PATIENCE_MS);
  return rc ? rc : x.all[0] == 0 && x.all[1] == 1 && x.behind == -1 ? 0 : 7;
}

UNIT_TEST(test_too_little_room) {
  play_well(2, 2, part_room);
}

/* The agent reports more ranks than the program expected, as a job of 2048 ranks does. */
static int part_many(struct rdzv *r) {
  double mine = 1, all[1024];
  if (rdzv_exchange(r, "hello", &mine, sizeof(mine), all, sizeof(all), 0) != -EMSGSIZE) return 1;
  return strstr(rdzv_error(r), "there is room for 8192 bytes, and 2048 ranks give 8 bytes each") ? 0 : 2;
}

UNIT_TEST(test_more_ranks_than_expected) {
  play_well(1, 2048, part_many);
}

static void check_untouched(const char *all, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (all[i] != 'u') fail_msg("byte %zu was written", i);
}

static int part_untouched(struct rdzv *r) {
  char mine[8] = {0}, all[24];
  memset(all, 'u', sizeof(all));
  bool late = rdzv_local_rank(r) == 0 && rdzv_world_size(r) == 3;
  int rc = rdzv_exchange(r, "u", mine, late ? 7 : 8, all, sizeof(all), MISSED_MS);
  if (rc == 0) return 1;
  check_untouched(all, sizeof(all));
  return 0;
}

UNIT_TEST(test_a_failed_call_writes_nothing) {
  play_well(3, 3, part_untouched); /* rank 0 gives 7 bytes */
}

UNIT_TEST(test_sizes_that_differ) {
  play(3, 3, part_sizes_differ);
  check_player(0, -EINVAL, "exchange \"k\": rank 2 gave 7 bytes, and this rank (0) 8");
  check_player(1, -EINVAL, "exchange \"k\": rank 2 gave 7 bytes, and this rank (1) 8");
  check_player(2, -EINVAL, "gave 8 bytes, and this rank (2) 7");
}

/* Another process of rank 1, with the same name. */
static int part_twice(struct rdzv *r) {
  char mine = 0, all[3];
  if (rdzv_rank(r) != 2) return rdzv_exchange(r, "k", &mine, 1, all, sizeof(all), PATIENCE_MS);
  if (rdzv_store_append(r, "rdzv.exchange/k/0/values", "\1\0\0\0\1\0\0\0x", 9, PATIENCE_MS)) return 1;
  return rdzv_store_barrier(r, "rdzv.exchange/k/0/count", 3, PATIENCE_MS);
}

static int part_strange(struct rdzv *r) {
  char mine = 0, all[2];
  if (rdzv_rank(r) == 0) {
    int64_t n;
    int rc = rdzv_store_set(r, "rdzv.exchange/k/0/values", "strange", 7, PATIENCE_MS);
    if (!rc) rc = rdzv_store_num_keys(r, &n, PATIENCE_MS); /* the SET has no answer: behind this one it is there */
    atomic_store(&turn, 1);
    return rc;
  }
  while (atomic_load(&turn) < 1) poll(NULL, 0, 1);
  return rdzv_exchange(r, "k", &mine, 1, all, sizeof(all), MISSED_MS);
}

UNIT_TEST(test_somebody_else_writes_there) {
  play(3, 3, part_twice);
  for (uint32_t i = 0; i < 2; i++)
    check_player(i, -EINVAL, "exchange \"k\": rank 1 came twice: two of its processes use this name");
  play(2, 2, part_strange);
  check_player(1, -EPROTO, "the store's key \"rdzv.exchange/k/0/values\" was written by another program");
}

static int part_mistakes(struct rdzv *r) {
  char name[RDZV_NAME_MAX + 2], all[64];
  memset(name, 'n', sizeof(name));
  name[sizeof(name) - 1] = '\0';
  if (rdzv_barrier(r, name, 0) != -EINVAL || !strstr(rdzv_error(r), "a name has 1 to 1024 bytes")) return 1;
  if (rdzv_barrier(r, "", 0) != -EINVAL || rdzv_barrier(r, NULL, 0) != -EINVAL) return 2;
  if (rdzv_exchange(r, "k", "", 0, all, sizeof(all), 0) != -EINVAL || !strstr(rdzv_error(r), "at least 1 byte"))
    return 3;
  if (rdzv_exchange(r, "k", "", RDZV_EXCHANGE_MAX / 4, all, SIZE_MAX, 0) != -EMSGSIZE ||
      !strstr(rdzv_error(r), "from each of 4 ranks are too many"))
    return 4;
  char *large = xcalloc(1, RDZV_VALUE_MAX);
  int rc = rdzv_exchange(r, "k", large, RDZV_VALUE_MAX, all, SIZE_MAX, 0);
  free(large);
  return rc == -EMSGSIZE && strstr(rdzv_error(r), "a value of 8388608 bytes is too large, the limit is 8388600") ? 0
                                                                                                                 : 5;
}

UNIT_TEST(test_mistakes) {
  play_well(1, 4, part_mistakes);
}

static int part_no_store(struct rdzv *r) {
  int mine = 7, all = 0;
  if (rdzv_world_size(r) > 1) return rdzv_barrier(r, "b", PATIENCE_MS);
  return rdzv_exchange(r, "k", &mine, sizeof(mine), &all, sizeof(all), 0) || all != 7 ? 1 : rdzv_barrier(r, "b", 0);
}

/* --store worker: a single worker needs none. */
UNIT_TEST(test_without_a_store) {
  struct sdk_rig d;
  sdk_rig_open_store(&d, 1, 1, 0);
  drive(&d, players, 1, part_no_store, NULL);
  check_player(0, 0, "");
  sdk_rig_close(&d);
  sdk_rig_open_store(&d, 2, 2, 0);
  drive(&d, players, 2, part_no_store, NULL);
  check_player(1, -ENOTSUP, "barrier \"b\": this job has no store");
  sdk_rig_close(&d);
}

static volatile sig_atomic_t stopped;
static pthread_t waiter;

static void on_signal(int signo) {
  stopped = 1;
}

/* The connection is there, so the exchange sends its value before it waits. */
static int wait_until_stopped(struct rdzv *r) {
  int all[3], mine = 0;
  char *value;
  if (rdzv_store_set(r, "k", "v", 1, PATIENCE_MS) || rdzv_store_get(r, "k", &value, NULL, PATIENCE_MS)) return 1;
  free(value);
  waiter = pthread_self();
  stopped = 0;
  rdzv_set_interrupt(r, &stopped);
  atomic_store(&turn, 1);
  if (rdzv_exchange(r, "x", &mine, sizeof(mine), all, sizeof(all), PATIENCE_MS) != -EINTR) return 2;
  if (strcmp(rdzv_error(r), "exchange \"x\": interrupted") != 0) return 3;
  if (rdzv_store_get(r, "never", &value, NULL, PATIENCE_MS) != -EINTR) return 4;
  if (rdzv_store_try_get(r, "k", &value, NULL, PATIENCE_MS)) return 5; /* which waits for no rank */
  free(value);
  stopped = 0;
  atomic_store(&turn, 2);
  return 0;
}

/* Rank 0 is interrupted while it waits for the others. They find its value, and the next calls meet again. */
static int part_interrupted(struct rdzv *r) {
  int all[3], mine = rdzv_rank(r), rc = 0;
  if (mine == 0) rc = wait_until_stopped(r);
  while (atomic_load(&turn) < 1) poll(NULL, 0, 1);
  if (mine == 1) pthread_kill(waiter, SIGUSR1);
  while (atomic_load(&turn) < 2 && rc == 0) poll(NULL, 0, 1);
  if (mine > 0) rc = rdzv_exchange(r, "x", &mine, sizeof(mine), all, sizeof(all), PATIENCE_MS);
  if (mine > 0 && rc == 0 && (all[0] != 0 || all[1] != 1 || all[2] != 2)) rc = 6;
  for (int i = 0; i < 3 && !rc; i++) rc = exchange(r, "x", i, 8);
  return rc;
}

UNIT_TEST(test_a_signal_ends_a_wait) {
  struct sigaction a = {.sa_handler = on_signal}, before;
  sigaction(SIGUSR1, &a, &before);
  play_well(3, 3, part_interrupted);
  sigaction(SIGUSR1, &before, NULL);
}

static int part_until_the_end(struct rdzv *r) {
  char mine = 0, all[7];
  atomic_fetch_add(&turn, 1);
  return rdzv_exchange(r, "k", &mine, 1, all, sizeof(all), PATIENCE_MS);
}

static void end_round(struct sdk_rig *d) {
  if (atomic_load(&turn) == 2) sdk_server_close_round(d->s);
}

UNIT_TEST(test_round_ends_in_an_exchange) {
  struct sdk_rig d;
  atomic_store(&turn, 0);
  sdk_rig_open_store(&d, 2, 7, store_thread_start());
  drive(&d, players, 2, part_until_the_end, end_round);
  for (uint32_t i = 0; i < 2; i++) check_player(i, -ESTALE, "exchange \"k\": round 4 is over");
  sdk_rig_close(&d);
  store_thread_stop();
}

int main(void) {
  alarm(100);
  return unit_run(NULL, NULL);
}
