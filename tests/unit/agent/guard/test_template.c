/* SPDX-License-Identifier: Apache-2.0 */
/* The guard's side of the template: its words, and the queue of workers that wait for it. The test plays the template
 * (tests/rig/template.h). Each worker leaves the queue in one way, whatever the template does. */

#include "tests/rig/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/unit.h"

#define RIG_TEST(f) UNIT_TEST_WITH(f, rig_open, rig_close)

/* Its words. ------------------------------------------------------------------------------------------------------- */

#define NEVER UINT64_MAX /* the word says nothing of the time */

static const struct word {
  const char *packet;
  enum template_state before, after;
  uint64_t budget_ms;
} words[] = {
    {"B1.5", TEMPLATE_WARMS, TEMPLATE_WARMS, 1500},
    {"B2 seconds", TEMPLATE_WARMS, TEMPLATE_WARMS, 2000},
    {"B599.9", TEMPLATE_WARMS, TEMPLATE_WARMS, 599900},
    {"B0.0004", TEMPLATE_WARMS, TEMPLATE_WARMS, 0},
    {"B1e-300", TEMPLATE_WARMS, TEMPLATE_WARMS, 0},
    {"B4.9e-324", TEMPLATE_WARMS, TEMPLATE_WARMS, 0},
    /* No budget, or none that anybody would wait for. */
    {"B", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B0", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B-0", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B-1", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B600", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B1e300", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B1e308", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B1e999", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B-1e300", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B18446744073709551616", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"Binf", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B-inf", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"Bnan", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"B-nan(1)", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"Bsoon", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    /* A budget says nothing of the state. */
    {"B3", TEMPLATE_FORKS, TEMPLATE_FORKS, 3000},
    {"B3", TEMPLATE_NONE, TEMPLATE_NONE, 3000},
    {"R412 torch,numpy", TEMPLATE_WARMS, TEMPLATE_FORKS, 0},
    {"R", TEMPLATE_FORKS, TEMPLATE_FORKS, 0},
    {"L413 torch", TEMPLATE_FORKS, TEMPLATE_FORKS, FORK_MS},
    {"L", TEMPLATE_WARMS, TEMPLATE_WARMS, FORK_MS},
    {"Ax.py has changed", TEMPLATE_FORKS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"A", TEMPLATE_WARMS, TEMPLATE_WARMS, FIRST_WORD_MS},
    {"Dan import failed", TEMPLATE_WARMS, TEMPLATE_NONE, NEVER},
    {"D", TEMPLATE_FORKS, TEMPLATE_NONE, NEVER},
    /* Letters that say nothing. */
    {"Z", TEMPLATE_WARMS, TEMPLATE_WARMS, NEVER},
    {"r", TEMPLATE_WARMS, TEMPLATE_WARMS, NEVER},
    {"b1", TEMPLATE_FORKS, TEMPLATE_FORKS, NEVER},
    {" R", TEMPLATE_WARMS, TEMPLATE_WARMS, NEVER},
    {"\xff\xfe", TEMPLATE_FORKS, TEMPLATE_FORKS, NEVER},
};

RIG_TEST(test_words) {
  for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
    const struct word *c = &words[i];
    char word = 0, text[GUARD_TEMPLATE_WORD_MAX] = "";
    rig.t.state = c->before;
    rig.t.by_ms = NEVER;
    say(c->packet, strlen(c->packet));
    assert_true(guard_template_hear(&rig.t, &word, text, sizeof(text)));
    assert_int_equal(word, c->packet[0]);
    assert_string_equal(text, c->packet + 1);
    if (rig.t.state != c->after || rig.t.by_ms != (c->budget_ms == NEVER ? NEVER : rig.now_ms + c->budget_ms))
      fail_msg("\"%s\": state %d, until %llu", c->packet, (int)rig.t.state, (unsigned long long)rig.t.by_ms);
    assert_int_equal((rig.t.state != TEMPLATE_NONE), c->after != TEMPLATE_NONE);
    assert_int_equal(hear_all(), 0);
  }
}

