/* SPDX-License-Identifier: Apache-2.0 */
/* Links: what lies between an agent (or its guard) and the daemon. One connection is TCP: bytes arrive in the order
 * in which they were sent, after a delay that is random within the node's bounds, so messages of different nodes
 * overtake each other. A connection can
 *
 *   break   what is on its way is lost, both ends learn it, each at a time of its own;
 *   end     one end closes: the other learns it behind all that was sent before;
 *   be cut  nothing passes and nobody is told. What is sent is held back, as TCP would send it again. An end that has had something
 *           unacknowledged for longer than its TCP_USER_TIMEOUT gives up and learns so; the other end only after the
 *           link
 *           is healed. On healing, what was held arrives at once, in order.
 *
 *   reject  nothing passes, as behind a firewall that answers for the other end: the node's ends are reset at once and
 *           each new connection is refused, while the daemon hears nothing.
 *
 * What a node's link lets pass counts for all daemons but one on its own machine. sim_place.c has walls between single
 * machines.
 *
 * Sending to a connection whose own end is closed does nothing. */

#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

struct sim_conn *link_open(struct sim *s, enum conn_kind kind, struct sim_node *node, struct sim_agent *agent) {
  struct sim_conn *c = xcalloc(1, sizeof *c);
  c->id = s->n_conns + 1;
  c->kind = kind;
  c->side = s->side;
  c->machine = s->d.machine;
  c->node = node;
  c->agent = agent;
  c->daemon_life = s->d.life;
  c->open[TO_AGENT] = c->open[TO_DAEMON] = true;
  c->here_at = c->gone_at = UINT64_MAX;
  c->held_tail[0] = &c->held[0];
  c->held_tail[1] = &c->held[1];
  if (s->n_conns == s->cap_conns) {
    s->cap_conns = s->cap_conns ? s->cap_conns * 2 : 16;
    s->conns = xrealloc(s->conns, s->cap_conns * sizeof *s->conns);
  }
  return s->conns[s->n_conns++] = c;
}

static void held_drop(struct sim_conn *c, int d) {
  while (c->held[d]) {
    struct held *h = c->held[d];
    c->held[d] = h->next;
    link_forget(h->msg);
    bytes_unref(h->bytes);
    free(h);
  }
  c->held_tail[d] = &c->held[d];
}

void link_free(struct sim_conn *c) {
  held_drop(c, 0);
  held_drop(c, 1);
  free(c);
}

uint64_t link_delay(struct sim *s, const struct sim_conn *c) {
  if (!c->node) return 0;
  return sim_between(s, c->node->link.delay_min, c->node->link.delay_max);
}

static void push_connected(struct sim *s, const struct sim_event *syn, struct sim_conn *c, uint64_t at, bool refused) {
  struct sim_event *up = sim_push(s, at, EV_CONNECTED);
  up->agent = syn->agent;
  up->conn = c;
  up->a = refused;
  up->b = syn->b;
  up->c = syn->c & 0xff;
}

static bool reach_each_other(const struct sim *s, int a, int b) {
  return place_passes(s, a, b) && place_passes(s, b, a);
}

void link_connect(struct sim *s, struct sim_agent *a, enum conn_kind kind, struct sim_place to, uint32_t timeout_ms,
                  uint64_t attempt) {
  struct sim_link *l = &a->node->link;
  if (!timeout_ms) timeout_ms = SIM_CONNECT_TIMEOUT_MS;
  struct sim_event syn = {.agent = a,
                          .a = (uint64_t)to.machine << 16 | to.port,
                          .b = attempt,
                          .c = (uint64_t)timeout_ms << 8 | (uint64_t)kind};
  if (to.machine < 0 || !reach_each_other(s, a->node->index, to.machine)) {
    bool refused = to.machine >= 0 && l->rejects;
    push_connected(s, &syn, NULL, s->now + (refused ? l->delay_min + 1 : timeout_ms), refused);
    return;
  }
  struct sim_event *ev = sim_push(s, s->now + sim_between(s, l->delay_min, l->delay_max), EV_SYN);
  ev->agent = a, ev->a = syn.a, ev->b = syn.b, ev->c = syn.c;
}

