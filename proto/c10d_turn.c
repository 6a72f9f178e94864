/* Whose turn it is, and for how long.
 *
 * The loop is not the store's alone. In the agent it also carries the heartbeats by which the job lives, in the daemon those of all jobs, and one request may
 * cost a tenth of a second: a MULTI_GET of 256 MiB, a WAIT for 131,072 keys. A thousand clients that ask for that at once would keep the loop for
 * minutes if each got its turn whenever its socket is readable.
 *
 * So an event of a connection only puts it in line, at the end. After the loop has polled, the first in line have their turns until TURN_NS have passed; then the
 * rest must wait until timers have run and everybody else's sockets have been looked at. The idle handle keeps the loop from sleeping meanwhile, and runs
 * only while somebody stands in line. One turn of the loop costs the store TURN_NS and one request at most, and nobody is served twice
 * before all who came first.
 *
 * Replies that wait for slow readers take memory. When they take half of what all buffers may, the server is crowded, and who asks for a large one is parked: its
 * request stays where it is, and it is read no further. As readers take what is theirs, or are dropped because they do not, there is room again, and the parked
 * come before everybody else, in their order. So a thousand ranks that get 8 MiB each wait for each other, where otherwise most of them would be dropped; and
 * what is small is answered all the time.
 *
 * A request is large when it takes more than C10D_CHUNK; then its rest is read only when there is room for all of it, in a quarter of what all buffers may.
 * Else it is left to the kernel and its sender, in the order of coming. So those that were begun become whole, and a thousand ranks can set 8 MiB each at the same time.
 * Who was granted room and sends nothing for long goes where others want it. Lists (MULTI_SET) tell their size bit by bit: once begun, they go on.
 *
 * What a turn is for is kept in `due`, as several events may come before it. */

#include "proto/c10d_conn.h"

enum { TURN_NS = 10 * 1000 * 1000 };

static void enter(struct c10d_line *line, struct c10d_conn *c) {
  c->line = line;
  c->line_prev = line->last;
  *(line->last ? &line->last->line_next : &line->first) = c;
  line->last = c;
}

static void leave(struct c10d_conn *c) {
  struct c10d_line *line = c->line;
  if (!line) return;
  *(c->line_prev ? &c->line_prev->line_next : &line->first) = c->line_next;
  *(c->line_next ? &c->line_next->line_prev : &line->last) = c->line_prev;
  c->line_prev = c->line_next = NULL;
  c->line = NULL;
}

bool c10d_is_crowded(const struct c10d_server *s) {
  return s->buffered_out > s->config.max_buffered / 2;
}

static bool fits(const struct c10d_server *s, size_t need) {
  return s->granted == 0 || s->granted + need <= s->config.max_buffered / 4;
}

static struct c10d_conn *next(const struct c10d_server *s) {
  if (s->parked.first && !c10d_is_crowded(s)) return s->parked.first;
  if (s->wanting.first && fits(s, s->wanting.first->session.need)) return s->wanting.first;
  return s->line.first;
}

static void grant(struct c10d_conn *c, size_t need) {
  c->server->granted += need - c->granted;
  c->granted = need;
}

static void on_idle(uv_idle_t *idle) {}

static void on_check(uv_check_t *check) {
  struct c10d_server *s = check->data;
  uint64_t end = uv_hrtime() + TURN_NS;
  for (struct c10d_conn *c; (c = next(s));) {
    unsigned due = c->due;
    if (c->line == &s->wanting) grant(c, c->session.need);
    c10d_turn_drop(c);
    c10d_conn_serve(c, due);
    if (uv_hrtime() >= end) return;
  }
  uv_check_stop(&s->check);
  uv_idle_stop(&s->idle);
}

static void run(struct c10d_server *s) {
  if (s->closing) return;
  uv_check_start(&s->check, on_check);
  uv_idle_start(&s->idle, on_idle);
}

void c10d_turns_init(struct c10d_server *s) {
  uv_check_init(s->loop, &s->check);
  uv_idle_init(s->loop, &s->idle);
  s->check.data = s->idle.data = s;
}

void c10d_turn_put(struct c10d_conn *c, unsigned due) {
  struct c10d_server *s = c->server;
  bool parked = c->line == &s->parked || c->line == &s->wanting;
  c->due |= (uint8_t)due;
  if (c->line == &s->line || due == 0 || (parked && !(due & (C10D_DUE_WRITE | C10D_DUE_FAILED)))) return;
  leave(c);
  enter(&s->line, c);
  run(s);
}

void c10d_turn_drop(struct c10d_conn *c) {
  leave(c);
  c->due = 0;
}

void c10d_turn_park(struct c10d_conn *c) {
  c10d_room_release(c); /* its request is whole */
  leave(c);
  enter(&c->server->parked, c);
  c->due |= C10D_DUE_OWN;
}

void c10d_turn_room(struct c10d_server *s) {
  if (next(s)) run(s);
}

void c10d_room_release(struct c10d_conn *c) {
  struct c10d_server *s = c->server;
  if (c->granted == 0) return;
  s->granted -= c->granted;
  c->granted = 0;
  if (c->queue == &s->filling) c10d_queue_drop(c);
  c10d_turn_room(s);
}

void c10d_room_ask(struct c10d_conn *c) {
  struct c10d_server *s = c->server;
  size_t need = c->session.need > c->in.len ? c->session.need : 0;
  if (need <= C10D_CHUNK) {
    c10d_room_release(c);
    return;
  }
  if (c->granted == 0 && (s->wanting.first || !fits(s, need))) {
    leave(c);
    enter(&s->wanting, c);
    return;
  }
  if (need > c->granted) grant(c, need);
  if (!c->queue || c->queue == &s->filling) c10d_queue_put(&s->filling, c, c10d_now_ms());
}
