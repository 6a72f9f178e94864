/* What workers say and what it means: the round, its workers, its keys.
 *
 * Every record is checked whole before anything of it is used: its size is exactly that of its type, text ends,
 * numbers are in their bounds. A record that fails ends the connection with a sentence, for the worker and for the
 * log; a key or a size that is wrong is the program's mistake and refuses that exchange alone.
 *
 * A local rank may have several connections (a worker's child that asks who it is): progress is the rank's, whoever
 * tells it, and an answer goes to the connection that gave the value. Each rank gives a key once in a round.
 *
 * Who is missing when a worker's patience ends: here only the local ranks are known; the daemon knows the others, and
 * its refusal, when it comes, names them. */

#include "agent/sdk/server.h"
#include "agent/sdk/server_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/buf.h"
#include "common/mem.h"

enum { NAMED_MAX = 8 }; /* missing ranks in a sentence */

/* Closes the connection for a bad record. */
static bool bad(struct conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool bad(struct conn *c, const char *fmt, ...) {
  char text[200], trouble[256];
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(text, sizeof(text), fmt, ap);
  va_end(ap);
  if (c->greeted)
    snprintf(trouble, sizeof(trouble), "local rank %u: %s", c->local_rank, text);
  else
    snprintf(trouble, sizeof(trouble), "%s", text);
  sdk_conn_refuse(c, -EPROTO, text, trouble);
  return false;
}

/* ----------------------------------------------------------------- round */

static void forget_round(struct sdk_server *s) {
  for (size_t i = 0; i < s->n_keys; i++) {
    free(s->keys[i].given);
    free(s->keys[i].waiting);
  }
  free(s->workers);
  free(s->progress);
  free(s->progressed);
  s->workers = NULL;
  s->progress = NULL;
  s->progressed = NULL;
  s->n_keys = s->n_progressed = 0;
  s->n_workers = s->requested = 0;
  s->open = false;
}

void sdk_server_close_round(struct sdk_server *s) {
  char text[64];
  snprintf(text, sizeof(text), "round %u is over", s->round);
  for (size_t i = s->n_conns; i-- > 0;)
    if (s->conns[i]->greeted) sdk_conn_refuse(s->conns[i], -ESTALE, text, NULL);
  forget_round(s);
}

void sdk_server_open_round(struct sdk_server *s, const struct sdk_welcome *workers, uint32_t n) {
  sdk_server_close_round(s);
  s->workers = xmemdup(workers, n * sizeof(*workers));
  s->progress = xcalloc(n, sizeof(*s->progress));
  s->progressed = xcalloc(n, sizeof(*s->progressed));
  s->n_workers = n;
  s->round = n ? workers[0].round : 0;
  s->requested = n ? workers[0].requested : 0;
  s->open = true;
}

void sdk_conn_forget(struct conn *c) {
  struct sdk_server *s = c->of;
  for (size_t i = 0; c->greeted && i < s->n_keys; i++)
    if (s->keys[i].waiting[c->local_rank] == c) s->keys[i].waiting[c->local_rank] = NULL;
}

static bool on_hello(struct conn *c, const struct sdk_hello *h) {
  struct sdk_server *s = c->of;
  char text[128], trouble[160];
  if (c->greeted) return bad(c, "said HELLO twice");
  if (!s->open || h->round != s->round) {
    snprintf(text, sizeof(text),
             s->open && h->round > s->round ? "round %u has not begun" : "round %u is over", h->round);
    snprintf(trouble, sizeof(trouble), "%s, it was refused", text);
    sdk_conn_refuse(c, -ESTALE, text, trouble);
    return false;
  }
  if (h->local_rank >= s->n_workers)
    return bad(c, "says it is local rank %u, but there are %u workers here", h->local_rank, s->n_workers);
  c->greeted = true;
  c->local_rank = h->local_rank;
  struct sdk_welcome w = s->workers[h->local_rank];
  w.head = sdk_head_of(SDK_WELCOME);
  w.requested = s->requested;
  sdk_conn_send(c, &w, sizeof(w));
  sdk_event_add(s, SDK_EVENT_HELLO, c);
  return true;
}

static bool on_progress(struct conn *c, const struct sdk_progress *p) {
  struct sdk_server *s = c->of;
  s->progress[c->local_rank] = *p;
  s->n_progressed += !s->progressed[c->local_rank];
  s->progressed[c->local_rank] = true;
  return true;
}

/* -------------------------------------------------------------- exchange */

static struct key *find_key(struct sdk_server *s, const char *name) {
  for (size_t i = 0; i < s->n_keys; i++)
    if (strcmp(s->keys[i].name, name) == 0) return &s->keys[i];
  return NULL;
}

static struct key *add_key(struct sdk_server *s, const char *name, uint32_t size) {
  if (s->n_keys == SDK_EXCHANGES_MAX) return NULL;
  struct key *k = &s->keys[s->n_keys++];
  *k = (struct key){.size = size};
  snprintf(k->name, sizeof(k->name), "%s", name);
  k->given = xcalloc(s->n_workers, sizeof(*k->given));
  k->waiting = xcalloc(s->n_workers, sizeof(struct conn *));
  return k;
}

static bool refuse_key(struct conn *c, const char *key, const char *text) {
  sdk_conn_answer(c, key, NULL, -EINVAL, text);
  return true;
}

static bool is_key(const char key[SDK_KEY_MAX + 1]) {
  return key[0] && memchr(key, '\0', SDK_KEY_MAX + 1);
}

static bool on_exchange(struct conn *c, const struct sdk_exchange *x) {
  struct sdk_server *s = c->of;
  char text[128];
  if (!is_key(x->key)) return bad(c, "sent an EXCHANGE without a key");
  if (x->size < 1 || x->size > SDK_VALUE_MAX)
    return bad(c, "sent an EXCHANGE with a value of %u bytes", x->size);
  struct key *k = find_key(s, x->key);
  if (!k && !(k = add_key(s, x->key, x->size))) {
    snprintf(text, sizeof(text), "a round has at most %d keys", SDK_EXCHANGES_MAX);
    return refuse_key(c, x->key, text);
  }
  if (k->size != x->size) {
    snprintf(text, sizeof(text), "this rank gives %u bytes, another of this node %u", x->size, k->size);
    return refuse_key(c, x->key, text);
  }
  if (k->given[c->local_rank])
    return refuse_key(c, x->key, "this rank has used the key already in this round");
  k->given[c->local_rank] = true;
  k->waiting[c->local_rank] = c;
  struct sdk_event *ev = sdk_event_add(s, SDK_EVENT_EXCHANGE, c);
  ev->size = x->size;
  memcpy(ev->key, x->key, sizeof(ev->key));
  memcpy(ev->value, x->value, x->size);
  return true;
}

/* Hands the outcome to all who wait for the key. */
static void answer_key(struct sdk_server *s, uint32_t round, const char *key, struct bytes *all, int code,
                       const char *text) {
  struct key *k = s->open && round == s->round ? find_key(s, key) : NULL;
  for (uint32_t i = 0; k && i < s->n_workers; i++) {
    struct conn *c = k->waiting[i];
    k->waiting[i] = NULL;
    if (c) sdk_conn_answer(c, key, all, code, text);
  }
}

void sdk_server_exchanged(struct sdk_server *s, uint32_t round, const char *key, const void *all,
                          size_t len) {
  if (len > (size_t)SDK_WORLD_MAX * SDK_VALUE_MAX) return;
  struct bytes *b = bytes_create(all, len);
  answer_key(s, round, key, b, 0, NULL);
  bytes_unref(b);
}

void sdk_server_refuse(struct sdk_server *s, uint32_t round, const char *key, int code, const char *text) {
  answer_key(s, round, key, NULL, code, text);
}

/* A worker's patience with a key has ended: who of this node has not come? */
static bool on_who(struct conn *c, const struct sdk_who *w) {
  struct sdk_server *s = c->of;
  if (!is_key(w->key)) return bad(c, "sent a WHO without a key");
  struct key *k = find_key(s, w->key);
  struct buf text = BUF_INIT;
  uint32_t missing = 0;
  for (uint32_t i = 0; k && i < s->n_workers; i++) {
    if (k->given[i]) continue;
    if (missing++ < NAMED_MAX)
      buf_printf(&text, missing == 1 ? "timed out: of this node rank %u" : ", %u", s->workers[i].rank);
  }
  if (missing > NAMED_MAX) buf_printf(&text, " and %u more", missing - NAMED_MAX);
  if (missing)
    buf_puts(&text, missing > 1 ? " are missing" : " is missing");
  else
    buf_puts(&text, k ? "timed out: all ranks of this node have come, ranks of other nodes are missing"
                      : "timed out");
  if (k) k->waiting[c->local_rank] = NULL;
  sdk_conn_answer(c, w->key, NULL, -ETIMEDOUT, text.data);
  buf_finish(&text);
  return true;
}

/* --------------------------------------------------------------- records */

bool sdk_conn_record(struct conn *c, const union sdk_record *r, size_t size) {
  static const size_t sizes[] = {
      [SDK_HELLO] = sizeof(struct sdk_hello),       [SDK_PROGRESS] = sizeof(struct sdk_progress),
      [SDK_EXCHANGE] = sizeof(struct sdk_exchange), [SDK_DONE] = sizeof(struct sdk_done),
      [SDK_WHO] = sizeof(struct sdk_who),
  };
  if (size < sizeof(r->head) || r->head.magic != SDK_MAGIC)
    return bad(c, "does not speak the protocol of librdzv");
  if (r->head.version != SDK_VERSION)
    return bad(c, "librdzv speaks version %u of the protocol, this agent version %d", r->head.version,
               SDK_VERSION);
  unsigned type = r->head.type;
  size_t expected = type < sizeof(sizes) / sizeof(sizes[0]) ? sizes[type] : 0;
  if (expected == 0) return bad(c, "sent a record of type %u, which workers do not send", type);
  if (size != expected)
    return bad(c, "sent a record of type %u with %zu bytes, expected %zu", type, size, expected);
  if (!c->greeted && type != SDK_HELLO) return bad(c, "sent a record of type %u before HELLO", type);
  switch (type) {
  case SDK_HELLO: return on_hello(c, &r->hello);
  case SDK_PROGRESS: return on_progress(c, &r->progress);
  case SDK_EXCHANGE: return on_exchange(c, &r->exchange);
  case SDK_WHO: return on_who(c, &r->who);
  default: sdk_event_add(c->of, SDK_EVENT_DONE, c); return true;
  }
}
