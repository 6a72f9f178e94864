/* SPDX-License-Identifier: Apache-2.0 */
/* The metrics of the daemon, for Prometheus.
 *
 * A piece ends when its budget is used, wherever that is: between two jobs, between two lines. The place in the table of
 * jobs, which may change, is the serial of the last one. The table is sorted by it. A
 * row holds copies, so text is made of rows although their jobs may be gone.
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

struct row {
  struct row *next;
  char *labels; /* job="x",uid="1000" */
  char incarnation[INCARNATION_MAX + 1];
  int64_t min_nodes, max_nodes, max_restarts, round, restarts;
  enum job_state state;
  int64_t nodes[NODE_STATE_COUNT], failures[CAUSE_COUNT], bucket_ms[BUCKET_COUNT];
  struct job_progress progress;
};

struct metrics_walk {
  int64_t uid;
  struct process_facts process;
  size_t left; /* of the budget */
  /* The rows. */
  struct row *first, *last;
  uint64_t job; /* the serial of the last job that was looked at */
  /* The text. */
  bool rows_done;
  int metric;
  bool begun;           /* the metric has its head, and the lines of the rows up to */
  const struct row *at; /* NULL: none */
};

static bool spend(struct metrics_walk *w, size_t cost) {
  bool any = w->left > 0;
  w->left -= w->left < cost ? w->left : cost;
  return any;
}

/* Rows. ------------------------------------------------------------------------------------------------------------ */

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
    if (member_flapping_until(m, j->jobs->now_ms)) return NODE_HELD;
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

static struct row *make_row(struct job *j, uint64_t now_ms) {
  struct row *r = xcalloc(1, sizeof *r);
  struct buf labels = BUF_INIT;
  buf_puts(&labels, "job=\"");
  put_value(&labels, j->id);
  buf_printf(&labels, "\",uid=\"%lld\"", (long long)j->uid);
  r->labels = buf_steal(&labels);
  memcpy(r->incarnation, j->incarnation, sizeof r->incarnation);
  r->min_nodes = j->settings.min_nodes;
  r->max_nodes = j->settings.max_nodes;
  r->max_restarts = j->settings.max_restarts;
  r->state = j->state;
  r->round = j->round;
  r->restarts = (int64_t)job_restarts(j);
  for (size_t i = 0; j->state != JOB_ENDED && i < j->n_members; i++) {
    enum node_state state = node_state(j, j->members[i]);
    if (state != NODE_STATE_COUNT) r->nodes[state]++;
  }
  r->nodes[NODE_MISSING] = job_missing_nodes(j);
  for (int i = 0; i < CAUSE_COUNT; i++) r->failures[i] = (int64_t)job_failures(j, (enum cause)i);
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
  return r;
}

static void make_rows(struct metrics_walk *w, struct core *c, uint64_t now_ms) {
  const struct jobs *jobs = &c->jobs;
  for (size_t i = 0; i < jobs->n_all; i++) {
    struct job *j = jobs->all[i];
    if (j->serial <= w->job) continue;
    if (!spend(w, 2 * METRICS_LINE_COST + j->n_members)) return;
    w->job = j->serial;
    if (!control_may(c, w->uid, j) || jobs_find(jobs, j->uid, j->id) != j) continue;
    struct row *r = make_row(j, now_ms);
    if (w->last)
      w->last->next = r;
    else
      w->first = r;
    w->last = r;
  }
  w->rows_done = true;
}

/* Text. ------------------------------------------------------------------------------------------------------------ */

static void put_head(struct buf *out, int metric) {
  buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", metrics[metric].name, metrics[metric].meaning, metrics[metric].name,
             metrics[metric].type);
}

/* The beginning of a line of this job. One more label may follow, whose value needs no escapes. */
static void put_series(struct metrics_walk *w, struct buf *out, const struct row *r, const char *label,
                       const char *value) {
  spend(w, METRICS_LINE_COST);
  buf_puts(out, metrics[w->metric].name);
  buf_putc(out, '{');
  buf_puts(out, r->labels);
  if (label) {
    buf_putc(out, ',');
    buf_puts(out, label);
    buf_puts(out, "=\"");
    buf_puts(out, value);
    buf_putc(out, '"');
  }
  buf_puts(out, "} ");
}

static void put_seconds(struct buf *out, uint64_t ms) {
  buf_printf(out, "%llu.%03u\n", (unsigned long long)(ms / 1000), (unsigned)(ms % 1000));
}

static void put_number(struct metrics_walk *w, struct buf *out, const struct row *r, const char *label,
                       const char *value, int64_t v) {
  put_series(w, out, r, label, value);
  buf_printf(out, "%lld\n", (long long)v);
}

