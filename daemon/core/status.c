/* SPDX-License-Identifier: Apache-2.0 */
/* The state of the daemon, for rdzvctl: as JSON for programs, as text for people.
 *
 * The JSON object describes the job in full. The text uses the same fields of the job, and leaves out what has its
 * default value. A user who may not control a job (control.c) sees neither the job nor the hosts that are drained
 * for other users' jobs. The text has ages and the JSON has times: a program can subtract. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/exit_codes.h"
#include "common/json.h"
#include "daemon/core/internal.h"
#include "daemon/core/metrics.h"
#include "daemon/job/goodput.h"
#include "daemon/job/health.h"

static const char *place_of(const struct job *j, const struct member *m) {
  if (j->state == JOB_ENDING || j->state == JOB_ENDED) return m->end_acked ? "knows the end" : "was sent the end";
  if (!m->conn) return m->gone ? "finished, away" : "away";
  if (j->state == JOB_CHECKPOINTING && m->checkpointed) return "checkpointed";
  enum node_state state = node_state(j, m);
  return state == NODE_HELD ? "kept waiting" : node_state_name(state);
}

/* The workers that are behind the others of their node, and the age of the others' progress. */
static void put_laggards(json_t *v, const struct member *m, const struct pace *p, uint64_t now_ms) {
  json_t *list = json_array();
  for (size_t i = 0; i < m->progress.laggards->n; i++) {
    const struct laggard *l = &m->progress.laggards->v[i];
    uint64_t age_ms = member_worker_age_ms(m, l->local_rank, now_ms);
    json_array_append_new(list, json_pack("{s:I,s:I,s:I,s:s}", "local_rank", (json_int_t)l->local_rank, "step",
                                          (json_int_t)l->step, "age_ms", (json_int_t)age_ms, "judgement",
                                          judgement_name(member_judge(m, p, age_ms))));
  }
  json_object_set_new(v, "laggards", list);
  uint64_t others_ms = member_worker_age_ms(m, -1, now_ms);
  json_object_set_new(v, "others_age_ms", json_integer((json_int_t)others_ms));
  json_object_set_new(v, "others_judgement", json_string(judgement_name(member_judge(m, p, others_ms))));
}

static json_t *member_to_json(const struct job *j, const struct member *m, const struct pace *p, uint64_t now_ms) {
  json_t *v =
      json_pack("{s:I,s:I,s:s,s:I,s:s,s:s,s:I,s:s,s:I}", "node_rank", (json_int_t)m->node_rank, "first_rank",
                (json_int_t)(m->node_rank < 0 ? -1 : m->rank_base), "host", m->host, "pid", (json_int_t)m->pid, "agent",
                m->agent, "addr", m->addr[0] ? m->addr : m->peer_addr, "workers", (json_int_t)m->workers, "state",
                place_of(j, m), "heard_ms_ago", (json_int_t)(now_ms - (m->heard_ms < now_ms ? m->heard_ms : now_ms)));
  if (m->progress.step >= 0) {
    uint64_t age_ms = member_progress_age_ms(m, now_ms);
    enum judgement is = member_judge(m, p, age_ms);
    json_object_set_new(v, "progress_age_ms", json_integer((json_int_t)age_ms));
    if (is != JUDGEMENT_COUNT) json_object_set_new(v, "judgement", json_string(judgement_name(is)));
    if (m->progress.laggards) put_laggards(v, m, p, now_ms);
    json_object_set_new(v, "step", json_integer(m->progress.step));
    json_object_set_new(v, "of", json_integer(m->progress.of));
    if (isfinite(m->progress.loss)) json_object_set_new(v, "loss", json_real(m->progress.loss));
    if (isfinite(m->progress.samples_per_second))
      json_object_set_new(v, "samples_per_second", json_real(m->progress.samples_per_second));
  }
  return v;
}

/* With the sentence that people read. */
static json_t *told_verdict(const struct verdict *verdict) {
  json_t *v = verdict_to_json(verdict);
  struct buf text = BUF_INIT;
  verdict_sentence(verdict, &text);
  json_object_set_new(v, "sentence", json_text(buf_text(&text)));
  buf_finish(&text);
  return v;
}

