/* SPDX-License-Identifier: Apache-2.0 */
/* core: a HELLO whose fields do not fit each other, in what it says of its last round and of its daemon. */

#include <stdio.h>
#include <string.h>
#include "daemon/job/limits.h"
#include "tests/rig/core.h"
#include "tests/rig/unit.h"

/* The rig's clock begins at 1700000000000 ms. */
#define RUN    "018bcfe56800-0123456789abcdef"
#define BEFORE "018bcfe56700-0123456789abcdef"
#define FUTURE "ffffffffffff-0123456789abcdef"
#define THERE  "22222222222222222222222222222222"

/* The HELLO of a node that runs round 3 of RUN, as one of two, and follows another daemon. */
static void sound_hello(const struct node *n, struct msg *m) {
  node_hello(n, m);
  struct hello *h = &m->hello;
  h->incarnation = h->voted_incarnation = RUN;
  h->round = h->voted_round = 3;
  h->phase = PHASE_RUNNING;
  h->node_rank = 1;
  h->round_nodes = 2;
  h->seal = (struct seal){.nodes = 2,
                          .tie_breaker = true,
                          .base_incarnation = BEFORE,
                          .base_round = 2,
                          .base_nodes = 2,
                          .in_base = true,
                          .base_tie_breaker = true};
  h->follows = THERE;
  h->silent_ms = 2500;
  h->term = 1;
}

/* NULL: it was welcomed. */
static const char *answer(struct rig *r, struct node *n, const struct msg *m) {
  n->conn = ++r->next_conn;
  rig_forget(r);
  node_say(r, n, m);
  const struct msg *refused = rig_last(r, n->conn, MSG_REFUSED);
  if (!refused) return NULL;
  assert_true(rig_was_closed(r, n->conn));
  assert_null(rig_last(r, n->conn, MSG_WELCOME));
  return refused->refused.text;
}

enum { CASES = 29 };
static const char *spoil(int i, struct hello *h) {
  struct seal *s = &h->seal;
  switch (i) {
  case 0: return h->voted_round = 0, "HELLO of n1 names half of the last round that it was part of";
  case 1: return h->voted_incarnation = "", "HELLO of n1 names half of the last round that it was part of";
  case 2: return s->base_round = 0, "HELLO of n1 names half of the round before its last one";
  case 3: return s->base_incarnation = "", "HELLO of n1 names half of the round before its last one";
  case 4:
    s->base_incarnation = "", s->base_round = 0, s->base_nodes = 0, s->base_tie_breaker = false;
    return "HELLO of n1 names half of the round before its last one"; /* in_base is left */
  case 5:
    s->base_incarnation = "", s->base_round = 0, s->in_base = s->base_tie_breaker = false;
    return "HELLO of n1 names half of the round before its last one"; /* base_nodes is left */
  case 6:
    h->voted_incarnation = "", h->voted_round = 0;
    return "HELLO of n1 names half of the round before its last one";
  case 7:
    h->voted_incarnation = "", h->voted_round = 0, *s = (struct seal){.nodes = 2, .base_incarnation = ""};
    return "HELLO of n1 has a part in a round that it does not name";
  case 8: return s->nodes = 0, "HELLO of n1 has a part in a round that it does not name";
  case 9: return s->in_base = false, "HELLO of n1 has a part in a round that it does not name";
  case 10: return s->nodes = NODES_MAX, "HELLO of n1 names a round of 65536 nodes, and --nnodes allows 2";
  case 11: return s->base_nodes = 3, "HELLO of n1 names a round of 3 nodes, and --nnodes allows 2";
  case 12: return s->nodes = 1, "HELLO of n1 names round 3 with 2 nodes and with 1";
  case 13: return s->base_incarnation = RUN, s->base_round = 3, "HELLO of n1 names round 3 as the one before round 3";
  case 14: return s->base_incarnation = RUN, s->base_round = 4, "HELLO of n1 names round 4 as the one before round 3";
  case 15: return s->base_incarnation = FUTURE, "HELLO of n1 names round 2 as the one before round 3";
  case 16: return s->base_incarnation = "-", "HELLO of n1 names incarnation -, and no rdzvd gives such names";
  case 17: return s->base_round = 499999999, "HELLO of n1 names round 499999999, for which its job had no time";
  case 18: return s->base_round = ROUND_MAX, "HELLO of n1 names round 1000000000, which no job has reached";
  case 19: return h->voted_incarnation = FUTURE, "HELLO of n1 names a run of job job that begins more than 24 hours";
  case 20: return h->voted_incarnation = "ab", "HELLO of n1 names incarnation ab, and no rdzvd gives such names";
  case 21: return h->voted_round = 499999999, "HELLO of n1 names round 499999999, for which its job had no time";
  case 22: return h->follows = "2", "HELLO of n1 names daemon 2, and no rdzvd has such an id";
  case 23: return h->follows = "2222222222222222222222222222-222", "and no rdzvd has such an id";
  case 24:
    return h->silent_ms = INT64_MAX, "HELLO of n1 says that its daemon has been silent for 9223372036854775807 ms";
  case 25: return h->silent_ms = 2 * CORE_SKEW_MS, "longer than its job has lived";
  case 26: return h->settings.claims = true, "job job claims each of its rounds (--claim of n1), and this rdzvd cannot";
  case 27: return h->round = ROUND_MAX, "HELLO of n1 names round 1000000000, which no job has reached";
  case 28: return h->round_nodes = 1, "HELLO of n1 names a round, but no valid node rank in it";
  default: return NULL;
  }
}

