/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics of the daemon, for Prometheus.
 *
 * A counter never goes back, because Prometheus would count all of it again. One value does go back: productive time
 * becomes lost when a later round does the work again. So this counter stands still until it is made up for, and
 * `lost` grows at once. A daemon that comes back continues the times of its jobs, because their nodes know them.
 *
 * A job that has ended stays as long as status shows it, so that the last values are scraped. A job that runs under the
 * id of such a one takes its place: two series of the same labels would spoil the scrape. */

#include "daemon/core/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/printable.h"
#include "daemon/core/internal.h"
#include "daemon/goodput/recovery_times.h"
#include "daemon/job/goodput.h"
#include "daemon/job/health.h"

#define M(NAME, name, type, labels, meaning) METRIC_##NAME,
enum metric { METRIC_LIST(M) METRIC_COUNT };
#undef M
enum { OF_JOBS = METRIC_RECOVERY }; /* the metrics before are of one job each */

#define N(NAME, word, meaning) word,
static const char *const node_states[] = {NODE_STATE_LIST(N)};
#undef N
#define X(NAME, name) #name,
static const char *const buckets[] = {BUCKET_LIST(X)};
#undef X

static const struct {
  const char *name, *type, *meaning;
} metrics[] = {
#define M(NAME, name, type, labels, meaning) {#name, #type, meaning},
    METRIC_LIST(M)
#undef M
};

/* A job that the asker may see. */
struct row {
  struct job *job;
  struct buf labels; /* job="x",uid="1000" */
  int64_t nodes[NODE_STATE_COUNT], bucket_ms[BUCKET_COUNT];
  struct job_progress progress;
};

/* A value in quotes, as the format has it. A scraper refuses what is not UTF-8. */
static void put_value(struct buf *out, const char *s) {
  uint32_t cp;
  for (size_t n = strlen(s), used; n > 0; s += used, n -= used) {
    used = utf8_char((const unsigned char *)s, n, &cp);
    if (!used) {
      buf_puts(out, "\xef\xbf\xbd"); /* U+FFFD */
      used = 1;
    } else if (*s == '\n') {
      buf_puts(out, "\\n");
    } else {
      if (*s == '"' || *s == '\\') buf_putc(out, '\\');
      buf_append(out, s, used);
    }
  }
}

const char *node_state_name(enum node_state s) {
  return s < NODE_STATE_COUNT ? node_states[s] : "?";
}

enum node_state node_state(const struct job *j, const struct member *m) {
  if (j->state == JOB_ENDING) return m->end_acked || m->gone ? NODE_STATE_COUNT : NODE_ENDING;
  if (!m->conn) return m->gone ? NODE_FINISHED : NODE_AWAY;
  switch (m->state) {
  case MEMBER_WAITING:
    if (m->next.drained) return NODE_DRAINED;
    if (member_is_spared(m, j->jobs->now_ms)) return NODE_HELD;
    return j->state == JOB_FORMING || j->state == JOB_RECOVERING ? NODE_WAITING : NODE_SPARE;
  case MEMBER_TOLD: return NODE_STARTING;
  case MEMBER_STARTED:
    if (j->state == JOB_CHECKPOINTING) return NODE_CHECKPOINTING;
    return j->state == JOB_STOPPING ? NODE_STOPPING : NODE_RUNNING;
  case MEMBER_FINISHED: return NODE_FINISHED;
  case MEMBER_STOPPED: return NODE_STOPPED;
  case MEMBER_STATE_COUNT: break;
  }
  return NODE_STATE_COUNT;
}

static void fill_row(struct row *r, struct job *j, uint64_t now_ms) {
  *r = (struct row){.job = j};
  buf_puts(&r->labels, "job=\"");
  put_value(&r->labels, j->id);
  buf_printf(&r->labels, "\",uid=\"%lld\"", (long long)j->uid);
  for (size_t i = 0; j->state != JOB_ENDED && i < j->n_members; i++) {
    enum node_state state = node_state(j, j->members[i]);
    if (state != NODE_STATE_COUNT) r->nodes[state]++;
  }
  r->nodes[NODE_MISSING] = job_missing_nodes(j);
  /* The buckets, none of which goes back. */
  struct goodput g;
  job_goodput(j, now_ms, &g);
#define X(NAME, name) r->bucket_ms[BUCKET_##NAME] = g.name##_ms;
  BUCKET_LIST(X)
#undef X
  if (g.productive_ms > j->shown_productive_ms) j->shown_productive_ms = g.productive_ms;
  r->bucket_ms[BUCKET_PRODUCTIVE] = j->shown_productive_ms;
  if (j->state == JOB_ENDED)
    r->progress = (struct job_progress){.step = -1, .left_ms = -1, .judgement = JUDGEMENT_COUNT};
  else
    job_progress(j, now_ms, &r->progress);
}

