/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes say about their hardware: who is told that a host is odd, and which hosts are used no further.
 *
 * daemon/health compares the nodes. It looks at all of them at once, so facts that come are left to lie for LOOK_MS, and
 * longer the more there are. At the start of a job the facts of all nodes come within a second, and one look has them
 * all.
 *
 * A finding is one line on all agents of the job. A bad host is drained for this incarnation of the job, if the job can
 * go on without it: its nodes become spares, and a round that uses them ends as planned (drain.c). Otherwise it stays,
 * and each later look asks again. The drain is lifted when its facts have been good for long enough, the first time at
 * once, or by rdzvctl undrain.
 *
 * Nothing of it is on disk. A daemon that comes back, or takes the job over, learns the facts from the agents. The
 * agents have logged the findings already, so those of the first minutes are not sent again. */

#include "daemon/job/health.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/job/internal.h"

enum {
  LOOK_MS = 1000,          /* from the first facts to the look */
  LOOK_FACTS_PER_MS = 200, /* so a look takes a few thousandths of the time */
  LOOK_AGAIN_MS = 30000,   /* while something waits for time to pass */
  QUIET_MS = 60000,        /* after the nodes have come back to a daemon */
  LINES_MAX = 8,           /* of one look */
  PLACES_MAX = 8,          /* named in one line */
};

/* How a drain begins that is ours. */
#define BY_HEALTH "health ("

struct job_health {
  struct fleet *fleet;
  struct findings findings;
  uint64_t look_ms;  /* the next look; UINT64_MAX: nothing is new */
  uint64_t quiet_ms; /* until then findings are not told */
};

static struct job_health *health_of(struct job *j) {
  if (!j->health) {
    j->health = xcalloc(1, sizeof *j->health);
    j->health->fleet = fleet_create(j->jobs->random_state[0]);
    findings_init(&j->health->findings, j->jobs->random_state[0]);
    j->health->look_ms = UINT64_MAX;
  }
  return j->health;
}

void job_take_facts(struct member *m, const struct facts *said, uint64_t now_ms) {
  struct job *j = m->job;
  if (job_is_over(j)) return;
  if (m->account && m->account->n_facts + said->n_facts > ACCOUNT_FACTS_MAX) return;
  struct job_health *h = health_of(j);
  if (!m->facts) m->facts = fleet_add(h->fleet, m, m->role, m->host);
  size_t before = fleet_size(m->facts);
  fleet_take(h->fleet, m->facts, said, now_ms, j->jobs->wall_ms);
  if (m->account) m->account->n_facts += fleet_size(m->facts) - before;
  uint64_t look_ms = now_ms + LOOK_MS + fleet_facts(h->fleet) / LOOK_FACTS_PER_MS;
  if (look_ms < h->look_ms) h->look_ms = look_ms;
}

void job_health_forget(struct member *m) {
  if (!m->facts) return;
  fleet_remove(m->job->health->fleet, m->facts);
  m->facts = NULL;
}

void job_health_destroy(struct job *j) {
  if (!j->health) return;
  fleet_destroy(j->health->fleet);
  findings_finish(&j->health->findings);
  free(j->health);
}

void job_health_recover(struct job *j, uint64_t now_ms) {
  health_of(j)->quiet_ms = now_ms + lease_ms(j) + QUIET_MS;
}

const struct findings *job_findings(const struct job *j) {
  return j->health ? &j->health->findings : NULL;
}

const struct odd_host *job_odd_host(const struct job *j, const char *host) {
  return j->health ? map_get(&j->health->findings.hosts, host) : NULL;
}

size_t job_count_odd(const struct job *j) {
  size_t n = 0;
  for (struct map_entry *e = NULL; j->health && (e = map_next(&j->health->findings.hosts, e));)
    for (const struct finding *v = ((const struct odd_host *)e->value)->first; v; v = v->next) n += v->present;
  return n;
}

/* Drains of bad hosts. --------------------------------------------------------------------------------------------- */

static const struct drain *find_own_drain(const struct job *j, const char *host) {
  for (const struct drain *d = jobs_first_drain(j->jobs, host); d; d = d->next)
    if (d->incarnation[0] && drain_holds(d, j) && !strncmp(d->by, BY_HEALTH, strlen(BY_HEALTH))) return d;
  return NULL;
}

