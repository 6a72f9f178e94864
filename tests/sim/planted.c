/* SPDX-License-Identifier: Apache-2.0 */
/* sim_planted: one bug per invariant, put between the minds, and the checker must see it. A checker that never
 * complains proves nothing; each of these stories is also told without the bug, and then it must be silent.
 *
 * The bugs are made from outside: messages are changed or swallowed where they are read, effects where they are
 * carried out, deadlines where they are asked for. The code under test knows nothing of it. */

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "agent/sdk/rdzv.h"
#include "common/events/event.h"
#include "common/exit_codes.h"
#include "common/mem.h"
#include "tests/sim/stories.h"

static bool is_node(const struct sim_conn *c, int node) {
  return c->node && c->node->index == node;
}

/* RANKS: n2 is told n1's place. */
static bool same_place_twice(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_START && is_node(c, 1)) m->start.node_rank = m->start.rank_base = 0;
  return true;
}

/* RANKS: the second node's ranks begin one too late. */
static bool gap_in_ranks(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type != MSG_START) return true;
  m->start.world_size++;
  if (is_node(c, 1)) m->start.rank_base++;
  return true;
}

/* OWNERS: at a daemon without keys n2 says that it is n1's user. */
static bool lies(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HELLO && is_node(c, 1)) m->hello.uid = s->nodes[0].uid;
  return true;
}

/* EVENTS: one of each kind is lost. */
static bool seal_is_not_told(struct sim *s, struct job_effect *fx) {
  return fx->kind != JOB_EFFECT_EVENT || fx->value != EVENT_ROUND_SEALED;
}
static bool end_is_not_told(struct sim *s, struct job_effect *fx) {
  return fx->kind != JOB_EFFECT_EVENT || fx->value != EVENT_JOB_ENDED;
}

/* EVENTS: an agent breaks a line. */
static bool breaks_a_line(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind == SUP_EVENT) fx->text[3] = '\n';
  return true;
}

/* STOPPED: n2's worker takes the signals and lives on, and its guard says that it is gone. */
static bool does_not_die(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  return a->node->index != 1;
}

/* CHECKPOINTED: n2's worker has hardly been asked when it is said to have written. */
static bool says_so_at_once(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind != SUP_REQUEST || !fx->request.checkpoint || a->node->index != 1) return true;
  const struct supervisor_event wrote = {
      .kind = SUP_CHECKPOINTED, .round = a->round, .checkpointed = {.request = fx->request.checkpoint}};
  struct sim_event *ev = sim_push(s, s->now, EV_NOTIFY);
  ev->agent = a;
  ev->notice = xmemdup(&wrote, sizeof wrote);
  return true;
}

/* CHECKPOINTED: the daemon takes any sign of life of n2 for its answer. */
static bool heartbeat_is_an_answer(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type != MSG_HEARTBEAT || !is_node(c, 1) || s->now < 2100) return true;
  msg_init(m, MSG_REPORT);
  m->report_msg.incarnation = c->agent->incarnation;
  m->report_msg.report.seq = 1000;
  m->report_msg.report.round = c->agent->round;
  m->report_msg.report.kind = REPORT_CHECKPOINTED;
  return true;
}

/* OVERLAP: n2 never hears that it must fence. */
static bool no_fence(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HEARTBEAT_ACK) m->flags = 0;
  if (m->type == MSG_WELCOME) m->welcome.fence = false;
  if (m->type == MSG_START) m->start.fence = false;
  return true;
}

/* OVERLAP: the daemon believes that no round can form without a node, although the others are there. */
static bool nobody_is_to_fence(struct sim *s, struct job_effect *fx) {
  if (fx->kind != JOB_EFFECT_SEND) return true;
  struct msg *m = link_read(s, TO_AGENT, fx->bytes, "the daemon sends");
  if (m->type == MSG_HEARTBEAT_ACK) m->flags &= (uint16_t)~FRAME_FLAG_FENCE;
  if (m->type == MSG_WELCOME) m->welcome.fence = false;
  if (m->type == MSG_START) m->start.fence = false;
  struct bytes *told = msg_bytes(m); /* m borrows from the old ones */
  link_forget(m);
  bytes_unref(fx->bytes);
  fx->bytes = told;
  return true;
}

/* OVERLAP: n2's guard never hears of its deadline. */
static bool guard_untold(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  return fx->kind != SUP_FENCE_AT;
}

