/* Hosts that take no part: rdzvctl drain, --exclude-after.
 *
 * A drain is of a host, because that is what an operator wants to take away or a fault stays with; agents on it have another
 * id each time they are started. Its nodes stay connected, so that they are there when it is lifted, know why they wait, and
 * hear how the job ends; they are counted as not available, which is all that keeps them from the next round.
 *
 * A round that they are in is ended as planned (rdzv_prepare.c): workers may write a checkpoint first, nothing is charged, and the next one
 * takes in a spare at once where there is one. A round is not ended where the job could not go on without them (fewer than min others), nor
 * where nodes of it have finished and would have to begin again (unless --after-finish restart wants just that): drain --force does it all
 * the same.
 *
 * Whose jobs it holds for: all, where root or the daemon's user has drained the host; those of one user, where that user
 * has; one life of one job, where the job has done it by itself, because N of its charged failures were there (--exclude-after N).
 * So no user can keep a host from another. Several may hold for one host; each is lifted by who may lift it.
 *
 * Drains are kept in the state file, a line when they begin and one when they are lifted. They are few, and looked up when a node
 * joins or a drain changes, never per message: a member carries a flag. */

#include "daemon/job/drain.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"
#include "daemon/core/internal.h"

/* The list. -------------------------------------------------------------------------------------------------------- */

static void free_drain(struct drain *d) {
  free(d->host);
  free(d->by);
  free(d);
}

const struct drain *core_first_drain(const struct core *c, const char *host) {
  return map_get(&c->drains, host);
}

bool drain_holds(const struct drain *d, const struct job *j) {
  if (d->incarnation[0]) return !strcmp(d->incarnation, j->incarnation);
  return d->uid < 0 || d->uid == j->uid;
}

const struct drain *job_drain_of(const struct job *j, const char *host) {
  for (const struct drain *d = core_first_drain(j->core, host); d; d = d->next)
    if (drain_holds(d, j)) return d;
  return NULL;
}

static struct drain *find_same(const struct core *c, const struct drain *like) {
  for (struct drain *d = map_get(&c->drains, like->host); d; d = d->next)
    if (d->uid == like->uid && !strcmp(d->incarnation, like->incarnation)) return d;
  return NULL;
}

static void save(struct core *c, const struct drain *d, bool begins) {
  struct buf line = BUF_INIT;
  drain_state_line(d, begins, &line);
  core_save(c, &line);
  buf_finish(&line);
}

static struct drain *keep(struct core *c, const struct drain *like) {
  struct drain *d = find_same(c, like);
  if (d) {
    d->force = d->force || like->force;
    return d;
  }
  d = xmemdup(like, sizeof *like);
  d->host = xstrdup(like->host);
  d->by = xstrdup(like->by);
  d->next = map_get(&c->drains, d->host);
  map_put(&c->drains, d->host, d);
  c->n_drains++;
  return d;
}

/* Those of `host` (NULL: of every host) that `like` says: its uid, its life of a job; all: of whatever kind. */
static size_t take_away(struct core *c, const char *host, bool (*fits)(const struct drain *, const void *),
                        const void *ctx, bool tell) {
  size_t n = 0;
  for (struct map_entry *e = NULL; (e = map_next(&c->drains, e));) {
    if (host && strcmp(e->key, host) != 0) continue;
    struct drain *first = e->value;
    for (struct drain **at = &first; *at;) {
      struct drain *d = *at;
      if (!fits(d, ctx)) {
        at = &d->next;
        continue;
      }
      *at = d->next;
      if (tell) save(c, d, false);
      free_drain(d);
      c->n_drains--;
      n++;
    }
    if (first)
      e->value = first;
    else
      map_remove_n(&c->drains, e->key, e->key_len);
  }
  return n;
}

static bool is_any(const struct drain *d, const void *ctx) {
  return true;
}

static bool is_same(const struct drain *d, const void *ctx) {
  const struct drain *like = ctx;
  return d->uid == like->uid && !strcmp(d->incarnation, like->incarnation);
}

static bool is_of_life(const struct drain *d, const void *ctx) {
  return d->incarnation[0] && !strcmp(d->incarnation, ctx);
}

void core_finish_drains(struct core *c) {
  take_away(c, NULL, is_any, NULL, false);
  map_finish(&c->drains);
}

/* What happens to jobs. -------------------------------------------------------------------------------------------- */

/* "host n2 is drained by root" */
static void say_why(const struct drain *d, struct buf *out) {
  buf_puts(out, "host ");
  buf_put_escaped(out, d->host, strlen(d->host), HOST_MAX);
  buf_puts(out, " is drained by ");
  buf_puts(out, d->by);
}

