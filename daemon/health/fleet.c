/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/health/fleet.h"

#include <stdlib.h>
#include <string.h>
#include "common/map.h"
#include "common/mem.h"
#include "common/siphash.h"

/* A text that facts have. Equal texts are one word, so they are compared by address. */
struct word {
  size_t refs;
  uint64_t hash;
  char text[];
};

/* A fact of one place, of all nodes. The rest is of the group that is looked at. */
struct series {
  size_t refs;
  enum fact_id id;
  uint64_t stamp; /* of the group, or of the message that is read; otherwise what follows is old */
  uint64_t host;  /* whose vote was the last one */
  size_t n, votes, agree;
  int64_t usual; /* a number, or a word's address; RISES: whether it has risen */
  int64_t *v;    /* all values, sorted; NULL: they are not compared by order */
  size_t cap;
  char at[];
};

struct slot {
  struct series *series;
  int64_t value; /* of a text the address of its word */
  bool votes;    /* in this look it speaks for its host, of which other agents may have the fact too */
};

struct rise {
  struct series *series;
  int64_t by;
  uint64_t at_ms;
};

struct fleet_node {
  const void *owner;
  uint64_t role, host, group, no;
  struct slot *v;
  size_t n;
  struct rise *rises; /* the last one of each counter, */
  size_t n_rises;     /* of those that have risen */
  char *trouble;
  int64_t skew_ms, skew_before_ms;
  unsigned looks;
};

struct fleet {
  struct siphash_key key;
  struct map words, series;
  struct fleet_node **nodes;
  size_t n_nodes, cap_nodes, n_facts;
  uint64_t no, stamp;
};

/* Words and series. ------------------------------------------------------------------------------------------------ */

static struct word *take_word(struct fleet *f, const char *text) {
  size_t len = strnlen(text, FLEET_TEXT_MAX);
  struct word *w = map_get_n(&f->words, text, len);
  if (!w) {
    w = xcalloc(1, sizeof *w + len + 1);
    memcpy(w->text, text, len);
    w->hash = siphash(&f->key, text, len);
    map_put_n(&f->words, text, len, w);
  }
  w->refs++;
  return w;
}

static void drop_word(struct fleet *f, struct word *w) {
  if (--w->refs) return;
  map_remove(&f->words, w->text);
  free(w);
}

static struct series *take_series(struct fleet *f, enum fact_id id, const char *at) {
  char key[1 + FACT_AT_MAX];
  size_t len = strnlen(at, FACT_AT_MAX);
  key[0] = (char)id;
  memcpy(key + 1, at, len);
  struct series *s = map_get_n(&f->series, key, 1 + len);
  if (!s) {
    s = xcalloc(1, sizeof *s + len + 1);
    s->id = id;
    memcpy(s->at, at, len);
    map_put_n(&f->series, key, 1 + len, s);
  }
  s->refs++;
  return s;
}

static void drop_series(struct fleet *f, struct series *s) {
  char key[1 + FACT_AT_MAX];
  if (--s->refs) return;
  size_t len = strlen(s->at);
  key[0] = (char)s->id;
  memcpy(key + 1, s->at, len);
  map_remove_n(&f->series, key, 1 + len);
  free(s->v);
  free(s);
}

static bool is_text(const struct series *s) {
  return fact_kinds[s->id].type == FACT_TEXT;
}

static struct word *word_of(int64_t value) {
  return (struct word *)(intptr_t)value; // NOLINT(performance-no-int-to-ptr)
}

static const char *text_of(const struct series *s, int64_t value) {
  return is_text(s) && value ? word_of(value)->text : "";
}

/* Nodes. ----------------------------------------------------------------------------------------------------------- */

struct fleet *fleet_create(uint64_t seed) {
  struct fleet *f = xcalloc(1, sizeof *f);
  f->key = siphash_key_from(seed);
  map_init(&f->words, seed);
  map_init(&f->series, seed);
  return f;
}

void fleet_destroy(struct fleet *f) {
  if (!f) return;
  map_finish(&f->words);
  map_finish(&f->series);
  free(f->nodes);
  free(f);
}

