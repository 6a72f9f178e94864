/* SPDX-License-Identifier: Apache-2.0 */
/* The bench for the core. Effects are looked at in their order, as a driver would carry them out: the line of a seal
 * must stand before its STARTs, what is sent must be decodable by an agent, and text must be there. */

#include "tests/rig/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/events/event.h"
#include "common/json.h"
#include "common/mem.h"
#include "daemon/core/internal.h"

#define must(what) ((what) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what), abort()))

/* Effects. --------------------------------------------------------------------------------------------------------- */

static struct node *node_of(const struct rig *r, uint64_t conn) {
  for (size_t i = 0; i < r->n_nodes; i++)
    if (r->nodes[i]->conn == conn) return r->nodes[i];
  return NULL;
}

static void told_goodput(struct node *n, const struct goodput *g) {
  n->goodput = *g;
  snprintf(n->waited_for, sizeof n->waited_for, "%s", g->waited_for);
  n->goodput.waited_for = n->waited_for;
  n->goodput_ms = n->rig->now_ms;
}

static void told_start(struct node *n, const struct start *s) {
  snprintf(n->incarnation, sizeof n->incarnation, "%s", s->incarnation);
  snprintf(n->head_addr, sizeof n->head_addr, "%s", s->head_addr);
  snprintf(n->node_addr, sizeof n->node_addr, "%s", s->node_addr);
  n->head_port = s->store_port;
  n->ids = s->ids;
  n->mint_first = s->mint_first;
  n->mint_count = s->mint_count;
  n->has_ids = false;
  snprintf(n->minters, sizeof n->minters, "%s", s->minters);
  snprintf(n->other_command, sizeof n->other_command, "%s", s->other_command);
  n->round = s->round;
  n->node_rank = s->node_rank;
  n->nodes = s->nodes;
  n->rank_base = s->rank_base;
  n->world_size = s->world_size;
  n->role_rank_base = s->role_rank_base;
  n->role_world_size = s->role_world_size;
  n->restarts_used = s->restarts_used;
  n->failed_step = s->failed_step;
  n->last_failure = s->last_failure;
  told_goodput(n, &s->goodput);
  n->first_step = -1;
  n->n_reports = 0;
  snprintf(n->voted_incarnation, sizeof n->voted_incarnation, "%s", s->incarnation);
  snprintf(n->base_incarnation, sizeof n->base_incarnation, "%s", s->seal.base_incarnation);
  snprintf(n->head_host, sizeof n->head_host, "%s", s->head_host);
  n->voted_round = s->round;
  snprintf(n->origin, sizeof n->origin, "%s", s->origin);
  n->seal = s->seal;
  n->firm = false;
  n->age_ms = s->age_ms;
  n->agreed = s->agreed;
}

static void told_successors(struct node *n, const struct successor *s, size_t count) {
  n->n_successors = count;
  for (size_t i = 0; i < count; i++) snprintf(n->successors[i], sizeof n->successors[i], "%s", s[i].agent);
}

static void told_welcome(struct node *n, const struct welcome *w) {
  snprintf(n->follows, sizeof n->follows, "%s", w->daemon);
  n->welcomed = true;
  n->age_ms = w->age_ms;
  if (w->term > n->term) n->term = w->term;
}

static void told_ack(struct node *n, const struct msg *m) {
  if (m->id) n->ack_age = m->flags >> FRAME_NUMBER_SHIFT;
  if (m->id > n->answered) n->answered = m->id;
  n->firm = n->firm || (m->flags & FRAME_FLAG_FIRM);
}