/* ENDS: one node is told another end. */
static bool other_end(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_END && is_node(c, 1)) m->end.outcome = OUTCOME_FAILED, m->end.code = 5;
  return true;
}

/* ENDS: it exits with another code than it was told. */
static bool other_code(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind == SUP_EXIT && a->node->index == 1) fx->exit.code = 9;
  return true;
}

/* BUDGET: the next round has used one more than was charged. */
static bool double_charge(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_START && m->start.round == 2) m->start.restarts_used++;
  return true;
}

/* BUDGET: charged for a lost node. */
static bool charge_for_loss(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_SETTLED) m->settled.charged = true, m->settled.restarts_used++;
  return true;
}

/* BUDGET: not charged for a worker. */
static bool free_crash(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_SETTLED) m->settled.charged = false, m->settled.restarts_used = 0;
  return true;
}

/* BUDGET: restarts are given back after a round that came nowhere. */
static bool gives_back(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_SETTLED) m->settled.refilled = true, m->settled.restarts_used = 1;
  return true;
}

/* BUDGET: the daemon forgets how far the round had come that failed. */
static bool forgets_step(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_SETTLED) m->settled.failed_step = -1;
  return true;
}

/* REPEATS: the daemon hears another exception each time. */
static bool other_words(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  static const char *const words[] = {"AError: a", "BError: b", "CError: c", "DError: d", "EError: e"};
  if (m->type == MSG_REPORT) m->report_msg.report.what.error = words[m->report_msg.report.round % 5];
  return true;
}

/* REPEATS: it hears the same exception each time. */
static bool same_words(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_REPORT) m->report_msg.report.what.error = "AError: a";
  return true;
}

/* REPEATS: a repeat gives restarts back. */
static bool refunds_a_repeat(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_SETTLED && m->settled.last_failure.repeats) m->settled.refilled = true;
  return true;
}

/* GROWTH: it is charged. */
static bool charge_for_growth(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_SETTLED) m->settled.charged = true, m->settled.restarts_used++;
  return true;
}

/* GROWTH: all are stopped for newcomers although there is no room for any. */
static bool grows_beyond(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_STOP) m->stop.verdict.cause = CAUSE_NODE_JOINED;
  return true;
}

/* DRAINED: another host is drained than was said. */
static bool drains_another(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_CONTROL) m->control.host = "n3";
  return true;
}

/* TOKENS: the second round has the first one's number. */
static bool old_round(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_START && m->start.round == 3) m->start.round = 1;
  return true;
}

/* DEADLINE: the agent, or the daemon, has forgotten that it waits. */
static uint64_t agent_forgets(struct sim *s, struct sim_agent *a, uint64_t at) {
  return a && a->told_start ? UINT64_MAX : at;
}
static uint64_t daemon_forgets(struct sim *s, struct sim_agent *a, uint64_t at) {
  return !a && s->now > 1000 ? UINT64_MAX : at;
}

/* STORM: every answer to a heartbeat makes three more of them. */
static bool echo(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type != MSG_HEARTBEAT_ACK) return true;
  struct msg again;
  msg_init(&again, MSG_HEARTBEAT);
  again.id = m->id;
  struct bytes *b = msg_bytes(&again);
  for (int i = 0; i < 3; i++) link_send(s, c, TO_DAEMON, b);
  bytes_unref(b);
  return true;
}

/* BOUNDED: nobody ever hears that a node has finished. */
static bool no_finished(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HELLO) m->hello.n_reports = 0;
  return m->type != MSG_REPORT || m->report_msg.report.kind != REPORT_FINISHED;
}

/* CODEC: bytes are damaged before they are sent. */
static bool damaged(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind != SUP_SEND || fx->bytes->len <= FRAME_HEADER_SIZE) return true;
  struct bytes *b = bytes_create(fx->bytes->data, fx->bytes->len);
  b->data[FRAME_HEADER_SIZE] = 'x';
  bytes_unref(fx->bytes);
  fx->bytes = b;
  return true;
}

/* SUCCESS: the daemon hears FINISHED where STARTED was said. */
static bool finished_too_soon(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_REPORT && m->report_msg.report.kind == REPORT_STARTED) m->report_msg.report.kind = REPORT_FINISHED;
  return true;
}