static json_t *number_or_null(float v) {
  return isfinite(v) ? json_real((double)v) : json_null();
}

static json_t *history_to_json(const struct job *j) {
  const struct history_point *p;
  size_t n = job_history(j, &p);
  json_t *list = json_array();
  for (size_t i = 0; i < n; i++)
    json_array_append_new(list, json_pack("[I,I,o,o]", (json_int_t)p[i].wall_ms, (json_int_t)p[i].step,
                                          number_or_null(p[i].loss), number_or_null(p[i].samples_per_second)));
  return list;
}

/* Absent fields are not known, or mean nothing now: a job in which a node is late has no time left. */
static json_t *progress_to_json(const struct job *j, uint64_t now_ms) {
  struct job_progress p;
  job_progress(j, now_ms, &p);
  json_t *v = json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "nodes", (json_int_t)p.nodes, "away", (json_int_t)p.away, "late",
                        (json_int_t)(p.in_judgement[JUDGEMENT_LATE] + p.in_judgement[JUDGEMENT_STUCK]), "slowing_ms",
                        (json_int_t)p.pace.slowing_ms, "late_ms", (json_int_t)p.pace.late_ms, "stuck_ms",
                        (json_int_t)p.pace.stuck_ms);
  if (p.judgement != JUDGEMENT_COUNT) {
    json_object_set_new(v, "judgement", json_string(judgement_name(p.judgement)));
    json_object_set_new(v, "age_ms", json_integer((json_int_t)p.age_ms));
    if (p.has_speed) json_object_set_new(v, "samples_per_second", json_real(p.samples_per_second));
  }
  if (p.last_step >= 0) json_object_set_new(v, "step", json_integer(p.last_step));
  if (p.of > 0) json_object_set_new(v, "of", json_integer(p.of));
  if (p.pace.step_ms > 0) json_object_set_new(v, "step_ms", json_real(p.pace.step_ms));
  if (p.left_ms >= 0) json_object_set_new(v, "left_ms", json_integer(p.left_ms));
  struct buf text = BUF_INIT;
  job_progress_sentence(j, now_ms, &p, &text);
  if (text.len) json_object_set_new(v, "sentence", json_text(buf_text(&text)));
  buf_finish(&text);
  return v;
}

/* The cause is known, and not yet settled: a weightier one may still come. */
static bool is_ending_round(const struct job *j) {
  return (j->state == JOB_STOPPING || j->state == JOB_CHECKPOINTING) && j->cause.cause != CAUSE_NONE;
}

enum { ODD_SHOWN_MAX = 64 }; /* rdzvctl nodes has all */