struct fleet_node *fleet_add(struct fleet *f, const void *owner, const char *role, const char *host) {
  struct fleet_node *n = xcalloc(1, sizeof *n);
  n->owner = owner;
  n->role = siphash(&f->key, role, strlen(role));
  n->host = siphash(&f->key, host, strlen(host));
  n->no = ++f->no;
  n->trouble = xstrdup("");
  f->nodes = xgrow(f->nodes, f->n_nodes, &f->cap_nodes, sizeof(*f->nodes));
  f->nodes[f->n_nodes++] = n;
  return n;
}

static void forget_slots(struct fleet *f, struct slot *v, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (is_text(v[i].series)) drop_word(f, word_of(v[i].value));
    drop_series(f, v[i].series);
  }
  f->n_facts -= n;
  free(v);
}

void fleet_remove(struct fleet *f, struct fleet_node *n) {
  size_t i = 0;
  while (f->nodes[i] != n) i++;
  f->nodes[i] = f->nodes[--f->n_nodes];
  forget_slots(f, n->v, n->n);
  free(n->rises);
  free(n->trouble);
  free(n);
}

/* `was`: of the message before. */
static void note_counter(struct fleet_node *n, struct series *s, int64_t was, int64_t is, uint64_t now_ms) {
  struct rise *r = n->rises, *end = n->rises ? n->rises + n->n_rises : NULL;
  if (is <= was) return; /* a lower one began anew */
  while (r != end && r->series != s) r++;
  if (r == end) {
    n->rises = xrealloc(n->rises, (n->n_rises + 1) * sizeof(*n->rises));
    r = &n->rises[n->n_rises++];
  }
  *r = (struct rise){s, was < 0 ? is : is - was, now_ms}; /* no count is below 0; a message may say so */
}

/* Nodes with the same models of GPUs are alike, however many they have. Of those without GPUs the CPUs say what they are. */
static uint64_t group_of(const struct fleet_node *n) {
  const struct word *seen[16];
  size_t n_seen = 0;
  uint64_t sum = n->role, cpus = 0;
  for (size_t i = 0; i < n->n; i++) {
    size_t k = 0;
    if (n->v[i].series->id == FACT_CPUS) cpus = (uint64_t)n->v[i].value;
    if (n->v[i].series->id != FACT_GPU_MODEL) continue;
    const struct word *w = word_of(n->v[i].value);
    while (k < n_seen && seen[k] != w) k++;
    if (k < n_seen || n_seen == sizeof(seen) / sizeof(*seen)) continue;
    seen[n_seen++] = w;
    sum += w->hash;
  }
  return n_seen ? sum : sum + cpus;
}

void fleet_take(struct fleet *f, struct fleet_node *n, const struct facts *said, uint64_t now_ms, uint64_t wall_ms) {
  struct slot *before = n->v, *v = xcalloc(FLEET_NODE_FACTS_MAX, sizeof(*v));
  size_t n_before = n->n, n_now = 0;
  uint64_t old = ++f->stamp, new = ++f->stamp;
  for (size_t i = 0; i < n_before; i++) { /* `usual` is the value before */
    before[i].series->stamp = old;
    before[i].series->usual = before[i].value;
  }
  struct fact skew = {.name = fact_kinds[FACT_CLOCK_SKEW_MS].name, .at = "", .text = ""};
  n->skew_before_ms = n->skew_ms;
  n->skew_ms = said->wall_ms > 0 ? said->wall_ms - (int64_t)wall_ms : 0;
  skew.value = n->skew_ms > n->skew_before_ms ? n->skew_ms : n->skew_before_ms;
  bool has_skew = said->wall_ms > 0 && n->looks++ > 0;
  for (size_t i = 0; i < said->n_facts + has_skew && n_now < FLEET_NODE_FACTS_MAX; i++) {
    const struct fact *a = i < said->n_facts ? &said->facts[i] : &skew;
    enum fact_id id = fact_find(a->name);
    if (id == FACT_COUNT || (id == FACT_CLOCK_SKEW_MS && a != &skew)) continue;
    struct series *s = take_series(f, id, a->at);
    if (s->stamp == new) { /* twice in one message */
      drop_series(f, s);
      continue;
    }
    if (s->stamp == old && fact_kinds[id].type == FACT_COUNTER) note_counter(n, s, s->usual, a->value, now_ms);
    s->stamp = new;
    v[n_now++] = (struct slot){.series = s, .value = is_text(s) ? (int64_t)(intptr_t)take_word(f, a->text) : a->value};
  }
  n->v = xrealloc(v, (n_now + 1) * sizeof(*v));
  n->n = n_now;
  f->n_facts += n_now;
  size_t kept = 0; /* rises of counters that are still there: only those have a series */
  for (size_t i = 0; i < n->n_rises; i++)
    if (n->rises[i].series->stamp == new) n->rises[kept++] = n->rises[i];
  n->n_rises = kept;
  forget_slots(f, before, n_before);
  n->group = group_of(n);
  if (strcmp(n->trouble, said->text) != 0) {
    free(n->trouble);
    n->trouble = xstrdup(said->text);
  }
}

