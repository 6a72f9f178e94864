/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of the state file, which outlives the daemon. One line of JSON per seal, per end, per drain, and for
 * failures that may be a host's (suspicion.c).
 *
 *   {"event":"seal","job":..,"uid":1000,"incarnation":..,"round":3,"nodes":2,"restarts_used":1,"failed_step":120,
 *    "refilled_wall_ms":0,"wall_ms":..,"settings":{..},"last_failure":{..}}
 *   {"event":"drain","host":..,"uid":..,"incarnation":"","by":"root","wall_ms":..}, and "undrain"
 *   {"event":"suspect","host":..,"uid":..,"job":..,"run":..,"command":..,"node_rank":3,"nodes":8,"failures":2,
 *    "wall_ms":..,"passed":true}: a run that failed on a host, failures 0: no longer; and
 *   {"event":"cleared","host":..,"uid":..,"all":false}
 *   {"event":"end", the same, "outcome":"failed","code":7,"verdict":{..}}
 *
 * "succession":true if another daemon can take the round over: newcomers alone do not begin the next one.
 * "own_key":true if its nodes hold the daemon's own key, and "held":true if a lost node may still run: the job's next incarnation waits for its lease too.
 *
 * "away_ms" of a seal: this daemon has promised (GOING_AWAY) that no round begins for so long from the line on.
 *
 * The file is an aid, not the truth: agents carry all that a running job needs (rebuild_from_agents.c). The file adds
 * what no agent can tell: that a round was sealed although none of its nodes has come back yet, so that a stranger that
 * comes first does not start the job again; and how a job ended, for a node that was away. A later line about an
 * incarnation replaces the earlier one. A job that has ended stays beside its next incarnation. */

#include "daemon/job/internal.h"

#include <string.h>

#include "common/json.h"

static json_t *job_to_json(const struct job *j) {
  bool end = j->state == JOB_ENDING || j->state == JOB_ENDED;
  json_t *v = json_pack("{s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:o}", "event", end ? "end" : "seal", "job", j->id,
                        "incarnation", j->incarnation, "round", (json_int_t)j->round, "nodes",
                        (json_int_t)j->round_nodes, "restarts_used", (json_int_t)j->restarts_used, "failed_step",
                        (json_int_t)j->failed_step, "refilled_wall_ms", (json_int_t)j->refilled_wall_ms, "wall_ms",
                        (json_int_t)j->line_wall_ms, "settings", (json_t *)settings_to_json(&j->settings));
  if (j->last_failure.fingerprint) json_object_set_new(v, "last_failure", failure_mark_to_json(&j->last_failure));
  json_object_set_new(v, "uid", json_integer((json_int_t)j->uid));
  if (job_can_be_succeeded(j)) json_object_set_new(v, "succession", json_true());
  json_object_set_new(v, "goodput", goodput_line_json(j));
  if (j->own_key) json_object_set_new(v, "own_key", json_true());
  if (j->failures.count && !end) {
    json_t *failures = json_object();
    for (struct map_entry *e = NULL; (e = map_next(&j->failures, e));)
      json_object_set_new(failures, e->key, json_integer((json_int_t)(intptr_t)e->value));
    json_object_set_new(v, "failures", failures);
  }
  if (j->hold_ms > j->jobs->now_ms) {
    json_int_t held_ms = j->hold_ms == UINT64_MAX ? -1 : (json_int_t)(j->hold_ms - j->jobs->now_ms);
    json_object_set_new(v, "held_ms", json_integer(held_ms));
  }
  if (!end && j->away_ms > j->jobs->now_ms)
    json_object_set_new(v, "away_ms", json_integer((json_int_t)(j->away_ms - j->jobs->now_ms)));
  if (end) {
    json_object_set_new(v, "outcome", json_string(outcome_name(j->outcome)));
    json_object_set_new(v, "code", json_integer(j->code));
    json_object_set_new(v, "verdict", verdict_to_json(&j->last_verdict));
  }
  return v;
}

void job_save(const struct job *j) {
  job_save_past(j);
  jobs_save(j->jobs, job_to_json(j));
}

