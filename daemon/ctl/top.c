/* SPDX-License-Identifier: Apache-2.0 */
/* A reader of this page wants to know whether something is wrong, and where. So rows are sorted by trouble: a node that
 * is away or silent, workers that have made no progress for long, a job that waits. A row has a number for its
 * trouble; equal ones keep the daemon's order, so rows do not dance from second to second. */

#include "daemon/ctl/top.h"

#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "daemon/ctl/table.h"

enum {
  SILENT_MS = 2000,   /* agents send more often: shown from here on */
  USEFUL_FROM_S = 10, /* a younger job has hardly done anything but start */
};

static const char *text_of(const json_t *o, const char *key) {
  const char *s = json_string_value(json_object_get(o, key));
  return s ? s : "";
}

static int64_t int_of(const json_t *o, const char *key, int64_t none) {
  const json_t *v = json_object_get(o, key);
  return json_is_integer(v) ? (int64_t)json_integer_value(v) : none;
}

static double number_of(const json_t *o, const char *key) {
  return json_number_value(json_object_get(o, key));
}

static void put_age(struct buf *out, int64_t ms) {
  if (ms >= 0) buf_put_duration(out, (uint64_t)ms);
}

/* The daemon judges progress. Its word is shown if a person should look. */
static bool is_late(const json_t *o) {
  const char *is = text_of(o, "judgement");
  return !strcmp(is, "late") || !strcmp(is, "stuck");
}

static void put_progress(struct buf *out, const json_t *o, const char *age_key) {
  put_age(out, int_of(o, age_key, -1));
  if (is_late(o)) buf_printf(out, ", %s", text_of(o, "judgement"));
}

static void put_step(struct buf *out, int64_t step, int64_t of) {
  if (step < 0) return;
  buf_printf(out, "%lld", (long long)step);
  if (of > 0) buf_printf(out, " of %lld", (long long)of);
}

/* Sorting. --------------------------------------------------------------------------------------------------------- */

struct trouble {
  size_t row;
  int64_t level, more; /* the higher, the worse */
};

static int by_trouble(const void *x, const void *y) {
  const struct trouble *a = x, *b = y;
  if (a->level != b->level) return a->level > b->level ? -1 : 1;
  if (a->more != b->more) return a->more > b->more ? -1 : 1;
  return a->row < b->row ? -1 : 1;
}

/* Takes v, which has one for each row. */
static void put_sorted(struct table *t, struct trouble *v, size_t width, struct buf *out) {
  size_t *order = xcalloc(t->n_rows + 1, sizeof(*order));
  if (t->n_rows) qsort(v, t->n_rows, sizeof(*v), by_trouble);
  for (size_t i = 0; i < t->n_rows; i++) order[i] = v[i].row;
  table_put(t, order, width, out);
  free(order);
  free(v);
}

/* Nodes. ----------------------------------------------------------------------------------------------------------- */

enum { N_NODE, N_HOST, N_RANKS, N_STATE, N_STEP, N_AGE, N_LOSS, N_SPEED, N_SILENT, N_NOTE, N_COLUMNS };
static const struct table_column node_columns[N_COLUMNS] = {
    [N_NODE] = {"NODE", true, 3},    [N_HOST] = {"HOST", false, 0},      [N_RANKS] = {"RANKS", false, 2},
    [N_STATE] = {"STATE", false, 0}, [N_STEP] = {"STEP", true, 0},       [N_AGE] = {"PROGRESS", true, 1},
    [N_LOSS] = {"LOSS", true, 5},    [N_SPEED] = {"SAMPLES/S", true, 4}, [N_SILENT] = {"SILENT", true, 0},
    [N_NOTE] = {"BEHIND", false, 6},
};

/* "local 3 at 117, 2 min": workers that are behind the others of their node. */
static void put_laggards(struct buf *out, const json_t *list) {
  size_t i;
  const json_t *l;
  json_array_foreach(list, i, l) {
    buf_printf(out, "%slocal %lld", i ? "; " : "", (long long)int_of(l, "local_rank", -1));
    if (int_of(l, "step", -1) >= 0) buf_printf(out, " at %lld", (long long)int_of(l, "step", -1));
    if (int_of(l, "age_ms", -1) >= 0) buf_puts(out, ", ");
    put_age(out, int_of(l, "age_ms", -1));
  }
}