static void told(struct node *n, const struct msg *m) {
  if (m->type == MSG_WELCOME) told_welcome(n, &m->welcome);
  if (n->welcomed) n->heard_ms = n->rig->now_ms;
  if (m->type == MSG_HEARTBEAT_ACK) told_ack(n, m);
  if (m->type == MSG_WAITING) n->lacks = m->waiting.lacks;
  if (m->type == MSG_START) told_successors(n, m->start.successors, m->start.n_successors);
  if (m->type == MSG_WAITING) told_successors(n, m->waiting.successors, m->waiting.n_successors);
  if (m->type == MSG_START) told_start(n, &m->start);
  if (m->type == MSG_IDS && m->ids.count) n->has_ids = true;
  if (m->type == MSG_WELCOME && !n->round)
    snprintf(n->incarnation, sizeof n->incarnation, "%s", m->welcome.incarnation);
  if (m->type == MSG_SETTLED && m->settled.round == n->round) {
    n->restarts_used = m->settled.restarts_used;
    n->failed_step = m->settled.failed_step;
    n->last_failure = m->settled.last_failure;
    told_goodput(n, &m->settled.goodput);
    n->n_reports = 0;
  }
}

static bool is_saved(const struct rig *r, const struct start *s) {
  char token[128];
  snprintf(token, sizeof token, "\"incarnation\":\"%s\",\"round\":%lld,", s->incarnation, (long long)s->round);
  for (size_t i = r->n_saved; i-- > 0;)
    if (strstr(r->saved[i], token)) return true;
  return false;
}

static void keep(struct rig *r, uint64_t conn, struct bytes *b) {
  if (r->n_sent == r->cap_sent) {
    r->cap_sent = r->cap_sent ? 2 * r->cap_sent : 64;
    r->sent = xrealloc(r->sent, r->cap_sent * sizeof *r->sent);
  }
  struct sent *s = &r->sent[r->n_sent++];
  struct frame f;
  struct err e = ERR_INIT;
  size_t size;
  s->conn = conn;
  s->bytes = bytes_ref(b);
  int rc = frame_parse(b->data, b->len, FRAME_MAX_TO_AGENT, &f, &size, &e);
  if (rc == 1) rc = msg_decode(&f, TO_AGENT, &s->msg, &e);
  if (rc < 0) fprintf(stderr, "the core sent what nobody can read: %s\n", e.text);
  must(rc == 0 && size == b->len);
  if (s->msg.type == MSG_START) must(is_saved(r, &s->msg.start));
  struct node *n = r->deaf ? NULL : node_of(r, conn);
  if (n) told(n, &s->msg);
}

static void note_claim(struct rig *r, const struct job_effect *e) {
  must(r->n_claims < RIG_CLAIMS_MAX && strlen(e->text) <= CLAIM_NAME_MAX && e->bytes->len <= CLAIM_CONTENT_MAX);
  struct rig_claim *c = &r->claims[r->n_claims++];
  c->at = r->at;
  c->serial = e->value;
  snprintf(c->name, sizeof c->name, "%s", e->text);
  c->content = xasprintf("%.*s", (int)e->bytes->len, e->bytes->data);
}

static void look_at(struct rig *r, struct job_effect *e) {
  switch (e->kind) {
  case JOB_EFFECT_SEND:
    must(e->conn && e->bytes);
    keep(r, e->conn, e->bytes);
    break;
  case JOB_EFFECT_CLOSE:
    must(e->conn);
    if (r->n_closed < sizeof r->closed / sizeof r->closed[0]) r->closed[r->n_closed++] = e->conn;
    break;
  case JOB_EFFECT_SAVE:
    must(e->text && !strchr(e->text, '\n'));
    r->saved = xrealloc(r->saved, (r->n_saved + 1) * sizeof *r->saved);
    r->saved[r->n_saved++] = xstrdup(e->text);
    break;
  case JOB_EFFECT_PAUSE:
    must(e->conn);
    r->n_paused++;
    r->paused = e->conn;
    break;
  case JOB_EFFECT_IDENTIFIED: must(e->conn && e->text && e->value); break;
  case JOB_EFFECT_CLAIM:
    must(e->text && e->bytes);
    note_claim(r, e);
    break;
  case JOB_EFFECT_UNCLAIM:
    must(e->text && strlen(e->text) <= CLAIM_NAME_MAX);
    snprintf(r->unclaimed, sizeof r->unclaimed, "%s", e->text);
    break;
  case JOB_EFFECT_EVENT:
    must(e->text && e->bytes && e->value < EVENT_NAME_COUNT && event_line_is_sound(e->text, strlen(e->text)));
    buf_printf(&r->events, "%s\n", e->text);
    snprintf(r->event_owner, sizeof r->event_owner, "%s", (const char *)e->bytes->data);
    break;
  case JOB_EFFECT_LOG:
    must(e->text);
    buf_printf(&r->log, "%s\n", e->text);
    break;
  }
}

