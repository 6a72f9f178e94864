/* SPDX-License-Identifier: Apache-2.0 */
/* The store of a world of one, without a server.
 *
 * A program that is started by hand keeps its few keys in a list in this process, and every call means what it means
 * under an agent. One thing differs: no other process can set a key, so a wait for a missing key returns at once as if
 * its deadline had passed.
 *
 * Requests and answers have the form that they have on a socket (rdzv_ask), so the calls above need no second path. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
  struct entry *next;
  struct slice key, value; /* in `data` */
  char data[];
};

struct rdzv_alone {
  struct entry *keys, *queued; /* in the order of their creation */
  struct entry *popped;        /* the last answer of a queue */
  struct rdzv_bytes scratch;   /* the bytes of the last answer if they are not a value */
};

/* The pointer to the entry, or the one at the end of the list. */
static struct entry **find(struct entry **list, struct slice key) {
  while (*list && !slice_equal((*list)->key, key)) list = &(*list)->next;
  return list;
}

/* Puts a followed by b in the place of the entry there, or at the end of the list. */
static int put(struct entry **place, struct slice key, struct slice a, struct slice b) {
  struct entry *old = *place, *e = malloc(sizeof(*e) + key.len + a.len + b.len);
  if (!e) return -ENOMEM;
  char *value = e->data + key.len;
  e->next = old ? old->next : NULL;
  e->key = (struct slice){e->data, key.len};
  e->value = (struct slice){value, a.len + b.len};
  if (key.len) memcpy(e->data, key.data, key.len);
  if (a.len) memcpy(value, a.data, a.len);
  if (b.len) memcpy(value + a.len, b.data, b.len);
  *place = e;
  free(old);
  return 0;
}

static void remove_entry(struct entry **place) {
  struct entry *e = *place;
  *place = e->next;
  free(e);
}

/* Sets the key to a followed by b. */
static int set_value(struct rdzv_alone *s, struct slice key, struct slice a, struct slice b) {
  return put(find(&s->keys, key), key, a, b);
}

static struct slice value_of(struct rdzv_alone *s, struct slice key) {
  const struct entry *e = *find(&s->keys, key);
  return e ? e->value : (struct slice){"", 0};
}

/* Appends a string in the form of the wire. */
static int append_string(struct rdzv_bytes *b, struct slice text) {
  uint64_t len = text.len;
  char *at = rdzv_bytes_reserve(b, sizeof(len) + text.len);
  if (!at) return -ENOMEM;
  for (unsigned i = 0; i < sizeof(len); i++) at[i] = (char)(len >> 8 * i);
  if (len) memcpy(at + sizeof(len), text.data, text.len);
  b->len += sizeof(len) + text.len;
  return 0;
}

static int64_t count(const struct entry *e, const struct slice *key) {
  int64_t n = 0;
  for (; e; e = e->next) n += !key || slice_equal(e->key, *key);
  return n;
}

/* A value that is not a number would end the connection to a real store. */
static int add_number(struct rdzv_alone *s, struct slice key, int64_t delta, int64_t *total) {
  char text[32], *end;
  struct slice now = value_of(s, key);
  int64_t before = 0;
  if (*find(&s->keys, key)) {
    snprintf(text, sizeof(text), "%.*s", (int)(now.len < 31 ? now.len : 31), now.data);
    before = strtoll(text, &end, 10);
    if (end == text) return -EINVAL;
  }
  *total = (int64_t)((uint64_t)before + (uint64_t)delta);
  int n = snprintf(text, sizeof(text), "%" PRId64, *total);
  return set_value(s, key, (struct slice){text, (size_t)n}, (struct slice){0});
}

static int compare_set(struct rdzv_alone *s, const struct c10d_request *q, struct slice *now) {
  const struct entry *e = *find(&s->keys, q->key);
  bool swap = e ? slice_equal(e->value, q->expected) : q->expected.len == 0;
  int rc = swap ? set_value(s, q->key, q->value, (struct slice){0}) : 0;
  *now = e || swap ? value_of(s, q->key) : q->expected;
  return rc;
}