/* Text. ------------------------------------------------------------------------------------------------------------ */

static void put_head(struct buf *out, int metric) {
  buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", metrics[metric].name, metrics[metric].meaning, metrics[metric].name,
             metrics[metric].type);
}

/* The beginning of a line of this job. One more label may follow, whose value needs no escapes. */
static void put_series(struct buf *out, enum metric metric, const struct row *r, const char *label, const char *value) {
  buf_printf(out, "%s{%s", metrics[metric].name, buf_text(&r->labels));
  if (label) buf_printf(out, ",%s=\"%s\"", label, value);
  buf_puts(out, "} ");
}

static void put_seconds(struct buf *out, uint64_t ms) {
  buf_printf(out, "%llu.%03u\n", (unsigned long long)(ms / 1000), (unsigned)(ms % 1000));
}

static void put_number(struct buf *out, enum metric metric, const struct row *r, const char *label, const char *value,
                       int64_t v) {
  put_series(out, metric, r, label, value);
  buf_printf(out, "%lld\n", (long long)v);
}

/* One series for each fact of a host, with the number of its places. */
static void put_odd(struct buf *out, const struct row *r) {
  const struct findings *all = job_findings(r->job);
  size_t n_series = 0;
  for (struct map_entry *e = NULL; all && (e = map_next(&all->hosts, e));) {
    size_t n[FACT_COUNT] = {0};
    enum fact_class class[FACT_COUNT] = {FACT_FINE};
    for (const struct finding *v = ((const struct odd_host *)e->value)->first; v; v = v->next) {
      n[v->fact] += v->present;
      if (v->present && v->class > class[v->fact]) class[v->fact] = v->class;
    }
    for (int id = 0; id < FACT_COUNT; id++) {
      if (!n[id] || n_series++ >= ODD_SERIES_MAX) continue;
      put_series(out, METRIC_ODD, r, "fact", fact_kinds[id].name);
      out->len -= 2; /* "} " */
      buf_printf(out, ",class=\"%s\",host=\"", fact_class_name(class[id]));
      put_value(out, e->key);
      buf_printf(out, "\"} %zu\n", n[id]);
    }
  }
}

static void put_row(struct buf *out, enum metric metric, const struct row *r) {
  const struct job *j = r->job;
  const struct job_progress *p = &r->progress;
  switch (metric) {
  case METRIC_JOB_INFO:
    put_series(out, metric, r, "incarnation", j->incarnation);
    out->len -= 2; /* "} " */
    buf_printf(out, ",min_nodes=\"%lld\",max_nodes=\"%lld\",max_restarts=\"%lld\"} 1\n",
               (long long)j->settings.min_nodes, (long long)j->settings.max_nodes, (long long)j->settings.max_restarts);
    break;
  case METRIC_JOB_STATE: put_number(out, metric, r, "state", job_state_name(j->state), 1); break;
  case METRIC_ROUND: put_number(out, metric, r, NULL, NULL, j->round); break;
  case METRIC_NODES:
    for (int i = 0; i < NODE_STATE_COUNT; i++)
      if (r->nodes[i]) put_number(out, metric, r, "state", node_states[i], r->nodes[i]);
    break;
  case METRIC_FAILURES:
    for (int i = 0; i < CAUSE_COUNT; i++) {
      int64_t n = (int64_t)job_failures(j, (enum cause)i);
      if (n) put_number(out, metric, r, "cause", cause_name((enum cause)i), n);
    }
    break;
  case METRIC_RESTARTS: put_number(out, metric, r, NULL, NULL, (int64_t)job_restarts(j)); break;
  case METRIC_JOB_SECONDS:
    for (int i = 0; i < BUCKET_COUNT; i++) {
      put_series(out, metric, r, "bucket", buckets[i]);
      put_seconds(out, (uint64_t)r->bucket_ms[i]);
    }
    break;
  case METRIC_STEP:
    if (p->step >= 0) put_number(out, metric, r, NULL, NULL, p->step);
    break;
  case METRIC_SAMPLES:
    if (!p->has_speed) break;
    put_series(out, metric, r, NULL, NULL);
    buf_printf(out, "%.9g\n", p->samples_per_second);
    break;
  case METRIC_PROGRESS_AGE:
    if (p->judgement == JUDGEMENT_COUNT) break;
    put_series(out, metric, r, NULL, NULL);
    put_seconds(out, p->age_ms);
    break;
  case METRIC_PROGRESS:
    if (p->judgement != JUDGEMENT_COUNT) put_number(out, metric, r, "judgement", judgement_name(p->judgement), 1);
    break;
  case METRIC_LEFT:
    if (p->left_ms < 0) break;
    put_series(out, metric, r, NULL, NULL);
    put_seconds(out, (uint64_t)p->left_ms);
    break;
  case METRIC_ODD: put_odd(out, r); break;
  case METRIC_SLOW_RANKS: {
    size_t found;
    job_slow_ranks(j, &found);
    if (j->slow) put_number(out, metric, r, NULL, NULL, (int64_t)found);
    break;
  }
  case METRIC_SLOW_COST:
    if (!j->slow) break;
    put_series(out, metric, r, NULL, NULL);
    buf_printf(out, "%.3f\n", (double)job_slow_permille(j) / 1000);
    break;
  default: break;
  }
}

