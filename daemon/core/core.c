/* SPDX-License-Identifier: Apache-2.0 */
/* The core: finds the job and the member that a message is about, and passes it to the job's table (daemon/job/job.c).
 *
 * A connection belongs to no member before its first message. HELLO (hello.c) makes it a member's. A member has at most
 * one connection: a HELLO from a known agent replaces the old one. AGENT_DIED, FORWARD and CONTROL need no member.
 *
 * The core decides nothing about rounds. It keeps the effects in order, and hands the step's time to everything
 * behind it, so that all of it is a function of the events. */

#include "daemon/core/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"
#include "daemon/job/health.h"

/* Other messages. -------------------------------------------------------------------------------------------------- */

static void on_death_report(struct core *c, const struct core_event *ev) {
  const struct agent_died *o = &ev->msg->agent_died;
  for (size_t i = 0; i < c->jobs.n_all; i++) {
    struct job *j = c->jobs.all[i];
    /* A guard says no uid. It says the agent's id, which only the agent, its guard and this daemon know. */
    if (strcmp(j->id, o->job) != 0 || (ev->uid >= 0 && !control_may(c, ev->uid, j))) continue;
    job_drop_hold(j, o->agent);
    job_agent_is_dead(j, o->agent);
    struct member *m = job_find_agent(j, o->agent);
    if (!m) continue;
    job_log(j, LOG_WARN, "the guard of agent " AGENT_SHOWN " reports that the agent died; its workers are dead",
            o->agent);
    struct job_event lost = {.kind = JOB_EV_LOST, .now_ms = ev->now_ms, .member = m, .at_ms = ev->now_ms, .dead = true};
    lost.text = "its agent died; the guard killed its workers";
    job_event(j, &lost);
  }
  core_hang_up(c, ev->conn);
}

static void on_heartbeat(struct core *c, struct member *m, const struct core_event *ev) {
  struct msg ack;
  msg_init(&ack, MSG_HEARTBEAT_ACK);
  ack.id = ev->msg->id;
  struct job *j = m->job;
  ack.flags = member_tell_fence(m) ? FRAME_FLAG_FENCE : 0;
  member_beat(m, ev->msg->id, ev->msg->flags >> FRAME_NUMBER_SHIFT, ev->now_ms);
  if (j->all_fence && member_in_round(m)) ack.flags |= FRAME_FLAG_ALL_FENCE;
  ack.flags |= (uint16_t)(job_ack_number(j, ev->now_ms) << FRAME_NUMBER_SHIFT);
  if (job_can_be_succeeded(j) && job_is_firm(j)) ack.flags |= FRAME_FLAG_FIRM;
  if (m->job->state == JOB_RECOVERING) ack.flags |= FRAME_FLAG_RECOVERING;
  member_set_suspended(m, ev->msg->flags & FRAME_FLAG_SUSPENDED);
  if (j->n_suspended) ack.flags |= FRAME_FLAG_SUSPENDED;
  jobs_send(&c->jobs, m->conn, &ack);
  job_seal_if_ready(j, ev->now_ms);
}

static void on_member_msg(struct core *c, struct member *m, const struct core_event *ev) {
  struct job_event je = {.now_ms = ev->now_ms, .at_ms = ev->now_ms, .member = m};
  member_heard(m, ev->now_ms);
  switch (ev->msg->type) {
  case MSG_HEARTBEAT: on_heartbeat(c, m, ev); break;
  case MSG_REPORT: {
    const struct report_msg *r = &ev->msg->report_msg;
    m->store_port = r->store_port; /* first, because the report may let the next round begin */
    if (!strcmp(r->incarnation, m->job->incarnation) && r->report.round == m->job->round) member_knows_round(m);
    if (!strcmp(r->incarnation, m->job->incarnation)) core_reports(m->job, m->agent, &r->report, 1, ev->now_ms);
    break;
  }
  case MSG_PROGRESS: member_note_progress(m, &ev->msg->progress, ev->now_ms); break;
  case MSG_PACE: member_note_pace(m, &ev->msg->rank_paces, ev->now_ms); break;
  case MSG_MINTED:
    if (minted_is_sound(ev->msg)) {
      job_ids_minted(m->job, m, ev->msg, ev->now_ms);
      break;
    }
    job_log(m->job, LOG_WARN, "node %s sent %zu bytes for %lld NCCL ids from number %lld on; closing", m->host,
            ev->msg->raw_len, (long long)ev->msg->minted.count, (long long)ev->msg->minted.first);
    core_hang_up(c, ev->conn);
    break;
  case MSG_ASK_OWNERS: job_ask_owners(m->job, m, &ev->msg->ask_owners); break;
  case MSG_FOUND_OWNERS: job_found_owners(m->job, m, &ev->msg->found_owners); break;
  case MSG_PAIRED: job_paired(m->job, m, ev->msg, ev->now_ms); break;
  case MSG_EVIDENCE: job_take_evidence(m->job, m, &ev->msg->evidence); break;
  case MSG_FACTS: job_take_facts(m, &ev->msg->facts, ev->now_ms); break;
  case MSG_BYE:
    job_agent_is_dead(m->job, m->agent);
    je.kind = JOB_EV_BYE;
    je.text = ev->msg->bye.text[0] ? ev->msg->bye.text : NULL;
    job_event(m->job, &je);
    break;
  case MSG_END_ACK:
    je.kind = JOB_EV_END_ACK;
    if (!strcmp(ev->msg->end_ack.incarnation, m->job->incarnation)) job_event(m->job, &je);
    break;
  default: break; /* HELLO, AGENT_DIED, FORWARD and CONTROL are handled already; the codec accepts no others */
  }
}