/* STORE_THERE: reports do not tell the port of the next round. */
static bool port_not_renewed(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_REPORT) m->report_msg.store_port = 40000;
  return true;
}

/* STORE_THERE: who says HELLO again is told the port that the head has ready now, not the one of its round. */
static bool port_of_the_next_round(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_START && is_node(c, 1)) m->start.store_port++;
  return true;
}

/* STORE_THERE: node 0 closes the store when its own workers are done. */
static bool closed_when_finished(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind == SUP_STATUS && !fx->text[0] && a->node->index == 0) store_close(s, a);
  return true;
}

/* STORE_THERE: node 0 is not told whom to let in. */
static bool nobody_is_let_in(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_START) m->raw_len = 0;
  return true;
}

/* STORE_OWN: the store of the first round is served again, with its keys. */
static void old_keys(struct sim *s, struct sim_agent *a) {
  a->store.round = 1;
}

/* STORE_OWN: with the same port in each round, those who come too early find the door of the last one open. */
static bool never_shut(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  return fx->kind != SUP_SHUT_STORE;
}

/* STORE_ENDS: it is never closed. */
static bool never_closed(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  return fx->kind != SUP_CLOSE_STORE;
}

/* ORPHANS: at the end the guard is not told to stop the workers, and the agent goes. */
static bool does_not_stop(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  return fx->kind != SUP_STOP_TREES;
}

/* FENCED: the guard has a deadline, but one that is too late. */
static bool fences_late(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind == SUP_FENCE_AT && fx->fence_at.at_ms != UINT64_MAX) fx->fence_at.at_ms += 3000;
  return true;
}

/* HEALTHY: a daemon that has come back takes all that it does not know for stale. */
static bool all_are_stale(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type != MSG_WELCOME || m->welcome.state != JOB_RECOVERING) return true;
  m->type = MSG_STALE;
  m->stale = (struct stale){.incarnation = c->agent->incarnation, .round = c->agent->round, .text = "who are you?"};
  return true;
}

/* PARKED: n2's worker says that it has left its round, and goes on in it. */
static bool only_says_so(struct sim *s, struct sim_agent *a, struct sim_worker *w) {
  return a->node->index != 1;
}

/* OVERLAP: those who stay are spawned once more. */
static bool forgets_who_stays(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind == SUP_SPAWN) fx->spawn.keep = (struct local_set){{0}};
  return true;
}

/* STOPPED: n2's is told of as one who waits, and was never asked to stop. */
static bool counts_all_as_parked(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind != SUP_REQUEST || !(fx->request.bits & RDZV_REJOIN) || a->node->index != 1) return true;
  for (uint32_t i = 0; i < a->workers; i++) {
    const struct supervisor_event left = {.kind = SUP_PARKED, .round = a->round, .local_rank = i};
    struct sim_event *ev = sim_push(s, s->now, EV_NOTIFY);
    ev->agent = a;
    ev->notice = xmemdup(&left, sizeof left);
  }
  return true;
}

/* FENCED: nobody has a deadline between rounds. */
static bool no_fence_for_the_parked(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (a->node->index != 1) return true;
  bool kills = fx->kind == SUP_STOP_TREES && !fx->stop_trees.grace_ms;
  return fx->kind != SUP_FENCE_AT && !kills;
}

/* IDS: one node is told others. */
static bool other_ids(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  static char other[NCCL_ID_SIZE];
  if (m->type != MSG_IDS || !m->raw_len || !is_node(c, 1)) return true;
  memcpy(other, m->raw, sizeof other);
  other[sizeof other - 1] ^= 1;
  m->raw = other;
  return true;
}

/* IDS_COME: one node is not told. */
static bool no_ids(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  return m->type != MSG_IDS || !m->raw_len || !is_node(c, 1);
}

/* HELPERS: they are never let go. */
static bool helpers_stay(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  return fx->kind != SUP_UNMINT;
}

/* SEALED_ONCE: the second daemon gives its rounds the first one's numbers. */
static bool numbers_of_the_first(struct sim *s, struct job_effect *fx) {
  static char incarnation[INCARNATION_MAX + 1];
  if (fx->kind != JOB_EFFECT_SEND) return true;
  struct msg *m = link_read(s, TO_AGENT, fx->bytes, "the daemon sends");
  if (m->type == MSG_START && s->side) {
    m->start.incarnation = incarnation;
    struct bytes *told = msg_bytes(m);
    link_forget(m);
    bytes_unref(fx->bytes);
    fx->bytes = told;
    return true;
  }
  if (m->type == MSG_START) snprintf(incarnation, sizeof incarnation, "%s", m->start.incarnation);
  link_forget(m);
  return true;
}

