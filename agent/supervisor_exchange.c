/* What workers say through the sdk: values for all ranks, and how far they are.
 *
 * Values wait until all local workers have given theirs, then go to the daemon in one message; the answer goes back
 * to all of them. After every WELCOME all values of the round are sent again: a daemon that was restarted has
 * none, and other nodes may still wait for the answer that this one already has.
 *
 * Progress is sampled: the latest of each worker is kept, and twice a second the node's slowest step goes to the daemon. */

#include "agent/supervisor_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

void sup_exchanges_clear(struct supervisor *s) {
  for (size_t i = 0; i < s->n_exchanges; i++) {
    free(s->exchanges[i].values);
    free(s->exchanges[i].given);
  }
  memset(s->exchanges, 0, sizeof s->exchanges);
  s->n_exchanges = 0;
}

static struct own_exchange *find(struct supervisor *s, const char *key) {
  for (size_t i = 0; i < s->n_exchanges; i++)
    if (!strcmp(s->exchanges[i].key, key)) return &s->exchanges[i];
  return NULL;
}

static struct own_exchange *add(struct supervisor *s, const char *key, uint32_t size) {
  if (s->n_exchanges == EXCHANGES_MAX) return NULL;
  struct own_exchange *x = &s->exchanges[s->n_exchanges++];
  snprintf(x->key, sizeof x->key, "%s", key);
  x->size = size;
  x->values = xcalloc((size_t)s->config.workers, size);
  x->given = xcalloc((size_t)s->config.workers, sizeof *x->given);
  return x;
}

static void answer(struct supervisor *s, const char *key, struct bytes *values, const char *error) {
  struct supervisor_effect *e = sup_effect(s, SUP_EXCHANGED);
  e->round = (uint32_t)s->round;
  e->text = xstrdup(key);
  e->bytes = values;
  e->error_text = error ? xstrdup(error) : NULL;
}

static void send_values(struct supervisor *s, const struct own_exchange *x) {
  struct msg m;
  msg_init(&m, MSG_EXCHANGE);
  m.exchange.incarnation = s->incarnation;
  m.exchange.round = s->round;
  m.exchange.key = x->key;
  m.exchange.size = x->size;
  m.raw = x->values;
  m.raw_len = (size_t)s->config.workers * x->size;
  sup_send(s, &m);
}

void sup_exchange(struct supervisor *s, const struct supervisor_event *ev) {
  bool running = s->state == SUPERVISOR_STARTING || s->state == SUPERVISOR_RUNNING;
  if (!running || ev->round != s->round || ev->local_rank >= s->config.workers) return;
  if (!ev->text[0] || strlen(ev->text) > EXCHANGE_KEY_MAX || !ev->size || ev->size > EXCHANGE_VALUE_MAX) {
    answer(s, ev->text, NULL, "a key has 1 to 63 bytes and a value 1 to 256");
    return;
  }
  struct own_exchange *x = find(s, ev->text);
  if (!x) x = add(s, ev->text, ev->size);
  if (!x) {
    answer(s, ev->text, NULL, "too many keys were exchanged in this round");
    return;
  }
  if (x->size != ev->size) {
    answer(s, ev->text, NULL, "ranks of this node give values of different sizes for this key");
    return;
  }
  if (x->answered && x->given[ev->local_rank]) {
    answer(s, ev->text, NULL, "this key has been used in this round");
    return;
  }
  if (x->given[ev->local_rank]) return;
  memcpy(x->values + (size_t)ev->local_rank * x->size, ev->data, x->size);
  x->given[ev->local_rank] = true;
  if (++x->have == s->config.workers) send_values(s, x);
}

void sup_exchanged(struct supervisor *s, const struct msg *m) {
  const struct exchanged *ed = &m->exchanged;
  struct own_exchange *x = find(s, ed->key);
  if (!x || x->answered || ed->round != s->round || strcmp(ed->incarnation, s->incarnation) != 0) return;
  x->answered = true;
  if (ed->error[0])
    answer(s, x->key, NULL, ed->error);
  else if (m->raw_len != (size_t)s->world_size * x->size)
    answer(s, x->key, NULL, "the daemon's answer has not the size of all ranks' values");
  else
    answer(s, x->key, bytes_create(m->raw, m->raw_len), NULL);
}

void sup_exchanges_resend(struct supervisor *s) {
  for (size_t i = 0; i < s->n_exchanges; i++)
    if (s->exchanges[i].have == s->config.workers) send_values(s, &s->exchanges[i]);
}

/* Progress. -------------------------------------------------------------------------------------------------------- */

void sup_progress(struct supervisor *s, const struct supervisor_event *ev) {
  if (ev->round != s->round || ev->local_rank >= s->config.workers || s->state != SUPERVISOR_RUNNING) return;
  struct worker *w = &s->workers[ev->local_rank];
  w->told_progress = true;
  w->step = ev->step <= INT64_MAX ? ev->step : INT64_MAX;
  w->of = ev->of <= INT64_MAX ? ev->of : INT64_MAX;
  w->loss = ev->loss;
  w->samples_per_second = ev->samples_per_second;
  if (!s->progress_new && s->progress_ms < s->now_ms) s->progress_ms = s->now_ms;
  s->progress_new = true;
  if (s->progress_ms == UINT64_MAX) s->progress_ms = s->now_ms;
}

const struct worker *sup_slowest(const struct supervisor *s, double *samples_per_second) {
  const struct worker *least = NULL;
  *samples_per_second = 0;
  for (int64_t i = 0; i < s->config.workers; i++) {
    const struct worker *w = &s->workers[i];
    if (!w->told_progress) continue;
    if (!least || w->step < least->step) least = w;
    if (isfinite(w->samples_per_second)) *samples_per_second += w->samples_per_second;
  }
  return least;
}

void sup_progress_tick(struct supervisor *s) {
  if (!s->progress_new || s->now_ms < s->progress_ms || s->state != SUPERVISOR_RUNNING) return;
  struct msg m;
  msg_init(&m, MSG_PROGRESS);
  const struct worker *w = sup_slowest(s, &m.progress.samples_per_second);
  if (!w) return;
  m.progress.incarnation = s->incarnation;
  m.progress.round = s->round;
  m.progress.step = (int64_t)w->step;
  m.progress.of = (int64_t)w->of;
  m.progress.loss = w->loss;
  sup_send(s, &m);
  sup_say_status(s);
  s->progress_new = false;
  s->progress_ms = s->now_ms + PROGRESS_EVERY_MS;
}

uint64_t sup_progress_deadline(const struct supervisor *s) {
  return s->progress_new && s->state == SUPERVISOR_RUNNING ? s->progress_ms : UINT64_MAX;
}
