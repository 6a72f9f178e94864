/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts that are left out of rounds: rdzvctl drain, --exclude-after.
 *
 * A drain is for a host, because an operator takes a host away and a fault stays with it; agents on it get a new id at
 * each start. Its nodes stay connected: they can join rounds again when the drain is lifted, they know why they wait,
 * and they learn how the job ends. They count as not available, which keeps them out of the next round.
 *
 * A round with such nodes ends as planned (prepare.c): workers may write a checkpoint, nothing is charged, and the next
 * round takes a spare at once if there is one. A round does not end if the job could not go on with fewer than min
 * other nodes. Nor does it end if some of its nodes have finished and would have to start again, unless --after-finish
 * restart asks for that. drain --force ends it anyway.
 *
 * A drain by root or the daemon's user holds for all jobs. A drain by another user holds for that user's jobs. A drain
 * by --exclude-after N, after N charged failures there, or by --slow-limit, holds for one incarnation of one job, and so does
 * that of a bad host (health.c) or wire (pairs.c). So no user can keep a
 * host from another. Several may hold for one host, and each is lifted separately.
 *
 * The state file gets a line for each drain and each undrain. Drains are few, and looked up when a node joins or a
 * drain changes, never per message: a member carries a flag. */

#include "daemon/job/internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"

/* The list. -------------------------------------------------------------------------------------------------------- */

const struct drain *jobs_first_drain(const struct jobs *jobs, const char *host) {
  return map_get(&jobs->drains, host);
}

size_t jobs_drains_of(const struct jobs *jobs, int64_t uid) {
  size_t n = 0;
  for (struct map_entry *e = NULL; (e = map_next(&jobs->drains, e));)
    for (const struct drain *d = e->value; d; d = d->next) n += d->uid == uid;
  return n;
}

bool drain_holds(const struct drain *d, const struct job *j) {
  if (d->incarnation[0]) return d->uid == j->uid && !strcmp(d->incarnation, j->incarnation);
  return d->uid < 0 || d->uid == j->uid;
}

const struct drain *job_drain_of(const struct job *j, const char *host) {
  for (const struct drain *d = jobs_first_drain(j->jobs, host); d; d = d->next)
    if (drain_holds(d, j)) return d;
  return NULL;
}

static bool is_same(const struct drain *d, const struct drain *like) {
  return d->uid == like->uid && !strcmp(d->incarnation, like->incarnation);
}

static struct drain *find_same(const struct jobs *jobs, const struct drain *like) {
  for (struct drain *d = map_get(&jobs->drains, like->host); d; d = d->next)
    if (is_same(d, like)) return d;
  return NULL;
}

static json_t *drain_to_json(const struct drain *d, bool begins) {
  json_t *v = json_pack("{s:s,s:s,s:I,s:s}", "event", begins ? "drain" : "undrain", "host", d->host, "uid",
                        (json_int_t)d->uid, "incarnation", d->incarnation);
  if (begins) {
    json_object_set_new(v, "by", json_string(d->by));
    json_object_set_new(v, "wall_ms", json_integer((json_int_t)d->wall_ms));
    if (d->force) json_object_set_new(v, "force", json_true());
  }
  return v;
}

static struct drain *keep_drain(struct jobs *jobs, const struct drain *like) {
  struct drain *d = find_same(jobs, like);
  if (d) {
    d->force = d->force || like->force;
    return d;
  }
  d = xmemdup(like, sizeof *like);
  d->host = xstrdup(like->host);
  d->by = xstrdup(like->by);
  d->next = map_get(&jobs->drains, d->host);
  map_put(&jobs->drains, d->host, d);
  jobs->n_drains++;
  return d;
}

/* Removes the drains of `host` (NULL: of every host) that are the same as `like` (NULL: all). tell: with a line in the
 * state file. */
static size_t remove_drains(struct jobs *jobs, const char *host, const struct drain *like, bool tell) {
  size_t n = 0;
  for (struct map_entry *e = NULL; (e = map_next(&jobs->drains, e));) {
    if (host && strcmp(e->key, host) != 0) continue;
    struct drain *first = e->value;
    for (struct drain **at = &first; *at;) {
      struct drain *d = *at;
      if (like && !is_same(d, like)) {
        at = &d->next;
        continue;
      }
      *at = d->next;
      if (tell) jobs_save(jobs, drain_to_json(d, false));
      free(d->host);
      free(d->by);
      free(d);
      jobs->n_drains--;
      n++;
    }
    if (first)
      e->value = first;
    else
      map_remove_n(&jobs->drains, e->key, e->key_len);
  }
  return n;
}

void jobs_finish_drains(struct jobs *jobs) {
  remove_drains(jobs, NULL, NULL, false);
  map_finish(&jobs->drains);
}

/* Effects on jobs. ------------------------------------------------------------------------------------------------- */

size_t job_nodes_without(const struct job *j, const char *host) {
  size_t n = 0;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (m->conn && !m->next.leaving && !m->next.drained && strcmp(m->host, host) != 0) n++;
  }
  return n;
}

