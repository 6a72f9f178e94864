/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts with a past: which failures speak of a host, and a cluster of sixteen hosts over weeks. */

#include "daemon/health/suspicion.h"

#include <stdio.h>
#include <string.h>
#include "common/json.h"
#include "tests/rig/unit.h"

#define DAY UINT64_C(86400000)
enum { ADA = 1000, BOB = 1001, HOSTS = 16, NODES = 4 };
static const uint64_t begin_ms = UINT64_C(1796000000000);

static struct suspicions all;

static int open_all(void **state) {
  suspicions_init(&all, 7);
  return 0;
}

static int close_all(void **state) {
  suspicions_finish(&all);
  return 0;
}

#define PAST_TEST(f) UNIT_TEST_WITH(f, open_all, close_all)

struct failure {
  int64_t uid;
  const char *host, *run, *command;
  int64_t rank, nodes;
  uint64_t day;
};

static void note(struct failure f) {
  struct suspicion s = {.uid = f.uid ? f.uid : ADA,
                        .host = (char *)(uintptr_t)f.host,
                        .job = (char *)(uintptr_t)f.run,
                        .node_rank = f.rank,
                        .nodes = f.nodes ? f.nodes : NODES,
                        .wall_ms = begin_ms + f.day * DAY};
  snprintf(s.run, sizeof s.run, "%s", f.run);
  snprintf(s.command, sizeof s.command, "%s", f.command);
  suspicions_failed(&all, &s);
}

static bool is_out(const char *host, uint64_t day) {
  return suspicions_exclude(&all, host, ADA, begin_ms + day * DAY);
}

static bool takes_part(void *ctx, const char *host) {
  return ctx && strstr(ctx, host);
}

static void forget_line(void *ctx, const struct suspicion *one) {
  assert_int_equal(one->failures, 0);
}

static void pass(const char *run, const char *command, const char *hosts) {
  suspicions_passed(&all, &(struct suspicion_pass){.uid = ADA,
                                                   .run = run,
                                                   .command = command,
                                                   .took_part = takes_part,
                                                   .taken_back = forget_line,
                                                   .ctx = (void *)(uintptr_t)hosts});
}

/* Which failures speak of a host. ---------------------------------------------------------------------------------- */

PAST_TEST(test_two_runs_of_two_scripts) {
  note((struct failure){.host = "n3", .run = "a", .command = "c1", .rank = 1});
  assert_false(is_out("n3", 0));
  note((struct failure){.host = "n3", .run = "b", .command = "c2", .rank = 1});
  assert_false(is_out("n3", 0)); /* each may have been bad luck */
  pass("a", "c1", "n1 n2");
  assert_true(is_out("n3", 0));
  assert_false(is_out("n4", 0));
  assert_false(suspicions_exclude(&all, "n3", BOB, begin_ms)); /* of others */
  struct buf why = BUF_INIT;
  suspicions_reason(&all, "n3", ADA, &why);
  assert_string_equal(buf_text(&why), "failures of jobs b and a");
  buf_finish(&why);
}

PAST_TEST(test_a_run_that_fails_there_again_is_certain_but_one_witness) {
  for (int i = 0; i < 10; i++) note((struct failure){.host = "n3", .run = "a", .command = "c1", .rank = 1});
  assert_false(is_out("n3", 0));
  note((struct failure){.host = "n3", .run = "b", .command = "c2", .rank = 2});
  assert_true(is_out("n3", 0));
}

PAST_TEST(test_rank_0_is_special) {
  const char *runs[] = {"a", "b", "c", "d"}, *commands[] = {"c1", "c2", "c3", "c4"};
  for (int i = 0; i < 8; i++) note((struct failure){.host = "n0", .run = runs[i % 4], .command = commands[i % 4]});
  assert_false(is_out("n0", 0));
  note((struct failure){.host = "n0", .run = "e", .command = "c5", .rank = 2});
  assert_true(is_out("n0", 0)); /* it failed with another rank as well */
}

