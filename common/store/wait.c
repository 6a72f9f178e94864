/* SPDX-License-Identifier: Apache-2.0 */
/* Which client waits for which keys.
 *
 * A wait belongs to a client and has one node for every key that was missing when it was asked. The node hangs in the
 * key's list of waiters. When the key comes, all its nodes are taken off and counted. A wait learns nothing else of a
 * key, so a key that is deleted again still counts as seen, and a key that is named twice is counted twice. The cost
 * depends on the waiters of that key alone. A wait that is dropped takes its nodes out of their rings, one step each.
 *
 * A wait that has ended stands in the store's list of released waits until the owner asks, so the pure core never calls
 * back. It also stands in a list of its client, so that the client's own session can answer in the right order: WAIT,
 * SET and PING sent in one piece are answered in that order. */

#include "common/store/internal.h"

#include <errno.h>
#include <stdlib.h>
#include "common/mem.h"

static const size_t wait_cost = sizeof(struct store_wait) + STORE_BLOCK;
static const size_t awaited_cost = sizeof(struct awaited) + STORE_BLOCK;

/* Frees the nodes of a wait, and names that existed only for them. */
static void forget_awaited(struct store_wait *w) {
  struct store_client *c = w->client;
  struct store *s = c->store;
  for (struct awaited *a = w->awaited, *next; a; a = next) {
    next = a->next;
    if (a->extra) {
      chain_remove(&a->waiters);
      store_entry_tidy(s, a->extra->entry);
    }
    free(a);
  }
  s->bytes -= w->n_awaited * awaited_cost;
  c->n_awaited -= w->n_awaited;
  w->awaited = NULL;
  w->n_awaited = 0;
}

static void wait_destroy(struct store_wait *w) {
  if (!w) return;
  forget_awaited(w);
  chain_remove(&w->of_client);
  chain_remove(&w->released);
  w->client->store->bytes -= wait_cost;
  free(w);
}

/* The oldest waiter has seen the key. True: its wait has ended by that. */
static bool see_first(struct store_extra *x) {
  struct awaited *a = CHAIN_ENTRY(x->waiters.next, struct awaited, waiters);
  struct store_wait *w = a->wait;
  chain_remove(&a->waiters);
  a->extra = NULL;
  bool ended = --w->missing == 0 && w != w->client->asking;
  if (ended) {
    struct store_client *c = w->client;
    forget_awaited(w);
    chain_remove(&w->of_client);
    chain_append(&c->released, &w->of_client);
    chain_append(&c->store->released, &w->released);
  }
  return ended;
}

void store_wake_all(struct store *s, struct store_entry *entry) {
  if (!entry || !entry->extra) return;
  while (!chain_is_alone(&entry->extra->waiters)) see_first(entry->extra);
  store_entry_tidy(s, entry);
}

void store_wake_one(struct store *s, struct store_entry *entry) {
  while (!chain_is_alone(&entry->extra->waiters) && !see_first(entry->extra)) continue;
}

int store_wait_check(struct store_client *c, const struct store_entry *entry, size_t *bytes, struct err *e) {
  if (c->n_awaited >= c->store->config.max_waits)
    return err_set(e, -ENOSPC, "one client waits for %zu keys, which is the limit", c->n_awaited);
  *bytes = awaited_cost + (c->asking ? 0 : wait_cost);
  if (!entry || !entry->extra) *bytes += sizeof(struct store_extra) + STORE_BLOCK;
  return 0;
}

void store_await(struct store_client *c, struct store_entry *entry) {
  struct store *s = c->store;
  struct store_wait *w = c->asking;
  if (!w) {
    w = c->asking = xcalloc(1, sizeof(*w));
    w->client = c;
    chain_append(&c->waits, &w->of_client);
    chain_init(&w->released);
    s->bytes += wait_cost;
  }
  struct awaited *a = xmalloc(sizeof(*a));
  *a = (struct awaited){.extra = store_entry_extra(s, entry), .wait = w, .next = w->awaited};
  chain_append(&a->extra->waiters, &a->waiters);
  w->awaited = a;
  w->missing++;
  w->n_awaited++;
  c->n_awaited++;
  s->bytes += awaited_cost;
}

static void drop_asking(struct store_client *c) {
  struct store_wait *w = c->asking;
  c->asking = NULL;
  wait_destroy(w);
}

void store_wait_begin(struct store_client *c) {
  drop_asking(c);
}

static int await_key(struct store_client *c, struct slice key, struct err *e) {
  struct chain *names;
  int rc = store_join(c, key, &names, e);
  if (rc < 0) return rc;
  struct store_entry *entry = store_find(c->store, key);
  if (entry && (entry->has_value || (entry->extra && entry->extra->n_elements > 0))) return 0;
  struct store_need need = {0};
  rc = store_wait_check(c, entry, &need.bytes, e);
  if (!entry) need.bytes += store_entry_cost(key.len, 0);
  if (rc == 0) rc = store_check(c->store, key, need, e);
  if (rc < 0) return rc;
  store_await(c, entry ? entry : store_entry_add(c->store, key, 0, names));
  return 0;
}

int store_wait_key(struct store_client *c, struct slice key, struct err *e) {
  int rc = await_key(c, key, e);
  if (rc < 0) drop_asking(c);
  return rc;
}

bool store_wait_end(struct store_client *c) {
  struct store_wait *w = c->asking;
  c->asking = NULL;
  if (w && w->missing > 0) return false;
  wait_destroy(w);
  return true;
}

void store_cancel(struct store_client *c) {
  c->asking = NULL;
  while (!chain_is_alone(&c->waits)) wait_destroy(CHAIN_ENTRY(c->waits.next, struct store_wait, of_client));
}

void store_forget_waits(struct store_client *c) {
  store_cancel(c);
  store_take_released(c);
}

struct store_client *store_next_released(struct store *s) {
  if (chain_is_alone(&s->released)) return NULL;
  struct store_wait *w = CHAIN_ENTRY(s->released.next, struct store_wait, released);
  struct store_client *c = w->client;
  wait_destroy(w);
  return c;
}

size_t store_take_released(struct store_client *c) {
  size_t n = 0;
  for (; !chain_is_alone(&c->released); n++) wait_destroy(CHAIN_ENTRY(c->released.next, struct store_wait, of_client));
  return n;
}
