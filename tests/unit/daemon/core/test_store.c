/* SPDX-License-Identifier: Apache-2.0 */
/* core: where the round's store is, and who may reach it. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"
#include "tests/rig/unit.h"

/* The lines of START's raw part, as one text; "" where it has none. */
static const char *let_in(const struct rig *r, const struct node *n) {
  static char text[4096];
  const struct msg *m = rig_last(r, n->conn, MSG_START);
  assert_non_null(m);
  assert_true(m->raw_len < sizeof text);
  if (m->raw_len) memcpy(text, m->raw, m->raw_len);
  text[m->raw_len] = '\0';
  return text;
}

RIG_TEST(test_start_names_the_port_of_node_0) {
  rig_open_joined(r, n, 2);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(n[i].head_port, 40000);
    assert_string_equal(n[i].head_addr, "10.0.0.1");
  }
}

RIG_TEST(test_a_report_renews_the_port) {
  rig_open_joined(r, n, 2);
  n[0].store_port = 41000;
  nodes_started(r, n, 2);
  rig_next_round(r, n, 2);
  assert_int_equal(n[0].head_port, 41000);
  assert_int_equal(n[1].head_port, 41000);
}

RIG_TEST(test_the_report_that_settles_the_round_counts_already) {
  rig_open_running(r, n, 2);
  node_exited(r, &n[1], 1, 0);
  node_stopped(r, &n[1]);
  n[0].store_port = 42000;
  node_stopped(r, &n[0]); /* the next round is sealed inside of it */
  assert_int_equal(n[1].round, 2);
  assert_int_equal(n[0].head_port, 42000);
  assert_int_equal(n[1].head_port, 42000);
}

RIG_TEST(test_a_hello_renews_the_port) {
  rig_open(r, 1);
  nodes_init(r, n, 2);
  node_join(r, &n[0]);
  n[0].store_port = 0; /* on the same connection: it has lost its socket, */
  node_hello_again(r, &n[0]);
  n[0].store_port = 43000; /* and on another it has one again */
  nodes_join(r, n, 2);
  assert_int_equal(n[1].head_port, 43000);
}

RIG_TEST(test_no_port_is_told_as_none) {
  rig_open(r, 1);
  nodes_init(r, n, 2);
  n[0].store_port = 0;
  nodes_join(r, n, 2);
  assert_int_equal(n[0].head_port, 0);
  assert_int_equal(n[1].head_port, 0);
}

/* The head never had START, and came back from another daemon with another port: whoever has it waits at the wrong
 * one. */
RIG_TEST(test_a_head_that_has_moved_its_store_voids_the_round) {
  rig_open_joined(r, n, 2);
  node_started(r, &n[1]);
  node_drop(r, &n[0]);
  n[0].round = n[0].head_port = 0;
  n[0].node_rank = -1;
  n[0].store_port = 45000;
  node_join(r, &n[0]);
  assert_int_not_equal(n[0].head_port, 40000);
  node_stopped(r, &n[1]);
  assert_int_equal(n[1].round, 2);
  assert_int_equal(n[1].head_port, 45000);
  assert_int_equal(n[0].head_port, 45000);
}

/* A HELLO of the head that brings its new port crosses START on the same connection. The head reads START all the
 * same, so the round stands: it fails or runs as the head reports. A daemon that took the head for lost sent START of
 * the next round, which the head, stopping this one, did not read. */
RIG_TEST(test_a_new_port_that_crosses_start) {
  rig_open(r, 1);
  nodes_init(r, n, 2);
  n[0].store_port = 0;
  node_join(r, &n[0]);
  struct node before = n[0];
  before.store_port = 46000;
  struct msg m;
  node_hello(&before, &m); /* of before START */
  node_join(r, &n[1]);
  assert_int_equal(n[0].round, 1);
  assert_int_equal(n[0].head_port, 0);
  rig_forget(r);
  node_say(r, &n[0], &m);
  assert_null(strstr(buf_text(&r->log), "stopping")); /* it is not taken for lost */
  n[0].store_port = 46000;
  node_exited(r, &n[0], EXIT_CODE_SYSTEM, 0);
  nodes_stopped(r, n, 2);
  assert_int_equal(n[0].round, 2);
  assert_int_equal(n[0].head_port, 46000);
}

/* The head has had START, and has the next round's port ready by now: who missed START must hear of this round's. */
RIG_TEST(test_start_again_names_the_port_of_the_sealing) {
  rig_open_joined(r, n, 2);
  n[0].store_port = 44000;
  node_started(r, &n[0]);
  node_drop(r, &n[1]);
  n[1].round = n[1].head_port = 0;
  n[1].node_rank = -1;
  rig_forget(r);
  node_join(r, &n[1]);
  assert_int_equal(n[1].round, 1);
  assert_int_equal(n[1].head_port, 40000);
  assert_string_equal(let_in(r, &n[1]), "");
}

/* Another node is the head of the next round: its port, and its alone, counts. */
RIG_TEST(test_a_new_head_serves_at_its_own_port) {
  rig_open_running(r, n, 2);
  node_init(r, &n[2], 2);
  node_join(r, &n[2]);
  node_bye(r, &n[0]);
  node_stopped(r, &n[1]);
  assert_int_equal(n[1].round, 2);
  const struct node *head = n[1].node_rank == 0 ? &n[1] : &n[2];
  for (int i = 1; i < 3; i++) {
    assert_int_equal(n[i].head_port, head->store_port);
    assert_string_equal(n[i].head_addr, head->peer_addr);
  }
}

