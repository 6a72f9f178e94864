/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: keys that are deleted when their clients have gone.
 *
 * A daemon that serves torchrun jobs for months must delete their keys, because torchrun never does. So names that
 * begin with the configured prefix are grouped: <prefix><id> is a session's own name, and <prefix><id>/... and
 * <prefix><id>.<round>/... belong to it. An id may also end in .7; its own name came first and made the session, so the
 * longer id is preferred if it exists.
 *
 * A client that writes such a name or waits for it is a member until its connection ends. A client that only reads
 * becomes a member if the session exists. When the last member leaves, the session enters a queue of deserted sessions
 * with its deadline. All have the same time to live, so the queue is in order, and a timer needs only its head.
 *
 * The same command, run twice in a row, brings members before the deadline, which must not find the first run's closed
 * rendezvous. Their first request distinguishes them: torchrun opens a rendezvous with COMPARE_SET from empty on the
 * session's own name. On a deserted session that deletes its keys. */

#include "common/store/internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

struct store_session {
  struct chain names; /* of its entries */
  struct chain all, deserted;
  uint64_t deadline_ms; /* while it is deserted */
  size_t members;
  size_t id_len;
  char id[];
};

struct membership {
  struct membership *next;
  struct store_session *session;
};

static const size_t membership_cost = sizeof(struct membership) + STORE_BLOCK;

static size_t session_cost(size_t id_len) {
  /* Its block and its place among the sessions: an entry, the id and slots, twice, since that table doubles. */
  return sizeof(struct store_session) + 2 * id_len + 2 * STORE_BLOCK + 2 * sizeof(struct map_entry) + 16;
}

static struct slice without_round(struct slice name) {
  size_t n = name.len;
  while (n > 0 && name.data[n - 1] >= '0' && name.data[n - 1] <= '9') n--;
  if (n > 0 && n < name.len && name.data[n - 1] == '.') name.len = n - 1;
  return name;
}

/* The session of a key; *id is empty if it belongs to none. own: the key is the session's own name. */
static struct store_session *session_of(const struct store *s, struct slice key, struct slice *id, bool *own) {
  *id = (struct slice){NULL, 0};
  *own = false;
  if (s->prefix_len == 0 || key.len <= s->prefix_len || memcmp(key.data, s->config.session_prefix, s->prefix_len) != 0)
    return NULL;
  *id = (struct slice){key.data + s->prefix_len, key.len - s->prefix_len};
  const char *slash = memchr(id->data, '/', id->len);
  *own = !slash;
  if (slash) id->len = (size_t)(slash - id->data);
  struct store_session *found = map_get_n(&s->sessions, id->data, id->len);
  if (found || !slash) return found;
  *id = without_round(*id);
  return map_get_n(&s->sessions, id->data, id->len);
}

/* Whether c is a member. The membership moves to the front. */
static bool is_member(struct store_client *c, const struct store_session *session) {
  for (struct membership **p = &c->memberships; *p; p = &(*p)->next)
    if ((*p)->session == session) {
      struct membership *m = *p;
      *p = m->next;
      m->next = c->memberships;
      c->memberships = m;
      return true;
    }
  return false;
}

static struct store_session *session_create(struct store *s, struct slice id) {
  struct store_session *session = xcalloc(1, sizeof(*session) + id.len);
  chain_init(&session->names);
  chain_init(&session->deserted);
  chain_append(&s->all_sessions, &session->all);
  session->id_len = id.len;
  if (id.len) memcpy(session->id, id.data, id.len);
  map_put_n(&s->sessions, id.data, id.len, session);
  s->bytes += session_cost(id.len);
  return session;
}

static void session_remove(struct store *s, struct store_session *session) {
  map_remove_n(&s->sessions, session->id, session->id_len);
  while (!chain_is_alone(&session->names)) { /* names that a client of another session waits for */
    struct chain *l = session->names.next;
    chain_remove(l);
    chain_append(&s->names, l);
  }
  chain_remove(&session->all);
  chain_remove(&session->deserted);
  s->bytes -= session_cost(session->id_len);
  free(session);
}