static void on_msg(struct core *c, const struct core_event *ev) {
  struct member *m = jobs_member_of(&c->jobs, ev->conn);
  if (m && ev->msg->type == MSG_LOG && core_answer_logs(c, ev)) {
    member_heard(m, ev->now_ms);
    return;
  }
  if (!core_may_speak(c, ev)) return;
  m = jobs_member_of(&c->jobs, ev->conn);
  if (ev->msg->type == MSG_CONTROL && (ev->local || ev->uid >= 0))
    core_control(c, ev);
  else if (ev->msg->type == MSG_CONTROL)
    core_refuse(c, EXIT_CODE_REFUSED,
                "this daemon has no keys (--insecure), so nobody can tell which user asks on its port: use its control "
                "socket, with rdzvctl on the daemon's machine");
  else if (ev->local)
    core_refuse(c, EXIT_CODE_REFUSED,
                "%s is not accepted on this socket: agents connect to --listen, rdzvctl to --socket",
                msg_name(ev->msg->type));
  else if (ev->msg->type == MSG_HELLO)
    core_hello(c, ev);
  else if (ev->msg->type == MSG_AGENT_DIED)
    on_death_report(c, ev);
  else if (ev->msg->type == MSG_FORWARD)
    core_forward(c, ev);
  else if (m)
    on_member_msg(c, m, ev);
  /* else: more from a connection that got STALE, or whose member was just lost */
}

/* The rest. -------------------------------------------------------------------------------------------------------- */

size_t core_missing_hosts(const struct core *c, size_t first, size_t max, struct buf *out) {
  size_t n = 0, n_jobs = c->jobs.n_all, *at = xcalloc(n_jobs + 1, sizeof(*at));
  for (bool any = true; any && n < max;) {
    any = false;
    for (size_t i = 0; i < n_jobs && n < max; i++) {
      size_t k = (first + i) % n_jobs;
      bool found = job_next_missing_host(c->jobs.all[k], &at[k], out);
      any |= found;
      n += found;
    }
  }
  free(at);
  return n;
}

void core_hang_up(struct core *c, uint64_t conn) {
  struct member *m = jobs_member_of(&c->jobs, conn);
  if (m)
    job_closed(m->job, m, c->jobs.now_ms); /* the driver will not report that it is gone */
  else
    jobs_close(&c->jobs, conn);
}

