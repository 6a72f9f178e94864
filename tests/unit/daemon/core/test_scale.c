/* SPDX-License-Identifier: Apache-2.0 */
/* core: ten thousand nodes. Whatever they do together costs the daemon O(nodes), not its square.
 *
 * Each phase is measured in processor time of this process, so that a busy machine does not fail the test, and the
 * limit is far from what is needed: a phase that has become quadratic takes ten times as long. core_deadline is asked
 * after every event, as the daemon does it. */

#include "tests/rig/core.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "common/mem.h"
#include "daemon/core/metrics.h"
#include "tests/rig/fleet.h"
#include "tests/rig/unit.h"

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { NODES = 10000 };
static const double limit_s = SANITIZED ? 6.0 : 1.2;

static struct node *nodes;
static struct rig rig;
static clock_t phase_began;

static void begin(void) {
  phase_began = clock();
}

static void done(const char *phase) {
  double s = (double)(clock() - phase_began) / CLOCKS_PER_SEC;
  printf("%-34s %6.3f s\n", phase, s);
  assert_true(s < limit_s);
}

static void expect(const char *state) {
  assert_string_equal(rig_state(&rig, "job"), state);
}

/* Blind rigs do not tell nodes what they were sent. */
static void learn(int64_t round) {
  const struct msg *w = rig_last(&rig, nodes[0].conn, MSG_WELCOME);
  for (int i = 0; i < NODES; i++) {
    if (w) memcpy(nodes[i].incarnation, w->welcome.incarnation, strlen(w->welcome.incarnation) + 1);
    nodes[i].round = round;
    nodes[i].node_rank = i;
    nodes[i].nodes = NODES;
    nodes[i].n_reports = 0;
  }
}

static void all(void (*what)(struct rig *, struct node *)) {
  for (int i = 0; i < NODES; i++) {
    what(&rig, &nodes[i]);
    assert_true(core_deadline(rig.core) > 0);
  }
}

static void back_running(struct rig *r, struct node *n) {
  node_back(r, n, PHASE_RUNNING);
}

static int open_all(void **state) {
  nodes = xcalloc(NODES, sizeof *nodes);
  rig_open(&rig, 1);
  rig.settings.min_nodes = NODES - 1;
  rig.settings.max_nodes = NODES;
  for (int i = 0; i < NODES; i++) {
    rig.n_nodes = 0;
    node_init(&rig, &nodes[i], i);
    nodes[i].want_rank = i % 2 ? -1 : i;
    snprintf(nodes[i].peer_addr, sizeof nodes[i].peer_addr, "10.0.%d.%d", i / 250, i % 250);
  }
  rig.n_nodes = 0;
  return 0;
}

static int close_all(void **state) {
  rig_close(&rig);
  free(nodes);
  return 0;
}

UNIT_TEST(test_join_and_seal) {
  begin();
  node_join(&rig, &nodes[0]);
  rig.blind = true;
  for (int i = 1; i < NODES; i++) {
    node_join(&rig, &nodes[i]);
    assert_true(core_deadline(rig.core) > 0);
    if (i % 100 == 0) rig_run(&rig, 20);
  }
  done("join, seal");
  expect("starting");
  learn(1);
}

UNIT_TEST(test_start) {
  begin();
  all(node_started);
  done("started");
  expect("running");
}

UNIT_TEST(test_heartbeats) {
  begin();
  for (int i = 0; i < 6; i++) {
    all(node_heartbeat);
    rig_run(&rig, 800);
  }
  done("heartbeats of a lease");
  expect("running");
}

/* 8 GPUs and 8 ports in each; one node is odd. Their facts take memory as long as they are here, and a look at all of them
 * once they have come. */
UNIT_TEST(test_facts) {
  static struct fleet_room room;
  struct fleet_profile p = fleet_profile_usual();
  struct msg m;
  msg_init(&m, MSG_FACTS);
  m.facts.facts = room.v;
  size_t before = mallinfo2().uordblks;
  begin();
  for (int i = 0; i < NODES; i++) {
    fleet_fill(&room, &p);
    if (i == NODES / 3)
      *fleet_fact_in(&room, "pcie_width", "gpu6") =
          (struct fact){.name = "pcie_width", .at = "gpu6", .value = 8, .text = ""};
    fleet_fact_in(&room, "tmp_free_mib", "")->value = 20000 + i;
    m.facts.n_facts = room.n;
    node_say(&rig, &nodes[i], &m);
    assert_true(core_deadline(rig.core) > 0);
  }
  done("facts of all");
  printf("%-34s %6.1f KiB of each node\n", "", (double)(mallinfo2().uordblks - before) / 1024 / NODES);
  double longest_s = 0;
  for (int ms = 0; ms < 12000; ms += 100) {
    if (ms % 2000 == 0) all(node_heartbeat);
    clock_t began = clock();
    rig_run(&rig, 100);
    double s = (double)(clock() - began) / CLOCKS_PER_SEC;
    if (s > longest_s) longest_s = s;
  }
  printf("%-34s %6.3f s\n", "a look at all facts, at most", longest_s);
  assert_true(longest_s < limit_s);
  rig_control(&rig, "nodes", "job", false);
  assert_said(&rig, "! node n3333: PCIe width of gpu6 is x8; x16 on 9999 of 9999 like nodes (suspect, for ");
  expect("running");
}