/* A zero ends the text, and does not hide the letter. */
RIG_TEST(test_zeros) {
  char word = 'x', text[8] = "x";
  say("\0", 1);
  say("R\0more", 6);
  assert_true(guard_template_hear(&rig.t, &word, text, sizeof(text)));
  assert_int_equal(word, 0);
  assert_string_equal(text, "");
  assert_true(guard_template_hear(&rig.t, &word, text, sizeof(text)));
  assert_int_equal(word, TEMPLATE_READY);
  assert_string_equal(text, "");
  assert_int_equal(rig.t.state, TEMPLATE_FORKS);
}

/* A text is cut, and the next packet is read from its beginning. */
RIG_TEST(test_long_words) {
  static const size_t lengths[] = {GUARD_TEMPLATE_WORD_MAX - 1, GUARD_TEMPLATE_WORD_MAX, GUARD_TEMPLATE_WORD_MAX + 1,
                                   4096};
  static const size_t rooms[] = {1, 8, GUARD_TEMPLATE_WORD_MAX - 1, GUARD_TEMPLATE_WORD_MAX};
  char packet[4096];
  for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
    for (size_t k = 0; k < sizeof(rooms) / sizeof(rooms[0]); k++) {
      memset(packet, '9', sizeof(packet)); /* a number, if it is read to its end */
      packet[0] = TEMPLATE_BUDGET;
      say(packet, lengths[i]);
      say("L!", 2);
      size_t heard = lengths[i] < GUARD_TEMPLATE_WORD_MAX ? lengths[i] : GUARD_TEMPLATE_WORD_MAX;
      char word, *text = malloc(rooms[k]); /* exactly as large as said, so that ASan sees more */
      assert_true(guard_template_hear(&rig.t, &word, text, rooms[k]));
      assert_int_equal(word, TEMPLATE_BUDGET);
      assert_int_equal(strlen(text), heard - 1 < rooms[k] - 1 ? heard - 1 : rooms[k] - 1);
      assert_int_equal(rig.t.by_ms, rig.now_ms + FIRST_WORD_MS);
      assert_true(guard_template_hear(&rig.t, &word, text, rooms[k]));
      assert_int_equal(word, TEMPLATE_LEARNED);
      free(text);
    }
  }
}

static void expect_end(bool told) {
  char word = 0, text[GUARD_TEMPLATE_WORD_MAX] = "";
  assert_int_equal(guard_template_hear(&rig.t, &word, text, sizeof(text)), told);
  if (told) {
    assert_int_equal(word, TEMPLATE_DOUBT);
    assert_string_equal(text, rig.t.spoke ? "it has ended" : "the interpreter does not run it, as with -I, -E or -S");
  }
  assert_false(rig.t.state != TEMPLATE_NONE);
  assert_int_equal(rig.t.sock, -1);
  assert_int_equal(hear_all(), 0);
}

/* An empty packet reads like the end. The socket is closed then, or the guard's poll would never sleep again. */
RIG_TEST(test_its_end_is_told_once) {
  static const struct {
    const char *last;
    bool empty_packet, told;
  } ends[] = {{NULL, false, true}, {NULL, true, true},    {"R1", false, true},
              {"R1", true, true},  {"Dso", false, false}, {"Dso", true, false}};
  for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
    if (i) rig_open(state);
    char word, text[GUARD_TEMPLATE_WORD_MAX];
    if (ends[i].last) {
      say(ends[i].last, strlen(ends[i].last));
      assert_true(guard_template_hear(&rig.t, &word, text, sizeof(text)));
      assert_int_equal(word, ends[i].last[0]);
    }
    if (ends[i].empty_packet)
      say("", 0);
    else {
      close(rig.far);
      rig.far = -1;
    }
    expect_end(ends[i].told);
    rig_close(state);
  }
  rig_open(state);
}

