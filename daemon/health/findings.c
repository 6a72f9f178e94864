/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/health/findings.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

void findings_init(struct findings *all, uint64_t seed) {
  map_init(&all->hosts, seed);
  all->n = 0;
}

static void free_finding(struct finding *v) {
  free(v->value);
  free(v->usual);
  free(v->sentence);
  free(v);
}

void findings_finish(struct findings *all) {
  for (struct map_entry *e = NULL; (e = map_next(&all->hosts, e));) {
    struct odd_host *h = e->value;
    for (struct finding *next; h->first; h->first = next) {
      next = h->first->next;
      free_finding(h->first);
    }
    free(h);
  }
  map_finish(&all->hosts);
}

void findings_begin(struct findings *all) {
  for (struct map_entry *e = NULL; (e = map_next(&all->hosts, e));) {
    struct odd_host *h = e->value;
    h->is_here = false;
    for (struct finding *v = h->first; v; v = v->next) v->seen = false;
  }
}

void findings_note_host(struct findings *all, const char *host) {
  struct odd_host *h = map_get(&all->hosts, host);
  if (h) h->is_here = true;
}

static void put_sentence(const struct deviation *d, const char *value, const char *usual, struct buf *out) {
  const struct fact_kind *kind = &fact_kinds[d->fact];
  bool rises = kind->compare == FACT_RISES;
  buf_puts(out, kind->label);
  if (d->at[0]) buf_printf(out, " of %s", d->at);
  buf_printf(out, rises ? " rose by %s%s" : " is %s%s", value, d->note);
  if (d->by == ODD_BY_ITSELF) return;
  buf_printf(out, rises ? "; not on %s%zu of %zu " : "; %s on %zu of %zu ", rises ? "" : usual, d->agree, d->others);
  buf_puts(out, d->by == ODD_AMONG_NODES ? "like nodes" : "other GPUs of this node");
}

void findings_note(struct findings *all, const char *host, const struct deviation *d, uint64_t now_ms,
                   uint64_t wall_ms) {
  struct odd_host *h = map_get(&all->hosts, host);
  struct finding *v = h ? h->first : NULL;
  while (v && (v->fact != d->fact || strcmp(v->at, d->at) != 0)) v = v->next;
  if (!v && all->n >= (d->class == FACT_HINT ? FINDINGS_MAX : 4 * FINDINGS_MAX)) return;
  if (!h) {
    h = xcalloc(1, sizeof *h);
    h->is_here = true;
    map_put(&all->hosts, host, h);
  }
  if (!v) {
    v = xcalloc(1, sizeof *v);
    v->fact = d->fact;
    strncpy(v->at, d->at, sizeof v->at - 1);
    v->first_ms = now_ms;
    v->wall_ms = wall_ms;
    v->next = h->first;
    h->first = v;
    all->n++;
  }
  if (v->seen && d->class <= v->class) return; /* of another agent on this host */
  struct buf value = BUF_INIT, usual = BUF_INIT, sentence = BUF_INIT;
  fact_put_value(d->fact, d->value, d->text, &value);
  if (d->by != ODD_BY_ITSELF && fact_kinds[d->fact].compare != FACT_RISES)
    fact_put_value(d->fact, d->usual, d->usual_text, &usual);
  put_sentence(d, buf_text(&value), buf_text(&usual), &sentence);
  /* Amounts that have an order are never twice the same: they change nothing. */
  enum fact_compare how = fact_kinds[d->fact].compare;
  bool ordered = how == FACT_BELOW || how == FACT_ABOVE || how == FACT_NEAR || how == FACT_RISES;
  v->changed |= !v->present || (!ordered && strcmp(v->value, buf_text(&value)) != 0);
  if (v->changed && v->class < d->class) v->acted = false;
  v->class = d->class;
  v->seen = true;
  v->last_ms = now_ms;
  free(v->value);
  free(v->usual);
  free(v->sentence);
  v->value = buf_steal(&value);
  v->usual = buf_steal(&usual);
  v->sentence = buf_steal(&sentence);
}

/* A counter that has risen twice is bad for as long as that is remembered: nothing says that it is good again. */
static bool rises(const struct finding *v) {
  return fact_kinds[v->fact].compare == FACT_RISES;
}

void findings_end(struct findings *all, uint64_t now_ms) {
  for (struct map_entry *e = NULL; (e = map_next(&all->hosts, e));) {
    struct odd_host *h = e->value;
    const struct finding *suspect = NULL;
    bool two = false; /* suspect ones, about different parts */
    for (struct finding **at = &h->first; *at;) {
      struct finding *v = *at;
      v->present = v->seen || (!h->is_here && v->present); /* a host without nodes is as it was */
      if (!v->present && now_ms >= v->last_ms + FINDING_KEPT_MS) {
        *at = v->next;
        free_finding(v);
        all->n--;
        continue;
      }
      at = &v->next;
      if (!v->present && !rises(v)) v->acted = v->confirmed = false;
      if (!v->seen || v->class != FACT_SUSPECT) continue;
      two |= suspect && fact_kinds[suspect->fact].part != fact_kinds[v->fact].part;
      suspect = v;
    }
    h->bad = false;
    for (struct finding *v = h->first; v; v = v->next) {
      if (v->seen && v->class == FACT_SUSPECT) v->confirmed |= two || now_ms >= v->first_ms + FINDING_APART_MS;
      h->bad |= v->confirmed || (v->present && v->class == FACT_CERTAIN);
    }
    if (h->bad)
      h->good_ms = 0;
    else if (!h->good_ms)
      h->good_ms = now_ms;
  }
}

bool finding_is_due(struct finding *v, uint64_t now_ms) {
  if (!v->present || !v->changed || now_ms < v->next_ms) return false;
  v->changed = false;
  v->pause_ms = v->pause_ms ? 2 * v->pause_ms : FINDING_PAUSE_MS;
  if (v->pause_ms > FINDING_PAUSE_MAX_MS) v->pause_ms = FINDING_PAUSE_MAX_MS;
  v->next_ms = now_ms + v->pause_ms;
  return true;
}

bool findings_wait(const struct findings *all) {
  for (struct map_entry *e = NULL; (e = map_next(&all->hosts, e));)
    for (const struct finding *v = ((const struct odd_host *)e->value)->first; v; v = v->next)
      if (v->present ? v->changed || (v->class == FACT_SUSPECT && !v->confirmed) : v->confirmed) return true;
  return false;
}

struct finding *odd_host_reason(const struct odd_host *h) {
  for (struct finding *v = h->first; v; v = v->next)
    if (v->present && !v->acted && (v->class == FACT_CERTAIN || (v->class == FACT_SUSPECT && v->confirmed))) return v;
  return NULL;
}
