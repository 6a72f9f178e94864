/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's core under any sequence of valid messages.
 *
 * The input is a list of small operations: what a peer says on which connection, that a connection closes, that time
 * passes, that the daemon is killed, that a job is with another daemon. Six agents share four connections at a time and two jobs, so that they get into
 * each other's way: an agent on somebody else's connection, a HELLO of a round that never was, a report of a node
 * that is gone. Rounds and incarnations are mostly those that the core has named, since nonsense alone would never
 * get past HELLO.
 *
 * What must hold whatever is said: every message that the core sends can be decoded (tests/rig/core.c), deadlines lead
 * somewhere (rig_run), no node rank is given to two agents in one round, ranks fill the world without gaps, and when
 * all peers have gone everything is forgotten in the end. The sanitizers look at the rest. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "proto/facts.h"
#include "tests/rig/core.h"

enum { AGENTS = 6, LINES = 4, JOBS = 2, TOKENS = 6, OPERATIONS_MAX = 400, PLACES_MAX = 4096 };

struct line {
  uint64_t conn; /* 0: closed */
  int agent, job;
};

struct token {
  char incarnation[INCARNATION_MAX + 1];
  int64_t round;
};

struct place { /* told by START */
  char incarnation[INCARNATION_MAX + 1];
  int64_t round, node_rank, nodes, rank_base, world_size;
  int agent; /* and its job: job * AGENTS + agent */
};

