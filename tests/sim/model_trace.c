/* SPDX-License-Identifier: Apache-2.0 */
/* Writes what happens in a small world in the words of tests/model/succession.pml, for tests/model/replay.py: which HELLO
 * a daemon takes, who reads WELCOME and START, which rounds are sealed, when workers run, and who dies.
 *
 * A trace begins when all three nodes are in the first round. It ends where the world gets something that the model does
 * not have; its last line says what. What comes before is a run of its own. */

#include "agent/supervisor/internal.h"
#include "daemon/core/internal.h"
#include "daemon/job/internal.h"
#include "tests/sim/random.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 3, AGENTS = 4, ROUNDS = 8, CALM_MS = 6000, WAR_MS = 90000 };

struct token {
  char incarnation[INCARNATION_MAX + 1];
  int64_t round;
};

static struct {
  FILE *out;
  const struct mutator *planted;
  const char *end; /* why the trace ends here */
  bool begun;
  struct token sealed[ROUNDS];
  int n_sealed;
  struct sim_agent *agents[AGENTS]; /* as the model counts them */
  int n_agents;
  struct {
    struct token voted;
    bool runs, died;
    unsigned connected; /* with which daemons, as both ends see it: a bit each */
  } was[AGENTS];
  uint32_t lives[SIM_DAEMONS_MAX];
  bool knows[SIM_DAEMONS_MAX], sealed_by[SIM_DAEMONS_MAX]; /* a round of the model */
  bool paused[SIM_DAEMONS_MAX];
  int restarted;                /* the daemon that was; -1: none */
  const struct sim_conn *hello; /* a daemon reads HELLO on it now, which says this: */
  struct token voted;
  bool firm;
} t;

static void say(const struct sim *s, const char *what, int a, int b, int c, int d) {
  if (t.begun && !t.end) fprintf(t.out, "%.3f %s %d %d %d %d\n", (double)s->now / 1000, what, a, b, c, d);
}

static void end_trace(const char *why) {
  if (t.begun && !t.end) t.end = why;
}

/* ROUNDS: none. -1: it was sealed elsewhere. */
static int number_of(const char *incarnation, int64_t round) {
  if (!incarnation[0] || !round) return ROUNDS;
  for (int i = 0; i < t.n_sealed; i++)
    if (t.sealed[i].round == round && !strcmp(t.sealed[i].incarnation, incarnation)) return i;
  return -1;
}

static int agent_number(const struct sim_agent *a) {
  for (int i = 0; i < t.n_agents; i++)
    if (t.agents[i] == a) return i;
  return -1;
}

static int number_by_id(const char *id) {
  for (int i = 0; i < t.n_agents; i++)
    if (!strcmp(t.agents[i]->id, id)) return i;
  return -1;
}

/* The model has a restarted daemon as one more. */
static int daemon_number(const struct sim *s, int side) {
  return side == t.restarted ? (int)s->config.endpoints : side;
}

static void add_agent(struct sim_agent *a) {
  if (t.n_agents == AGENTS)
    end_trace("a second newcomer");
  else
    t.agents[t.n_agents++] = a;
}

static const struct job *job_at(const struct core *c) {
  const struct job *j = NULL;
  for (size_t i = 0; c && i < c->jobs.n_all; i++)
    if (!job_is_over(c->jobs.all[i])) j = c->jobs.all[i];
  return j;
}
static const struct job *job_of(const struct sim *s) {
  return job_at(s->d.core);
}

static bool is_connected(struct sim *s, const struct sim_agent *a, int side) {
  const struct job *j = job_at(daemon_at(s, side)->core);
  const struct member *m = j ? job_find_agent(j, a->id) : NULL;
  return a->sup && a->conn && a->conn->side == side && m && m->conn == a->conn->id;
}

static void look_at_connections(struct sim *s, int i) {
  for (int side = 0; side < (int)s->config.endpoints; side++) {
    if (!(t.was[i].connected >> side & 1) || is_connected(s, t.agents[i], side)) continue;
    say(s, "PARTED", i, daemon_number(s, side), 0, 0);
    t.was[i].connected &= ~(1u << side);
  }
}

/* What daemons do. ------------------------------------------------------------------------------------------------- */