/* GOES_ON: the daemon that is back hears nobody. */
static bool hears_nobody(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  return m->type != MSG_HELLO || s->now < 4000;
}

/* ONE_ROUND: a daemon that has lost its majority says that it was just heard. */
static bool never_old(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HEARTBEAT_ACK && !c->side) m->flags &= (1 << FRAME_NUMBER_SHIFT) - 1;
  return true;
}

/* ONE_ROUND: each daemon that begins a job learns that its name is free. */
static bool the_name_of_the_job_is_free(struct sim *s, struct job_effect *fx) {
  if (fx->kind != JOB_EFFECT_CLAIM || fx->text[strlen(fx->text) - 1] != '/') return true;
  claim_grant(s, fx);
  return false;
}

/* SEALED_ONCE: who asks for a claim is told that he has it. */
static bool all_claims_are_won(struct sim *s, struct job_effect *fx) {
  if (fx->kind != JOB_EFFECT_CLAIM) return true;
  claim_grant(s, fx);
  return false;
}

/* GOES_ON: no agent starts a daemon. */
static bool starts_no_daemon(struct sim *s, struct sim_agent *a, struct supervisor_effect *fx) {
  if (fx->kind != SUP_CONNECT || fx->connect.to != CONNECT_OWN) return true;
  fx->connect.to = CONNECT_SUCCESSOR; /* where nothing is */
  fx->text = xstrdup("10.9.9.9");
  return true;
}

/* Stories. --------------------------------------------------------------------------------------------------------- */

static void tell_run(struct sim *s) {
  s->normal = story_run(3000);
  story_nodes(s, 2, 1);
  sim_until_over(s, 100000);
}

static void tell_watched_run(struct sim *s) {
  s->config.events = true;
  tell_run(s);
}

static void tell_watched_crash(struct sim *s) {
  rule_add(s, 0, 0, 1, story_exit(500, 3));
  tell_watched_run(s);
}

static void tell_two_users(struct sim *s) {
  s->normal = story_run(3000);
  daemon_start(s);
  for (int i = 0; i < 4; i++) s->nodes[node_add(s, 1)].uid = 1000 + i % 2;
  for (int i = 0; i < 4; i++) agent_start(s, i);
  sim_until_over(s, 100000);
}

static void tell_crash(struct sim *s) {
  rule_add(s, 0, 0, 1, story_exit(500, 3));
  tell_run(s);
}

static void tell_repeats(struct sim *s) {
  struct behaviour b = story_exit(500, 3);
  b.words = "ValueError: boom";
  rule_add(s, 0, 0, 0, b);
  tell_run(s);
}

/* Two bugs in turn. */
static void tell_other_failures(struct sim *s) {
  struct behaviour b = story_exit(500, 3);
  for (int round = 1; round <= 3; round++) {
    b.words = round % 2 ? "ValueError: boom" : "KeyError: 'a'";
    rule_add(s, 0, 0, round, b);
  }
  tell_run(s);
}

/* What node 0 is told comes late, and the next round's store has the port of this one's. */
static void tell_far_head(struct sim *s) {
  s->config.store_port = 29500;
  rule_add(s, 1, 0, 1, story_exit(500, 3));
  s->normal = story_run(3000);
  story_nodes(s, 2, 1);
  s->nodes[0].link.delay_min = s->nodes[0].link.delay_max = 30;
  sim_until_over(s, 100000);
}

/* Node 0's worker is done long before the other. */
static void tell_early_head(struct sim *s) {
  rule_add(s, 0, 0, 0, story_run(500));
  tell_run(s);
}

static void tell_two_crashes(struct sim *s) {
  rule_add(s, 0, 0, 2, story_exit(500, 3));
  tell_crash(s);
}

/* The same, and workers tell how far they are: not as far as before. */
static void tell_crash_at_a_step(struct sim *s) {
  struct behaviour b = story_exit(2000, 3);
  b.progress_ms = 300;
  rule_add(s, 0, 0, 1, b);
  b.run_ms = 1500;
  rule_add(s, 0, 0, 2, b);
  tell_run(s);
}

