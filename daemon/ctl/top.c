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

/* A table that fits into a window. --------------------------------------------------------------------------------- */

enum {
  COLUMNS_MAX = 16,
  CELL_MAX = 28, /* columns of the screen; of the last column: no limit */
  GAP = 2,
  LAST_MIN = 12,
};

struct column {
  const char *title;
  bool right; /* numbers */
  int rank;   /* 0: always there; the highest goes first when the window is narrow */
};

struct trouble {
  size_t row;
  int64_t level, more; /* the higher, the worse */
};

struct table {
  const struct column *columns;
  size_t n_columns, n_rows;
  struct buf *cells; /* n_rows * n_columns, any text */
  struct trouble *v; /* of each row */
};

/* A new row at the end: n_columns empty buffers to be filled, valid until the next row. */
static struct buf *add_row(struct table *t) {
  t->cells = xrealloc(t->cells, (t->n_rows + 1) * t->n_columns * sizeof(*t->cells));
  t->v = xrealloc(t->v, (t->n_rows + 1) * sizeof(*t->v));
  struct buf *row = &t->cells[t->n_rows++ * t->n_columns];
  for (size_t i = 0; i < t->n_columns; i++) row[i] = (struct buf)BUF_INIT;
  return row;
}

static bool is_continued(char c) {
  return ((unsigned char)c & 0xC0) == 0x80;
}

static size_t width_of(const char *s) {
  size_t n = 0;
  for (; *s; s++) n += !is_continued(*s);
  return n;
}

/* Appends at most `max` columns of the text, and blanks up to `width`. */
static void put_cell(struct buf *out, const char *text, size_t width, size_t max, bool right) {
  size_t n = width_of(text), seen = 0;
  bool cut = n > max;
  if (cut) n = max;
  size_t blanks = n < width ? width - n : 0, allowed = cut ? max - 1 : n;
  for (size_t i = 0; right && i < blanks; i++) buf_putc(out, ' ');
  for (const char *s = text; *s; s++) {
    if (!is_continued(*s) && seen++ == allowed) break;
    buf_putc(out, *s);
  }
  if (cut) buf_putc(out, '~');
  for (size_t i = 0; !right && i < blanks; i++) buf_putc(out, ' ');
}

static int by_trouble(const void *x, const void *y) {
  const struct trouble *a = x, *b = y;
  if (a->level != b->level) return a->level > b->level ? -1 : 1;
  if (a->more != b->more) return a->more > b->more ? -1 : 1;
  return a->row < b->row ? -1 : 1;
}

/* Titles, then the rows, the worst first, made printable. A column without any text is left out, and others until the
 * table fits. width 0: as wide as it is. Frees what the table holds. */
static void put_table(struct table *t, size_t width, struct buf *out) {
  size_t widths[COLUMNS_MAX], last = t->n_columns - 1;
  bool shown[COLUMNS_MAX];
  for (size_t i = 0; i < t->n_rows * t->n_columns; i++) {
    struct buf plain = BUF_INIT;
    buf_put_plain(&plain, buf_text(&t->cells[i]), strlen(buf_text(&t->cells[i])), strlen(buf_text(&t->cells[i])));
    buf_finish(&t->cells[i]);
    t->cells[i] = plain;
  }
  for (size_t c = 0; c <= last; c++) {
    size_t widest = 0, title = strlen(t->columns[c].title);
    for (size_t r = 0; r < t->n_rows; r++) {
      size_t n = width_of(buf_text(&t->cells[r * t->n_columns + c]));
      if (n > widest) widest = n;
    }
    if (c < last && widest > CELL_MAX) widest = CELL_MAX;
    shown[c] = widest > 0;
    widths[c] = widest > title ? widest : title;
  }
  while (width) {
    size_t sum = 0, least = SIZE_MAX;
    for (size_t c = 0; c <= last; c++) {
      if (!shown[c]) continue;
      sum += (c == last && widths[c] > LAST_MIN ? LAST_MIN : widths[c]) + GAP; /* the last one takes what is left */
      if (t->columns[c].rank && (least == SIZE_MAX || t->columns[c].rank > t->columns[least].rank)) least = c;
    }
    if (sum <= width + GAP || least == SIZE_MAX) break; /* what is still too wide the screen cuts */
    shown[least] = false;
  }
  if (t->n_rows) qsort(t->v, t->n_rows, sizeof(*t->v), by_trouble);
  for (size_t r = 0; r <= t->n_rows; r++) {
    const struct buf *cells = r ? &t->cells[t->v[r - 1].row * t->n_columns] : NULL;
    size_t begin = out->len, at = 0;
    for (size_t c = 0; c <= last; c++) {
      if (!shown[c]) continue;
      size_t max = c < last ? CELL_MAX : width > at ? width - at : width ? 1 : SIZE_MAX;
      const char *text = cells ? buf_text(&cells[c]) : t->columns[c].title;
      put_cell(out, text, c < last ? widths[c] : 0, max, t->columns[c].right);
      for (int i = 0; c < last && i < GAP; i++) buf_putc(out, ' ');
      at += widths[c] + GAP;
    }
    while (out->len > begin && out->data[out->len - 1] == ' ') out->len--;
    buf_putc(out, '\n');
  }
  for (size_t i = 0; i < t->n_rows * t->n_columns; i++) buf_finish(&t->cells[i]);
  free(t->cells);
  free(t->v);
}