static void pop(struct rdzv_alone *s, struct slice key, struct c10d_reply *a) {
  struct entry **place = find(&s->queued, key);
  a->number = count(s->queued, &key);
  if (!*place) return;
  s->popped = *place;
  *place = s->popped->next;
  s->popped->next = NULL;
  a->value = s->popped->value;
}

static int is_any_missing(struct rdzv_alone *s, const struct c10d_request *q) {
  int missing = 0;
  for (uint64_t i = 0; i < q->count; i++) missing |= !(*find(&s->keys, q->keys[i])) && !(*find(&s->queued, q->keys[i]));
  return missing;
}

static int answer(struct rdzv_alone *s, const struct c10d_request *q, struct c10d_reply *a) {
  struct slice none = {0};
  struct entry **place;
  int rc = 0;
  *a = (struct c10d_reply){0};
  switch (q->op) {
  case C10D_SET: return set_value(s, q->key, q->value, none);
  case C10D_APPEND: return set_value(s, q->key, value_of(s, q->key), q->value);
  case C10D_GET: return a->value = value_of(s, q->key), 0;
  case C10D_ADD: return add_number(s, q->key, q->number, &a->number);
  case C10D_COMPARE_SET: return compare_set(s, q, &a->value);
  case C10D_CHECK: return a->byte = is_any_missing(s, q), 0;
  case C10D_WAIT: return is_any_missing(s, q) ? -ETIMEDOUT : 0;
  case C10D_BARRIER: rc = add_number(s, q->key, 1, &a->number); return rc || a->number >= q->number ? rc : -ETIMEDOUT;
  case C10D_DELETE_KEY:
    place = find(&s->keys, q->key);
    a->number = *place != NULL;
    if (*place) remove_entry(place);
    return 0;
  case C10D_GETNUMKEYS: return a->number = count(s->keys, NULL), 0;
  case C10D_MULTI_GET:
    for (uint64_t i = 0; i < q->count && !rc; i++) rc = append_string(&s->scratch, value_of(s, q->keys[i]));
    a->number = (int64_t)q->count;
    a->items = (struct slice){s->scratch.data, s->scratch.len};
    return rc;
  case C10D_MULTI_SET:
    for (uint64_t i = 0; i < q->count && !rc; i++) rc = set_value(s, q->keys[i], q->values[i], none);
    return rc;
  case C10D_LIST_KEYS:
    for (const struct entry *e = s->keys; e && !rc; e = e->next) rc = append_string(&s->scratch, e->key);
    a->number = count(s->keys, NULL);
    a->items = (struct slice){s->scratch.data, s->scratch.len};
    return rc;
  case C10D_QUEUE_PUSH:
    for (place = &s->queued; *place;) place = &(*place)->next;
    return put(place, q->key, q->value, none);
  case C10D_QUEUE_POP: return pop(s, q->key, a), 0;
  case C10D_QUEUE_LEN: return a->number = count(s->queued, &q->key), 0;
  default: return -EOPNOTSUPP;
  }
}

static int fail(struct rdzv *r, int code) {
  if (code == -ETIMEDOUT)
    return rdzv_store_fail(r, code, "it does not exist, and a world of one has no other rank to set it");
  if (code == -EINVAL) return rdzv_store_fail(r, code, "its value is not a number");
  return rdzv_store_fail(r, code, "%s", strerror(-code));
}

int rdzv_alone_ask(struct rdzv *r, const struct c10d_request *q, size_t n, struct c10d_reply *answers) {
  if (!r->store && !(r->store = calloc(1, sizeof(*r->store)))) return fail(r, -ENOMEM);
  rdzv_bytes_drop(&r->store->scratch, r->store->scratch.len);
  free(r->store->popped);
  r->store->popped = NULL;
  for (size_t i = 0; i < n; i++) {
    struct c10d_reply unused;
    int rc = answer(r->store, &q[i], c10d_has_reply(q[i].op) ? answers++ : &unused);
    if (rc) return fail(r, rc);
  }
  return 0;
}

void rdzv_alone_destroy(struct rdzv_alone *s) {
  if (!s) return;
  while (s->keys) remove_entry(&s->keys);
  while (s->queued) remove_entry(&s->queued);
  rdzv_bytes_free(&s->scratch);
  free(s->popped);
  free(s);
}
