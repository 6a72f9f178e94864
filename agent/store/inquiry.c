/* SPDX-License-Identifier: Apache-2.0 */
/* A question has a serial number, and all connections that are asked about with it have the same. An answer brings the
 * number back, with the number of agents that were asked. So answers to a repeated question are counted from 0. An agent
 * may answer several questions together: then the number is the last one's, and counts for all of them.
 *
 * Somebody who opens connections must not make this agent send a message for each: the daemon bounds what an agent
 * sends. So connections that come while the last question is young wait for the next one, together. The first
 * connection after a silence is asked about at once. */

#include "agent/store/inquiry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/map.h"
#include "common/mem.h"

struct asked_about {
  uint64_t id;
  struct asked_about *prev, *next; /* in the order in which they are asked about */
  char addr[ADDR_MAX + 1];
  uint16_t port;
  int64_t serial; /* of the last question; 0: none */
  uint64_t again_ms;
  int64_t no; /* answers */
  bool has_other;
  struct store_owner other; /* of such an answer; its name is below */
  char name[PROCESS_NAME_MAX + 1], host[HOST_MAX + 1];
};

struct inquiry {
  struct map by_id;
  struct asked_about *first, *last;
  int64_t serial;
  uint64_t next_ms; /* no question before */
};

struct inquiry *inquiry_create(uint64_t seed) {
  struct inquiry *q = xcalloc(1, sizeof *q);
  map_init(&q->by_id, seed);
  return q;
}

static struct asked_about *find(const struct inquiry *q, uint64_t id) {
  return map_get_n(&q->by_id, &id, sizeof id);
}

static void leave(struct inquiry *q, struct asked_about *w) {
  *(w->prev ? &w->prev->next : &q->first) = w->next;
  *(w->next ? &w->next->prev : &q->last) = w->prev;
  w->prev = w->next = NULL;
}

void inquiry_add(struct inquiry *q, uint64_t id, const char *addr, uint16_t port) {
  struct asked_about *w = xcalloc(1, sizeof *w);
  w->id = id;
  w->port = port;
  snprintf(w->addr, sizeof w->addr, "%s", addr);
  map_put_n(&q->by_id, &w->id, sizeof w->id, w);
  w->next = q->first; /* before those that were asked about */
  *(q->first ? &q->first->prev : &q->last) = w;
  q->first = w;
}

static void drop(struct inquiry *q, struct asked_about *w) {
  leave(q, w);
  map_remove_n(&q->by_id, &w->id, sizeof w->id);
  free(w);
}

bool inquiry_drop(struct inquiry *q, uint64_t id) {
  struct asked_about *w = find(q, id);
  if (w) drop(q, w);
  return w != NULL;
}

void inquiry_destroy(struct inquiry *q) {
  if (!q) return;
  while (q->first) drop(q, q->first);
  map_finish(&q->by_id);
  free(q);
}

void inquiry_repeat(struct inquiry *q) {
  for (struct asked_about *w = q->first; w; w = w->next) w->again_ms = 0;
}

/* Those that are due are in front: a question moves its connections to the end. */
size_t inquiry_next(struct inquiry *q, uint64_t now_ms, struct store_caller *out, int64_t *serial) {
  size_t n = 0;
  if (now_ms < q->next_ms) return 0;
  for (struct asked_about *w; n < OWNERS_MAX && (w = q->first) && w->again_ms <= now_ms; n++) {
    if (n == 0) *serial = ++q->serial;
    leave(q, w);
    w->prev = q->last;
    *(q->last ? &q->last->next : &q->first) = w;
    q->last = w;
    w->serial = *serial;
    w->again_ms = now_ms + INQUIRY_AGAIN_MS;
    w->no = 0;
    out[n] = (struct store_caller){.id = (int64_t)w->id, .addr = w->addr, .port = w->port};
  }
  if (n) q->next_ms = now_ms + OWNERS_EVERY_MS;
  return n;
}

uint64_t inquiry_deadline(const struct inquiry *q) {
  return q->first ? latest(q->first->again_ms, q->next_ms) : UINT64_MAX;
}

