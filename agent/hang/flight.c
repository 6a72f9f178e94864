/* SPDX-License-Identifier: Apache-2.0 */
/* Entries of a flight recorder, as PyTorch 2.13 writes them.
 *
 * Only entries count, not the summary beside them: pg_status numbers groups differently in each worker and mixes
 * point-to-point operations in; pg_config is empty on CPU. An entry that is completed (NCCL) or retired (Gloo, which
 * leaves its state at "scheduled") has ended. Point-to-point operations do not count, because not all ranks of a group
 * take part.
 *
 * The recorder keeps the last 2000 entries. So a group that was used long ago may be missing: then it is unknown, not
 * at 0. */

#include "agent/hang/flight.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "common/json.h"

static const char *text_of(const json_t *v) {
  const char *s = json_string_value(v);
  return s ? s : "";
}

static void read_entry(struct flight *f, const json_t *entry) {
  const char *operation = text_of(json_object_get(entry, "profiling_name"));
  const char *op = strchr(operation, ':');
  const json_t *seq = json_object_get(entry, "collective_seq_id");
  char name[GROUP_NAME_MAX + 1];
  if (json_is_true(json_object_get(entry, "is_p2p")) || !json_is_integer(seq) || json_integer_value(seq) < 1) return;
  /* "gloo:all_reduce" and ["0", "default_pg"] to "gloo 0 default_pg" */
  const json_t *group = json_object_get(entry, "process_group");
  const char *description = text_of(json_array_get(group, 1));
  size_t backend = strcspn(operation, ":");
  snprintf(name, GROUP_NAME_MAX + 1, "%.*s %.60s%s%.40s", operation[backend] ? (int)(backend < 16 ? backend : 16) : 0,
           operation, text_of(json_array_get(group, 0)),
           description[0] && strcmp(description, "undefined") != 0 ? " " : "",
           strcmp(description, "undefined") != 0 ? description : "");
  struct flight_group *g = f->v;
  while (g < f->v + f->n && strcmp(g->name, name) != 0) g++;
  if (g == f->v + FLIGHT_GROUPS_MAX) return;
  if (g == f->v + f->n) {
    f->n++;
    *g = (struct flight_group){.entered = 0};
    snprintf(g->name, sizeof g->name, "%s", name);
  }
  int64_t n = (int64_t)json_integer_value(seq);
  if (n > g->entered) g->entered = n;
  bool ended = json_is_true(json_object_get(entry, "retired")) ||
               strcmp(text_of(json_object_get(entry, "state")), "completed") == 0;
  if (ended || (g->pending && g->pending <= n)) return;
  g->pending = n;
  snprintf(g->op, sizeof g->op, "%s", op ? op + 1 : operation);
}

int flight_parse(struct flight *f, const char *data, size_t n, struct err *e) {
  struct err why;
  if (n > FLIGHT_MAX) return err_set(e, -EPROTO, "its flight recorder has more than %d bytes", FLIGHT_MAX);
  json_t *root = json_parse_object(data, n, &why), *entry;
  const json_t *entries = json_object_get(root, "entries");
  size_t i;
  int rc = 0;
  if (!root) rc = err_set(e, -EPROTO, "its flight recorder is not JSON: %s", why.text);
  json_array_foreach(entries, i, entry) read_entry(f, entry);
  json_decref(root);
  return rc;
}

int flight_unwrap(const char *data, size_t n, struct slice *body, struct err *e) {
  const char *end = memmem(data, n < FLIGHT_HEADER_MAX ? n : FLIGHT_HEADER_MAX, "\r\n\r\n", 4);
  char first[32];
  int status = 0;
  snprintf(first, sizeof first, "%.*s", n < sizeof first ? (int)n : (int)sizeof first - 1, data);
  if (!end || sscanf(first, "HTTP/1.%*1[01] %3d", &status) != 1 || status < 100)
    return err_set(e, -EPROTO, n ? "its answer is not HTTP/1.1" : "it closed the connection");
  *body = (struct slice){end + 4, n - (size_t)(end + 4 - data)};
  for (const char *line = data; line < end; line = memchr(line, '\n', (size_t)(end - line) + 2), line++) {
    static const char name[] = "Content-Length:";
    if (strncasecmp(line, name, sizeof name - 1) != 0) continue;
    long long length = strtoll(line + sizeof name - 1, NULL, 10);
    if (length < 0 || (unsigned long long)length > body->len)
      return err_set(e, -EPROTO, "its answer was cut after %zu of %lld bytes", body->len, length);
    body->len = (size_t)length;
  }
  return status;
}

bool flight_is_idle(const struct flight *f) {
  bool any = false;
  for (size_t i = 0; i < f->n; i++) {
    if (f->v[i].pending) return false;
    any |= f->v[i].entered > 0;
  }
  return any;
}

/* A node. ---------------------------------------------------------------------------------------------------------- */

void flights_add(struct flights *all, int64_t rank, const struct flight *f) {
  bool idle = flight_is_idle(f);
  char text[RANKS_TEXT_MAX + 1];
  snprintf(text, sizeof text, "%lld", (long long)rank);
  for (size_t i = 0; i < f->n; i++) {
    const struct flight_group *g = &f->v[i];
    size_t at = 0;
    if (!idle && !g->pending) continue;
    while (at < all->n && strcmp(all->v[at].group, g->name) != 0) at++;
    if (at == COLLECTIVES_MAX) continue;
    struct collective *c = &all->v[at];
    struct flights_room *room = &all->room[at];
    if (at == all->n) {
      all->n++;
      snprintf(room->group, sizeof room->group, "%s", g->name);
      *c = (struct collective){.group = room->group, .op = room->op, .ranks = room->ranks, .entered = -1};
    }
    struct collective one = {.group = g->name,
                             .op = g->op,
                             .seq = g->pending,
                             .waiting = g->pending > 0,
                             .entered = idle ? g->entered : -1,
                             .idle = idle,
                             .ranks = idle ? text : ""};
    collective_add(c, &one, room->ranks);
    if (c->op != room->op) snprintf(room->op, sizeof room->op, "%s", c->op);
    c->op = room->op;
  }
}

void flights_behind(const struct flights *all, char ranks[RANKS_TEXT_MAX + 1]) {
  ranks[0] = '\0';
  for (size_t i = 0; i < all->n; i++)
    if (collective_lacks(&all->v[i])) ranks_merge(ranks, all->v[i].ranks);
}