void link_on_syn(struct sim *s, struct sim_event *ev) {
  struct sim_agent *a = ev->agent;
  struct sim_link *l = &a->node->link;
  const struct sim_place to = {(int)(ev->a >> 16), (uint16_t)ev->a};
  struct sim_conn *c = NULL;
  bool cut = !reach_each_other(s, a->node->index, to.machine);
  uint64_t at = s->now + (cut ? ev->c >> 8 : sim_between(s, l->delay_min, l->delay_max));
  bool up = s->d.core && s->d.machine == to.machine && s->d.port == to.port;
  if (!cut && up) {
    c = link_open(s, (enum conn_kind)(ev->c & 0xff), a->node, a);
    c->last_at[TO_AGENT] = at;
    sim_push(s, s->now, EV_ACCEPT)->conn = c;
  }
  /* Of another address it says nothing; where others take over, the agent knows which one it has asked. */
  push_connected(s, ev, c, at, !cut && (s->config.takeover || a->home < 0 || a->home == s->side));
}

static void push_delivery(struct sim *s, struct sim_conn *c, enum msg_direction d, struct bytes *b, struct msg *m,
                          uint64_t said_at) {
  uint64_t at = s->now + link_delay(s, c);
  if (at < c->last_at[d]) at = c->last_at[d];
  c->last_at[d] = at;
  struct sim_event *ev = sim_push(s, at, EV_DELIVER);
  ev->conn = c;
  ev->a = d;
  ev->b = said_at;
  ev->bytes = b;
  ev->msg = m;
}

struct msg *link_read(struct sim *s, enum msg_direction d, const struct bytes *b, const char *what) {
  struct frame f;
  size_t size;
  struct err e = ERR_INIT;
  uint32_t limit = d == TO_AGENT ? FRAME_MAX_TO_AGENT : FRAME_MAX_TO_DAEMON;
  struct msg *m = xmalloc(sizeof *m);
  if (frame_parse(b->data, b->len, limit, &f, &size, &e) == 1 && size == b->len && !msg_decode(&f, d, m, &e)) return m;
  free(m);
  sim_violate(s, INV_CODEC, "%s: what cannot be read: %s", what, e.text);
  return NULL;
}

void link_forget(struct msg *m) {
  if (m) msg_finish(m);
  free(m);
}

/* Of two neighbours the older one has no features. A release of its own would not send the messages of any either. */
static bool is_mixed(const struct sim *s, const struct sim_conn *c) {
  return s->config.mixed && c->node && (c->node->index % 2 || c->daemon_life % 2);
}

void link_send_read(struct sim *s, struct sim_conn *c, enum msg_direction d, struct bytes *b, struct msg *m,
                    uint64_t said_at) {
  if (c->open[!d] && !c->broken && (!is_mixed(s, c) || msg_is_known(b, 0)))
    push_delivery(s, c, d, bytes_ref(b), m, said_at);
  else
    link_forget(m);
}

void link_send(struct sim *s, struct sim_conn *c, enum msg_direction d, struct bytes *b) {
  link_send_read(s, c, d, b, NULL, s->now);
}

void link_fin(struct sim *s, struct sim_conn *c, enum msg_direction d) {
  if (!c->open[!d]) return;
  c->open[!d] = false;
  if (d == TO_AGENT) c->hung_up = true, c->gone_at = s->now;
  if (!c->broken) push_delivery(s, c, d, NULL, NULL, s->now);
}

/* The end `side` learns that the connection is gone. */
static void end_gone(struct sim *s, struct sim_conn *c, enum msg_direction side, const char *why) {
  if (!c->open[side]) return;
  c->open[side] = false;
  if (side == TO_DAEMON) {
    c->gone_at = s->now;
    daemon_closed(s, c);
  } else if (c->kind == CONN_AGENT && c->agent->sup && c->agent->conn == c) {
    c->agent->conn = NULL;
    agent_link_down(s, c->agent, why);
  }
}

