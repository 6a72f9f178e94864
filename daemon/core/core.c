/* The core: finds the job and the member that an event is about, and hands it on to the job's table (rdzv.c).
 *
 * A connection is nobody's until its first message. HELLO (core_hello.c) makes it a member's. A member has one connection at most: a HELLO
 * from a known agent silently takes the place of the old connection. OBITUARY and CONTROL are said and done.
 *
 * The core has no opinion about rounds: it keeps the tables by which things are found, the order of effects, and the
 * random numbers, so that everything behind it is a function of what it was given. */

#include "daemon/core/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"
#include "daemon/job/drain.h"

/* Effects. --------------------------------------------------------------------------------------------------------- */

static struct core_effect *add_effect(struct core *c, enum core_effect_kind kind, uint64_t conn) {
  struct core_effects *fx = c->fx;
  if (fx->n == fx->cap) {
    fx->cap = fx->cap ? 2 * fx->cap : 64;
    fx->v = xrealloc(fx->v, fx->cap * sizeof *fx->v);
  }
  struct core_effect *e = &fx->v[fx->n++];
  memset(e, 0, sizeof *e);
  e->kind = kind;
  e->conn = conn;
  return e;
}

void core_effects_clear(struct core_effects *fx) {
  for (size_t i = 0; i < fx->n; i++) {
    bytes_unref(fx->v[i].bytes);
    free(fx->v[i].text);
  }
  fx->n = 0;
}

void core_effects_finish(struct core_effects *fx) {
  core_effects_clear(fx);
  free(fx->v);
  memset(fx, 0, sizeof *fx);
}

void core_send_bytes(struct core *c, uint64_t conn, struct bytes *b) {
  if (conn) add_effect(c, CORE_SEND, conn)->bytes = bytes_ref(b);
}

void core_send(struct core *c, uint64_t conn, const struct msg *m) {
  if (conn) add_effect(c, CORE_SEND, conn)->bytes = msg_bytes(m);
}

void core_close(struct core *c, uint64_t conn) {
  if (conn) add_effect(c, CORE_CLOSE, conn);
}

void core_hang_up(struct core *c, uint64_t conn) {
  struct member *m = map_get_n(&c->conns, &conn, sizeof conn);
  if (m)
    job_closed(m->job, m, c->now_ms); /* nobody will tell us that it is gone */
  else
    core_close(c, conn);
}

void core_save(struct core *c, const struct buf *line) {
  add_effect(c, CORE_SAVE, 0)->text = xstrdup(buf_text(line));
}

void core_identified(struct core *c, uint64_t conn, char *name, uint64_t lease_ms) {
  struct core_effect *e = add_effect(c, CORE_IDENTIFIED, conn);
  e->text = name;
  e->value = lease_ms;
}

void core_log(struct core *c, enum log_level level, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  struct core_effect *e = add_effect(c, CORE_LOG, 0);
  e->level = level;
  e->text = xvasprintf(fmt, ap);
  va_end(ap);
}

/* Connections, randomness. ----------------------------------------------------------------------------------------- */

static struct member *member_of(const struct core *c, uint64_t conn) {
  return map_get_n(&c->conns, &conn, sizeof conn);
}

void core_bind(struct core *c, struct member *m, uint64_t conn) {
  if (m->conn == conn) return;
  core_close(c, core_unbind(c, m));
  if (!conn) return;
  struct member *before = member_of(c, conn);
  if (before) { /* the peer calls itself another now: the one that it was is away */
    core_unbind(c, before);
    job_away(before->job, before, c->now_ms);
  }
  member_set_conn(m, conn);
  map_put_n(&c->conns, &conn, sizeof conn, m);
  job_here(m->job, m);
}

uint64_t core_unbind(struct core *c, struct member *m) {
  uint64_t conn = m->conn;
  if (!conn) return 0;
  map_remove_n(&c->conns, &conn, sizeof conn);
  member_set_conn(m, 0);
  return conn;
}

/* xorshift128+: good enough for ids that must differ, not for secrets. */
uint64_t core_random(struct core *c) {
  uint64_t a = c->rng[0], b = c->rng[1];
  c->rng[0] = b;
  a ^= a << 23;
  c->rng[1] = a ^ b ^ (a >> 17) ^ (b >> 26);
  return c->rng[1] + b;
}

/* Jobs. ------------------------------------------------------------------------------------------------------------ */

struct job *core_add_job(struct core *c, const char *id, const char *incarnation, const struct settings *s) {
  struct job *j = job_create(c, id, incarnation, s, c->now_ms, c->wall_ms);
  if (c->n_all == c->cap_all) {
    c->cap_all = c->cap_all ? 2 * c->cap_all : 8;
    c->all = xrealloc(c->all, c->cap_all * sizeof(struct job *));
  }
  c->all[c->n_all++] = j;
  map_put(&c->jobs, j->id, j);
  return j;
}

