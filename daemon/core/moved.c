/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that have moved to another daemon.
 *
 * After a daemon is lost, another one takes its jobs over. New nodes still come to the address that they were given.
 * The daemon there may be new, or old and cut off for a while. So node rank 0 tells it with FORWARD where the job is,
 * every 5 s, and this daemon sends every node of the job there with MOVED. It forgets its own memory of the job. The
 * agents carry all that matters, so nothing is lost if the job comes back.
 *
 * FORWARD changes nothing if this daemon is in charge of the job, nor if an earlier FORWARD has named a later token.
 *
 * A job may have formed twice while its nodes could not reach each other: two runs, which began in different incarnations
 * (origin). Then the run that began first goes on, whoever is in charge of the other one. Its nodes are sent there, end
 * what they run, and join. FORWARD of the younger run is answered with the place of the older one: its daemon may be where
 * nobody of the older run looks.
 *
 * A node is not sent in circles. One that comes from the named daemon, because that does not answer, stays here. So
 * does one that knows a later round or term than FORWARD. Once this daemon is in charge, the entry is dropped.
 *
 * The state file has none of this: 5 s after a restart the next FORWARD comes. */

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/mem.h"
#include "daemon/core/internal.h"

/* The entries. ----------------------------------------------------------------------------------------------------- */

static void drop(struct core *c, struct moved_job *m) {
  struct moved_job *first = map_get(&c->moved.by_id, m->id), **at = &first;
  while (*at != m) at = &(*at)->next;
  *at = m->next;
  if (first)
    map_put(&c->moved.by_id, m->id, first);
  else
    map_remove(&c->moved.by_id, m->id);
  c->moved.n--;
  if (m->account) m->account->n_moved--;
  accounts_settle(&c->jobs.accounts, m->account);
  free(m);
}

void moved_expire(struct core *c, uint64_t now_ms) {
  if (now_ms < c->moved.next_ms) return;
  c->moved.next_ms = UINT64_MAX;
  for (struct map_entry *e = NULL; (e = map_next(&c->moved.by_id, e));)
    for (struct moved_job *m = e->value, *next; m; m = next) {
      next = m->next;
      if (m->until_ms > now_ms) {
        if (m->until_ms < c->moved.next_ms) c->moved.next_ms = m->until_ms;
        continue;
      }
      if (!moved_is_over(c, m))
        jobs_log(&c->jobs, LOG_INFO, "job %s: no word of it from %s for %d s; its nodes are welcome here again", m->id,
                 m->host, MOVED_KEEP_MS / 1000);
      drop(c, m);
    }
}

void moved_finish(struct core *c) {
  for (struct map_entry *e = NULL; (e = map_next(&c->moved.by_id, e));)
    for (struct moved_job *m = e->value, *next; m; m = next) {
      next = m->next;
      free(m);
    }
  map_finish(&c->moved.by_id);
}

/* The entry of the job that ev is about, by the rules of core_is_of; NULL: there is none. */
static struct moved_job *find(const struct core *c, const struct core_event *ev, const char *id) {
  int64_t owner = core_owner(c, ev);
  bool admin = control_may(c, ev->uid, NULL);
  struct moved_job *m = map_get(&c->moved.by_id, id);
  while (m && m->uid != owner && !(m->own_key && admin)) m = m->next;
  return m;
}

void moved_put_place(const struct moved_job *m, struct buf *out) {
  struct endpoint ep = {.port = (uint16_t)m->said.port};
  char text[ENDPOINT_TEXT_MAX];
  snprintf(ep.host, sizeof ep.host, "%s", m->addr);
  endpoint_format(&ep, text);
  buf_put_escaped(out, m->host, strlen(m->host), HOST_MAX);
  buf_printf(out, " (%s)", text);
}

/* FORWARD. --------------------------------------------------------------------------------------------------------- */

/* A majority of j's last round follows this daemon, so no other one has a later round. Where no majority is asked, the
 * later token wins, as in HELLO. */
static bool stays(const struct core *c, const struct job *j, const struct forward *f) {
  if (!j->round || j->state == JOB_RECOVERING || !job_in_charge(j, c->jobs.now_ms)) return false;
  int age = strcmp(j->origin, f->origin);
  if (age) return age < 0;
  if (job_can_be_succeeded(j) && job_is_firm(j)) return true;
  if (core_compare_tokens(j->incarnation, j->round, f->incarnation, f->round) < 0) return false;
  return !job_can_be_succeeded(j) || j->term >= f->term;
}

