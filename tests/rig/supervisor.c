/* SPDX-License-Identifier: Apache-2.0 */
/* The bench for the supervisor. Effects are taken from it at each step and kept until they are forgotten. */

#include "tests/rig/supervisor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

#define must(what) ((what) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what), abort()))

static const char agent_id[] = "000000000000000000000000000000a1";

/* Effects. --------------------------------------------------------------------------------------------------------- */

static void decode(struct bytes *b, struct msg *m) {
  struct frame f;
  struct err e = ERR_INIT;
  size_t size;
  int rc = frame_parse(b->data, b->len, FRAME_MAX_TO_DAEMON, &f, &size, &e);
  if (rc == 1) rc = msg_decode(&f, TO_DAEMON, m, &e);
  if (rc < 0) fprintf(stderr, "the agent sent what nobody can read: %s\n", e.text);
  must(rc == 0 && size == b->len);
  if (m->type == MSG_HELLO) must(size <= FRAME_HEADER_SIZE + FRAME_MAX_UNIDENTIFIED);
}

static void check(struct bench *b, const struct supervisor_effect *e) {
  must(!b->exits); /* nothing comes after it */
  switch (e->kind) {
  case SUP_SAY: must(e->say.text && e->say.text[0] && !strchr(e->say.text, '\n')); break;
  case SUP_TOLD: must(e->told.text); break;
  case SUP_STATUS: must(e->status.text); break;
  case SUP_SPAWN:
    must(e->spawn.start && e->spawn.start->store_port && !b->serving);
    b->serving = e->spawn.start->node_rank == 0;
    break;
  case SUP_SHUT_STORE: must(b->serving); break;
  case SUP_CLOSE_STORE:
    must(b->serving);
    b->serving = false;
    break;
  case SUP_EXIT:
    must(!b->serving);
    b->exits++;
    b->exit_code = (size_t)e->exit.code;
    break;
  default: break;
  }
}

static void keep(struct bench *b, const struct supervisor_effect *e) {
  if (b->n_fx == b->cap_fx) {
    b->cap_fx = b->cap_fx ? 2 * b->cap_fx : 64;
    b->fx = xrealloc(b->fx, b->cap_fx * sizeof *b->fx);
    b->sent = xrealloc(b->sent, b->cap_fx * sizeof *b->sent);
  }
  b->fx[b->n_fx] = *e;
  memset(&b->sent[b->n_fx], 0, sizeof *b->sent);
  if (e->kind == SUP_SEND) decode(e->send.bytes, &b->sent[b->n_fx]);
  b->n_fx++;
}

void bench_event(struct bench *b, const struct supervisor_event *ev) {
  struct supervisor_effects fx = {0};
  struct supervisor_event now = *ev;
  size_t from = b->n_fx;
  now.now_ms = b->now_ms;
  supervisor_step(b->s, &now, &fx);
  must(!supervisor_fault(b->s));
  for (size_t i = 0; i < fx.n; i++) {
    check(b, &fx.v[i]);
    keep(b, &fx.v[i]);
  }
  fx.n = 0;
  supervisor_effects_finish(&fx);
  for (size_t i = from; i < b->n_fx && (b->answering || b->fencing); i++) {
    if (b->sent[i].type != MSG_HEARTBEAT) continue;
    struct msg ack;
    msg_init(&ack, MSG_HEARTBEAT_ACK);
    ack.id = b->sent[i].id;
    int64_t lease_ms = b->config.settings.lease_ms;
    ack.flags = b->fencing ? FRAME_FLAG_FENCE : 0;
    ack.flags |= (uint16_t)((b->age_ms * FRAME_AGE_PER_LEASE + lease_ms - 1) / lease_ms << FRAME_NUMBER_SHIFT);
    b->fenced = b->fencing;
    bench_msg(b, &ack);
  }
}

void bench_forget(struct bench *b) {
  struct supervisor_effects fx = {.v = b->fx, .n = b->n_fx};
  for (size_t i = 0; i < b->n_fx; i++) msg_finish(&b->sent[i]);
  supervisor_effects_clear(&fx);
  b->n_fx = 0;
}

void bench_run(struct bench *b, uint64_t ms) {
  uint64_t end = b->now_ms + ms, at;
  for (int stuck = 0; (at = supervisor_deadline(b->s)) <= end;) {
    stuck = at > b->now_ms ? 0 : stuck + 1;
    must(stuck < 8);
    if (at > b->now_ms) b->now_ms = at;
    bench_event(b, &(struct supervisor_event){.kind = SUP_TICK});
  }
  b->now_ms = end;
}

/* The bench. ------------------------------------------------------------------------------------------------------- */

