/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's connections.
 *
 *   accept -> limits -> first bytes -> c10d: the descriptor goes to the common store's server
 *                                   -> native: a channel -> GREETING -> messages go up -> identified (by the owner)
 *                                   -> HTTP: one request, one answer (daemon/server/http.c), closed
 *                                   -> anything else: closed
 *
 * Every way out but the owner's own ends in one log line that names the peer. Lines about unidentified peers go through
 * rations_log, because a stranger can cause them, and so do those about peers of users who have a share.
 *
 * A peer shows whose key it has when it opens its channel. The daemon's own key stands for the daemon's user. Each other
 * user's key is derived from it, so none is stored. With --insecure connections are plain, and nobody is known.
 *
 * Connections are numbered in the order of their accepts. The table that finds them is indexed by the number's low bits
 * and at most half full. A number with an occupied slot is skipped, so there are no collisions, and an effect for a
 * closed connection finds nothing.
 *
 * Until its first bytes have shown the protocol a connection is only a descriptor, so that of a PyTorch client can be
 * handed over with the bytes that were read. A silent connection is handed over at its deadline if the store's server
 * takes it for the silent second one of a PyTorch 1.13 client; only that server knows the first. Every other connection
 * becomes a struct conn, which looks at the bytes again.
 *
 * What a connection makes the daemon do before it has said who it is, it does in turn (peers_turns.c).
 *
 * Unidentified connections wait in two rooms (daemon/server/waiting_room.h): strangers, then those that speak our frames.
 * The order in a room is that of the deadlines. So there is no timer per connection: the server asks for the first
 * deadline and calls peers_expire. A stranger whose last bytes are still on their way out, such as an answer over HTTP,
 * stays until its descriptor is closed, so the limits hold for it too.
 *
 * An identified peer that sends too much is not read from for a moment (peers_pause). Such peers are in a room of their
 * own, whose order is that of their deadlines too. Their bytes wait in the kernel, so the peer is slowed down.
 *
 * A newcomer is never refused for the sake of connections that have said nothing: at a limit, the one gives way that
 * waiting_room.h names. Strangers give way first. Only identified connections keep a newcomer out, and root's rdzvctl has
 * room beyond that. */

#include "daemon/server/peers.h"

#include <stdlib.h>
#include "common/deadline.h"
#include "common/key/secret.h"
#include "common/mem.h"
#include "daemon/server/peers_internal.h"

const char *peer_source(const struct peer *p) {
  return p->account[0] ? p->account : p->where;
}

/* The table -------------------------------------------------------------------------------------------------------- */

static struct peer **slot_of(const struct peers *ps, uint64_t id) {
  return &ps->slots[id & (ps->n_slots - 1)];
}

static struct peer *find(const struct peers *ps, uint64_t id) {
  struct peer *p = ps->n_slots ? *slot_of(ps, id) : NULL;
  return p && p->id == id ? p : NULL;
}

void peer_take_slot(struct peer *p) {
  struct peers *ps = p->peers;
  if (2 * ps->n_open >= ps->n_slots) {
    /* Numbers that differ in a small table differ in a larger one. */
    struct peer **old = ps->slots;
    size_t n = ps->n_slots;
    ps->n_slots = n ? 2 * n : 64;
    ps->slots = xcalloc(ps->n_slots, sizeof(*ps->slots));
    for (size_t i = 0; i < n; i++)
      if (old[i]) *slot_of(ps, old[i]->id) = old[i];
    free(old);
  }
  do p->id = ++ps->serial;
  while (*slot_of(ps, p->id));
  *slot_of(ps, p->id) = p;
  ps->n_open++;
}

void peer_leave_slot(struct peer *p) {
  if (!p->id) return;
  *slot_of(p->peers, p->id) = NULL;
  p->peers->n_open--;
  p->peers->n_identified -= p->identified;
  p->id = 0;
}

/* The waiting rooms ------------------------------------------------------------------------------------------------ */

struct peer *peer_of(struct newcomer *n) {
  return (struct peer *)n;
}