static json_t *job_to_json(const struct core *c, const struct job *j, bool history, uint64_t now_ms) {
  json_t *v =
      json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I}", "job", j->id, "incarnation", j->incarnation, "state",
                job_state_name(j->state), "state_for_ms", (json_int_t)(now_ms - j->state_ms), "round",
                (json_int_t)j->round, "nodes", (json_int_t)j->round_nodes, "world_size", (json_int_t)j->world_size,
                "min_nodes", (json_int_t)j->settings.min_nodes, "max_nodes", (json_int_t)j->settings.max_nodes,
                "restarts_used", (json_int_t)j->restarts_used, "max_restarts", (json_int_t)j->settings.max_restarts);
  json_object_set_new(v, "uid", json_integer((json_int_t)j->uid));
  struct successor next[SUCCESSORS_MAX];
  json_t *hosts = json_array();
  size_t n = job_successors(j, next);
  for (size_t i = 0; i < n; i++) json_array_append_new(hosts, json_string(next[i].host));
  json_object_set_new(v, "daemon",
                      json_pack("{s:s,s:I,s:b,s:I,s:o,s:b}", "host", c->jobs.daemon.host, "term", (json_int_t)j->term,
                                "in_charge", (int)job_in_charge(j, now_ms), "age_ms", (json_int_t)job_age_ms(j, now_ms),
                                "successors", hosts, "claims", (int)j->settings.claims));
  json_object_set_new(v, "settings", settings_to_json(&j->settings));
  json_object_set_new(v, "restarts_earned", json_boolean(job_has_earned(j, now_ms)));
  json_object_set_new(v, "repeats", json_integer(j->last_failure.repeats));
  if (j->failed_step >= 0) json_object_set_new(v, "failed_step", json_integer(j->failed_step));
  if (j->refilled_wall_ms) json_object_set_new(v, "refilled_wall_ms", json_integer((json_int_t)j->refilled_wall_ms));
  uint64_t left_ms = j->state == JOB_FORMING && j->not_before_ms > now_ms ? j->not_before_ms - now_ms : 0;
  json_object_set_new(v, "delay_ms", json_integer((json_int_t)(left_ms ? j->last_delay_ms : 0)));
  json_object_set_new(v, "delay_left_ms", json_integer((json_int_t)left_ms));
  if (j->state == JOB_FORMING) json_object_set_new(v, "waiting", job_missing_json(j, now_ms));
  if (is_ending_round(j)) json_object_set_new(v, "ending", told_verdict(&j->cause));
  if (j->last_verdict.cause != CAUSE_NONE) json_object_set_new(v, "last_verdict", told_verdict(&j->last_verdict));
  json_t *list = json_array();
  const struct ended_round *p;
  for (size_t i = 0; (p = job_past(j, i)); i++)
    json_array_append_new(list, json_pack("{s:I,s:I,s:I,s:I,s:b,s:o}", "wall_ms", (json_int_t)p->wall_ms,
                                          "began_wall_ms", (json_int_t)p->began_wall_ms, "nodes", (json_int_t)p->nodes,
                                          "round", (json_int_t)p->verdict.round, "charged", p->charged, "verdict",
                                          told_verdict(&p->verdict)));
  json_object_set_new(v, "verdicts", list);
  if (job_pairs_sentence(j)[0]) json_object_set_new(v, "pair_check", json_text(job_pairs_sentence(j)));
  struct goodput g;
  job_goodput(j, now_ms, &g);
  json_object_set_new(v, "goodput", goodput_seconds_json(&g));
  json_object_set_new(v, "progress", progress_to_json(j, now_ms));
  json_object_set_new(v, "odd", nodes_findings_json(j, NULL, ODD_SHOWN_MAX));
  size_t n_slow;
  const struct slow_rank *slow = job_slow_ranks(j, &n_slow);
  json_t *slow_list = json_array();
  for (size_t i = 0; i < n_slow; i++) {
    struct buf text = BUF_INIT;
    job_slow_sentence(j, &slow[i], &text);
    json_array_append_new(slow_list,
                          json_pack("{s:I,s:I,s:s,s:i,s:I,s:o}", "rank", (json_int_t)slow[i].rank, "node_rank",
                                    (json_int_t)slow[i].node, "by", slow[i].by == SLOW_BY_WIRE ? "wire" : "work",
                                    "permille", slow[i].permille, "for_ms", (json_int_t)(now_ms - slow[i].since_ms),
                                    "sentence", json_text(buf_text(&text))));
    buf_finish(&text);
  }
  json_object_set_new(v, "slow_ranks", slow_list);
  if (history) json_object_set_new(v, "history", history_to_json(j));
  if (j->state == JOB_ENDING || j->state == JOB_ENDED) {
    json_object_set_new(v, "outcome", json_string(outcome_name(j->outcome)));
    json_object_set_new(v, "code", json_integer(j->code));
    json_object_set_new(v, "ended_wall_ms", json_integer((json_int_t)(j->jobs->wall_ms - (now_ms - j->state_ms))));
  }
  if (j->round)
    json_object_set_new(v, "round_began_wall_ms", json_integer((json_int_t)job_round_began_wall_ms(j, now_ms)));
  return v;
}

/* Text. ------------------------------------------------------------------------------------------------------------ */