size_t fleet_facts(const struct fleet *f) {
  return f->n_facts;
}

bool fleet_fact(const struct fleet_node *n, size_t i, struct fleet_fact *out) {
  if (i >= n->n) return false;
  const struct series *s = n->v[i].series;
  *out = (struct fleet_fact){s->id, s->at, text_of(s, n->v[i].value), is_text(s) ? 0 : n->v[i].value};
  return true;
}

size_t fleet_size(const struct fleet_node *n) {
  return n->n;
}

const char *fleet_trouble(const struct fleet_node *n) {
  return n->trouble;
}

/* The look. -------------------------------------------------------------------------------------------------------- */

struct look {
  struct fleet *f;
  uint64_t now_ms;
  fleet_odd_fn *on_odd;
  void *arg;
};

static const struct rise *find_rise(const struct look *k, const struct fleet_node *n, const struct series *s) {
  for (size_t i = 0; i < n->n_rises; i++)
    if (n->rises[i].series == s && n->rises[i].at_ms + FLEET_RISE_MS > k->now_ms) return &n->rises[i];
  return NULL;
}

/* What is compared. */
static int64_t amount_of(const struct look *k, const struct fleet_node *n, const struct slot *at) {
  if (fact_kinds[at->series->id].compare == FACT_RISES) return find_rise(k, n, at->series) != NULL;
  return is_text(at->series) ? at->value : fact_amount(at->series->id, at->value);
}

static bool is_ordered(enum fact_compare c) {
  return c == FACT_BELOW || c == FACT_ABOVE || c == FACT_NEAR;
}

static int compare_amounts(const void *a, const void *b) {
  int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return x < y ? -1 : x > y;
}

/* Whether the amount is odd where `usual` is the usual one. */
static bool is_odd(const struct fact_kind *kind, int64_t amount, int64_t usual) {
  switch (kind->compare) {
  case FACT_NEVER: return false;
  case FACT_SAME: return amount != usual;
  case FACT_FEWER: return amount < usual;
  case FACT_BELOW: return amount < kind->fine && (double)amount * 100 < (double)usual * (double)(100 - kind->slack);
  case FACT_ABOVE: return (double)amount > (double)usual + (double)kind->slack;
  case FACT_NEAR:
    return (double)amount > (double)usual + (double)kind->slack || (double)amount < (double)usual - (double)kind->slack;
  case FACT_RISES: return amount > usual && usual == 0;
  }
  return false;
}

static int64_t number_of(const struct fleet_node *n, enum fact_id id, const char *at, int64_t unknown) {
  for (size_t i = 0; i < n->n; i++)
    if (n->v[i].series->id == id && !strcmp(n->v[i].series->at, at)) return n->v[i].value;
  return unknown;
}