void rig_event(struct rig *r, const struct core_event *ev) {
  struct core_event now = *ev;
  now.now_ms = r->now_ms;
  now.wall_ms = r->wall_ms + r->now_ms;
  core_step(r->core, &now, &r->fx);
  must(!r->core->jobs.fault);
  for (size_t i = 0; i < r->fx.n && !r->blind; i++) look_at(r, &r->fx.v[i]);
  job_effects_clear(&r->fx);
}

/* The rig. --------------------------------------------------------------------------------------------------------- */

void rig_open(struct rig *r, uint64_t seed) {
  rig_open_on(r, seed, NULL);
}

void rig_open_on(struct rig *r, uint64_t seed, const char *host) {
  rig_open_with(r, &(struct core_config){.seed = seed, .host = host});
}

void rig_test(void (*run)(struct rig *r, struct node *n)) {
  struct rig r = {0};
  struct node n[RIG_NODES_MAX];
  run(&r, n);
  rig_close(&r);
}

void rig_open_with(struct rig *r, const struct core_config *config) {
  struct core_config with = *config; /* it may be the rig's own */
  rig_close(r);
  r->config = with;
  r->config.saves = true;
  r->core = core_create(&r->config);
  r->now_ms = 1000;
  r->wall_ms = 1700000000000;
  r->job = "job";
  r->settings = (struct settings){.min_nodes = 2,
                                  .max_nodes = 2,
                                  .max_restarts = 3,
                                  .last_call_ms = 30000,
                                  .join_timeout_ms = 600000,
                                  .stop_timeout_ms = 30000,
                                  .lease_ms = 5000};
}

void rig_forget(struct rig *r) {
  for (size_t i = 0; i < r->n_sent; i++) {
    msg_finish(&r->sent[i].msg);
    bytes_unref(r->sent[i].bytes);
  }
  r->n_sent = r->n_closed = r->n_paused = 0;
  buf_clear(&r->log);
  buf_clear(&r->events);
}

void rig_close(struct rig *r) {
  rig_forget(r);
  r->cores[r->at] = r->core;
  for (int i = 0; i < RIG_DAEMONS_MAX; i++) core_destroy(r->cores[i]);
  for (size_t i = 0; i < r->n_claims; i++) free(r->claims[i].content);
  job_effects_finish(&r->fx);
  for (size_t i = 0; i < r->n_saved; i++) free(r->saved[i]);
  free(r->saved);
  free(r->sent);
  buf_finish(&r->log);
  buf_finish(&r->events);
  buf_finish(&r->said);
  memset(r, 0, sizeof *r);
}

/* What the driver knows of the daemon i. */
static struct core *make_core(struct rig *r, int i, uint64_t seed) {
  static char ids[RIG_DAEMONS_MAX][DAEMON_ID_MAX + 1], hosts[RIG_DAEMONS_MAX][8];
  struct core_config config = r->config;
  config.seed = seed;
  if (i || config.id) {
    snprintf(ids[i], sizeof ids[i], "%032x", 0xd0u + (unsigned)i);
    snprintf(hosts[i], sizeof hosts[i], "d%d", i);
    config.id = ids[i];
    config.host = hosts[i];
  }
  return core_create(&config);
}