static bool is_one_of(const char *word, const char *const *words, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!strcmp(word, words[i])) return true;
  return false;
}

/* away 4, silent 3, no progress for long 2, waiting or drained 1, fine 0. */
static struct trouble trouble_of_node(const json_t *m, size_t row) {
  static const char *const away[] = {"away"}, *const fine[] = {"running", "finished", "finished, away",
                                                               "knows the end"};
  const char *state = text_of(m, "state");
  int64_t silent = int_of(m, "heard_ms_ago", 0), age = int_of(m, "progress_age_ms", -1);
  struct trouble t = {.row = row, .more = age};
  if (is_one_of(state, away, 1))
    t.level = 4;
  else if (silent >= SILENT_MS && !is_one_of(state, fine + 1, 3))
    t.level = 3, t.more = silent;
  else if (is_late(m) || json_array_size(json_object_get(m, "laggards")))
    t.level = 2;
  else if (!is_one_of(state, fine, 4))
    t.level = 1;
  else
    t.more = 0; /* rows that are fine keep their order */
  return t;
}

static void put_node(struct table *t, const json_t *m) {
  struct buf *row = table_add(t);
  int64_t rank = int_of(m, "node_rank", -1), first = int_of(m, "first_rank", -1), n = int_of(m, "workers", 0);
  int64_t silent = int_of(m, "heard_ms_ago", 0);
  if (rank >= 0) buf_printf(&row[N_NODE], "%lld", (long long)rank);
  buf_puts(&row[N_HOST], text_of(m, "host"));
  if (first >= 0 && n > 1)
    buf_printf(&row[N_RANKS], "%lld-%lld", (long long)first, (long long)(first + n - 1));
  else if (first >= 0)
    buf_printf(&row[N_RANKS], "%lld", (long long)first);
  buf_puts(&row[N_STATE], text_of(m, "state"));
  put_step(&row[N_STEP], int_of(m, "step", -1), int_of(m, "of", 0));
  put_progress(&row[N_AGE], m, "progress_age_ms");
  if (json_object_get(m, "loss")) buf_printf(&row[N_LOSS], "%.5g", number_of(m, "loss"));
  if (number_of(m, "samples_per_second") > 0) buf_printf(&row[N_SPEED], "%.4g", number_of(m, "samples_per_second"));
  if (silent >= SILENT_MS) put_age(&row[N_SILENT], silent);
  put_laggards(&row[N_NOTE], json_object_get(m, "laggards"));
}

static void put_nodes(struct buf *out, const json_t *members, size_t width) {
  struct table t;
  struct trouble *v = xcalloc(json_array_size(members) + 1, sizeof(*v));
  size_t i;
  const json_t *m;
  table_init(&t, node_columns, N_COLUMNS);
  json_array_foreach(members, i, m) {
    put_node(&t, m);
    v[i] = trouble_of_node(m, i);
  }
  put_sorted(&t, v, width, out);
  table_finish(&t);
}

/* Jobs. ------------------------------------------------------------------------------------------------------------ */

enum {
  J_JOB,
  J_USER,
  J_STATE,
  J_FOR,
  J_ROUND,
  J_NODES,
  J_WORKERS,
  J_RESTARTS,
  J_STEP,
  J_AGE,
  J_SPEED,
  J_LEFT,
  J_USEFUL,
  J_NOTE,
  J_COLUMNS
};
static const struct table_column job_columns[J_COLUMNS] = {
    [J_JOB] = {"JOB", false, 0},         [J_USER] = {"UID", true, 12},         [J_STATE] = {"STATE", false, 0},
    [J_FOR] = {"FOR", true, 8},          [J_ROUND] = {"ROUND", true, 7},       [J_NODES] = {"NODES", true, 1},
    [J_WORKERS] = {"WORKERS", true, 11}, [J_RESTARTS] = {"RESTARTS", true, 3}, [J_STEP] = {"STEP", true, 2},
    [J_AGE] = {"PROGRESS", true, 2},     [J_SPEED] = {"SAMPLES/S", true, 9},   [J_LEFT] = {"LEFT", true, 9},
    [J_USEFUL] = {"USEFUL", true, 10},   [J_NOTE] = {"WHY", false, 6},
};

