/* SPDX-License-Identifier: Apache-2.0 */
/* The bench for the supervisor. Effects are taken from it at each step and kept until they are forgotten. */

#include "tests/rig/supervisor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "tests/rig/unit.h"

#define must(what) ((what) ? (void)0 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #what), abort()))

struct bench bench;

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

static void check(const struct supervisor_effect *e) {
  must(!bench.exits); /* nothing comes after it */
  switch (e->kind) {
  case SUP_SAY: must(e->text && e->text[0] && !strchr(e->text, '\n')); break;
  case SUP_TOLD: must(e->text); break;
  case SUP_STATUS: must(e->text); break;
  case SUP_SPAWN:
    must(e->spawn.start && e->spawn.start->store_port && !bench.serving);
    bench.serving = e->spawn.start->node_rank == 0;
    break;
  case SUP_SHUT_STORE: must(bench.serving); break;
  case SUP_CLOSE_STORE:
    must(bench.serving);
    bench.serving = false;
    break;
  case SUP_EXIT:
    must(!bench.serving);
    bench.exits++;
    bench.exit_code = (size_t)e->exit.code;
    break;
  default: break;
  }
}

static void keep(const struct supervisor_effect *e) {
  if (bench.n_fx == bench.cap_fx) {
    bench.cap_fx = bench.cap_fx ? 2 * bench.cap_fx : 64;
    bench.fx = xrealloc(bench.fx, bench.cap_fx * sizeof *bench.fx);
    bench.sent = xrealloc(bench.sent, bench.cap_fx * sizeof *bench.sent);
  }
  bench.fx[bench.n_fx] = *e;
  memset(&bench.sent[bench.n_fx], 0, sizeof *bench.sent);
  if (e->kind == SUP_SEND) decode(e->bytes, &bench.sent[bench.n_fx]);
  bench.n_fx++;
}

void bench_event(const struct supervisor_event *ev) {
  struct supervisor_effects fx = {0};
  struct supervisor_event now = *ev;
  size_t from = bench.n_fx;
  now.now_ms = bench.now_ms;
  supervisor_step(bench.s, &now, &fx);
  must(!supervisor_fault(bench.s));
  for (size_t i = 0; i < fx.n; i++) {
    check(&fx.v[i]);
    keep(&fx.v[i]);
  }
  fx.n = 0;
  supervisor_effects_finish(&fx);
  for (size_t i = from; i < bench.n_fx && (bench.answering || bench.fencing); i++) {
    if (bench.sent[i].type != MSG_HEARTBEAT) continue;
    struct msg ack;
    msg_init(&ack, MSG_HEARTBEAT_ACK);
    ack.id = bench.sent[i].id;
    int64_t lease_ms = bench.config.settings.lease_ms;
    ack.flags = bench.fencing ? FRAME_FLAG_FENCE : 0;
    ack.flags |= (uint16_t)((bench.age_ms * FRAME_AGE_PER_LEASE + lease_ms - 1) / lease_ms << FRAME_NUMBER_SHIFT);
    bench.fenced = bench.fencing;
    bench_msg(&ack);
  }
}

void bench_forget(void) {
  struct supervisor_effects fx = {.v = bench.fx, .n = bench.n_fx};
  for (size_t i = 0; i < bench.n_fx; i++) msg_finish(&bench.sent[i]);
  supervisor_effects_clear(&fx);
  bench.n_fx = 0;
}

void bench_run(uint64_t ms) {
  uint64_t end = bench.now_ms + ms, at;
  for (int stuck = 0; (at = supervisor_deadline(bench.s)) <= end;) {
    stuck = at > bench.now_ms ? 0 : stuck + 1;
    must(stuck < 8);
    if (at > bench.now_ms) bench.now_ms = at;
    bench_event(&(struct supervisor_event){.kind = SUP_TICK});
  }
  bench.now_ms = end;
}

/* The bench. ------------------------------------------------------------------------------------------------------- */