void rig_open_successors(struct rig *r, int64_t min_nodes, int64_t max_nodes) {
  rig_open_with(r, &(struct core_config){.seed = 1,
                                         .id = "000000000000000000000000000000d0",
                                         .host = "d0",
                                         .port = 29400,
                                         .owned = true,
                                         .claims = true});
  r->settings.min_nodes = min_nodes;
  r->settings.max_nodes = max_nodes;
}

void rig_use(struct rig *r, int i) {
  r->cores[r->at] = r->core;
  r->at = i;
  if (!r->cores[i]) r->cores[i] = make_core(r, i, r->now_ms + (uint64_t)i);
  r->core = r->cores[i];
}

void rig_restart(struct rig *r, bool with_state) {
  core_destroy(r->core);
  r->core = make_core(r, r->at, r->now_ms);
  rig_forget(r);
  for (size_t i = 0; i < r->n_nodes; i++)
    if (r->nodes[i]->at == r->at) r->nodes[i]->conn = 0;
  for (size_t i = 0; with_state && i < r->n_saved; i++) rig_load(r, r->saved[i]);
}

void rig_load(struct rig *r, const char *line) {
  rig_event(r, &(struct core_event){.kind = CORE_LOAD, .line = line});
}

static void msg_of(struct rig *r, uint64_t conn, const struct msg *m, int64_t uid, const char *peer_addr,
                   const char *local_addr) {
  rig_event(
      r, &(struct core_event){
             .kind = CORE_MSG, .conn = conn, .msg = m, .peer_addr = peer_addr, .local_addr = local_addr, .uid = uid});
}

void rig_msg(struct rig *r, uint64_t conn, const struct msg *m, const char *peer_addr, const char *local_addr) {
  msg_of(r, conn, m, -1, peer_addr, local_addr);
}

void rig_closed(struct rig *r, uint64_t conn) {
  rig_event(r, &(struct core_event){.kind = CORE_CLOSED, .conn = conn});
}

/* The daemon whose tick is due first. */
static int first_due(struct rig *r, uint64_t *at) {
  int first = r->at;
  r->cores[r->at] = r->core;
  *at = core_deadline(r->core);
  for (int i = 0; i < RIG_DAEMONS_MAX; i++) {
    if (!r->cores[i] || core_deadline(r->cores[i]) >= *at) continue;
    *at = core_deadline(r->cores[i]);
    first = i;
  }
  return first;
}

void rig_run(struct rig *r, uint64_t ms) {
  uint64_t end = r->now_ms + ms, at;
  int used = r->at, first;
  for (int stuck = 0; (void)(first = first_due(r, &at)), at <= end;) {
    stuck = at > r->now_ms ? 0 : stuck + 1;
    must(stuck < 16 * RIG_DAEMONS_MAX);
    if (at > r->now_ms) r->now_ms = at;
    rig_use(r, first);
    rig_event(r, &(struct core_event){.kind = CORE_TICK});
  }
  rig_use(r, used);
  r->now_ms = end;
}

void rig_live(struct rig *r, uint64_t ms) {
  uint64_t every_ms = (uint64_t)r->settings.lease_ms / 8;
  for (uint64_t left = ms; left;) {
    uint64_t step = left < every_ms ? left : every_ms;
    rig_run(r, step);
    left -= step;
    for (size_t i = 0; i < r->n_nodes; i++)
      if (r->nodes[i]->conn) node_heartbeat(r, r->nodes[i]);
  }
}

void rig_answer_claim(struct rig *r, size_t i, enum claim_answer answer, const char *text) {
  int used = r->at;
  must(i < r->n_claims);
  rig_use(r, r->claims[i].at);
  rig_event(r, &(struct core_event){
                   .kind = CORE_CLAIMED, .serial = r->claims[i].serial, .claimed = answer, .claim_text = text});
  rig_use(r, used);
}