PAST_TEST(test_one_script_twice_needs_another_rank) {
  for (int i = 0; i < 2; i++) {
    note((struct failure){.host = "n3", .run = "a", .command = "c", .rank = 3});
    note((struct failure){.host = "n3", .run = "b", .command = "c", .rank = 3});
  }
  assert_false(is_out("n3", 0));
  note((struct failure){.host = "n3", .run = "d", .command = "c", .rank = 1});
  assert_true(is_out("n3", 0));
}

PAST_TEST(test_a_run_that_fails_on_two_hosts_speaks_of_itself) {
  for (int i = 0; i < 2; i++) {
    note((struct failure){.host = "n3", .run = "a", .command = "c1", .rank = 1});
    note((struct failure){.host = "n3", .run = "b", .command = "c2", .rank = 2});
  }
  assert_true(is_out("n3", 0));
  note((struct failure){.host = "n4", .run = "a", .command = "c1", .rank = 2});
  assert_false(is_out("n3", 0));
}

PAST_TEST(test_a_run_of_one_node_has_no_others) {
  for (int i = 0; i < 2; i++) {
    note((struct failure){.host = "n3", .run = "a", .command = "c1", .nodes = 1});
    note((struct failure){.host = "n3", .run = "b", .command = "c2", .nodes = 1});
  }
  assert_false(is_out("n3", 0));
  pass("x", "c1", "n5");
  pass("y", "c2", "n6");
  assert_true(is_out("n3", 0));
}

PAST_TEST(test_success_on_the_host_takes_bad_luck_back) {
  note((struct failure){.host = "n3", .run = "a", .command = "c1", .rank = 1});
  pass("a", "c1", "n3 n4");
  uint64_t ends;
  assert_int_equal(suspicions_score(&all, "n3", ADA, begin_ms, &ends), 0);
}

PAST_TEST(test_it_is_forgotten_in_days) {
  for (int i = 0; i < 2; i++) {
    note((struct failure){.host = "n3", .run = "a", .command = "c1", .rank = 1});
    note((struct failure){.host = "n3", .run = "b", .command = "c2", .rank = 2});
  }
  uint64_t ends;
  assert_int_equal(suspicions_score(&all, "n3", ADA, begin_ms, &ends), 2000);
  assert_true(ends > begin_ms + 5 * DAY && ends < begin_ms + 6 * DAY);
  assert_true(is_out("n3", 5));
  assert_false(is_out("n3", 6));
  assert_int_equal(suspicions_score(&all, "n3", ADA, begin_ms + 7 * DAY, &ends), 1000);
  assert_int_equal(suspicions_score(&all, "n3", ADA, begin_ms + 14 * DAY, &ends), 500);
  note((struct failure){.host = "n3", .run = "c", .command = "c3", .rank = 3, .day = 60});
  assert_false(is_out("n3", 60)); /* two months ago is no witness */
}

PAST_TEST(test_the_way_back) {
  for (int64_t uid = ADA; uid <= BOB; uid++)
    for (int i = 0; i < 2; i++) {
      note((struct failure){.uid = uid, .host = "n3", .run = "a", .command = "c1", .rank = 1});
      note((struct failure){.uid = uid, .host = "n3", .run = "b", .command = "c2", .rank = 2});
    }
  assert_int_equal(suspicions_count_excluded(&all, ADA, begin_ms), 1);
  assert_int_equal(suspicions_clear(&all, "n3", ADA, false), 2);
  assert_false(is_out("n3", 0));
  assert_true(suspicions_exclude(&all, "n3", BOB, begin_ms));
  assert_int_equal(suspicions_clear(&all, "n3", -1, true), 2);
  assert_false(suspicions_exclude(&all, "n3", BOB, begin_ms));
  assert_int_equal(suspicions_clear(&all, "n3", ADA, false), 0);
}

PAST_TEST(test_memory_is_bounded) {
  char run[20], host[20];
  for (int i = 0; i < 300; i++)
    for (int k = 0; k < 150; k++) {
      snprintf(run, sizeof run, "%d", k);
      snprintf(host, sizeof host, "h%d", k % 40);
      note((struct failure){.uid = 5000 + i, .host = host, .run = run, .command = "c", .day = (uint64_t)i});
    }
  size_t users = 0;
  for (struct map_entry *e = NULL; (e = map_next(&all.users, e)); users++)
    assert_int_equal(((struct suspicion_user *)e->value)->n, SUSPICIONS_USER_MAX);
  assert_int_equal(users, SUSPICION_USERS_MAX);
}

