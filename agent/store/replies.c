/* SPDX-License-Identifier: Apache-2.0 */
/* Whoever asks may ask often, so answers are sent at this agent's own pace. Those to several questions go out together,
 * under the serial number of the last of them. A connection that is asked about again keeps its place, and counts once:
 * the one who asks counts answers.
 *
 * The first question after a silence is answered at once. */

#include "agent/store/replies.h"

#include <stdlib.h>
#include "common/map.h"
#include "common/mem.h"

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