static void judge(struct inquiry *q, struct asked_about *w, const struct store_owner *o, const char *host,
                  const struct inquiry_callbacks *cb, void *ctx) {
  uint64_t id = w->id;
  if (o->is == OWNERSHIP_OWN || o->is == OWNERSHIP_UNKNOWN) {
    drop(q, w);
    if (o->is == OWNERSHIP_OWN)
      cb->admit(ctx, id);
    else
      cb->admit_unknown(ctx, id, host);
    return;
  }
  if (o->is == OWNERSHIP_OTHER) {
    w->has_other = true;
    w->other = *o;
    snprintf(w->name, sizeof w->name, "%s", o->name);
    snprintf(w->host, sizeof w->host, "%s", host);
    w->other.name = w->name;
  }
  if (++w->no < o->asked) return;
  cb->refuse(ctx, id, w->has_other ? &w->other : NULL, w->host);
  drop(q, w);
}

void inquiry_answer(struct inquiry *q, const struct owners *owners, const struct inquiry_callbacks *cb, void *ctx) {
  for (size_t i = 0; i < owners->n_owners; i++) {
    const struct store_owner *o = &owners->owners[i];
    struct asked_about *w = find(q, (uint64_t)o->id);
    if (w && w->serial && w->serial <= owners->serial) judge(q, w, o, owners->host, cb, ctx);
  }
}

/* Answers to others. ----------------------------------------------------------------------------------------------- */

/* Whoever asks may ask often, so answers are sent at this agent's own pace. Those to several questions go out together,
 * under the serial number of the last of them. A connection that is asked about again keeps its place, and counts once:
 * the one who asks counts answers.
 *
 * The first question after a silence is answered at once. */

struct waiting_reply {
  struct reply is; /* its id is the key */
  int64_t serial;
};

struct replies {
  struct map by_id; /* in the order in which they came */
  uint64_t next_ms; /* no answer before */
};

struct replies *replies_create(uint64_t seed) {
  struct replies *r = xcalloc(1, sizeof *r);
  map_init(&r->by_id, seed);
  return r;
}

void replies_clear(struct replies *r) {
  for (struct map_entry *e = NULL; (e = map_next(&r->by_id, e));) {
    free(e->value);
    map_remove_n(&r->by_id, e->key, e->key_len);
  }
}

void replies_destroy(struct replies *r) {
  if (!r) return;
  replies_clear(r);
  map_finish(&r->by_id);
  free(r);
}

void replies_add(struct replies *r, const struct find_owners *ask) {
  struct ipaddr to = ipaddr_parse(ask->addr);
  for (size_t i = 0; i < ask->n_callers; i++) {
    const struct store_caller *c = &ask->callers[i];
    struct waiting_reply *w = map_get_n(&r->by_id, &c->id, sizeof c->id);
    if (!w && r->by_id.count >= REPLIES_MAX) continue;
    if (!w) {
      w = xcalloc(1, sizeof *w);
      map_put_n(&r->by_id, &c->id, sizeof c->id, w);
    }
    w->serial = ask->serial;
    w->is = (struct reply){c->id, c->asked, ipaddr_parse(c->addr), to, (uint16_t)c->port, (uint16_t)ask->port};
  }
}

size_t replies_next(struct replies *r, uint64_t now_ms, struct reply *out, int64_t *serial) {
  size_t n = 0;
  if (!r->by_id.count || now_ms < r->next_ms) return 0;
  *serial = 0;
  for (struct map_entry *e = NULL; n < OWNERS_MAX && (e = map_next(&r->by_id, e));) {
    struct waiting_reply *w = e->value;
    if (w->serial > *serial) *serial = w->serial;
    out[n++] = w->is;
    free(w);
    map_remove_n(&r->by_id, e->key, e->key_len);
  }
  r->next_ms = now_ms + OWNERS_EVERY_MS;
  return n;
}

uint64_t replies_deadline(const struct replies *r) {
  return r->by_id.count ? r->next_ms : UINT64_MAX;
}