static void put_row(struct metrics_walk *w, struct buf *out, const struct row *r) {
  switch (w->metric) {
  case METRIC_JOB_INFO:
    put_series(w, out, r, "incarnation", r->incarnation);
    out->len -= 2; /* "} " */
    buf_printf(out, ",min_nodes=\"%lld\",max_nodes=\"%lld\",max_restarts=\"%lld\"} 1\n", (long long)r->min_nodes,
               (long long)r->max_nodes, (long long)r->max_restarts);
    break;
  case METRIC_JOB_STATE: put_number(w, out, r, "state", job_state_name(r->state), 1); break;
  case METRIC_ROUND: put_number(w, out, r, NULL, NULL, r->round); break;
  case METRIC_NODES:
    for (int i = 0; i < NODE_STATE_COUNT; i++)
      if (r->nodes[i]) put_number(w, out, r, "state", node_states[i], r->nodes[i]);
    break;
  case METRIC_FAILURES:
    for (int i = 0; i < CAUSE_COUNT; i++)
      if (r->failures[i]) put_number(w, out, r, "cause", cause_name((enum cause)i), r->failures[i]);
    break;
  case METRIC_RESTARTS: put_number(w, out, r, NULL, NULL, r->restarts); break;
  case METRIC_JOB_SECONDS:
    for (int i = 0; i < BUCKET_COUNT; i++) {
      put_series(w, out, r, "bucket", buckets[i]);
      put_seconds(out, (uint64_t)r->bucket_ms[i]);
    }
    break;
  case METRIC_STEP:
    if (r->progress.step >= 0) put_number(w, out, r, NULL, NULL, r->progress.step);
    break;
  case METRIC_SAMPLES:
    if (!r->progress.has_speed) break;
    put_series(w, out, r, NULL, NULL);
    buf_printf(out, "%.9g\n", r->progress.samples_per_second);
    break;
  case METRIC_PROGRESS_AGE:
    if (r->progress.judgement == JUDGEMENT_COUNT) break;
    put_series(w, out, r, NULL, NULL);
    put_seconds(out, r->progress.age_ms);
    break;
  case METRIC_PROGRESS:
    if (r->progress.judgement == JUDGEMENT_COUNT) break;
    put_number(w, out, r, "judgement", judgement_name(r->progress.judgement), 1);
    break;
  case METRIC_LEFT:
    if (r->progress.left_ms < 0) break;
    put_series(w, out, r, NULL, NULL);
    put_seconds(out, (uint64_t)r->progress.left_ms);
    break;
  default: break;
  }
}

static void put_of_daemon(struct buf *out, enum metric metric, double v) {
  if (v < 0) return;
  put_head(out, metric);
  buf_printf(out, "%s %.15g\n", metrics[metric].name, v);
}

/* Pieces. ---------------------------------------------------------------------------------------------------------- */

struct metrics_walk *metrics_begin(int64_t uid, const struct process_facts *process) {
  struct metrics_walk *w = xcalloc(1, sizeof *w);
  w->uid = uid;
  w->process = *process;
  return w;
}

void metrics_end(struct metrics_walk *w) {
  if (!w) return;
  for (struct row *r = w->first, *next; r; r = next) {
    next = r->next;
    free(r->labels);
    free(r);
  }
  free(w);
}

bool metrics_more(struct metrics_walk *w, struct core *c, uint64_t now_ms, size_t budget, struct buf *out) {
  w->left = budget;
  c->jobs.now_ms = now_ms;
  if (!w->rows_done) make_rows(w, c, now_ms);
  if (!w->rows_done) return true;
  for (; w->metric < OF_JOBS; w->metric++) {
    if (!w->begun) put_head(out, w->metric);
    w->begun = true;
    for (const struct row *r = w->at ? w->at->next : w->first; r; r = r->next) {
      if (!spend(w, 1)) return true;
      put_row(w, out, r);
      w->at = r;
    }
    w->at = NULL;
    w->begun = false;
  }
  if (control_may(c, w->uid, NULL)) {
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
  put_of_daemon(out, METRIC_CPU, w->process.cpu_s);
  put_of_daemon(out, METRIC_RESIDENT, (double)w->process.resident_bytes);
  put_of_daemon(out, METRIC_VIRTUAL, (double)w->process.virtual_bytes);
  put_of_daemon(out, METRIC_STARTED, w->process.started_wall_s);
  put_of_daemon(out, METRIC_OPEN_FDS, (double)w->process.open_fds);
  put_of_daemon(out, METRIC_MAX_FDS, (double)w->process.max_fds);
  return false;
}
