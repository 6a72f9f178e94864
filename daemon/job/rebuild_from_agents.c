/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon came back and remembers little or nothing; the agents remember everything that matters.
 *
 * A job is RECOVERING from the first HELLO that names an unknown incarnation, or from the start if the state file knows
 * a sealed round. Each HELLO says which round its node is in, how far the node is, and all its reports that are not
 * settled. When every node of the round has reported, or the longest lease and reconnect pause are over, the round is
 * judged as if the daemon had never been away:
 *
 *   a node knows its verdict             -> it is settled: FORMING
 *   a node failed or stopped, or is
 *   missing                              -> STOPPING, and the verdict is settled there
 *   all run, and one is leaving          -> CHECKPOINTING
 *   all have finished                    -> ENDING
 *   all run                              -> RUNNING, and no worker has noticed anything
 *
 * The highest token wins: a HELLO that names a later round than the job knows replaces the earlier one.
 *
 * The daemon that sealed the round may be alive elsewhere, with other nodes of it. Both may seal again, and no token may
 * be used twice. So the next round belongs to a new incarnation, higher than the one before. */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <string.h>
#include "common/deadline.h"
#include "common/exit_codes.h"

static const enum member_state state_of_phase[PHASE_COUNT] = {
    [PHASE_NONE] = MEMBER_WAITING,     [PHASE_STARTING] = MEMBER_TOLD,     [PHASE_RUNNING] = MEMBER_STARTED,
    [PHASE_STOPPING] = MEMBER_STARTED, [PHASE_FINISHED] = MEMBER_FINISHED, [PHASE_STOPPED] = MEMBER_STOPPED,
};

void job_recover(struct job *j, int64_t round, uint64_t now_ms) {
  if (!job_may_enter(j, JOB_RECOVERING)) return;
  for (size_t i = j->n_members; i-- > 0;) {
    struct member *m = j->members[i];
    if (m->gone) { /* kept for the count of a round that is past now */
      job_remove_member(j, m);
      continue;
    }
    member_set_state(m, member_in_round(m) ? MEMBER_STOPPED : MEMBER_WAITING);
    m->shut = m->fence.read = m->fence.told = false;
    member_set_rank(m, -1);
    member_keep_rank(m, -1);
  }
  job_clear_round(j);
  goodput_forget(j, now_ms);
  j->round = round;
  j->past_round = jobs_past_round(j->jobs, j->uid, j->incarnation);
  j->round_nodes = 0;
  job_ids_forget(j);
  j->told_ids = 0;
  j->told_head[0] = j->asked.host[0] = '\0';
  j->asked.many = j->asked.rotates = false; /* of another round */
  j->settled = j->stopping_seen = j->exact = j->told_held = j->all_fence = j->base_fences = false;
  j->away_ms = j->n_fencing = 0;
  j->budget_from = BUDGET_OLDER;
  map_finish(&j->accounted);
  map_init(&j->accounted, jobs_random(j->jobs));
  job_quorum_forget(j);
  job_claim_forget(j);
  job_enter(j, JOB_RECOVERING, now_ms);
}

static void send_stale(struct job *j, const struct member *m, const char *why) {
  job_send_stale(j, m->conn, false, why);
  job_hold_member(j, m); /* its workers are not dead yet */
}