static void note_seal(struct sim *s) {
  const struct job *j = job_of(s);
  int members = 0, tie_breaker = 0, base = number_of(j->quorum->base_incarnation, j->quorum->base_round);
  for (int64_t r = 0; r < j->round_nodes; r++) {
    const struct member *m = job_find_rank(j, r);
    const struct voter *v = map_get(&j->quorum->voters, m->agent);
    int i = number_by_id(m->agent);
    if (i < 0 && t.begun) end_trace("a round of a node that the model does not have");
    members |= i < 0 ? 0 : 1 << i;
    if (i >= 0 && v && v->tie_breaker) tie_breaker = i;
  }
  if (t.n_sealed == ROUNDS) return end_trace("more rounds");
  if (t.begun && (base < 0 || base == ROUNDS)) end_trace("a run that begins again");
  for (int i = 0; i < t.n_agents; i++) look_at_connections(s, i); /* it may have lost a node right before */
  struct token *k = &t.sealed[t.n_sealed++];
  snprintf(k->incarnation, sizeof k->incarnation, "%s", j->incarnation);
  k->round = j->round;
  t.knows[daemon_number(s, s->side)] = t.sealed_by[s->side] = true;
  say(s, "SEAL", daemon_number(s, s->side), base, members, tie_breaker);
}

static void note_welcome(struct sim *s) {
  struct sim_agent *a = t.hello->agent;
  if (a->conn != t.hello && a->sup) end_trace("a HELLO that its agent has forgotten");
  if (!a->sup) end_trace("a HELLO of a dead agent");
  if (t.begun && agent_number(a) < 0) add_agent(a);
  int d = daemon_number(s, s->side);
  t.knows[d] = t.knows[d] || t.voted.round;
  if (t.begun && !t.knows[d]) end_trace("a newcomer begins");
  int voted = number_of(t.voted.incarnation, t.voted.round);
  say(s, "HELLO", agent_number(a), d, voted, t.firm);
}

static bool on_core_effect(struct sim *s, struct job_effect *fx) {
  if (t.planted && t.planted->core_effect && !t.planted->core_effect(s, fx)) return false;
  if (fx->kind == JOB_EFFECT_SAVE && strstr(fx->text, "{\"event\":\"seal\"")) note_seal(s);
  if (fx->kind == JOB_EFFECT_SEND && t.hello && fx->conn == t.hello->id) {
    struct msg *m = link_read(s, TO_AGENT, fx->bytes, "the daemon sends");
    if (m && m->type == MSG_WELCOME) note_welcome(s), t.hello = NULL;
    link_forget(m);
  }
  return true;
}

/* A node without a vote tells a daemon of a round that it does not know. */
static bool brings_a_round(const struct sim *s, const struct hello *h) {
  const struct job *j = job_of(s);
  return !h->voted_round && h->round && (!j || j->round != h->round || strcmp(j->incarnation, h->incarnation) != 0);
}

static bool on_msg(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (d == TO_DAEMON && m->type == MSG_HELLO) {
    t.hello = c;
    snprintf(t.voted.incarnation, sizeof t.voted.incarnation, "%s", m->hello.voted_incarnation);
    t.voted.round = m->hello.voted_round;
    t.firm = m->hello.firm;
    if (brings_a_round(s, &m->hello)) end_trace("a newcomer brings a round");
  }
  if (t.planted && t.planted->msg && !t.planted->msg(s, c, d, m)) return false;
  int i = agent_number(c->agent);
  if (d == TO_AGENT && m->type == MSG_WELCOME && i >= 0) {
    say(s, "WELCOME", i, daemon_number(s, c->side), 0, 0);
    t.was[i].connected |= 1u << c->side;
  }
  return true;
}

static bool on_agent_effect(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind == SUP_FORWARD) return false; /* the model has none */
  return !t.planted || !t.planted->agent_effect || t.planted->agent_effect(s, a, fx);
}

/* Behind each step. ------------------------------------------------------------------------------------------------ */

static void look_at_agent(struct sim *s, int i) {
  struct sim_agent *a = t.agents[i];
  struct token voted = {.round = 0};
  if (a->sup) {
    voted.round = a->sup->promise.round;
    memcpy(voted.incarnation, a->sup->promise.incarnation, sizeof voted.incarnation);
  }
  bool same = voted.round == t.was[i].voted.round && !strcmp(voted.incarnation, t.was[i].voted.incarnation);
  if (!same && voted.round)
    say(s, "START", i, daemon_number(s, a->told_side), number_of(voted.incarnation, voted.round), 0);
  else if (!same && a->sup)
    end_trace("a node gives up its vote");
  t.was[i].voted = voted;
  look_at_connections(s, i);
  bool runs = guard_has_workers(a);
  if (runs && !t.was[i].runs) say(s, "RUN", i, number_of(a->incarnation, a->round), 0, 0);
  if (!runs && t.was[i].runs) say(s, "GONE", i, 0, 0, 0);
  t.was[i].runs = runs;
  if (!a->sup && !runs && !t.was[i].died) say(s, "DIES", i, 0, 0, 0), t.was[i].died = true;
  if (runs && (a->node->suspended || (guard_sleeps(a) && (a->paused || !a->sup))))
    end_trace("a node that cannot fence");
}