void bench_open(struct bench *b) {
  memset(b, 0, sizeof *b);
  b->now_ms = 100000;
  b->node_rank = 1;
  b->store_port = 29500;
  snprintf(b->incarnation, sizeof b->incarnation, "018bcfe56800-1");
  b->config = (struct supervisor_config){.agent_id = agent_id,
                                         .job = "job",
                                         .host = "n0",
                                         .endpoint = "node1:29400",
                                         .pid = 77,
                                         .workers = 2,
                                         .want_rank = -1,
                                         .order_key = -1,
                                         .settings = {.min_nodes = 2,
                                                      .max_nodes = 2,
                                                      .max_restarts = 3,
                                                      .last_call_ms = 30000,
                                                      .join_timeout_ms = 60000,
                                                      .stop_timeout_ms = 30000,
                                                      .lease_ms = 5000}};
}

void bench_close(struct bench *b) {
  bench_forget(b);
  supervisor_destroy(b->s);
  free(b->fx);
  free(b->sent);
}

void bench_begin(struct bench *b) {
  b->s = supervisor_create(&b->config);
  bench_event(b, &(struct supervisor_event){.kind = SUP_BEGIN});
}

void bench_msg(struct bench *b, const struct msg *m) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_MSG, .msg = m});
}

void bench_up(struct bench *b) {
  struct msg m;
  bench_event(
      b, &(struct supervisor_event){.kind = SUP_LINK_UP, .link_up = {.port = b->peer ? 29400 : 0}, .text = b->peer});
  msg_init(&m, MSG_GREETING);
  m.greeting.version = PROTO_VERSION;
  bench_msg(b, &m);
}

void bench_down(struct bench *b, bool refused) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_LINK_DOWN, .text = refused ? "refused" : "reset by peer"});
}

void bench_welcome(struct bench *b, bool fence) {
  struct msg m;
  msg_init(&m, MSG_WELCOME);
  m.welcome.version = PROTO_VERSION;
  m.welcome.incarnation = b->incarnation;
  m.welcome.fence = b->fenced = fence;
  m.welcome.daemon = b->daemon ? b->daemon : "";
  m.welcome.term = b->term;
  m.welcome.age_ms = b->age_ms;
  m.welcome.succeeded = b->succeeded;
  bench_msg(b, &m);
}

void bench_start(struct bench *b, int64_t round) {
  struct msg m;
  msg_init(&m, MSG_START);
  m.start = (struct start){.incarnation = b->incarnation,
                           .origin = b->incarnation,
                           .round = round,
                           .node_rank = b->node_rank,
                           .nodes = b->nodes ? b->nodes : 2,
                           .rank_base = 2 * b->node_rank,
                           .world_size = 4,
                           .role_world_size = 4,
                           .head_addr = "10.0.0.9",
                           .store_port = b->store_port,
                           .head_host = b->head_host ? b->head_host : "n9",
                           .node_addr = "10.0.0.1",
                           .fence = b->fenced,
                           .ids = b->ids,
                           .mint_first = b->mint_first,
                           .mint_count = b->mint_count,
                           .minters = "to come from n9",
                           .other_command = b->other_command ? b->other_command : "",
                           .seal = b->seal,
                           .successors = b->successors,
                           .n_successors = b->n_successors,
                           .age_ms = b->age_ms,
                           .agreed = b->agreed};
  if (b->node_rank == 0) {
    m.raw = "10.0.0.9\n10.0.0.1\n";
    m.raw_len = strlen(m.raw);
  }
  bench_msg(b, &m);
}

void bench_stop(struct bench *b, int64_t round, const struct verdict *v) {
  struct msg m;
  msg_init(&m, MSG_STOP);
  m.stop.incarnation = b->incarnation;
  m.stop.round = round;
  if (v) m.stop.verdict = *v;
  bench_msg(b, &m);
}

void bench_settled(struct bench *b, int64_t round, bool charged, int64_t used, const struct verdict *v) {
  struct msg m;
  msg_init(&m, MSG_SETTLED);
  m.settled.incarnation = b->incarnation;
  m.settled.round = round;
  m.settled.charged = charged;
  m.settled.restarts_used = used;
  if (v) m.settled.verdict = *v;
  bench_msg(b, &m);
}

void bench_stale(struct bench *b) {
  struct msg m;
  msg_init(&m, MSG_STALE);
  m.stale.incarnation = b->incarnation;
  m.stale.round = 9;
  m.stale.text = "round 1 went on without this node";
  bench_msg(b, &m);
}

void bench_store(struct bench *b, uint32_t port) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_STORE, .store = {.port = port}});
}

void bench_end(struct bench *b, int code, const struct verdict *v) {
  struct msg m;
  msg_init(&m, MSG_END);
  m.end.incarnation = b->incarnation;
  m.end.round = 1;
  m.end.code = code;
  m.end.outcome = code ? OUTCOME_FAILED : OUTCOME_SUCCESS;
  if (v) m.end.verdict = *v;
  bench_msg(b, &m);
}