size_t job_nodes_without(const struct job *j, const char *host) {
  size_t n = 0;
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    if (m->conn && !m->leaving && !m->drained && strcmp(m->host, host) != 0) n++;
  }
  return n;
}

bool job_could_go_on_without(const struct job *j, const char *host) {
  return job_nodes_without(j, host) >= (size_t)j->settings.min_nodes;
}

static bool works(const struct member *m) {
  return member_in_round(m) && (m->state == MEMBER_TOLD || m->state == MEMBER_STARTED);
}

bool job_works_on(const struct job *j, const char *host) {
  for (size_t i = 0; i < j->n_members; i++)
    if (works(j->members[i]) && !strcmp(j->members[i]->host, host)) return true;
  return false;
}

bool job_has_finished_ones(const struct job *j) {
  return j->n_in_state[MEMBER_FINISHED] > 0 && j->settings.after_finish != AFTER_FINISH_RESTART;
}

static bool may_end_for(const struct job *j, const struct drain *d) {
  return d->force || (job_could_go_on_without(j, d->host) && !job_has_finished_ones(j));
}

static void end_round_for(struct job *j, const struct member *m, const struct drain *d, uint64_t now_ms) {
  job_offer_node_cause(j, m, CAUSE_NODE_DRAINED, EXIT_CODE_NODE_LOST, d->by, now_ms);
  job_prepare(j, now_ms);
}

/* Of the nodes at work one that is drained, and for which the round may be ended, or not; NULL: there is none. */
static const struct member *find_drained(const struct job *j, bool may_end) {
  for (size_t i = 0; i < j->n_members; i++) {
    const struct member *m = j->members[i];
    const struct drain *d = m->drained && works(m) ? job_drain_of(j, m->host) : NULL;
    if (d && may_end_for(j, d) == may_end) return m;
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
    end_round_for(j, m, job_drain_of(j, m->host), now_ms);
    return;
  }
  if ((m = find_drained(j, false)))
    core_log(j->core, LOG_WARN, "job %s: node %s is drained, and round %lld cannot do without it: it goes on",
             j->id, m->host, (long long)j->round);
}

static bool flag_members(struct job *j) {
  bool changed = false;
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    bool drained = job_drain_of(j, m->host) != NULL;
    if (drained == m->drained) continue;
    changed = true;
    m->told_news = UINT64_MAX;
    member_set_drained(m, drained);
    if (!drained && !member_in_round(m) && j->state != JOB_RECOVERING) member_keep_rank(m, -1);
  }
  job_watch_drains(j);
  return changed;
}

/* Those who wait and whose lot has changed. */
static void tell_changed(struct job *j, uint64_t now_ms) {
  for (size_t i = 0; i < j->n_members; i++) {
    struct member *m = j->members[i];
    if (m->told_news == UINT64_MAX && !member_in_round(m)) job_send_waiting(j, m, now_ms);
  }
}

void job_apply_drains(struct job *j, uint64_t now_ms) {
  if (job_is_over(j)) return;
  bool changed = flag_members(j);
  if (changed && j->state == JOB_FORMING) {
    j->news++;
    if (job_ready_to_seal(j, now_ms)) {
      job_seal(j, now_ms);
      return;
    }
    if (j->notice_ms > now_ms + CORE_NOTICE_MS) j->notice_ms = now_ms + CORE_NOTICE_MS;
  }
  if (changed) job_watch_growth(j, now_ms);
  if (changed) tell_changed(j, now_ms);
  job_end_for_drains(j, now_ms);
}

static void apply(struct core *c, uint64_t now_ms) {
  for (size_t i = 0; i < c->n_all; i++) job_apply_drains(c->all[i], now_ms);
}

bool core_drain(struct core *c, const struct drain *like, uint64_t now_ms) {
  if (!find_same(c, like) && c->n_drains >= (like->uid < 0 ? CORE_DRAINS_MAX : CORE_DRAINS_SHARED_MAX))
    return false;
  save(c, keep(c, like), true);
  apply(c, now_ms);
  return true;
}

size_t core_undrain(struct core *c, const char *host, const struct drain *like, uint64_t now_ms) {
  size_t n = like ? take_away(c, host, is_same, like, true) : take_away(c, host, is_any, NULL, true);
  for (size_t i = 0; n && i < c->n_all; i++) /* as if nothing had failed there */
    if (!like || drain_holds(like, c->all[i])) job_forget_failures(c->all[i], host);
  if (n) apply(c, now_ms);
  return n;
}

void core_drop_drains(struct core *c, const char *incarnation) {
  if (c->n_drains) take_away(c, NULL, is_of_life, incarnation, false);
}

void job_drop_drains(struct job *j) {
  core_drop_drains(j->core, j->incarnation);
}