/* Nodes that were away may know less of it than was sealed, and bring it back. */
void core_note_past(struct core *c, const struct job *j) {
  if (!j->round) return;
  struct past *p = &c->past[c->n_past++ % PAST_MAX];
  memcpy(p->incarnation, j->incarnation, sizeof p->incarnation);
  p->round = j->round;
}

int64_t core_past_round(const struct core *c, const char *incarnation) {
  int64_t round = 0;
  for (size_t i = 0; i < c->n_past && i < PAST_MAX; i++)
    if (c->past[i].round > round && !strcmp(c->past[i].incarnation, incarnation)) round = c->past[i].round;
  return round;
}

static void forget_job(struct core *c, struct job *j) {
  core_note_past(c, j);
  if (map_get(&c->jobs, j->id) == j) map_remove(&c->jobs, j->id);
  for (size_t i = 0; i < c->n_all; i++) {
    if (c->all[i] != j) continue;
    memmove(&c->all[i], &c->all[i + 1], (c->n_all - i - 1) * sizeof(struct job *));
    c->n_all--;
    break;
  }
  job_destroy(j);
}

struct job *core_find_incarnation(const struct core *c, const char *id, const char *incarnation) {
  for (size_t i = 0; i < c->n_all; i++)
    if (!strcmp(c->all[i]->incarnation, incarnation) && !strcmp(c->all[i]->id, id)) return c->all[i];
  return NULL;
}

void core_forget(struct core *c, struct job *j) {
  forget_job(c, j);
}

bool core_forget_oldest_end(struct core *c) {
  for (size_t i = 0; i < c->n_all; i++) {
    if (c->all[i]->state != JOB_ENDED) continue;
    forget_job(c, c->all[i]);
    return true;
  }
  return false;
}

static void sweep(struct core *c) {
  for (size_t i = c->n_all; i-- > 0;)
    if (c->all[i]->forgotten) {
      job_drop_drains(c->all[i]);
      forget_job(c, c->all[i]);
    }
}

/* Other messages. -------------------------------------------------------------------------------------------------- */

static void on_report(struct member *m, const struct core_event *ev) {
  const struct report_msg *r = &ev->msg->report_msg;
  member_tell_store(m, r->store_port); /* first: the report may be the one that lets the next round begin */
  if (!strcmp(r->incarnation, m->job->incarnation)) core_reports(m->job, m->agent, &r->report, 1, ev->now_ms);
}

static void on_obituary(struct core *c, const struct core_event *ev) {
  const struct obituary *o = &ev->msg->obituary;
  core_log(c, LOG_WARN, "job %s: the guard of agent %s says that the agent died; its workers are dead",
           o->job, o->agent);
  for (size_t i = 0; i < c->n_all; i++) {
    struct job *j = c->all[i];
    if (strcmp(j->id, o->job) != 0) continue;
    job_drop_hold(j, o->agent);
    struct member *m = job_find_agent(j, o->agent);
    if (!m) continue;
    struct job_event lost = {
        .kind = JOB_EV_LOST, .now_ms = ev->now_ms, .member = m, .at_ms = ev->now_ms, .dead = true};
    lost.text = "its agent died; the guard killed its workers";
    job_event(j, &lost);
  }
  core_hang_up(c, ev->conn);
}

static void on_heartbeat(struct core *c, struct member *m, const struct core_event *ev) {
  struct msg ack;
  msg_init(&ack, MSG_HEARTBEAT_ACK);
  ack.id = ev->msg->id;
  m->fenced_flag = job_could_form_without(m->job, m);
  ack.flags = m->fenced_flag ? FRAME_FLAG_FENCE : 0;
  if (m->job->state == JOB_RECOVERING) ack.flags |= FRAME_FLAG_RECOVERING;
  core_send(c, m->conn, &ack);
}

static void on_progress(struct member *m, const struct progress *p) {
  if (p->round != m->job->round || strcmp(p->incarnation, m->job->incarnation) != 0) return;
  m->step = p->step;
  m->of = p->of;
  m->loss = p->loss;
  m->samples_per_second = p->samples_per_second;
}

static void on_minted(struct core *c, struct member *m, const struct core_event *ev) {
  if (minted_is_sound(ev->msg)) {
    job_ids_minted(m->job, m, ev->msg, ev->now_ms);
    return;
  }
  core_log(c, LOG_WARN, "job %s: node %s: MINTED has %zu bytes for %lld ids from %lld on; closing",
           m->job->id, m->host, ev->msg->raw_len, (long long)ev->msg->minted.count,
           (long long)ev->msg->minted.first);
  core_hang_up(c, ev->conn);
}