/* A template that dies with a SPAWN unread resets the connection. Its last word was said before. */
RIG_TEST(test_the_last_word_of_one_that_did_not_read) {
  char word, text[GUARD_TEMPLATE_WORD_MAX];
  say("R1", 2);
  assert_int_equal(hear_all(), 1);
  queue_worker(0);
  expect_nobody(); /* it was sent */
  say("Lone more", 9);
  close(rig.far);
  rig.far = -1;
  assert_true(guard_template_hear(&rig.t, &word, text, sizeof(text)));
  assert_int_equal(word, TEMPLATE_LEARNED);
  assert_string_equal(text, "one more");
  expect_end(true);
  assert_int_equal(expect_exec(false), 0);
}

RIG_TEST(test_nothing_to_hear) {
  struct template before = rig.t;
  assert_int_equal(hear_all(), 0);
  assert_memory_equal(&before, &rig.t, sizeof(before));
  guard_template_gone(&rig.t);
  assert_int_equal(hear_all(), 0);
  assert_false(rig.t.state != TEMPLATE_NONE);
  guard_template_gone(&rig.t);
}

/* Workers that wait. ----------------------------------------------------------------------------------------------- */

static void say_and_hear(const char *word) {
  say(word, strlen(word));
  assert_int_equal(hear_all(), 1);
}

static void take_spawn(struct asked *a, uint32_t rank) {
  assert_true(read_spawn(a));
  assert_int_equal(a->rank, rank);
}

/* Workers wait until the budget is over, and all leave then. They are more than the queue first has room for. */
RIG_TEST(test_they_wait_while_it_warms) {
  enum { N = 20 };
  struct asked a;
  assert_int_equal(guard_template_deadline(&rig.t), UINT64_MAX);
  for (uint32_t rank = 0; rank < N; rank++) queue_worker(rank);
  assert_int_equal(guard_template_deadline(&rig.t), CLOCK_MS + FIRST_WORD_MS);
  expect_nobody();
  rig.now_ms = CLOCK_MS + FIRST_WORD_MS - 1;
  expect_nobody();
  rig.now_ms++;
  for (uint32_t rank = 0; rank < N; rank++) assert_int_equal(expect_exec(false), rank);
  expect_nobody();
  assert_int_equal(guard_template_deadline(&rig.t), UINT64_MAX);
  assert_false(read_spawn(&a)); /* it was never asked */
}

/* A worker waits for the budget that it was queued with, and for a longer one. */
RIG_TEST(test_the_budget_changes) {
  static const struct {
    const char *first, *second;
    uint64_t until_ms;
  } budgets[] = {{"B20", "B30", 31000}, {"B30", "B1", 30000}, {"B0.5", "B10", 11000}, {"B1e300", "B-1", 11000}};
  for (size_t i = 0; i < sizeof(budgets) / sizeof(budgets[0]); i++) {
    rig.now_ms = CLOCK_MS;
    say_and_hear(budgets[i].first);
    queue_worker(0);
    rig.now_ms += 1000;
    say_and_hear(budgets[i].second);
    assert_int_equal(guard_template_deadline(&rig.t), CLOCK_MS + budgets[i].until_ms);
    rig.now_ms = CLOCK_MS + budgets[i].until_ms - 1;
    expect_nobody();
    rig.now_ms++;
    assert_int_equal(expect_exec(false), 0);
  }
}