/* Nodes. ----------------------------------------------------------------------------------------------------------- */

enum { N_NODE, N_HOST, N_RANKS, N_STATE, N_STEP, N_AGE, N_LOSS, N_SPEED, N_SILENT, N_NOTE, N_COLUMNS };
static const struct column node_columns[N_COLUMNS] = {
    [N_NODE] = {"NODE", true, 3},    [N_HOST] = {"HOST", false, 0},      [N_RANKS] = {"RANKS", false, 2},
    [N_STATE] = {"STATE", false, 0}, [N_STEP] = {"STEP", true, 0},       [N_AGE] = {"PROGRESS", true, 1},
    [N_LOSS] = {"LOSS", true, 5},    [N_SPEED] = {"SAMPLES/S", true, 4}, [N_SILENT] = {"SILENT", true, 0},
    [N_NOTE] = {"BEHIND", false, 6},
};

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
  struct buf *row = add_row(t);
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
  /* "local 3 at 117, 2 min": workers that are behind the others of their node. */
  struct buf *out = &row[N_NOTE];
  size_t i;
  const json_t *l;
  json_array_foreach(json_object_get(m, "laggards"), i, l) {
    buf_printf(out, "%slocal %lld", i ? "; " : "", (long long)int_of(l, "local_rank", -1));
    if (int_of(l, "step", -1) >= 0) buf_printf(out, " at %lld", (long long)int_of(l, "step", -1));
    if (int_of(l, "age_ms", -1) >= 0) buf_puts(out, ", ");
    put_age(out, int_of(l, "age_ms", -1));
  }
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
static const struct column job_columns[J_COLUMNS] = {
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
  return text_of(json_array_get(json_object_get(job, "slow_ranks"), 0), "sentence");
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
  struct buf *row = add_row(t);
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

/* The page. -------------------------------------------------------------------------------------------------------- */

static void put_plain(struct buf *out, const char *s) {
  buf_put_plain(out, s, strlen(s), strlen(s));
}

bool top_put_page(struct buf *out, const char *json, size_t len, bool one_job, size_t width) {
  json_t *answer = json_loadb(json, len, JSON_DISABLE_EOF_CHECK, NULL);
  const json_t *jobs = json_object_get(answer, "jobs"), *first = json_array_get(jobs, 0), *v;
  bool good = json_is_array(jobs), alone = one_job && json_array_size(jobs) == 1, many_users = false;
  struct table t = {.columns = job_columns, .n_columns = J_COLUMNS};
  size_t i;
  json_array_foreach(jobs, i, v) many_users |= int_of(v, "uid", -1) != int_of(first, "uid", -1);
  json_array_foreach(jobs, i, v) {
    struct together all = look_at_members(json_object_get(v, "members"));
    put_job(&t, v, &all, many_users, !alone);
    t.v[i] = trouble_of_job(v, &all, i);
  }
  if (t.n_rows)
    put_table(&t, width, out);
  else if (good)
    buf_puts(out, "no jobs\n");
  if (alone && note_of(first)[0]) {
    put_plain(out, note_of(first));
    buf_putc(out, '\n');
  }
  const json_t *members = alone ? json_object_get(first, "members") : NULL,
               *drained = json_object_get(answer, "drained");
  t = (struct table){.columns = node_columns, .n_columns = N_COLUMNS};
  json_array_foreach(members, i, v) {
    put_node(&t, v);
    t.v[i] = trouble_of_node(v, i);
  }
  if (t.n_rows) {
    buf_putc(out, '\n');
    put_table(&t, width, out);
  }
  for (i = 0; good && i < json_array_size(drained); i++) {
    buf_puts(out, i ? ", " : "drained: ");
    put_plain(out, text_of(json_array_get(drained, i), "host"));
  }
  if (good && i) buf_putc(out, '\n');
  /* Where a browser shows the same: one daemon's, or those of several. */
  const json_t *pages = json_object_get(answer, "pages"), *page = json_object_get(answer, "page");
  for (i = 0; good && i < (page ? 1 : json_array_size(pages)); i++) {
    const char *text = json_string_value(page ? page : json_array_get(pages, i));
    buf_puts(out, "page: ");
    if (text) put_plain(out, text);
    buf_putc(out, '\n');
  }
  json_decref(answer);
  return good;
}
