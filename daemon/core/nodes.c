/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl nodes: what the nodes of a job have said about their hardware, as a table for people and as JSON for programs.
 *
 * A row has one cell for each kind of fact. GPUs or ports of a node that differ share a cell: "x16/x8". A cell that a
 * finding is about begins with "!", which rdzvctl colours on a terminal. The findings follow as sentences. */

#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"
#include "daemon/core/internal.h"
#include "daemon/job/health.h"

enum { VALUES_MAX = 3, GAP = 2, OWN_COLUMNS = 2 }; /* the node's rank and host */

/* In the order of ranks, then those without one. The caller frees it. */
static const struct member **sorted_members(const struct job *j, size_t *n) {
  const struct member **v = xcalloc(j->n_members + 1, sizeof(*v));
  *n = 0;
  for (int64_t r = 0; r < j->round_nodes; r++) {
    const struct member *m = job_find_rank(j, r);
    if (m) v[(*n)++] = m;
  }
  for (size_t i = 0; i < j->n_members; i++)
    if (j->members[i]->node_rank < 0) v[(*n)++] = j->members[i];
  return v;
}

static bool is_marked(const struct job *j, const char *host, enum fact_id id) {
  const struct odd_host *o = job_odd_host(j, host);
  for (const struct finding *v = o ? o->first : NULL; v; v = v->next)
    if (v->present && v->fact == id) return true;
  return false;
}

/* The cells of a node, one for each kind of fact. */
static void fill_row(const struct job *j, const struct member *m, struct buf cells[FACT_COUNT]) {
  struct fleet_fact seen[FACT_COUNT][VALUES_MAX], a;
  size_t n_seen[FACT_COUNT] = {0};
  for (size_t i = 0; m->facts && fleet_fact(m->facts, i, &a); i++) {
    size_t k = 0;
    if (!fact_kinds[a.id].heading[0]) continue;
    while (k < n_seen[a.id] && (seen[a.id][k].value != a.value || strcmp(seen[a.id][k].text, a.text) != 0)) k++;
    if (k < n_seen[a.id] || k == VALUES_MAX) continue;
    seen[a.id][n_seen[a.id]++] = a;
    struct buf *out = &cells[a.id];
    if (!k && is_marked(j, m->host, a.id)) buf_putc(out, '!');
    if (k) buf_putc(out, '/');
    struct buf text = BUF_INIT;
    fact_put_value(a.id, a.value, a.text, &text);
    buf_put_plain(out, buf_text(&text), text.len, FLEET_TEXT_MAX);
    buf_finish(&text);
  }
}

static void pad(struct buf *out, size_t from, size_t width) {
  while (out->len < from + width) buf_putc(out, ' ');
}

static void put_findings(const struct job *j, struct buf *out) {
  const struct findings *all = job_findings(j);
  for (struct map_entry *e = NULL; all && (e = map_next(&all->hosts, e));)
    for (const struct finding *v = ((const struct odd_host *)e->value)->first; v; v = v->next) {
      if (!v->present) continue;
      buf_puts(out, "! node ");
      status_put_name(out, e->key);
      buf_puts(out, ": ");
      buf_put_plain(out, v->sentence, strlen(v->sentence), TEXT_MAX);
      buf_printf(out, " (%s, for ", fact_class_name(v->class));
      buf_put_duration(out, j->jobs->now_ms - v->first_ms);
      buf_puts(out, ")\n");
    }
}

