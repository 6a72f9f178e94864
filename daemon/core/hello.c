/* SPDX-License-Identifier: Apache-2.0 */
/* HELLO: which job, which incarnation, which member, and whether its token is current. Its fields are checked before
 * (check_hello.c).
 *
 * A token is (incarnation, round). An incarnation begins with its creation time in hex, so comparing text compares age.
 * A HELLO with the job's token continues. A HELLO with a lower token is stale. A HELLO with a higher one comes from a
 * node that knows more than this daemon, which then recovers (daemon/job/rebuild_from_agents.c). The answer is one of
 * these:
 *
 *   WELCOME   and what the job's state calls for
 *   STALE     the node kills what it runs, and says HELLO again
 *   REFUSED   the node exits
 *   END       the job is over
 *   MOVED     the job is with another daemon (moved.c)
 *
 * "The job" is one of the peer's user (owner.c), here and below. A job that has ended keeps its id for a while, so that a
 * node that was away learns how it ended. A newcomer with that id starts a new incarnation beside it. An incarnation
 * without a sealed round gives way to any that has one. Of two that have sealed rounds, the older one is over as soon as
 * the newer one is known here, and stays so after the newer one has ended.
 *
 * Two runs of one job may have formed apart, each with rounds of its own: their first incarnations differ (origin). While
 * this daemon is in charge of the older run, nodes of the younger one end theirs and join. */

#include "daemon/core/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/endpoint.h"
#include "common/exit_codes.h"
#include "common/mem.h"

static struct job *add_job(struct core *c, const struct core_event *ev, const char *incarnation) {
  const struct hello *h = &ev->msg->hello;
  struct job *j = jobs_add(&c->jobs, core_owner(c, ev), h->job, incarnation, &h->settings);
  j->own_key = control_may(c, ev->uid, NULL);
  return j;
}

bool core_refuse(struct core *c, int code, const char *fmt, ...) {
  uint64_t conn = c->ev->conn;
  va_list ap;
  va_start(ap, fmt);
  char *text = xvasprintf(fmt, ap);
  va_end(ap);
  struct msg msg;
  msg_init(&msg, MSG_REFUSED);
  msg.refused.code = code;
  msg.refused.text = text;
  core_log_peer(c, LOG_WARN, "connection %llu: refused: %s", (unsigned long long)conn, text);
  jobs_send(&c->jobs, conn, &msg);
  core_hang_up(c, conn);
  free(text);
  return false;
}

enum stale_because {
  STALE_IT_MISSED,   /* the end of its round */
  STALE_OLD_RUN,     /* its run of the job is an earlier one */
  STALE_BY_NEWCOMER, /* h comes from another node, and has brought a newer incarnation of the job */
};

static void send_stale(struct core *c, uint64_t conn, const struct job *j, const struct hello *h,
                       enum stale_because because) {
  struct buf text = BUF_INIT;
  if (because == STALE_BY_NEWCOMER)
    buf_printf(&text, "node %s comes from a newer run of this job, or from its later round %lld, with another daemon",
               h->host, (long long)h->round);
  else if (h->origin[0] && strcmp(h->origin, j->origin) > 0)
    buf_printf(&text, "a run of this job that began before this node's goes on here, in round %lld",
               (long long)j->round);
  else if (because == STALE_OLD_RUN)
    buf_printf(&text, "a newer run of job %s has taken its place", j->id);
  else if (j->round > h->round)
    buf_printf(&text, "the job went on without this node, from round %lld to round %lld", (long long)h->round,
               (long long)j->round);
  else
    buf_printf(&text, "round %lld ended without this node, and the job is forming the next one", (long long)h->round);
  job_send_stale(j, conn, false, buf_text(&text));
  if (because != STALE_BY_NEWCOMER)
    job_log(j, LOG_INFO, "node %s (" AGENT_SHOWN ") is stale: %s", h->host, h->agent, buf_text(&text));
  buf_finish(&text);
}

static long long addresses(const struct settings *s) {
  return s->daemons > 1 ? s->daemons : 1;
}

/* The first setting that differs, as "--lease is 5000 ms here and 9000 ms in the job"; false: all agree. where:
 * "here (n1)", or "there". */
