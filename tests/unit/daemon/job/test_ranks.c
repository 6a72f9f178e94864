/* SPDX-License-Identifier: Apache-2.0 */
/* core: who is which rank, over rounds, and under which address. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

enum { N = 4 };

static void open_for(struct rig *r, struct node *n, int min, int max) {
  rig_open(r, 7);
  r->settings.min_nodes = min;
  r->settings.max_nodes = max;
  nodes_init(r, n, N);
}

static void join_all(struct rig *r, struct node *n) {
  static const int order[N] = {2, 0, 3, 1}; /* arrival decides nothing */
  for (int i = 0; i < N; i++) node_join(r, &n[order[i]]);
  assert_string_equal(rig_state(r, "job"), "starting");
}

static void start_all(struct rig *r, struct node *n, size_t count) {
  for (size_t i = 0; i < count; i++) node_started(r, &n[i]);
}

static void assert_ranks(const struct node *n, const int *want) {
  for (int i = 0; i < N; i++) assert_int_equal(n[i].node_rank, want[i]);
}

RIG_TEST(test_numeric_address_order) {
  open_for(r, n, N, N);
  static const char *const addrs[N] = {"10.0.0.10", "10.0.0.9", "9.255.0.1", "fd00::1"};
  for (int i = 0; i < N; i++) snprintf(n[i].peer_addr, sizeof n[i].peer_addr, "%s", addrs[i]);
  join_all(r, n);
  assert_ranks(n, (const int[]){2, 1, 0, 3});
}

RIG_TEST(test_order_key_before_address) {
  open_for(r, n, N, N);
  n[3].order_key = 5;
  n[1].order_key = 11; /* numbers, not text */
  join_all(r, n);
  assert_ranks(n, (const int[]){2, 1, 3, 0});
}

/* As under torchrun: ROLE_RANK counts on over the nodes of the role, in the order of their node ranks. */
RIG_TEST(test_ranks_within_a_role) {
  static const char *const roles[N] = {"trainer", "ps", "", "trainer"};
  static const int64_t workers[N] = {2, 1, 3, 4}, base[N] = {0, 0, 0, 2}, size[N] = {6, 1, 3, 6};
  open_for(r, n, N, N);
  for (int i = 0; i < N; i++) {
    n[i].order_key = i;
    n[i].role = roles[i];
    n[i].workers = workers[i];
  }
  join_all(r, n);
  for (int again = 0; again < 2; again++) {
    for (int i = 0; i < N; i++) {
      assert_int_equal(n[i].role_rank_base, base[i]);
      assert_int_equal(n[i].role_world_size, size[i]);
      n[i].role_rank_base = n[i].role_world_size = -1;
    }
    if (again) break;
    start_all(r, n, N);
    node_exited(r, &n[0], 1, 0);
    nodes_stopped(r, n, N);
  }
}

RIG_TEST(test_want_rank_before_all) {
  open_for(r, n, N, N);
  n[0].want_rank = 3;
  n[3].want_rank = 1;
  n[2].order_key = 1;
  join_all(r, n);
  assert_ranks(n, (const int[]){3, 2, 0, 1});
}

RIG_TEST(test_agent_id_breaks_ties) {
  open_for(r, n, N, N);
  for (int i = 0; i < N; i++) snprintf(n[i].peer_addr, sizeof n[i].peer_addr, "10.0.0.1"); /* all on one host */
  join_all(r, n);
  assert_ranks(n, (const int[]){0, 1, 2, 3});
}

RIG_TEST(test_survivors_keep_their_ranks) {
  struct node fresh;
  open_for(r, n, 2, N);
  join_all(r, n);
  start_all(r, n, N);
  /* One is lost: the others that fit keep theirs, the one beyond the new size fills the hole. */
  node_death_report(r, &n[1]);
  n[1].conn = 0;
  for (int i = 0; i < N; i++)
    if (i != 1) node_stopped(r, &n[i]);
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].nodes, 3);
  assert_int_equal(n[0].node_rank, 0);
  assert_int_equal(n[2].node_rank, 2);
  assert_int_equal(n[3].node_rank, 1);
  for (int i = 0; i < N; i++)
    if (i != 1) node_started(r, &n[i]);
  /* A newcomer, whose address comes before all others, takes what is free. */
  node_init(r, &fresh, 100);
  snprintf(fresh.peer_addr, sizeof fresh.peer_addr, "1.1.1.1");
  node_join(r, &fresh);
  node_exited(r, &n[0], 1, 0);
  for (int i = 0; i < N; i++)
    if (i != 1) node_stopped(r, &n[i]);
  assert_int_equal(n[0].round, 3);
  assert_int_equal(n[0].node_rank, 0);
  assert_int_equal(n[3].node_rank, 1);
  assert_int_equal(n[2].node_rank, 2);
  assert_int_equal(fresh.node_rank, 3);
}