struct fuzz {
  const uint8_t *at, *end;
  struct rig rig;
  struct line lines[LINES];
  struct token tokens[TOKENS]; /* the last ones that the core has named */
  size_t n_tokens;
  struct place places[PLACES_MAX];
  size_t n_places;
  int64_t seq;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void fail(const char *what) {
  fprintf(stderr, "broken: %s\n", what);
  abort();
}

static uint8_t byte(struct fuzz *f) {
  return f->at < f->end ? *f->at++ : 0;
}

static unsigned below(struct fuzz *f, unsigned n) {
  return byte(f) % n;
}

/* What it was told. ------------------------------------------------------------------------------------------------ */

static void remember(struct fuzz *f, const char *incarnation, int64_t round) {
  struct token *t = &f->tokens[f->n_tokens++ % TOKENS];
  snprintf(t->incarnation, sizeof t->incarnation, "%s", incarnation);
  t->round = round;
}

static void check_place(struct fuzz *f, const struct start *s, int agent) {
  if (s->node_rank >= s->nodes || s->rank_base >= s->world_size) fail("a place outside of the round");
  for (size_t i = 0; i < f->n_places; i++) {
    const struct place *p = &f->places[i];
    if (p->agent / AGENTS != agent / AGENTS || p->round != s->round || strcmp(p->incarnation, s->incarnation) != 0)
      continue;
    if (p->agent == agent && p->node_rank == s->node_rank) return; /* said again */
    if (p->agent == agent) fail("one agent has two ranks in a round");
    if (p->node_rank == s->node_rank) fail("two agents have one rank in a round");
    if (p->nodes != s->nodes || p->world_size != s->world_size) fail("one round has two sizes");
    if ((p->node_rank < s->node_rank) != (p->rank_base < s->rank_base)) fail("ranks do not follow node ranks");
  }
  if (f->n_places == PLACES_MAX) return;
  struct place *p = &f->places[f->n_places++];
  snprintf(p->incarnation, sizeof p->incarnation, "%s", s->incarnation);
  p->round = s->round;
  p->node_rank = s->node_rank;
  p->nodes = s->nodes;
  p->rank_base = s->rank_base;
  p->world_size = s->world_size;
  p->agent = agent;
}

/* A job that this daemon does not remember, or has not begun, is whatever a peer says it was: tokens of before may
 * come again. */
static void forget_places(struct fuzz *f, int job) {
  size_t n = 0;
  for (size_t i = 0; i < f->n_places; i++)
    if (f->places[i].agent / AGENTS != job) f->places[n++] = f->places[i];
  f->n_places = n;
}

static void hear(struct fuzz *f) {
  struct rig *r = &f->rig;
  if (strstr(buf_text(&r->log), "one: forming -> recovering")) forget_places(f, 0);
  if (strstr(buf_text(&r->log), "two: forming -> recovering")) forget_places(f, 1);
  for (size_t i = 0; i < r->n_sent; i++) {
    const struct msg *m = &r->sent[i].msg;
    const struct line *l = NULL;
    for (int k = 0; k < LINES; k++)
      if (f->lines[k].conn == r->sent[i].conn) l = &f->lines[k];
    if (m->type == MSG_WELCOME) remember(f, m->welcome.incarnation, m->welcome.round);
    if (m->type == MSG_START) remember(f, m->start.incarnation, m->start.round);
    if (m->type == MSG_START && !l) fail("START to nobody");
    if (m->type == MSG_START) check_place(f, &m->start, l->job * AGENTS + l->agent);
  }
  for (size_t i = 0; i < r->n_closed; i++)
    for (int k = 0; k < LINES; k++)
      if (f->lines[k].conn == r->closed[i]) f->lines[k].conn = 0;
  rig_forget(r);
}

/* What is said. ---------------------------------------------------------------------------------------------------- */

static void agent_id(int agent, char out[AGENT_ID_MAX + 1]) {
  snprintf(out, AGENT_ID_MAX + 1, "%032x", (unsigned)agent + 1);
}

static struct token any_token(struct fuzz *f) {
  static const struct token made_up = {"0123456789ab-0", 3};
  unsigned i = below(f, TOKENS + 2);
  if (i < TOKENS && i < f->n_tokens) {
    struct token t = f->tokens[i];
    unsigned other = byte(f);
    if (other > 230) t.round += (int64_t)(other % 3) - 1;
    if (t.round < 0) t.round = 0;
    return t;
  }
  return i == TOKENS ? made_up : (struct token){"", 0};
}

static void any_verdict(struct fuzz *f, struct verdict *v) {
  verdict_init(v);
  v->cause = (enum cause)below(f, CAUSE_COUNT);
  v->rank = (int64_t)below(f, 9) - 1;
  v->code = byte(f);
  v->signal = below(f, 128);
  v->text = below(f, 2) ? "last words\n\x1b[31m" : "";
}

static void any_report(struct fuzz *f, struct report *p, int64_t round) {
  p->kind = (enum report_kind)below(f, REPORT_COUNT);
  p->round = round > 0 ? round : 1;
  unsigned age = byte(f);
  p->seq = age < 200 || f->seq < 8 ? ++f->seq : f->seq - age % 8 + 1;
  p->ago_ms = age < 128 ? age : INT64_MAX >> (age % 64);
  any_verdict(f, &p->what);
}

static void any_settings(struct fuzz *f, int job, struct settings *s) {
  *s = f->rig.settings;
  s->min_nodes = 1 + job; /* 1:3 and 2:3 */
  s->max_nodes = 3;
  s->daemons = job ? 2 : 0; /* "two" can be succeeded */
  if (byte(f) > 250) s->max_restarts = byte(f);
}

static const char *const daemons[] = {"", "22222222222222222222222222222222", "33333333333333333333333333333333"};

/* Its daemon and the voters of its last round; i: any byte. */
static void any_votes(struct hello *h, unsigned i) {
  bool voted = h->round > 0 && h->incarnation[0] && i % 7;
  h->follows = daemons[i % 3];
  h->silent_ms = 700 * (i % 16);
  h->term = i % 5;
  h->standby_port = i % 2 ? 29401 : 0;
  h->voted_incarnation = voted ? h->incarnation : "";
  h->voted_round = voted ? h->round : 0;
  h->seal.base_incarnation = "";
  if (!voted) return;
  h->firm = i & 16;
  h->seal.nodes = i % 11 && h->round_nodes <= 3 ? h->round_nodes : 0;
  h->seal.tie_breaker = h->seal.nodes && i % 4 == 1;
  if (h->round == 1 || i % 13 == 0) return;
  h->seal.base_incarnation = h->incarnation;
  h->seal.base_round = h->round - 1;
  h->seal.base_nodes = 1 + i % 3;
  h->seal.in_base = i & 32;
  h->seal.base_tie_breaker = h->seal.in_base && i & 64;
}

static void forward(struct fuzz *f) {
  struct msg m;
  msg_init(&m, MSG_FORWARD);
  struct token t = any_token(f);
  unsigned i = byte(f);
  m.forward.job = i & 1 ? "two" : "one";
  m.forward.incarnation = t.incarnation[0] ? t.incarnation : "0";
  m.forward.origin = i & 64 ? "0" : m.forward.incarnation;
  m.forward.round = t.round > 0 ? t.round : 1;
  m.forward.term = i / 2 % 4;
  m.forward.daemon = i == 255 ? "2" : daemons[1 + i / 8 % 2];
  m.forward.host = "elsewhere\n";
  m.forward.addr = i == 254 ? "what" : "10.0.9.8";
  m.forward.port = 29400;
  rig_msg(&f->rig, ++f->rig.next_conn, &m, "10.0.0.1", "10.0.9.9");
}

static void say_hello(struct fuzz *f, struct line *l) {
  char agent[AGENT_ID_MAX + 1];
  struct report reports[4];
  struct msg m;
  msg_init(&m, MSG_HELLO);
  struct hello *h = &m.hello;
  struct token t = any_token(f);
  unsigned shape = byte(f);
  agent_id(l->agent, agent);
  h->version = shape == 255 ? 2 : PROTO_VERSION;
  h->agent = agent;
  h->job = l->job ? "two" : "one";
  any_settings(f, l->job, &h->settings);
  h->host = "host\n";
  h->pid = 1 + l->agent;
  h->workers = 1 + below(f, 3);
  h->want_rank = shape % 16 == 1 ? (int64_t)below(f, 4) : -1;
  h->order_key = shape % 16 == 2 ? (int64_t)byte(f) : -1;
  h->expected_nodes = shape % 16 == 3 ? (int64_t)below(f, 5) : 0;
  h->incarnation = t.incarnation;
  h->round = t.round;
  h->phase = shape < 96 ? PHASE_NONE : (enum phase)below(f, PHASE_COUNT);
  h->round_nodes = 1 + below(f, 4);
  h->node_rank = (int64_t)below(f, 5) - 1;
  h->restarts_used = below(f, 4);
  static const char *const own[] = {"", "10.0.0.1 10.1.0.1", "10.1.0.1  fd00::1", "::ffff:10.0.0.2", "what"};
  h->store_port = below(f, 3) ? 40000 + below(f, 5) : 0;
  h->addrs = own[shape % 64 == 5 ? 4 : shape % 4];
  h->reports = reports;
  h->n_reports = below(f, 4);
  for (size_t i = 0; i < h->n_reports; i++) any_report(f, &reports[i], t.round);
  any_votes(h, shape);
  static const char *const addrs[] = {"10.0.0.1", "10.0.0.2", "127.0.0.1", "fe80::1"};
  rig_msg(&f->rig, l->conn, &m, addrs[l->agent % 4], "10.0.9.9");
}

static void connect_line(struct fuzz *f, struct line *l) {
  if (l->conn) rig_closed(&f->rig, l->conn);
  unsigned who = byte(f);
  *l = (struct line){++f->rig.next_conn, (int)(who % AGENTS), (int)(who / AGENTS % JOBS)};
  say_hello(f, l);
}

static void say_report(struct fuzz *f, const struct line *l) {
  struct msg m;
  msg_init(&m, MSG_REPORT);
  struct token t = any_token(f);
  m.report_msg.incarnation = t.incarnation[0] ? t.incarnation : "0";
  any_report(f, &m.report_msg.report, t.round);
  rig_msg(&f->rig, l->conn, &m, "10.0.0.1", "10.0.9.9");
}

/* Of a few names and places, so that they meet those of others. */
static void say_facts(struct fuzz *f, const struct line *l) {
  static const char *const places[] = {"", "gpu0", "gpu1", "gpu2", "gpu3", "mlx5_0/1"};
  static const char *const texts[] = {"", "a", "b\n", "ACTIVE", "ready"};
  struct fact facts[24];
  struct msg m;
  msg_init(&m, MSG_FACTS);
  m.facts.facts = facts;
  m.facts.n_facts = below(f, 25);
  m.facts.wall_ms = byte(f) > 128 ? INT64_MAX : (int64_t)f->rig.now_ms;
  m.facts.text = below(f, 4) ? "" : "no driver";
  for (size_t i = 0; i < m.facts.n_facts; i++) {
    unsigned what = byte(f), value = byte(f);
    facts[i] = (struct fact){.name = what % 32 < FACT_COUNT ? fact_kinds[what % 32].name : "what",
                             .at = places[what / 32 % 6],
                             .value = value == 255   ? INT64_MAX
                                      : value == 254 ? -INT64_MAX
                                                     : value % 8,
                             .text = texts[value % 5]};
  }
  rig_msg(&f->rig, l->conn, &m, "10.0.0.1", "10.0.9.9");
}

static void say_other(struct fuzz *f, const struct line *l) {
  static const enum msg_type types[] = {MSG_HEARTBEAT, MSG_BYE, MSG_END_ACK, MSG_PROGRESS, MSG_AGENT_DIED, MSG_LOG};
  char agent[AGENT_ID_MAX + 1];
  struct laggard laggards[2];
  struct msg m;
  msg_init(&m, types[below(f, 6)]);
  struct token t = any_token(f);
  const char *incarnation = t.incarnation[0] ? t.incarnation : "0";
  if (m.type == MSG_END_ACK) m.end_ack.incarnation = incarnation;
  if (m.type == MSG_PROGRESS) {
    m.progress.incarnation = incarnation;
    m.progress.round = t.round > 0 ? t.round : 1;
    m.progress.step = (int64_t)byte(f) - 1;
    m.progress.age_ms = byte(f);
    m.progress.resumed = (int64_t)byte(f) - 1;
    m.progress.saved = (int64_t)byte(f) - 1;
    m.progress.saving_ms = byte(f);
    m.progress.n_laggards = byte(f) % 3;
    for (size_t i = 0; i < m.progress.n_laggards; i++) laggards[i] = (struct laggard){byte(f), byte(f), byte(f)};
    m.progress.laggards = laggards;
  }
  if (m.type == MSG_LOG) {
    m.log.serial = 1 + below(f, 8);
    m.raw = "no line";
    m.raw_len = below(f, 8);
  }
  if (m.type == MSG_AGENT_DIED) {
    unsigned who = byte(f);
    agent_id((int)(who % AGENTS), agent);
    m.agent_died.job = who & 64 ? "two" : "one";
    m.agent_died.agent = agent;
  }
  rig_msg(&f->rig, l->conn, &m, "10.0.0.1", "10.0.9.9");
}

static void control(struct fuzz *f) {
  static const char *const verbs[] = {"status", "nodes", "stop", "what"};
  unsigned what = byte(f);
  rig_control(&f->rig, verbs[what % 4], what & 4 ? "one" : what & 8 ? "two" : "", what & 16);
}

/* rdzvctl logs: the answer may come later, or never. */
static void ask_for_lines(struct fuzz *f) {
  char agent[AGENT_ID_MAX + 1];
  struct msg m;
  unsigned who = byte(f);
  agent_id((int)(who % AGENTS), agent);
  msg_init(&m, MSG_CONTROL);
  m.control.verb = "logs";
  m.control.job = who & 64 ? "two" : "one";
  m.control.agent = agent;
  m.control.wait_ms = who & 128 ? 1000 : 0;
  uint64_t conn = ++f->rig.next_conn;
  rig_event(&f->rig, &(struct core_event){.kind = CORE_MSG,
                                          .conn = conn,
                                          .msg = &m,
                                          .local = true,
                                          .uid = who & 32 ? 1000 : 0,
                                          .peer_addr = "",
                                          .local_addr = ""});
  if (who % 5 == 0) rig_closed(&f->rig, conn);
}

static void pass_time(struct fuzz *f) {
  static const uint64_t times[] = {1, 20, 99, 100, 800, 1000, 4999, 5000, 7000, 30000, 40000, 600000};
  unsigned what = byte(f);
  if (what > 240) { /* the daemon was stopped for a while */
    f->rig.now_ms += 3000;
    rig_event(&f->rig, &(struct core_event){.kind = CORE_TICK, .lag_ms = 3000});
    return;
  }
  rig_run(&f->rig, times[what % 12]);
}

static void restart(struct fuzz *f) {
  bool with_state = byte(f) & 1;
  rig_restart(&f->rig, with_state);
  memset(f->lines, 0, sizeof f->lines);
  if (!with_state) f->n_places = 0; /* strangers may make up tokens that were given before */
  static const char *const lines[] = {
      "{\"event\":\"seal\"}",
      ("{\"event\":\"suspect\",\"host\":\"n1\",\"uid\":1000,\"job\":\"j\",\"run\":\"1-1\",\"command\":\"c\","
       "\"node_rank\":1,\"nodes\":2,\"failures\":3,\"wall_ms\":1}"),
      "{\"event\":\"cleared\",\"host\":\"n1\",\"uid\":1000,\"all\":true}"};
  uint8_t line = byte(f);
  if (line > 250) rig_load(&f->rig, lines[line % 3]);
}

static void operation(struct fuzz *f) {
  unsigned what = byte(f);
  struct line *l = &f->lines[what / 16 % LINES];
  switch (what % 16) {
  case 0:
  case 1:
  case 2: connect_line(f, l); return;
  case 3:
    if (!l->conn) return;
    l->agent = (int)below(f, AGENTS);
    say_hello(f, l);
    return;
  case 4:
    if (l->conn) rig_closed(&f->rig, l->conn);
    l->conn = 0;
    return;
  case 5: control(f); return;
  case 6:
    what = byte(f);
    if (what > 200)
      restart(f);
    else if (what > 100)
      forward(f);
    else
      ask_for_lines(f);
    return;
  case 7:
  case 8: pass_time(f); return;
  case 9:
    if (l->conn) say_facts(f, l);
    return;
  case 10:
  case 11:
    if (l->conn) say_other(f, l);
    return;
  default:
    if (l->conn) say_report(f, l);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct fuzz *f = xcalloc(1, sizeof *f);
  f->at = data;
  f->end = data + size;
  rig_open(&f->rig, 1);
  f->rig.settings.join_timeout_ms = 60000;
  for (int i = 0; i < OPERATIONS_MAX && f->at < f->end; i++) {
    operation(f);
    hear(f);
  }
  for (int i = 0; i < LINES; i++)
    if (f->lines[i].conn) rig_closed(&f->rig, f->lines[i].conn);
  rig_run(&f->rig, (uint64_t)4 * 3600 * 1000);
  if (core_deadline(f->rig.core) != UINT64_MAX || !core_idle(f->rig.core)) fail("something is never over");
  rig_close(&f->rig);
  free(f);
  return 0;
}