RIG_TEST(test_only_node_0_is_told_all_addresses) {
  rig_open(r, 1);
  nodes_init(r, n, 2);
  n[0].addrs = "10.0.0.1 10.9.0.1";
  n[1].addrs = " 10.9.0.2  fd00::2 ::ffff:10.0.0.2 10.9.0.2 ";
  nodes_join(r, n, 2);
  assert_string_equal(let_in(r, &n[0]), "10.0.0.1\n10.0.0.2\n10.9.0.1\n10.9.0.2\nfd00::2\n");
  assert_string_equal(let_in(r, &n[1]), "");
}

/* What a node told before is over when it says HELLO again; a spare's addresses are nobody's business. */
RIG_TEST(test_addresses_are_the_latest_of_the_rounds_nodes) {
  rig_open(r, 1);
  nodes_init(r, n, 3);
  n[0].addrs = "10.9.0.1";
  node_join(r, &n[0]);
  n[0].addrs = "10.9.0.7";
  nodes_join(r, n, 2);
  assert_string_equal(let_in(r, &n[0]), "10.0.0.1\n10.0.0.2\n10.9.0.7\n");
  n[2].addrs = "10.9.0.3";
  node_join(r, &n[2]);
  nodes_started(r, n, 2);
  rig_next_round(r, n, 2);
  assert_string_equal(let_in(r, &n[0]), "10.0.0.1\n10.0.0.2\n10.9.0.7\n");
}

/* Where a node told another address than the one the daemon sees, both are let in. */
RIG_TEST(test_both_the_told_and_the_seen_address_are_let_in) {
  struct msg m;
  rig_open(r, 1);
  nodes_init(r, n, 2);
  node_join(r, &n[0]);
  node_hello(&n[1], &m);
  m.hello.local_addr = "10.77.0.2";
  n[1].conn = ++r->next_conn;
  node_say(r, &n[1], &m);
  assert_string_equal(let_in(r, &n[0]), "10.0.0.1\n10.77.0.2\n10.0.0.2\n");
}

RIG_TEST(test_addrs_that_are_none_are_refused) {
  static const char *const bad[] = {"10.0.0.1 node1", "10.0.0.300", "10.0.0.1,10.0.0.2", "10.0.0.1\n10.0.0.2",
                                    "111111111111111111111111111111111111111111111111111111111111111111111111"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    rig_open(r, 1);
    node_init(r, n, 0);
    n->addrs = bad[i];
    node_join(r, n);
    const struct msg *m = rig_last(r, n->conn, MSG_REFUSED);
    assert_non_null(m);
    assert_int_equal(m->refused.code, EXIT_CODE_REFUSED);
    assert_non_null(strstr(m->refused.text, "n0"));
    assert_string_equal(rig_state(r, "job"), "");
  }
}

/* More than a message can carry: the address that others are told, and the one that is seen, are there of every node.
 */
RIG_TEST(test_many_addresses_are_bounded) {
  enum { NODES = 30000 };
  rig_open_for(r, NODES, NODES);
  node_init(r, n, 0);
  r->nodes[0] = NULL;
  r->n_nodes = 0;
  uint64_t first = r->next_conn + 1;
  for (int i = 0; i < NODES; i++) {
    struct buf addrs = BUF_INIT;
    for (int k = 0; k < 24; k++) buf_printf(&addrs, "fd00:1111:2222:3333:4444:%x:%x:%x ", k, i >> 8, i & 255);
    r->blind = i < NODES - 1;
    struct node one = *n;
    snprintf(one.agent, sizeof one.agent, "%032x", (unsigned)i + 1);
    snprintf(one.peer_addr, sizeof one.peer_addr, "10.%d.%d.%d", 1 + (i >> 16), i >> 8 & 255, i & 255);
    one.addrs = buf_text(&addrs);
    node_join(r, &one);
    n->conn = one.conn;
    buf_finish(&addrs);
  }
  const struct msg *head = NULL;
  for (uint64_t conn = first; conn <= n->conn; conn++) {
    const struct msg *m = NULL;
    for (size_t i = 0; i < r->n_sent && !m; i++)
      if (r->sent[i].conn == conn && r->sent[i].msg.type == MSG_START && r->sent[i].msg.raw_len) m = &r->sent[i].msg;
    if (!m) continue;
    assert_null(head);
    head = m;
    break;
  }
  assert_non_null(head);
  assert_int_equal(head->start.node_rank, 0);
  assert_true(head->raw_len > (size_t)FRAME_MAX_TO_AGENT / 2);
  size_t lines = 0, seen = 0;
  for (const char *p = head->raw, *end = p + head->raw_len; p < end; lines++) {
    const char *nl = memchr(p, '\n', (size_t)(end - p));
    assert_non_null(nl);
    seen += p[0] == '1';
    p = nl + 1;
  }
  assert_int_equal(seen, NODES);
  assert_true(lines > NODES);
  assert_non_null(strstr(buf_text(&r->log), "more addresses than START can carry"));
}