UNIT_TEST(test_reconnect) {
  begin();
  all(node_drop);
  all(back_running);
  done("all connections break");
  expect("running");
}

/* A switch starts anew: all are away for a while, a few each millisecond. */
UNIT_TEST(test_reconnect_in_turn) {
  enum { EACH_MS = 5, AWAY_MS = 60 };
  begin();
  for (int i = 0; i < NODES + AWAY_MS * EACH_MS; i++) {
    if (i < NODES) node_drop(&rig, &nodes[i]);
    if (i >= AWAY_MS * EACH_MS) back_running(&rig, &nodes[i - AWAY_MS * EACH_MS]);
    if (i % EACH_MS == 0) rig_run(&rig, 1);
    if (i % 1000 == 0) all(node_heartbeat);
  }
  done("connections break in turn");
  expect("running");
}

/* PROGRESS of all nodes at one moment. */
static void all_progress(int64_t step, int64_t resumed) {
  for (int i = 0; i < NODES; i++) {
    struct msg m;
    msg_init(&m, MSG_PROGRESS);
    m.progress.incarnation = nodes[i].incarnation;
    m.progress.round = nodes[i].round;
    m.progress.step = step;
    m.progress.of = step < 0 ? 0 : 1000;
    m.progress.loss = 0.5;
    m.progress.samples_per_second = 10;
    m.progress.resumed = resumed;
    node_say(&rig, &nodes[i], &m);
    assert_true(core_deadline(rig.core) > 0);
  }
}

/* Where they resumed comes before the first step of a node, behind that of another, or never. */
UNIT_TEST(test_progress) {
  begin();
  all_progress(-1, 5);
  done("progress: where they resumed");
  begin();
  all_progress(6, -1);
  done("progress: the first step");
  begin();
  all_progress(7, 5);
  done("progress: where they resumed, late");
  begin();
  for (int i = 0; i < 4; i++) {
    rig_run(&rig, 500);
    all_progress(8 + i, -1);
  }
  done("progress of two seconds");
  begin();
  for (int i = 0; i < 4; i++) {
    rig_run(&rig, 500);
    all_progress(12 + i, 5);
  }
  done("progress of two seconds, resumed");
  expect("running");
}

UNIT_TEST(test_fail_stop_seal) {
  begin();
  node_exited(&rig, &nodes[17], 1, 0);
  done("one fails, all are told");
  begin();
  all(node_stopped);
  done("stopped, settled, sealed");
  expect("starting");
  learn(2);
  all(node_started);
}

UNIT_TEST(test_restart) {
  rig_restart(&rig, false);
  rig.blind = true;
  begin();
  all(back_running);
  done("a new daemon, all come back");
  expect("running");
  begin();
  rig_control(&rig, "status", "job", false);
  rig_control(&rig, "status", "job", true);
  done("status, as text and JSON");
}

UNIT_TEST(test_all_are_lost) {
  rig_run(&rig, JOB_RECONNECT_MAX_MS); /* the daemon has just come back: who goes now is given that time */
  node_heartbeat(&rig, &nodes[0]);     /* else it is the daemon that is taken to be cut off */
  begin();
  for (int i = 1; i < NODES; i++) node_drop(&rig, &nodes[i]);
  rig_run(&rig, 200);
  done("all but one are lost");
  expect("stopping");
  node_stopped(&rig, &nodes[0]);
  expect("forming");
  for (int i = 1; i < NODES; i++) nodes[i].node_rank = -1;
  begin();
  for (int i = 1; i < NODES; i++) { /* each is back, and its hold is over */
    node_join(&rig, &nodes[i]);
    assert_true(core_deadline(rig.core) > 0);
  }
  done("and come back in no round");
  rig_run(&rig, 30);
  expect("starting");
  learn(4); /* without a state file a number is left out */
}