/* Nodes. ----------------------------------------------------------------------------------------------------------- */

void node_init(struct rig *r, struct node *n, int i) {
  memset(n, 0, sizeof *n);
  n->rig = r;
  n->job = r->job;
  n->settings = r->settings;
  n->workers = 1;
  n->uid = 1000;
  n->key_uid = -1;
  n->want_rank = n->order_key = n->node_rank = n->left_rank = n->failed_step = n->first_step = -1;
  goodput_init(&n->goodput);
  n->goodput_ms = r->now_ms;
  n->last_failure = FAILURE_MARK_NONE;
  n->role = n->addrs = n->expected_hosts = n->command = "";
  n->features = features_words();
  n->store_port = 40000 + i;
  snprintf(n->agent, sizeof n->agent, "%032x", (unsigned)i + 1);
  snprintf(n->host, sizeof n->host, "n%d", i);
  snprintf(n->peer_addr, sizeof n->peer_addr, "10.0.%d.%d", (i + 1) / 250, (i + 1) % 250);
  snprintf(n->local_addr, sizeof n->local_addr, "10.0.255.1");
  bool first = i == 0 && r->config.id; /* on the machine of the first daemon, which its agent has started */
  if (first) snprintf(n->peer_addr, sizeof n->peer_addr, "10.0.255.1");
  n->standby_port = r->config.id ? 29500 + i : 0;
  if (r->config.id) n->order_key = i;
  if (r->n_nodes < RIG_NODES_MAX) r->nodes[r->n_nodes++] = n;
}

void node_hello(const struct node *n, struct msg *m) {
  msg_init(m, MSG_HELLO);
  struct hello *h = &m->hello;
  h->version = PROTO_VERSION;
  h->features = n->features;
  h->agent = n->agent;
  h->job = n->job;
  h->settings = n->settings;
  h->host = n->host;
  h->pid = 4711;
  h->uid = n->uid;
  h->workers = n->workers;
  h->want_rank = n->want_rank;
  h->order_key = n->order_key;
  h->expected_nodes = n->expected_nodes;
  h->expected_hosts = n->expected_hosts;
  h->role = n->role;
  h->addrs = n->addrs;
  h->store_port = n->store_port;
  h->wants_ids = n->wants_ids;
  h->gpus = n->gpus;
  h->wants_events = n->wants_events;
  h->command = n->command;
  h->ids = n->ids;
  h->has_ids = n->has_ids;
  h->incarnation = n->incarnation;
  h->round = n->round;
  h->node_rank = n->node_rank;
  h->round_nodes = n->nodes;
  h->restarts_used = n->restarts_used;
  h->failed_step = n->failed_step;
  h->last_failure = n->last_failure;
  h->goodput = n->goodput;
  h->goodput_age_ms = (int64_t)(n->rig->now_ms - n->goodput_ms);
  h->first_step = n->first_step;
  h->first_step_age_ms = n->first_step < 0 ? 0 : (int64_t)(n->rig->now_ms - n->first_step_ms);
  h->standby_port = n->standby_port;
  h->follows = n->follows;
  h->silent_ms = n->follows[0] ? (int64_t)(n->rig->now_ms - n->heard_ms) : 0;
  h->term = n->term;
  h->voted_incarnation = n->voted_incarnation;
  h->voted_round = n->voted_round;
  h->left_rank = n->left_rank;
  h->origin = n->origin;
  h->seal = n->seal;
  h->seal.base_incarnation = n->base_incarnation;
  h->firm = n->firm;
  h->head_host = n->head_host;
  h->head_addr = n->head_addr;
  h->round_age_ms = n->round_age_ms;
  h->up_ms = n->up_ms;
}

void node_say(struct rig *r, struct node *n, const struct msg *m) {
  int used = r->at;
  rig_use(r, n->at);
  msg_of(r, n->conn, m, n->key_uid, n->peer_addr, n->local_addr);
  rig_use(r, used);
}