/* Names from peers are escaped. */
void status_put_name(struct buf *out, const char *s) {
  buf_put_escaped(out, s, strlen(s), HOST_MAX);
}

static void put_name(struct buf *out, const char *s, size_t width) {
  size_t before = out->len;
  status_put_name(out, s);
  while (out->len < before + width) buf_putc(out, ' ');
}

/* all: to somebody who sees the jobs of all users, with the uid if two have this id. */
static void job_headline(struct buf *out, const struct job *j, bool all, uint64_t now_ms) {
  put_name(out, all ? j->log_name : j->id, 0);
  buf_printf(out, ": %s%s", job_state_name(j->state), j->state == JOB_ENDED ? " " : " for ");
  buf_put_duration(out, now_ms - j->state_ms);
  if (j->state == JOB_ENDED) buf_puts(out, " ago");
  if (j->round) buf_printf(out, ", round %lld", (long long)j->round);
  if (j->world_size)
    buf_printf(out, ", %lld node%s, %lld worker%s", (long long)j->round_nodes, j->round_nodes == 1 ? "" : "s",
               (long long)j->world_size, j->world_size == 1 ? "" : "s");
  buf_printf(out, ", restarts %lld of %lld", (long long)j->restarts_used, (long long)j->settings.max_restarts);
  if (j->state == JOB_ENDING || j->state == JOB_ENDED)
    buf_printf(out, ", %s with exit code %d%s", outcome_name(j->outcome), j->code,
               j->code == EXIT_CODE_PREEMPTED ? ": requeue me" : "");
  buf_putc(out, '\n');
}

static void member_line(struct buf *out, const struct job *j, const struct member *m, uint64_t now_ms) {
  if (m->node_rank >= 0)
    buf_printf(out, "  %4lld", (long long)m->node_rank);
  else
    buf_puts(out, "     -");
  buf_puts(out, "  ");
  put_name(out, m->host, 20);
  buf_putc(out, ' ');
  put_name(out, m->addr[0] ? m->addr : m->peer_addr, 24);
  /* "8-15"; "8 workers" if they have no ranks yet. */
  char text[32];
  long long first = m->rank_base, workers = m->workers;
  if (m->node_rank < 0)
    snprintf(text, sizeof text, "%lld worker%s", workers, workers == 1 ? "" : "s");
  else if (workers == 1)
    snprintf(text, sizeof text, "%lld", first);
  else
    snprintf(text, sizeof text, "%lld-%lld", first, first + workers - 1);
  buf_printf(out, " %-12s", text);
  bool runs = m->node_rank >= 0 && m->progress.step >= 0;
  buf_printf(out, runs ? "  %-14s" : "  %s", place_of(j, m));
  if (runs && m->progress.of > 0)
    buf_printf(out, "  step %lld of %lld", (long long)m->progress.step, (long long)m->progress.of);
  else if (runs)
    buf_printf(out, "  step %lld", (long long)m->progress.step);
  if (runs && isfinite(m->progress.loss)) buf_printf(out, ", loss %.6g", m->progress.loss);
  if (runs && isfinite(m->progress.samples_per_second) && m->progress.samples_per_second > 0)
    buf_printf(out, ", %.4g samples/s", m->progress.samples_per_second);
  if (m->conn && now_ms > m->heard_ms + 1000)
    buf_printf(out, "  silent for %llu ms", (unsigned long long)(now_ms - m->heard_ms));
  buf_putc(out, '\n');
}

/* The daemon that decides for the job, and the nodes that would start the next one. */
static void daemon_text(struct buf *out, const struct core *c, const struct job *j, uint64_t now_ms) {
  if (!c->jobs.daemon.host[0] || job_is_over(j)) return;
  buf_puts(out, "  daemon ");
  status_put_name(out, c->jobs.daemon.host);
  if (job_can_be_succeeded(j)) {
    double age_s = (double)job_age_ms(j, now_ms) / 1000;
    buf_printf(out, ", term %lld, ", (long long)j->term);
    if (job_in_charge(j, now_ms))
      buf_printf(out, "in charge (heard a majority %.1f s ago)", age_s);
    else
      buf_printf(out, "not in charge (heard no majority for %.1f s%s)", age_s,
                 age_s * 1000 >= (double)j->settings.lease_ms ? " or longer" : "");
    struct successor next[SUCCESSORS_MAX];
    size_t n = job_successors(j, next);
    for (size_t i = 0; i < n; i++) {
      buf_puts(out, i ? ", " : n == 1 ? "; successor " : "; successors ");
      status_put_name(out, next[i].host);
    }
    if (j->settings.claims) buf_puts(out, "; it claims each round");
  }
  buf_putc(out, '\n');
}