bool job_could_go_on_without(const struct job *j, const char *host) {
  return job_nodes_without(j, host) >= (size_t)j->settings.min_nodes;
}

static bool is_at_work(const struct member *m) {
  return member_in_round(m) && (m->state == MEMBER_TOLD || m->state == MEMBER_STARTED);
}

bool job_works_on(const struct job *j, const char *host) {
  for (size_t i = 0; i < j->n_members; i++)
    if (is_at_work(j->members[i]) && !strcmp(j->members[i]->host, host)) return true;
  return false;
}

bool job_has_finished_ones(const struct job *j) {
  return j->n_in_state[MEMBER_FINISHED] > 0 && j->settings.after_finish != AFTER_FINISH_RESTART;
}

/* A drained node that is at work, and for which the round may, or may not, be ended; NULL: none. */
static const struct member *find_drained(const struct job *j, bool may_end) {
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    const struct drain *d = m->next.drained && is_at_work(m) ? job_drain_of(j, m->host) : NULL;
    if (d && (d->force || (job_could_go_on_without(j, d->host) && !job_has_finished_ones(j))) == may_end) return m;
  }
  return NULL;
}

bool job_is_ended_for_drains(const struct job *j) {
  return find_drained(j, true) != NULL;
}

void job_end_for_drains(struct job *j, uint64_t now_ms) {
  if (j->state != JOB_STARTING && j->state != JOB_RUNNING) return;
  const struct member *m = find_drained(j, true);
  if (m) {
    job_offer_node_cause(j, m, CAUSE_NODE_DRAINED, EXIT_CODE_NODE_LOST, job_drain_of(j, m->host)->by, now_ms);
    job_prepare(j, now_ms);
    return;
  }
  if ((m = find_drained(j, false)))
    job_log(j, LOG_WARN, "node %s is drained, but round %lld needs it and goes on", m->host, (long long)j->round);
}

static bool flag_members(struct job *j) {
  bool changed = false;
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    bool drained = job_drain_of(j, m->host) != NULL;
    if (drained == m->next.drained) continue;
    changed = true;
    m->told_news = UINT64_MAX;
    member_set_drained(m, drained);
    if (!drained && !member_in_round(m) && j->state != JOB_RECOVERING) member_keep_rank(m, -1);
    job_announce_drain(j, m);
  }
  job_watch_drains(j);
  return changed;
}

static void apply_to_all_jobs(struct jobs *jobs, uint64_t now_ms) {
  for (size_t i = 0; i < jobs->n_all; i++) {
    struct job *j = jobs->all[i];
    if (job_is_over(j)) continue;
    bool changed = flag_members(j);
    if (changed && j->state == JOB_FORMING) {
      j->news++;
      if (job_try_seal(j, now_ms)) continue;
      if (j->notice_ms > now_ms + JOB_NOTICE_MS) j->notice_ms = now_ms + JOB_NOTICE_MS;
    }
    if (changed) job_watch_growth(j, now_ms);
    for (size_t k = 0; changed && k < j->n_members; k++) {
      struct member *m = j->members[k];
      if (m->told_news == UINT64_MAX && !member_in_round(m)) job_send_waiting(j, m, now_ms);
    }
    job_end_for_drains(j, now_ms);
  }
}

bool jobs_drain(struct jobs *jobs, const struct drain *like, uint64_t now_ms) {
  if (!find_same(jobs, like) && jobs->n_drains >= (like->uid < 0 ? JOB_DRAINS_MAX : JOB_DRAINS_SHARED_MAX))
    return false;
  jobs_save(jobs, drain_to_json(keep_drain(jobs, like), true));
  apply_to_all_jobs(jobs, now_ms);
  return true;
}

size_t jobs_undrain(struct jobs *jobs, const char *host, const struct drain *like, uint64_t now_ms) {
  size_t n = remove_drains(jobs, host, like, true);
  for (size_t i = 0; n && i < jobs->n_all; i++) /* failures before the drain no longer count */
    if (!like || drain_holds(like, jobs->all[i])) map_remove(&jobs->all[i]->failures, host);
  if (n) apply_to_all_jobs(jobs, now_ms);
  return n;
}

static struct drain like_of(int64_t uid, const char *incarnation) {
  struct drain like = {.uid = uid};
  memcpy(like.incarnation, incarnation, strnlen(incarnation, INCARNATION_MAX));
  return like;
}

void jobs_drop_drains(struct jobs *jobs, int64_t uid, const char *incarnation) {
  struct drain like = like_of(uid, incarnation);
  if (jobs->n_drains && incarnation[0]) remove_drains(jobs, NULL, &like, false);
}

void job_move_drains(struct job *j) {
  struct drain like = like_of(j->uid, j->formers[0]);
  for (struct map_entry *e = NULL; (e = map_next(&j->jobs->drains, e));)
    for (struct drain *d = e->value; d; d = d->next) {
      if (!like.incarnation[0] || !is_same(d, &like)) continue;
      jobs_save(j->jobs, drain_to_json(d, false));
      memcpy(d->incarnation, j->incarnation, sizeof d->incarnation);
      jobs_save(j->jobs, drain_to_json(d, true));
    }
}

