/* SPDX-License-Identifier: Apache-2.0 */
/* job: whose a connection to the round's store is. Node rank 0 asks, the agents with its address answer. */

#include <stdio.h>
#include <string.h>
#include "tests/rig/core.h"
#include "tests/rig/unit.h"

static void ask(struct rig *r, struct node *n, int64_t round, struct store_caller *callers, size_t n_callers) {
  struct msg m;
  msg_init(&m, MSG_ASK_OWNERS);
  m.ask_owners.incarnation = n->incarnation;
  m.ask_owners.round = round;
  m.ask_owners.serial = 7;
  m.ask_owners.addr = "10.0.0.1";
  m.ask_owners.port = 40000;
  m.ask_owners.callers = callers;
  m.ask_owners.n_callers = n_callers;
  rig_forget(r);
  node_say(r, n, &m);
}

RIG_TEST(test_the_agents_of_its_address_are_asked) {
  struct store_caller c[] = {{.id = 1, .addr = "10.0.0.3", .port = 4001},
                             {.id = 2, .addr = "::ffff:10.0.0.2", .port = 4002},
                             {.id = 3, .addr = "10.0.0.3", .port = 4003},
                             {.id = 4, .addr = "10.9.9.9", .port = 4004}};
  rig_open_joined(r, n, 3);
  ask(r, &n[0], 1, c, 4);
  const struct msg *m = rig_last(r, n[2].conn, MSG_FIND_OWNERS);
  assert_non_null(m);
  assert_int_equal(m->find_owners.n_callers, 2);
  assert_int_equal(m->find_owners.callers[0].id + m->find_owners.callers[1].id, 4);
  assert_int_equal(m->find_owners.callers[0].asked, 1);
  assert_int_equal(m->find_owners.serial, 7);
  assert_string_equal(m->find_owners.addr, "10.0.0.1");
  assert_int_equal(m->find_owners.port, 40000);
  m = rig_last(r, n[1].conn, MSG_FIND_OWNERS);
  assert_int_equal(m->find_owners.n_callers, 1);
  assert_int_equal(m->find_owners.callers[0].port, 4002);
  assert_int_equal(rig_count(r, n[0].conn, MSG_FIND_OWNERS), 0);
  m = rig_last(r, n[0].conn, MSG_OWNERS); /* nobody has that address */
  assert_int_equal(m->owners.n_owners, 1);
  assert_int_equal(m->owners.owners[0].id, 4);
  assert_int_equal(m->owners.owners[0].is, OWNERSHIP_GONE);
  assert_int_equal(m->owners.owners[0].asked, 0);
}

static void answer(struct rig *r, struct node *n, int64_t round, const char *host) {
  struct store_owner o = {.id = 1, .asked = 1, .is = OWNERSHIP_OTHER, .uid = 1001, .pid = 4711, .name = "python3"};
  struct msg m;
  msg_init(&m, MSG_FOUND_OWNERS);
  m.found_owners.incarnation = n->incarnation;
  m.found_owners.round = round;
  m.found_owners.serial = 7;
  m.found_owners.host = host;
  m.found_owners.owners = &o;
  m.found_owners.n_owners = 1;
  rig_forget(r);
  node_say(r, n, &m);
}

RIG_TEST(test_the_answer_goes_to_node_0) {
  rig_open_joined(r, n, 3);
  answer(r, &n[2], 1, "another");
  const struct msg *m = rig_last(r, n[0].conn, MSG_OWNERS);
  assert_non_null(m);
  assert_string_equal(m->owners.host, "n2"); /* as the daemon knows it */
  assert_int_equal(m->owners.serial, 7);
  assert_int_equal(m->owners.owners[0].uid, 1001);
  assert_string_equal(m->owners.owners[0].name, "python3");
  answer(r, &n[2], 2, "");
  assert_int_equal(rig_count(r, n[0].conn, MSG_OWNERS), 0); /* of another round */
}

RIG_TEST(test_only_node_0_of_the_round_asks) {
  struct store_caller c = {.id = 1, .addr = "10.0.0.3", .port = 4001};
  rig_open_joined(r, n, 3);
  ask(r, &n[1], 1, &c, 1);
  assert_int_equal(rig_count(r, n[2].conn, MSG_FIND_OWNERS), 0);
  ask(r, &n[0], 2, &c, 1);
  assert_int_equal(rig_count(r, n[2].conn, MSG_FIND_OWNERS), 0);
  ask(r, &n[0], 1, &c, 1);
  assert_int_equal(rig_count(r, n[2].conn, MSG_FIND_OWNERS), 1);
}

/* Two agents of one host have one address; and every node has a bridge of the same. */
RIG_TEST(test_an_address_of_several) {
  struct store_caller c[] = {{.id = 1, .addr = "10.0.0.2", .port = 4001},
                             {.id = 2, .addr = "172.17.0.1", .port = 4002}};
  rig_open_for(r, 3, 3);
  nodes_init(r, n, 3);
  snprintf(n[2].peer_addr, sizeof n[2].peer_addr, "10.0.0.2");
  for (int i = 0; i < 3; i++) n[i].addrs = i ? "10.0.0.2 172.17.0.1" : "10.0.0.1";
  nodes_join(r, n, 3);
  ask(r, &n[0], 1, c, 2);
  for (int i = 1; i < 3; i++) {
    int64_t asked = 0, ids = 0;
    assert_int_equal(rig_count(r, n[i].conn, MSG_FIND_OWNERS), 2);
    const struct msg *m = rig_last(r, n[i].conn, MSG_FIND_OWNERS);
    for (size_t k = 0; k < m->find_owners.n_callers; k++) {
      asked += m->find_owners.callers[k].asked;
      ids += m->find_owners.callers[k].id;
    }
    assert_int_equal(asked, 2);
    assert_int_equal(ids, 2);
  }
}

/* A daemon that came back does not know all nodes at once: node rank 0 asks again. */
RIG_TEST(test_not_all_are_back) {
  struct store_caller c = {.id = 1, .addr = "10.0.0.2", .port = 4001};
  rig_open_running(r, n, 2);
  rig_restart(r, false);
  node_back(r, &n[0], PHASE_RUNNING);
  ask(r, &n[0], 1, &c, 1);
  assert_int_equal(rig_count(r, n[0].conn, MSG_OWNERS), 0);
  node_back(r, &n[1], PHASE_RUNNING);
  ask(r, &n[0], 1, &c, 1);
  assert_int_equal(rig_count(r, n[1].conn, MSG_FIND_OWNERS), 1);
}
