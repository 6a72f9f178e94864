/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory connections hold: what has come of unfinished messages, and what the peer has not read.
 *
 * One connection may hold much, but many of them together may not. Unidentified ones count together, and those who began
 * long ago give way. Identified ones count by user, so nobody can make the daemon the kernel's choice when memory runs
 * out; those who hold more than their part of the user's share give way. Nothing is counted while there are so few
 * connections that it could not matter. */

#include <stdlib.h>
#include <unistd.h>
#include "common/deadline.h"
#include "common/map.h"
#include "common/mem.h"
#include "daemon/server/peers_internal.h"

static bool is_crowded(const struct peers *ps) {
  return ps->unrecognized.count + ps->framed.count > PEERS_UNIDENTIFIED_BYTES / FRAME_MAX_UNIDENTIFIED;
}

static bool users_may_be_heavy(const struct peers *ps) {
  return ps->n_identified > ps->user_bytes / (CONN_QUEUE_MAX + FRAME_MAX_TO_DAEMON);
}

uint64_t peers_weigh_deadline(const struct peers *ps) {
  uint64_t rooms = is_crowded(ps) ? ps->weighed_ms + PEERS_WEIGH_MS : UINT64_MAX;
  return earliest(rooms, users_may_be_heavy(ps) ? ps->weighed_users_ms + PEERS_WEIGH_USERS_MS : UINT64_MAX);
}

static size_t bytes_of(const struct peer *p) {
  return p->first.cap + p->request.cap + (p->arrival ? 0 : p->conn.wire.cap + p->conn.in.cap);
}

struct load {
  size_t bytes, n;
};

static size_t load_of(const struct peer *p) {
  return bytes_of(p) + p->conn.queued;
}

bool peer_has_share(const struct peer *p) {
  return p->identified && p->uid != 0 && p->uid != (int64_t)geteuid();
}

/* Without keys nobody is known: an address stands for its users. */
static struct load *load_of_user(struct map *loads, const struct peer *p) {
  const void *key = p->uid >= 0 ? (const void *)&p->uid : p->addr;
  size_t len = p->uid >= 0 ? sizeof(p->uid) : sizeof(p->addr);
  struct load *l = map_get_n(loads, key, len);
  if (l) return l;
  l = xcalloc(1, sizeof(*l));
  map_put_n(loads, key, len, l);
  return l;
}

/* If all of a user hold more than may be, some hold more than their part. Without these the rest is light enough. */
static void lighten(struct peer *p, struct load *l) {
  size_t bytes = load_of(p), most = p->peers->user_bytes;
  if (l->bytes <= most || bytes <= most / l->n) return;
  l->bytes -= bytes;
  say(p, LOG_WARN,
      "%s: closed: it holds %zu MiB of messages that are unfinished or that it does not read, and its %s %zu MiB",
      p->name, bytes >> 20, p->uid >= 0 ? "user" : "address", (l->bytes + bytes) >> 20);
  peer_drop_and_tell(p, false);
}

void peers_weigh(struct peers *ps, uint64_t now) {
  if (is_crowded(ps) && now >= ps->weighed_ms + PEERS_WEIGH_MS) {
    ps->weighed_ms = now;
    struct waiting_room *const rooms[] = {&ps->unrecognized, &ps->framed};
    size_t sum = 0;
    for (int i = 0; i < 2; i++)
      for (struct newcomer *n = rooms[i]->oldest; n; n = n->newer) sum += bytes_of(peer_of(n));
    for (int i = 0; i < 2; i++)
      for (struct newcomer *n = rooms[i]->oldest, *newer; n && sum > PEERS_UNIDENTIFIED_BYTES; n = newer) {
        const struct peer *p = peer_of(n);
        size_t bytes = bytes_of(p);
        newer = n->newer;
        if (bytes == 0 || (p->arrival && p->turn.source)) continue; /* its turn comes, and its bytes are few */
        sum -= bytes;
        peer_push_out(n, "unfinished messages of unidentified connections take too much memory");
      }
  }
  if (users_may_be_heavy(ps) && now >= ps->weighed_users_ms + PEERS_WEIGH_USERS_MS) {
    ps->weighed_users_ms = now;
    struct map loads;
    map_init(&loads, ps->serial);
    for (size_t i = 0; i < ps->n_slots; i++) {
      struct peer *p = ps->slots[i];
      if (!p || !peer_has_share(p)) continue;
      struct load *l = load_of_user(&loads, p);
      l->bytes += load_of(p);
      l->n++;
    }
    for (size_t i = 0; i < ps->n_slots; i++)
      if (ps->slots[i] && peer_has_share(ps->slots[i])) lighten(ps->slots[i], load_of_user(&loads, ps->slots[i]));
    for (struct map_entry *e = NULL; (e = map_next(&loads, e));) free(e->value);
    map_finish(&loads);
  }
}
