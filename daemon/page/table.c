/* SPDX-License-Identifier: Apache-2.0 */
/* The jobs as a document without a script, for browsers that run none, for terminals and for saving.
 *
 * It is made of the JSON that the live page reads too, so both show the same facts to the same user. The browser asks
 * again every few seconds by itself (meta refresh). A job may have thousands of nodes. The first ones are shown, in the
 * order of the JSON, and the number of the others.
 *
 * Names and sentences come from peers: unprintable characters become \u009b (common/json.h), and those that mean
 * something in HTML become entities. */

#include <inttypes.h>
#include <string.h>
#include "common/json.h"
#include "daemon/page/page.h"

enum { ROUNDS_SHOWN = 16 };

static void put_text(struct buf *out, const char *text) {
  struct buf plain = BUF_INIT;
  json_put_printable(&plain, text, strlen(text));
  for (const char *c = buf_text(&plain); *c; c++) switch (*c) {
    case '&': buf_puts(out, "&amp;"); break;
    case '<': buf_puts(out, "&lt;"); break;
    case '>': buf_puts(out, "&gt;"); break;
    case '"': buf_puts(out, "&quot;"); break;
    case '\'': buf_puts(out, "&#39;"); break;
    default: buf_putc(out, *c);
    }
  buf_finish(&plain);
}

static const char *text_of(const json_t *v, const char *key) {
  const char *text = json_string_value(json_object_get(v, key));
  return text ? text : "";
}

static int64_t integer_of(const json_t *v, const char *key) {
  return json_integer_value(json_object_get(v, key));
}

static void put_cell(struct buf *out, const char *text) {
  buf_puts(out, "<td>");
  put_text(out, text);
}

static void put_ranks(struct buf *out, const json_t *m) {
  int64_t first = integer_of(m, "first_rank"), n = integer_of(m, "workers");
  if (first < 0)
    buf_printf(out, "<td>%" PRId64 " worker%s", n, n == 1 ? "" : "s");
  else if (n == 1)
    buf_printf(out, "<td>%" PRId64, first);
  else
    buf_printf(out, "<td>%" PRId64 "-%" PRId64, first, first + n - 1);
}

static void put_progress(struct buf *out, const json_t *m) {
  const json_t *step = json_object_get(m, "step"), *loss = json_object_get(m, "loss"),
               *speed = json_object_get(m, "samples_per_second"), *age = json_object_get(m, "progress_age_ms");
  buf_puts(out, "<td>");
  if (step) buf_printf(out, "%" PRId64, (int64_t)json_integer_value(step));
  if (step && integer_of(m, "of") > 0) buf_printf(out, " of %" PRId64, integer_of(m, "of"));
  buf_puts(out, "<td>");
  if (loss) buf_printf(out, "%.6g", json_number_value(loss));
  buf_puts(out, "<td>");
  if (speed) buf_printf(out, "%.4g", json_number_value(speed));
  buf_puts(out, "<td>");
  if (age) buf_put_duration(out, (uint64_t)json_integer_value(age));
}

static void put_node(struct buf *out, const json_t *m) {
  int64_t rank = integer_of(m, "node_rank");
  buf_puts(out, "<tr>");
  if (rank >= 0)
    buf_printf(out, "<td>%" PRId64, rank);
  else
    buf_puts(out, "<td>-");
  put_cell(out, text_of(m, "host"));
  put_ranks(out, m);
  put_cell(out, text_of(m, "state"));
  put_progress(out, m);
  buf_putc(out, '\n');
}

static void put_nodes(struct buf *out, const json_t *members) {
  size_t n = json_array_size(members), shown = n < PAGE_TABLE_NODES ? n : PAGE_TABLE_NODES;
  if (n == 0) return;
  buf_puts(out, "<table><thead><tr><th scope=col>node<th scope=col>host<th scope=col>ranks<th scope=col>state"
                "<th scope=col>step<th scope=col>loss<th scope=col>samples/s<th scope=col>last progress"
                "<tbody>\n");
  for (size_t i = 0; i < shown; i++) put_node(out, json_array_get(members, i));
  buf_puts(out, "</table>\n");
  if (n > shown) buf_printf(out, "<p>%zu more nodes are not shown; rdzvctl status shows all.</p>\n", n - shown);
}

static void put_sentence(struct buf *out, const char *before, const char *sentence) {
  if (!sentence[0]) return;
  buf_printf(out, "<p>%s", before);
  put_text(out, sentence);
  buf_puts(out, ".</p>\n");
}