void job_take_drains_along(struct job *j) {
  for (struct map_entry *e = NULL; (e = map_next(&j->core->drains, e));)
    for (struct drain *d = e->value; d; d = d->next) {
      if (!is_of_life(d, j->former)) continue;
      save(j->core, d, false);
      memcpy(d->incarnation, j->incarnation, sizeof d->incarnation);
      save(j->core, d, true);
    }
}

/* --exclude-after. ------------------------------------------------------------------------------------------------- */

void job_forget_failures(struct job *j, const char *host) {
  map_remove(&j->failures, host);
}

/* At most one host by one failure. */
const char *job_note_failure(struct job *j, const char *host, uint64_t now_ms) {
  if (!host[0] || (!map_get(&j->failures, host) && j->failures.count >= CORE_FAILING_HOSTS_MAX)) return "";
  intptr_t n = (intptr_t)map_get(&j->failures, host) + 1;
  map_put(&j->failures, host, (void *)n);
  if (!j->settings.exclude_after || n < j->settings.exclude_after || job_drain_of(j, host)) return "";
  struct buf by = BUF_INIT;
  buf_printf(&by, "the job itself: %lld charged failures there (--exclude-after %" PRId64 ")", (long long)n,
             j->settings.exclude_after);
  struct drain d = {.host = (char *)(uintptr_t)host, .uid = -1, .wall_ms = j->core->wall_ms, .by = by.data};
  memcpy(d.incarnation, j->incarnation, sizeof d.incarnation);
  bool can = job_could_go_on_without(j, host) && j->core->n_drains < CORE_DRAINS_SHARED_MAX;
  if (can) save(j->core, keep(j->core, &d), true);
  if (can) flag_members(j);
  core_log(j->core, LOG_WARN,
           can ? "job %s: host %s takes no part any more: %s"
               : "job %s: host %s would take no part any more, but the job cannot go on without it: %s",
           j->id, host, buf_text(&by));
  buf_finish(&by);
  return can ? host : "";
}

/* For people. ------------------------------------------------------------------------------------------------------ */

void drain_text(const struct drain *d, struct buf *out) {
  say_why(d, out);
  buf_puts(out, ": its agents take no part until `rdzvctl undrain ");
  buf_put_escaped(out, d->host, strlen(d->host), HOST_MAX);
  buf_puts(out, "`");
}

/* The state file. -------------------------------------------------------------------------------------------------- */

void drain_state_line(const struct drain *d, bool begins, struct buf *out) {
  json_t *v = json_pack("{s:s,s:s,s:I,s:s}", "event", begins ? "drain" : "undrain", "host", d->host, "uid",
                        (json_int_t)d->uid, "incarnation", d->incarnation);
  if (begins) {
    json_object_set_new(v, "by", json_string(d->by));
    json_object_set_new(v, "wall_ms", json_integer((json_int_t)d->wall_ms));
    if (d->force) json_object_set_new(v, "force", json_true());
  }
  json_print(out, v);
  json_decref(v);
}

bool core_load_drain(struct core *c, const void *json) {
  const json_t *o = json;
  const char *event = json_string_value(json_object_get(o, "event")),
             *host = json_string_value(json_object_get(o, "host"));
  const char *by = json_string_value(json_object_get(o, "by")),
             *life = json_string_value(json_object_get(o, "incarnation"));
  const json_t *uid = json_object_get(o, "uid"), *wall_ms = json_object_get(o, "wall_ms");
  if (!host || !host[0] || strlen(host) > HOST_MAX || !life || strlen(life) > INCARNATION_MAX ||
      !json_is_integer(uid) || json_integer_value(uid) < -1)
    return false;
  struct drain d = {.host = (char *)(uintptr_t)host,
                    .by = (char *)(uintptr_t)by,
                    .uid = json_integer_value(uid),
                    .force = json_is_true(json_object_get(o, "force"))};
  memcpy(d.incarnation, life, strlen(life));
  if (!strcmp(event, "undrain")) {
    take_away(c, host, is_same, &d, false);
    return true;
  }
  if (!by || strlen(by) > TEXT_MAX || !json_is_integer(wall_ms) || json_integer_value(wall_ms) < 0 ||
      c->n_drains >= CORE_DRAINS_MAX)
    return false;
  d.wall_ms = (uint64_t)json_integer_value(wall_ms);
  keep(c, &d);
  return true;
}

void core_drain_lines(const struct core *c, struct buf *out) {
  for (struct map_entry *e = NULL; (e = map_next(&c->drains, e));)
    for (const struct drain *d = e->value; d; d = d->next) {
      drain_state_line(d, true, out);
      buf_putc(out, '\n');
    }
}