static void tell(const struct look *k, const struct fleet_node *n, const struct slot *at, struct deviation d) {
  const struct series *s = at->series;
  const struct rise *r = d.by == ODD_BY_ITSELF ? NULL : find_rise(k, n, s);
  if (fact_kinds[s->id].compare == FACT_RISES && (!r || k->now_ms < r->at_ms + FLEET_SETTLE_MS)) return;
  d.owner = n->owner;
  d.fact = s->id;
  d.at = s->at;
  d.text = text_of(s, at->value);
  d.usual_text = text_of(s, d.usual);
  d.value = r ? r->by : is_text(s) ? 0 : at->value;
  if (is_text(s)) d.usual = 0;
  d.class = d.by == ODD_BY_ITSELF ? fact_judge(s->id, d.value, d.text) : fact_judge_odd(s->id, d.text, d.usual_text);
  d.note = "";
  if (d.class == FACT_FINE) return;
  if (s->id == FACT_PCIE_WIDTH && d.value >= number_of(n, FACT_PCIE_WIDTH_MAX, s->at, INT64_MAX)) {
    d.class = FACT_HINT;
    d.note = ", all that it and its slot have";
  }
  if (s->at[0] && !number_of(n, FACT_GPU_USED, s->at, 1)) {
    d.class = FACT_HINT;
    d.note = ", and the job does not use it";
  }
  k->on_odd(k->arg, &d);
}

/* Of the sorted amounts, the one that is usual: three quarters of them reach it, or do not exceed it; the middle one; or
 * the most frequent one. */
static int64_t find_usual(enum fact_compare how, const int64_t *v, size_t n) {
  size_t longest = 0;
  int64_t usual = v[n / 2];
  if (how == FACT_BELOW) return v[n / 4];
  if (how == FACT_ABOVE) return v[n - 1 - n / 4];
  for (size_t i = 0, begin = 0; how != FACT_NEAR && i < n; i++) {
    if (v[i] != v[begin]) begin = i;
    if (i - begin < longest) continue;
    longest = i - begin + 1;
    usual = v[i];
  }
  return usual;
}

static size_t count_agreeing(const struct fact_kind *kind, const int64_t *v, size_t n, int64_t usual) {
  size_t agree = 0;
  for (size_t i = 0; i < n; i++) agree += !is_odd(kind, v[i], usual);
  return agree;
}

/* What the group agrees on. Each value but the candidate takes a vote away from it, so that one which more than half have
 * remains. Then it is counted. Amounts that have an order are sorted instead. */
static void count_group(const struct look *k, struct fleet_node *const *v, size_t n) {
  uint64_t stamp = ++k->f->stamp;
  for (size_t i = 0; i < n; i++)
    for (size_t c = 0; c < v[i]->n; c++) {
      struct series *s = v[i]->v[c].series;
      enum fact_compare how = fact_kinds[s->id].compare;
      if (how == FACT_NEVER) continue;
      int64_t amount = amount_of(k, v[i], &v[i]->v[c]);
      if (s->stamp != stamp) {
        s->stamp = stamp;
        s->n = s->votes = s->agree = 0;
      }
      v[i]->v[c].votes = !s->n || s->host != v[i]->host; /* the agents of a host follow each other */
      s->host = v[i]->host;
      if (!v[i]->v[c].votes) continue;
      if (is_ordered(how)) {
        s->v = xgrow(s->v, s->n, &s->cap, sizeof(*s->v));
        s->v[s->n] = amount;
      } else if (!s->votes || amount == s->usual) {
        s->usual = amount;
        s->votes++;
      } else {
        s->votes--;
      }
      s->n++;
    }
  for (size_t i = 0; i < n; i++)
    for (size_t c = 0; c < v[i]->n; c++) {
      struct series *s = v[i]->v[c].series;
      const struct fact_kind *kind = &fact_kinds[s->id];
      if (kind->compare == FACT_NEVER || !v[i]->v[c].votes) continue;
      if (!is_ordered(kind->compare)) {
        s->agree += amount_of(k, v[i], &v[i]->v[c]) == s->usual;
      } else if (!s->agree) {
        qsort(s->v, s->n, sizeof(*s->v), compare_amounts);
        s->usual = find_usual(kind->compare, s->v, s->n);
        s->agree = count_agreeing(kind, s->v, s->n, s->usual);
      }
    }
}

enum { GPUS_MAX = 16 };

