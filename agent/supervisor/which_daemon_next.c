/* SPDX-License-Identifier: Apache-2.0 */
/* The places where the job's daemon may be, and the order in which this agent tries them.
 *
 * The daemon that welcomed this agent last is at `home`. Others may take the job over: the successors that the last
 * START or WAITING named, the addresses of --endpoint, and a place that MOVED named. The daemon that named the successors
 * is no successor, but it may have kept its majority. An agent that meets itself among
 * the successors starts a daemon of its own. A WAITING that names no successor teaches nothing, because a daemon that
 * has just taken over may not know them yet.
 *
 * An agent that turns tries them one after the other without a pause. After such a cycle there is the usual pause,
 * and the next cycle. */

#include "agent/supervisor/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "common/endpoint.h"
#include "common/hostlist.h"
#include "common/mem.h"

static uint32_t count_endpoints(const struct supervisor *s) {
  return s->config.n_endpoints > 1 ? s->config.n_endpoints : 1;
}

static bool is_same(const struct target *a, const struct target *b) {
  if (a->to != b->to) return false;
  if (a->to == CONNECT_ENDPOINT) return a->endpoint == b->endpoint;
  return a->to == CONNECT_OWN || (a->port == b->port && !strcmp(a->addr, b->addr));
}

static size_t find(const struct target_list *l, const struct target *t) {
  size_t i = 0;
  while (i < l->n && !is_same(&l->v[i], t)) i++;
  return i;
}

static void add(struct target_list *l, const struct target *t) {
  if (l->n < TARGETS_MAX && find(l, t) == l->n) l->v[l->n++] = *t;
}

/* Places. ---------------------------------------------------------------------------------------------------------- */

static void make_endpoint(const struct supervisor *s, uint32_t i, struct target *t) {
  const char *text = s->config.endpoints ? s->config.endpoints[i] : s->config.endpoint;
  struct endpoint ep;
  memset(t, 0, sizeof *t);
  t->to = CONNECT_ENDPOINT;
  t->endpoint = i;
  bool parsed = !endpoint_parse(text, RDZV_DEFAULT_PORT, &ep, NULL);
  snprintf(t->host, sizeof t->host, "%.*s", HOST_MAX, parsed ? ep.host : text);
  snprintf(t->text, sizeof t->text, "%.*s", HOST_MAX, text);
}

static void make_remote(const char *host, const char *addr, int64_t port, struct target *t) {
  memset(t, 0, sizeof *t);
  t->to = CONNECT_SUCCESSOR;
  t->port = (uint32_t)port;
  snprintf(t->addr, sizeof t->addr, "%.*s", ADDR_MAX, addr);
  struct buf name = BUF_INIT;
  buf_put_escaped(&name, host, strlen(host), HOST_MAX);
  snprintf(t->host, sizeof t->host, "%.*s", HOST_MAX, buf_text(&name));
  snprintf(t->text, sizeof t->text, "%.*s:%u", HOST_MAX, buf_text(&name), t->port);
  buf_finish(&name);
}

/* All places except home, in the order in which they are asked: the same for all, as far as can be. Where --endpoint names
 * several daemons, MOVED leads to one of them. Otherwise it leads newcomers to those who know more. */
static void list_others(const struct supervisor *s, struct target_list *l) {
  const struct targets *t = &s->targets;
  l->n = 0;
  bool standby = count_endpoints(s) > 1;
  if (t->has_moved && !standby) add(l, &t->moved);
  if (t->has_origin && !(standby && t->origin.to == CONNECT_ENDPOINT)) add(l, &t->origin);
  for (size_t i = 0; i < t->successors.n; i++)
    if (t->successors.v[i].to != CONNECT_OWN || t->standby_port) add(l, &t->successors.v[i]);
  for (uint32_t i = 0; i < count_endpoints(s); i++) {
    struct target e;
    make_endpoint(s, i, &e);
    add(l, &e);
  }
  if (t->has_moved && standby) add(l, &t->moved);
}

static void look_for_others(struct supervisor *s) {
  struct target_list l;
  list_others(s, &l);
  s->targets.others = l.n > 1 || !s->targets.has_home || !is_same(&l.v[0], &s->targets.home);
}

void sup_learn_successors(struct supervisor *s, const struct successor *v, size_t n) {
  struct target_list *l = &s->targets.successors;
  s->targets.origin = s->targets.home;
  s->targets.has_origin = s->targets.has_home;
  l->n = 0;
  for (size_t i = 0; i < n; i++) {
    struct target t;
    make_remote(v[i].host, v[i].addr, v[i].port, &t);
    if (!strcmp(v[i].agent, s->config.agent_id)) t.to = CONNECT_OWN;
    add(l, &t);
  }
  look_for_others(s);
}

/* Orders. ---------------------------------------------------------------------------------------------------------- */

void sup_begin_cycle(struct supervisor *s, enum turn_order order) {
  struct targets *t = &s->targets;
  struct target_list all;
  list_others(s, &all);
  t->cycle.n = t->at = 0;
  if (order == TURN_TO_MOVED) add(&t->cycle, &t->moved);
  if (order == TURN_TO_EARLIER) {
    for (uint32_t i = 0; i < s->targets.home.endpoint; i++) {
      struct target e;
      make_endpoint(s, i, &e);
      add(&t->cycle, &e);
    }
    add(&t->cycle, &s->targets.home);
  } else if (order == TURN_PAST_HOME) {
    /* After home's place in the list, then before it, and home last. */
    size_t home = find(&all, &s->targets.home);
    for (size_t i = home + 1; i < all.n; i++) add(&t->cycle, &all.v[i]);
    for (size_t i = 0; i < home && i < all.n; i++) add(&t->cycle, &all.v[i]);
    add(&t->cycle, &s->targets.home);
  } else {
    if (t->has_home) add(&t->cycle, &t->home);
    for (size_t i = 0; i < all.n; i++) add(&t->cycle, &all.v[i]);
  }
  t->turning = true;
  t->aim = t->cycle.v[0];
}

