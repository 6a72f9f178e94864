/* SPDX-License-Identifier: Apache-2.0 */
/* The guard's side of a template that does anything, in any order. It says words and junk, answers with real children,
 * with junk or not at all, and dies. Time passes, and the guard stops the round.
 *
 * Each worker leaves the queue in one way. A worker that is exec'd or dropped has no fork that runs, though a fork may
 * answer before that and after. The children's exit codes tell: only those run that got the guard's 'g'. No descriptor
 * and no child is left. */

#include "tests/rig/template.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/rig/random_msg.h"
#include "tests/rig/unit.h"

enum { SEEDS = 2000, STEPS_MAX = 60, QUEUED_MAX = 6 };

enum fate { FATE_NOT_QUEUED, FATE_WAITS, FATE_FORKED, FATE_EXEC, FATE_DROPPED, FATES };

/* Counts over all sequences: a test in which nothing happens must not pass. */
static size_t fates[FATES], ran, turned_away;

static struct sequence {
  uint64_t seed, state;
  enum fate fate[QUEUED_MAX];
  uint32_t n; /* workers, by local rank */
  struct asked asked[QUEUED_MAX];
  size_t n_asked;
  pid_t told[QUEUED_MAX]; /* 'g' went to them */
  size_t n_told, children;
} q;

static uint32_t below(uint32_t n) {
  return (uint32_t)(random_next(&q.state) % n);
}

static bool once_in(uint32_t n) {
  return below(n) == 0;
}