void bench_open(void) {
  bench_close();
  bench.now_ms = 100000;
  bench.node_rank = 1;
  bench.store_port = 29500;
  snprintf(bench.incarnation, sizeof bench.incarnation, "018bcfe56800-1");
  bench.config = (struct supervisor_config){.agent_id = agent_id,
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

void bench_close(void) {
  bench_forget();
  supervisor_destroy(bench.s);
  free(bench.fx);
  free(bench.sent);
  memset(&bench, 0, sizeof bench);
}

int bench_setup(void **state) {
  return bench_open(), 0;
}

void bench_begin(void) {
  bench.s = supervisor_create(&bench.config);
  bench_event(&(struct supervisor_event){.kind = SUP_BEGIN});
}

void bench_msg(const struct msg *m) {
  bench_event(&(struct supervisor_event){.kind = SUP_MSG, .msg = m});
}

void bench_up(void) {
  struct msg m;
  bench_event(
      &(struct supervisor_event){.kind = SUP_LINK_UP, .link_up = {.port = bench.peer ? 29400 : 0}, .text = bench.peer});
  msg_init(&m, MSG_GREETING);
  m.greeting.version = PROTO_VERSION;
  m.greeting.features = features_words();
  bench_msg(&m);
}

void bench_down(bool refused) {
  bench_event(&(struct supervisor_event){.kind = SUP_LINK_DOWN, .text = refused ? "refused" : "reset by peer"});
}

void bench_welcome(bool fence) {
  struct msg m;
  msg_init(&m, MSG_WELCOME);
  m.welcome.incarnation = bench.incarnation;
  m.welcome.fence = bench.fenced = fence;
  m.welcome.daemon = bench.daemon ? bench.daemon : "";
  m.welcome.term = bench.term;
  m.welcome.age_ms = bench.age_ms;
  m.welcome.succeeded = bench.succeeded;
  bench_msg(&m);
}

void bench_start(int64_t round) {
  struct msg m;
  msg_init(&m, MSG_START);
  m.start = (struct start){.incarnation = bench.incarnation,
                           .origin = bench.incarnation,
                           .round = round,
                           .node_rank = bench.node_rank,
                           .nodes = bench.nodes ? bench.nodes : 2,
                           .rank_base = 2 * bench.node_rank,
                           .world_size = 4,
                           .role_world_size = 4,
                           .head_addr = "10.0.0.9",
                           .store_port = bench.store_port,
                           .head_host = bench.head_host ? bench.head_host : "n9",
                           .node_addr = "10.0.0.1",
                           .fence = bench.fenced,
                           .ids = bench.ids,
                           .mint_first = bench.mint_first,
                           .mint_count = bench.mint_count,
                           .minters = "to come from n9",
                           .other_command = bench.other_command ? bench.other_command : "",
                           .seal = bench.seal,
                           .successors = bench.successors,
                           .n_successors = bench.n_successors,
                           .age_ms = bench.age_ms,
                           .agreed = bench.agreed};
  if (bench.node_rank == 0) {
    m.raw = "10.0.0.9\n10.0.0.1\n";
    m.raw_len = strlen(m.raw);
  }
  bench_msg(&m);
}

void bench_stop(int64_t round, const struct verdict *v) {
  struct msg m;
  msg_init(&m, MSG_STOP);
  m.stop.incarnation = bench.incarnation;
  m.stop.round = round;
  if (v) m.stop.verdict = *v;
  bench_msg(&m);
}

void bench_settled(int64_t round, bool charged, int64_t used, const struct verdict *v) {
  struct msg m;
  msg_init(&m, MSG_SETTLED);
  m.settled.incarnation = bench.incarnation;
  m.settled.round = round;
  m.settled.charged = charged;
  m.settled.restarts_used = used;
  if (v) m.settled.verdict = *v;
  bench_msg(&m);
}

void bench_stale(void) {
  struct msg m;
  msg_init(&m, MSG_STALE);
  m.stale.incarnation = bench.incarnation;
  m.stale.round = 9;
  m.stale.text = "round 1 went on without this node";
  bench_msg(&m);
}

void bench_store(uint32_t port) {
  bench_event(&(struct supervisor_event){.kind = SUP_STORE, .port = port});
}

void bench_end(int code, const struct verdict *v) {
  struct msg m;
  msg_init(&m, MSG_END);
  m.end.incarnation = bench.incarnation;
  m.end.round = 1;
  m.end.code = code;
  m.end.outcome = code ? OUTCOME_FAILED : OUTCOME_SUCCESS;
  if (v) m.end.verdict = *v;
  bench_msg(&m);
}

static uint32_t round_now(void) {
  return (uint32_t)supervisor_round(bench.s);
}

void bench_spawned(uint32_t local_rank) {
  bench_event(&(struct supervisor_event){
      .kind = SUP_SPAWNED, .round = round_now(), .local_rank = local_rank, .pid = 5000 + (int)local_rank});
}

void bench_exited(uint32_t local_rank, int status, uint64_t when_ms, const char *text) {
  bench_event(&(struct supervisor_event){.kind = SUP_EXITED,
                                         .round = round_now(),
                                         .local_rank = local_rank,
                                         .when_ms = when_ms,
                                         .exited = {.status = status},
                                         .text = text});
}

void bench_clear(void) {
  bench_event(&(struct supervisor_event){.kind = SUP_CLEAR, .round = round_now()});
}

void bench_signal(int signo) {
  bench_event(&(struct supervisor_event){.kind = SUP_SIGNAL, .signo = signo});
}

void bench_all_spawned(void) {
  for (uint32_t i = 0; i < bench.config.workers; i++) bench_spawned(i);
}

void bench_all_exited(int status) {
  for (uint32_t i = 0; i < bench.config.workers; i++) bench_exited(i, status, bench.now_ms, "");
}

void bench_worker(uint32_t local_rank, struct supervisor_event ev) {
  ev.round = round_now();
  ev.local_rank = local_rank;
  bench_event(&ev);
}

void bench_joined(void) {
  bench_begin();
  bench_up();
  bench_welcome(false);
}

void bench_running(void) {
  bench_joined();
  bench_start(1);
  bench_all_spawned();
  must(supervisor_state(bench.s) == SUPERVISOR_RUNNING);
}

void bench_open_joined(void) {
  bench_open();
  bench_joined();
}

void bench_open_running(void) {
  bench_open();
  bench_running();
}

void bench_open_answered(void) {
  bench_open();
  bench.answering = true;
  bench_running();
}

int bench_setup_joined(void **state) {
  return bench_open_joined(), 0;
}

int bench_setup_running(void **state) {
  return bench_open_running(), 0;
}

int bench_setup_answered(void **state) {
  return bench_open_answered(), 0;
}

const struct hello *bench_reconnected(void) {
  bench_down(false);
  bench_run(0);
  bench_up();
  return bench_hello();
}

/* Looking. --------------------------------------------------------------------------------------------------------- */

size_t bench_count(enum supervisor_effect_kind kind) {
  size_t n = 0;
  for (size_t i = 0; i < bench.n_fx; i++) n += bench.fx[i].kind == kind;
  return n;
}

const struct supervisor_effect *bench_effect(enum supervisor_effect_kind kind) {
  for (size_t i = bench.n_fx; i-- > 0;)
    if (bench.fx[i].kind == kind) return &bench.fx[i];
  return NULL;
}

const struct msg *bench_sent(enum msg_type type) {
  for (size_t i = bench.n_fx; i-- > 0;)
    if (bench.sent[i].type == type) return &bench.sent[i];
  return NULL;
}

const struct hello *bench_hello(void) {
  const struct msg *m = bench_sent(MSG_HELLO);
  must(m);
  return &m->hello;
}

size_t bench_count_sent(enum msg_type type) {
  size_t n = 0;
  for (size_t i = 0; i < bench.n_fx; i++) n += bench.sent[i].type == type;
  return n;
}

const struct report *bench_report(enum report_kind kind) {
  for (size_t i = bench.n_fx; i-- > 0;)
    if (bench.sent[i].type == MSG_REPORT && bench.sent[i].report_msg.report.kind == kind)
      return &bench.sent[i].report_msg.report;
  return NULL;
}

size_t bench_said(const char *words) {
  size_t n = 0;
  for (size_t i = 0; i < bench.n_fx; i++) n += bench.fx[i].kind == SUP_SAY && strstr(bench.fx[i].text, words);
  return n;
}

void assert_said(const char *words) {
  if (bench_said(words) == 1) return;
  for (size_t i = 0; i < bench.n_fx; i++)
    if (bench.fx[i].kind == SUP_SAY) print_error("line: %s\n", bench.fx[i].text);
  fail_msg("%zu lines have: %s", bench_said(words), words);
}

void assert_not_said(const char *words) {
  assert_int_equal(bench_said(words), 0);
}

void assert_state(enum supervisor_state want) {
  assert_string_equal(supervisor_state_name(supervisor_state(bench.s)), supervisor_state_name(want));
}

void assert_exit(int code) {
  assert_int_equal(bench.exits, 1);
  assert_int_equal(bench.exit_code, code);
  assert_state(SUPERVISOR_DONE);
  assert_true(supervisor_deadline(bench.s) == UINT64_MAX);
}

void assert_kills_and_exits(int code) {
  assert_int_equal(bench.exits, 0);
  assert_int_equal(bench_effect(SUP_STOP_TREES)->stop_trees.grace_ms, 0);
  bench_clear();
  assert_exit(code);
}