/* The queue is sent when the template is ready, and later workers at once. */
RIG_TEST(test_what_it_is_asked) {
  struct asked a[3];
  queue_worker(0);
  queue_worker(1);
  expect_nobody();
  assert_false(read_spawn(&a[0]));
  rig.now_ms += 9000;
  say_and_hear("R1");
  expect_nobody();
  rig.now_ms += 10;
  queue_worker(2);
  expect_nobody();
  assert_int_equal(guard_template_deadline(&rig.t), rig.now_ms - 10 + FORK_MS);
  for (uint32_t rank = 0; rank < 3; rank++) {
    take_spawn(&a[rank], rank);
    assert_memory_equal(a[rank].words, ((const uint32_t[]){2, 5, 16, 100, rank == 0, 11}), sizeof(a[rank].words));
  }
  assert_false(read_spawn(&a[0])); /* once each */
  rig.now_ms += FORK_MS - 11;
  expect_nobody();
  rig.now_ms++;
  assert_int_equal(expect_exec(false), 0);
  assert_int_equal(expect_exec(false), 1);
  expect_nobody();
  assert_int_equal(guard_template_deadline(&rig.t), rig.now_ms + 10);
  forget(&a[2]); /* the fork has ended without a word */
  assert_int_equal(expect_exec(false), 2);
  forget(&a[0]);
  forget(&a[1]);
}

/* A template begins again. A worker for which it was asked has its five seconds, and a later one waits. */
RIG_TEST(test_it_begins_again) {
  struct asked a;
  say_and_hear("R1");
  queue_worker(0);
  expect_nobody();
  say_and_hear("Ax.py has changed");
  say_and_hear("B5");
  queue_worker(1);
  expect_nobody();
  take_spawn(&a, 0);
  assert_false(read_spawn(&a));
  assert_int_equal(guard_template_deadline(&rig.t), rig.now_ms + FORK_MS);
  rig.now_ms += FORK_MS;
  assert_int_equal(expect_exec(false), 0);
  forget(&a);
  say_and_hear("R1");
  expect_nobody();
  take_spawn(&a, 1);
  forget(&a);
  assert_int_equal(expect_exec(false), 1);
}

static struct asked ask(uint32_t rank) {
  struct asked a;
  rig.t.state = TEMPLATE_FORKS;
  rig.t.by_ms = rig.now_ms; /* as READY does */
  queue_worker(rank);
  expect_nobody();
  take_spawn(&a, rank);
  return a;
}

/* Only the pid of a child is an answer. */
RIG_TEST(test_junk) {
  uint32_t no_children[] = {0,          1,          (uint32_t)getpid(), (uint32_t)getppid(),       INT32_MAX,
                            0x80000000, UINT32_MAX, (uint32_t)-1 - 1,   (uint32_t) - (int)getpid()};
  for (size_t i = 0; i < sizeof(no_children) / sizeof(no_children[0]); i++) {
    struct asked a = ask((uint32_t)i);
    answer(&a, &no_children[i], sizeof(no_children[i]));
    assert_int_equal(expect_exec(false), i);
    forget(&a);
  }
  pid_t pid = fork();
  if (pid == 0) _exit(5);
  for (size_t len = 0; len < sizeof(pid); len++) {
    struct asked a = ask((uint32_t)len);
    if (len)
      answer(&a, &pid, len);
    else
      shutdown(a.fds[GUARD_SPAWN_FDS], SHUT_WR);
    assert_int_equal(expect_exec(false), len);
    forget(&a);
  }
  assert_int_equal(reap_one(pid, NULL), 5);
  struct asked a = ask(0);
  answer(&a, &pid, sizeof(pid)); /* a child no longer */
  assert_int_equal(expect_exec(false), 0);
  forget(&a);
}

/* The next worker has this rank, and its fork has answered. */
static void expect_forked(struct waiting_worker *w, pid_t *pid, uint32_t rank) {
  assert_int_equal(await_next(w, pid), TEMPLATE_FORKED);
  assert_int_equal(w->command.local_rank, rank);
  expect_nobody();
}

