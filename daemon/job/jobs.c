/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs of one daemon, and what they share.
 *
 * A job's handlers reach each other's jobs only through here: a drain holds for all jobs of a user, a connection
 * belongs to one member of one job, and two jobs that wait for nodes under different ids learn of each other. The
 * step's time, its effects and the random numbers are here too, so that everything that a job does is a function of
 * what the core was given.
 *
 * A live job is found by its user and its id. A job that has ended stays in the list beside the next job with that id, so
 * that a node that was away learns how it ended. When a job is forgotten, or recovers to another incarnation, its
 * incarnation and last round are noted: nodes that were away may bring it back, and no round number may be given out
 * twice. */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/deadline.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/siphash.h"

/* Effects. --------------------------------------------------------------------------------------------------------- */

static struct job_effect *add_effect(struct jobs *jobs, enum job_effect_kind kind, uint64_t conn) {
  struct job_effects *fx = jobs->fx;
  if (fx->n == fx->cap) {
    fx->cap = fx->cap ? 2 * fx->cap : 64;
    fx->v = xrealloc(fx->v, fx->cap * sizeof *fx->v);
  }
  struct job_effect *e = &fx->v[fx->n++];
  memset(e, 0, sizeof *e);
  e->kind = kind;
  e->conn = conn;
  return e;
}

void job_effects_clear(struct job_effects *fx) {
  for (size_t i = 0; i < fx->n; i++) {
    bytes_unref(fx->v[i].bytes);
    free(fx->v[i].text);
  }
  fx->n = 0;
}

void job_effects_finish(struct job_effects *fx) {
  job_effects_clear(fx);
  free(fx->v);
  memset(fx, 0, sizeof *fx);
}

void jobs_send_bytes(struct jobs *jobs, uint64_t conn, struct bytes *b) {
  if (conn) add_effect(jobs, JOB_EFFECT_SEND, conn)->bytes = bytes_ref(b);
}

void jobs_send(struct jobs *jobs, uint64_t conn, const struct msg *m) {
  if (conn) add_effect(jobs, JOB_EFFECT_SEND, conn)->bytes = msg_bytes(m);
}

void jobs_close(struct jobs *jobs, uint64_t conn) {
  if (conn) add_effect(jobs, JOB_EFFECT_CLOSE, conn);
}

void jobs_pause(struct jobs *jobs, uint64_t conn) {
  add_effect(jobs, JOB_EFFECT_PAUSE, conn);
}

void jobs_save(struct jobs *jobs, void *line) {
  struct buf text = BUF_INIT;
  json_put(&text, line);
  add_effect(jobs, JOB_EFFECT_SAVE, 0)->text = buf_steal(&text);
}

void jobs_claim(struct jobs *jobs, uint64_t serial, const char *name, const struct buf *content) {
  struct job_effect *e = add_effect(jobs, JOB_EFFECT_CLAIM, 0);
  e->value = serial;
  e->text = xstrdup(name);
  e->bytes = bytes_create(content->data, content->len);
}

static void add_event(struct jobs *jobs, const char *owner, enum event_name name, const struct buf *line) {
  struct job_effect *e = add_effect(jobs, JOB_EFFECT_EVENT, 0);
  e->value = (uint64_t)name;
  e->text = xstrdup(buf_text(line));
  e->bytes = bytes_create(owner, strlen(owner) + 1);
}

/* Progress comes each second from each job. It leaves half of the allowance to what is rarer. */
void jobs_event(struct jobs *jobs, const char *owner, enum event_name name, const struct buf *line) {
  struct account *a = jobs->payer;
  size_t keep = name == EVENT_JOB_PROGRESS ? ACCOUNT_LINES_AT_ONCE / 2 : 0;
  if (!accounts_may_write(&jobs->accounts, a, line->len, keep)) {
    a->events_left_out++;
    return;
  }
  if (a && a->events_left_out && !keep) {
    struct event e;
    struct buf dropped = BUF_INIT, text = BUF_INIT;
    event_init(&e, EVENT_EVENTS_DROPPED, jobs->wall_ms);
    if (a->uid >= 0) event_int(&e, EVENT_UID, a->uid);
    event_int(&e, EVENT_DROPPED, (int64_t)a->events_left_out);
    buf_printf(&text, "%zu events are lost: jobs of %s have too many", a->events_left_out, a->name);
    event_text(&e, EVENT_MESSAGE, buf_text(&text));
    event_line(&e, &dropped);
    add_event(jobs, a->name, e.name, &dropped);
    a->events_left_out = 0;
    buf_finish(&text);
    buf_finish(&dropped);
  }
  add_event(jobs, owner, name, line);
}

void jobs_unclaim(struct jobs *jobs, const char *prefix, const struct buf *content) {
  struct job_effect *e = add_effect(jobs, JOB_EFFECT_UNCLAIM, 0);
  e->text = xstrdup(prefix);
  e->bytes = bytes_create(content->data, content->len);
}

