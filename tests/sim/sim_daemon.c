/* SPDX-License-Identifier: Apache-2.0 */
/* The driver around core_step, as daemon/server/server.c is in rdzvd: connections have numbers that are never used
 * twice, effects are carried out in order, one timer follows core_deadline, and nothing is decided here.
 *
 * The state file is a list of lines that survives a kill. die_at_save kills the daemon inside a JOB_EFFECT_SAVE:
 * before the line is written, with half of it written, or right behind it; the effects that follow are lost in each
 * case, which is all that "fsync before any later effect" promises. A half line is what is left at the end of the
 * file; the driver drops it (it has no newline).
 *
 * There may be several of them, at several addresses: two that know nothing of each other, and nodes whose endpoint
 * leads now to the one and now to the other; those of --endpoint a,b,c; and those that agents have started. Everything
 * here acts upon s->d; daemon_side puts the one in its place that is meant, and sim_step the one to which an event
 * belongs.
 *
 * A pause is SIGSTOP: messages wait in the sockets. When it ends they come first, then the tick, with the lag it has.
 */

#include "tests/sim/sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/core/internal.h"
#include "tests/sim/coverage.h"

enum { OWN_RESTART_MAX_MS = 200 };

static const uint64_t wall_base_ms = 1800000000000u;

static struct sim_conn *conn_of(struct sim *s, uint64_t id) {
  return id >= 1 && id <= s->n_conns ? s->conns[id - 1] : NULL;
}

const char *daemon_name(const struct sim *s, int side) {
  return side == s->side ? s->d.name : s->daemons[side].name;
}

struct sim_daemon *daemon_at(struct sim *s, int side) {
  return side == s->side ? &s->d : &s->daemons[side];
}

void daemon_side(struct sim *s, int side) {
  if (side == s->side) return;
  s->daemons[s->side] = s->d;
  s->d = s->daemons[side];
  s->side = side;
}

/* What its machine's clock says, and when that says so. */
static uint64_t local_time(const struct sim *s) {
  return s->now * place_rate(s, s->d.machine) / 1000;
}
static uint64_t local_when(const struct sim *s, uint64_t local) {
  uint32_t rate = place_rate(s, s->d.machine);
  return local >= UINT64_MAX / 1000 ? UINT64_MAX : (local * 1000 + rate - 1) / rate;
}

static void arm(struct sim *s) {
  if (!s->d.core) return;
  uint64_t at = local_when(s, core_deadline(s->d.core));
  if (s->mutator && s->mutator->deadline) at = s->mutator->deadline(s, NULL, at);
  if (at == UINT64_MAX || at >= s->d.tick_at) return;
  s->d.tick_at = at < s->now ? s->now : at;
  struct sim_event *ev = sim_push(s, s->d.tick_at, EV_DAEMON_TICK);
  ev->a = s->d.life;
  ev->b = (uint64_t)s->side;
}

static void keep_line(struct sim *s, const char *text) {
  s->d.lines = xrealloc(s->d.lines, (s->d.n_lines + 1) * sizeof *s->d.lines);
  s->d.lines[s->d.n_lines++] = xstrdup(text);
}

/* A line has reached the disk, or the daemon dies of it: false. */
static bool saved(struct sim *s, const char *text) {
  static const char *const deaths[] = {"", ", dies before it", ", dies in the middle of it", ", dies behind it"};
  int die = s->d.die_at_save;
  check_event_saved(s, text);
  s->d.die_at_save = 0;
  if (s->d.state_dir || die)
    sim_trace(s, "%s: saves %s%s", s->d.name,
              strstr(text, "\"end\"")       ? "an end"
              : strstr(text, "\"suspect\"") ? "a suspicion"
                                            : "a seal",
              deaths[die]);
  if (s->d.state_dir && (die == 0 || die == 3)) {
    keep_line(s, text);
    if (!strstr(text, "\"end\"")) check_saved(s);
  }
  return die == 0;
}