/* How well the daemon hears the nodes of a job. */
struct together {
  int64_t here, away, silent_ms;
};

static struct together look_at_members(const json_t *members) {
  struct together all = {.here = 0};
  size_t i;
  const json_t *m;
  json_array_foreach(members, i, m) {
    int64_t silent = int_of(m, "heard_ms_ago", 0);
    bool away = !strcmp(text_of(m, "state"), "away");
    all.here += !away;
    all.away += away;
    if (silent > all.silent_ms) all.silent_ms = silent;
  }
  return all;
}

/* A sentence about the job: what it waits for, what ends its round, who is late, what ended the last round. */
static const char *note_of(const json_t *job) {
  static const char *const keys[] = {"waiting", "ending", "progress", "last_verdict"};
  if (text_of(job, "moved_to")[0]) return "";
  for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
    const char *s = text_of(json_object_get(job, keys[i]), "sentence");
    if (s[0]) return s;
  }
  return "";
}

/* A live job with lost nodes 6, without progress 5, between rounds 4, starting 3, fine 2; failed 1; done or moved 0. */
static struct trouble trouble_of_job(const json_t *job, const struct together *all, size_t row) {
  static const char *const between[] = {"forming", "stopping", "recovering", "checkpointing"};
  const char *state = text_of(job, "state"), *outcome = text_of(job, "outcome");
  const json_t *progress = json_object_get(job, "progress");
  bool runs = !strcmp(state, "running"), starts = !strcmp(state, "starting");
  struct trouble t = {.row = row};
  if (!state[0]) return t;
  if (outcome[0])
    t.level = strcmp(outcome, "success") != 0;
  else if (all->away || ((runs || starts) && all->silent_ms >= SILENT_MS))
    t.level = 6, t.more = all->away;
  else if (runs && is_late(progress))
    t.level = 5, t.more = int_of(progress, "age_ms", 0);
  else if (is_one_of(state, between, 4))
    t.level = 4, t.more = int_of(job, "state_for_ms", 0) / 1000;
  else
    t.level = starts ? 3 : 2;
  return t;
}

static void put_job(struct table *t, const json_t *job, const struct together *all, bool with_uid, bool with_note) {
  struct buf *row = table_add(t);
  int64_t round = int_of(job, "round", 0), nodes = int_of(job, "nodes", 0), world = int_of(job, "world_size", 0);
  bool waits = json_object_get(job, "waiting") != NULL;
  const json_t *w = json_object_get(job, "waiting");
  buf_puts(&row[J_JOB], text_of(job, "job"));
  if (with_uid) buf_printf(&row[J_USER], "%lld", (long long)int_of(job, "uid", -1));
  const char *outcome = text_of(job, "outcome"), *to = text_of(job, "moved_to");
  if (to[0])
    buf_printf(&row[J_STATE], "moved to %s", to);
  else if (outcome[0])
    buf_printf(&row[J_STATE], "%s, code %lld", outcome, (long long)int_of(job, "code", 0));
  else
    buf_puts(&row[J_STATE], text_of(job, "state"));
  if (text_of(job, "moved_to")[0]) return;
  put_age(&row[J_FOR], int_of(job, "state_for_ms", -1));
  if (round) buf_printf(&row[J_ROUND], "%lld", (long long)round);
  if (waits)
    buf_printf(&row[J_NODES], "%lld of %lld", (long long)int_of(w, "here", all->here),
               (long long)int_of(job, "min_nodes", 0));
  else if (nodes)
    buf_printf(&row[J_NODES], "%lld", (long long)nodes);
  if (world && !waits) buf_printf(&row[J_WORKERS], "%lld", (long long)world);
  buf_printf(&row[J_RESTARTS], "%lld of %lld", (long long)int_of(job, "restarts_used", 0),
             (long long)int_of(job, "max_restarts", 0));
  const json_t *progress = json_object_get(job, "progress"), *speed = json_object_get(progress, "samples_per_second");
  put_step(&row[J_STEP], int_of(progress, "step", -1), int_of(progress, "of", 0));
  put_progress(&row[J_AGE], progress, "age_ms");
  if (json_is_number(speed)) buf_printf(&row[J_SPEED], "%.4g", json_number_value(speed));
  put_age(&row[J_LEFT], int_of(progress, "left_ms", -1));
  const json_t *useful = json_object_get(json_object_get(job, "goodput"), "useful");
  bool young = json_number_value(json_object_get(json_object_get(job, "goodput"), "total")) < USEFUL_FROM_S;
  if (json_is_number(useful) && !young) buf_printf(&row[J_USEFUL], "%.0f %%", 100 * json_number_value(useful));
  if (with_note) buf_puts(&row[J_NOTE], note_of(job));
}