static bool settings_differ(const struct settings *a, const struct settings *b, const char *where, struct buf *out) {
#define CHECK(field, option, unit)                                                                                     \
  if (a->field != b->field) {                                                                                          \
    buf_printf(out, "%s is %lld%s %s and %lld%s in the job", option, (long long)a->field, unit, where,                 \
               (long long)b->field, unit);                                                                             \
    return true;                                                                                                       \
  }
  CHECK(min_nodes, "--nnodes (minimum)", "")
  CHECK(max_nodes, "--nnodes (maximum)", "")
  CHECK(max_restarts, "--max-restarts", "")
  CHECK(last_call_ms, "--last-call", " ms")
  CHECK(join_timeout_ms, "--join-timeout", " ms")
  CHECK(stop_timeout_ms, "--stop-timeout", " ms")
  CHECK(lease_ms, "--lease", " ms")
  CHECK(hang_timeout_ms, "--hang-timeout", " ms")
  CHECK(exclude_after, "--exclude-after", "")
  CHECK(slow_limit, "--slow-limit", " %")
  CHECK(repeat_limit, "--repeat-limit", "")
#undef CHECK
#define CHECK(field, option)                                                                                           \
  if (a->field != b->field) {                                                                                          \
    buf_printf(out, "%s is %s %s and %s in the job", option, field##_name(a->field), where, field##_name(b->field));   \
    return true;                                                                                                       \
  }
  CHECK(nccl_ids, "--nccl-ids")
  CHECK(pair_check, "--pair-check")
  CHECK(scale_up, "--scale-up")
  CHECK(after_finish, "--after-finish")
#undef CHECK
  if (addresses(a) != addresses(b)) {
    buf_printf(out, "--endpoint has %lld address%s %s and %lld in the job", addresses(a), addresses(a) == 1 ? "" : "es",
               where, addresses(b));
    return true;
  }
  if (a->claims != b->claims) {
    buf_printf(out, a->claims ? "--claim is given %s and not in the job" : "--claim is not given %s and is in the job",
               where);
    return true;
  }
  return false;
}

static bool settings_refused(struct core *c, const struct core_event *ev, struct job *j) {
  const struct hello *h = &ev->msg->hello;
  struct buf differs = BUF_INIT, there = BUF_INIT;
  char here[sizeof "here ()" + HOST_MAX];
  snprintf(here, sizeof here, "here (%s)", h->host); /* the text is in the daemon's log, too */
  bool refused = settings_differ(&h->settings, &j->settings, here, &differs);
  if (refused) {
    core_refuse(c, EXIT_CODE_REFUSED, "%s; %s", buf_text(&differs),
                "all nodes of a job must agree: start them with the same options, or with another --rdzv-id");
    settings_differ(&h->settings, &j->settings, "there", &there);
    job_note_refusal(j, h->host, buf_text(&there), c->jobs.now_ms);
  }
  buf_finish(&differs);
  buf_finish(&there);
  return refused;
}

/* Refuses a node rank that another node has asked for, or one beyond the job's size. */
static bool want_rank_refused(struct core *c, const struct core_event *ev, struct job *j) {
  const struct hello *h = &ev->msg->hello;
  if (h->want_rank >= h->settings.max_nodes) {
    core_refuse(c, EXIT_CODE_REFUSED, "--node-rank %lld of %s is not below --nnodes %lld", (long long)h->want_rank,
                h->host, (long long)h->settings.max_nodes);
    return true;
  }
  const struct member *m = j ? job_find_wanted(j, h->want_rank) : NULL;
  if (!m || !strcmp(m->agent, h->agent) || m->next.drained) return false; /* a drained node makes room */
  core_refuse(c, EXIT_CODE_REFUSED, "--node-rank %lld is claimed by both %s (pid %lld) and %s (pid %lld)",
              (long long)h->want_rank, m->host, (long long)m->pid, h->host, (long long)h->pid);
  struct buf why = BUF_INIT;
  buf_printf(&why, "--node-rank %lld is already taken by %s (pid %lld)", (long long)h->want_rank, m->host,
             (long long)m->pid);
  job_note_refusal(j, h->host, buf_text(&why), c->jobs.now_ms);
  buf_finish(&why);
  return true;
}

/* A node that failed its first check is in no round, and is not to be in one. */
static bool unfit_refused(struct core *c, const struct core_event *ev, struct job *j) {
  const struct hello *h = &ev->msg->hello;
  if (!h->unfit[0] || h->checked || h->voted_round || h->phase != PHASE_NONE || job_find_agent(j, h->agent))
    return false;
  struct buf why = BUF_INIT;
  buf_puts(&why, "it failed its --check with ");
  buf_put_plain(&why, h->unfit, strlen(h->unfit), REASON_MAX);
  core_refuse(c, EXIT_CODE_OTHER_HOST, "%s of job %s: %s", h->host, h->job, buf_text(&why));
  job_note_refusal(j, h->host, buf_text(&why), c->jobs.now_ms);
  buf_finish(&why);
  return true;
}

/* The HELLO is from the same run of the job: its round was made out of one that this job has had, perhaps by another
 * daemon. A node that was in no round yet has nothing to lose. */
static bool is_kin(const struct job *j, const struct hello *h) {
  const char *base = h->seal.base_incarnation;
  if (!job_can_be_succeeded(j)) return false;
  if (h->phase == PHASE_NONE && !h->voted_incarnation[0]) return true;
  return !strcmp(h->voted_incarnation, j->incarnation) || job_is_former(j, h->voted_incarnation) ||
         (base[0] && (!strcmp(base, j->incarnation) || job_is_former(j, base)));
}

static bool is_certain(const struct job *j) {
  return j->round > 0 && j->state != JOB_RECOVERING && job_in_charge(j, j->jobs->now_ms) &&
         (!job_can_be_succeeded(j) || job_is_firm(j));
}

/* The HELLO is from another run of the job, which began later than the one that goes on here. */
static bool is_of_a_younger_run(const struct job *j, const struct hello *h) {
  return !job_is_over(j) && is_certain(j) && h->origin[0] && strcmp(h->origin, j->origin) > 0;
}

/* The HELLO names the incarnation out of which j was made here. */
static bool is_former(const struct job *j, const struct hello *h) {
  return h->incarnation[0] && job_is_former(j, h->incarnation);
}

struct job *core_find_over(const struct core *c, const struct core_event *ev, const char *incarnation) {
  for (size_t i = c->jobs.n_all; incarnation[0] && i-- > 0;) {
    struct job *j = c->jobs.all[i];
    bool same = !strcmp(j->incarnation, incarnation) || job_is_former(j, incarnation);
    if (same && job_is_over(j) && core_is_of(c, ev, j, ev->msg->hello.job)) return j;
  }
  return NULL;
}

/* Another daemon may have given the run another name meanwhile, which this one never heard. A node that waits knows the
 * last round that it was part of: if that was of a run that has ended here, the node has missed the end. */
struct job *core_find_ended_run(const struct core *c, const struct core_event *ev) {
  const struct hello *h = &ev->msg->hello;
  return h->phase == PHASE_NONE ? core_find_over(c, ev, h->voted_incarnation) : NULL;
}

/* The live job of that user with that id; NULL: there is none. */
static struct job *find_live(const struct core *c, const struct core_event *ev) {
  const char *id = ev->msg->hello.job;
  struct job *j = jobs_find(&c->jobs, core_owner(c, ev), id);
  if (j && !job_is_over(j)) return j;
  for (size_t i = control_may(c, ev->uid, NULL) ? c->jobs.n_all : 0; i-- > 0;) {
    j = c->jobs.all[i];
    if (!job_is_over(j) && core_is_of(c, ev, j, id)) return j;
  }
  return NULL;
}

/* The job that a HELLO belongs to; NULL: it was answered. *begins: this HELLO begins a new incarnation. */
static struct job *job_for_hello(struct core *c, const struct core_event *ev, const struct account *account,
                                 bool *begins) {
  const struct hello *h = &ev->msg->hello;
  struct job *j = find_live(c, ev);
  /* It is of an older incarnation than one that has sealed a round here, whether that one goes on or has ended. */
  bool has_past = h->incarnation[0] && h->round > 0, passed = false;
  for (size_t i = 0; has_past && i < c->jobs.n_all && !passed; i++) {
    const struct job *one = c->jobs.all[i];
    bool certain = one->round > 0 || job_claims_run(one, true);
    passed = certain && strcmp(h->incarnation, one->incarnation) < 0 && core_is_of(c, ev, one, h->job);
  }
  struct job *known = NULL; /* of the incarnation that it names, or made here out of that one */
  for (size_t i = c->jobs.n_all; h->incarnation[0] && i-- > 0;) {
    struct job *one = c->jobs.all[i];
    bool former = is_former(one, h);
    if ((!former && strcmp(one->incarnation, h->incarnation) != 0) || !core_is_of(c, ev, one, h->job)) continue;
    known = one;
    if (former) break;
  }
  if (!known) known = core_find_ended_run(c, ev);
  if (known && job_is_over(known)) return known;
  if (known) j = known;
  if (passed && !known && !(j && (is_kin(j, h) || is_of_a_younger_run(j, h)))) {
    bool runs = h->phase != PHASE_NONE && h->phase != PHASE_STOPPED && h->phase != PHASE_FINISHED;
    if (j && runs) { /* on our nodes, perhaps, and until it says that it has stopped */
      job_hold_stale(j, h);
      send_stale(c, ev->conn, j, h, STALE_OLD_RUN);
      return NULL;
    }
    if (j) job_drop_hold(j, h->agent);
    core_refuse(c, EXIT_CODE_DAEMON_LOST, "a newer run of job %s has taken its place", h->job);
    return NULL;
  }
  if (j && settings_refused(c, ev, j)) return NULL;
  if (j) return j;
  if (!core_has_room_for_job(c, ev, account)) return NULL;
  *begins = !h->incarnation[0];
  if (*begins) {
    char incarnation[INCARNATION_MAX + 1];
    jobs_name_incarnation(&c->jobs, "", incarnation);
    j = add_job(c, ev, incarnation);
    for (size_t i = 0; i + 1 < c->jobs.n_all; i++) /* lost nodes of an earlier incarnation may still run */
      if (core_is_of(c, ev, c->jobs.all[i], h->job)) job_copy_holds(j, c->jobs.all[i]);
    job_recall_refusals(j);
    return j;
  }
  /* The agent was welcomed here, and this daemon does not know it: the daemon was restarted since. */
  j = add_job(c, ev, h->incarnation);
  job_recover(j, h->round, c->jobs.now_ms);
  return j;
}

static bool comes_after(const struct job *j, const struct hello *h) {
  return !strcmp(h->seal.base_incarnation, j->incarnation) && h->seal.base_round >= j->round;
}

/* The round that the HELLO names was made by a daemon that did not know the current one. No majority can stand behind
 * it: that of the current round stands here. */
static bool passes_over(const struct job *j, const struct hello *h) {
  if (is_of_a_younger_run(j, h)) return true;
  if (!is_certain(j) || !job_can_be_succeeded(j) || !strcmp(h->incarnation, j->incarnation)) return false;
  bool says = h->voted_round == h->round && !strcmp(h->voted_incarnation, h->incarnation);
  return !(says && comes_after(j, h));
}

/* Another daemon's round is firm, and that of this one is not, or it comes after that of this one: whatever the tokens
 * say, this daemon's is over. */
static bool is_overtaken(const struct job *j, const struct hello *h) {
  bool says = h->voted_round == h->round && !strcmp(h->voted_incarnation, h->incarnation);
  if (!says || !j->round || !job_can_be_succeeded(j) || !strcmp(h->incarnation, j->incarnation) || !is_kin(j, h))
    return false;
  return comes_after(j, h) || (h->firm && !job_is_firm(j) && !job_has_passed(j, h->incarnation, h->round));
}

/* The HELLO names a later round, or an older incarnation of a job without a round here: the job recovers to that. An
 * older incarnation counts even without a round: other nodes of it may be in a round that this node does not know. But
 * none of them is if this one has claimed the job. */
static void adopt_if_higher(struct core *c, struct job *j, const struct hello *h) {
  if (!h->incarnation[0] || job_is_over(j)) return;
  int cmp = strcmp(h->incarnation, j->incarnation);
  bool begun = j->round > 0, higher;
  if (cmp == 0)
    higher = h->round > j->round;
  else if (h->round > 0)
    higher = cmp > 0 || !begun;
  else
    higher = cmp < 0 && !begun;
  if (cmp != 0 && job_claims_run(j, h->round > 0)) return;
  if (!is_overtaken(j, h) && (!higher || passes_over(j, h))) return;
  if (cmp != 0) job_claim_give_up(j);
  job_log(j, LOG_WARN, "%s knows round %lld of incarnation %s; recovering to it", h->host, (long long)h->round,
          h->incarnation);
  for (size_t i = 0; i < j->n_members; i++) {
    member_clear_progress(j->members[i]); /* that was of another round */
    if (!member_in_round(j->members[i])) continue;
    send_stale(c, j->members[i]->conn, j, h, STALE_BY_NEWCOMER);
    job_hold_member(j, j->members[i]);
  }
  if (cmp != 0) { /* of another incarnation: its own nodes know better */
    jobs_note_past(&c->jobs, j);
    jobs_drop_drains(j->jobs, j->uid, j->incarnation);
    j->restarts_used = 0;
    j->failed_step = -1;
    j->last_failure = FAILURE_MARK_NONE;
    j->refilled_wall_ms = 0;
  }
  snprintf(j->incarnation, sizeof j->incarnation, "%s", h->incarnation);
  if (cmp != 0) snprintf(j->origin, sizeof j->origin, "%s", h->origin[0] ? h->origin : h->incarnation);
  job_recover(j, h->round, c->jobs.now_ms);
  for (size_t i = 0; i < j->n_members; i++)
    if (j->members[i]->state == MEMBER_WAITING) job_send_waiting(j, j->members[i], c->jobs.now_ms);
}

void core_reports(struct job *j, const char *agent, const struct report *reports, size_t n, uint64_t now_ms) {
  static const enum job_event_kind kinds[REPORT_COUNT] = {
      [REPORT_STARTED] = JOB_EV_STARTED, [REPORT_FAILED] = JOB_EV_FAILED,   [REPORT_FINISHED] = JOB_EV_FINISHED,
      [REPORT_LEAVING] = JOB_EV_LEAVING, [REPORT_STOPPED] = JOB_EV_STOPPED, [REPORT_CHECKPOINTED] = JOB_EV_CHECKPOINTED,
  };
  _Static_assert(REPORT_COUNT == 6, "a new kind of report needs an event");
  for (size_t i = 0; i < n; i++) {
    struct member *m = job_find_agent(j, agent); /* again each time: a report may end the round and remove the member */
    const struct report *r = &reports[i];
    if (!m || r->round != j->round || r->seq <= m->last_seq || !member_in_round(m)) continue;
    m->last_seq = r->seq;
    uint64_t ago = (uint64_t)r->ago_ms < now_ms ? (uint64_t)r->ago_ms : now_ms;
    struct job_event ev = {.kind = kinds[r->kind], .now_ms = now_ms, .member = m, .report = r, .at_ms = now_ms - ago};
    job_event(j, &ev);
  }
}

/* The HELLO names a round that goes on, or has ended, without the node. */
static bool is_stale(const struct job *j, const struct hello *h, const struct member *m) {
  bool current = h->round == j->round && !strcmp(h->incarnation, j->incarnation);
  if (h->phase == PHASE_NONE) return false;
  if (job_is_over(j)) return is_former(j, h); /* END is not for that incarnation: the node gives it up first */
  if (!current) return true;
  if (j->state == JOB_RECOVERING) return false;
  if (!m) return true;
  if (member_in_round(m)) return false;
  /* The round is settled, and the node may have missed only that. Then it had stopped, and did not get STALE. */
  bool stopped = h->phase == PHASE_STOPPED || h->phase == PHASE_FINISHED;
  return j->state != JOB_FORMING || m->state != MEMBER_WAITING || !stopped;
}

/* The member for a HELLO that belongs to j; NULL: it was answered with STALE or REFUSED. */
static struct member *member_for_hello(struct core *c, const struct core_event *ev, struct job *j,
                                       struct account *account) {
  const struct hello *h = &ev->msg->hello;
  struct member *m = job_find_agent(j, h->agent);
  if (is_stale(j, h, m)) {
    if (m) {
      struct job_event lost = {.kind = JOB_EV_LOST, .now_ms = ev->now_ms, .member = m, .at_ms = ev->now_ms};
      lost.text = "it came back in an older round";
      if (m->conn == ev->conn) jobs_unbind(&c->jobs, m); /* the connection is still needed */
      job_event(j, &lost);
    }
    job_note_return(j, h);
    job_hold_stale(j, h); /* STALE may not reach it */
    send_stale(c, ev->conn, j, h, STALE_IT_MISSED);
    return NULL;
  }
  if (!m) {
    if (j->n_workers + h->workers > WORLD_MAX) {
      core_refuse(c, EXIT_CODE_REFUSED, "job %s has %lld workers and %s would add %lld: the limit is %d", j->id,
                  (long long)j->n_workers, h->host, (long long)h->workers, WORLD_MAX);
      return NULL;
    }
    if (j->n_members >= (size_t)j->settings.max_nodes + CORE_SPARES_MAX) {
      core_refuse(c, EXIT_CODE_REFUSED, "job %s has reached its limit of %zu nodes", j->id, j->n_members);
      return NULL;
    }
    if (!core_has_room_for_member(c, ev, account)) return NULL;
    m = job_add_member(j, h, ev->now_ms);
  }
  member_set_account(m, account);
  m->store_port = h->store_port;
  member_set_addrs(m, h->addrs);
  snprintf(m->peer_addr, sizeof m->peer_addr, "%s", ev->peer_addr);
  snprintf(m->daemon_addr, sizeof m->daemon_addr, "%s", ev->local_addr);
  member_heard(m, ev->now_ms);
  jobs_bind(&c->jobs, m, ev->conn);
  member_set_gone(m, false);
  return m;
}

/* A member of the round reports that it runs nothing of it. If it had started, it counts as lost, and is added
 * again. again: on the same connection; then its HELLO and the START of this round may have crossed. The node fails
 * the round by itself if START names a port that it no longer has. */
static struct member *forget_its_round(struct core *c, const struct core_event *ev, struct job *j, struct member *m,
                                       bool again, struct account *account) {
  const struct hello *said = &ev->msg->hello;
  bool crossed = again && (said->round < j->round || strcmp(said->incarnation, j->incarnation) != 0);
  bool moved =
      !crossed && m->node_rank == 0 && said->store_port != j->store_port; /* START names a port that it gave up */
  /* Another daemon may have counted on its vote for another round, and could still be doing so. */
  bool elsewhere = said->follows[0] && strcmp(said->follows, c->jobs.daemon.id) != 0;
  bool had_begun = m->state == MEMBER_STARTED || m->state == MEMBER_STOPPED ||
                   (m->state == MEMBER_TOLD && (m->knows_round || moved || elsewhere));
  if (!member_in_round(m) || !had_begun || j->state == JOB_RECOVERING || job_is_over(j)) {
    if (m->state == MEMBER_STOPPED && !member_in_round(m)) member_set_state(m, MEMBER_WAITING);
    return m;
  }
  struct hello h = *said;
  struct job_event lost = {.kind = JOB_EV_LOST, .now_ms = ev->now_ms, .member = m, .at_ms = ev->now_ms, .dead = true};
  lost.text = "its agent abandoned the round";
  int64_t rank = m->node_rank;
  jobs_unbind(&c->jobs, m); /* the connection stays, for the new member */
  job_event(j, &lost);
  m = job_add_member(j, &h, ev->now_ms);
  member_set_account(m, account);
  member_keep_rank(m, rank);
  snprintf(m->peer_addr, sizeof m->peer_addr, "%s", ev->peer_addr);
  snprintf(m->daemon_addr, sizeof m->daemon_addr, "%s", ev->local_addr);
  jobs_bind(&c->jobs, m, ev->conn);
  return m;
}

/* The agent has given that connection up since, and says on another one what holds now. What the network has delayed may
 * not unmake it. */
static bool is_delayed(struct core *c, const struct core_event *ev) {
  const struct hello *h = &ev->msg->hello;
  const struct job *j = find_live(c, ev);
  const struct member *m = j ? job_find_agent(j, h->agent) : NULL;
  if (!m || !h->up_ms || h->up_ms >= m->boot.up_ms) return false;
  job_log(j, LOG_INFO, "node %s (" AGENT_SHOWN "): its HELLO comes behind a later one; closing", m->host, m->agent);
  core_hang_up(c, ev->conn);
  return true;
}

static void take_hello(struct core *c, const struct core_event *ev, struct account *account) {
  const struct hello *h = &ev->msg->hello;
  bool begins = false;
  struct job *j = job_for_hello(c, ev, account, &begins);
  if (!j || (!job_is_over(j) && (unfit_refused(c, ev, j) || want_rank_refused(c, ev, j)))) {
    if (j && !j->n_members && !j->round) j->forgotten = true;
    return;
  }
  c->served = true;
  if (!j->account) job_set_account(j, account);
  adopt_if_higher(c, j, h);
  if (is_of_a_younger_run(j, h)) job_end_run(j, h->incarnation);
  jobs_identified(&c->jobs, ev->conn, xasprintf("%s of job %s", h->host, j->log_name), (uint64_t)j->settings.lease_ms);
  const struct member *known = job_find_agent(j, h->agent);
  uint64_t joined_no = known ? known->joined_no : 0;
  const struct member *spoke = map_get_n(&c->jobs.conns, &ev->conn, sizeof ev->conn);
  bool again = spoke && spoke->job == j && !strcmp(spoke->agent, h->agent);
  struct member *m = member_for_hello(c, ev, j, account);
  if (!m && !j->n_members && !j->round) j->forgotten = true;
  if (!m) return;
  job_note_check(j, m, h, m->joined_no != joined_no);
  if (begins) job_log(j, LOG_INFO, "begins as incarnation %s", j->incarnation);
  if (h->phase == PHASE_NONE) {
    job_drop_hold(j, m->agent);
    job_note_return(j, h);
    m = forget_its_round(c, ev, j, m, again, account);
  }
  if (h->phase != PHASE_NONE && member_in_round(m)) m->knows_round = true;
  member_note_vote(m, h, again, ev->now_ms);
  job_drop_holds_before_boot(j, m);
  m->wants_events = h->wants_events;
  m->features = features_of(h->features);
  struct msg welcome;
  msg_init(&welcome, MSG_WELCOME);
  welcome.welcome.incarnation = j->incarnation;
  welcome.welcome.round = j->round;
  welcome.welcome.state = j->state;
  welcome.welcome.peer_addr = m->peer_addr;
  welcome.welcome.fence = member_tell_fence(m);
  welcome.welcome.daemon = c->jobs.daemon.id;
  welcome.welcome.term = j->term;
  welcome.welcome.age_ms = (int64_t)job_age_ms(j, c->jobs.now_ms);
  welcome.welcome.succeeded = job_can_be_succeeded(j);
  jobs_send(&c->jobs, m->conn, &welcome);
  job_announce_hello(j, m, m->joined_no != joined_no);
  bool resume = h->phase != PHASE_NONE || m->state == MEMBER_TOLD;
  struct job_event je = {
      .kind = resume ? JOB_EV_RESUME : JOB_EV_JOIN, .now_ms = ev->now_ms, .member = m, .hello = h, .again = again};
  job_log(j, LOG_INFO, "node %s (" AGENT_SHOWN ", %s) %s, %lld worker%s", h->host, h->agent, ev->peer_addr,
          resume ? "is back" : "joins", (long long)h->workers, h->workers == 1 ? "" : "s");
  job_event(j, &je);
  if (h->phase != PHASE_NONE) core_reports(j, h->agent, h->reports, h->n_reports, ev->now_ms);
  job_recover_finish_if_complete(j, ev->now_ms);
  job_tell_fence(j);
}

void core_hello(struct core *c, const struct core_event *ev) {
  if (!core_hello_is_sound(c, ev) || is_delayed(c, ev) || core_sent_on(c, ev)) return;
  struct account *account = core_open_account(c, ev);
  take_hello(c, ev, account);
  accounts_close(&c->jobs.accounts, account);
}