/* hello.c has checked the token, and ranks outside of the round: the HELLO names this round, or none that is later. */
void job_recover_hello(struct job *j, const struct job_event *ev) {
  const struct hello *h = ev->hello;
  struct member *m = ev->member;
  uint64_t others_ms = ev->now_ms + lease_ms(j) + JOB_RECONNECT_MAX_MS;
  if (j->n_members == 1 && j->recover_ms > others_ms) j->recover_ms = others_ms;
  /* Its HELLO may have waited here while it gave that connection up. */
  j->forgiven_ms = ev->now_ms + JOB_RECONNECT_MAX_MS;
  bool this_round = h->round == j->round && h->round > 0;
  bool was_in_it = this_round && h->node_rank >= 0;
  m->away_ms = h->away_ms ? ev->now_ms + (uint64_t)h->away_ms : 0;
  j->away_ms = latest(j->away_ms, m->away_ms);
  j->all_fence = j->all_fence || (was_in_it && h->all_fence);
  j->told_held = j->told_held || (this_round && h->held);
  job_learn_budget(j, h);
  goodput_hello(j, h);
  if (this_round && !j->round_nodes) j->round_nodes = h->round_nodes;
  job_note_return(j, h);
  if (h->origin[0] && strcmp(h->origin, j->origin) < 0) snprintf(j->origin, sizeof j->origin, "%s", h->origin);
  if (this_round && h->head_host[0]) snprintf(j->told_head, sizeof j->told_head, "%s", h->head_host);
  const struct member *same_rank = job_find_rank(j, h->node_rank);
  bool taken = same_rank && same_rank != m;
  if (this_round && h->phase != PHASE_NONE && (h->round_nodes != j->round_nodes || taken)) {
    send_stale(j, m, "another node has reported this node rank, or another size of the round");
    member_set_state(m, MEMBER_STOPPED); /* until its next HELLO, in no round */
    return;
  }
  if (this_round && h->phase != PHASE_NONE) {
    member_set_rank(m, h->node_rank);
    m->knows_round = true;
    m->has_ids = h->has_ids;
    if (h->ids > j->told_ids) j->told_ids = h->ids;
    member_set_state(m, state_of_phase[h->phase]);
    if (h->phase == PHASE_STOPPING) j->stopping_seen = true;
  } else {
    member_set_rank(m, -1);
    member_set_state(m, MEMBER_WAITING);
    member_keep_rank(m, this_round ? h->node_rank : -1);
    if (this_round && h->node_rank >= 0) j->settled = true;
    job_send_waiting(j, m, ev->now_ms);
  }
  uint64_t judges_ms = job_quorum_judges_ms(j);
  if (judges_ms < j->recover_ms) j->recover_ms = judges_ms;
}

void job_recover_finish_if_complete(struct job *j, uint64_t now_ms) {
  if (j->state == JOB_RECOVERING && j->round_nodes > 0 && j->n_reported >= (size_t)j->round_nodes)
    job_recover_finish(j, now_ms);
}

/* The round was settled before: a node that does not know gets STALE, since no node here remembers the verdict. */
static void form_again(struct job *j, uint64_t now_ms) {
  if (j->cause.cause == CAUSE_OPERATOR) {
    job_end(j, now_ms, OUTCOME_STOPPED, EXIT_CODE_STOPPED, &j->cause);
    return;
  }
  if (!job_may_enter(j, JOB_FORMING)) return;
  j->faulted = j->round > 0;
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    if (!member_in_round(m)) continue;
    send_stale(j, m, "the round was settled before the daemon came back");
    member_keep_rank(m, m->node_rank);
    member_set_rank(m, -1);
    member_set_state(m, MEMBER_STOPPED); /* until its next HELLO, in no round */
  }
  job_clear_round(j);
  job_enter(j, JOB_FORMING, now_ms);
  job_try_seal(j, now_ms);
}

static bool is_being_stopped(const struct job *j) {
  if (j->stopping_seen) return true;
  for (size_t i = 0; i < j->n_members; i++)
    if (member_in_round(j->members[i]) && j->members[i]->state == MEMBER_STOPPED) return true;
  return false;
}

/* No agent has this id. */
static const char missing_nodes[] = "missing";

/* The nodes that have not come are unknown, and so is what they run. A node that knows the verdict knows as well whether
 * one of them may still run workers. If no node knows of a round, there was none: its nodes would be here. */
void job_hold_missing(struct job *j, uint64_t now_ms) {
  uint64_t unfenced_ms = job_unfenced_until(j, now_ms), until_ms = j->away_ms;
  if ((int64_t)j->accounted.count >= j->round_nodes) return;
  if (j->told_held || (!j->settled && !job_all_fence(j))) until_ms = latest(until_ms, unfenced_ms);
  int64_t head = 0;
  bool named = !map_get_n(&j->accounted, &head, sizeof head);
  if (until_ms > now_ms) job_hold_agent(j, missing_nodes, named ? j->told_head : "", until_ms);
}

/* The next daemon must know the promise, whoever comes back to it: without a state file there is none. While rounds are
 * being sealed elsewhere it would be worth nothing. */
int64_t job_promise_away(struct job *j, uint64_t now_ms) {
  if (!j->jobs->daemon.saves || !j->round || job_can_be_succeeded(j) || job_is_over(j)) return 0;
  j->away_ms = now_ms + JOB_AWAY_MS;
  job_save(j);
  return JOB_AWAY_MS;
}