RIG_TEST(test_hostile_values) {
  struct msg m;
  rig_open(r, 1);
  nodes_init(r, n, 2);
  for (int i = 0; i < CASES; i++) {
    sound_hello(&n[1], &m);
    const char *expected = spoil(i, &m.hello), *said = answer(r, &n[1], &m);
    if (!said || !strstr(said, expected)) fail_msg("case %d: %s", i, said ? said : "welcomed");
    assert_true(core_idle(r->core));
    assert_false(core_served(r->core));
  }
  sound_hello(&n[1], &m);
  assert_null(answer(r, &n[1], &m));
}

RIG_TEST(test_sound_values) {
  for (int i = 0; i < 6; i++) {
    struct msg m;
    rig_open(r, 1);
    nodes_init(r, n, 2);
    sound_hello(&n[1], &m);
    struct hello *h = &m.hello;
    if (i == 0) h->seal = (struct seal){.base_incarnation = ""};             /* without succession */
    if (i == 1) h->seal = (struct seal){.nodes = 2, .base_incarnation = ""}; /* the first round */
    if (i == 2) h->seal.base_incarnation = RUN;                              /* of the same run */
    if (i == 3) h->phase = PHASE_NONE, h->incarnation = RUN, h->round = 9;   /* it knows a later one */
    if (i == 4) h->silent_ms = 60000, h->seal.in_base = h->seal.base_tie_breaker = false;
    if (i == 5) h->follows = "", h->silent_ms = 0, h->term = 0;
    const char *said = answer(r, &n[1], &m);
    if (said) fail_msg("case %d: %s", i, said);
  }
}

/* All nodes of a job must agree. */
RIG_TEST(test_settings_of_several_daemons) {
  struct msg m;
  rig_open_with(r, &(struct core_config){.seed = 1, .claims = true});
  nodes_init(r, n, 2);
  n[0].settings.daemons = 3;
  node_join(r, &n[0]);
  node_hello(&n[1], &m);
  const char *said = answer(r, &n[1], &m);
  assert_non_null(said);
  assert_non_null(strstr(said, "--endpoint has 1 address here (n1) and 3 in the job; all nodes of a job must agree"));
  m.hello.settings.daemons = 3;
  m.hello.settings.claims = true;
  said = answer(r, &n[1], &m);
  assert_non_null(said);
  assert_non_null(strstr(said, "--claim is given here (n1) and not in the job"));
  m.hello.settings.claims = false;
  assert_null(answer(r, &n[1], &m));
  rig_open_with(r, &(struct core_config){.seed = 1, .claims = true});
  nodes_init(r, n, 2);
  n[0].settings.claims = true;
  node_join(r, &n[0]);
  node_hello(&n[1], &m);
  said = answer(r, &n[1], &m);
  assert_non_null(said);
  assert_non_null(strstr(said, "--claim is not given here (n1) and is in the job"));
}