static void add_member(struct store_client *c, struct store_session *session) {
  struct membership *m = xmalloc(sizeof(*m));
  *m = (struct membership){c->memberships, session};
  c->memberships = m;
  c->n_memberships++;
  session->members++;
  chain_remove(&session->deserted);
  c->store->bytes += membership_cost;
}

int store_join(struct store_client *c, struct slice key, struct chain **names, struct err *e) {
  struct store *s = c->store;
  struct slice id;
  bool own;
  *names = &s->names;
  struct store_session *session = session_of(s, key, &id, &own);
  if (!id.data) return 0;
  if (session && is_member(c, session)) return *names = &session->names, 0;
  if (c->n_memberships >= STORE_MAX_SESSIONS)
    return err_set(e, -ENOSPC, "one client is a member of %d sessions, which is the limit", STORE_MAX_SESSIONS);
  struct store_need need = {.bytes = membership_cost + (session ? 0 : session_cost(id.len))};
  int rc = store_check(s, key, need, e);
  if (rc < 0) return rc;
  if (!session) session = session_create(s, id);
  add_member(c, session);
  *names = &session->names;
  return 0;
}

void store_touch(struct store_client *c, struct slice key) {
  struct slice id;
  bool own;
  if (c->store->prefix_len == 0) return;
  struct store_session *session = session_of(c->store, key, &id, &own);
  if (!session || is_member(c, session) || c->n_memberships >= STORE_MAX_SESSIONS) return;
  if (c->store->bytes + membership_cost <= c->store->config.max_bytes) add_member(c, session);
}

static void wipe(struct store *s, struct store_session *session) {
  for (struct chain *l = session->names.next, *next; l != &session->names; l = next) {
    struct store_entry *entry = CHAIN_ENTRY(l, struct store_entry, names);
    next = l->next;
    if (entry->extra) store_drop_queue(s, entry->extra);
    store_drop_value(s, entry);
  }
}

void store_begin_anew(struct store_client *c, struct slice key) {
  struct slice id;
  bool own;
  struct store_session *session = session_of(c->store, key, &id, &own);
  if (session && own && session->members == 0) wipe(c->store, session);
}

void store_leave_all(struct store_client *c, uint64_t now_ms) {
  struct store *s = c->store;
  for (struct membership *m = c->memberships, *next; m; m = next) {
    struct store_session *session = m->session;
    next = m->next;
    free(m);
    s->bytes -= membership_cost;
    if (--session->members > 0) continue;
    if (chain_is_alone(&session->names)) {
      session_remove(s, session);
      continue;
    }
    uint64_t ttl = s->config.session_ttl_ms;
    session->deadline_ms = now_ms < UINT64_MAX - 1 - ttl ? now_ms + ttl : UINT64_MAX - 1;
    chain_append(&s->deserted, &session->deserted);
  }
  c->memberships = NULL;
  c->n_memberships = 0;
}

uint64_t store_deadline(const struct store *s) {
  if (chain_is_alone(&s->deserted)) return UINT64_MAX;
  return CHAIN_ENTRY(s->deserted.next, struct store_session, deserted)->deadline_ms;
}

void store_expire(struct store *s, uint64_t now_ms) {
  while (store_deadline(s) <= now_ms) {
    struct store_session *session = CHAIN_ENTRY(s->deserted.next, struct store_session, deserted);
    wipe(s, session);
    session_remove(s, session);
  }
}

void store_each_session(const struct store *s, void (*each)(const struct chain *names, void *ctx), void *ctx) {
  for (const struct chain *l = s->all_sessions.next; l != &s->all_sessions; l = l->next)
    each(&CHAIN_ENTRY(l, const struct store_session, all)->names, ctx);
}

void store_sessions_finish(struct store *s) {
  while (!chain_is_alone(&s->all_sessions))
    session_remove(s, CHAIN_ENTRY(s->all_sessions.next, struct store_session, all));
  map_finish(&s->sessions);
}