/* The state file. -------------------------------------------------------------------------------------------------- */

static bool load(const char *line, bool *ours) {
  json_t *o = json_loads(line, 0, NULL);
  bool good = suspicions_load(&all, o, ours);
  json_decref(o);
  return good;
}

/* A daemon that comes back. */
static void restart(void) {
  struct buf lines = BUF_INIT, back = BUF_INIT;
  bool ours;
  suspicions_lines(&all, &lines);
  suspicions_finish(&all);
  suspicions_init(&all, 9);
  for (char *line = lines.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
    *end = '\0';
    assert_true(load(line, &ours) && ours);
    *end = '\n';
  }
  suspicions_lines(&all, &back);
  assert_string_equal(buf_text(&back), buf_text(&lines));
  buf_finish(&lines);
  buf_finish(&back);
}

PAST_TEST(test_lines) {
  bool ours;
  for (int i = 0; i < 2; i++) {
    note((struct failure){.host = "n\"3", .run = "a", .command = "c1", .rank = 1});
    note((struct failure){.host = "n\"3", .run = "b", .command = "", .rank = 2});
  }
  pass("a", "c1", NULL);
  assert_true(is_out("n\"3", 0));
  restart();
  assert_true(is_out("n\"3", 0));
  assert_true(load("{\"event\":\"cleared\",\"host\":\"n\\\"3\",\"uid\":1000,\"all\":false}", &ours) && ours);
  assert_false(is_out("n\"3", 0));
  assert_false(load("{\"event\":\"seal\"}", &ours) || ours);
  assert_false(load("{\"event\":\"suspect\",\"host\":\"\",\"uid\":1}", &ours) || !ours);
  assert_false(load("{\"event\":\"suspect\",\"host\":\"n1\",\"uid\":1,\"job\":\"j\",\"run\":\"r\",\"command\":\"c\","
                    "\"node_rank\":-2,\"nodes\":1,\"failures\":1,\"wall_ms\":1}",
                    &ours));
  assert_false(load("{\"event\":\"suspect\",\"host\":\"n1\",\"uid\":1,\"job\":\"j\",\"run\":\"r\",\"command\":7,"
                    "\"node_rank\":0,\"nodes\":1,\"failures\":1,\"wall_ms\":1}",
                    &ours));
  /* Taken back. */
  assert_true(load("{\"event\":\"suspect\",\"host\":\"n1\",\"uid\":1,\"job\":\"j\",\"run\":\"r\",\"command\":\"\","
                   "\"node_rank\":0,\"nodes\":1,\"failures\":0,\"wall_ms\":1}",
                   &ours));
  struct buf lines = BUF_INIT;
  suspicions_lines(&all, &lines);
  assert_int_equal(lines.len, 0);
  buf_finish(&lines);
}

/* A cluster. ------------------------------------------------------------------------------------------------------- */

struct world {
  uint64_t random;
  bool sick[HOSTS];
  int jobs, with_sick; /* with_sick: that ran on a sick host before it was out */
  int first_out;       /* `with_sick` when all sick hosts were out; 0: not yet */
};

static unsigned draw(struct world *w, unsigned n) {
  w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (unsigned)(w->random >> 33) % n;
}

static const char *name_of(int host) {
  static char names[HOSTS][8];
  snprintf(names[host], sizeof names[host], "<n%02d>", host);
  return names[host];
}

enum behaviour {
  GOOD, /* one of twenty dies once of something else */
  FAILS_ANYWHERE,
  FAILS_ONCE, /* anywhere, and has no restarts */
  FAILS_ON_RANK_0,
};