void nodes_text(const struct job *j, struct buf *out) {
  size_t n, silent = 0, widths[FACT_COUNT] = {0}, host_width = strlen("HOST");
  const struct member **v = sorted_members(j, &n);
  struct buf(*cells)[FACT_COUNT] = xcalloc(n + 1, sizeof(*cells));
  for (size_t i = 0; i < n; i++) {
    struct buf name = BUF_INIT;
    fill_row(j, v[i], cells[i]);
    status_put_name(&name, v[i]->host);
    if (name.len > host_width) host_width = name.len;
    buf_finish(&name);
    for (int id = 0; id < FACT_COUNT; id++)
      if (cells[i][id].len > widths[id]) widths[id] = cells[i][id].len;
    silent += !v[i]->facts;
  }
  buf_puts(out, "NODE  HOST");
  pad(out, out->len, host_width - strlen("HOST"));
  for (int id = 0; id < FACT_COUNT; id++) {
    const char *heading = fact_kinds[id].heading;
    if (!widths[id]) continue;
    if (widths[id] < strlen(heading)) widths[id] = strlen(heading);
    pad(out, out->len, GAP);
    size_t from = out->len;
    buf_puts(out, heading);
    pad(out, from, widths[id]);
  }
  for (size_t i = 0; i <= n; i++) { /* and the end of the line before */
    while (out->len && out->data[out->len - 1] == ' ') out->len--;
    buf_putc(out, '\n');
    if (i == n) break;
    if (v[i]->node_rank >= 0)
      buf_printf(out, "%4lld  ", (long long)v[i]->node_rank);
    else
      buf_puts(out, "   -  ");
    size_t from = out->len;
    status_put_name(out, v[i]->host);
    pad(out, from, host_width);
    for (int id = 0; id < FACT_COUNT; id++) {
      if (!widths[id]) continue;
      pad(out, out->len, GAP);
      from = out->len;
      buf_puts(out, cells[i][id].len ? buf_text(&cells[i][id]) : "-");
      pad(out, from, widths[id]);
    }
    for (int id = 0; id < FACT_COUNT; id++) buf_finish(&cells[i][id]);
  }
  put_findings(j, out);
  for (size_t i = 0; i < n; i++) {
    const char *why = v[i]->facts ? fleet_trouble(v[i]->facts) : "";
    if (!why[0]) continue;
    buf_puts(out, "node ");
    status_put_name(out, v[i]->host);
    buf_puts(out, ": not all facts are known, and none counts as bad for that: ");
    buf_put_plain(out, why, strlen(why), REASON_MAX);
    buf_putc(out, '\n');
  }
  if (silent)
    buf_printf(out, "%zu node%s sent no facts: --health off, or not yet\n", silent, silent == 1 ? " has" : "s have");
  free(cells);
  free(v);
}

json_t *nodes_findings_json(const struct job *j, const char *host, size_t max) {
  const struct findings *all = job_findings(j);
  json_t *list = json_array();
  for (struct map_entry *e = NULL; all && (e = map_next(&all->hosts, e));)
    for (const struct finding *v = ((const struct odd_host *)e->value)->first; v; v = v->next) {
      if (!v->present || (host && strcmp(host, e->key) != 0) || json_array_size(list) == max) continue;
      json_array_append_new(list, json_pack("{s:o,s:s,s:o,s:s,s:o,s:o,s:o,s:I}", "host", json_text(e->key), "fact",
                                            fact_kinds[v->fact].name, "at", json_text(v->at), "class",
                                            fact_class_name(v->class), "value", json_text(v->value), "usual",
                                            json_text(v->usual), "sentence", json_text(v->sentence), "since_wall_ms",
                                            (json_int_t)v->wall_ms));
    }
  return list;
}

static json_t *node_json(const struct job *j, const struct member *m) {
  struct fleet_fact a;
  json_t *facts = json_array();
  for (size_t i = 0; m->facts && fleet_fact(m->facts, i, &a); i++) {
    json_t *v = json_pack("{s:s}", "name", fact_kinds[a.id].name);
    if (a.at[0]) json_object_set_new(v, "at", json_text(a.at));
    json_object_set_new(v, "value",
                        fact_kinds[a.id].type == FACT_TEXT ? json_text(a.text) : json_integer((json_int_t)a.value));
    json_array_append_new(facts, v);
  }
  const struct odd_host *o = job_odd_host(j, m->host);
  json_t *v =
      json_pack("{s:I,s:o,s:s,s:o,s:o}", "node_rank", (json_int_t)m->node_rank, "host", json_text(m->host), "agent",
                m->agent, "facts", facts, "odd", o ? nodes_findings_json(j, m->host, FINDINGS_MAX) : json_array());
  if (m->facts && fleet_trouble(m->facts)[0]) json_object_set_new(v, "text", json_text(fleet_trouble(m->facts)));
  return v;
}

void nodes_json(const struct job *j, struct buf *out) {
  size_t n;
  const struct member **v = sorted_members(j, &n);
  buf_puts(out, "{\"job\":");
  json_put(out, json_text(j->id));
  buf_puts(out, ",\"nodes\":[");
  for (size_t i = 0; i < n && out->len <= STATUS_MAX; i++) {
    if (i) buf_putc(out, ',');
    json_put(out, node_json(j, v[i]));
  }
  buf_puts(out, "]}\n");
  free(v);
}