struct drain job_own_drain(const struct job *j, const char *host, const char *by) {
  struct drain d = {
      .host = (char *)(uintptr_t)host, .uid = j->uid, .wall_ms = j->jobs->wall_ms, .by = (char *)(uintptr_t)by};
  memcpy(d.incarnation, j->incarnation, sizeof d.incarnation);
  return d;
}

bool job_may_exclude(const struct job *j, const char *host) {
  return job_could_go_on_without(j, host) && j->jobs->n_drains < JOB_DRAINS_SHARED_MAX &&
         (!j->account || jobs_drains_of(j->jobs, j->uid) < JOB_DRAINS_USER_MAX);
}

bool job_exclude(struct job *j, const char *host, const char *by) {
  if (job_drain_of(j, host)) return true;
  struct drain d = job_own_drain(j, host, by);
  bool can = job_may_exclude(j, host);
  if (can) {
    jobs_save(j->jobs, drain_to_json(keep_drain(j->jobs, &d), true));
    flag_members(j);
  }
  jobs_log(j->jobs, LOG_WARN,
           can ? "job %s: host %s is excluded: %s"
               : "job %s: host %s would be excluded, but the job cannot go on without it: %s",
           j->log_name, host, by);
  return can;
}

static const struct drain *find_own(const struct job *j, const char *by) {
  for (struct map_entry *e = NULL; (e = map_next(&j->jobs->drains, e));)
    for (const struct drain *d = e->value; d; d = d->next)
      if (d->incarnation[0] && drain_holds(d, j) && !strcmp(d->by, by)) return d;
  return NULL;
}

bool job_readmit(struct job *j, const char *by) {
  struct drain like = like_of(j->uid, j->incarnation);
  const struct drain *d = find_own(j, by);
  if (!d) return false;
  for (; d; d = find_own(j, by)) {
    struct buf host = BUF_INIT; /* remove_drains frees d's */
    buf_puts(&host, d->host);
    remove_drains(j->jobs, buf_text(&host), &like, true);
    buf_finish(&host);
  }
  flag_members(j);
  return true;
}

/* One failure excludes at most one host. */
const char *job_note_failure(struct job *j, const char *host, uint64_t now_ms) {
  if (!host[0] || (!map_get(&j->failures, host) && j->failures.count >= JOB_FAILING_HOSTS_MAX)) return "";
  intptr_t n = (intptr_t)map_get(&j->failures, host) + 1;
  map_put(&j->failures, host, (void *)n);
  if (!j->settings.exclude_after || n < j->settings.exclude_after || job_drain_of(j, host)) return "";
  struct buf by = BUF_INIT;
  buf_printf(&by, "the job itself: %lld charged failures there (--exclude-after %" PRId64 ")", (long long)n,
             j->settings.exclude_after);
  bool can = job_exclude(j, host, buf_text(&by));
  buf_finish(&by);
  return can ? host : "";
}

void drain_text(const struct drain *d, struct buf *out) {
  /* "host n2 is drained by root" */
  buf_puts(out, "host ");
  buf_put_escaped(out, d->host, strlen(d->host), HOST_MAX);
  buf_puts(out, " is drained by ");
  buf_puts(out, d->by);
  buf_puts(out, ": its agents join no round until `rdzvctl undrain ");
  buf_put_escaped(out, d->host, strlen(d->host), HOST_MAX);
  buf_puts(out, "`");
}

/* The state file. -------------------------------------------------------------------------------------------------- */

bool jobs_load_drain(struct jobs *jobs, const void *json) {
  const json_t *o = json;
  const char *event = json_read_text(o, "event", 8), *host = json_read_text(o, "host", HOST_MAX);
  const char *by = json_string_value(json_object_get(o, "by")),
             *life = json_string_value(json_object_get(o, "incarnation"));
  int64_t wall_ms;
  struct drain d = {
      .host = (char *)(uintptr_t)host, .by = (char *)(uintptr_t)by, .force = json_is_true(json_object_get(o, "force"))};
  if (!host[0] || !life || strlen(life) > INCARNATION_MAX || !json_read_int(o, "uid", -1, INT64_MAX, &d.uid))
    return false;
  memcpy(d.incarnation, life, strlen(life));
  if (!strcmp(event, "undrain")) {
    remove_drains(jobs, host, &d, false);
    return true;
  }
  if (!by || strlen(by) > TEXT_MAX || !json_read_int(o, "wall_ms", 0, INT64_MAX, &wall_ms) ||
      jobs->n_drains >= JOB_DRAINS_MAX)
    return false;
  d.wall_ms = (uint64_t)wall_ms;
  keep_drain(jobs, &d);
  return true;
}

void jobs_drain_lines(const struct jobs *jobs, struct buf *out) {
  for (struct map_entry *e = NULL; (e = map_next(&jobs->drains, e));)
    for (const struct drain *d = e->value; d; d = d->next) {
      json_put(out, drain_to_json(d, true));
      buf_putc(out, '\n');
    }
}
