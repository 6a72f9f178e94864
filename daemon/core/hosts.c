/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl hosts: hosts with a past (daemon/health/suspicion.c), and the way back. A user sees what that user's jobs left. */

#include "common/json.h"
#include "daemon/core/internal.h"

#include <string.h>

struct writer {
  struct core *c;
  bool json;
  struct buf *text;
  json_t *hosts;
};

static void put_age(struct buf *out, uint64_t from_ms, uint64_t to_ms) {
  buf_put_duration(out, to_ms > from_ms ? to_ms - from_ms : 0);
}

static void put_run(struct writer *w, const struct suspicion *one, json_t *runs) {
  uint64_t now_ms = w->c->jobs.wall_ms;
  json_array_append_new(runs, json_pack("{s:o,s:s,s:s,s:I,s:I,s:I,s:I,s:b}", "job", json_text(one->job), "run",
                                        one->run, "command", one->command, "node_rank", (json_int_t)one->node_rank,
                                        "nodes", (json_int_t)one->nodes, "failures", (json_int_t)one->failures,
                                        "wall_ms", (json_int_t)one->wall_ms, "passed_without", one->passed));
  if (w->json) return;
  buf_puts(w->text, "  job ");
  status_put_name(w->text, one->job);
  buf_printf(w->text, ": %lld failure%s as node %lld of %lld, ", (long long)one->failures,
             one->failures == 1 ? "" : "s", (long long)one->node_rank, (long long)one->nodes);
  put_age(w->text, one->wall_ms, now_ms);
  buf_puts(w->text, one->passed ? " ago; it has passed without this host since\n" : " ago\n");
}

static void put_host(struct writer *w, const struct suspicion_user *u, const char *host) {
  uint64_t now_ms = w->c->jobs.wall_ms, ends_ms;
  int64_t score = suspicions_score(&w->c->jobs.suspicions, host, u->uid, now_ms, &ends_ms);
  json_t *runs = json_array();
  if (!w->json) {
    buf_puts(w->text, "host ");
    status_put_name(w->text, host);
    buf_printf(w->text, " (uid %lld): %s", (long long)u->uid, ends_ms ? "left out of new rounds for " : "suspected");
    if (ends_ms) put_age(w->text, now_ms, ends_ms);
    buf_printf(w->text, ", score %.2f of %.2f%s\n", (double)score / 1000, (double)SUSPICION_VERDICT / 1000,
               ends_ms ? "; rdzvctl undrain readmits it" : "");
  }
  for (size_t i = u->n; i-- > 0;)
    if (!strcmp(u->v[i]->host, host)) put_run(w, u->v[i], runs);
  json_array_append_new(w->hosts, json_pack("{s:o,s:I,s:b,s:f,s:I,s:o}", "host", json_text(host), "uid",
                                            (json_int_t)u->uid, "excluded", ends_ms != 0, "score", (double)score / 1000,
                                            "ends_wall_ms", (json_int_t)ends_ms, "runs", runs));
}

void hosts_put(struct core *c, int64_t uid, bool json, struct buf *out) {
  struct writer w = {.c = c, .json = json, .text = out, .hosts = json_array()};
  for (struct map_entry *e = NULL; (e = map_next(&c->jobs.suspicions.users, e));) {
    const struct suspicion_user *u = e->value;
    if (!control_may(c, uid, NULL) && u->uid != uid) continue;
    for (size_t i = u->n; i-- > 0;) {
      bool again = false;
      for (size_t k = u->n; k-- > i + 1 && !again;) again = !strcmp(u->v[k]->host, u->v[i]->host);
      if (!again) put_host(&w, u, u->v[i]->host);
    }
  }
  json_t *all = json_pack("{s:o}", "hosts", w.hosts);
  if (json) {
    json_print(out, all);
    buf_putc(out, '\n');
  } else if (!out->len) {
    buf_puts(out, "no jobs have failed on one host alone\n");
  }
  json_decref(all);
}

size_t hosts_excluded(struct core *c, int64_t uid) {
  size_t n = 0;
  for (struct map_entry *e = NULL; (e = map_next(&c->jobs.suspicions.users, e));) {
    int64_t of = ((const struct suspicion_user *)e->value)->uid;
    if (control_may(c, uid, NULL) || of == uid)
      n += suspicions_count_excluded(&c->jobs.suspicions, of, c->jobs.wall_ms);
  }
  return n;
}