static void perform(struct sim *s, struct job_effect *fx, uint64_t said_at) {
  struct sim_conn *c = conn_of(s, fx->conn);
  if (s->mutator && s->mutator->core_effect && !s->mutator->core_effect(s, fx)) return;
  switch (fx->kind) {
  case JOB_EFFECT_SEND:
    if (c && c->open[TO_DAEMON] && c->daemon_life == s->d.life) {
      struct msg *m = link_read(s, TO_AGENT, fx->bytes, "the daemon sends");
      if (m) check_core_sent(s, c, m);
      link_send_read(s, c, TO_AGENT, fx->bytes, m, said_at);
    }
    break;
  case JOB_EFFECT_CLOSE:
    if (c && c->daemon_life == s->d.life) link_fin(s, c, TO_AGENT);
    break;
  case JOB_EFFECT_LOG:
    if (s->config.verbose || (s->config.logs && fx->level != LOG_DEBUG))
      sim_trace(s, "%s log: %s", s->d.name, fx->text);
    break;
  case JOB_EFFECT_CLAIM: claim_ask(s, fx); break;
  case JOB_EFFECT_UNCLAIM: claim_withdraw(s, fx); break;
  case JOB_EFFECT_EVENT: check_event_made(s, fx); break;
  case JOB_EFFECT_IDENTIFIED:
  case JOB_EFFECT_PAUSE:       /* no agent is so fast */
  case JOB_EFFECT_SAVE: break; /* mind and pump have done them */
  }
}

static void drop_queue(struct sim *s) {
  struct job_effects rest = {.v = s->d.queue, .n = s->d.tail};
  for (size_t i = 0; i < s->d.head; i++) rest.v[i] = (struct job_effect){.kind = JOB_EFFECT_LOG};
  job_effects_finish(&rest);
  free(s->d.queued_at);
  s->d.queue = NULL;
  s->d.queued_at = NULL;
  s->d.head = s->d.tail = s->d.cap = 0;
  s->d.saving = false;
}

/* Carries out what may be, in order. A line that takes time to the disk stops it until EV_SAVED. */
static void pump(struct sim *s) {
  while (s->d.head < s->d.tail && !s->d.saving) {
    struct job_effect *fx = &s->d.queue[s->d.head];
    if (fx->kind == JOB_EFFECT_SAVE && s->d.state_dir && s->config.save_max) {
      s->d.saving = true;
      struct sim_event *ev = sim_push(s, s->now + sim_between(s, 1, s->config.save_max), EV_SAVED);
      ev->a = s->d.life;
      ev->b = (uint64_t)s->side;
      return;
    }
    if (fx->kind == JOB_EFFECT_SAVE && !saved(s, fx->text)) {
      daemon_kill(s);
      return;
    }
    perform(s, fx, s->d.queued_at[s->d.head]);
    struct job_effects one = {.v = fx, .n = 1};
    job_effects_clear(&one);
    *fx = (struct job_effect){.kind = JOB_EFFECT_LOG};
    s->d.head++;
  }
}

static void stop(struct sim *s) {
  coverage_jobs(&s->d.core->jobs);
  core_destroy(s->d.core);
  s->d.core = NULL;
  drop_queue(s);
  s->d.paused = false;
  s->d.tick_at = UINT64_MAX;
  sim_unstash(s, NULL);
}

/* As rdzvd does that an agent has started, once nobody needs it. */
static void exit_if_idle(struct sim *s) {
  if (!s->d.core || !s->d.owned || s->d.loading || s->d.head < s->d.tail || !core_idle(s->d.core) ||
      core_sends_on(s->d.core))
    return;
  bool left = s->d.owner >= 0 && !s->agents[s->d.owner]->sup;
  if (!core_served(s->d.core) && !left) return;
  sim_trace(s, "%s: exits", s->d.name);
  for (size_t i = 0; i < s->n_conns; i++)
    if (s->conns[i]->side == s->side && s->conns[i]->daemon_life == s->d.life) link_fin(s, s->conns[i], TO_AGENT);
  stop(s);
}

void daemon_on_saved(struct sim *s, struct sim_event *ev) {
  if (!s->d.core || ev->a != s->d.life || !s->d.saving) return;
  s->d.saving = false;
  struct job_effect *fx = &s->d.queue[s->d.head];
  if (!saved(s, fx->text)) {
    daemon_kill(s);
    return;
  }
  free(fx->text);
  s->d.head++;
  pump(s);
  exit_if_idle(s);
}

static void enqueue(struct sim *s, const struct job_effect *fx) {
  if (s->d.head == s->d.tail) s->d.head = s->d.tail = 0;
  if (s->d.tail == s->d.cap) {
    s->d.cap = s->d.cap ? 2 * s->d.cap : 64;
    s->d.queue = xrealloc(s->d.queue, s->d.cap * sizeof *s->d.queue);
    s->d.queued_at = xrealloc(s->d.queued_at, s->d.cap * sizeof *s->d.queued_at);
  }
  s->d.queued_at[s->d.tail] = s->now;
  s->d.queue[s->d.tail++] = *fx;
}