/* Two users have jobs here: each row says whose it is. */
static bool has_many_users(const json_t *jobs) {
  size_t i;
  const json_t *job;
  int64_t first = int_of(json_array_get(jobs, 0), "uid", -1);
  json_array_foreach(jobs, i, job) if (int_of(job, "uid", -1) != first) return true;
  return false;
}

static void put_jobs(struct buf *out, const json_t *jobs, bool with_note, size_t width) {
  struct table t;
  struct trouble *v = xcalloc(json_array_size(jobs) + 1, sizeof(*v));
  bool with_uid = has_many_users(jobs);
  size_t i;
  const json_t *job;
  table_init(&t, job_columns, J_COLUMNS);
  json_array_foreach(jobs, i, job) {
    struct together all = look_at_members(json_object_get(job, "members"));
    put_job(&t, job, &all, with_uid, with_note);
    v[i] = trouble_of_job(job, &all, i);
  }
  put_sorted(&t, v, width, out);
  table_finish(&t);
}

/* The page. -------------------------------------------------------------------------------------------------------- */

static void put_drained(struct buf *out, const json_t *drained) {
  size_t i;
  const json_t *d;
  json_array_foreach(drained, i, d) {
    const char *host = text_of(d, "host");
    buf_puts(out, i ? ", " : "drained: ");
    buf_put_plain(out, host, strlen(host), strlen(host));
  }
  if (json_array_size(drained)) buf_putc(out, '\n');
}

/* Where a browser shows the same: one daemon's, or those of several. */
static void put_addresses(struct buf *out, const json_t *answer) {
  const json_t *pages = json_object_get(answer, "pages"), *page = json_object_get(answer, "page");
  for (size_t i = 0; page || i < json_array_size(pages); page = NULL, i++) {
    const char *text = json_string_value(page ? page : json_array_get(pages, i));
    buf_puts(out, "page: ");
    if (text) buf_put_plain(out, text, strlen(text), strlen(text));
    buf_putc(out, '\n');
    if (page) return;
  }
}

bool top_put_page(struct buf *out, const char *json, size_t len, bool one_job, size_t width) {
  json_t *answer = json_loadb(json, len, JSON_DISABLE_EOF_CHECK, NULL);
  const json_t *jobs = json_object_get(answer, "jobs"), *job = json_array_get(jobs, 0);
  bool good = json_is_array(jobs), alone = one_job && json_array_size(jobs) == 1;
  if (good && json_array_size(jobs) == 0)
    buf_puts(out, "no jobs\n");
  else if (good)
    put_jobs(out, jobs, !alone, width);
  if (good && alone) {
    const char *note = note_of(job);
    if (note[0]) {
      buf_put_plain(out, note, strlen(note), strlen(note));
      buf_putc(out, '\n');
    }
  }
  if (good && alone && json_array_size(json_object_get(job, "members"))) {
    buf_putc(out, '\n');
    put_nodes(out, json_object_get(job, "members"), width);
  }
  if (good) put_drained(out, json_object_get(answer, "drained"));
  if (good) put_addresses(out, answer);
  json_decref(answer);
  return good;
}
