/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange and the barrier of all ranks, over the round's store.
 *
 *     APPEND  values <- (rank, size, bytes)        one packet,
 *     BARRIER count, world size                    one answer when the last rank has come
 *     GET     values                               only for an exchange
 *
 * A name may be used again: the n-th call of a rank meets the n-th calls of the others, under keys of their own. When a
 * call is complete, every rank has returned from the one before. So rank 0 then deletes the keys of that one, and a
 * barrier in every step costs no memory. */

#include "agent/sdk/rdzv_internal.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  RECORD_HEAD = 8, /* u32 rank, u32 size, little-endian; then the bytes */
  NAMED_MAX = 8,   /* ranks in a sentence */
  KEY_ROOM = RDZV_NAME_MAX + 64,
};

/* One call. */
struct meeting {
  struct rdzv *r;
  const char *name;
  const uint8_t *mine;
  size_t size;
  uint8_t *all; /* NULL: a barrier */
  int timeout_ms;
  uint64_t deadline;
  char values[KEY_ROOM], count[KEY_ROOM];         /* its keys */
  char old_values[KEY_ROOM], old_count[KEY_ROOM]; /* of the call before; "": there was none */
};

static uint32_t get_u32(const char *p) {
  uint32_t v = 0;
  for (int i = 3; i >= 0; i--) v = v << 8 | (uint8_t)p[i];
  return v;
}

static void put_u32(char *p, uint32_t v) {
  for (int i = 0; i < 4; i++) p[i] = (char)(v >> 8 * i);
}

static struct slice text(const char *s) {
  return (struct slice){s, strlen(s)};
}

/* Names ------------------------------------------------------------------------------------------------------------ */

static int make_keys(struct meeting *m) {
  const char *kind = m->all ? "exchange" : "barrier";
  struct rdzv_name *n = m->r->names;
  while (n && (n->barrier != !m->all || strcmp(n->name, m->name) != 0)) n = n->next;
  if (!n) {
    n = calloc(1, sizeof(*n) + strlen(m->name) + 1);
    if (!n) return rdzv_store_fail(m->r, -ENOMEM, "out of memory");
    n->barrier = !m->all;
    strcpy(n->name, m->name);
    n->next = m->r->names;
    m->r->names = n;
  }
  unsigned before = n->calls++;
  snprintf(m->values, KEY_ROOM, "/rdzv.%s/%s/%u/values", kind, m->name, before);
  snprintf(m->count, KEY_ROOM, "/rdzv.%s/%s/%u/count", kind, m->name, before);
  if (before == 0) return 0;
  snprintf(m->old_values, KEY_ROOM, "/rdzv.%s/%s/%u/values", kind, m->name, before - 1);
  snprintf(m->old_count, KEY_ROOM, "/rdzv.%s/%s/%u/count", kind, m->name, before - 1);
  return 0;
}

/* Records ---------------------------------------------------------------------------------------------------------- */

/* Sets here[rank] for each record. -EINVAL: a rank came twice or with another size. */
static int check_records(const struct meeting *m, struct slice values, bool *here) {
  uint32_t world = m->r->is.world_size;
  for (size_t at = 0; at < values.len;) {
    size_t left = values.len - at;
    const char *p = values.data + at;
    if (left < RECORD_HEAD || get_u32(p) >= world || get_u32(p + 4) > left - RECORD_HEAD)
      return rdzv_store_fail(m->r, -EPROTO, "the store's key \"%s\" was written by another program", m->values + 1);
    uint32_t rank = get_u32(p), size = get_u32(p + 4);
    if (here[rank])
      return rdzv_store_fail(m->r, -EINVAL, "rank %u came twice: two of its processes use this name", rank);
    if (size != m->size)
      return rdzv_store_fail(m->r, -EINVAL, "rank %u gave %u bytes, and this rank (%u) %zu", rank, size, m->r->is.rank,
                             m->size);
    here[rank] = true;
    at += RECORD_HEAD + size;
  }
  return 0;
}

__attribute__((format(printf, 3, 4))) static void add_text(char *out, size_t room, const char *fmt, ...) {
  size_t len = strlen(out);
  va_list ap;
  va_start(ap, fmt);
  vsnprintf(out + len, room - len, fmt, ap);
  va_end(ap);
}

/* -ETIMEDOUT with the ranks that are missing; 0: none is. */
static int name_missing(const struct meeting *m, const bool *here) {
  char who[160] = "";
  uint32_t missing = 0;
  for (uint32_t i = 0; i < m->r->is.world_size; i++)
    if (!here[i] && missing++ < NAMED_MAX) add_text(who, sizeof(who), missing == 1 ? "rank %u" : ", %u", i);
  if (missing == 0) return 0;
  if (missing > NAMED_MAX) add_text(who, sizeof(who), " and %u more", missing - NAMED_MAX);
  return rdzv_store_fail(m->r, -ETIMEDOUT, "%s did not come within %d ms", who, m->timeout_ms);
}

/* Meetings --------------------------------------------------------------------------------------------------------- */