void link_break(struct sim *s, struct sim_conn *c, uint64_t agent_in_ms, uint64_t daemon_in_ms) {
  s->faulty = true;
  if (c->broken) return;
  if (c->open[TO_DAEMON]) s->harmless = false; /* else the daemon has gone: its own doing */
  c->broken = true;
  if (!place_conn_passes(s, c, TO_AGENT) || !place_conn_passes(s, c, TO_DAEMON)) {
    if (!c->open[TO_DAEMON]) return; /* the agent learns it when the link is healed */
    daemon_in_ms = 0;
  }
  struct sim_event *ev = sim_push(s, s->now + agent_in_ms, EV_LOST_END);
  ev->conn = c, ev->a = TO_AGENT;
  ev = sim_push(s, s->now + daemon_in_ms, EV_LOST_END);
  ev->conn = c, ev->a = TO_DAEMON;
}

void link_on_lost_end(struct sim *s, struct sim_event *ev) {
  end_gone(s, ev->conn, (enum msg_direction)ev->a, "reset by peer");
}

static void deliver(struct sim *s, struct sim_conn *c, struct sim_event *ev) {
  enum msg_direction d = (enum msg_direction)ev->a;
  if (!c->open[d]) return;
  if (!ev->bytes) {
    end_gone(s, c, d, "closed by peer");
    return;
  }
  if (!ev->msg) ev->msg = link_read(s, d, ev->bytes, d == TO_AGENT ? "the daemon sends" : "the daemon is sent");
  struct msg *m = ev->msg;
  if (!m) return;
  if (m->type == MSG_HELLO && is_mixed(s, c)) m->hello.features = "";
  if (d == TO_DAEMON) {
    daemon_receive(s, c, m);
  } else if (c->kind == CONN_AGENT) {
    if (c->agent->sup && c->agent->conn == c) agent_receive(s, c->agent, m, ev->b);
  } else if (c->kind == CONN_FORWARD && m->type == MSG_MOVED) {
    agent_forward_answered(s, c->agent, &m->moved);
  } else if (c->kind == CONN_CONTROL && m->type == MSG_CONTROL_REPLY) {
    sim_trace(s, "rdzvctl: %.*s", (int)strcspn(m->raw, "\n"), m->raw);
  }
}

void link_on_deliver(struct sim *s, struct sim_event *ev) {
  struct sim_conn *c = ev->conn;
  int d = (int)ev->a;
  if (c->broken) return;
  if (place_conn_passes(s, c, d) && !(c->node && c->node->link.flushing[d]) && !c->held[d]) {
    deliver(s, c, ev);
    return;
  }
  if (!c->held[d] && c->user_timeout_ms[d]) {
    struct sim_event *t = sim_push(s, s->now + c->user_timeout_ms[d], EV_SEND_TIMEOUT);
    t->conn = c, t->a = (uint64_t)d;
  }
  struct held *h = xcalloc(1, sizeof *h);
  h->bytes = ev->bytes;
  h->msg = ev->msg;
  h->sent_at = ev->b;
  ev->bytes = NULL;
  ev->msg = NULL;
  *c->held_tail[d] = h;
  c->held_tail[d] = &h->next;
}

void link_on_send_timeout(struct sim *s, struct sim_event *ev) {
  struct sim_conn *c = ev->conn;
  enum msg_direction d = (enum msg_direction)ev->a;
  if (!c->held[d] || c->broken || place_conn_passes(s, c, d)) return;
  held_drop(c, d);
  c->broken = true; /* a reset reaches the other end when the link is healed: link_heal */
  end_gone(s, c, d == TO_AGENT ? TO_DAEMON : TO_AGENT, "timed out");
}

