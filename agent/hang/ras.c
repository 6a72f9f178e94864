/* SPDX-License-Identifier: Apache-2.0 */
/* The protocol and the answer are those of NCCL's src/ras/client_support.cc, 2.28.7 to 2.30.
 *
 *   CLIENT PROTOCOL 2 -> SERVER PROTOCOL n -> TIMEOUT s -> OK -> SET FORMAT json -> OK, or ERROR before 2.28.7
 *      -> STATUS -> the answer, until the server closes
 *
 * Ranks launch the same collectives in the same order, and RAS counts per kind how many a rank has launched. In a job
 * that hangs these counts stand still. A rank whose count is lowest has not launched the next one, for which the others
 * wait: they may have launched more, because a program runs ahead of its GPU. */

#include "agent/hang/ras.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "common/json.h"

/* The conversation. ------------------------------------------------------------------------------------------------ */

void ras_begin(struct ras_talk *t, struct buf *out) {
  *t = (struct ras_talk){.step = RAS_GREETS};
  buf_puts(out, "CLIENT PROTOCOL 2\n");
}

void ras_finish(struct ras_talk *t) {
  buf_finish(&t->in);
}

static bool begins(const char *line, const char *with) {
  return strncasecmp(line, with, strlen(with)) == 0;
}

static int take_line(struct ras_talk *t, const char *line, struct buf *out, struct err *e) {
  bool error = begins(line, "ERROR"), good = begins(line, "OK") || error;
  if (t->step == RAS_SETS_FORMAT && error)
    return err_set(e, -EPROTO, "it has no JSON, so its NCCL is older than 2.28.7");
  if (t->step == RAS_GREETS) good = begins(line, "SERVER PROTOCOL ");
  if (!good) {
    struct buf shown = BUF_INIT;
    buf_put_escaped(&shown, line, strlen(line), 60);
    int rc = err_set(e, -EPROTO, "its answer is not that of NCCL's RAS: \"%s\"", buf_text(&shown));
    buf_finish(&shown);
    return rc;
  }
  if (t->step == RAS_GREETS) buf_printf(out, "TIMEOUT %d\n", RAS_COLLECT_S);
  if (t->step == RAS_SETS_TIMEOUT) buf_puts(out, "SET FORMAT json\n");
  if (t->step == RAS_SETS_FORMAT) buf_puts(out, "STATUS\n");
  t->step++;
  return 0;
}

int ras_feed(struct ras_talk *t, const char *data, size_t n, struct buf *out, struct err *e) {
  size_t max = t->step != RAS_ANSWERS ? 4 * RAS_LINE_MAX : RAS_JSON_MAX;
  if (t->in.len + n > max) return err_set(e, -EPROTO, "its answer is longer than %zu bytes", max);
  buf_append(&t->in, data, n);
  while (t->step != RAS_ANSWERS && t->in.len) {
    char *end = memchr(t->in.data, '\n', t->in.len);
    if ((end ? (size_t)(end - t->in.data) : t->in.len) > RAS_LINE_MAX)
      return err_set(e, -EPROTO, "it sends a line of more than %d bytes", RAS_LINE_MAX);
    if (!end) return 0;
    *end = '\0';
    int rc = take_line(t, t->in.data, out, e);
    if (rc) return rc;
    buf_consume(&t->in, (size_t)(end + 1 - t->in.data));
  }
  return 0;
}

/* The answer. ------------------------------------------------------------------------------------------------------ */

static int64_t int_of(const json_t *object, const char *name, int64_t otherwise) {
  const json_t *v = json_object_get(object, name);
  return json_is_integer(v) ? (int64_t)json_integer_value(v) : otherwise;
}

static struct ras_process to_process(const json_t *v) {
  struct ras_process p = {.rank = int_of(v, "rank", -1), .pid = int_of(v, "pid", -1)};
  p.dead = json_is_true(json_object_get(json_object_get(v, "status"), "considered_dead"));
  const char *host = json_string_value(json_object_get(v, "host"));
  if (p.rank > RAS_SIZE_MAX) p.rank = -1;
  snprintf(p.host, sizeof p.host, "%s", host ? host : "");
  return p;
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
    if (f->silent[i].pid == p->pid && f->silent[i].rank == p->rank && strcmp(f->silent[i].host, p->host) == 0) return;
  f->n_silent++;
  if (f->n_silent_named < RAS_NAMED_MAX) f->silent[f->n_silent_named++] = *p;
}

static uint64_t count_of(const json_t *rank, const char *op) {
  int64_t n = int_of(json_object_get(rank, "collective_counts"), op, 0);
  return n > 0 ? (uint64_t)n : 0;
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
  f->size = size;
  f->waiting = waiting;
  f->n_behind = n_least;
  f->n_behind_named = 0;
  f->seq = least < INT64_MAX ? (int64_t)least + 1 : INT64_MAX;
  snprintf(f->op, sizeof f->op, "%s", op);
  json_array_foreach(ranks, i, v) if (count_of(v, op) == least && f->n_behind_named < RAS_NAMED_MAX)
      f->behind[f->n_behind_named++] = to_process(v);
}

static void read_communicator(const json_t *c, struct ras_finding *f) {
  const json_t *ranks = json_object_get(c, "ranks"), *first = json_array_get(ranks, 0);
  const json_t *missing = json_object_get(c, "missing_ranks");
  json_t *counts = json_object_get(first, "collective_counts"), *v;
  int64_t size = int_of(c, "size", 0);
  const char *op;
  size_t i;
  if (size < 1 || size > RAS_SIZE_MAX || json_array_size(ranks) > RAS_SIZE_MAX) return;
  f->communicators++;
  json_array_foreach(missing, i, v) {
    struct ras_process p = to_process(v);
    /* A process that answers, and is not in this communicator any more, may have left it. */
    if (p.dead || json_is_true(json_object_get(json_object_get(v, "status"), "unresponsive"))) add_silent(f, &p, size);
  }
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

/* For people. ------------------------------------------------------------------------------------------------------ */

/* ranks: their ranks are the job's. */
static void put_processes(const struct ras_process *v, size_t n, int64_t total, bool ranks, struct buf *out) {
  for (size_t i = 0; i < n; i++) {
    const struct ras_process *p = &v[i];
    bool ranked = p->rank >= 0;
    if (i) buf_puts(out, i + 1 == n && (int64_t)n == total ? " and " : ", ");
    if (ranked) buf_printf(out, "rank %" PRId64, p->rank);
    if (!ranked && p->pid <= 0) buf_puts(out, "a process");
    if ((ranked && ranks) || p->pid <= 0) continue;
    buf_printf(out, "%sprocess %" PRId64, ranked ? " (" : "", p->pid);
    if (p->host[0]) {
      buf_puts(out, " on ");
      buf_put_plain(out, p->host, strlen(p->host), RAS_HOST_MAX);
    }
    if (ranked) buf_putc(out, ')');
  }
  if (total > (int64_t)n) buf_printf(out, " and %" PRId64 " more", total - (int64_t)n);
}

void ras_sentence(const struct ras_finding *f, int64_t world_size, struct buf *out) {
  size_t before = out->len;
  if (f->n_silent > 0) {
    bool one = f->n_silent == 1, dead = true;
    for (size_t i = 0; i < f->n_silent_named; i++) dead &= f->silent[i].dead;
    put_processes(f->silent, f->n_silent_named, f->n_silent, f->silent_size == world_size, out);
    if (dead)
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