static void connect_node(struct rig *r, struct node *n) {
  n->conn = ++r->next_conn;
  n->at = r->at;
  n->answered = 0;
  n->welcomed = false;
  if (r->config.id) snprintf(n->local_addr, sizeof n->local_addr, "10.0.255.%d", r->at + 1);
}

void node_join(struct rig *r, struct node *n) {
  struct msg m;
  node_hello(n, &m);
  connect_node(r, n);
  node_say(r, n, &m);
}

void node_hello_again(struct rig *r, struct node *n) {
  struct msg m;
  node_hello(n, &m);
  node_say(r, n, &m);
}

void node_back(struct rig *r, struct node *n, enum phase phase) {
  struct msg m;
  struct report reports[REPORTS_MAX];
  node_hello(n, &m);
  m.hello.phase = phase;
  memcpy(reports, n->reports, n->n_reports * sizeof *reports);
  m.hello.reports = reports;
  m.hello.n_reports = n->n_reports;
  connect_node(r, n);
  node_say(r, n, &m);
}

void node_report(struct rig *r, struct node *n, enum report_kind kind, const struct verdict *what, int64_t ago_ms) {
  struct msg m;
  msg_init(&m, MSG_REPORT);
  m.report_msg.incarnation = n->incarnation;
  m.report_msg.store_port = n->store_port;
  struct report *p = &m.report_msg.report;
  p->seq = ++n->seq;
  p->round = n->round;
  p->kind = kind;
  p->ago_ms = ago_ms;
  verdict_init(&p->what);
  if (what) p->what = *what;
  if (n->n_reports < REPORTS_MAX) n->reports[n->n_reports++] = *p;
  if (n->conn) node_say(r, n, &m);
}

void node_started(struct rig *r, struct node *n) {
  node_report(r, n, REPORT_STARTED, NULL, 0);
}
void node_finished(struct rig *r, struct node *n) {
  node_report(r, n, REPORT_FINISHED, NULL, 0);
}
static void node_note_step(struct node *n, int64_t step) {
  if (n->first_step >= 0) return;
  n->first_step = step;
  n->first_step_ms = n->rig->now_ms;
}

void node_progress(struct rig *r, struct node *n, int64_t step) {
  struct msg m;
  msg_init(&m, MSG_PROGRESS);
  m.progress.incarnation = n->incarnation;
  m.progress.round = n->round;
  m.progress.step = step;
  node_note_step(n, step);
  node_say(r, n, &m);
}
void node_stopped(struct rig *r, struct node *n) {
  node_report(r, n, REPORT_STOPPED, NULL, 0);
}

void node_exited(struct rig *r, struct node *n, int code, int64_t ago_ms) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXIT;
  v.rank = n->rank_base;
  v.code = code;
  node_report(r, n, REPORT_FAILED, &v, ago_ms);
}

void node_killed(struct rig *r, struct node *n, int signal, int64_t ago_ms) {
  struct verdict v;
  verdict_init(&v);
  v.cause = CAUSE_WORKER_SIGNAL;
  v.rank = n->rank_base;
  v.signal = signal;
  v.code = 128 + signal;
  node_report(r, n, REPORT_FAILED, &v, ago_ms);
}

void node_drop(struct rig *r, struct node *n) {
  uint64_t conn = n->conn;
  int used = r->at;
  n->conn = 0;
  rig_use(r, n->at);
  rig_closed(r, conn);
  rig_use(r, used);
}

void node_leave_silently(struct node *n) {
  n->conn = 0;
}

void node_bye(struct rig *r, struct node *n) {
  struct msg m;
  msg_init(&m, MSG_BYE);
  node_say(r, n, &m);
  n->conn = 0;
}

void node_end_ack(struct rig *r, struct node *n) {
  struct msg m;
  msg_init(&m, MSG_END_ACK);
  m.end_ack.incarnation = n->incarnation;
  node_say(r, n, &m);
}