void core_step(struct core *c, const struct core_event *ev, struct job_effects *fx) {
  c->jobs.fx = fx;
  c->jobs.now_ms = c->jobs.accounts.now_ms = ev->now_ms;
  c->jobs.wall_ms = ev->wall_ms;
  c->ev = ev->kind == CORE_MSG ? ev : NULL;
  struct member *m = ev->kind == CORE_MSG || ev->kind == CORE_CLOSED ? jobs_member_of(&c->jobs, ev->conn) : NULL;
  size_t first = fx->n;
  /* The account of the peer that causes this step, held; NULL: it has none, or one without limits. */
  struct account *payer = m ? m->account : ev->kind == CORE_MSG ? core_open_account(c, ev) : NULL;
  if (m && payer) payer->n_held++;
  c->jobs.payer = payer;
  switch (ev->kind) {
  case CORE_MSG: on_msg(c, ev); break;
  case CORE_CLOSED:
    if (m) job_closed(m->job, m, ev->now_ms);
    core_forget_talk(c, ev->conn);
    core_logs_closed(c, ev->conn);
    break;
  case CORE_TICK:
    for (size_t i = 0; i < c->jobs.n_all; i++) {
      c->jobs.payer = c->jobs.all[i]->account;
      job_tick(c->jobs.all[i], ev->now_ms, ev->lag_ms);
    }
    c->jobs.payer = NULL;
    moved_expire(c, ev->now_ms);
    core_expire_logs(c);
    break;
  case CORE_LOAD: jobs_load_line(&c->jobs, ev->line, ev->now_ms); break;
  case CORE_SHUTDOWN: {
    struct msg msg;
    msg_init(&msg, MSG_GOING_AWAY);
    msg.going_away.text = "it is being stopped, and jobs go on; reconnect";
    for (size_t i = 0; i < c->jobs.n_all; i++) {
      struct job *j = c->jobs.all[i];
      msg.going_away.away_ms = job_promise_away(j, c->jobs.now_ms);
      struct bytes *b = msg_bytes(&msg);
      for (size_t k = 0; k < j->n_members; k++) jobs_send_bytes(&c->jobs, j->members[k]->conn, b);
      bytes_unref(b);
    }
    break;
  }
  case CORE_CLAIMED:
    for (size_t i = 0; i < c->jobs.n_all; i++)
      if (job_claim_serial(c->jobs.all[i]) == ev->serial && ev->serial) {
        c->jobs.payer = c->jobs.all[i]->account;
        job_claimed(c->jobs.all[i], ev->claimed, ev->claim_text ? ev->claim_text : "", ev->now_ms);
      }
    break;
  case CORE_TURNED_AWAY:
    /* An address that no listed host has means something to the jobs of a private daemon alone: many users share others. */
    for (size_t i = 0; (ev->host[0] || c->jobs.daemon.owned) && i < c->jobs.n_all; i++)
      job_note_turned_away(c->jobs.all[i], ev->host, ev->peer_addr, ev->now_ms);
    break;
  }
  jobs_forget_marked(&c->jobs);
  for (size_t i = first; i < fx->n; i++)
    if (fx->v[i].kind == JOB_EFFECT_CLOSE) {
      core_forget_talk(c, fx->v[i].conn);
      core_logs_closed(c, fx->v[i].conn);
    }
  c->jobs.payer = NULL;
  accounts_close(&c->jobs.accounts, payer);
  c->jobs.fx = NULL;
  c->ev = NULL;
}

uint64_t core_deadline(const struct core *c) {
  uint64_t at = c->moved.next_ms, logs = logs_deadline(&c->logs);
  if (logs < at) at = logs;
  for (size_t i = 0; i < c->jobs.n_all; i++) {
    uint64_t d = job_deadline(c->jobs.all[i]);
    if (d < at) at = d;
  }
  return at;
}

bool core_idle(const struct core *c) {
  for (size_t i = 0; i < c->jobs.n_all; i++)
    if (c->jobs.all[i]->state != JOB_ENDED && c->jobs.all[i]->n_members > 0) return false;
  return true;
}

bool core_served(const struct core *c) {
  return c->served;
}

bool core_sends_on(const struct core *c) {
  return c->moved.n > 0;
}

bool core_is_followed(const struct core *c) {
  return c->logs.n > 0 || c->logs.followed_ms > 0;
}

void core_state_lines(const struct core *c, struct buf *out) {
  jobs_state_lines(&c->jobs, out);
}

struct core *core_create(const struct core_config *config) {
  struct core *c = xcalloc(1, sizeof *c);
  c->config = *config;
  jobs_init(&c->jobs, config->seed);
  struct daemon_facts *d = &c->jobs.daemon;
  snprintf(d->id, sizeof d->id, "%s", config->id ? config->id : "");
  d->host = config->host ? config->host : "";
  d->port = config->port;
  d->owned = config->owned;
  d->saves = config->saves;
  d->claims = config->claims;
  c->jobs.events = config->events;
  map_init(&c->talks, config->seed ^ 0x94d049bb133111eb);
  rations_init(&c->rations, config->seed ^ 0xa0761d6478bd642f);
  map_init(&c->moved.by_id, config->seed ^ 0xd6e8feb86659fd93);
  c->moved.next_ms = UINT64_MAX;
  return c;
}

void core_destroy(struct core *c) {
  if (!c) return;
  moved_finish(c);
  logs_finish(&c->logs);
  jobs_finish(&c->jobs);
  map_finish_all(&c->talks);
  rations_finish(&c->rations);
  free(c);
}