UNIT_TEST(test_finish) {
  rig_control(&rig, "status", "job", true);
  const char *round = strstr(buf_text(&rig.said), "\"round\":");
  const char *life = strstr(buf_text(&rig.said), "\"incarnation\":\"");
  assert_non_null(round);
  assert_non_null(life);
  learn(atoll(round + 8));
  life += strlen("\"incarnation\":\"");
  for (int i = 0; i < NODES; i++)
    snprintf(nodes[i].incarnation, sizeof nodes[i].incarnation, "%.*s", (int)strcspn(life, "\""), life);
  begin();
  all(node_finished);
  done("finished, END to all");
  expect("ending");
  begin();
  all(node_end_ack);
  done("acknowledged");
  expect("ended");
  begin();
  all(node_drop);
  rig_run(&rig, JOB_END_KEEP_MS);
  done("gone, forgotten");
  expect("");
}

/* Half of a job runs, the other half comes, and goes again one by one. */
RIG_TEST(test_newcomers) {
  rig_open(r, 1);
  r->settings.min_nodes = 2;
  r->settings.max_nodes = NODES;
  r->settings.last_call_ms = 1000;
  struct node *all = xcalloc(NODES, sizeof *all);
  for (int i = 0; i < NODES; i++) {
    r->n_nodes = 0;
    node_init(r, &all[i], i);
  }
  r->n_nodes = 0;
  node_join(r, &all[0]);
  r->blind = true;
  for (int i = 1; i < NODES / 2; i++) node_join(r, &all[i]);
  rig_run(r, 1000);
  const struct msg *w = rig_last(r, all[0].conn, MSG_WELCOME);
  for (int i = 0; i < NODES / 2; i++) {
    memcpy(all[i].incarnation, w->welcome.incarnation, strlen(w->welcome.incarnation) + 1);
    all[i].round = 1;
    all[i].n_reports = 0;
    node_started(r, &all[i]);
  }
  assert_string_equal(rig_state(r, "job"), "running");
  begin();
  for (int i = NODES / 2; i < NODES; i++) node_join(r, &all[i]);
  done("newcomers join a running round");
  begin();
  for (int i = NODES / 2; i < NODES; i++) node_bye(r, &all[i]);
  done("and leave again");
  assert_string_equal(rig_state(r, "job"), "running");
  free(all);
}

/* Answers over HTTP. ----------------------------------------------------------------------------------------------- */

struct pieces {
  clock_t began;
  double longest_s, total_s;
  int n;
};

static void begin_piece(struct pieces *p) {
  p->began = clock();
}

static void end_piece(struct pieces *p) {
  double s = (double)(clock() - p->began) / CLOCKS_PER_SEC;
  p->total_s += s;
  p->n++;
  if (s > p->longest_s) p->longest_s = s;
}

/* limit_ms: of all together. The limit of one is far from what a piece takes, as the limits above. */
static void show_pieces(const char *what, const struct pieces *p, double limit_ms) {
  printf("%-34s %6.1f ms, in %d pieces, the longest %.2f ms\n", what, 1e3 * p->total_s, p->n, 1e3 * p->longest_s);
  assert_true(SANITIZED || 1e3 * p->longest_s < 10);
  assert_true(SANITIZED || 1e3 * p->total_s < limit_ms);
}

static void answer(struct rig *r, const char *of) {
  static const struct process_facts process = {.cpu_s = 1};
  struct pieces metrics = {.n = 0}, status = {.n = 0};
  struct buf text = BUF_INIT;
  char what[64];
  begin_piece(&metrics);
  metrics_put(r->core, 0, &process, r->now_ms, &text);
  end_piece(&metrics);
  snprintf(what, sizeof what, "metrics of %s", of);
  show_pieces(what, &metrics, 50);
  buf_clear(&text);
  struct core_status *s = core_status_begin(r->core, 0, "", -1);
  for (bool more = true; more; end_piece(&status)) {
    begin_piece(&status);
    more = core_status_more(s, r->core, r->now_ms, r->wall_ms, CORE_STATUS_BUDGET, &text) == CORE_STATUS_MORE;
  }
  core_status_end(s, r->core);
  snprintf(what, sizeof what, "status of %s", of);
  show_pieces(what, &status, 1000);
  buf_finish(&text);
}

UNIT_TEST(test_answers) {
  answer(&rig, "the job");
}