static uint32_t round_now(const struct bench *b) {
  return (uint32_t)supervisor_round(b->s);
}

void bench_spawned(struct bench *b, uint32_t local_rank) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_SPAWNED,
                                            .round = round_now(b),
                                            .local_rank = local_rank,
                                            .spawned = {.pid = 5000 + (int)local_rank}});
}

void bench_exited(struct bench *b, uint32_t local_rank, int status, uint64_t when_ms, const char *text) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_EXITED,
                                            .round = round_now(b),
                                            .local_rank = local_rank,
                                            .when_ms = when_ms,
                                            .exited = {.status = status},
                                            .text = text});
}

void bench_clear(struct bench *b) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_CLEAR, .round = round_now(b)});
}

void bench_signal(struct bench *b, int signo) {
  bench_event(b, &(struct supervisor_event){.kind = SUP_SIGNAL, .signal = {.signo = signo}});
}

void bench_all_spawned(struct bench *b) {
  for (uint32_t i = 0; i < b->config.workers; i++) bench_spawned(b, i);
}

void bench_all_exited(struct bench *b, int status) {
  for (uint32_t i = 0; i < b->config.workers; i++) bench_exited(b, i, status, b->now_ms, "");
}

void bench_worker(struct bench *b, uint32_t local_rank, struct supervisor_event ev) {
  ev.round = round_now(b);
  ev.local_rank = local_rank;
  bench_event(b, &ev);
}

void bench_joined(struct bench *b) {
  bench_begin(b);
  bench_up(b);
  bench_welcome(b, false);
}

void bench_running(struct bench *b) {
  bench_joined(b);
  bench_start(b, 1);
  bench_all_spawned(b);
  must(supervisor_state(b->s) == SUPERVISOR_RUNNING);
}

void bench_open_joined(struct bench *b) {
  bench_open(b);
  bench_joined(b);
}

void bench_open_running(struct bench *b) {
  bench_open(b);
  bench_running(b);
}

void bench_open_answered(struct bench *b) {
  bench_open(b);
  b->answering = true;
  bench_running(b);
}

const struct hello *bench_reconnected(struct bench *b) {
  bench_down(b, false);
  bench_run(b, 0);
  bench_up(b);
  return bench_hello(b);
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

size_t bench_count(const struct bench *b, enum supervisor_effect_kind kind) {
  size_t n = 0;
  for (size_t i = 0; i < b->n_fx; i++) n += b->fx[i].kind == kind;
  return n;
}

const struct supervisor_effect *bench_effect(const struct bench *b, enum supervisor_effect_kind kind) {
  for (size_t i = b->n_fx; i-- > 0;)
    if (b->fx[i].kind == kind) return &b->fx[i];
  return NULL;
}

const struct msg *bench_sent(const struct bench *b, enum msg_type type) {
  for (size_t i = b->n_fx; i-- > 0;)
    if (b->sent[i].type == type) return &b->sent[i];
  return NULL;
}

const struct hello *bench_hello(const struct bench *b) {
  const struct msg *m = bench_sent(b, MSG_HELLO);
  must(m);
  return &m->hello;
}

size_t bench_count_sent(const struct bench *b, enum msg_type type) {
  size_t n = 0;
  for (size_t i = 0; i < b->n_fx; i++) n += b->sent[i].type == type;
  return n;
}

const struct report *bench_report(const struct bench *b, enum report_kind kind) {
  for (size_t i = b->n_fx; i-- > 0;)
    if (b->sent[i].type == MSG_REPORT && b->sent[i].report_msg.report.kind == kind)
      return &b->sent[i].report_msg.report;
  return NULL;
}

size_t bench_said(const struct bench *b, const char *words) {
  size_t n = 0;
  for (size_t i = 0; i < b->n_fx; i++) n += b->fx[i].kind == SUP_SAY && strstr(b->fx[i].say.text, words);
  return n;
}

void assert_state(const struct bench *b, enum supervisor_state want) {
  assert_string_equal(supervisor_state_name(supervisor_state(b->s)), supervisor_state_name(want));
}

void assert_exit(const struct bench *b, int code) {
  assert_int_equal(b->exits, 1);
  assert_int_equal(b->exit_code, code);
  assert_state(b, SUPERVISOR_DONE);
  assert_true(supervisor_deadline(b->s) == UINT64_MAX);
}

void assert_kills_and_exits(struct bench *b, int code) {
  assert_int_equal(b->exits, 0);
  assert_int_equal(bench_effect(b, SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  bench_clear(b);
  assert_exit(b, code);
}
