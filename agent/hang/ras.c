/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol and both forms of the answer are those of NCCL's src/ras/client_support.cc, 2.24.3 to 2.30.
 *
 *   CLIENT PROTOCOL 2 -> SERVER PROTOCOL n -> TIMEOUT s -> OK -> SET FORMAT json -> OK, or ERROR before 2.28.7
 *      -> STATUS, or as text VERBOSE STATUS -> the answer, until the server closes
 *
 * Ranks launch the same collectives in the same order, and RAS counts per kind how many a rank has launched. In a job
 * that hangs these counts stand still. A rank whose count is lowest has not launched the next one, for which the others
 * wait: they may have launched more, because a program runs ahead of its GPU.
 *
 * The JSON has every rank. The text has counts, and the members only of groups that RAS takes for outliers. So the text
 * may say how many ranks are behind without their names. */

#include "agent/hang/ras.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "common/json.h"

/* The conversation. ------------------------------------------------------------------------------------------------ */

void ras_begin(struct ras_talk *t, bool text, struct buf *out) {
  *t = (struct ras_talk){.text = text};
  buf_puts(out, "CLIENT PROTOCOL 2\n");
}

void ras_finish(struct ras_talk *t) {
  buf_finish(&t->in);
}

static bool begins(const char *line, const char *with) {
  return strncasecmp(line, with, strlen(with)) == 0;
}

static int refuse(const char *line, struct err *e) {
  struct buf shown = BUF_INIT;
  buf_put_escaped(&shown, line, strlen(line), 60);
  int rc = err_set(e, -EPROTO, "its answer is not that of NCCL's RAS: \"%s\"", buf_text(&shown));
  buf_finish(&shown);
  return rc;
}

static void ask_status(struct ras_talk *t, struct buf *out) {
  buf_puts(out, t->text ? "VERBOSE STATUS\n" : "STATUS\n");
  t->step = RAS_ANSWERS;
}

static int take_line(struct ras_talk *t, const char *line, struct buf *out, struct err *e) {
  switch (t->step) {
  case RAS_GREETS:
    if (!begins(line, "SERVER PROTOCOL ")) return refuse(line, e);
    buf_printf(out, "TIMEOUT %d\n", RAS_COLLECT_S);
    t->step = RAS_SETS_TIMEOUT;
    return 0;
  case RAS_SETS_TIMEOUT:
    if (!begins(line, "OK") && !begins(line, "ERROR")) return refuse(line, e);
    if (t->text) {
      ask_status(t, out);
      return 0;
    }
    buf_puts(out, "SET FORMAT json\n");
    t->step = RAS_SETS_FORMAT;
    return 0;
  case RAS_SETS_FORMAT:
    if (!begins(line, "OK") && !begins(line, "ERROR")) return refuse(line, e);
    t->text = begins(line, "ERROR");
    ask_status(t, out);
    return 0;
  case RAS_ANSWERS: break;
  }
  return 0;
}

/* Takes the first line of t->in. False: it is not complete. */
static bool next_line(struct ras_talk *t, char line[RAS_LINE_MAX + 1]) {
  const char *end = t->in.len ? memchr(t->in.data, '\n', t->in.len) : NULL;
  if (!end || end - t->in.data > RAS_LINE_MAX) return false;
  size_t n = (size_t)(end - t->in.data);
  memcpy(line, t->in.data, n);
  line[n] = '\0';
  buf_consume(&t->in, n + 1);
  return true;
}

int ras_feed(struct ras_talk *t, const char *data, size_t n, struct buf *out, struct err *e) {
  size_t max = t->step != RAS_ANSWERS ? 4 * RAS_LINE_MAX : t->text ? RAS_TEXT_MAX : RAS_JSON_MAX;
  if (t->in.len + n > max) {
    t->too_long = t->step == RAS_ANSWERS && !t->text;
    return err_set(e, -EPROTO, "its answer is longer than %zu bytes", max);
  }
  buf_append(&t->in, data, n);
  char line[RAS_LINE_MAX + 1];
  while (t->step != RAS_ANSWERS && next_line(t, line)) {
    int rc = take_line(t, line, out, e);
    if (rc) return rc;
  }
  if (t->step != RAS_ANSWERS && t->in.len > RAS_LINE_MAX)
    return err_set(e, -EPROTO, "it sends a line of more than %d bytes", RAS_LINE_MAX);
  return 0;
}