static void mind(struct sim *s, struct core_event *ev) {
  struct job_effects fx = {0};
  s->daemon_stepped = true;
  ev->now_ms = local_time(s);
  ev->wall_ms = wall_base_ms + ev->now_ms;
  if (!ev->peer_addr) ev->peer_addr = "";
  if (!ev->local_addr) ev->local_addr = "";
  core_step(s->d.core, ev, &fx);
  check_goodput(s);
  if (s->d.core->jobs.fault) {
    fprintf(stderr, "rdzvd: %s is not allowed\n", s->d.core->jobs.fault);
    abort();
  }
  for (size_t i = 0; i < fx.n; i++) {
    struct sim_conn *c = conn_of(s, fx.v[i].conn);
    if (fx.v[i].kind == JOB_EFFECT_IDENTIFIED && c)
      c->identified = true, c->user_timeout_ms[TO_AGENT] = (uint32_t)fx.v[i].value;
    enqueue(s, &fx.v[i]);
  }
  free(fx.v); /* what they own is the queue's */
  pump(s);
  arm(s);
  exit_if_idle(s);
}

void daemon_on_claimed(struct sim *s, uint64_t serial, enum claim_answer answer, const char *text) {
  struct core_event ev = {.kind = CORE_CLAIMED, .serial = serial, .claimed = answer, .claim_text = text};
  mind(s, &ev);
}

/* The id is kept with the state. Not from the run's own randomness, so that stories stay what they are. */
static void begin_state(struct sim *s) {
  if (!s->d.no) s->d.no = ++s->n_daemons;
  if (!s->d.state_dir || !s->d.states) s->d.states++;
  if (s->d.states != s->d.told_states) s->ids++;
  s->d.told_states = s->d.states;
  uint64_t z = s->config.seed * 0x9e3779b97f4a7c15u + s->d.no * 0xbf58476d1ce4e5b9u + s->d.states;
  z = (z ^ (z >> 31)) * 0x94d049bb133111ebu;
  snprintf(s->d.id, sizeof s->d.id, "%08" PRIx32 "%08" PRIx32 "%016" PRIx64, s->d.no, s->d.states, z);
}

void daemon_start(struct sim *s) {
  if (s->d.core) return;
  for (int i = 0; i < s->n_nodes && !s->d.state_dir; i++) s->nodes[i].drained = false; /* it has forgotten */
  begin_state(s);
  struct core_config config = {.seed = sim_random(s),
                               .host = s->config.takeover ? s->d.host : NULL,
                               .id = s->d.id,
                               .port = s->config.takeover ? s->d.port : 0,
                               .owned = s->d.owned,
                               .claims = s->config.claims,
                               .saves = s->d.state_dir,
                               .events = s->config.events};
  s->d.life = ++s->lives;
  s->d.seals = s->d.seals_told = s->d.ends = s->d.ends_told = 0;
  if (s->side && !s->config.takeover) s->two = true;
  s->d.core = core_create(&config);
  s->d.paused = false;
  s->d.tick_at = UINT64_MAX;
  sim_trace(s, "%s: starts%s", s->d.name, s->d.n_lines ? " with its state file" : "");
  s->d.loading = true;
  for (size_t i = 0; i < s->d.n_lines; i++) {
    struct core_event ev = {.kind = CORE_LOAD, .line = s->d.lines[i]};
    mind(s, &ev);
  }
  s->d.loading = false;
  /* The file is rewritten with what is still needed, as server.c does. */
  struct buf b = BUF_INIT;
  core_state_lines(s->d.core, &b);
  for (size_t i = 0; i < s->d.n_lines; i++) free(s->d.lines[i]);
  s->d.n_lines = 0;
  for (char *line = b.data, *end; line && (end = strchr(line, '\n')); line = end + 1) {
    *end = '\0';
    if (s->d.state_dir) keep_line(s, line);
  }
  buf_finish(&b);
}