bool sup_cycle_goes_on(const struct supervisor *s) {
  const struct targets *t = &s->targets;
  return t->turning && t->at + 1 < t->cycle.n;
}

bool sup_next_target(struct supervisor *s) {
  struct targets *t = &s->targets;
  if (!t->turning) return false;
  if (sup_cycle_goes_on(s)) {
    t->aim = t->cycle.v[++t->at];
    return true;
  }
  sup_begin_cycle(s, TURN_FROM_SILENCE);
  return false;
}

void sup_note_moved(struct supervisor *s, const struct moved *m) {
  struct target t;
  make_remote(m->host, m->addr, m->port, &t);
  for (size_t i = 0; i < s->targets.successors.n; i++) {
    const struct target *own = &s->targets.successors.v[i];
    if (own->to == CONNECT_OWN && own->port == t.port && !strcmp(own->addr, t.addr)) t.to = CONNECT_OWN;
  }
  s->targets.moved = t;
  s->targets.has_moved = true;
  look_for_others(s);
}

bool sup_aims_at_home(const struct supervisor *s) {
  return s->targets.has_home && is_same(&s->targets.aim, &s->targets.home);
}

/* Connecting. ------------------------------------------------------------------------------------------------------ */

enum { SHORT_MS = 250, OWN_MS = 1000, GREETING_MS = 1000 };

static uint64_t at_least(uint64_t ms, uint64_t least_ms) {
  return ms > least_ms ? ms : least_ms;
}

/* rdzvd has to start first in our own place. */
void sup_aim(const struct supervisor *s, struct supervisor_effect *e) {
  const struct targets *t = &s->targets;
  uint64_t tenth_ms = (uint64_t)s->config.settings.lease_ms / 10;
  e->connect.to = t->aim.to;
  e->connect.endpoint = t->aim.endpoint;
  e->connect.port = (uint16_t)t->aim.port;
  if (t->aim.to == CONNECT_SUCCESSOR) e->text = xstrdup(t->aim.addr);
  if (!t->turning) return;
  e->connect.timeout_ms = (uint32_t)at_least(tenth_ms, t->aim.to == CONNECT_OWN ? OWN_MS : SHORT_MS);
}

/* The kernel accepts connections for a daemon that is paused, so the own daemon must greet soon. One that has greeted is
 * at work. If thousands of agents have come to it at once, a redial would only give it more to do. */
uint64_t sup_answer_patience_ms(const struct supervisor *s, bool greeted) {
  const struct targets *t = &s->targets;
  uint64_t lease = (uint64_t)s->config.settings.lease_ms;
  if (!t->turning) return SUPERVISOR_HELLO_MS;
  if (!greeted && sup_aims_at_home(s)) return at_least(lease / 10, SHORT_MS);
  uint64_t ms = at_least(lease / 2, GREETING_MS);
  return ms < SUPERVISOR_HELLO_MS ? ms : SUPERVISOR_HELLO_MS;
}

void sup_note_peer(struct supervisor *s, const char *addr, uint32_t port) {
  struct target *t = &s->targets.aim;
  if (t->to != CONNECT_ENDPOINT || !addr || !port) return;
  snprintf(t->addr, sizeof t->addr, "%.*s", ADDR_MAX, addr);
  t->port = port;
}

void sup_settle_home(struct supervisor *s) {
  struct targets *t = &s->targets;
  t->home = t->aim;
  t->has_home = true;
  t->turning = false;
  look_for_others(s);
}

/* A machine's own name may be a loopback address for itself alone, as on Debian. */
bool sup_home_is_loopback(const struct supervisor *s) {
  const struct target *t = &s->targets.home;
  struct ipaddr a = ipaddr_parse(t->addr);
  size_t n = hostlist_short(t->host);
  bool typed = s->targets.has_home && t->to == CONNECT_ENDPOINT && !s->config.endpoint_from;
  bool own_name = n == hostlist_short(s->config.host) && !strncasecmp(t->host, s->config.host, n);
  return typed && count_endpoints(s) == 1 && ipaddr_is_loopback(&a) && !own_name;
}

/* Names. ----------------------------------------------------------------------------------------------------------- */

const char *sup_daemon_name(const struct supervisor *s) {
  bool first = !s->targets.has_home && s->targets.aim.to == CONNECT_ENDPOINT;
  return first ? s->config.endpoint : s->targets.aim.text;
}

const char *sup_next_host(const struct supervisor *s) {
  const struct targets *t = &s->targets;
  for (size_t i = 0; i < t->cycle.n; i++)
    if (!is_same(&t->cycle.v[i], &t->home)) return t->cycle.v[i].host;
  return t->home.host;
}

/* The first address of --endpoint comes first: of all places it is the one that every agent knows. */
size_t sup_home_order(const struct supervisor *s) {
  struct target_list all;
  struct target first;
  make_endpoint(s, 0, &first);
  list_others(s, &all);
  return is_same(&s->targets.home, &first) ? 0 : find(&all, &s->targets.home) + 1;
}

/* The reserved port. ----------------------------------------------------------------------------------------------- */

void sup_standby(struct supervisor *s, const struct supervisor_event *ev) {
  s->targets.standby_port = ev->port;
  look_for_others(s);
  if (s->state == SUPERVISOR_JOINING) sup_announce_ports(s);
}

void sup_targets_create(struct supervisor *s) {
  make_endpoint(s, 0, &s->targets.aim);
  if (count_endpoints(s) > 1) sup_begin_cycle(s, TURN_FROM_SILENCE);
}
