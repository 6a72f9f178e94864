/* SPDX-License-Identifier: Apache-2.0 */
/* The round's store, as agent/store/round_store.c has it: every agent keeps a port ready, node rank 0 serves its
 * round on that one and has another ready, and it is closed when the mind says so, or with the process.
 *
 * Keys are not modelled. What matters is whom a worker reaches: a store knows the round for which it was opened, and
 * workers knock at it when they begin and every now and then. Between nodes there is no network here but addresses. */

#include "tests/sim/book.h"

#include <inttypes.h>
#include <string.h>
#include "agent/store/allowed_addrs.h"
#include "common/mem.h"

enum {
  FIRST_PORT = 40000,
  PORTS = 20000,
  KNOCK_AGAIN_MS = 20,
  KNOCK_MIN_MS = 100,
  KNOCK_MAX_MS = 2000,
  NO_PORT_MS = 1000
};

/* A process that has no descriptor left has none for a second. */
void store_make_ready(struct sim *s, struct sim_agent *a) {
  struct sim_node *n = a->node;
  if (s->config.store_port) { /* the same for ever: told once */
    a->port_news = a->ready_port != s->config.store_port;
    a->ready_port = s->config.store_port;
    return;
  }
  bool none = s->config.portless && sim_chance(s, s->config.portless);
  a->ready_port = none ? 0 : FIRST_PORT + n->ports++ % PORTS;
  a->port_news = true;
  if (a->ready_port) return;
  struct sim_event *ev = sim_push(s, s->now + NO_PORT_MS, EV_STORE_RETRY);
  ev->agent = a;
}

void store_on_retry(struct sim *s, struct sim_event *ev) {
  if (!ev->agent->sup || ev->agent->ready_port) return;
  store_make_ready(s, ev->agent);
  store_tell(s, ev->agent);
}

void store_tell(struct sim *s, struct sim_agent *a) {
  if (!a->port_news || !a->sup) return;
  a->port_news = false;
  struct supervisor_event ev = {.kind = SUP_STORE, .port = a->ready_port};
  agent_mind(s, a, &ev);
}

void store_open(struct sim *s, struct sim_agent *a, const struct supervisor_effect *spawn) {
  const struct start *t = spawn->spawn.start;
  struct sim_store *st = &a->store;
  strncpy(a->head_addr, t->head_addr, ADDR_MAX);
  a->head_port = (uint32_t)t->store_port;
  strncpy(a->took_inc, t->incarnation, INCARNATION_MAX);
  strncpy(a->account_inc, t->incarnation, INCARNATION_MAX);
  a->took_round = t->round;
  if (t->node_rank != 0) return;
  struct place *p = book_place(book_round(s->checker, t->incarnation, t->round), a);
  if (p) p->served = true;
  if (st->open)
    sim_violate(s, INV_STORE_ENDS, "%s serves round %" PRId64 " and is to serve round %" PRId64 " as well", a->name,
                st->round, t->round);
  if (t->store_port != a->ready_port)
    sim_violate(s, INV_STORE_THERE, "%s is to serve round %" PRId64 " on port %" PRId64 ", but has %u ready", a->name,
                t->round, t->store_port, a->ready_port);
  bytes_unref(st->guests);
  *st = (struct sim_store){.open = true, .port = a->ready_port, .round = t->round, .world = (uint32_t)t->world_size};
  strncpy(st->incarnation, t->incarnation, INCARNATION_MAX);
  st->guests = spawn->bytes ? bytes_ref(spawn->bytes) : NULL;
  if (s->config.stores)
    sim_trace(s, "%s: serves the store of round %" PRId64 " on port %u", a->name, st->round, st->port);
  if (s->mutator && s->mutator->store) s->mutator->store(s, a);
  store_make_ready(s, a);
}

void store_close(struct sim *s, struct sim_agent *a) {
  if (a->store.open && s->config.stores)
    sim_trace(s, "%s: closes the store of round %" PRId64, a->name, a->store.round);
  a->store.open = a->store.shut = false;
  a->store.over = false;
}