/* JSON. ------------------------------------------------------------------------------------------------------------ */

static int64_t int_of(const json_t *object, const char *name, int64_t otherwise) {
  const json_t *v = json_object_get(object, name);
  return json_is_integer(v) ? (int64_t)json_integer_value(v) : otherwise;
}

static void set_host(struct ras_process *p, const char *host) {
  snprintf(p->host, sizeof p->host, "%s", host ? host : "");
}

static struct ras_process to_process(const json_t *v) {
  struct ras_process p = {.rank = int_of(v, "rank", -1), .pid = int_of(v, "pid", -1)};
  p.dead = json_is_true(json_object_get(json_object_get(v, "status"), "considered_dead"));
  if (p.rank > RAS_SIZE_MAX) p.rank = -1;
  set_host(&p, json_string_value(json_object_get(v, "host")));
  return p;
}

static bool is_same(const struct ras_process *a, const struct ras_process *b) {
  return a->pid == b->pid && strcmp(a->host, b->host) == 0;
}

/* A process is counted once, with its rank in the largest communicator that lacks it. */
static void add_silent(struct ras_finding *f, const struct ras_process *p, int64_t size) {
  if (size < f->silent_size) return;
  if (size > f->silent_size) {
    f->silent_size = size;
    f->n_silent = 0;
    f->n_silent_named = 0;
  }
  for (size_t i = 0; i < f->n_silent_named; i++)
    if (is_same(&f->silent[i], p) && f->silent[i].rank == p->rank) return;
  f->n_silent++;
  if (f->n_silent_named < RAS_NAMED_MAX) f->silent[f->n_silent_named++] = *p;
}

static void read_missing(const json_t *missing, int64_t size, struct ras_finding *f) {
  size_t i;
  json_t *v;
  json_array_foreach(missing, i, v) {
    struct ras_process p = to_process(v);
    /* A process that answers, and is not in this communicator any more, may have left it. */
    if (!p.dead && !json_is_true(json_object_get(json_object_get(v, "status"), "unresponsive"))) continue;
    add_silent(f, &p, size);
  }
}

static uint64_t count_of(const json_t *rank, const char *op) {
  int64_t n = int_of(json_object_get(rank, "collective_counts"), op, 0);
  return n > 0 ? (uint64_t)n : 0;
}

static void set_behind(struct ras_finding *f, const char *op, int64_t size, uint64_t least, int64_t n_behind,
                       int64_t waiting) {
  f->size = size;
  f->waiting = waiting;
  f->n_behind = n_behind;
  f->n_behind_named = 0;
  f->seq = least < INT64_MAX ? (int64_t)least + 1 : INT64_MAX;
  snprintf(f->op, sizeof f->op, "%s", op);
}