static void tell_growth(struct sim *s) {
  story_two_to_three(&s->config);
  s->normal = story_run(35000);
  story_nodes(s, 2, 1);
  node_add(s, 1);
  sim_until(s, 1000);
  agent_start(s, 2);
  sim_until_over(s, 100000);
}

static void tell_drain(struct sim *s) {
  story_two_to_three(&s->config);
  s->normal = story_run(3000);
  story_nodes(s, 3, 1);
  sim_until(s, 1000);
  daemon_drain(s, 1, false);
  sim_until_over(s, 20000);
}

static void tell_loss(struct sim *s) {
  s->normal = story_run(3000);
  story_nodes(s, 2, 1);
  sim_until(s, 1000);
  agent_kill(s, agent_of(s, 1));
  sim_for(s, 1000);
  agent_start(s, 1);
  sim_until_over(s, 100000);
}

/* n2 need not fence by what it knows itself, but by FENCE: n3 waits for its place. */
static void tell_cut(struct sim *s) {
  s->config.settings.min_nodes = s->config.settings.max_nodes = 2;
  s->normal = story_run(20000);
  story_nodes(s, 3, 1);
  sim_until(s, 3000);
  link_cut(s, 1, true, true);
  sim_until_over(s, 100000);
}

static void tell_stopped_agent(struct sim *s) {
  s->config.settings.min_nodes = 1;
  s->normal = story_run(12000);
  story_nodes(s, 2, 1);
  sim_until(s, 3000);
  agent_pause(s, agent_of(s, 1));
  sim_for(s, 9000);
  agent_continue(s, agent_of(s, 1));
  sim_until_over(s, 100000);
}

/* The same, and nobody takes its place for long. */
static void tell_stopped_alone(struct sim *s) {
  struct behaviour slow = story_run(1000);
  slow.exec_ms = 20000;
  rule_add(s, 0, 0, 2, slow);
  tell_stopped_agent(s);
}

static void tell_restart(struct sim *s) {
  s->normal = story_run(6000);
  story_nodes(s, 2, 1);
  sim_until(s, 3000);
  story_daemon_away(s, 500);
  sim_until_over(s, 100000);
}