void link_cut(struct sim *s, int node, bool to_agent, bool to_daemon) {
  s->faulty = true;
  struct sim_link *l = &s->nodes[node].link;
  s->harmless = false;
  sim_trace(s, "%s: link cut%s", s->nodes[node].host,
            to_agent && to_daemon ? ""
            : to_agent            ? " (from the daemon)"
                                  : " (to the daemon)");
  l->cut[TO_AGENT] |= to_agent;
  l->cut[TO_DAEMON] |= to_daemon;
}

void link_reject(struct sim *s, int node) {
  link_cut(s, node, true, true);
  sim_trace(s, "%s: what it sends is answered with a reset", s->nodes[node].host);
  s->nodes[node].link.rejects = true;
  for (size_t i = 0; i < s->n_conns; i++) {
    struct sim_conn *c = s->conns[i];
    if (c->node != &s->nodes[node] || c->machine == node || c->broken) continue;
    c->broken = true;
    end_gone(s, c, TO_AGENT, "reset by peer");
  }
}

void link_heal(struct sim *s, int node) {
  struct sim_node *n = &s->nodes[node];
  if (n->off || !(n->link.cut[0] || n->link.cut[1])) return;
  sim_trace(s, "%s: link healed", n->host);
  n->link.rejects = false;
  for (int d = 0; d < 2; d++) {
    if (!n->link.cut[d]) continue;
    n->link.cut[d] = false;
    n->link.flushing[d] = true;
    sim_push(s, s->now, EV_FLUSH)->a = (uint64_t)(2 * node + d);
  }
  if (s->config.takeover) {
    link_mend(s);
    return;
  }
  for (size_t i = 0; i < s->n_conns; i++) {
    struct sim_conn *c = s->conns[i];
    if (c->node != n || !c->broken) continue;
    for (int side = 0; side < 2; side++) {
      if (!c->open[side]) continue;
      struct sim_event *ev = sim_push(s, s->now + 1 + link_delay(s, c), EV_LOST_END);
      ev->conn = c, ev->a = (uint64_t)side;
    }
  }
}

/* What was held goes on its way again, before anything that is sent from now on. */
static void flush(struct sim *s, struct sim_conn *c, int d) {
  while (c->held[d]) {
    struct held *h = c->held[d];
    c->held[d] = h->next;
    if (!c->held[d]) c->held_tail[d] = &c->held[d];
    struct sim_event again = {
        .kind = EV_DELIVER, .conn = c, .a = (uint64_t)d, .b = h->sent_at, .bytes = h->bytes, .msg = h->msg};
    sim_push_front(s, &again);
    free(h);
  }
}

static void flush_all(struct sim *s) {
  for (size_t i = 0; i < s->n_conns; i++)
    for (int d = 0; d < 2; d++)
      if (place_conn_passes(s, s->conns[i], d)) flush(s, s->conns[i], d);
}

void link_on_flush(struct sim *s, struct sim_event *ev) {
  if (ev->a == UINT64_MAX) {
    flush_all(s);
    return;
  }
  struct sim_node *n = &s->nodes[ev->a / 2];
  int d = (int)(ev->a % 2);
  n->link.flushing[d] = false;
  if (n->link.cut[d]) return;
  for (size_t i = 0; i < s->n_conns; i++)
    if (s->conns[i]->node == n && place_conn_passes(s, s->conns[i], d)) flush(s, s->conns[i], d);
}

/* An end of a connection that the other end has forgotten learns that when it sends again. */
void link_mend(struct sim *s) {
  sim_push(s, s->now, EV_FLUSH)->a = UINT64_MAX;
  for (size_t i = 0; i < s->n_conns; i++) {
    struct sim_conn *c = s->conns[i];
    if (!c->node || (!c->broken && !c->vanished)) continue;
    if (!place_conn_passes(s, c, TO_AGENT) || !place_conn_passes(s, c, TO_DAEMON)) continue;
    for (int side = 0; side < 2; side++) {
      if (!c->open[side]) continue;
      struct sim_event *lost = sim_push(s, s->now + 1 + link_delay(s, c), EV_LOST_END);
      lost->conn = c, lost->a = (uint64_t)side;
    }
  }
}