static void put_rounds(struct buf *out, const json_t *verdicts) {
  size_t i;
  const json_t *v;
  if (json_array_size(verdicts) == 0) return;
  buf_puts(out, "<table><thead><tr><th scope=col>round<th scope=col>how it ended<tbody>\n");
  json_array_foreach((json_t *)(uintptr_t)verdicts, i, v) {
    if (i == ROUNDS_SHOWN) break;
    buf_printf(out, "<tr><td>%" PRId64, integer_of(v, "round"));
    put_cell(out, text_of(json_object_get(v, "verdict"), "sentence"));
    buf_putc(out, '\n');
  }
  buf_puts(out, "</table>\n");
}

static void put_moved(struct buf *out, const json_t *job) {
  buf_puts(out, "<section><h2>");
  put_text(out, text_of(job, "job"));
  buf_puts(out, "</h2><p>moved to the daemon on ");
  put_text(out, text_of(job, "moved_to"));
  buf_puts(out, "</p></section>\n");
}

static void put_headline(struct buf *out, const json_t *job) {
  int64_t nodes = integer_of(job, "nodes"), workers = integer_of(job, "world_size");
  bool over = strcmp(text_of(job, "state"), "ended") == 0;
  buf_puts(out, "<h2>");
  put_text(out, text_of(job, "job"));
  buf_puts(out, "</h2><p><strong>");
  put_text(out, over ? text_of(job, "outcome") : text_of(job, "state"));
  buf_puts(out, over ? "</strong>, ended " : "</strong> for ");
  buf_put_duration(out, (uint64_t)integer_of(job, "state_for_ms"));
  if (over) buf_printf(out, " ago with exit code %" PRId64, integer_of(job, "code"));
  buf_printf(out,
             "; round %" PRId64 ", %" PRId64 " node%s, %" PRId64 " worker%s, restarts %" PRId64 " of %" PRId64 "</p>\n",
             integer_of(job, "round"), nodes, nodes == 1 ? "" : "s", workers, workers == 1 ? "" : "s",
             integer_of(job, "restarts_used"), integer_of(job, "max_restarts"));
}

static void put_job(struct buf *out, const json_t *job) {
  if (json_object_get(job, "moved_to")) {
    put_moved(out, job);
    return;
  }
  buf_puts(out, "<section>");
  put_headline(out, job);
  put_sentence(out, "Waiting: ", text_of(json_object_get(job, "waiting"), "sentence"));
  put_sentence(out, "The round is ending: ", text_of(json_object_get(job, "ending"), "sentence"));
  put_nodes(out, json_object_get(job, "members"));
  put_rounds(out, json_object_get(job, "verdicts"));
  buf_puts(out, "</section>\n");
}

static void put_drained(struct buf *out, const json_t *drained) {
  size_t i;
  const json_t *d;
  if (json_array_size(drained) == 0) return;
  buf_puts(out, "<section><h2>Drained hosts</h2><table><thead><tr><th scope=col>host<th scope=col>by<tbody>\n");
  json_array_foreach((json_t *)(uintptr_t)drained, i, d) {
    buf_puts(out, "<tr>");
    put_cell(out, text_of(d, "host"));
    put_cell(out, text_of(d, "by"));
    buf_putc(out, '\n');
  }
  buf_puts(out, "</table></section>\n");
}

static void put_head(struct buf *out) {
  buf_printf(out,
             "<!doctype html>\n<html lang=en><head><meta charset=utf-8><title>rdzv</title>"
             "<meta name=viewport content=\"width=device-width\"><meta name=color-scheme content=\"light dark\">"
             "<meta http-equiv=refresh content=%d><link rel=icon href=\"data:,\"><style>",
             PAGE_TABLE_REFRESH_S);
  buf_append(out, page_table_style, page_table_style_len);
  buf_printf(out,
             "</style></head><body><header><h1>rdzv</h1><p>Renewed every %d s. "
             "<a href=\"/\">The live page</a> needs JavaScript.</p></header><main>\n",
             PAGE_TABLE_REFRESH_S);
}

void page_put_table(const char *json, size_t len, struct buf *out) {
  struct err e = ERR_INIT;
  json_t *all = json_parse_object(json, len, &e), *jobs = json_object_get(all, "jobs"), *job;
  size_t i;
  put_head(out);
  if (!jobs) put_sentence(out, "", text_of(all, "text"));
  if (jobs && json_array_size(jobs) == 0) buf_puts(out, "<p>This daemon has no job that you may see.</p>\n");
  json_array_foreach(jobs, i, job) put_job(out, job);
  put_drained(out, json_object_get(all, "drained"));
  buf_puts(out, "</main></body></html>\n");
  json_decref(all);
}