void jobs_identified(struct jobs *jobs, uint64_t conn, char *name, uint64_t lease_ms) {
  struct job_effect *e = add_effect(jobs, JOB_EFFECT_IDENTIFIED, conn);
  e->text = name;
  e->value = lease_ms;
}

/* Takes text. */
static void add_line(struct jobs *jobs, enum log_level level, char *text) {
  struct account *a = level < LOG_DEBUG ? jobs->payer : NULL; /* who asks for every detail gets it */
  if (a && !accounts_may_write(&jobs->accounts, a, strlen(text), 0)) {
    a->lines_left_out++;
    free(text);
    return;
  }
  if (a && a->lines_left_out) {
    struct job_effect *e = add_effect(jobs, JOB_EFFECT_LOG, 0);
    e->level = level;
    e->text = xasprintf("%s: %zu lines about jobs of this %s were left out", a->name, a->lines_left_out,
                        a->uid < 0 ? "address" : "user");
    a->lines_left_out = 0;
  }
  struct job_effect *e = add_effect(jobs, JOB_EFFECT_LOG, 0);
  e->level = level;
  e->text = text;
}

void jobs_log(struct jobs *jobs, enum log_level level, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  add_line(jobs, level, xvasprintf(fmt, ap));
  va_end(ap);
}

void job_log(const struct job *j, enum log_level level, const char *fmt, ...) {
  struct buf text = BUF_INIT;
  va_list ap;
  va_start(ap, fmt);
  buf_printf(&text, "job %s: ", j->log_name);
  buf_vprintf(&text, fmt, ap);
  va_end(ap);
  add_line(j->jobs, level, buf_steal(&text));
}

/* Connections. ----------------------------------------------------------------------------------------------------- */

struct member *jobs_member_of(const struct jobs *jobs, uint64_t conn) {
  return map_get_n(&jobs->conns, &conn, sizeof conn);
}

void jobs_bind(struct jobs *jobs, struct member *m, uint64_t conn) {
  if (m->conn == conn) return;
  jobs_close(jobs, jobs_unbind(jobs, m));
  if (!conn) return;
  struct member *before = jobs_member_of(jobs, conn);
  if (before) { /* the peer now names another agent: the one of before is away */
    jobs_unbind(jobs, before);
    job_away(before->job, before, jobs->now_ms);
  }
  member_set_conn(m, conn);
  map_put_n(&jobs->conns, &conn, sizeof conn, m);
  m->job->scan_ms = earliest(m->job->scan_ms, m->heard_ms + (uint64_t)m->job->settings.lease_ms);
}

uint64_t jobs_unbind(struct jobs *jobs, struct member *m) {
  uint64_t conn = m->conn;
  if (!conn) return 0;
  map_remove_n(&jobs->conns, &conn, sizeof conn);
  member_set_conn(m, 0);
  return conn;
}

/* Jobs. ------------------------------------------------------------------------------------------------------------ */

/* The key of by_id: the uid's bytes, then the id. Returns its length. */
enum { JOB_KEY_MAX = sizeof(int64_t) + JOB_ID_MAX };
static size_t make_key(int64_t uid, const char *id, char key[JOB_KEY_MAX]) {
  size_t n = strnlen(id, JOB_ID_MAX);
  memcpy(key, &uid, sizeof uid);
  memcpy(key + sizeof uid, id, n);
  return sizeof uid + n;
}

struct job *jobs_find(const struct jobs *jobs, int64_t uid, const char *id) {
  char key[JOB_KEY_MAX];
  return map_get_n(&jobs->by_id, key, make_key(uid, id, key));
}

/* Once two users have an id, logs tell their jobs apart. */
static void name_for_logs(struct job *j) {
  if (j->log_name != j->id) return;
  j->log_name = j->uid < 0 ? xasprintf("%s (no uid)", j->id) : xasprintf("%s (uid %lld)", j->id, (long long)j->uid);
}

struct job *jobs_add(struct jobs *jobs, int64_t uid, const char *id, const char *incarnation,
                     const struct settings *s) {
  char key[JOB_KEY_MAX];
  struct job *j = job_create(jobs, uid, id, incarnation, s);
  if (jobs->n_all == jobs->cap_all) {
    jobs->cap_all = jobs->cap_all ? 2 * jobs->cap_all : 8;
    jobs->all = xrealloc(jobs->all, jobs->cap_all * sizeof(struct job *));
  }
  j->serial = ++jobs->job_counter;
  jobs->all[jobs->n_all++] = j;
  map_put_n(&jobs->by_id, key, make_key(uid, id, key), j);
  for (size_t i = 0; i < j->jobs->n_all; i++) {
    struct job *other = j->jobs->all[i];
    if (other->uid == j->uid || strcmp(other->id, j->id) != 0) continue;
    name_for_logs(other);
    name_for_logs(j);
  }
  return j;
}