/* Four of the hosts, three restarts. A sick host kills what runs there. Without the excluded ones three go on. */
static void run_job(struct world *w, enum behaviour how, const char *command) {
  char run[20], hosts[100] = "";
  int at[NODES], n = 0;
  uint64_t day = (uint64_t)w->jobs / 6;
  snprintf(run, sizeof run, "job%d", w->jobs++);
  while (n < NODES) {
    int h = (int)draw(w, HOSTS);
    bool again = false;
    for (int i = 0; i < n; i++) again |= at[i] == h;
    if (!again) at[n++] = h;
  }
  bool unlucky = how == GOOD && draw(w, 20) == 0, met = false;
  for (int round = 0; round <= 3; round++) {
    int dies = -1, out = -1;
    for (int i = 0; i < NODES; i++)
      if (is_out(name_of(at[i]), day)) out = i; /* one at most is left out */
    for (int i = 0; i < NODES; i++)
      if (i != out && w->sick[at[i]]) dies = i;
    met |= dies >= 0;
    if (how == FAILS_ON_RANK_0) dies = 0;
    if (how == FAILS_ANYWHERE || how == FAILS_ONCE) dies = (int)draw(w, NODES);
    if (unlucky && dies < 0 && round == 0) dies = (int)draw(w, NODES);
    if (dies < 0) {
      for (int i = 0; i < NODES; i++)
        if (i != out) strcat(hosts, name_of(at[i]));
      pass(run, command, hosts);
      break;
    }
    note((struct failure){.host = name_of(at[dies]), .run = run, .command = command, .rank = dies, .day = day});
    if (how == FAILS_ONCE) break;
  }
  w->with_sick += met;
  bool found = true;
  for (int h = 0; h < HOSTS; h++) {
    bool excluded = is_out(name_of(h), day);
    if (!w->sick[h]) assert_false(excluded);
    if (w->sick[h]) found &= excluded;
  }
  if (found && !w->first_out) w->first_out = w->with_sick;
  if (w->jobs % 10 == 0) restart();
}

static const char *const scripts[] = {"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"};

PAST_TEST(test_fifty_jobs_and_one_sick_host) {
  int worst = 0;
  for (uint64_t seed = 0; seed < 100; seed++) {
    struct world w = {.random = seed};
    w.sick[draw(&w, HOSTS)] = true;
    for (int i = 0; i < 50; i++) run_job(&w, GOOD, scripts[draw(&w, 8)]);
    if (w.with_sick > 2) assert_int_not_equal(w.first_out, 0);
    if (w.first_out > worst) worst = w.first_out;
    suspicions_finish(&all);
    suspicions_init(&all, seed);
  }
  assert_in_range(worst, 2, 4); /* jobs that it has cost */
}

PAST_TEST(test_buggy_scripts_exclude_nobody) {
  for (uint64_t seed = 0; seed < 40; seed++) {
    struct world w = {.random = seed};
    for (int i = 0; i < 50; i++) run_job(&w, FAILS_ANYWHERE, scripts[draw(&w, 8)]);
    for (int i = 0; i < 50; i++) run_job(&w, FAILS_ON_RANK_0, scripts[draw(&w, 8)]);
    for (int i = 0; i < 50; i++) run_job(&w, FAILS_ONCE, "always the same");
    suspicions_finish(&all);
    suspicions_init(&all, seed);
  }
}

PAST_TEST(test_a_mixed_cluster) {
  int found = 0, worst = 0;
  for (uint64_t seed = 0; seed < 40; seed++) {
    struct world w = {.random = seed};
    int first = (int)draw(&w, HOSTS);
    w.sick[first] = w.sick[(first + 5) % HOSTS] = true;
    for (int i = 0; i < 100; i++) {
      if (draw(&w, 4) == 0)
        run_job(&w, FAILS_ANYWHERE, "bad");
      else
        run_job(&w, GOOD, scripts[draw(&w, 8)]);
    }
    found += w.first_out > 0;
    if (w.first_out > worst) worst = w.first_out;
    suspicions_finish(&all);
    suspicions_init(&all, seed);
  }
  print_message("both found in %d of 40 worlds, at the latest after %d jobs that met one\n", found, worst);
  assert_true(found == 40);
}
