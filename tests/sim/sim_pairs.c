/* SPDX-License-Identifier: Apache-2.0 */
/* Agents that exchange data in pairs, as agent/pairs promises it: a port and a secret from the one that listens, or ids; times
 * or a reason from the one that connects; and over NCCL a last word from both. How the wires are is the story's to say. */

#include "tests/sim/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_PORT = 6000, GOOD_US = 8000, SLOW_US = 400000 };

static void send_paired(struct sim *s, struct sim_agent *a, const struct msg *m) {
  struct bytes *b = msg_bytes(m);
  link_send(s, a->conn, TO_DAEMON, b);
  bytes_unref(b);
}

static bool is_bad(const struct sim_node *n, bool nccl) {
  return n->pairs == SIM_PAIRS_BAD || (nccl && n->pairs == SIM_PAIRS_BAD_FABRIC);
}

static void answer(struct sim *s, struct sim_agent *a, const struct pair_msg *ask) {
  const struct sim_node *me = a->node, *other;
  char secret[PAIR_SECRET_HEX + 1], ids[2 * NCCL_ID_SIZE + 1];
  bool nccl = ask->gpus > 0, lacks = nccl && me->pairs == SIM_PAIRS_NO_NCCL;
  struct msg m;
  msg_init(&m, MSG_PAIRED);
  m.paired.serial = ask->serial;
  snprintf(secret, sizeof secret, "%064llx", (unsigned long long)ask->serial);
  snprintf(ids, sizeof ids, "%0*llx", (int)sizeof ids - 1, (unsigned long long)(FIRST_PORT + me->index));
  if (lacks) m.paired.lacks = "libcuda.so.1: no such file";
  if (lacks && ask->ids[0]) {
    send_paired(s, a, &m);
  } else if (nccl && !lacks && !ask->ids[0]) {
    m.paired.ids = ids;
    send_paired(s, a, &m);
    m.paired.ids = "";
    send_paired(s, a, &m);
  } else if (!ask->port && !ask->ids[0]) {
    m.paired.port = FIRST_PORT + me->index;
    m.paired.secret = secret;
    send_paired(s, a, &m);
  } else {
    other = &s->nodes[(nccl ? strtoll(ask->ids + sizeof ids - 9, NULL, 16) : ask->port) - FIRST_PORT];
    bool bad = is_bad(me, nccl) || is_bad(other, nccl) || me->behind != other->behind;
    if (!nccl && strcmp(ask->secret, secret) != 0)
      m.paired.text = "the other end does not know the secret";
    else if (bad && ask->serial % 2)
      m.paired.text = nccl ? "GPU 0: nothing comes over NCCL" : "no connection in 3.0 s";
    else
      m.paired.bytes = 16 << 20, m.paired.out_us = GOOD_US, m.paired.in_us = bad ? SLOW_US : GOOD_US,
      m.paired.rtt_us = 90;
    send_paired(s, a, &m);
  }
}

bool pairs_receive(struct sim *s, struct sim_agent *a, const struct msg *m) {
  if (m->type == MSG_PAIR && a->node->pairs != SIM_PAIRS_SILENT) answer(s, a, &m->pair_msg);
  return m->type == MSG_PAIR;
}