static void put_ago(struct buf *out, const struct jobs *jobs, uint64_t wall_ms) {
  buf_put_duration(out, jobs->wall_ms > wall_ms ? jobs->wall_ms - wall_ms : 0);
}

static void progress_text(struct buf *out, const struct job *j, uint64_t now_ms) {
  struct job_progress p;
  job_progress(j, now_ms, &p);
  if (p.judgement == JUDGEMENT_COUNT) return;
  buf_printf(out, "  progress: %s, step %lld", judgement_name(p.judgement), (long long)p.step);
  if (p.of > 0) buf_printf(out, " of %lld", (long long)p.of);
  buf_puts(out, ", last one ");
  buf_put_duration(out, p.age_ms);
  buf_puts(out, " ago");
  if (p.has_speed) buf_printf(out, ", %.4g samples/s", p.samples_per_second);
  if (p.left_ms >= 0) buf_puts(out, ", about "), buf_put_duration(out, (uint64_t)p.left_ms), buf_puts(out, " left");
  buf_putc(out, '\n');
  size_t before = out->len;
  buf_puts(out, "  ");
  job_progress_sentence(j, now_ms, &p, out);
  if (out->len == before + 2)
    out->len = before;
  else
    buf_putc(out, '\n');
}

static void job_text(struct buf *out, const struct core *c, const struct job *j, bool all) {
  uint64_t now_ms = c->jobs.now_ms;
  job_headline(out, j, all, now_ms);
  daemon_text(out, c, j, now_ms);
  if (is_ending_round(j)) {
    buf_printf(out, "  round %lld is ending: ", (long long)j->round);
    verdict_sentence(&j->cause, out);
    buf_putc(out, '\n');
  }
  job_ids_text(j, out);
  if (j->state == JOB_FORMING) {
    buf_puts(out, "  ");
    job_missing_text(j, false, now_ms, out);
    buf_putc(out, '\n');
  }
  /* The reaction to a failure, a finish and a newcomer. --max-restarts and --after-finish always; the others only if
   * set. */
  const struct settings *s = &j->settings;
  buf_printf(out, "  policy: --max-restarts %lld", (long long)s->max_restarts);
  if (s->max_restarts)
    buf_printf(
        out,
        ", refunded after a round of %d min or with progress, but not after a repeat; --repeat-limit %lld; rounds under %d s delay the next by 0, 1, 2, 4 .. %d s; ",
        JOB_LONG_ROUND_MS / 60000, (long long)s->repeat_limit, JOB_SHORT_ROUND_MS / 1000, JOB_DELAY_MAX_MS / 1000);
  else
    buf_puts(out, "; ");
  buf_printf(out, "--after-finish %s", after_finish_name(s->after_finish));
  if (s->exclude_after) buf_printf(out, ", --exclude-after %lld", (long long)s->exclude_after);
  if (s->slow_limit)
    buf_printf(out, ", --slow-limit %lld,%llds", (long long)s->slow_limit, (long long)s->slow_limit_ms / 1000);
  if (s->hang_timeout_ms) buf_printf(out, ", --hang-timeout %g s", (double)s->hang_timeout_ms / 1000);
  if (s->nccl_ids != NCCL_IDS_AUTO) buf_printf(out, ", --nccl-ids %s", nccl_ids_name(s->nccl_ids));
  if (s->scale_up != SCALE_UP_NOW) buf_printf(out, ", --scale-up %s", scale_up_name(s->scale_up));
  buf_putc(out, '\n');
  job_budget_text(j, now_ms, out);
  struct buf text = BUF_INIT;
  struct goodput g;
  job_goodput(j, now_ms, &g);
  goodput_sentence(&g, &text);
  if (text.len) buf_printf(out, "  time: %s\n", buf_text(&text));
  buf_finish(&text);
  progress_text(out, j, now_ms);
  size_t odd = job_count_odd(j);
  if (odd) buf_printf(out, "  %zu finding%s about its nodes: rdzvctl nodes %s\n", odd, odd == 1 ? "" : "s", j->id);
  size_t n_slow;
  const struct slow_rank *slow = job_slow_ranks(j, &n_slow);
  for (size_t i = 0; i < n_slow; i++) {
    if (job_slow_is_of_host(j, slow, i)) continue;
    buf_puts(out, "  ");
    job_slow_sentence(j, &slow[i], out);
    buf_puts(out, ", for ");
    buf_put_duration(out, now_ms - slow[i].since_ms);
    buf_putc(out, '\n');
  }
  const struct ended_round *p;
  for (size_t i = 0; (p = job_past(j, i)); i++) {
    buf_printf(out, "  %s %lld ended: ", i ? "  and round" : "round", (long long)p->verdict.round);
    verdict_sentence(&p->verdict, out);
    buf_puts(out, " (");
    put_ago(out, j->jobs, p->wall_ms);
    buf_printf(out, " ago%s)\n", p->charged ? ", charged" : "");
  }
  if (job_pairs_sentence(j)[0]) buf_printf(out, "  pair check: %s\n", job_pairs_sentence(j));
  if (j->n_members) buf_puts(out, "  node  host                 address                  ranks         state\n");
  for (int64_t r = 0; r < j->round_nodes; r++) {
    const struct member *m = job_find_rank(j, r);
    if (m) member_line(out, j, m, now_ms);
  }
  for (size_t i = 0; i < j->n_members; i++)
    if (j->members[i]->node_rank < 0) member_line(out, j, j->members[i], now_ms);
}

