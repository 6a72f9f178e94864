/* SPDX-License-Identifier: Apache-2.0 */
/* Agents that exchange data in pairs, as agent/pairs promises it: a port and a secret from the one that listens, times or a
 * reason from the one that connects. How the wires are is the story's to say. */

#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_PORT = 6000, GOOD_US = 8000, SLOW_US = 400000 };

static void answer(struct sim *s, struct sim_agent *a, const struct pair_msg *ask) {
  const struct sim_node *me = a->node, *other;
  char secret[PAIR_SECRET_HEX + 1];
  struct msg m;
  msg_init(&m, MSG_PAIRED);
  m.paired.serial = ask->serial;
  snprintf(secret, sizeof secret, "%064llx", (unsigned long long)ask->serial);
  if (!ask->port) {
    m.paired.port = FIRST_PORT + me->index;
    m.paired.secret = secret;
  } else {
    other = &s->nodes[ask->port - FIRST_PORT];
    bool bad = me->pairs == SIM_PAIRS_BAD || other->pairs == SIM_PAIRS_BAD || me->behind != other->behind;
    if (strcmp(ask->secret, secret) != 0)
      m.paired.text = "the other end does not know the secret";
    else if (bad && ask->serial % 2)
      m.paired.text = "no connection in 3.0 s";
    else
      m.paired.bytes = 16 << 20, m.paired.out_us = GOOD_US, m.paired.in_us = bad ? SLOW_US : GOOD_US,
      m.paired.rtt_us = 90;
  }
  struct bytes *b = msg_bytes(&m);
  link_send(s, a->conn, TO_DAEMON, b);
  bytes_unref(b);
}

bool pairs_receive(struct sim *s, struct sim_agent *a, const struct msg *m) {
  if (m->type == MSG_PAIR && a->node->pairs != SIM_PAIRS_SILENT) answer(s, a, &m->pair_msg);
  return m->type == MSG_PAIR;
}
