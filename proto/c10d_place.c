/* What connections of one address are to each other.
 *
 * A PyTorch 1.13 client opens two connections and says nothing on the second: it would be told there of keys that change, which
 * nobody uses. The server cannot see which two belong together, only that they come from one address; so an address may
 * keep as many silent connections as it has connections in the old numbering, and when one of those ends, so does the
 * silent one that was kept longest. Who speaks at last is silent no more.
 *
 * The same fact tells the numberings 1.13 and 2.1 apart, which differ only from number 7 on: 2.1 has no second
 * connection. Since every connection is silent for a moment after its accept, those of the last C10D_SETTLE_MS prove
 * nothing: eight ranks of 2.1 start on one host at once. A client of 1.13 that is younger than that may ask for number 8, which read
 * as 2.1's is not whole; such a request is looked at again when its companion has settled. */

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "proto/c10d_conn.h"

struct c10d_place *c10d_place_find(const struct c10d_server *s, const struct ipaddr *addr) {
  return map_get_n(&s->places, addr, sizeof(*addr));
}

void c10d_place_enter(struct c10d_conn *c, const struct ipaddr *addr, uint64_t now_ms) {
  struct c10d_server *s = c->server;
  struct c10d_place *p = c10d_place_find(s, addr);
  if (!p) {
    p = xcalloc(1, sizeof(*p));
    p->addr = *addr;
    map_put_n(&s->places, addr, sizeof(*addr), p);
  }
  p->n_conns++;
  if (p->n_silent++ == 0) p->silent_since_ms = now_ms;
  c->silent = true;
  c->place = p;
}

static void unkeep(struct c10d_conn *c) {
  if (!c->kept) return;
  struct c10d_place *p = c->place;
  *(c->beside_prev ? &c->beside_prev->beside_next : &p->kept) = c->beside_next;
  if (c->beside_next) c->beside_next->beside_prev = c->beside_prev;
  c->beside_prev = c->beside_next = NULL;
  c->kept = false;
  p->n_kept--;
}

void c10d_place_spoke(struct c10d_conn *c) {
  if (!c->silent) return;
  unkeep(c);
  c->silent = false;
  c->place->n_silent--;
}

void c10d_place_is_old(struct c10d_conn *c) {
  if (c->old) return;
  c->old = true;
  c->place->n_old++;
}

/* The longest kept stands last. */
void c10d_place_keep(struct c10d_conn *c) {
  struct c10d_place *p = c->place;
  c->beside_next = p->kept;
  if (p->kept) p->kept->beside_prev = c;
  p->kept = c;
  c->kept = true;
  p->n_kept++;
}

bool c10d_place_may_keep(const struct c10d_place *p) {
  return p->n_kept < p->n_old;
}

static struct c10d_conn *longest_kept(const struct c10d_place *p) {
  struct c10d_conn *c = p->kept;
  while (c && c->beside_next) c = c->beside_next;
  return c;
}

struct c10d_conn *c10d_place_leave(struct c10d_conn *c) {
  struct c10d_place *p = c->place;
  c10d_place_spoke(c);
  if (c->old) p->n_old--;
  c->place = NULL;
  if (--p->n_conns > 0) return p->n_kept > p->n_old ? longest_kept(p) : NULL;
  map_remove_n(&c->server->places, &p->addr, sizeof(p->addr));
  free(p);
  return NULL;
}

bool c10d_place_has_companion(const struct c10d_conn *c) {
  const struct c10d_server *s = c->server;
  const struct c10d_place *p = c->place;
  if (p->n_kept > 0 || (p->n_silent > 0 && c10d_now_ms() - p->silent_since_ms >= C10D_SETTLE_MS)) return true;
  return s->config.silent_beside && s->config.silent_beside(s->config.ctx, &p->addr);
}