RIG_TEST(test_answers_of_many_jobs) {
  enum { JOBS = 1000 };
  struct node *all = xcalloc(2 * JOBS, sizeof *all);
  char(*names)[16] = xcalloc(JOBS, sizeof *names);
  rig_open(r, 1);
  r->blind = true;
  for (int i = 0; i < 2 * JOBS; i++) {
    r->n_nodes = 0;
    snprintf(names[i / 2], sizeof names[0], "job-%05d", i / 2);
    node_init(r, &all[i], i);
    all[i].job = names[i / 2];
    node_join(r, &all[i]);
  }
  answer(r, "1,000 jobs");
  free(names);
  free(all);
}

/* Takeovers. ------------------------------------------------------------------------------------------------------- */

/* What START would have told them. Blind rigs tell nothing. */
static void learn_vote(struct node *n, const char *incarnation, int64_t round, int64_t count, const char *daemon) {
  snprintf(n->incarnation, sizeof n->incarnation, "%s", incarnation);
  snprintf(n->voted_incarnation, sizeof n->voted_incarnation, "%s", incarnation);
  snprintf(n->follows, sizeof n->follows, "%s", daemon);
  n->round = n->voted_round = round;
  n->nodes = n->seal.nodes = count;
  n->heard_ms = n->rig->now_ms;
  n->n_reports = 0;
}

/* A lease of heartbeats; each says that the last one was answered. */
static void beat(struct rig *r, struct node *n, int count) {
  for (int k = 0; k < 8; k++) {
    for (int i = 0; i < count; i++) {
      n[i].answered = n[i].beat;
      node_heartbeat(r, &n[i]);
      assert_true(core_deadline(r->core) > 0);
      if (i % 100 == 0) rig_run(r, 1);
    }
    rig_run(r, (uint64_t)r->settings.lease_ms / 8 - NODES / 100);
  }
}

static void come(struct rig *r, struct node *n, int first, int count, enum phase phase) {
  for (int i = first; i < count; i++) {
    node_back(r, &n[i], phase);
    assert_true(core_deadline(r->core) > 0);
    n[i].answered = n[i].beat;
    node_heartbeat(r, &n[i]);
  }
}

/* The daemon alone is lost, and all come to the next one. Then that one is lost with its machine, and a tenth of the
 * nodes: the others form a round. */
RIG_TEST(test_takeovers) {
  static const char *const ids[] = {"000000000000000000000000000000d0", "000000000000000000000000000000d1"};
  enum { LOST = NODES / 10 };
  rig_open_successors(r, NODES / 2, NODES);
  struct node *all = xcalloc(NODES, sizeof *all);
  for (int i = 0; i < NODES; i++) {
    r->n_nodes = 0;
    node_init(r, &all[i], i);
  }
  r->n_nodes = 0;
  node_join(r, &all[0]);
  const struct msg *w = rig_last(r, all[0].conn, MSG_WELCOME);
  char incarnation[INCARNATION_MAX + 1];
  snprintf(incarnation, sizeof incarnation, "%s", w->welcome.incarnation);
  r->blind = true;
  begin();
  for (int i = 1; i < NODES; i++) node_join(r, &all[i]);
  done("join and seal, with successors");
  for (int i = 0; i < NODES; i++) {
    learn_vote(&all[i], incarnation, 1, NODES, ids[0]);
    all[i].node_rank = i;
    all[i].seal.tie_breaker = i == 0;
    node_started(r, &all[i]);
  }
  assert_string_equal(rig_state(r, "job"), "running");
  begin();
  beat(r, all, NODES);
  done("heartbeats of a lease, with votes");

  rig_use(r, 1);
  begin();
  come(r, all, 0, NODES, PHASE_RUNNING);
  done("all come to the next daemon");
  assert_string_equal(rig_state(r, "job"), "running");
  begin();
  beat(r, all, NODES);
  done("and follow it");

  for (int i = 0; i < NODES; i++) learn_vote(&all[i], incarnation, 1, NODES, ids[1]);
  rig_run(r, (uint64_t)r->settings.lease_ms);
  rig_use(r, 2);
  begin();
  come(r, all, LOST, NODES, PHASE_STOPPED);
  done("all but a tenth come to a third");
  begin();
  rig_run(r, 1999);
  done("the tenth is waited for");
  assert_string_equal(rig_state(r, "job"), "recovering");
  begin();
  rig_run(r, 1);
  done("judged, settled, sealed");
  assert_string_equal(rig_state(r, "job"), "starting");
  begin();
  for (int i = LOST; i < NODES; i++) node_heartbeat(r, &all[i]);
  done("heartbeats before it is firm");
  free(all);
}

int main(void) {
  return unit_run(open_all, close_all);
}