/* The GPUs of one node, of each model by itself, as far as there were too few like nodes to compare them with. */
static void look_within(const struct look *k, const struct fleet_node *n) {
  const struct slot *gpus[GPUS_MAX], *at[FACT_COUNT][GPUS_MAX] = {{NULL}};
  size_t n_gpus = 0;
  for (size_t i = 0; i < n->n && n_gpus < GPUS_MAX; i++)
    if (n->v[i].series->id == FACT_GPU_MODEL) gpus[n_gpus++] = &n->v[i];
  if (n_gpus < FLEET_GPUS_MIN) return;
  for (size_t i = 0; i < n->n; i++) {
    const struct series *s = n->v[i].series;
    if (!fact_kinds[s->id].within || s->n > FLEET_OTHERS_MIN) continue;
    for (size_t g = 0; g < n_gpus; g++)
      if (!strcmp(gpus[g]->series->at, s->at)) at[s->id][g] = &n->v[i];
  }
  for (int id = 0; id < FACT_COUNT; id++)
    for (size_t g = 0; fact_kinds[id].within && g < n_gpus; g++) {
      int64_t v[GPUS_MAX];
      size_t n_v = 0;
      for (size_t o = 0; at[id][g] && o < n_gpus; o++)
        if (at[id][o] && gpus[o]->value == gpus[g]->value) v[n_v++] = amount_of(k, n, at[id][o]);
      if (n_v < FLEET_GPUS_MIN) continue;
      qsort(v, n_v, sizeof(*v), compare_amounts);
      int64_t usual = find_usual(fact_kinds[id].compare, v, n_v);
      size_t agree = 0;
      if (is_ordered(fact_kinds[id].compare))
        agree = count_agreeing(&fact_kinds[id], v, n_v, usual);
      else
        for (size_t i = 0; i < n_v; i++) agree += v[i] == usual;
      if (agree * 4 >= n_v * 3 && is_odd(&fact_kinds[id], amount_of(k, n, at[id][g]), usual))
        tell(k, n, at[id][g],
             (struct deviation){.by = ODD_WITHIN_NODE, .usual = usual, .agree = agree, .others = n_v - 1});
    }
}

static void look_at_node(const struct look *k, const struct fleet_node *n) {
  for (size_t c = 0; c < n->n; c++) {
    const struct slot *at = &n->v[c];
    const struct series *s = at->series;
    const struct fact_kind *kind = &fact_kinds[s->id];
    bool known = kind->compare != FACT_NEVER && s->n > FLEET_OTHERS_MIN && s->agree * 4 >= s->n * 3;
    size_t others = s->n - 1, agree = s->agree < others ? s->agree : others; /* another agent of the host may agree */
    if (!known)
      tell(k, n, at, (struct deviation){.by = ODD_BY_ITSELF});
    else if (is_odd(kind, amount_of(k, n, at), s->usual))
      tell(k, n, at, (struct deviation){.by = ODD_AMONG_NODES, .usual = s->usual, .agree = agree, .others = others});
  }
  look_within(k, n);
}

static int compare_nodes(const void *a, const void *b) {
  const struct fleet_node *x = *(struct fleet_node *const *)a, *y = *(struct fleet_node *const *)b;
  if (x->group != y->group) return x->group < y->group ? -1 : 1;
  if (x->host != y->host) return x->host < y->host ? -1 : 1;
  return x->no < y->no ? -1 : x->no > y->no;
}

void fleet_look(struct fleet *f, uint64_t now_ms, fleet_odd_fn *on_odd, void *arg) {
  struct look k = {.f = f, .now_ms = now_ms, .on_odd = on_odd, .arg = arg};
  qsort(f->nodes, f->n_nodes, sizeof(*f->nodes), compare_nodes);
  for (size_t begin = 0, end; begin < f->n_nodes; begin = end) {
    for (end = begin; end < f->n_nodes && f->nodes[end]->group == f->nodes[begin]->group; end++) continue;
    count_group(&k, f->nodes + begin, end - begin);
    for (size_t i = begin; i < end; i++) look_at_node(&k, f->nodes[i]);
  }
}

bool fleet_waits(const struct fleet *f, uint64_t now_ms) {
  for (size_t i = 0; i < f->n_nodes; i++)
    for (size_t k = 0; k < f->nodes[i]->n_rises; k++)
      if (f->nodes[i]->rises[k].at_ms + FLEET_RISE_MS > now_ms) return true;
  return false;
}