void node_heartbeat(struct rig *r, struct node *n) {
  struct msg m;
  msg_init(&m, MSG_HEARTBEAT);
  m.id = ++n->beat;
  if (n->answered) m.flags = (uint16_t)((m.id - n->answered) << FRAME_NUMBER_SHIFT);
  node_say(r, n, &m);
}

void node_death_report(struct rig *r, const struct node *n) {
  struct msg m;
  msg_init(&m, MSG_AGENT_DIED);
  m.agent_died.job = n->job;
  m.agent_died.agent = n->agent;
  msg_of(r, ++r->next_conn, &m, n->key_uid, n->peer_addr, n->local_addr);
}

void nodes_init(struct rig *r, struct node *nodes, size_t n) {
  for (size_t i = 0; i < n; i++) node_init(r, &nodes[i], (int)i);
}
void nodes_join(struct rig *r, struct node *nodes, size_t n) {
  for (size_t i = 0; i < n; i++) node_join(r, &nodes[i]);
}
void nodes_started(struct rig *r, struct node *nodes, size_t n) {
  for (size_t i = 0; i < n; i++) node_started(r, &nodes[i]);
}
void nodes_stopped(struct rig *r, struct node *nodes, size_t n) {
  for (size_t i = 0; i < n; i++) node_stopped(r, &nodes[i]);
}
void nodes_finished(struct rig *r, struct node *nodes, size_t n) {
  for (size_t i = 0; i < n; i++) node_finished(r, &nodes[i]);
}
void nodes_drop(struct rig *r, struct node *nodes, size_t n) {
  for (size_t i = 0; i < n; i++) node_drop(r, &nodes[i]);
}
void nodes_end_ack(struct rig *r, struct node *nodes, size_t n) {
  for (size_t i = 0; i < n; i++) node_end_ack(r, &nodes[i]);
}
void nodes_back(struct rig *r, struct node *nodes, size_t n, enum phase phase) {
  for (size_t i = 0; i < n; i++) node_back(r, &nodes[i], phase);
}
void nodes_checkpointed(struct rig *r, struct node *nodes, size_t n) {
  for (size_t i = 0; i < n; i++) node_report(r, &nodes[i], REPORT_CHECKPOINTED, NULL, 0);
}
void nodes_heartbeat(struct rig *r, struct node *nodes, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (nodes[i].conn) node_heartbeat(r, &nodes[i]);
}

void rig_open_for(struct rig *r, int64_t min_nodes, int64_t max_nodes) {
  rig_open(r, 1);
  r->settings.min_nodes = min_nodes;
  r->settings.max_nodes = max_nodes;
}

void rig_joined(struct rig *r, struct node *nodes, size_t n) {
  nodes_init(r, nodes, n);
  nodes_join(r, nodes, n);
}

void rig_running(struct rig *r, struct node *nodes, size_t n) {
  rig_joined(r, nodes, n);
  nodes_started(r, nodes, n);
  must(!strcmp(rig_state(r, nodes[0].job), "running"));
}

void rig_open_joined(struct rig *r, struct node *nodes, size_t n) {
  rig_open_for(r, (int64_t)n, (int64_t)n);
  rig_joined(r, nodes, n);
}

void rig_open_running(struct rig *r, struct node *nodes, size_t n) {
  rig_open_for(r, (int64_t)n, (int64_t)n);
  rig_running(r, nodes, n);
}