/* The job of a drain for one incarnation; NULL: the drain holds for many. */
static const struct job *job_of_drain(const struct core *c, const struct drain *d) {
  for (size_t i = 0; d->incarnation[0] && i < c->jobs.n_all; i++)
    if (drain_holds(d, c->jobs.all[i])) return c->jobs.all[i];
  return NULL;
}

bool status_sees_drain(const struct core *c, int64_t uid, const struct drain *d) {
  if (control_may(c, uid, NULL)) return true;
  return d->uid == uid || (d->uid < 0 && !d->incarnation[0]);
}

/* Together. -------------------------------------------------------------------------------------------------------- */

static bool is_meant(const struct status_question *q, const char *id, int64_t uid) {
  return (!q->id[0] || !strcmp(q->id, id)) && (q->owner < 0 || q->owner == uid);
}

static bool is_shown(const struct core *c, const struct status_question *q, const struct job *j) {
  return is_meant(q, j->id, j->uid) && control_may(c, q->uid, j);
}

static bool is_shown_moved(const struct core *c, const struct status_question *q, const struct moved_job *m) {
  bool may = control_may(c, q->uid, NULL) || (q->uid >= 0 && q->uid == m->uid);
  return may && is_meant(q, m->id, m->uid) && !moved_is_over(c, m);
}

void status_refusals_text(const struct core *c, const struct status_question *q, struct buf *out) {
  for (size_t i = 0; i < EARLY_REFUSALS_MAX; i++) {
    const struct early_refusal *e = &c->jobs.early[i];
    bool may = control_may(c, q->uid, NULL) || (q->uid >= 0 && q->uid == e->uid);
    if (!may || !early_refusal_counts(e, c->jobs.now_ms) || !is_meant(q, e->id, e->uid)) continue;
    if (jobs_find(&c->jobs, e->uid, e->id)) continue; /* it names them itself */
    status_put_name(out, e->id);
    buf_puts(out, ": no node has joined; ");
    status_put_name(out, e->what.host);
    buf_puts(out, " was refused ");
    buf_put_duration(out, c->jobs.now_ms - e->what.at_ms);
    buf_puts(out, " ago: ");
    buf_put_plain(out, e->what.text, strlen(e->what.text), TEXT_MAX);
    buf_putc(out, '\n');
  }
}

