/* SPDX-License-Identifier: Apache-2.0 */
#include "common/events/turns.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { MINUTE_MS = 60000 };

struct turn_owner {
  struct turn_owner *next;
  char *name;
  struct turn *first, **last;
  size_t n, running;
  uint64_t begun_ms[TURNS_PER_MINUTE]; /* a ring of the last ones that were not urgent */
  size_t n_begun;                      /* ever */
  size_t dropped;                      /* and not said */
  uint64_t said_ms;                    /* 0: nothing was */
};

void turns_init(struct turns *t) {
  memset(t, 0, sizeof *t);
}

static void turn_free(struct turn *turn) {
  free(turn->name);
  free(turn->line);
  free(turn);
}

static struct turn *take(struct turns *t, struct turn_owner *o, struct turn **at) {
  struct turn *turn = *at;
  *at = turn->next;
  if (o->last == &turn->next) o->last = at;
  o->n--;
  t->n--;
  return turn;
}

static void drop(struct turns *t, struct turn_owner *o, struct turn **at) {
  turn_free(take(t, o, at));
  o->dropped++;
  t->dropped++;
}

void turns_drop_all(struct turns *t) {
  for (struct turn_owner *o = t->owners; o; o = o->next)
    while (o->first) drop(t, o, &o->first);
}

static void remove_owner(struct turns *t, struct turn_owner **at) {
  struct turn_owner *o = *at;
  *at = o->next;
  t->n_owners--;
  free(o->name);
  free(o);
}

void turns_finish(struct turns *t) {
  turns_drop_all(t);
  while (t->owners) remove_owner(t, &t->owners);
}

/* Owners. ---------------------------------------------------------------------------------------------------------- */

static bool is_user(const struct turn_owner *o) {
  return o->name[0] != '\0';
}

/* It has nothing, and its allowance and its warnings are as a new one's. */
static bool is_idle(const struct turn_owner *o, uint64_t now_ms) {
  uint64_t last_ms = o->n_begun ? o->begun_ms[(o->n_begun - 1) % TURNS_PER_MINUTE] : 0;
  return !o->n && !o->running && (!o->n_begun || now_ms >= last_ms + MINUTE_MS) &&
         (!o->said_ms || now_ms >= o->said_ms + TURNS_WARN_MS) && !o->dropped;
}

/* A new one is served first. NULL: there are too many; "" has a place of its own. */
static struct turn_owner *find_owner(struct turns *t, uint64_t now_ms, const char *name) {
  for (struct turn_owner *o = t->owners; o; o = o->next)
    if (strcmp(o->name, name) == 0) return o;
  for (struct turn_owner **at = &t->owners; *at;) {
    if (is_idle(*at, now_ms))
      remove_owner(t, at);
    else
      at = &(*at)->next;
  }
  if (t->n_owners >= (*name ? TURNS_OWNERS : TURNS_OWNERS + 1)) return NULL;
  struct turn_owner *o = xcalloc(1, sizeof *o);
  *o = (struct turn_owner){.next = t->owners, .name = xstrdup(name)};
  o->last = &o->first;
  t->owners = o;
  t->n_owners++;
  return o;
}

static struct turn_owner *find_longest(const struct turns *t) {
  struct turn_owner *longest = t->owners;
  for (struct turn_owner *o = t->owners; o; o = o->next)
    if (o->n > longest->n) longest = o;
  return longest;
}

/* The oldest event of `o` that is not urgent gives way. */
static bool make_room(struct turns *t, struct turn_owner *o) {
  struct turn **at = &o->first;
  while (*at && (*at)->urgent) at = &(*at)->next;
  if (!*at) return false;
  drop(t, o, at);
  return true;
}

bool turns_add(struct turns *t, uint64_t now_ms, const char *owner, const char *name, const char *line, bool urgent) {
  struct turn_owner *o = find_owner(t, now_ms, owner);
  bool kept = true;
  if (!o) {
    t->dropped++;
    return false;
  }
  struct turn_owner *full = o->n >= TURNS_QUEUE ? o : is_user(o) && t->n >= TURNS_QUEUE_ALL ? find_longest(t) : NULL;
  if (full) {
    kept = false;
    if ((full == o && !urgent) || !make_room(t, full)) {
      o->dropped++;
      t->dropped++;
      return false;
    }
  }
  struct turn *turn = xcalloc(1, sizeof *turn);
  *turn = (struct turn){.of = o, .urgent = urgent, .name = xstrdup(name), .line = xstrdup(line)};
  *o->last = turn;
  o->last = &turn->next;
  o->n++;
  t->n++;
  return kept;
}

size_t turns_complain(struct turns *t, uint64_t now_ms, const char **owner) {
  for (struct turn_owner *o = t->owners; o; o = o->next) {
    size_t n = o->dropped;
    if (!n || (o->said_ms && now_ms < o->said_ms + TURNS_WARN_MS)) continue;
    o->dropped = 0;
    o->said_ms = now_ms ? now_ms : 1;
    *owner = o->name;
    return n;
  }
  return 0;
}

/* Runs. ------------------------------------------------------------------------------------------------------------ */

/* When the allowance lets the next one begin. */
static uint64_t allowed_ms(const struct turn_owner *o) {
  return o->n_begun < TURNS_PER_MINUTE ? 0 : o->begun_ms[o->n_begun % TURNS_PER_MINUTE] + MINUTE_MS;
}

static bool has_place(const struct turns *t, const struct turn_owner *o) {
  if (t->running >= TURNS_AT_ONCE) return false;
  return !is_user(o) || (o->running < TURNS_OF_USER_AT_ONCE && t->users_running < TURNS_AT_ONCE - 1);
}

struct turn *turns_next(struct turns *t, uint64_t now_ms) {
  for (struct turn_owner **at = &t->owners; *at; at = &(*at)->next) {
    struct turn_owner *o = *at;
    struct turn **first = &o->first;
    bool allowed = now_ms >= allowed_ms(o);
    while (*first && !allowed && !(*first)->urgent) first = &(*first)->next;
    if (!*first || !has_place(t, o)) continue;
    struct turn *turn = take(t, o, first);
    if (!turn->urgent) o->begun_ms[o->n_begun++ % TURNS_PER_MINUTE] = now_ms;
    o->running++;
    t->running++;
    t->users_running += is_user(o);
    /* The owner that was served goes to the end. */
    *at = o->next;
    while (*at) at = &(*at)->next;
    *at = o;
    o->next = NULL;
    return turn;
  }
  return NULL;
}

void turns_done(struct turns *t, struct turn *turn) {
  turn->of->running--;
  t->running--;
  t->users_running -= is_user(turn->of);
  turn_free(turn);
}

uint64_t turns_deadline(const struct turns *t) {
  uint64_t first = UINT64_MAX;
  for (const struct turn_owner *o = t->owners; o; o = o->next)
    if (o->n && has_place(t, o) && allowed_ms(o) < first) first = allowed_ms(o);
  return first;
}