static struct job *job_that_stays(struct core *c, const struct core_event *ev, const struct forward *f) {
  for (size_t i = 0; i < c->jobs.n_all; i++) {
    struct job *j = c->jobs.all[i];
    if (!job_is_over(j) && core_is_of(c, ev, j, f->job) && stays(c, j, f)) return j;
  }
  return NULL;
}

bool moved_is_over(const struct core *c, const struct moved_job *m) {
  for (size_t i = 0; i < c->jobs.n_all; i++) {
    const struct job *j = c->jobs.all[i];
    if (!job_is_over(j) && j->uid == m->uid && !strcmp(j->id, m->id) && stays(c, j, &m->said)) return true;
  }
  return false;
}

static bool is_older(const struct forward *f, const struct moved_job *m) {
  int age = strcmp(f->origin, m->origin);
  if (age) return age > 0;
  int cmp = core_compare_tokens(f->incarnation, f->round, m->incarnation, m->said.round);
  return cmp < 0 || (cmp == 0 && f->term < m->said.term);
}

static struct moved_job *add(struct core *c, const struct core_event *ev, struct account *a) {
  const char *id = ev->msg->forward.job;
  if (c->moved.n >= MOVED_MAX || (a && a->n_moved >= ACCOUNT_MOVED_MAX)) {
    bool all = c->moved.n >= MOVED_MAX;
    core_log_peer(c, LOG_WARN, "job %s: its daemon is not remembered, because %s has %zu such jobs", id,
                  all ? "this daemon" : a->name, all ? c->moved.n : a->n_moved);
    return NULL;
  }
  struct moved_job *m = xcalloc(1, sizeof *m);
  snprintf(m->id, sizeof m->id, "%s", id);
  m->uid = core_owner(c, ev);
  m->own_key = control_may(c, ev->uid, NULL);
  m->account = a;
  if (a) a->n_moved++;
  m->next = map_put(&c->moved.by_id, id, m);
  c->moved.n++;
  return m;
}

static void learn(struct core *c, struct moved_job *m, const struct forward *f) {
  bool known = !strcmp(m->daemon, f->daemon) && !strcmp(m->addr, f->addr) && m->said.port == f->port;
  snprintf(m->incarnation, sizeof m->incarnation, "%s", f->incarnation);
  snprintf(m->origin, sizeof m->origin, "%s", f->origin);
  snprintf(m->daemon, sizeof m->daemon, "%s", f->daemon);
  snprintf(m->host, sizeof m->host, "%s", f->host);
  snprintf(m->addr, sizeof m->addr, "%s", f->addr);
  m->said = (struct forward){.job = m->id,
                             .incarnation = m->incarnation,
                             .origin = m->origin,
                             .round = f->round,
                             .term = f->term,
                             .daemon = m->daemon,
                             .host = m->host,
                             .addr = m->addr,
                             .port = f->port};
  m->until_ms = c->jobs.now_ms + MOVED_KEEP_MS;
  if (m->until_ms < c->moved.next_ms) c->moved.next_ms = m->until_ms;
  if (known) return;
  struct buf place = BUF_INIT;
  moved_put_place(m, &place);
  jobs_log(&c->jobs, LOG_INFO, "job %s: it is with the daemon on %s, in round %lld; its nodes are sent there", m->id,
           buf_text(&place), (long long)m->said.round);
  buf_finish(&place);
}

static void send_moved(struct core *c, uint64_t conn, const struct forward *at) {
  struct msg msg;
  msg_init(&msg, MSG_MOVED);
  msg.moved = (struct moved){.host = at->host,
                             .addr = at->addr,
                             .port = at->port,
                             .incarnation = at->incarnation,
                             .round = at->round,
                             .origin = at->origin,
                             .daemon = at->daemon,
                             .term = at->term};
  jobs_send(&c->jobs, conn, &msg);
}

/* FORWARD is of the younger of two runs, and its daemon may be at no address of --endpoint, where that of the older one
 * would find it. So its node hears where the older one is, and tells its daemon. */