void daemon_vanish(struct sim *s) {
  if (s->d.core) {
    sim_trace(s, "%s: gone", s->d.name);
    stop(s);
  }
  for (size_t i = 0; i < s->d.n_lines && s->d.owned; i++) free(s->d.lines[i]); /* its folder is in memory */
  if (s->d.owned) s->d.n_lines = 0, s->d.states++;
  for (size_t i = 0; i < s->n_conns; i++) {
    struct sim_conn *c = s->conns[i];
    if (!c->open[TO_DAEMON] || c->side != s->side) continue;
    c->open[TO_DAEMON] = false;
    c->vanished = true;
    c->gone_at = s->now;
  }
}

/* By the agent that has started it. */
static void on_restart(struct sim *s, uint64_t side) {
  const struct sim_daemon *d = daemon_at(s, (int)side);
  const struct sim_agent *a = d->owner >= 0 ? s->agents[d->owner] : agent_of(s, d->machine);
  if (!agent_alive(a) || a->node->off) return;
  int before = s->side;
  daemon_side(s, (int)side);
  daemon_start(s);
  daemon_side(s, before);
}

void daemon_kill(struct sim *s) {
  s->faulty = true;
  if (!s->d.core) return;
  sim_trace(s, "%s: killed", s->d.name);
  if (s->d.owned) sim_call(s, s->now + sim_between(s, 1, OWN_RESTART_MAX_MS), on_restart, (uint64_t)s->side);
  stop(s);
  for (size_t i = 0; i < s->n_conns; i++) {
    struct sim_conn *c = s->conns[i];
    if (!c->open[TO_DAEMON] || c->side != s->side) continue;
    if (sim_chance(s, 50)) {
      link_fin(s, c, TO_AGENT);
    } else {
      c->open[TO_DAEMON] = false;
      c->gone_at = s->now;
      link_break(s, c, 1 + link_delay(s, c), 0);
    }
  }
}

void daemon_terminate(struct sim *s) {
  s->faulty = true;
  if (!s->d.core) return;
  daemon_continue(s);
  sim_trace(s, "%s: SIGTERM", s->d.name);
  struct core_event ev = {.kind = CORE_SHUTDOWN};
  mind(s, &ev);
  uint32_t save_max = s->config.save_max;
  s->config.save_max = 0; /* it waits for its lines before it goes */
  if (s->d.core) daemon_on_saved(s, &(struct sim_event){.a = s->d.life});
  s->config.save_max = save_max;
  if (!s->d.core) return;
  for (size_t i = 0; i < s->n_conns; i++)
    if (s->conns[i]->side == s->side) link_fin(s, s->conns[i], TO_AGENT);
  daemon_kill(s);
}

void daemon_pause(struct sim *s) {
  s->faulty = true;
  if (!s->d.core || s->d.paused) return;
  sim_trace(s, "%s: paused", s->d.name);
  s->d.paused = true;
  s->d.paused_at = s->now;
}

void daemon_continue(struct sim *s) {
  if (!s->d.paused) return;
  sim_trace(s, "%s: continued", s->d.name);
  s->d.paused = false;
  if (s->now - s->d.paused_at > s->longest_pause_ms) s->longest_pause_ms = s->now - s->d.paused_at;
  sim_unstash(s, NULL);
}

void daemon_accept(struct sim *s, struct sim_conn *c) {
  if (!s->d.core || c->daemon_life != s->d.life || !c->open[TO_DAEMON]) return;
  sim_push(s, s->now + SIM_HELLO_MS, EV_HELLO_TIMEOUT)->conn = c;
  struct msg m;
  msg_init(&m, MSG_GREETING);
  m.greeting.version = PROTO_VERSION;
  struct bytes *b = msg_bytes(&m);
  link_send(s, c, TO_AGENT, b);
  bytes_unref(b);
}

void daemon_on_hello_timeout(struct sim *s, struct sim_event *ev) {
  struct sim_conn *c = ev->conn;
  if (c->identified || !c->open[TO_DAEMON]) return;
  link_fin(s, c, TO_AGENT);
  daemon_closed(s, c);
}

/* As the driver knows it. */
static int64_t user_of(const struct sim_conn *c) {
  if (c->kind == CONN_CONTROL) return 0;
  return c->node && c->node->keyed ? c->node->uid : -1;
}