/* SIGTERM to a node whose workers take no notice of anything. */
static void tell_leaving(struct sim *s) {
  s->normal = story_forever();
  story_nodes(s, 2, 1);
  sim_until(s, 1000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  agent_signal(s, agent_of(s, 1), SIGTERM);
  sim_until_over(s, 100000);
}

/* One of three leaves, and all have something to save. */
static void tell_planned_end(struct sim *s) {
  s->config.settings.min_nodes = 1;
  s->config.settings.max_nodes = 3;
  s->normal = story_saving(story_run(20000), 900);
  rule_add(s, 1, 0, 0, story_saving(story_run(20000), 1400));
  story_nodes(s, 3, 1);
  sim_until(s, 2000);
  agent_signal(s, agent_of(s, 0), SIGTERM);
  sim_until_over(s, 100000);
}

static void tell_ids(struct sim *s) {
  s->config.settings.nccl_ids = NCCL_IDS_ALWAYS;
  tell_crash(s);
}

static void tell_long_ids(struct sim *s) {
  s->config.settings.nccl_ids = NCCL_IDS_ALWAYS;
  s->normal = story_run(250000);
  story_nodes(s, 2, 1);
  sim_until_over(s, 400000);
}

static void tell_bounded(struct sim *s) {
  tell_run(s);
  sim_for(s, 2 * JOB_END_ACK_MS);
  check_over(s);
}

/* n3 loses a worker; all others stay. */
static void tell_stay(struct sim *s) {
  s->normal = story_staying(story_run(5000), 5);
  story_nodes(s, 2, 2);
  sim_until(s, 1000);
  worker_signal(s, agent_of(s, 0), 0, SIGKILL);
  sim_until_over(s, 100000);
}

static void tell_slow_to_stay(struct sim *s) {
  s->normal = story_staying(story_run(5000), 400);
  story_nodes(s, 2, 2);
  sim_until(s, 1000);
  worker_signal(s, agent_of(s, 0), 0, SIGKILL);
  sim_until_over(s, 100000);
}

/* n2 is cut off while its workers wait; the others begin without it, later than its lease. */
static void tell_cut_while_they_wait(struct sim *s) {
  s->config.settings.min_nodes = 1;
  story_two_to_three(&s->config);
  s->normal = story_staying(story_run(5000), 5);
  rule_add(s, 2, 0, 0, story_staying(story_run(5000), 400));
  story_nodes(s, 3, 1);
  sim_until(s, 4000);
  worker_signal(s, agent_of(s, 0), 0, SIGKILL);
  sim_for(s, 100);
  link_cut(s, 1, true, true);
  sim_for(s, 12000);
  link_heal(s, 1);
  sim_until_over(s, 100000);
}

/* Each is a job of its own, and nobody can know better. */
static void tell_two_jobs(struct sim *s) {
  s->config.takeover = true;
  s->normal = story_run(3000);
  daemon_start(s);
  daemon_side(s, 1);
  daemon_start(s);
  daemon_side(s, 0);
  for (int i = 0; i < 4; i++) s->nodes[node_add(s, 1)].side = i / 2;
  for (int i = 0; i < 4; i++) agent_start(s, i);
  sim_until_over(s, 100000);
}

static void tell_cut_of_one_that_can_be_spared(struct sim *s) {
  s->config.takeover = true;
  tell_cut(s);
}

static void tell_daemon_back(struct sim *s) {
  s->config.takeover = true;
  s->normal = story_run(60000);
  story_nodes(s, 2, 1);
  sim_until(s, 3000);
  daemon_kill(s);
  worker_signal(s, agent_of(s, 0), 0, SIGKILL);
  sim_until(s, 5000);
  daemon_start(s);
  sim_until(s, 45000);
  if (s->violated == INV_NONE) check_goes_on(s, 5000);
}

/* The daemon has lost its state, and comes back. */
static void tell_account_back(struct sim *s) {
  s->normal = story_run(20000);
  s->normal.progress_ms = 300;
  story_nodes(s, 2, 1);
  sim_until(s, 8000);
  story_daemon_away(s, 500);
  sim_until_over(s, 100000);
}

/* GOODPUT: nodes do not give the account back. */
static bool keeps_the_account(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HELLO) goodput_init(&m->hello.goodput), m->hello.goodput_age_ms = 0;
  return true;
}

/* GOODPUT: they say that it is older than it is. */
static bool ages_the_account(struct sim *s, struct sim_conn *c, enum msg_direction d, struct msg *m) {
  if (m->type == MSG_HELLO && m->hello.round) m->hello.goodput_age_ms += 10000;
  return true;
}

static void begin_takeover(struct sim *s, int nodes, bool claims) {
  s->config.takeover = s->config.owned = true;
  s->config.endpoints = 1;
  s->config.claims = s->config.settings.claims = claims;
  s->config.settings.min_nodes = 1;
  s->config.settings.max_nodes = nodes;
  s->config.settings.last_call_ms = 100;
  place_daemon(s, 0, SIM_NODES_MAX); /* an agent's; node_add gives it its place */
  s->normal = story_run(60000);
  story_nodes(s, nodes, 1);
  sim_until(s, 3000);
}

/* n1 has the daemon, and n2 reaches nobody else. */
static void part(struct sim *s) {
  for (int i = 0; i < 2; i++)
    for (int k = 2; k < s->n_nodes; k++) place_wall(s, i, k, true);
}

/* Workers take no notice of a stop: only fencing ends them in time. */
static void tell_parted(struct sim *s) {
  rule_add(s, -1, -1, 0, story_forever());
  s->rules[0].b.term_ms = UINT32_MAX;
  begin_takeover(s, 5, false);
  part(s);
  sim_until(s, 30000);
}

static void tell_parted_with_claims(struct sim *s) {
  begin_takeover(s, 4, true);
  part(s);
  sim_until(s, 30000);
}

/* n1 has the daemon, reaches nobody, and is started again beside the run that n2 has taken over. */
static void tell_begun_again_with_claims(struct sim *s) {
  begin_takeover(s, 2, true);
  place_wall(s, 0, 1, true);
  guard_kill(s, agent_of(s, 0));
  sim_until(s, 20000);
  agent_start(s, 0);
  sim_until(s, 100000);
}

static void tell_machine_lost(struct sim *s) {
  begin_takeover(s, 4, false);
  node_power_off(s, 0);
  sim_until(s, 63000);
  if (s->violated == INV_NONE) check_goes_on(s, 3000);
}