void rig_next_round(struct rig *r, struct node *nodes, size_t n) {
  int64_t round = nodes[0].round;
  node_exited(r, &nodes[0], 1, 0);
  nodes_stopped(r, nodes, n);
  must(nodes[0].round == round + 1);
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

const struct msg *rig_last(const struct rig *r, uint64_t conn, enum msg_type type) {
  for (size_t i = r->n_sent; i-- > 0;)
    if (r->sent[i].conn == conn && r->sent[i].msg.type == type) return &r->sent[i].msg;
  return NULL;
}

size_t rig_count(const struct rig *r, uint64_t conn, enum msg_type type) {
  size_t n = 0;
  for (size_t i = 0; i < r->n_sent; i++) n += r->sent[i].conn == conn && r->sent[i].msg.type == type;
  return n;
}

static const struct msg *must_have(const struct rig *r, const struct node *n, enum msg_type type) {
  const struct msg *m = rig_last(r, n->conn, type);
  must(m);
  return m;
}

const struct stop *rig_stop(const struct rig *r, const struct node *n) {
  return &must_have(r, n, MSG_STOP)->stop;
}
const struct settled *rig_settled(const struct rig *r, const struct node *n) {
  return &must_have(r, n, MSG_SETTLED)->settled;
}
const struct end *rig_end(const struct rig *r, const struct node *n) {
  return &must_have(r, n, MSG_END)->end;
}

bool rig_was_closed(const struct rig *r, uint64_t conn) {
  for (size_t i = 0; i < r->n_closed; i++)
    if (r->closed[i] == conn) return true;
  return false;
}

static int ask(struct rig *r, const struct control *q, int64_t uid, struct buf *out) {
  struct msg m;
  uint64_t conn = ++r->next_conn;
  bool blind = r->blind;
  msg_init(&m, MSG_CONTROL);
  m.control = *q;
  if (!q->owner) m.control.owner = -1; /* uid 0 has no name here */
  if (!q->job) m.control.job = "";
  if (!q->host) m.control.host = "";
  if (!q->user) m.control.user = "";
  if (!q->agent) m.control.agent = "";
  m.id = 7;
  r->blind = false;
  rig_event(
      r, &(struct core_event){
             .kind = CORE_MSG, .conn = conn, .msg = &m, .local = true, .uid = uid, .peer_addr = "", .local_addr = ""});
  r->blind = blind;
  const struct msg *reply = rig_last(r, conn, MSG_CONTROL_REPLY);
  must(reply && reply->id == 7);
  buf_clear(out);
  buf_append(out, reply->raw, reply->raw_len);
  return (int)reply->control_reply.code;
}

int rig_ask(struct rig *r, const struct control *q, int64_t uid) {
  return ask(r, q, uid, &r->said);
}

const char *rig_said(const struct rig *r, const char *part) {
  return strstr(buf_text(&r->said), part);
}

int rig_control(struct rig *r, const char *verb, const char *job, bool json) {
  return rig_ask(r, &(struct control){.verb = verb, .job = job, .json = json, .rank = -1}, 0);
}

const char *rig_state(struct rig *r, const char *job) {
  struct buf text = BUF_INIT;
  const char *state = "";
  if (ask(r, &(struct control){.verb = "jobs", .job = job, .json = true, .rank = -1}, 0, &text) == 0) {
    json_t *top = json_parse_object(text.data, text.len, NULL);
    const json_t *jobs = json_object_get(top, "jobs"); /* in order of creation: the last one lives */
    const char *word = json_string_value(json_object_get(json_array_get(jobs, json_array_size(jobs) - 1), "state"));
    must(word);
    for (int i = 0; i < JOB_STATE_COUNT; i++)
      if (!strcmp(word, job_state_name((enum job_state)i))) state = job_state_name((enum job_state)i);
    json_decref(top);
  }
  buf_finish(&text);
  return state;
}

static void must_be(struct rig *r, const char *state) {
  const char *is = rig_state(r, r->job);
  if (strcmp(is, state) != 0) fprintf(stderr, "job %s is \"%s\", not \"%s\"\n", r->job, is, state);
  must(!strcmp(is, state));
}

void rig_expect_turn(struct rig *r, uint64_t ms, const char *before, const char *after) {
  rig_run(r, ms - 1);
  must_be(r, before);
  rig_run(r, 1);
  must_be(r, after);
}