void store_free(struct sim_agent *a) {
  bytes_unref(a->store.guests);
}

static struct sim_agent *who_serves(struct sim *s, const struct sim_agent *a) {
  for (int i = 0; i < s->n_agents; i++) {
    struct sim_agent *b = s->agents[i];
    if (b->store.open && b->store.port == a->head_port && !strcmp(b->node->addr, a->head_addr)) return b;
  }
  return NULL;
}

static bool is_let_in(const struct sim_agent *server, const struct sim_agent *a) {
  if (server->node == a->node) return true;
  struct allowed_addrs g;
  struct ipaddr ip = ipaddr_parse(a->node->addr);
  const struct bytes *b = server->store.guests;
  allowed_addrs_init(&g, b ? b->data : NULL, b ? b->len : 0, NULL, 0);
  bool in = allowed_addrs_has(&g, &ip);
  allowed_addrs_finish(&g);
  return in;
}

/* What is left of an old round, and finds another store at the port of old (--store-port, or its head has never heard
 * of that round and serves the next one there): turned away, unless its node is in the new round, and then it should
 * not run any more. */
static void reach_another(struct sim *s, struct sim_agent *a, struct sim_worker *w, const struct sim_agent *b) {
  struct round_book *r = book_find(s->checker, a->incarnation, a->round);
  const struct place *p = r ? book_place(r, b) : NULL;
  bool same_port = s->config.store_port || !p || !p->served; /* as it may be */
  bool known = !is_let_in(b, a) || (same_port && (w->killed || allowed_to_run_on(s, a, w)));
  if (known || s->two) return;
  sim_violate(s, INV_STORE_OWN, "rank %u of round %u on %s reaches the store of round %" PRId64 " on %s", w->rank,
              a->round, a->name, b->store.round, b->name);
}

/* Who is to meet the others waits until all have come; then all go on. */
static void come(struct sim *s, struct sim_store *st, struct sim_worker *w) {
  w->there = true;
  if (++st->there < st->world) return;
  sim_trace(s, "all %u ranks of round %" PRId64 " have met", st->world, st->round);
  for (int i = 0; i < s->n_agents; i++)
    if (s->agents[i]->round == st->round && !strcmp(s->agents[i]->incarnation, st->incarnation))
      guard_all_met(s, s->agents[i]);
}

void store_knock(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  struct sim_agent *b = who_serves(s, a);
  if (b && b->store.shut && !w->reached) return; /* the connection is refused, and it tries again */
  bool own = b && b->store.round == a->round && !strcmp(b->store.incarnation, a->incarnation);
  if (!b) {
    check_store_missing(s, a, w);
  } else if (!own) {
    reach_another(s, a, w, b);
  } else if (!is_let_in(b, a)) {
    sim_violate(s, INV_STORE_THERE, "rank %u of round %u on %s is turned away by the store of its round", w->rank,
                a->round, a->name);
  } else if (s->config.stores && !w->knocked) {
    sim_trace(s, "%s: rank %u reaches the store of round %u at port %u", a->name, w->rank, a->round, a->head_port);
  }
  if (own && w->has_to_meet && !w->there && s->violated == INV_NONE) come(s, &b->store, w);
  w->reached = own;
  w->knocked = true;
}

/* Not from the run's own randomness: what is told in a story does not depend on who knocks when. */
uint64_t store_next_knock(const struct sim *s, const struct sim_worker *w) {
  if (w->has_to_meet && !w->there) return s->now + KNOCK_AGAIN_MS; /* node rank 0 may not have had START yet */
  uint64_t z = (s->now + 1) * 0x9e3779b97f4a7c15u ^ (w->rank + 1) * 0xbf58476d1ce4e5b9u ^ s->config.seed;
  z = (z ^ (z >> 31)) * 0x94d049bb133111ebu;
  return s->now + KNOCK_MIN_MS + (z >> 32) % (KNOCK_MAX_MS - KNOCK_MIN_MS);
}