/* A fork waits for the letter, which only the guard sends. The pair ends when it has run. */
RIG_TEST(test_it_is_forked) {
  for (int twice = 0; twice < 2; twice++) {
    struct waiting_worker w;
    pid_t pid, reaped;
    char byte;
    struct asked a = ask(4);
    pid_t child = fork_worker(&a, twice);
    forget(&a);
    expect_forked(&w, &pid, 4);
    if (!twice) assert_int_equal(pid, child);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    assert_int_equal(recv(w.pair, &byte, 1, MSG_DONTWAIT), -1);
    assert_int_equal(send(w.pair, "g", 1, MSG_DONTWAIT | MSG_NOSIGNAL), 1);
    assert_int_equal(reap_one(-1, &reaped), EXIT_RAN);
    assert_int_equal(reaped, pid);
    assert_int_equal(recv(w.pair, &byte, 1, MSG_DONTWAIT), 0);
    close_worker(&w);
  }
}

/* The guard may have a reason not to start it. */
RIG_TEST(test_it_is_turned_away) {
  struct waiting_worker w;
  pid_t pid;
  struct asked a = ask(4);
  fork_worker(&a, true);
  forget(&a);
  expect_forked(&w, &pid, 4);
  close_worker(&w);
  assert_int_equal(reap_one(pid, NULL), EXIT_TURNED_AWAY);
}

/* Workers answer in any order. */
RIG_TEST(test_they_answer_out_of_order) {
  enum { N = 5 };
  static const uint32_t order[N] = {3, 0, 4, 2, 1};
  struct asked a[N];
  rig.t.state = TEMPLATE_FORKS;
  for (uint32_t rank = 0; rank < N; rank++) queue_worker(rank);
  expect_nobody();
  for (uint32_t rank = 0; rank < N; rank++) take_spawn(&a[rank], rank);
  for (int i = 0; i < N; i++) {
    struct waiting_worker w;
    pid_t pid, child = fork_worker(&a[order[i]], false);
    forget(&a[order[i]]);
    expect_forked(&w, &pid, order[i]);
    assert_int_equal(pid, child);
    close_worker(&w);
    assert_int_equal(reap_one(child, NULL), EXIT_TURNED_AWAY);
  }
}

/* Modules are left out one by one, and each time it begins again. Workers wait as long as it said at first. */
RIG_TEST(test_it_begins_again_while_they_wait) {
  const uint64_t by_ms = rig.now_ms + 5000;
  say_and_hear("B5");
  assert_int_equal(rig.t.by_ms, by_ms);
  queue_worker(3);
  for (int i = 0; i < 3; i++) {
    rig.now_ms += 1000;
    say_and_hear("Atorch is left out");
    say_and_hear("B60");
    assert_int_equal(guard_template_deadline(&rig.t), by_ms);
    expect_nobody();
  }
  rig.now_ms = by_ms;
  assert_int_equal(expect_exec(false), 3);
  say_and_hear("A"); /* nobody waits */
  say_and_hear("B60");
  assert_int_equal(rig.t.by_ms, rig.now_ms + 60000);
}