void peer_enter_room(struct peer *p, struct waiting_room *room) {
  struct peers *ps = p->peers;
  uint64_t before = peers_deadline(ps);
  room_enter(room, &p->newcomer, p->where, boot_ms());
  if (peers_deadline(ps) < before) ps->cb.on_deadline(ps->ctx);
}

void peer_leave_room(struct peer *p) {
  struct peers *ps = p->peers;
  room_leave(p->identified ? &ps->paused : p->framed ? &ps->framed : &ps->unrecognized, &p->newcomer);
}

void peer_free(struct peer *p) {
  peer_leave_room(p);
  p->peers->n_held--;
  buf_wipe(&p->first);
  buf_wipe(&p->request);
  free(p->name);
  free(p);
}

void peer_drop(struct peer *p, bool flush) {
  peer_leave_room(p);
  peer_leave_slot(p);
  peer_leave_line(p);
  if (p->munge) munge_keys_cancel(p->munge);
  p->munge = NULL;
  if (p->answer) answer_cancel(p->answer);
  p->answer = NULL;
  p->framed = false;
  if (p->arrival) {
    peer_drop_arrival(p);
  } else if (!flush) {
    conn_close(&p->conn);
  } else {
    conn_close_flushed(&p->conn);
    if (!p->identified) peer_enter_room(p, &p->peers->unrecognized); /* until it is closed */
  }
}

struct peer_info peer_info_of(const struct peer *p) {
  return (struct peer_info){.id = p->id,
                            .peer_addr = p->addr,
                            .local_addr = p->local_addr,
                            .name = p->name,
                            .local = p->local,
                            .uid = p->uid};
}

void peer_drop_and_tell(struct peer *p, bool flush) {
  struct peer_info info = peer_info_of(p);
  peer_drop(p, flush);
  p->peers->cb.on_gone(p->peers->ctx, &info);
}

bool peer_push_out(struct newcomer *n, const char *why) {
  if (!n) return false;
  struct peer *p = peer_of(n);
  if (p->id) {
    say(p, LOG_WARN, "%s: closed to make room: %s", p->name, why);
    peer_drop_and_tell(p, false);
  } else { /* its answer is on its way out */
    peer_leave_room(p);
    conn_close(&p->conn);
  }
  return true;
}

/* For the owner ---------------------------------------------------------------------------------------------------- */

struct peers *peers_create(const struct peers_options *o) {
  struct peers *ps = xcalloc(1, sizeof(*ps));
  ps->loop = o->loop;
  ps->cb = *o->cb;
  ps->ctx = o->ctx;
  ps->max = o->max < PEERS_MAX ? o->max : PEERS_MAX;
  ps->user_bytes = o->user_bytes ? o->user_bytes : PEERS_USER_BYTES;
  ps->key = o->key;
  ps->key_source = o->key_source;
  ps->ephemeral = ephemeral_create();
  ps->answers = answers_create(o->loop);
  if (o->key) {
    ps->munge = munge_keys_create(o->loop, o->key, o->seed);
    ps->tickets = secret_alloc();
    key_of_tickets(o->key, ps->tickets);
  }
  acceptor_init(&ps->acceptor, o->loop, &peers_acceptor_callbacks, ps);
  rations_init(&ps->rations, o->seed);
  rations_init(&ps->known, o->seed);
  room_init(&ps->unrecognized, o->seed);
  room_init(&ps->framed, o->seed);
  room_init(&ps->paused, o->seed);
  peers_begin_turns(ps, o->seed);
  return ps;
}

void peers_destroy(struct peers *ps) {
  if (!ps) return;
  rations_finish(&ps->rations);
  rations_finish(&ps->known);
  ephemeral_destroy(ps->ephemeral);
  secret_free(ps->tickets);
  answers_destroy(ps->answers);
  room_finish(&ps->unrecognized);
  room_finish(&ps->framed);
  room_finish(&ps->paused);
  room_finish(&ps->keyless);
  room_finish(&ps->keyed);
  free(ps->slots);
  free(ps);
}

void peers_set_store(struct peers *ps, struct c10d_server *store) {
  ps->store = store;
}

void peers_resume(struct peers *ps) {
  acceptor_resume(&ps->acceptor);
}