void jobs_name_incarnation(struct jobs *jobs, const char *than, char out[INCARNATION_MAX + 1]) {
  unsigned long long at = jobs->wall_ms & 0xffffffffffff, before = strtoull(than, NULL, 16) & 0xffffffffffff;
  if (at <= before) at = before + 1;
  snprintf(out, INCARNATION_MAX + 1, "%012llx-%016llx", at, (unsigned long long)jobs_random(jobs));
}

void jobs_note_past(struct jobs *jobs, const struct job *j) {
  if (!j->round) return;
  /* The oldest place of a user who has many, otherwise the oldest of all: one user cannot make this daemon forget what
   * it knows of others. */
  size_t kept = jobs->n_past < PAST_INCARNATIONS_MAX ? jobs->n_past : PAST_INCARNATIONS_MAX, n = 0;
  struct past_incarnation *p = NULL;
  for (size_t i = 0; i < kept; i++) {
    struct past_incarnation *one = &jobs->past[(jobs->n_past - kept + i) % PAST_INCARNATIONS_MAX];
    if (one->uid != j->uid) continue;
    if (!p) p = one;
    n++;
  }
  if (n < ACCOUNT_PASTS_MAX) p = &jobs->past[jobs->n_past++ % PAST_INCARNATIONS_MAX];
  p->uid = j->uid;
  memcpy(p->incarnation, j->incarnation, sizeof p->incarnation);
  p->round = j->round;
}

int64_t jobs_past_round(const struct jobs *jobs, int64_t uid, const char *incarnation) {
  int64_t round = 0;
  for (size_t i = 0; i < jobs->n_past && i < PAST_INCARNATIONS_MAX; i++) {
    const struct past_incarnation *p = &jobs->past[i];
    if (p->uid == uid && p->round > round && !strcmp(p->incarnation, incarnation)) round = p->round;
  }
  return round;
}

void jobs_forget(struct jobs *jobs, struct job *j) {
  jobs_note_past(jobs, j);
  char key[JOB_KEY_MAX];
  size_t n = make_key(j->uid, j->id, key);
  if (map_get_n(&jobs->by_id, key, n) == j) map_remove_n(&jobs->by_id, key, n);
  for (size_t i = 0; i < jobs->n_all; i++) {
    if (jobs->all[i] != j) continue;
    memmove(&jobs->all[i], &jobs->all[i + 1], (jobs->n_all - i - 1) * sizeof(struct job *));
    jobs->n_all--;
    break;
  }
  job_destroy(j);
}

void jobs_forget_marked(struct jobs *jobs) {
  for (size_t i = jobs->n_all; i-- > 0;)
    if (jobs->all[i]->forgotten) {
      jobs_drop_drains(jobs->all[i]->jobs, jobs->all[i]->uid, jobs->all[i]->incarnation);
      jobs_forget(jobs, jobs->all[i]);
    }
}

bool jobs_forget_oldest_ended(struct jobs *jobs, const struct account *of) {
  for (size_t i = 0; i < jobs->n_all; i++) {
    if (jobs->all[i]->state != JOB_ENDED || (of && jobs->all[i]->account != of)) continue;
    jobs_forget(jobs, jobs->all[i]);
    return true;
  }
  return false;
}

/* The object. ------------------------------------------------------------------------------------------------------ */

/* xorshift128+: good enough for ids that must differ, but not for secrets. */
uint64_t jobs_random(struct jobs *jobs) {
  uint64_t *state = jobs->random_state, a = state[0], b = state[1];
  state[0] = b;
  a ^= a << 23;
  state[1] = a ^ b ^ (a >> 17) ^ (b >> 26);
  return state[1] + b;
}

void jobs_init(struct jobs *jobs, uint64_t seed) {
  memset(jobs, 0, sizeof *jobs);
  jobs->random_state[0] = seed ^ 0x9e3779b97f4a7c15;
  jobs->random_state[1] = (seed << 1) | 1;
  for (int i = 0; i < 8; i++) jobs_random(jobs);
  map_init(&jobs->by_id, jobs_random(jobs));
  map_init(&jobs->conns, jobs_random(jobs));
  map_init(&jobs->drains, jobs_random(jobs));
  suspicions_init(&jobs->suspicions, jobs->random_state[0]);
  struct siphash_key key = siphash_key_from(0);
  jobs->daemon.life = siphash(&key, &seed, sizeof seed); /* others may see it, but not the seed */
  accounts_init(&jobs->accounts, seed ^ 0xbf58476d1ce4e5b9);
}

void jobs_finish(struct jobs *jobs) {
  struct job_effects fx = {0};
  jobs->fx = &fx;
  while (jobs->n_all) jobs_forget(jobs, jobs->all[jobs->n_all - 1]);
  job_effects_finish(&fx);
  jobs_finish_drains(jobs);
  suspicions_finish(&jobs->suspicions);
  map_finish(&jobs->by_id);
  map_finish(&jobs->conns);
  accounts_finish(&jobs->accounts);
  jobs_finish_refusals(jobs);
  free(jobs->all);
  free(jobs->fault);
}