void daemon_receive(struct sim *s, struct sim_conn *c, struct msg *m) {
  if (!s->d.core || c->daemon_life != s->d.life) return;
  bool noisy =
      m->type == MSG_HEARTBEAT || m->type == MSG_PROGRESS || (m->type == MSG_FORWARD && !s->config.connections);
  if (sim_tracing(s) && (s->config.verbose || !noisy)) {
    struct buf text = BUF_INIT;
    describe_msg(m, s->config.stores, &text);
    if (c->agent) sim_trace(s, "%s -> %s: %s", c->agent->name, s->d.name, buf_text(&text));
    buf_finish(&text);
  }
  if (m->type == MSG_HELLO) check_hello(s, c, &m->hello);
  for (int i = 0; i < s->n_nodes && m->type == MSG_CONTROL && !strcmp(m->control.verb, "undrain"); i++)
    if (!strcmp(s->nodes[i].host, m->control.host)) s->nodes[i].drained = false, s->nodes[i].lifts++;
  if (c->drains) c->lifts = c->drains->lifts;
  if (s->mutator && s->mutator->msg && !s->mutator->msg(s, c, TO_DAEMON, m)) return;
  struct core_event ev = {.kind = CORE_MSG,
                          .conn = c->id,
                          .msg = m,
                          .peer_addr = c->node ? c->node->addr : "",
                          .local_addr = c->node ? s->d.addr : "",
                          .local = c->kind == CONN_CONTROL,
                          .uid = user_of(c)};
  mind(s, &ev);
}

void daemon_closed(struct sim *s, struct sim_conn *c) {
  if (!s->d.core || c->daemon_life != s->d.life) return;
  struct core_event ev = {.kind = CORE_CLOSED, .conn = c->id};
  mind(s, &ev);
}

void daemon_on_tick(struct sim *s, struct sim_event *ev) {
  if (!s->d.core || ev->a != s->d.life) return;
  uint64_t due = s->d.tick_at;
  s->d.tick_at = UINT64_MAX;
  if (core_deadline(s->d.core) <= local_time(s)) {
    struct core_event tick = {.kind = CORE_TICK, .lag_ms = s->now - due};
    mind(s, &tick);
  } else {
    arm(s);
  }
}

void daemon_control(struct sim *s, const struct control *q) {
  s->faulty = s->faulty || strcmp(q->verb, "drain") != 0;
  if (!s->d.core) return;
  s->harmless = false;
  s->confirmed = s->confirmed || (!strcmp(q->verb, "confirm-dead") && !q->host);
  struct msg m;
  msg_init(&m, MSG_CONTROL);
  m.id = 1;
  m.control = *q;
  if (!q->owner) m.control.owner = -1;
  if (!q->job) m.control.job = "";
  if (!q->host) m.control.host = "";
  if (!q->user) m.control.user = "";
  if (!q->agent) m.control.agent = "";
  sim_trace(s, "rdzvctl: %s %s%s%s", q->verb, m.control.job, m.control.host, q->force ? " --force" : "");
  struct sim_conn *c = link_open(s, CONN_CONTROL, NULL, NULL);
  for (int i = 0; i < s->n_nodes && !strcmp(q->verb, "drain"); i++)
    if (!strcmp(s->nodes[i].host, m.control.host)) c->drains = &s->nodes[i];
  struct bytes *b = msg_bytes(&m);
  link_send(s, c, TO_DAEMON, b);
  bytes_unref(b);
}

void daemon_stop_job(struct sim *s, const char *job) {
  daemon_control(s, &(struct control){.verb = "stop", .job = job, .rank = -1});
}

void daemon_drain(struct sim *s, int node, bool force) {
  daemon_control(s, &(struct control){.verb = "drain", .host = s->nodes[node].host, .force = force, .rank = -1});
}

void daemon_undrain(struct sim *s, int node) {
  daemon_control(s, &(struct control){.verb = "undrain", .host = s->nodes[node].host, .rank = -1});
}

void daemon_confirm_dead(struct sim *s, int node) {
  daemon_control(s, &(struct control){.verb = "confirm-dead", .job = "job", .host = s->nodes[node].host, .rank = -1});
}

static void finish_one(struct sim *s) {
  if (s->d.core) {
    coverage_jobs(&s->d.core->jobs);
    core_destroy(s->d.core);
  }
  drop_queue(s);
  for (size_t i = 0; i < s->d.n_lines; i++) free(s->d.lines[i]);
  free(s->d.lines);
}

void daemon_finish(struct sim *s) {
  for (int side = 0; side < SIM_DAEMONS_MAX; side++) {
    daemon_side(s, side);
    finish_one(s);
  }
}