/* If the host is good again: it must stay so for as long as the last drain of it asked for. True: that time is not over. */
static bool lift_if_good(struct job *j, const char *host, struct odd_host *o, uint64_t now_ms) {
  const struct drain *d = o->bad || !o->is_here ? NULL : find_own_drain(j, host);
  if (!d) return false;
  if (now_ms < o->good_ms + o->pause_ms) return true;
  struct drain like = *d;
  o->pause_ms = o->pause_ms ? 2 * o->pause_ms : FINDING_PAUSE_MS;
  if (o->pause_ms > FINDING_PAUSE_MAX_MS) o->pause_ms = FINDING_PAUSE_MAX_MS;
  job_notice(j, "node %s is good again, and may join rounds", host);
  jobs_undrain(j->jobs, host, &like, now_ms);
  return false;
}

/* Lines. ----------------------------------------------------------------------------------------------------------- */

struct lines {
  size_t n, left_out;
  bool quiet;
};

static void tell(struct job *j, const char *host, struct finding *f, const char *end, struct lines *lines) {
  struct buf line = BUF_INIT;
  /* Findings of one host that differ only in their place are one line. `f` is due, and so are those. */
  size_t more = 0, places = 1;
  buf_printf(&line, "node %s: %s", host, f->sentence);
  for (struct finding *v = f->next; v; v = v->next) {
    if (v->fact != f->fact || strcmp(v->value, f->value) != 0 || strcmp(v->usual, f->usual) != 0) continue;
    if (!finding_is_due(v, j->jobs->now_ms)) continue;
    if (places == PLACES_MAX)
      more++;
    else
      buf_printf(&line, "%s%s", places++ == 1 ? "; the same at " : ", ", v->at);
  }
  if (more) buf_printf(&line, " and %zu more", more);
  buf_puts(&line, end);
  if (lines->quiet)
    job_log(j, LOG_INFO, "%s", buf_text(&line));
  else if (lines->n++ < LINES_MAX)
    job_announce_odd(j, host, f, buf_text(&line));
  else
    lines->left_out++;
  buf_finish(&line);
}

/* The look. -------------------------------------------------------------------------------------------------------- */

static void on_odd(void *arg, const struct deviation *d) {
  struct job *j = arg;
  const struct member *m = d->owner;
  findings_note(&j->health->findings, m->host, d, j->jobs->now_ms, j->jobs->wall_ms);
}

/* What is found there is named, with what follows from it; then that happens. */
static void judge_host(struct job *j, const char *host, struct odd_host *o, struct lines *lines) {
  uint64_t now_ms = j->jobs->now_ms;
  struct finding *reason = odd_host_reason(o);
  bool drains = reason && job_may_exclude(j, host) && !job_drain_of(j, host);
  if (reason && (finding_is_due(reason, now_ms) || drains))
    tell(j, host, reason,
         job_drain_of(j, host) ? ", and it is drained already"
         : drains              ? ": it becomes a spare"
                               : ": the job cannot go on without it",
         lines);
  for (struct finding *v = o->first; v; v = v->next)
    if (finding_is_due(v, now_ms)) tell(j, host, v, v->class == FACT_SUSPECT ? " (suspect)" : "", lines);
  if (!drains) return;
  for (struct finding *v; (v = odd_host_reason(o));) v->acted = true;
  struct buf by = BUF_INIT;
  buf_printf(&by, BY_HEALTH "%s)", reason->sentence);
  struct drain d = job_own_drain(j, host, buf_text(&by));
  job_log(j, LOG_WARN, "host %s is excluded: %s", host, d.by);
  jobs_drain(j->jobs, &d, now_ms);
  buf_finish(&by);
}

uint64_t job_health_deadline(const struct job *j) {
  return j->health && !job_is_over(j) ? j->health->look_ms : UINT64_MAX;
}

void job_health_tick(struct job *j, uint64_t now_ms) {
  if (now_ms < job_health_deadline(j)) return;
  struct job_health *h = j->health;
  struct lines lines = {.quiet = now_ms < h->quiet_ms};
  h->look_ms = UINT64_MAX;
  findings_begin(&h->findings);
  for (size_t i = 0; h->findings.hosts.count && i < j->n_members; i++)
    if (j->members[i]->facts && !fleet_trouble(j->members[i]->facts)[0]) /* what it could not find out is as it was */
      findings_note_host(&h->findings, j->members[i]->host);
  fleet_look(h->fleet, now_ms, on_odd, j);
  findings_end(&h->findings, now_ms);
  bool waits = fleet_waits(h->fleet, now_ms);
  for (struct map_entry *e = NULL; (e = map_next(&h->findings.hosts, e));) {
    judge_host(j, e->key, e->value, &lines);
    waits |= lift_if_good(j, e->key, e->value, now_ms);
  }
  if (waits || findings_wait(&h->findings)) h->look_ms = now_ms + LOOK_AGAIN_MS;
  if (lines.left_out) job_notice(j, "%zu more findings about nodes: rdzvctl nodes %s", lines.left_out, j->id);
}