RIG_TEST(test_a_newcomer_fills_the_hole) {
  struct node fresh;
  open_for(r, n, N, N);
  join_all(r, n);
  start_all(r, n, N);
  node_death_report(r, &n[2]);
  n[2].conn = 0;
  for (int i = 0; i < N; i++)
    if (i != 2) node_stopped(r, &n[i]);
  assert_string_equal(rig_state(r, "job"), "forming");
  node_init(r, &fresh, 100);
  node_join(r, &fresh);
  assert_int_equal(fresh.node_rank, 2);
  for (int i = 0; i < N; i++)
    if (i != 2) assert_int_equal(n[i].node_rank, i);
}

/* A node that fenced itself, or was told STALE, is the same node still. */
RIG_TEST(test_a_node_that_gave_up_the_round_keeps_its_rank) {
  open_for(r, n, N, N);
  join_all(r, n);
  start_all(r, n, N);
  node_join(r, &n[0]); /* a new connection, in no round: it killed its workers */
  assert_string_equal(rig_state(r, "job"), "stopping");
  for (int i = 1; i < N; i++) node_stopped(r, &n[i]);
  assert_int_equal(n[0].round, 2);
  for (int i = 0; i < N; i++) assert_int_equal(n[i].node_rank, i);
}

RIG_TEST(test_asked_for_beats_kept) {
  struct node fresh;
  open_for(r, n, N, N);
  join_all(r, n);
  start_all(r, n, N);
  node_init(r, &fresh, 100);
  fresh.want_rank = 0;
  node_join(r, &fresh); /* a spare */
  node_death_report(r, &n[3]);
  n[3].conn = 0;
  nodes_stopped(r, n, 3);
  assert_int_equal(fresh.node_rank, 0);
  assert_int_equal(n[1].node_rank, 1);
  assert_int_equal(n[2].node_rank, 2);
  assert_int_equal(n[0].node_rank, 3);
}

RIG_TEST(test_spares_come_in_the_order_of_joining) {
  struct node spare[3];
  open_for(r, n, N, N);
  join_all(r, n);
  start_all(r, n, N);
  for (int i = 0; i < 3; i++) {
    node_init(r, &spare[i], 50 - i); /* addresses say the opposite */
    node_join(r, &spare[i]);
  }
  node_death_report(r, &n[0]);
  n[0].conn = 0;
  for (int i = 1; i < N; i++) node_stopped(r, &n[i]);
  assert_int_equal(spare[0].node_rank, 0);
  assert_int_equal(spare[1].round, 0);
  assert_int_equal(spare[2].round, 0);
}

RIG_TEST(test_uneven_workers) {
  open_for(r, n, N, N);
  static const int64_t workers[N] = {3, 1, 8, 2};
  int64_t base = 0;
  for (int i = 0; i < N; i++) n[i].workers = workers[i];
  join_all(r, n);
  for (int i = 0; i < N; i++) {
    assert_int_equal(n[i].node_rank, i);
    assert_int_equal(n[i].rank_base, base);
    assert_int_equal(n[i].world_size, 14);
    base += workers[i];
  }
}

/* Addresses. ------------------------------------------------------------------------------------------------------- */

RIG_TEST(test_all_know_the_head) {
  open_for(r, n, N, N);
  n[2].want_rank = 0;
  join_all(r, n);
  for (int i = 0; i < N; i++) {
    assert_string_equal(n[i].head_addr, n[2].peer_addr);
    assert_string_equal(n[i].node_addr, n[i].peer_addr);
    assert_string_equal(rig_last(r, n[i].conn, MSG_START)->start.head_host, "n2");
  }
}

RIG_TEST(test_loopback_becomes_the_daemons_address) {
  static const char *const locals[] = {"127.0.0.1", "::1", "127.0.1.1", "169.254.3.4", "fe80::1%eth0"};
  for (size_t k = 0; k < sizeof locals / sizeof locals[0]; k++) {
    open_for(r, n, N, N);
    snprintf(n[0].peer_addr, sizeof n[0].peer_addr, "%s", locals[k]);
    snprintf(n[0].local_addr, sizeof n[0].local_addr, "%s", locals[k]);
    n[0].want_rank = 0;
    join_all(r, n);
    assert_string_equal(n[0].node_addr, "10.0.255.1"); /* as the others reached the daemon */
    assert_string_equal(n[3].head_addr, "10.0.255.1");
    assert_string_equal(n[1].node_addr, "10.0.0.2");
  }
}

RIG_TEST(test_loopback_stays_where_all_are_local) {
  open_for(r, n, N, N);
  for (int i = 0; i < N; i++) {
    snprintf(n[i].peer_addr, sizeof n[i].peer_addr, "127.0.0.1");
    snprintf(n[i].local_addr, sizeof n[i].local_addr, "127.0.0.1");
  }
  join_all(r, n);
  for (int i = 0; i < N; i++) assert_string_equal(n[i].node_addr, "127.0.0.1");
}

RIG_TEST(test_local_addr_has_the_last_word) {
  struct msg m;
  open_for(r, n, N, N);
  for (int i = 0; i < N; i++) {
    if (i) {
      node_join(r, &n[i]);
      continue;
    }
    n[i].conn = ++r->next_conn;
    node_hello(&n[i], &m);
    m.hello.local_addr = "192.168.9.1";
    node_say(r, &n[i], &m);
  }
  assert_string_equal(n[0].node_addr, "192.168.9.1");
}