static int announce(const struct meeting *m) {
  struct rdzv *r = m->r;
  char *record = malloc(RECORD_HEAD + m->size);
  if (!record) return rdzv_store_fail(r, -ENOMEM, "out of memory for %zu bytes", m->size);
  put_u32(record, r->is.rank);
  put_u32(record + 4, (uint32_t)m->size);
  if (m->size) memcpy(record + RECORD_HEAD, m->mine, m->size);
  struct c10d_request q[2] = {
      {.op = C10D_APPEND, .key = text(m->values), .value = {record, RECORD_HEAD + m->size}},
      {.op = C10D_BARRIER, .key = text(m->count), .number = r->is.world_size},
  };
  struct c10d_reply a;
  int rc = rdzv_ask(r, q, 2, &a, m->deadline);
  free(record);
  return rc;
}

/* After the last rank came (complete) or the deadline passed. Rank 0 deletes the keys of the call before. */
static int read_values(const struct meeting *m, bool complete) {
  struct rdzv *r = m->r;
  struct c10d_request q[3];
  struct c10d_reply a[3];
  size_t n = 0;
  if (m->all || !complete) q[n++] = (struct c10d_request){.op = C10D_GET, .key = text(m->values)};
  if (complete && r->is.rank == 0 && m->old_values[0]) {
    q[n++] = (struct c10d_request){.op = C10D_DELETE_KEY, .key = text(m->old_values)};
    q[n++] = (struct c10d_request){.op = C10D_DELETE_KEY, .key = text(m->old_count)};
  }
  if (n == 0) return 0;
  uint64_t late = rdzv_deadline_in(RDZV_LATE_MS);
  int rc = rdzv_ask(r, q, n, a, late > m->deadline ? late : m->deadline);
  if (rc || q[0].op != C10D_GET) return rc;
  bool *here = calloc(r->is.world_size, sizeof(*here));
  if (!here) return rdzv_store_fail(r, -ENOMEM, "out of memory");
  rc = check_records(m, a[0].value, here);
  if (rc == 0) rc = name_missing(m, here);
  if (rc == 0 && m->all) {
    /* The records have been checked, and there is one of each rank. */
    for (size_t at = 0; at < a[0].value.len; at += RECORD_HEAD + m->size)
      memcpy(m->all + get_u32(a[0].value.data + at) * m->size, a[0].value.data + at + RECORD_HEAD, m->size);
  }
  free(here);
  return rc;
}

static int meet(struct meeting *m) {
  struct rdzv *r = m->r;
  if (r->is.world_size == 1) {
    if (m->all) memmove(m->all, m->mine, m->size);
    return 0;
  }
  if (m->size + RECORD_HEAD > (size_t)RDZV_EXCHANGE_MAX / r->is.world_size)
    return rdzv_store_fail(r, -EMSGSIZE, "%zu bytes from each of %u ranks are too many, the limit is %d for all",
                           m->size, r->is.world_size, RDZV_EXCHANGE_MAX);
  if (m->size + RECORD_HEAD > RDZV_VALUE_MAX)
    return rdzv_store_fail(r, -EMSGSIZE, "a value of %zu bytes is too large, the limit is %d", m->size,
                           RDZV_VALUE_MAX - RECORD_HEAD);
  int rc = make_keys(m);
  if (!rc) rc = announce(m);
  if (rc == 0) return read_values(m, true);
  return rc == -ETIMEDOUT && r->conn.fd >= 0 ? read_values(m, false) : rc;
}

static int begin_meeting(struct meeting *m, struct rdzv *r, const char *verb, const char *name, int timeout_ms) {
  size_t len = name ? strnlen(name, RDZV_NAME_MAX + 1) : 0;
  *m = (struct meeting){.r = r, .name = name, .timeout_ms = timeout_ms, .deadline = rdzv_deadline_in(timeout_ms)};
  r->verb = verb;
  r->key = name;
  rdzv_heed_flag(r, true);
  if (len >= 1 && len <= RDZV_NAME_MAX) return 0;
  rdzv_store_fail(r, -EINVAL, "a name has 1 to %d bytes", RDZV_NAME_MAX);
  return -EINVAL;
}

int rdzv_exchange(struct rdzv *r, const char *name, const void *mine, size_t size, void *all, size_t capacity,
                  int timeout_ms) {
  struct meeting m;
  int rc = begin_meeting(&m, r, "exchange", name, timeout_ms);
  if (rc) return rc;
  if (size < 1) return rdzv_store_fail(r, -EINVAL, "a value has at least 1 byte");
  if (!all) return rdzv_store_fail(r, -EINVAL, "the place for all values is NULL");
  if (size > capacity / r->is.world_size)
    return rdzv_store_fail(r, -EMSGSIZE, "there is room for %zu bytes, and %u ranks give %zu bytes each", capacity,
                           r->is.world_size, size);
  m.mine = mine;
  m.size = size;
  m.all = all;
  return meet(&m);
}

int rdzv_barrier(struct rdzv *r, const char *name, int timeout_ms) {
  struct meeting m;
  int rc = begin_meeting(&m, r, "barrier", name, timeout_ms);
  return rc ? rc : meet(&m);
}

void rdzv_names_free(struct rdzv *r) {
  while (r->names) {
    struct rdzv_name *n = r->names;
    r->names = n->next;
    free(n);
  }
}