static void put_of_daemon(struct buf *out, enum metric metric, double v) {
  if (v < 0) return;
  put_head(out, metric);
  buf_printf(out, "%s %.15g\n", metrics[metric].name, v);
}

void metrics_put(struct core *c, int64_t uid, const struct process_facts *process, uint64_t now_ms, struct buf *out) {
  const struct jobs *jobs = &c->jobs;
  struct row *rows = xcalloc(jobs->n_all + 1, sizeof *rows);
  size_t n = 0;
  c->jobs.now_ms = now_ms;
  for (size_t i = 0; i < jobs->n_all; i++) {
    struct job *j = jobs->all[i];
    if (control_may(c, uid, j) && jobs_find(jobs, j->uid, j->id) == j) fill_row(&rows[n++], j, now_ms);
  }
  for (int metric = 0; metric < OF_JOBS; metric++) {
    put_head(out, metric);
    for (size_t i = 0; i < n; i++) put_row(out, (enum metric)metric, &rows[i]);
  }
  for (size_t i = 0; i < n; i++) buf_finish(&rows[i].labels);
  free(rows);
  if (control_may(c, uid, NULL)) {
    put_head(out, METRIC_RECOVERY);
    for (int i = 0; i < RECOVERY_PHASE_COUNT; i++) {
      const struct recovery_histogram *h = &c->jobs.recovery[i];
      const char *phase = recovery_phase_name((enum recovery_phase)i);
      uint64_t sum = 0;
      for (int b = 0; b < RECOVERY_BUCKETS; b++) {
        sum += h->bucket[b];
        buf_printf(out, "rdzv_recovery_seconds_bucket{phase=\"%s\",le=\"", phase);
        if (recovery_bounds_ms[b] == UINT64_MAX)
          buf_puts(out, "+Inf");
        else
          buf_printf(out, "%g", (double)recovery_bounds_ms[b] / 1000);
        buf_printf(out, "\"} %llu\n", (unsigned long long)sum);
      }
      buf_printf(out, "rdzv_recovery_seconds_sum{phase=\"%s\"} ", phase);
      put_seconds(out, h->sum_ms);
      buf_printf(out, "rdzv_recovery_seconds_count{phase=\"%s\"} %llu\n", phase, (unsigned long long)h->count);
    }
  }
  put_of_daemon(out, METRIC_EXCLUDED, (double)hosts_excluded(c, uid));
  put_of_daemon(out, METRIC_CPU, process->cpu_s);
  put_of_daemon(out, METRIC_RESIDENT, (double)process->resident_bytes);
  put_of_daemon(out, METRIC_VIRTUAL, (double)process->virtual_bytes);
  put_of_daemon(out, METRIC_STARTED, process->started_wall_s);
  put_of_daemon(out, METRIC_OPEN_FDS, (double)process->open_fds);
  put_of_daemon(out, METRIC_MAX_FDS, (double)process->max_fds);
}