#define check(holds)                                                                                                   \
  do {                                                                                                                 \
    if (!(holds)) fail_msg("seed %llu: " #holds, (unsigned long long)q.seed);                                          \
  } while (0)

/* The template. ---------------------------------------------------------------------------------------------------- */

static void say_something(void) {
  static const char *const words[] = {"L2",     "Achanged", "B0.5", "B3",  "B1e300", "Bnan",
                                      "Z junk", "\xff",     "B-1",  "Dso", ""};
  if (rig.far < 0) return;
  const char *word = once_in(2) ? "R1 torch" : words[below(sizeof(words) / sizeof(words[0]))];
  send(rig.far, word, strlen(word), MSG_NOSIGNAL);
}

static void read_some(void) {
  while (q.n_asked < QUEUED_MAX && read_spawn(&q.asked[q.n_asked])) q.n_asked++;
}

static void answer_one(void) {
  if (!q.n_asked) return;
  size_t i = below((uint32_t)q.n_asked);
  struct asked *a = &q.asked[i];
  uint32_t junk[] = {0, 1, UINT32_MAX, (uint32_t)getpid(), INT32_MAX, (uint32_t)random_next(&q.state) | 0x80000000};
  uint32_t way = below(8);
  if (way == 0) answer(a, &junk[below(6)], 1 + below(4));
  if (way > 1) fork_worker(a, way == 2); /* 1: the fork has died */
  q.children += way > 1;
  forget(a);
  *a = q.asked[--q.n_asked];
}

static void die(void) {
  if (rig.far >= 0) close(rig.far);
  rig.far = -1;
  while (q.n_asked && !once_in(3)) forget(&q.asked[--q.n_asked]); /* what it has forked may still hold the others */
}

/* The guard. ------------------------------------------------------------------------------------------------------- */

static void leave(uint32_t rank, enum fate fate) {
  check(rank < q.n && q.fate[rank] == FATE_WAITS);
  q.fate[rank] = fate;
  fates[fate]++;
}

static void queue_one(void) {
  if (q.n == QUEUED_MAX || !(rig.t.state != TEMPLATE_NONE)) return;
  queue_worker(q.n);
  q.fate[q.n++] = FATE_WAITS;
}

/* The guard calls next until nobody is due. A worker more than there are would be an endless loop. */
static void take_all(bool late) {
  struct waiting_worker w;
  enum template_next next;
  pid_t pid;
  size_t before = rig.t.n_waiting, left = 0;
  for (; (next = guard_template_next(&rig.t, late, &w, &pid)) != TEMPLATE_WAITS; left++) {
    check(left < before);
    leave(w.command.local_rank, next == TEMPLATE_FORKED ? FATE_FORKED : FATE_EXEC);
    check((next == TEMPLATE_FORKED) == (w.pair >= 0));
    if (next == TEMPLATE_FORKED) {
      check(pid > 0 && !late);
      if (!once_in(4) && send(w.pair, "g", 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) q.told[q.n_told++] = pid;
    }
    close_worker(&w);
  }
  check(rig.t.n_waiting == before - left);
  check(!late || rig.t.n_waiting == 0);
  /* A worker that is left waits for a word or an answer, and for a time that is to come. */
  uint64_t at = guard_template_deadline(&rig.t);
  check(rig.t.n_waiting ? at > rig.now_ms && at != UINT64_MAX && (rig.t.state != TEMPLATE_NONE) : at == UINT64_MAX);
}

static void drop(void) {
  guard_template_drop(&rig.t);
  for (uint32_t i = 0; i < q.n; i++)
    if (q.fate[i] == FATE_WAITS) leave(i, FATE_DROPPED);
}

/* Children end by themselves now: nobody holds the other end of their pairs. */
static void reap_all(void) {
  size_t told = 0;
  int status;
  alarm(20);
  for (pid_t pid; (pid = waitpid(-1, &status, 0)) > 0;) {
    bool got_it = false;
    for (size_t i = 0; i < q.n_told; i++) got_it |= q.told[i] == pid;
    check(WIFEXITED(status) && WEXITSTATUS(status) == (got_it ? EXIT_RAN : EXIT_TURNED_AWAY));
    told += got_it;
    ran += got_it;
    turned_away += !got_it;
  }
  alarm(0);
  check(errno == ECHILD && told == q.n_told);
}

/* Sleeps as the guard does, for a moment in which a child may answer. */
static void sleep_a_bit(void) {
  struct pollfd p[QUEUED_MAX];
  nfds_t n = 0;
  for (; n < rig.t.n_waiting; n++) p[n] = (struct pollfd){.fd = rig.t.waiting[n].pair, .events = POLLIN};
  poll(p, n, q.children ? 1 : 0);
}

static void pass_time(void) {
  static const uint32_t often_ms[] = {1, 10, 500}, seldom_ms[] = {FORK_MS - 1, FORK_MS, FIRST_WORD_MS, 600000};
  rig.now_ms += once_in(8) ? seldom_ms[below(4)] : often_ms[below(3)];
}

static void step(void) {
  switch (below(16)) {
  case 0: say_something(); break;
  case 1:
  case 2: hear_all(); break;
  case 3:
  case 4:
  case 5: queue_one(); break;
  case 6:
  case 7: read_some(); break;
  case 8:
  case 9: answer_one(); break;
  case 10: sleep_a_bit(); break;
  case 11:
  case 12:
  case 13: take_all(once_in(40)); break;
  case 14: pass_time(); break;
  default:
    if (once_in(8))
      die();
    else if (once_in(8))
      drop();
    else if (once_in(20))
      guard_template_gone(&rig.t); /* it was reaped */
    break;
  }
}

static void run_sequence(uint64_t seed) {
  memset(&q, 0, sizeof(q));
  q.seed = q.state = seed;
  rig_open(NULL);
  say_something();
  hear_all();
  for (uint32_t left = 1 + below(STEPS_MAX); left > 0; left--) step();
  if (once_in(2)) sleep_a_bit();
  if (once_in(2)) {
    die();
    hear_all();
    while (q.n_asked) answer_one();
    if (once_in(2)) guard_template_gone(&rig.t);
  }
  take_all(once_in(2));
  drop();
  while (q.n_asked) answer_one();
  for (uint32_t i = 0; i < q.n; i++) check(q.fate[i] > FATE_WAITS);
  for (struct asked a; read_spawn(&a);) forget(&a);
  reap_all();
  rig_close(NULL);
}

UNIT_TEST(test_sequences) {
  for (uint64_t seed = 1; seed <= SEEDS; seed++) run_sequence(seed);
  print_message("%d sequences: %zu forked, %zu exec'd, %zu dropped; of the children %zu ran, %zu were turned away\n",
                SEEDS, fates[FATE_FORKED], fates[FATE_EXEC], fates[FATE_DROPPED], ran, turned_away);
  assert_true(fates[FATE_FORKED] > SEEDS / 20 && fates[FATE_EXEC] > SEEDS / 20 && fates[FATE_DROPPED] > SEEDS / 20);
  assert_true(ran > SEEDS / 20 && turned_away > SEEDS / 20);
}

int main(int argc, char **argv) {
  if (argc == 2) { /* one sequence, by its seed */
    run_sequence(strtoull(argv[1], NULL, 10));
    return 0;
  }
  return unit_run(NULL, NULL);
}
