/* SPDX-License-Identifier: Apache-2.0 */
/* The waiting room against a plain list that is searched from end to end. */

#include "daemon/server/waiting_room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_the_oldest_of_a_source_gives_way) {
  struct waiting_room a;
  struct newcomer v[5] = {{.source = NULL}};
  room_init(&a, 1);
  assert_null(room_crowded_out(&a));
  assert_null(room_oldest_of(&a, "x"));
  static const char *const sources[5] = {"y", "x", "y", "x", "y"};
  for (size_t i = 0; i < 5; i++) room_enter(&a, &v[i], sources[i], i);
  assert_int_equal(room_of(&a, "x"), 2);
  assert_ptr_equal(room_oldest_of(&a, "x"), &v[1]);
  assert_ptr_equal(room_crowded_out(&a), &v[0]);
  room_leave(&a, &v[0]);
  room_leave(&a, &v[0]); /* nothing happens */
  room_leave(&a, &v[2]);
  assert_ptr_equal(room_crowded_out(&a), &v[1]); /* x has two, y one */
  room_leave(&a, &v[1]);
  assert_ptr_equal(room_crowded_out(&a), &v[3]); /* each has one: the oldest of all */
  room_leave(&a, &v[3]);
  room_leave(&a, &v[4]);
  assert_int_equal(a.count, 0);
  room_finish(&a);
}

/* A crowd of one source leaves a lone connection of another alone, however old it is. */
UNIT_TEST(test_a_crowd_pushes_out_its_own) {
  enum { N = 3000 };
  struct waiting_room a;
  struct newcomer lone, *crowd = calloc(N, sizeof(*crowd));
  room_init(&a, 1);
  room_enter(&a, &lone, "honest", 0);
  for (size_t i = 0; i < N; i++) {
    if (a.count >= 1000) room_leave(&a, room_crowded_out(&a));
    room_enter(&a, &crowd[i], i % 2 ? "crowd 1" : "crowd 2", i);
  }
  assert_int_equal(room_of(&a, "honest"), 1);
  assert_ptr_equal(a.oldest, &lone);
  for (size_t i = 0; i < N; i++) room_leave(&a, &crowd[i]);
  room_leave(&a, &lone);
  assert_int_equal(a.sources.count, 0);
  room_finish(&a);
  free(crowd);
}

enum { MANY = 400, SOURCES = 20 };

static size_t counted(const struct newcomer *v, const char *const *sources, const char *source) {
  size_t n = 0;
  for (size_t i = 0; i < MANY; i++) n += v[i].source && strcmp(sources[i], source) == 0;
  return n;
}

/* since_ms is different for each, so it names one. */
static void check(const struct waiting_room *a, const struct newcomer *v, const char *const *sources) {
  size_t most = 0, total = 0;
  uint64_t oldest = UINT64_MAX;
  for (size_t i = 0; i < MANY; i++) {
    if (!v[i].source) continue;
    size_t n = counted(v, sources, sources[i]);
    assert_int_equal(room_of(a, sources[i]), n);
    most = n > most ? n : most;
    total++;
    oldest = v[i].since_ms < oldest ? v[i].since_ms : oldest;
  }
  assert_int_equal(a->count, total);
  assert_int_equal(a->largest, most);
  assert_int_equal(a->oldest ? a->oldest->since_ms : UINT64_MAX, oldest);
  const struct newcomer *out = room_crowded_out(a);
  assert_int_equal(out != NULL, total > 0);
  if (!out) return;
  const char *source = sources[out - v];
  assert_int_equal(counted(v, sources, source), most);
  assert_ptr_equal(room_oldest_of(a, source), most > 1 ? out : room_oldest_of(a, source));
  for (size_t i = 0; i < MANY; i++)
    if (v[i].source && strcmp(sources[i], source) == 0) assert_true(v[i].since_ms >= out->since_ms);
}

UNIT_TEST(test_against_a_plain_list) {
  static char names[SOURCES][24];
  struct newcomer v[MANY] = {{.source = NULL}};
  const char *sources[MANY] = {NULL};
  struct waiting_room a;
  room_init(&a, 7);
  srand(1);
  for (int i = 0; i < SOURCES; i++) snprintf(names[i], sizeof(names[i]), "10.0.0.%d", i);
  for (uint64_t now = 1; now < 20000; now++) {
    int i = rand() % MANY;
    if (v[i].source) {
      room_leave(&a, &v[i]);
    } else {
      sources[i] = names[rand() % (1 + rand() % SOURCES)];
      room_enter(&a, &v[i], sources[i], now);
    }
    if (now % 16 == 0) check(&a, v, sources);
  }
  for (int i = 0; i < MANY; i++) room_leave(&a, &v[i]);
  check(&a, v, sources);
  room_finish(&a);
}

/* Each is served once before any is served again, whatever it has; a source that comes back is the last of its round. */
UNIT_TEST(test_sources_take_turns) {
  static const char *const sources[] = {"x", "x", "x", "y", "x", "z", "y"};
  enum { N = sizeof sources / sizeof *sources };
  struct waiting_room a;
  struct newcomer v[N] = {{.source = NULL}}, late;
  size_t served = 0;
  char order[N + 2] = "";
  room_init(&a, 1);
  assert_null(room_next(&a));
  for (size_t i = 0; i < N; i++) room_enter(&a, &v[i], sources[i], i);
  for (struct newcomer *n; (n = room_next(&a)); served++) {
    order[served] = n == &late ? 'z' : *sources[n - v];
    room_leave(&a, n);
    if (served == 2) room_enter(&a, &late, "z", N); /* z was served, and has more */
  }
  assert_string_equal(order, "xyzxyzxx");
  room_finish(&a);
}

/* One that does not leave is named again in the next round. Sources that leave out of turn do not disturb it. */
UNIT_TEST(test_turns_without_those_that_left) {
  struct waiting_room a;
  struct newcomer v[4] = {{.source = NULL}};
  static const char *const sources[] = {"a", "b", "c", "d"};
  room_init(&a, 1);
  for (size_t i = 0; i < 4; i++) room_enter(&a, &v[i], sources[i], i);
  assert_ptr_equal(room_next(&a), &v[0]);
  room_leave(&a, &v[1]); /* whose turn it is */
  assert_ptr_equal(room_next(&a), &v[2]);
  room_leave(&a, &v[0]);
  assert_ptr_equal(room_next(&a), &v[3]);
  assert_ptr_equal(room_next(&a), &v[2]);
  room_leave(&a, &v[2]);
  room_leave(&a, &v[3]);
  assert_null(room_next(&a));
  room_finish(&a);
}
