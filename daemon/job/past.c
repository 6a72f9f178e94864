/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts that a job should do without, and takes if it must: suspicion.c has excluded them for failures of several jobs,
 * or a worker there asked for another host (exit code 16).
 *
 * A drain would keep such a host out even if the job then waits for ever. So these hosts only come last: a seal takes
 * them if it would not reach min nodes otherwise, and a line says so. They are no reason to grow.
 *
 * Exit code 16 is Megatron-LM's request to run a suspicious step again on another GPU. Megatron exits with it on all
 * ranks, because one of them has seen a wrong result and the daemon cannot know which. So the ranks of all nodes move on
 * by one, and each rank meets another host. If workers of one host alone asked, that host comes last, too. */

#include "daemon/job/internal.h"

#include <stdio.h>
#include <string.h>
#include "common/exit_codes.h"

/* What jobs remember. ---------------------------------------------------------------------------------------------- */

/* With the job's own line, whose write is waited for in any case. */
void job_save_past(const struct job *j) {
  for (void *line; (line = suspicions_next_unsaved(&j->jobs->suspicions, j->uid));) jobs_save(j->jobs, line);
}

/* A failure that a host may have caused: no drill of an operator, and nothing that a restart would repeat anywhere. */
static bool may_be_the_hosts(const struct job *j, bool charged) {
  const struct verdict *v = &j->last_verdict;
  bool worker = v->cause == CAUSE_WORKER_SIGNAL || v->cause == CAUSE_WORKER_EXIT || v->cause == CAUSE_DEVICE_HELD;
  bool lost = v->cause == CAUSE_NODE_LOST && !j->void_round;
  return v->host[0] && !j->drilled && v->lasting == LASTING_NO && !j->asked.many && ((worker && charged) || lost);
}

void job_note_past(struct job *j, bool charged) {
  const struct verdict *v = &j->last_verdict;
  struct suspicions *all = &j->jobs->suspicions;
  uint64_t wall_ms = j->jobs->wall_ms;
  if (!may_be_the_hosts(j, charged)) return;
  struct suspicion f = {.uid = j->uid,
                        .host = (char *)(uintptr_t)v->host,
                        .job = j->id,
                        .node_rank = v->node_rank,
                        .nodes = j->round_nodes,
                        .wall_ms = wall_ms};
  memcpy(f.run, j->origin, sizeof f.run);
  for (size_t i = 0; i < j->n_members && !f.command[0]; i++)
    memcpy(f.command, j->members[i]->command, sizeof f.command);
  bool before = suspicions_exclude(all, v->host, j->uid, wall_ms);
  suspicions_failed(all, &f);
  if (before || !suspicions_exclude(all, v->host, j->uid, wall_ms)) return;
  struct buf why = BUF_INIT;
  suspicions_reason(all, v->host, j->uid, &why);
  job_announce_host(j, v->host, buf_text(&why));
  job_notice(j, "host %s is left out of new rounds where they can do without it: %s (rdzvctl hosts)", v->host,
             buf_text(&why));
  buf_finish(&why);
}

static bool took_part(void *ctx, const char *host) {
  const struct job *j = ((struct job **)ctx)[0];
  for (size_t i = 0; i < j->n_members; i++)
    if (member_in_round(j->members[i]) && !strcmp(j->members[i]->host, host)) return true;
  return false;
}

static void save_taken_back(void *ctx, const struct suspicion *one) {
  jobs_save(((struct job **)ctx)[0]->jobs, suspicion_json(one));
}

void job_note_success(struct job *j) {
  if (!j->n_members) return;
  suspicions_passed(&j->jobs->suspicions, &(struct suspicion_pass){.uid = j->uid,
                                                                   .run = j->origin,
                                                                   .command = j->members[0]->command,
                                                                   .took_part = took_part,
                                                                   .taken_back = save_taken_back,
                                                                   .ctx = &j});
}

size_t jobs_clear_past(struct jobs *jobs, const char *host, int64_t uid, bool all) {
  size_t n = suspicions_clear(&jobs->suspicions, host, uid, all);
  if (n) jobs_save(jobs, suspicion_cleared_json(host, uid, all));
  for (size_t i = 0; i < jobs->n_all; i++) {
    struct job *j = jobs->all[i];
    if (job_is_over(j) || (!all && j->uid != uid)) continue;
    bool avoided = !strcmp(j->asked.avoided, host);
    if (avoided) j->asked.avoided[0] = '\0';
    n += avoided;
    if (n) job_watch_growth(j, jobs->now_ms);
  }
  return n;
}

void job_clear_past(struct job *j, const char *host) {
  if (jobs_clear_past(j->jobs, host, j->uid, false))
    job_log(j, LOG_INFO, "host %s has passed its --check: failures there no longer count", host);
}

/* Another host. ---------------------------------------------------------------------------------------------------- */

void job_note_other_host(struct job *j, const struct member *m) {
  if (!j->asked.host[0])
    snprintf(j->asked.host, sizeof j->asked.host, "%s", m->host);
  else if (strcmp(j->asked.host, m->host) != 0)
    j->asked.many = true;
}

void job_settle_other_host(struct job *j) {
  const struct verdict *v = &j->last_verdict;
  bool asked = v->cause == CAUSE_WORKER_EXIT && v->code == EXIT_CODE_OTHER_HOST;
  j->asked.rotates = asked && j->round_nodes > 1;
  if (asked) snprintf(j->asked.avoided, sizeof j->asked.avoided, "%s", j->asked.many ? "" : v->host);
  if (asked && j->round_nodes > 1)
    job_notice(j, "a worker asked for another host (exit code %d): the ranks of the nodes move on by one",
               EXIT_CODE_OTHER_HOST);
  j->asked.host[0] = '\0';
  j->asked.many = false;
}

void job_rotate_ranks(struct job *j) {
  for (size_t i = 0; j->asked.rotates && j->round_nodes > 0 && i < j->n_members; i++) {
    struct member *m = j->members[i];
    if (m->next.last_rank >= 0) member_keep_rank(m, (m->next.last_rank + 1) % j->round_nodes);
  }
  j->asked.rotates = false;
}

/* The seal. -------------------------------------------------------------------------------------------------------- */

bool job_avoids(const struct job *j, const char *host) {
  return !strcmp(j->asked.avoided, host) || suspicions_exclude(&j->jobs->suspicions, host, j->uid, j->jobs->wall_ms);
}

bool member_is_spared(const struct member *m, uint64_t now_ms) {
  return member_flapping_until(m, now_ms) > 0 || m->next.unfit || job_avoids(m->job, m->host);
}

void job_tell_avoided(struct job *j, struct member *const *chosen, size_t n) {
  for (size_t i = 0; i < n; i++) {
    struct buf why = BUF_INIT;
    if (!chosen[i]->next.spared || !job_avoids(j, chosen[i]->host)) continue;
    if (!strcmp(j->asked.avoided, chosen[i]->host))
      buf_puts(&why, "its worker asked for another host");
    else
      suspicions_reason(&j->jobs->suspicions, chosen[i]->host, j->uid, &why);
    job_notice(j, "round %lld needs host %s, which it would do without: %s", (long long)j->round, chosen[i]->host,
               buf_text(&why));
    buf_finish(&why);
  }
}
