/* SPDX-License-Identifier: Apache-2.0 */
/* What this node knows of the last round that it was part of, for another daemon: HELLO and FORWARD.
 *
 * A daemon that takes the job over has no file and no memory of it. The nodes of the round tell it which round was the
 * last one, of how many nodes, and which round came before. It asks a majority of them, and of the nodes of the round
 * before unless the last one is firm. A node keeps these facts after the round has ended, until the next START.
 *
 * The other addresses of --endpoint may have daemons that know nothing of this job, and late agents begin there. So node
 * rank 0 of a running round tells those daemons where the job is. Whoever asks there is sent on. Between rounds the
 * first nodes of the last one do, because node rank 0 may be the one that was lost. */

#include "agent/supervisor/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/mem.h"

enum { LEADERS = 4 };

bool sup_can_be_succeeded(const struct supervisor *s) {
  return s->promise.succeeded || s->config.settings.daemons > 1 || s->config.settings.claims;
}

void sup_promise_start(struct supervisor *s, const struct start *start) {
  struct promise *p = &s->promise;
  snprintf(p->incarnation, sizeof p->incarnation, "%s", start->incarnation);
  snprintf(p->base, sizeof p->base, "%s", start->seal.base_incarnation ? start->seal.base_incarnation : "");
  snprintf(p->origin, sizeof p->origin, "%s", start->origin);
  p->round = start->round;
  p->seal = start->seal;
  p->seal.base_incarnation = p->base;
  free(p->head_host);
  p->head_host = xstrdup(start->head_host);
  snprintf(p->node_addr, sizeof p->node_addr, "%s", start->node_addr);
  p->node_rank = start->node_rank;
  snprintf(p->head_addr, sizeof p->head_addr, "%s", start->head_addr);
  p->begun_ms = s->now_ms;
  p->firm = false;
  p->succeeded = start->n_successors > 0;
}

/* The daemon is about to begin a round without this node. No other daemon may count on its vote. */
void sup_promise_retire(struct supervisor *s) {
  struct promise *p = &s->promise;
  p->incarnation[0] = p->base[0] = p->origin[0] = p->head_host[0] = '\0';
  p->round = 0;
  p->firm = false;
  p->seal = (struct seal){.base_incarnation = p->base};
}

/* The flag is about the round that the daemon knows; one that says STALE knows another. */
void sup_promise_firm(struct supervisor *s) {
  struct promise *p = &s->promise;
  bool in_it = s->state != SUPERVISOR_JOINING && s->round.number == p->round && s->stop.reason != STOP_STALE;
  p->firm |= in_it && !strcmp(s->round.incarnation, p->incarnation);
}

/* FORWARD. -----------------------------------------------------------------------------------------------------------
 * A daemon at an address of --endpoint exits when its last node follows another one. Newcomers would find nobody there,
 * so the agent that ran it starts it again and tells it where the job is, whatever its node rank. */

static void forward(struct supervisor *s) {
  struct told *t = &s->promise.told;
  struct msg m;
  msg_init(&m, MSG_FORWARD);
  m.forward = (struct forward){.job = s->config.job,
                               .uid = s->config.uid,
                               .incarnation = t->incarnation,
                               .origin = s->promise.origin,
                               .round = t->round,
                               .term = t->term,
                               .daemon = t->daemon,
                               .host = s->targets.home.host,
                               .addr = t->addr,
                               .port = t->port};
  struct supervisor_effect *e = sup_effect(s, SUP_FORWARD);
  if (t->on) e->bytes = msg_bytes(&m);
  e->forward.current = t->endpoint;
  e->forward.own = t->own;
}

void sup_forward_end(struct supervisor *s) {
  if (!s->promise.told.on) return;
  s->promise.told = (struct told){.own = s->promise.told.own, .endpoint = UINT32_MAX};
  forward(s);
}

void sup_forward_watch(struct supervisor *s) {
  struct promise *p = &s->promise;
  const struct target *home = &s->targets.home;
  if (s->state == SUPERVISOR_DONE) return;
  bool in_round = s->state != SUPERVISOR_JOINING, leads = s->round.node_rank == 0;
  if (!in_round) { /* perhaps the next one waits for those who are elsewhere, and node rank 0 is lost */
    bool other = strcmp(s->round.incarnation, p->incarnation) != 0;
    leads = p->round && p->node_rank < LEADERS && (other ? !s->round.latest : p->round >= s->round.latest);
  }
  bool others = s->config.n_endpoints > 1 || home->to != CONNECT_ENDPOINT;
  bool known = s->targets.has_home && home->addr[0] && home->port;
  /* While the daemon is not in charge nobody knows where the job is. A connection that is lost for a moment changes
   * nothing. */
  bool away = s->link.state != CONNECTION_READY;
  bool lost = away ? s->targets.turning || !p->told.on : !sup_daemon_in_charge(s);
  struct told now = {.own = !leads, .endpoint = UINT32_MAX};
  now.on = (leads || in_round) && known && others && !lost && s->following.follows[0];
  if (!now.on && !p->told.on) return;
  if (now.on) {
    struct ipaddr a = ipaddr_parse(home->addr);
    now.round = p->round;
    now.term = s->following.term;
    snprintf(now.incarnation, sizeof now.incarnation, "%s", p->incarnation);
    snprintf(now.daemon, sizeof now.daemon, "%s", s->following.follows);
    /* Other machines reach the daemon of this one by another address. */
    snprintf(now.addr, sizeof now.addr, "%s", ipaddr_is_loopback(&a) ? p->node_addr : home->addr);
    now.port = home->port;
    if (home->to == CONNECT_ENDPOINT) now.endpoint = home->endpoint;
  }
  bool same = now.on && p->told.on && now.own == p->told.own && now.round == p->told.round &&
              now.term == p->told.term && now.port == p->told.port && now.endpoint == p->told.endpoint &&
              !strcmp(now.addr, p->told.addr) && !strcmp(now.incarnation, p->told.incarnation) &&
              !strcmp(now.daemon, p->told.daemon);
  if (same) return;
  p->told = now;
  forward(s);
}
