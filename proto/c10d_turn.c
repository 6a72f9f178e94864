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
 * What a turn is for is kept in `due`, as several events may come before it. */

#include "proto/c10d_conn.h"

enum { TURN_NS = 10 * 1000 * 1000 };

static void on_idle(uv_idle_t *idle) {}

static void on_check(uv_check_t *check) {
  struct c10d_server *s = check->data;
  uint64_t end = uv_hrtime() + TURN_NS;
  do {
    struct c10d_conn *c = s->first_in_line;
    unsigned due = c->due;
    c10d_turn_drop(c);
    c10d_conn_serve(c, due);
  } while (s->first_in_line && uv_hrtime() < end);
}

void c10d_turns_init(struct c10d_server *s) {
  uv_check_init(s->loop, &s->check);
  uv_idle_init(s->loop, &s->idle);
  s->check.data = s->idle.data = s;
}

void c10d_turn_put(struct c10d_conn *c, unsigned due) {
  struct c10d_server *s = c->server;
  bool in_line = c->due != 0;
  c->due |= (uint8_t)due;
  if (in_line || due == 0) return;
  if (!s->first_in_line) {
    uv_check_start(&s->check, on_check);
    uv_idle_start(&s->idle, on_idle);
  }
  c->line_prev = s->last_in_line;
  *(s->last_in_line ? &s->last_in_line->line_next : &s->first_in_line) = c;
  s->last_in_line = c;
}

void c10d_turn_drop(struct c10d_conn *c) {
  struct c10d_server *s = c->server;
  if (c->due == 0) return;
  c->due = 0;
  *(c->line_prev ? &c->line_prev->line_next : &s->first_in_line) = c->line_next;
  *(c->line_next ? &c->line_next->line_prev : &s->last_in_line) = c->line_prev;
  c->line_prev = c->line_next = NULL;
  if (s->first_in_line) return;
  uv_check_stop(&s->check);
  uv_idle_stop(&s->idle);
}