/* False: the line is not a state line. */
static bool load_object(struct jobs *jobs, const json_t *o, uint64_t now_ms) {
  const char *event = json_read_text(o, "event", 8), *id = json_read_text(o, "job", JOB_ID_MAX);
  bool past, loaded = suspicions_load(&jobs->suspicions, o, &past);
  if (past) return loaded;
  if (!strcmp(event, "drain") || !strcmp(event, "undrain")) return jobs_load_drain(jobs, o);
  const char *incarnation = json_read_text(o, "incarnation", INCARNATION_MAX);
  struct settings s;
  int64_t round, nodes, used, wall_ms, failed_step, refilled_wall_ms, uid;
  if (!event[0] || !id[0] || !incarnation[0] || strspn(incarnation, "0123456789abcdef-") != strlen(incarnation) ||
      settings_from_json(json_object_get(o, "settings"), &s, NULL) < 0 || s.min_nodes > s.max_nodes)
    return false;
  if (!json_read_int(o, "round", 0, JOB_ROUND_MAX, &round) || !json_read_int(o, "nodes", 0, NODES_MAX, &nodes) ||
      !json_read_int(o, "restarts_used", 0, 1000000, &used) || !json_read_int(o, "wall_ms", 0, INT64_MAX, &wall_ms) ||
      !json_read_int(o, "failed_step", -1, INT64_MAX, &failed_step) ||
      !json_read_int(o, "refilled_wall_ms", 0, INT64_MAX, &refilled_wall_ms) ||
      !json_read_int(o, "uid", -1, UINT32_MAX, &uid))
    return false;
  bool end = !strcmp(event, "end");
  if (!end && (strcmp(event, "seal") != 0 || round < 1)) return false;

  struct job *before = NULL, *live = jobs_find(jobs, uid, id);
  for (size_t i = 0; i < jobs->n_all; i++) {
    struct job *one = jobs->all[i];
    if (one->uid == uid && !strcmp(one->incarnation, incarnation) && !strcmp(one->id, id)) before = one;
  }
  if (before) jobs_forget(jobs, before);
  if (live && live != before && !job_is_over(live)) {
    jobs_drop_drains(live->jobs, live->uid, live->incarnation);
    jobs_forget(jobs, live);
  }
  if (end && jobs->wall_ms > (uint64_t)wall_ms + JOB_END_KEEP_MS) {
    jobs_drop_drains(jobs, uid, incarnation);
    return true;
  }
  struct job *j = jobs_add(jobs, uid, id, incarnation, &s);
  j->restarts_used = used;
  j->failed_step = failed_step;
  j->refilled_wall_ms = (uint64_t)refilled_wall_ms;
  j->line_wall_ms = (uint64_t)wall_ms;
  j->own_key = json_is_true(json_object_get(o, "own_key"));
  /* Charged failures per host, for --exclude-after. */
  const char *host;
  json_t *n;
  json_object_foreach(json_object_get(o, "failures"), host, n) {
    if (!host[0] || strlen(host) > HOST_MAX || !json_is_integer(n) || json_integer_value(n) < 1 ||
        j->failures.count >= JOB_FAILING_HOSTS_MAX)
      continue;
    map_put(&j->failures, host, (void *)(intptr_t)json_integer_value(n));
  }
  json_t *mark = json_object_get(o, "last_failure");
  if (mark && failure_mark_from_json(mark, &j->last_failure, NULL) < 0) j->last_failure = FAILURE_MARK_NONE;
  if (!end) {
    job_recover(j, round, now_ms);
    goodput_load(j, json_object_get(o, "goodput"), false);
    j->round_nodes = nodes;
    j->exact = true;
    int64_t away_ms;
    if (json_read_int(o, "away_ms", 1, JOB_AWAY_MS, &away_ms)) j->away_ms = now_ms + (uint64_t)away_ms;
    if (json_is_true(json_object_get(o, "succession"))) job_quorum_load(j);
    j->budget_from = BUDGET_START;
    return true;
  }
  j->round = round;
  j->round_nodes = nodes;
  goodput_load(j, json_object_get(o, "goodput"), true);
  int64_t held_ms = json_integer_value(json_object_get(o, "held_ms"));
  if (held_ms) job_hold_agent(j, "", "", held_ms < 0 ? UINT64_MAX : now_ms + (uint64_t)held_ms);
  const char *outcome = json_string_value(json_object_get(o, "outcome"));
  int64_t code = 0;
  json_read_int(o, "code", 0, 255, &code);
  j->outcome = OUTCOME_FAILED;
  for (int i = 0; outcome && i < OUTCOME_COUNT; i++)
    if (!strcmp(outcome, outcome_name((enum outcome)i))) j->outcome = (enum outcome)i;
  j->code = (int)code;
  struct verdict v;
  if (!verdict_from_json(json_object_get(o, "verdict"), &v, NULL)) verdict_set(&j->last_verdict, &v);
  job_note_verdict(j, false, j->line_wall_ms);
  jobs_drop_drains(j->jobs, j->uid, j->incarnation);
  job_enter(j, JOB_ENDED, now_ms);
  return true;
}

void jobs_load_line(struct jobs *jobs, const char *line, uint64_t now_ms) {
  struct err e = ERR_INIT;
  json_t *o = json_parse_object(line, strlen(line), &e);
  if (!o)
    jobs_log(jobs, LOG_ERROR, "state: ignored a line that is not JSON: %s", e.text);
  else if (!load_object(jobs, o, now_ms))
    jobs_log(
        jobs, LOG_ERROR,
        "state: ignored a line that is not a seal, an end, a drain or a suspicion; a later release may have written it");
  json_decref(o);
}

void jobs_state_lines(const struct jobs *jobs, struct buf *out) {
  for (size_t i = 0; i < jobs->n_all; i++) {
    if (!jobs->all[i]->round && !job_is_over(jobs->all[i])) continue;
    json_put(out, job_to_json(jobs->all[i]));
    buf_putc(out, '\n');
  }
  jobs_drain_lines(jobs, out);
  suspicions_lines(&jobs->suspicions, out);
}