size_t status_jobs_text(const struct core *c, const struct status_question *q, bool whole, struct buf *out) {
  bool all = control_may(c, q->uid, NULL);
  size_t n = 0;
  for (size_t i = 0; i < c->jobs.n_all && out->len <= STATUS_MAX; i++) {
    if (!is_shown(c, q, c->jobs.all[i])) continue;
    n++;
    if (whole)
      job_text(out, c, c->jobs.all[i], all);
    else
      job_headline(out, c->jobs.all[i], all, c->jobs.now_ms);
  }
  for (struct map_entry *e = NULL; (e = map_next(&c->moved.by_id, e));)
    for (const struct moved_job *first = e->value, *m = first; m; m = m->next) {
      if (!is_shown_moved(c, q, m)) continue;
      status_put_name(out, m->id);
      if (first->next && all) buf_printf(out, " (uid %lld)", (long long)m->uid);
      buf_puts(out, ": moved to the daemon on ");
      moved_put_place(m, out);
      buf_putc(out, '\n');
      n++;
    }
  if (!n && !q->id[0]) {
    if (all && q->owner < 0)
      buf_puts(out, "no jobs\n");
    else if (q->uid < 0)
      buf_puts(out, "no jobs of yours (your user is not known to the daemon)\n");
    else if (q->owner < 0 || q->owner == q->uid)
      buf_printf(out, "no jobs of yours (uid %lld)\n", (long long)q->uid);
    else
      buf_printf(out, "no jobs of uid %lld\n", (long long)q->owner);
  }
  status_refusals_text(c, q, out);
  for (struct map_entry *e = NULL; whole && (e = map_next(&c->jobs.drains, e));)
    for (const struct drain *d = e->value; d; d = d->next) {
      if (!status_sees_drain(c, q->uid, d)) continue;
      const struct job *j = job_of_drain(c, d);
      buf_puts(out, "drained: ");
      put_name(out, d->host, 20);
      buf_puts(out, "  for ");
      put_ago(out, &c->jobs, d->wall_ms);
      buf_printf(out, ", by %s", d->by);
      if (j) buf_puts(out, ", in job "), put_name(out, all ? j->log_name : j->id, 0);
      if (d->uid >= 0 && !j) buf_printf(out, ", in jobs of uid %lld", (long long)d->uid);
      buf_putc(out, '\n');
    }
  return n;
}

static void members_json(struct status_walk *w, const struct job *j, size_t until, struct buf *out) {
  struct pace p = job_pace(j);
  for (size_t i = 0; i < j->n_members; i++) {
    if (j->members[i]->joined_no <= w->node) continue;
    if (out->len >= until) return;
    if (w->node) buf_putc(out, ',');
    w->node = j->members[i]->joined_no;
    json_put(out, member_to_json(j, j->members[i], &p, j->jobs->now_ms));
  }
  w->is_open = false;
  buf_puts(out, "]}");
}

/* Of more jobs it would be most of the answer. */
enum { HISTORY_JOBS_MAX = 16 };