static const struct plant {
  const char *name;
  enum invariant caught_as;
  void (*tell)(struct sim *s);
  struct mutator mutator;
} plants[] = {
    {"the same place is given twice", INV_RANKS, tell_run, {.msg = same_place_twice}},
    {"ranks have a gap", INV_RANKS, tell_run, {.msg = gap_in_ranks}},
    {"a peer lies about its user", INV_OWNERS, tell_two_users, {.msg = lies}},
    {"the FENCE flag is dropped", INV_OVERLAP, tell_cut, {.msg = no_fence}},
    {"the daemon tells nobody to fence", INV_OVERLAP, tell_cut, {.core_effect = nobody_is_to_fence}},
    {"the guard is not told when to fence", INV_OVERLAP, tell_stopped_agent, {.agent_effect = guard_untold}},
    {"the FENCE flag is dropped, and others take over",
     INV_ONE_ROUND,
     tell_cut_of_one_that_can_be_spared,
     {.msg = no_fence}},
    {"a daemon's word is never old", INV_ONE_ROUND, tell_parted, {.msg = never_old}},
    {"every claim is won", INV_SEALED_ONCE, tell_parted_with_claims, {.core_effect = all_claims_are_won}},
    {"the name of the job is not claimed",
     INV_ONE_ROUND,
     tell_begun_again_with_claims,
     {.core_effect = the_name_of_the_job_is_free}},
    {"no agent starts a daemon", INV_GOES_ON, tell_machine_lost, {.agent_effect = starts_no_daemon}},
    {"two daemons seal the same token", INV_SEALED_ONCE, tell_two_jobs, {.core_effect = numbers_of_the_first}},
    {"a daemon that is back hears nobody", INV_GOES_ON, tell_daemon_back, {.msg = hears_nobody}},
    {"one node is told another end", INV_ENDS, tell_run, {.msg = other_end}},
    {"an agent exits with another code", INV_ENDS, tell_run, {.agent_effect = other_code}},
    {"a crash is charged twice", INV_BUDGET, tell_crash, {.msg = double_charge}},
    {"a lost node is charged", INV_BUDGET, tell_loss, {.msg = charge_for_loss}},
    {"a crash is not charged", INV_BUDGET, tell_crash, {.msg = free_crash}},
    {"restarts are given back for nothing", INV_BUDGET, tell_two_crashes, {.msg = gives_back}},
    {"the step of a failure is forgotten", INV_BUDGET, tell_crash_at_a_step, {.msg = forgets_step}},
    {"the daemon hears other words", INV_REPEATS, tell_repeats, {.msg = other_words}},
    {"the daemon hears the same words", INV_REPEATS, tell_other_failures, {.msg = same_words}},
    {"a repeat gives restarts back", INV_REPEATS, tell_repeats, {.msg = refunds_a_repeat}},
    {"a growth is charged", INV_BUDGET, tell_growth, {.msg = charge_for_growth}},
    {"a full round is ended for newcomers", INV_GROWTH, tell_crash, {.msg = grows_beyond}},
    {"another host is drained than was said", INV_DRAINED, tell_drain, {.msg = drains_another}},
    {"a round's number comes again", INV_TOKENS, tell_two_crashes, {.msg = old_round}},
    {"an agent waits without a deadline", INV_DEADLINE, tell_run, {.deadline = agent_forgets}},
    {"the daemon waits without a deadline", INV_DEADLINE, tell_run, {.deadline = daemon_forgets}},
    {"an answer makes three questions", INV_STORM, tell_run, {.msg = echo}},
    {"nobody hears that a node has finished", INV_BOUNDED, tell_bounded, {.msg = no_finished}},
    {"bytes are damaged", INV_CODEC, tell_run, {.agent_effect = damaged}},
    {"STOPPED comes before the worker's death", INV_STOPPED, tell_crash, {.dies = does_not_die}},
    {"a checkpoint is told before it is written",
     INV_CHECKPOINTED,
     tell_planned_end,
     {.agent_effect = says_so_at_once}},
    {"a node's checkpoint is not waited for", INV_CHECKPOINTED, tell_planned_end, {.msg = heartbeat_is_an_answer}},
    {"FINISHED is heard where STARTED was said", INV_SUCCESS, tell_run, {.msg = finished_too_soon}},
    {"reports do not renew the port", INV_STORE_THERE, tell_crash, {.msg = port_not_renewed}},
    {"START names the next round's port", INV_STORE_THERE, tell_run, {.msg = port_of_the_next_round}},
    {"node 0 is done and closes the store", INV_STORE_THERE, tell_early_head, {.agent_effect = closed_when_finished}},
    {"nobody is let in", INV_STORE_THERE, tell_run, {.msg = nobody_is_let_in}},
    {"the last round's store comes again", INV_STORE_OWN, tell_crash, {.store = old_keys}},
    {"a store's door stays open", INV_STORE_OWN, tell_far_head, {.agent_effect = never_shut}},
    {"a store is never closed", INV_STORE_ENDS, tell_crash, {.agent_effect = never_closed}},
    {"a guard fences too late", INV_FENCED, tell_stopped_alone, {.agent_effect = fences_late}},
    {"the account is not given back", INV_GOODPUT, tell_account_back, {.msg = keeps_the_account}},
    {"the account is given back too old", INV_GOODPUT, tell_account_back, {.msg = ages_the_account}},
    {"a daemon that is back knows nobody", INV_HEALTHY, tell_restart, {.msg = all_are_stale}},
    {"who says that it left goes on", INV_PARKED, tell_stay, {.parks = only_says_so}},
    {"who has not left counts as gone", INV_PARKED, tell_slow_to_stay, {.agent_effect = counts_all_as_parked}},
    {"who stays is spawned once more", INV_OVERLAP, tell_stay, {.agent_effect = forgets_who_stays}},
    {"who waits has no deadline", INV_FENCED, tell_cut_while_they_wait, {.agent_effect = no_fence_for_the_parked}},
    {"a node is told other ids", INV_IDS, tell_ids, {.msg = other_ids}},
    {"a node is never told the ids", INV_IDS_COME, tell_long_ids, {.msg = no_ids}},
    {"helpers that mint are not let go", INV_HELPERS, tell_ids, {.agent_effect = helpers_stay}},
    {"a seal has no event", INV_EVENTS, tell_watched_crash, {.core_effect = seal_is_not_told}},
    {"the end has no event", INV_EVENTS, tell_watched_run, {.core_effect = end_is_not_told}},
    {"an event is two lines", INV_EVENTS, tell_watched_run, {.agent_effect = breaks_a_line}},
    {"an agent leaves its workers behind", INV_ORPHANS, tell_leaving, {.agent_effect = does_not_stop}},
};