/* The worker is exec'd first, and its fork comes then. It must not run, too. */
RIG_TEST(test_it_comes_late) {
  enum { LATE, TIME_OVER, TEMPLATE_DEAD, STOPPED, CASES };
  for (int i = 0; i < 2 * CASES; i++) {
    pid_t child = 0;
    struct asked a = ask(4);
    bool answered = i >= CASES;
    if (answered) { /* it waits for its letter, and nobody has read its pid */
      child = fork_worker(&a, false);
      char byte;
      while (recv(rig.t.waiting[0].pair, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 1) usleep(100);
    }
    switch (i % CASES) {
    case LATE: expect_exec(true); break;
    case TIME_OVER:
      rig.now_ms += FORK_MS;
      if (!answered) expect_exec(false);
      break;
    case TEMPLATE_DEAD:
      guard_template_gone(&rig.t);
      if (!answered) expect_exec(false);
      break;
    case STOPPED: guard_template_drop(&rig.t); break;
    }
    struct waiting_worker w;
    pid_t pid;
    if (rig.t.n_waiting) { /* its pid is there: it is never too late for that */
      expect_forked(&w, &pid, 4);
      assert_int_equal(pid, child);
      close_worker(&w);
    }
    expect_nobody();
    if (!answered) child = fork_worker(&a, false);
    forget(&a);
    assert_int_equal(reap_one(child, NULL), EXIT_TURNED_AWAY);
    rig_close(state);
    rig_open(state);
  }
}

/* Workers do not wait for a template that is gone, and none is lost. */
RIG_TEST(test_it_dies_while_they_wait) {
  static const char *const last[] = {NULL, "Dso", "empty", "reaped"};
  for (size_t i = 0; i < 2 * sizeof(last) / sizeof(last[0]); i++) {
    const char *word = last[i / 2];
    struct asked a = {.fds = {-1, -1, -1, -1}};
    bool asked = i % 2;
    if (asked) a = ask(0);
    rig.t.state = TEMPLATE_WARMS;
    rig.t.by_ms = rig.now_ms + FIRST_WORD_MS;
    for (uint32_t rank = asked; rank < 3; rank++) queue_worker(rank);
    expect_nobody();
    if (word && *word == 'r')
      guard_template_gone(&rig.t);
    else if (word)
      say(word, *word == 'e' ? 0 : strlen(word));
    else {
      close(rig.far);
      rig.far = -1;
    }
    if (!word || *word != 'r') assert_int_equal(hear_all(), 1);
    assert_true(guard_template_deadline(&rig.t) <= rig.now_ms); /* the guard's poll must not sleep now */
    for (uint32_t rank = 0; rank < 3; rank++) assert_int_equal(expect_exec(false), rank);
    expect_nobody();
    if (asked) forget(&a);
    rig_close(state);
    rig_open(state);
  }
}

RIG_TEST(test_nobody_waits_any_more) {
  struct asked a = ask(0);
  rig.t.state = TEMPLATE_WARMS;
  queue_worker(1);
  for (uint32_t rank = 0; rank < 2; rank++) assert_int_equal(expect_exec(true), rank);
  forget(&a);
  a = ask(0);
  rig.t.state = TEMPLATE_WARMS;
  queue_worker(1);
  guard_template_drop(&rig.t);
  assert_int_equal(guard_template_deadline(&rig.t), UINT64_MAX);
  assert_int_equal(count_fds(), rig.fds + 2 + GUARD_SPAWN_FDS + 2); /* the template's, and what it was sent */
  expect_nobody();
  guard_template_drop(&rig.t);
  forget(&a);
}

/* A worker is exec'd if there is no descriptor for its pair, or no room in the template's socket. */
RIG_TEST(test_it_cannot_be_asked) {
  enum { N = 40 };
  struct rlimit before, none;
  rig.t.state = TEMPLATE_FORKS;
  queue_worker(0);
  queue_worker(1);
  assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
  none = before;
  none.rlim_cur = (rlim_t)dup(0); /* the lowest free number */
  close((int)none.rlim_cur);
  for (uint32_t rank = 0; rank < 2; rank++) {
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    struct waiting_worker w;
    pid_t pid;
    assert_int_equal(guard_template_next(&rig.t, false, &w, &pid), TEMPLATE_EXEC);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(w.command.local_rank, rank);
    assert_int_equal(w.pair, -1);
    close_worker(&w);
    none.rlim_cur = (rlim_t)dup(0);
    close((int)none.rlim_cur);
  }
  assert_int_equal(setsockopt(rig.t.sock, SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int)), 0);
  for (uint32_t rank = 0; rank < N; rank++) queue_worker(rank);
  struct waiting_worker w;
  pid_t pid;
  size_t sent = 0, left = 0;
  for (; guard_template_next(&rig.t, false, &w, &pid) == TEMPLATE_EXEC; left++) close_worker(&w);
  for (struct asked a; read_spawn(&a); sent++) forget(&a);
  assert_true(sent > 0 && left > 0);
  assert_int_equal(sent + left, N);
  for (size_t i = 0; i < sent; i++) expect_exec(false);
  expect_nobody();
}
