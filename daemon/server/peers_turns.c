/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon has one thread. What it does for a peer that it does not know yet is done in turn: the first bytes of a
 * connection with its opening, and each message before the peer has said who it is. So is each HELLO, because it costs
 * more than other messages.
 *
 *   first bytes, or such a message -> the line of the peer's source -> its turn -> peer_arrive, or conn_resume
 *
 * A stranger stands in the line of its address, and a peer that has shown a key in that of its user. One peer of each
 * line is served before the next one of any. So a user with thousands of connections costs each of the others the time
 * of one of them. There may be as many strangers' lines as addresses. So these are one half, and the users' lines the
 * other: each half has every second turn.
 *
 * There is no number of peers a second that would be too many. Ten thousand agents of one user that come back at once
 * are served as fast as the daemon can, as long as nobody else waits. A turn of the loop serves the lines for
 * PEERS_TURN_US, and then looks at the sockets, where new ones and known agents wait. A job needs about ten turns of
 * the loop to start. */

#include <stddef.h>
#include "daemon/server/peers_internal.h"

/* The half of its line. At the control socket the kernel names the user. */
static struct waiting_room *half_of(const struct peer *p) {
  return p->account[0] || p->local ? &p->peers->keyed : &p->peers->keyless;
}

void peer_leave_line(struct peer *p) {
  room_leave(half_of(p), &p->turn);
}

static bool serve(struct newcomer *n) {
  if (!n) return false;
  struct peer *p = (struct peer *)((char *)n - offsetof(struct peer, turn));
  peer_leave_line(p);
  if (p->arrival) {
    peer_arrive(p);
    return true;
  }
  p->its_turn = true;
  if (!peer_is_paused(p)) conn_resume(&p->conn); /* else it goes on at the end of its pause */
  return true;
}

/* While the idle handle is active, the loop does not sleep. */
static void on_turn(uv_idle_t *idle) {
  struct peers *ps = idle->data;
  uint64_t end = uv_hrtime() + PEERS_TURN_US * 1000ull;
  bool served = true;
  while (served && uv_hrtime() < end) {
    served = serve(room_next(&ps->keyless));
    served = serve(room_next(&ps->keyed)) || served;
  }
  if (!served) uv_idle_stop(idle);
}

void peer_wait(struct peer *p) {
  struct peers *ps = p->peers;
  room_enter(half_of(p), &p->turn, peer_source(p), boot_ms());
  uv_idle_start(&ps->turns, on_turn);
}

bool peer_may_take(struct conn *c, enum msg_type type) {
  struct peer *p = c->owner;
  bool may = p->its_turn || (p->identified && type != MSG_HELLO);
  p->its_turn = false;
  if (!may && !p->turn.source) peer_wait(p); /* it may be in line: its pause has ended */
  return may;
}

void peers_begin_turns(struct peers *ps, uint64_t seed) {
  room_init(&ps->keyless, seed);
  room_init(&ps->keyed, seed);
  uv_idle_init(ps->loop, &ps->turns);
  ps->turns.data = ps;
}

void peers_end_turns(struct peers *ps) {
  uv_close((uv_handle_t *)&ps->turns, NULL);
}