static void tell_of_older(struct core *c, const struct core_event *ev, const struct forward *older) {
  if (strcmp(older->origin, ev->msg->forward.origin) < 0 && older->addr[0] && older->port)
    send_moved(c, ev->conn, older);
}

static void take_forward(struct core *c, const struct core_event *ev, struct account *a) {
  const struct forward *f = &ev->msg->forward;
  struct job *j = job_that_stays(c, ev, f);
  if (j) {
    core_log_peer(c, LOG_INFO, "job %s: a node says that it is with the daemon on %s, but this one is in charge",
                  j->log_name, f->host);
    /* It is here: whoever sends ev has reached this daemon at that address. */
    const struct daemon_facts *d = &c->jobs.daemon;
    const struct forward here = {.job = j->id,
                                 .incarnation = j->incarnation,
                                 .origin = j->origin,
                                 .round = j->round,
                                 .term = j->term,
                                 .daemon = d->id,
                                 .host = d->host[0] ? d->host : ev->local_addr,
                                 .addr = ev->local_addr,
                                 .port = d->port};
    tell_of_older(c, ev, &here);
    return;
  }
  struct moved_job *m = find(c, ev, f->job);
  if (m && is_older(f, m)) {
    core_log_peer(c, LOG_INFO, "job %s: a node says that it is with the daemon on %s, but it has moved on to %s", m->id,
                  f->host, m->host);
    tell_of_older(c, ev, &m->said);
    return;
  }
  if (!m) m = add(c, ev, a);
  if (!m) return;
  learn(c, m, f);
  for (size_t i = 0; i < c->jobs.n_all; i++) {
    j = c->jobs.all[i];
    assert(j);
    if (job_is_over(j) || !core_is_of(c, ev, j, f->job)) continue;
    /* Its nodes are told, and their connections are closed with it. */
    for (size_t k = 0; k < j->n_members; k++) send_moved(c, j->members[k]->conn, &m->said);
    job_log(j, LOG_WARN, "given up in state %s, round %lld, with %zu nodes here%s", job_state_name(j->state),
            (long long)j->round, j->n_connected,
            j->round && strcmp(j->origin, m->origin) > 0 ? "; another run of it, which began earlier, goes on there"
                                                         : "");
    j->forgotten = true;
  }
}

void core_forward(struct core *c, const struct core_event *ev) {
  const struct forward *f = &ev->msg->forward;
  core_shut(c, ev->conn);
  if (!core_forward_is_sound(c, ev)) return;
  struct account *a = core_open_account(c, ev);
  /* Two addresses of --endpoint may lead here. */
  if (strcmp(f->daemon, c->jobs.daemon.id) != 0) take_forward(c, ev, a);
  accounts_close(&c->jobs.accounts, a);
  core_hang_up(c, ev->conn);
}

/* HELLO. ----------------------------------------------------------------------------------------------------------- */

/* It has come because the named daemon does not answer, or knows better where its job is. */
static bool knows_better(const struct hello *h, const struct moved_job *m) {
  if (h->origin[0] && strcmp(h->origin, m->origin) != 0) return strcmp(h->origin, m->origin) < 0;
  if (h->term > m->said.term || (!strcmp(h->follows, m->daemon) && h->term == m->said.term)) return true;
  return h->round > 0 && core_compare_tokens(h->incarnation, h->round, m->incarnation, m->said.round) > 0;
}

bool core_sent_on(struct core *c, const struct core_event *ev) {
  const struct hello *h = &ev->msg->hello;
  struct moved_job *m = find(c, ev, h->job);
  if (!m || m->until_ms <= c->jobs.now_ms || knows_better(h, m)) return false;
  if (core_find_over(c, ev, h->incarnation) || core_find_ended_run(c, ev)) return false; /* it gets END */
  if (job_that_stays(c, ev, &m->said)) {
    drop(c, m);
    return false;
  }
  jobs_log(&c->jobs, LOG_INFO, "job %s: node %s (" AGENT_SHOWN ", %s) is sent on to the daemon on %s", m->id, h->host,
           h->agent, ev->peer_addr, m->host);
  core_shut(c, ev->conn);
  send_moved(c, ev->conn, &m->said);
  core_hang_up(c, ev->conn);
  return true;
}