/* A name as NCCL has them. */
static bool is_operation(const char *op) {
  size_t n = strspn(op, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789");
  return n > 0 && n <= RAS_OPERATION_MAX && !op[n];
}

/* Compares the counts of one kind of collective in one communicator. */
static void read_counts(const json_t *ranks, const char *op, int64_t size, struct ras_finding *f) {
  uint64_t least = UINT64_MAX, most = 0;
  int64_t n_least = 0;
  size_t i, n = json_array_size(ranks);
  json_t *v;
  json_array_foreach(ranks, i, v) {
    uint64_t count = count_of(v, op);
    n_least = count < least ? 1 : n_least + (count == least);
    if (count < least) least = count;
    if (count > most) most = count;
  }
  int64_t waiting = (int64_t)n - n_least;
  if (least >= most || waiting < f->waiting || (waiting == f->waiting && size <= f->size)) return;
  set_behind(f, op, size, least, n_least, waiting);
  json_array_foreach(ranks, i, v) if (count_of(v, op) == least && f->n_behind_named < RAS_NAMED_MAX)
      f->behind[f->n_behind_named++] = to_process(v);
}

static void read_communicator(const json_t *c, struct ras_finding *f) {
  const json_t *ranks = json_object_get(c, "ranks"), *first = json_array_get(ranks, 0);
  json_t *counts = json_object_get(first, "collective_counts"), *v;
  int64_t size = int_of(c, "size", 0);
  const char *op;
  size_t i;
  if (size < 1 || size > RAS_SIZE_MAX || json_array_size(ranks) > RAS_SIZE_MAX) return;
  f->communicators++;
  read_missing(json_object_get(c, "missing_ranks"), size, f);
  json_object_foreach(counts, op, v) if (is_operation(op)) read_counts(ranks, op, size, f);
  json_array_foreach(ranks, i, v) {
    int64_t error = int_of(json_object_get(v, "status"), "async_error", 0);
    if (error != 0 && error != 7) f->errors++; /* ncclSuccess, ncclInProgress */
  }
}

int ras_parse_json(const char *data, size_t n, struct ras_finding *f, struct err *e) {
  struct err why;
  *f = (struct ras_finding){0};
  json_t *root = n <= RAS_JSON_MAX ? json_parse_object(data, n, &why) : NULL;
  const json_t *list = json_object_get(root, "communicators");
  int rc = 0;
  if (!json_is_array(list) || json_array_size(list) > RAS_COMMUNICATORS_MAX) {
    rc = err_set(e, -EPROTO, "its JSON has no list of communicators");
  } else {
    size_t i;
    json_t *c;
    json_array_foreach(list, i, c) read_communicator(c, f);
  }
  json_decref(root);
  return rc;
}

/* Text. ------------------------------------------------------------------------------------------------------------ */

enum section { SECTION_NONE, SECTION_SILENT, SECTION_DEAD, SECTION_MISSING_RANKS, SECTION_COUNTS };

/* The counts of one kind in one communicator, as they are printed: groups, largest first. */
struct text_counts {
  char op[RAS_OPERATION_MAX + 1];
  uint64_t least, now; /* now: the group whose members follow */
  int64_t total, n_least;
  bool any, differ;
  struct ras_process named[RAS_NAMED_MAX];
  size_t n_named;
};

/* "process 4711 on node 10.0.0.1" somewhere in the line */
static void read_place(const char *line, struct ras_process *p) {
  const char *at = strcasestr(line, "process ");
  int used = 0;
  long long pid;
  char host[RAS_HOST_MAX + 1] = "";
  if (!at || sscanf(at + 8, "%lld on node %63s%n", &pid, host, &used) < 2) return;
  if (pid > 0 && pid <= INT32_MAX) p->pid = pid;
  set_host(p, host);
}

static bool read_number(const char *line, const char *before, int64_t *out) {
  size_t n = strlen(before);
  char *end;
  if (strncmp(line, before, n) != 0 || !isdigit((unsigned char)line[n])) return false;
  errno = 0;
  long long v = strtoll(line + n, &end, 10);
  if (errno || v < 0) return false;
  *out = v;
  return true;
}

static void close_counts(struct text_counts *c, struct ras_finding *f) {
  int64_t waiting = c->total - c->n_least;
  if (c->any && c->differ && waiting > f->waiting) {
    set_behind(f, c->op, c->total, c->least, c->n_least, waiting);
    memcpy(f->behind, c->named, sizeof f->behind);
    f->n_behind_named = c->n_named;
  }
  *c = (struct text_counts){.least = 0};
}

static void add_count(struct text_counts *c, int64_t ranks, uint64_t count) {
  if (ranks < 1 || ranks > RAS_SIZE_MAX || c->total > RAS_SIZE_MAX) return;
  c->total += ranks;
  c->now = count;
  if (c->any && count != c->least) c->differ = true;
  if (!c->any || count < c->least) {
    c->least = count;
    c->n_least = 0;
    c->n_named = 0;
  }
  if (count == c->least) c->n_least += ranks;
  c->any = true;
}

/* A line below "have different ... operation counts". */
static void read_count_line(const char *line, struct text_counts *c) {
  int64_t rank;
  long long ranks, count;
  if (sscanf(line, "%lld ranks have launched up to operation %lld", &ranks, &count) == 2 && count >= 0) {
    add_count(c, ranks, (uint64_t)count);
  } else if (strstr(line, "ranks have not launched any operations") && sscanf(line, "%lld ranks", &ranks) == 1) {
    add_count(c, ranks, 0);
  } else if (read_number(line, "Rank ", &rank)) {
    const char *launched = strstr(line, " has launched up to operation ");
    if (launched && sscanf(launched, " has launched up to operation %lld", &count) == 1 && count >= 0)
      add_count(c, 1, (uint64_t)count);
    else if (strstr(line, " has not launched any operations"))
      add_count(c, 1, 0);
    struct ras_process p = {.rank = rank, .pid = -1};
    read_place(line, &p);
    if (c->any && c->now == c->least && c->n_named < RAS_NAMED_MAX && (int64_t)c->n_named < c->n_least)
      c->named[c->n_named++] = p;
  }
}

/* "Communicator ranks have different AllReduce operation counts"; before 2.26 "... different collective operation counts" */
static bool read_counts_title(const char *line, struct text_counts *c) {
  static const char before[] = "Communicator ranks have different ", after[] = " operation counts";
  const char *end = strstr(line, after);
  if (strncmp(line, before, sizeof before - 1) != 0 || !end || end < line + sizeof before - 1) return false;
  snprintf(c->op, sizeof c->op, "%.*s", (int)(end - line - (long)sizeof before + 1), line + sizeof before - 1);
  return is_operation(c->op);
}

static void name_silent(struct ras_finding *f, const char *line, bool dead) {
  struct ras_process p = {.rank = -1, .pid = -1, .dead = dead};
  read_place(line, &p);
  if (p.pid > 0 && f->n_silent_named < RAS_NAMED_MAX && (int64_t)f->n_silent_named < f->n_silent)
    f->silent[f->n_silent_named++] = p;
}

static enum section section_of(const char *line) {
  if (strcmp(line, "INCOMPLETE") == 0) return SECTION_SILENT;
  if (strcmp(line, "DEAD") == 0) return SECTION_DEAD;
  if (line[0] != '#') return SECTION_NONE;
  return strstr(line, " INCOMPLETE") ? SECTION_MISSING_RANKS
         : strstr(line, " MISMATCH") ? SECTION_COUNTS
                                     : SECTION_NONE;
}

static void read_line(const char *line, enum section section, struct ras_finding *f, struct text_counts *c) {
  int64_t n;
  switch (section) {
  case SECTION_SILENT:
    if (read_number(line, "Missing communicator data from ", &n) && n <= RAS_SIZE_MAX) f->n_silent += n;
    if (begins(line, "Process ")) name_silent(f, line, false);
    break;
  case SECTION_DEAD:
    if (strstr(line, " considered dead") && read_number(line, "", &n) && n <= RAS_SIZE_MAX) f->n_silent += n;
    if (begins(line, "Process ")) name_silent(f, line, true);
    break;
  case SECTION_MISSING_RANKS:
    if (read_number(line, "Rank ", &n) && n <= RAS_SIZE_MAX) {
      /* The lines of a communicator have the ranks of processes that do not answer. */
      struct ras_process p = {.rank = n, .pid = -1};
      read_place(line, &p);
      for (size_t i = 0; i < f->n_silent_named; i++)
        if (p.pid > 0 && is_same(&f->silent[i], &p) && f->silent[i].rank < 0) f->silent[i].rank = n;
    }
    if (read_number(line, "The missing rank: ", &n) && f->n_silent_named == 1 && f->silent[0].rank < 0)
      f->silent[0].rank = n;
    break;
  case SECTION_COUNTS: {
    struct text_counts title = {.least = 0};
    if (read_counts_title(line, &title)) {
      close_counts(c, f);
      *c = title;
    } else if (c->op[0]) {
      read_count_line(line, c);
    }
    break;
  }
  case SECTION_NONE: break;
  }
}

int ras_parse_text(const char *data, size_t n, struct ras_finding *f, struct err *e) {
  struct text_counts counts = {.least = 0};
  enum section section = SECTION_NONE;
  bool known = false;
  *f = (struct ras_finding){0};
  for (size_t at = 0; at < n && n <= RAS_TEXT_MAX;) {
    char line[RAS_LINE_MAX + 1];
    const char *end = memchr(data + at, '\n', n - at);
    size_t len = end ? (size_t)(end - data) - at : n - at, kept = len < RAS_LINE_MAX ? len : RAS_LINE_MAX;
    memcpy(line, data + at, kept);
    line[kept] = '\0';
    at += len + 1;
    if (strncmp(line, "Communicators...", 16) == 0) known = true;
    size_t blank = strspn(line, " ");
    if (!blank && line[0]) {
      close_counts(&counts, f);
      section = section_of(line);
      f->communicators += line[0] == '#';
    } else if (line[blank]) {
      read_line(line + blank, section, f, &counts);
    }
  }
  close_counts(&counts, f);
  return known ? 0 : err_set(e, -EPROTO, "its text is not a report of NCCL's RAS");
}

/* For people. ------------------------------------------------------------------------------------------------------ */

static void put_process(const struct ras_process *p, bool ranks, struct buf *out) {
  if (p->rank >= 0) buf_printf(out, "rank %" PRId64, p->rank);
  if (p->rank >= 0 && ranks) return;
  if (p->pid <= 0) {
    if (p->rank < 0) buf_puts(out, "a process");
    return;
  }
  buf_printf(out, "%sprocess %" PRId64, p->rank >= 0 ? " (" : "", p->pid);
  if (p->host[0]) {
    buf_puts(out, " on ");
    buf_put_plain(out, p->host, strlen(p->host), RAS_HOST_MAX);
  }
  if (p->rank >= 0) buf_putc(out, ')');
}

/* ranks: their ranks are the job's. */
static void put_processes(const struct ras_process *v, size_t n, int64_t total, bool ranks, struct buf *out) {
  if (!n) {
    buf_printf(out, "%" PRId64 " %s%s", total, ranks ? "rank" : "process", total == 1 ? "" : ranks ? "s" : "es");
    return;
  }
  for (size_t i = 0; i < n; i++) {
    if (i) buf_puts(out, i + 1 == n && (int64_t)n == total ? " and " : ", ");
    put_process(&v[i], ranks, out);
  }
  if (total > (int64_t)n) buf_printf(out, " and %" PRId64 " more", total - (int64_t)n);
}

void ras_sentence(const struct ras_finding *f, int64_t world_size, struct buf *out) {
  size_t before = out->len;
  if (f->n_silent > 0) {
    bool one = f->n_silent == 1, dead = true;
    for (size_t i = 0; i < f->n_silent_named; i++) dead &= f->silent[i].dead;
    put_processes(f->silent, f->n_silent_named, f->n_silent, f->silent_size == world_size, out);
    if (f->n_silent_named && dead)
      buf_puts(out, one ? " is dead for NCCL" : " are dead for NCCL");
    else
      buf_puts(out, one ? " does not answer NCCL" : " do not answer NCCL");
  }
  if (f->n_behind > 0) {
    bool all = f->size == world_size;
    if (out->len > before) buf_puts(out, "; ");
    put_processes(f->behind, f->n_behind_named, f->n_behind, all, out);
    buf_puts(out, f->n_behind == 1 ? " has not entered " : " have not entered ");
    buf_put_plain(out, f->op, strlen(f->op), RAS_OPERATION_MAX);
    buf_printf(out, " #%" PRId64, f->seq);
    if (!all) buf_printf(out, " of a communicator with %" PRId64 " ranks", f->size);
    buf_printf(out, ", %" PRId64 " other%s", f->waiting, f->waiting == 1 ? " has" : "s have");
  }
  if (f->errors > 0) {
    if (out->len > before) buf_puts(out, "; ");
    buf_printf(out, "NCCL reports an error on %" PRId64 " rank%s", f->errors, f->errors == 1 ? "" : "s");
  }
}