static enum invariant play(const struct plant *p, bool with_bug, bool verbose) {
  struct sim_config c;
  sim_config_init(&c);
  c.verbose = verbose;
  struct sim *s = sim_create(&c);
  if (with_bug) s->mutator = &p->mutator;
  p->tell(s);
  enum invariant violated = s->violated;
  if (violated != INV_NONE && violated != p->caught_as) printf("  %s\n", s->violation);
  sim_destroy(s);
  return violated;
}

static bool check(const struct plant *p) {
  enum invariant without = play(p, false, false), with = play(p, true, false);
  bool good = without == INV_NONE && with == p->caught_as;
  printf("%-45s %-8s %s", p->name, invariant_name(p->caught_as), good ? "caught\n" : "");
  if (without != INV_NONE)
    printf("FALSE ALARM without the bug: %s\n", invariant_name(without));
  else if (!good)
    printf("NOT CAUGHT, but %s\n", invariant_name(with));
  return good;
}

int main(int argc, char **argv) {
  size_t bad = 0, n = sizeof plants / sizeof plants[0];
  if (argc == 2) {
    for (size_t i = 0; i < n; i++)
      if (strstr(plants[i].name, argv[1])) play(&plants[i], true, true);
    return 0;
  }
  bool planted[INV_COUNT] = {false};
  for (size_t i = 0; i < n; i++) {
    bad += !check(&plants[i]);
    planted[plants[i].caught_as] = true;
  }
  for (int i = 0; i < INV_COUNT; i++) {
    if (planted[i]) continue;
    printf("NO BUG is planted for %s: %s\n", invariant_name((enum invariant)i), invariant_text((enum invariant)i));
    bad++;
  }
  printf("%zu bugs planted, %zu not as they should be\n", n, bad);
  return bad ? 1 : 0;
}