bool status_more(struct status_walk *w, const struct core *c, size_t budget, struct buf *out) {
  size_t until = out->len + budget;
  if (until > STATUS_MAX) until = STATUS_MAX + 1;
  if (!w->begun) {
    size_t n = 0;
    for (size_t i = 0; i < c->jobs.n_all && n <= HISTORY_JOBS_MAX; i++) n += is_shown(c, &w->q, c->jobs.all[i]);
    w->history = n <= HISTORY_JOBS_MAX;
    buf_puts(out, "{\"jobs\":[");
  }
  w->begun = true;
  bool is_here = false; /* the open job: it may be gone */
  for (size_t i = 0; w->is_open && i < c->jobs.n_all && !is_here; i++) {
    is_here = c->jobs.all[i]->serial == w->job;
    if (is_here) members_json(w, c->jobs.all[i], until, out);
  }
  if (w->is_open && !is_here) {
    w->is_open = false;
    buf_puts(out, "]}");
  }
  for (size_t i = 0; i < c->jobs.n_all && !w->is_open; i++) {
    const struct job *j = c->jobs.all[i];
    if (j->serial <= w->job) continue;
    if (out->len >= until) return out->len <= STATUS_MAX;
    w->job = j->serial;
    w->node = 0;
    if (!is_shown(c, &w->q, j)) continue;
    /* Its nodes follow: the object stays open. */
    if (w->n++) buf_putc(out, ',');
    w->is_open = true;
    json_put(out, job_to_json(c, j, w->history, c->jobs.now_ms));
    out->len--;
    buf_puts(out, ",\"members\":[");
    members_json(w, j, until, out);
  }
  if (w->is_open) return out->len <= STATUS_MAX;
  for (struct map_entry *e = NULL; (e = map_next(&c->moved.by_id, e));)
    for (const struct moved_job *m = e->value; m; m = m->next) {
      if (!is_shown_moved(c, &w->q, m)) continue;
      if (w->n++) buf_putc(out, ',');
      struct buf place = BUF_INIT;
      moved_put_place(m, &place);
      json_put(out, json_pack("{s:s,s:I,s:s}", "job", m->id, "uid", (json_int_t)m->uid, "moved_to", buf_text(&place)));
      buf_finish(&place);
    }
  buf_puts(out, "],\"drained\":");
  json_t *drains = json_array();
  for (struct map_entry *e = NULL; (e = map_next(&c->jobs.drains, e));)
    for (const struct drain *d = e->value; d; d = d->next) {
      if (!status_sees_drain(c, w->q.uid, d)) continue;
      json_t *v = json_pack("{s:s,s:s,s:I}", "host", d->host, "by", d->by, "since_wall_ms", (json_int_t)d->wall_ms);
      const struct job *j = job_of_drain(c, d);
      if (j) json_object_set_new(v, "job", json_string(j->id));
      if (d->uid >= 0 && !j) json_object_set_new(v, "uid", json_integer((json_int_t)d->uid));
      json_array_append_new(drains, v);
    }
  json_put(out, drains);
  buf_printf(out, ",\"wall_ms\":%llu", (unsigned long long)c->jobs.wall_ms);
  buf_puts(out, "}\n");
  return false;
}

static void put_count(struct buf *out, size_t n, const char *noun) {
  buf_printf(out, "%zu %s%s", n, noun, n == 1 ? "" : "s");
}

void core_summary(const struct core *c, struct buf *out) {
  size_t in_state[JOB_STATE_COUNT] = {0}, live = 0, nodes = 0;
  const struct job *last = NULL;
  for (size_t i = 0; i < c->jobs.n_all; i++) {
    const struct job *j = c->jobs.all[i];
    if (j->state == JOB_ENDED) continue;
    in_state[j->state]++;
    live++;
    nodes += j->n_connected;
    last = j;
  }
  if (live > 1) {
    const char *separator = " (";
    buf_printf(out, "%zu jobs", live);
    for (int s = 0; s < JOB_STATE_COUNT; s++) {
      if (!in_state[s]) continue;
      buf_printf(out, "%s%zu %s", separator, in_state[s], job_state_name((enum job_state)s));
      separator = ", ";
    }
    buf_puts(out, "), ");
    put_count(out, nodes, "node");
  } else if (live) {
    int64_t step = job_steps(last).least;
    buf_printf(out, "1 job: %s, ", job_state_name(last->state));
    if (last->round) buf_printf(out, "round %lld, ", (long long)last->round);
    put_count(out, last->n_connected, "node");
    if (last->state == JOB_RUNNING) buf_printf(out, ", %lld workers", (long long)last->world_size);
    if (last->state == JOB_RUNNING && step >= 0) buf_printf(out, ", step %lld", (long long)step);
  } else
    buf_puts(out, "no job");
}
