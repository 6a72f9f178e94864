/* SPDX-License-Identifier: Apache-2.0 */
#include "common/events/turns.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { MINUTE_MS = 60000 };

void turns_init(struct turns *t) {
  memset(t, 0, sizeof *t);
  t->last = &t->first;
}

void turn_free(struct turn *turn) {
  if (!turn) return;
  free(turn->name);
  free(turn->line);
  free(turn);
}

static struct turn *take(struct turns *t, struct turn **at) {
  struct turn *turn = *at;
  *at = turn->next;
  if (t->last == &turn->next) t->last = at;
  t->n--;
  return turn;
}

void turns_drop_all(struct turns *t) {
  while (t->first) {
    turn_free(take(t, &t->first));
    t->dropped++;
  }
}

void turns_finish(struct turns *t) {
  turns_drop_all(t);
}

/* The oldest that is not urgent gives way. */
static bool make_room(struct turns *t, bool urgent) {
  if (t->n < TURNS_QUEUE) return true;
  t->dropped++;
  if (!urgent) return false;
  struct turn **at = &t->first;
  while (*at && (*at)->urgent) at = &(*at)->next;
  if (!*at) return false;
  turn_free(take(t, at));
  return true;
}

bool turns_add(struct turns *t, const char *name, const char *line, bool urgent) {
  if (!make_room(t, urgent)) return false;
  struct turn *turn = xcalloc(1, sizeof *turn);
  *turn = (struct turn){.urgent = urgent, .name = xstrdup(name), .line = xstrdup(line)};
  *t->last = turn;
  t->last = &turn->next;
  t->n++;
  return true;
}

/* When the allowance lets the next one begin. */
static uint64_t allowed_ms(const struct turns *t) {
  return t->n_begun < TURNS_PER_MINUTE ? 0 : t->begun_ms[t->n_begun % TURNS_PER_MINUTE] + MINUTE_MS;
}

struct turn *turns_next(struct turns *t, uint64_t now_ms) {
  struct turn **at = &t->first;
  if (t->running >= TURNS_AT_ONCE) return NULL;
  bool allowed = now_ms >= allowed_ms(t);
  while (*at && !allowed && !(*at)->urgent) at = &(*at)->next;
  if (!*at) return NULL;
  struct turn *turn = take(t, at);
  if (!turn->urgent) t->begun_ms[t->n_begun++ % TURNS_PER_MINUTE] = now_ms;
  t->running++;
  return turn;
}

void turns_done(struct turns *t) {
  t->running--;
}

uint64_t turns_deadline(const struct turns *t) {
  return t->first && t->running < TURNS_AT_ONCE ? allowed_ms(t) : UINT64_MAX;
}