void job_account_for_rank(struct job *j, int64_t node_rank) {
  if (node_rank < 0 || node_rank >= j->round_nodes) return;
  map_put_n(&j->accounted, &node_rank, sizeof node_rank, j);
  if ((int64_t)j->accounted.count == j->round_nodes) job_drop_hold(j, missing_nodes);
}

void job_note_return(struct job *j, const struct hello *h) {
  if (h->round == j->round && !strcmp(h->incarnation, j->incarnation)) job_account_for_rank(j, h->node_rank);
  if (h->voted_round == j->round && !strcmp(h->voted_incarnation, j->incarnation))
    job_account_for_rank(j, h->left_rank);
}

void job_recover_finish(struct job *j, uint64_t now_ms) {
  size_t in_round = j->ranks.count, told = j->n_in_state[MEMBER_TOLD];
  uint64_t patience_ms = j->state_ms + JOB_END_KEEP_MS;
  if (!j->n_members && j->cause.cause != CAUSE_OPERATOR && now_ms < patience_ms) {
    j->recover_ms = patience_ms; /* no node is here to judge by: until the first one comes, job_recover_hello */
    return;
  }
  if (!j->n_members && j->cause.cause != CAUSE_OPERATOR) {
    job_log(j, LOG_WARN, "no node of round %lld came back; the job is forgotten", (long long)j->round);
    j->forgotten = true;
    return;
  }
  job_number_workers(j); /* reports carry no rank bases; they follow from node ranks and worker counts */
  j->round_ms = now_ms;
  j->age_unknown = true;
  j->skip_round = j->renews = !j->exact && !j->settings.claims;
  job_hold_missing(j, now_ms);
  if (j->settled || !in_round) {
    form_again(j, now_ms);
    return;
  }
  size_t reported = j->n_reported;
  if (reported < (size_t)j->round_nodes) {
    size_t missing = (size_t)j->round_nodes - reported;
    struct buf text = BUF_INIT;
    struct verdict v;
    verdict_init(&v);
    const char *to = j->quorum->recovering.judge_ms ? "to the daemon that took over" : "after the daemon came back";
    bool head = !job_find_rank(j, 0);
    if (missing == 1 && head && j->told_head[0]) {
      v.node_rank = 0;
      v.host = j->told_head;
      buf_printf(&text, "it did not report %s", to);
    } else {
      buf_printf(&text, "%zu of %lld nodes of round %lld did not report %s:", missing, (long long)j->round_nodes,
                 (long long)j->round, to);
      for (int64_t r = 0, named = 0; r < j->round_nodes && named < 8; r++) {
        if (job_find_rank(j, r)) continue;
        buf_printf(&text, "%s node %lld", named++ ? "," : "", (long long)r);
        if (r == 0 && j->told_head[0]) buf_printf(&text, " (%s)", j->told_head);
      }
    }
    v.cause = CAUSE_NODE_LOST;
    v.code = EXIT_CODE_NODE_LOST;
    v.text = buf_text(&text);
    job_offer_cause(j, &v, now_ms);
    buf_finish(&text);
  }
  /* All are here and at work, but one is leaving: nothing needs to be lost. */
  if (j->n_reported >= (size_t)j->round_nodes && !j->n_in_state[MEMBER_TOLD] && job_is_planned_end(j) &&
      !is_being_stopped(j)) {
    j->skip_round = false;
    if (!job_enter(j, JOB_RUNNING, now_ms)) return;
    job_quorum_all_work(j);
    job_ids_recovered(j, now_ms);
    job_prepare(j, now_ms);
    return;
  }
  if (j->cause.cause != CAUSE_NONE || is_being_stopped(j)) {
    job_begin_stopping(j, now_ms, reported < (size_t)j->round_nodes);
    return;
  }
  j->skip_round = false; /* all its nodes are still in it, so no round came after it */
  if (!job_enter(j, told ? JOB_STARTING : JOB_RUNNING, now_ms)) return;
  job_quorum_all_work(j);
  job_ids_recovered(j, now_ms);
  job_finish_if_done(j, now_ms);
  job_end_for_drains(j, now_ms);
}
