/* SPDX-License-Identifier: Apache-2.0 */
/* The checker's book. A round's page is opened by whoever names the round first, since messages about it may be seen
 * in any order: STOP before START has been read, a report before either. Rounds are looked for from the latest
 * backwards; nearly every question is about the one that runs. */

#include "tests/sim/book.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

struct checker *checker_create(void) {
  return xcalloc(1, sizeof(struct checker));
}

void checker_destroy(struct checker *k) {
  free(k->rounds);
  free(k->ends);
  free(k->heard);
  free(k->accounts);
  free(k);
}

struct round_book *book_find(const struct checker *k, const char *incarnation, int64_t round) {
  for (size_t i = k->n_rounds; i-- > 0;)
    if (k->rounds[i].round == round && !strcmp(k->rounds[i].incarnation, incarnation)) return &k->rounds[i];
  return NULL;
}

struct round_book *book_round(struct checker *k, const char *incarnation, int64_t round) {
  struct round_book *r = book_find(k, incarnation, round);
  if (r) return r;
  if (k->n_rounds == k->cap_rounds) {
    k->cap_rounds = k->cap_rounds ? 2 * k->cap_rounds : 16;
    k->rounds = xrealloc(k->rounds, k->cap_rounds * sizeof *k->rounds);
  }
  r = &k->rounds[k->n_rounds++];
  memset(r, 0, sizeof *r);
  strncpy(r->incarnation, incarnation, INCARNATION_MAX);
  r->round = round;
  return r;
}

struct place *book_place(struct round_book *r, const struct sim_agent *a) {
  for (int i = 0; i < r->n_places; i++)
    if (r->places[i].agent == a) return &r->places[i];
  return NULL;
}

const struct told_failure *book_failure(const struct round_book *r, const struct verdict *v) {
  for (int i = 0; i < r->n_failures; i++)
    if (r->failures[i].rank == v->rank && r->failures[i].cause == v->cause) return &r->failures[i];
  return NULL;
}

bool book_several(const struct sim *s) {
  return s->two || (s->config.takeover && s->ids > 1);
}

bool book_remembers(const struct sim *s) {
  return s->config.state_dir && !book_several(s);
}

uint32_t book_life(const struct sim_agent *a) {
  return a->conn->daemon_life;
}