bool peers_silent_beside(const struct peers *ps, const struct ipaddr *addr) {
  uint64_t now = boot_ms();
  for (struct newcomer *n = ps->unrecognized.oldest; n && now - n->since_ms >= C10D_SETTLE_MS; n = n->newer) {
    const struct peer *p = peer_of(n);
    if (peer_is_silent(p) && ipaddr_compare(&p->ip, addr) == 0) return true;
  }
  return false;
}

void peers_send(struct peers *ps, uint64_t id, struct bytes *b) {
  struct peer *p = find(ps, id);
  if (p)
    conn_send_bytes(&p->conn, b);
  else
    bytes_unref(b);
}

void peers_close(struct peers *ps, uint64_t id) {
  struct peer *p = find(ps, id);
  if (p) peer_drop(p, true);
}

void peers_identify(struct peers *ps, uint64_t id, const char *name, unsigned user_timeout_ms) {
  struct peer *p = find(ps, id);
  if (!p) return;
  log_debug("%s: is %s", p->name, name);
  if (!p->identified) peer_leave_room(p);
  uint64_t before = peers_deadline(ps);
  ps->n_identified += !p->identified;
  p->identified = true;
  if (peers_deadline(ps) < before) ps->cb.on_deadline(ps->ctx);
  free(p->name);
  p->name = xstrdup(name);
  p->conn.max_body = FRAME_MAX_TO_DAEMON;
  conn_set_user_timeout(&p->conn, user_timeout_ms);
}

bool peer_is_paused(const struct peer *p) {
  return p->identified && p->newcomer.source;
}

void peers_pause(struct peers *ps, uint64_t id) {
  struct peer *p = find(ps, id);
  if (!p || !p->identified || peer_is_paused(p)) return;
  conn_pause(&p->conn);
  peer_enter_room(p, &ps->paused);
}

size_t peers_undecided(const struct peers *ps) {
  return ps->framed.count;
}

uint64_t peers_deadline(const struct peers *ps) {
  const struct newcomer *const oldest[] = {ps->unrecognized.oldest, ps->framed.oldest};
  uint64_t at = peers_weigh_deadline(ps);
  for (int i = 0; i < 2; i++)
    if (oldest[i]) at = earliest(at, oldest[i]->since_ms + PEERS_IDENTIFY_MS);
  return ps->paused.oldest ? earliest(at, ps->paused.oldest->since_ms + PEERS_PAUSE_MS) : at;
}

void peers_expire(struct peers *ps, uint64_t now) {
  peers_weigh(ps, now);
  for (struct newcomer *n; (n = ps->paused.oldest) && now >= n->since_ms + PEERS_PAUSE_MS;) {
    peer_leave_room(peer_of(n));
    conn_resume(&peer_of(n)->conn);
  }
  while (now >= peers_deadline(ps)) {
    /* each branch takes it out of its room, or gives it a later deadline */
    bool framed = !ps->unrecognized.oldest ||
                  (ps->framed.oldest && ps->framed.oldest->since_ms < ps->unrecognized.oldest->since_ms);
    struct peer *p = peer_of(framed ? ps->framed.oldest : ps->unrecognized.oldest);
    if (!p->id) { /* its answer is on its way out */
      peer_leave_room(p);
      conn_close(&p->conn);
      continue;
    }
    if (peer_hand_over_silent(p)) continue;
    if (p->http) {
      peer_expire_http(p);
      continue;
    }
    say(p, LOG_WARN, "%s: closed: %s within %d s", p->name,
        p->turn.source ? "its turn did not come"
        : p->framed    ? "it did not say who it is"
                       : "it sent nothing that rdzvd understands",
        PEERS_IDENTIFY_MS / 1000);
    peer_drop_and_tell(p, false);
  }
}

void peers_close_all(struct peers *ps) {
  ps->store = NULL;
  ps->closed = true;
  acceptor_close(&ps->acceptor);
  for (size_t i = 0; i < ps->n_slots; i++)
    if (ps->slots[i]) peer_drop(ps->slots[i], true);
  answers_close(ps->answers);
  peers_end_turns(ps);
  munge_keys_destroy(ps->munge);
  ps->munge = NULL;
}