static void on_member_msg(struct core *c, struct member *m, const struct core_event *ev) {
  struct job_event je = {.now_ms = ev->now_ms, .at_ms = ev->now_ms, .member = m};
  member_heard(m, ev->now_ms);
  switch (ev->msg->type) {
  case MSG_HEARTBEAT: on_heartbeat(c, m, ev); break;
  case MSG_REPORT: on_report(m, ev); break;
  case MSG_PROGRESS: on_progress(m, &ev->msg->progress); break;
  case MSG_MINTED: on_minted(c, m, ev); break;
  case MSG_BYE:
    je.kind = JOB_EV_BYE;
    je.text = ev->msg->bye.text[0] ? ev->msg->bye.text : NULL;
    job_event(m->job, &je);
    break;
  case MSG_END_ACK:
    je.kind = JOB_EV_END_ACK;
    if (!strcmp(ev->msg->end_ack.incarnation, m->job->incarnation)) job_event(m->job, &je);
    break;
  default: break; /* HELLO, OBITUARY, CONTROL are dealt with; the codec lets no others in */
  }
}

static void on_msg(struct core *c, const struct core_event *ev) {
  struct member *m = member_of(c, ev->conn);
  if (ev->msg->type == MSG_CONTROL && ev->local)
    core_control(c, ev);
  else if (ev->local || ev->msg->type == MSG_CONTROL)
    core_refuse(c, ev->conn, EXIT_CODE_REFUSED,
                "%s is not taken on this socket: agents speak to --listen, rdzvctl to --socket",
                msg_name(ev->msg->type));
  else if (ev->msg->type == MSG_HELLO)
    core_hello(c, ev);
  else if (ev->msg->type == MSG_OBITUARY)
    on_obituary(c, ev);
  else if (m)
    on_member_msg(c, m, ev);
  /* else: a connection that was told STALE, or whose member was lost a moment ago, and had more to say */
}

/* The rest. -------------------------------------------------------------------------------------------------------- */

static void tell_going_away(struct core *c) {
  struct msg msg;
  msg_init(&msg, MSG_GOING_AWAY);
  msg.going_away.text = "it is being stopped, and jobs go on; reconnect";
  struct bytes *b = msg_bytes(&msg);
  for (size_t i = 0; i < c->n_all; i++)
    for (size_t k = 0; k < c->all[i]->n_members; k++) core_send_bytes(c, c->all[i]->members[k]->conn, b);
  bytes_unref(b);
}

void core_step(struct core *c, const struct core_event *ev, struct core_effects *fx) {
  c->fx = fx;
  c->now_ms = ev->now_ms;
  c->wall_ms = ev->wall_ms;
  struct member *m;
  switch (ev->kind) {
  case CORE_MSG: on_msg(c, ev); break;
  case CORE_CLOSED:
    if ((m = member_of(c, ev->conn))) job_closed(m->job, m, ev->now_ms);
    break;
  case CORE_TICK:
    for (size_t i = 0; i < c->n_all; i++) job_tick(c->all[i], ev->now_ms, ev->lag_ms);
    break;
  case CORE_LOAD: core_load_line(c, ev->line, ev->now_ms); break;
  case CORE_SHUTDOWN: tell_going_away(c); break;
  }
  sweep(c);
  c->fx = NULL;
}

uint64_t core_deadline(const struct core *c) {
  uint64_t at = UINT64_MAX;
  for (size_t i = 0; i < c->n_all; i++) {
    uint64_t d = job_deadline(c->all[i]);
    if (d < at) at = d;
  }
  return at;
}

bool core_idle(const struct core *c) {
  for (size_t i = 0; i < c->n_all; i++)
    if (c->all[i]->state != JOB_ENDED && c->all[i]->n_members > 0) return false;
  return true;
}

bool core_served(const struct core *c) {
  return c->served;
}

const uint32_t *core_coverage(const struct core *c, size_t *n_states, size_t *n_events) {
  *n_states = JOB_STATE_COUNT;
  *n_events = JOB_EV_COUNT;
  return c->coverage;
}

struct core *core_create(const struct core_config *config) {
  struct core *c = xcalloc(1, sizeof *c);
  c->config = *config;
  c->rng[0] = config->seed ^ 0x9e3779b97f4a7c15;
  c->rng[1] = (config->seed << 1) | 1;
  for (int i = 0; i < 8; i++) core_random(c);
  map_init(&c->jobs, core_random(c));
  map_init(&c->conns, core_random(c));
  map_init(&c->drains, core_random(c));
  return c;
}

void core_destroy(struct core *c) {
  if (!c) return;
  struct core_effects fx = {0};
  c->fx = &fx;
  while (c->n_all) forget_job(c, c->all[c->n_all - 1]);
  core_effects_finish(&fx);
  core_finish_drains(c);
  map_finish(&c->jobs);
  map_finish(&c->conns);
  free(c->all);
  free(c);
}