static void look_at_daemon(struct sim *s, int side) {
  const struct sim_daemon *d = daemon_at(s, side);
  if (!d->core) return;
  if (t.lives[side] && d->life != t.lives[side]) {
    if (t.restarted >= 0 || s->config.endpoints > 2) end_trace("one more restart of a daemon");
    t.restarted = side;
    t.knows[daemon_number(s, side)] = t.sealed_by[side];
    say(s, "RESTART", daemon_number(s, side), side, 0, 0);
  }
  if (t.paused[side] && !d->paused) say(s, "PAUSED", daemon_number(s, side), 0, 0, 0);
  t.paused[side] = d->paused;
  t.lives[side] = d->life;
}

static bool step(struct sim *s) {
  t.hello = NULL;
  bool more = sim_step(s);
  for (int i = 0; i < t.n_agents; i++) look_at_agent(s, i);
  for (int side = 0; side < (int)s->config.endpoints; side++) look_at_daemon(s, side);
  return more;
}

/* All nodes are in the first round of the first daemon, and run. */
static bool begins_as_the_model(struct sim *s) {
  for (int i = 0; i < NODES; i++) {
    const struct sim_agent *a = agent_of(s, i);
    if (!a || !a->sup || !guard_has_workers(a) || !a->sup->promise.firm || a->home || a->life > 1) return false;
    add_agent(agent_of(s, i));
    t.was[i].connected = 1;
    look_at_agent(s, i);
    if (number_of(t.was[i].voted.incarnation, t.was[i].voted.round) != 0) return false;
  }
  return t.n_sealed == 1;
}

/* Daemons that hear what would make them keep a rule of succession.pml in other words, or nodes that hear no age. */
static bool without_hold(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HELLO) m->hello.follows = "";
  return true;
}
static bool without_firm(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HELLO) m->hello.firm = m->hello.voted_round > 0;
  return true;
}
static bool without_fence(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HEARTBEAT_ACK) m->flags &= (1 << FRAME_NUMBER_SHIFT) - 1;
  return true;
}
static bool without_tie(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HELLO) m->hello.seal.tie_breaker = true;
  return true;
}

static const struct plant {
  const char *name;
  struct mutator mutator;
} plants[] = {
    {"HOLD", {.msg = without_hold}},
    {"FIRM", {.msg = without_firm}},
    {"FENCE", {.msg = without_fence}},
    {"TIE", {.msg = without_tie}},
};

void model_trace(uint64_t seed, const char *without, bool verbose, FILE *out) {
  static const struct mutator observer = {
      .msg = on_msg, .core_effect = on_core_effect, .agent_effect = on_agent_effect};
  memset(&t, 0, sizeof t);
  t.out = out;
  t.restarted = -1;
  struct sim *s = random_small_takeover(seed, CALM_MS, WAR_MS, verbose);
  s->mutator = &observer;
  while (s->queue.n && s->queue.v[0]->at <= CALM_MS && step(s)) {
  }
  t.begun = begins_as_the_model(s);
  for (size_t i = 0; without && i < sizeof plants / sizeof plants[0]; i++)
    if (!strcmp(plants[i].name, without)) t.planted = &plants[i].mutator;
  fprintf(out, "seed %" PRIu64 " %d %d\n", seed, (int)s->config.settings.min_nodes, (int)s->config.endpoints);
  for (int i = 0; t.begun && i < NODES; i++) say(s, "RUN", i, 0, 0, 0);
  while (t.begun && !t.end && s->queue.n && s->queue.v[0]->at <= WAR_MS && step(s)) {
  }
  const char *why = !t.begun ? "the first round has not begun" : t.end ? t.end : "the time is over";
  fprintf(out, "end %s%s%s\n", why, s->violated == INV_NONE ? "" : ", ", s->violated == INV_NONE ? "" : s->violation);
  sim_destroy(s);
}
