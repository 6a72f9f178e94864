/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts with a past.
 *
 * One sick host fails one job after the other, and each job has its own --exclude-after and forgets. The daemon
 * remembers which runs failed where. A wrong verdict costs a good host, so the question is which failures are
 * independent of each other, and speak of the host rather than of the script.
 *
 *   - A record is one run on one host, however often it failed there: a script that crashes four times is one witness.
 *   - A run that failed on two hosts speaks of itself. Its records count nowhere.
 *   - A command that failed on other hosts half as often as here, or more, speaks of itself too.
 *   - Rank 0 writes checkpoints and logs. Ranks follow addresses, so rank 0 is on the same host in each run. Two records
 *     with rank 0 are one witness, whatever the commands. With another rank, two commands are two witnesses.
 *   - One command twice is two witnesses only if the host had different ranks: then the failure followed the host.
 *   - In a run of one node no other host passed. Its record counts once the command has passed elsewhere.
 *   - A record is certain, and weighs 1, if the run failed there more than once, or if the run or its command has passed
 *     without the host since. Otherwise it weighs 1/2. Each weight halves every 7 days, linearly in between.
 *   - A run that succeeds with the host takes its single failure there back.
 *   - A user whose runs fail on many hosts changes something else than hosts. So the host must have more weight than all
 *     other hosts of that user that are not excluded.
 *
 * Two independent witnesses with a weight of 1.25 together, one of them certain, exclude the host: at the second failure
 * if the first is certain, and for five days if both are.
 *
 * Records of one user decide for that user's jobs. Otherwise somebody could take hosts from others by failing there. */

#include "daemon/health/suspicion.h"

#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"

enum { WHOLE = 1000, WITNESSES_MAX = 16, NAMED_MAX = 3 };

/* Records. --------------------------------------------------------------------------------------------------------- */

void suspicions_init(struct suspicions *s, uint64_t seed) {
  map_init(&s->users, seed);
}

static void remove_at(struct suspicion_user *u, size_t i) {
  free(u->v[i]->host);
  free(u->v[i]->job);
  free(u->v[i]);
  memmove(&u->v[i], &u->v[i + 1], (--u->n - i) * sizeof(struct suspicion *));
  u->judged = false;
}

static void forget_user(struct suspicions *s, struct suspicion_user *u) {
  map_remove_n(&s->users, &u->uid, sizeof u->uid);
  while (u->n) remove_at(u, u->n - 1);
  free(u->v);
  free(u);
}

void suspicions_finish(struct suspicions *s) {
  for (struct map_entry *e = NULL; (e = map_next(&s->users, e));) forget_user(s, e->value);
  map_finish(&s->users);
}

static struct suspicion_user *find_user(const struct suspicions *s, int64_t uid) {
  return map_get_n(&s->users, &uid, sizeof uid);
}

static struct suspicion_user *add_user(struct suspicions *s, int64_t uid) {
  struct suspicion_user *u = find_user(s, uid), *oldest = NULL;
  if (u) return u;
  for (struct map_entry *e = NULL; s->users.count >= SUSPICION_USERS_MAX && (e = map_next(&s->users, e));) {
    u = e->value;
    if (!oldest || !u->n || (oldest->n && u->v[u->n - 1]->wall_ms < oldest->v[oldest->n - 1]->wall_ms)) oldest = u;
  }
  if (oldest) forget_user(s, oldest);
  u = xcalloc(1, sizeof *u);
  u->uid = uid;
  map_put_n(&s->users, &uid, sizeof uid, u);
  return u;
}

/* With its records of other hosts, without which those that are left would say something else. */
static void forget_oldest_run(struct suspicion_user *u, const char *but) {
  char run[sizeof u->v[0]->run];
  size_t oldest = 0;
  while (oldest < u->n - 1 && !strcmp(u->v[oldest]->run, but)) oldest++;
  memcpy(run, u->v[oldest]->run, sizeof run);
  for (size_t i = u->n; i-- > 0;)
    if (!strcmp(u->v[i]->run, run)) remove_at(u, i);
}

/* When the exclusion of the host ends; 0: it is not excluded. */
static uint64_t end_of_exclusion(const struct suspicion_user *u, const char *host) {
  for (size_t i = 0; i < u->n; i++)
    if (!strcmp(u->v[i]->host, host)) return u->v[i]->excluded_ms;
  return 0;
}

/* The record of that run on that host is the newest now. */
static struct suspicion *put(struct suspicions *s, const struct suspicion *f) {
  struct suspicion_user *u = add_user(s, f->uid);
  struct suspicion *one = NULL;
  uint64_t excluded_ms = end_of_exclusion(u, f->host);
  u->judged = false;
  for (size_t i = u->n; i-- > 0 && !one;) {
    if (strcmp(u->v[i]->run, f->run) != 0 || strcmp(u->v[i]->host, f->host) != 0) continue;
    one = u->v[i];
    memmove(&u->v[i], &u->v[i + 1], (u->n - 1 - i) * sizeof(struct suspicion *));
    u->v[u->n - 1] = one;
  }
  if (one) return one;
  if (u->n >= SUSPICIONS_USER_MAX) forget_oldest_run(u, f->run);
  one = xmemdup(f, sizeof *f);
  one->host = xstrdup(f->host);
  one->job = xstrdup(f->job);
  one->excluded_ms = excluded_ms;
  one->failures = 0;
  one->passed = false;
  u->v = xgrow(u->v, u->n, &u->cap, sizeof(struct suspicion *));
  return u->v[u->n++] = one;
}

/* Weights. --------------------------------------------------------------------------------------------------------- */

static bool is_certain(const struct suspicion *one) {
  return one->passed || one->failures > 1;
}

static int64_t weight(const struct suspicion *one, uint64_t wall_ms) {
  uint64_t age = wall_ms > one->wall_ms ? wall_ms - one->wall_ms : 0, halves = age / SUSPICION_HALF_LIFE_MS;
  uint64_t full = is_certain(one) ? WHOLE : WHOLE / 2;
  if (halves > 16) return 0;
  full >>= halves;
  return (int64_t)(full - full * (age % SUSPICION_HALF_LIFE_MS) / (2 * SUSPICION_HALF_LIFE_MS));
}

static bool is_excluded(const struct suspicion_user *u, const char *host, uint64_t wall_ms) {
  return wall_ms < end_of_exclusion(u, host);
}

static bool speaks_of_host(const struct suspicion_user *u, const struct suspicion *one, uint64_t wall_ms) {
  size_t here = 0, elsewhere = 0;
  for (size_t i = 0; i < u->n; i++) {
    const struct suspicion *other = u->v[i];
    bool at_home = !strcmp(other->host, one->host);
    if (!at_home && !strcmp(other->run, one->run)) return false;
    if (!one->command[0] || strcmp(other->command, one->command) != 0) continue;
    here += at_home;
    elsewhere += !at_home && wall_ms >= other->excluded_ms;
  }
  return (!elsewhere || 2 * elsewhere < here) && (one->nodes > 1 || one->passed);
}

static bool are_independent(const struct suspicion *a, const struct suspicion *b) {
  bool ranks = a->nodes > 1 && b->nodes > 1; /* mean something */
  if (ranks && a->node_rank != b->node_rank) return true;
  if (ranks && a->node_rank == 0) return false;
  return a->command[0] && b->command[0] && strcmp(a->command, b->command) != 0;
}

/* The weight of the independent witnesses against a host. *certain: there are two, and one of them is. */
static int64_t score(const struct suspicion_user *u, const char *host, uint64_t wall_ms, bool *certain) {
  const struct suspicion *found[WITNESSES_MAX];
  int64_t sum = 0;
  size_t n = 0;
  *certain = false;
  for (size_t i = u->n; i-- > 0 && n < WITNESSES_MAX;) {
    const struct suspicion *one = u->v[i];
    bool is_one = one->speaks && !strcmp(one->host, host);
    for (size_t k = 0; k < n && is_one; k++) is_one = are_independent(one, found[k]);
    if (!is_one) continue;
    found[n++] = one;
    *certain |= is_certain(one);
    sum += weight(one, wall_ms);
  }
  *certain &= n >= 2;
  return sum;
}

static int64_t score_elsewhere(const struct suspicion_user *u, const char *host, uint64_t wall_ms) {
  int64_t sum = 0;
  for (size_t i = 0; i < u->n; i++) {
    const struct suspicion *one = u->v[i];
    if (one->speaks && strcmp(one->host, host) != 0 && wall_ms >= one->excluded_ms) sum += weight(one, wall_ms);
  }
  return sum;
}

/* Verdicts. -------------------------------------------------------------------------------------------------------- */

/* Weights only fall. */
static uint64_t find_end(const struct suspicion_user *u, const char *host, uint64_t wall_ms) {
  uint64_t from = wall_ms, to = wall_ms + 8 * SUSPICION_HALF_LIFE_MS;
  bool certain;
  while (to - from > 1000) {
    uint64_t at = from + (to - from) / 2;
    if (score(u, host, at, &certain) >= SUSPICION_VERDICT)
      from = at;
    else
      to = at;
  }
  return to;
}

static void judge(struct suspicion_user *u, const char *host, uint64_t wall_ms) {
  bool certain;
  int64_t sum = score(u, host, wall_ms, &certain);
  bool was = is_excluded(u, host, wall_ms);
  bool out = certain && sum >= SUSPICION_VERDICT && (was || sum > score_elsewhere(u, host, wall_ms));
  uint64_t end_ms = out ? find_end(u, host, wall_ms) : 0;
  for (size_t i = 0; i < u->n; i++)
    if (!strcmp(u->v[i]->host, host)) u->v[i]->excluded_ms = end_ms;
}

/* The i-th record is the first one of its host. */
static bool begins_host(const struct suspicion_user *u, size_t i) {
  for (size_t k = 0; k < i; k++)
    if (!strcmp(u->v[k]->host, u->v[i]->host)) return false;
  return true;
}

/* Each host of the user, since a record speaks for and against others. Those that are excluded first no longer speak for
 * the rest, so there is a second pass. */
static struct suspicion_user *judged(struct suspicions *s, int64_t uid, uint64_t wall_ms) {
  struct suspicion_user *u = find_user(s, uid);
  if (!u || u->judged) return u;
  for (int pass = 0; pass < 2; pass++) {
    for (size_t i = 0; i < u->n; i++) u->v[i]->speaks = speaks_of_host(u, u->v[i], wall_ms);
    for (size_t i = 0; i < u->n; i++)
      if (begins_host(u, i)) judge(u, u->v[i]->host, wall_ms);
  }
  u->judged = true;
  return u;
}

bool suspicions_exclude(struct suspicions *s, const char *host, int64_t uid, uint64_t wall_ms) {
  const struct suspicion_user *u = s->users.count ? judged(s, uid, wall_ms) : NULL;
  return u && is_excluded(u, host, wall_ms);
}

size_t suspicions_count_excluded(struct suspicions *s, int64_t uid, uint64_t wall_ms) {
  const struct suspicion_user *u = judged(s, uid, wall_ms);
  size_t n = 0;
  for (size_t i = 0; u && i < u->n; i++) n += wall_ms < u->v[i]->excluded_ms && begins_host(u, i);
  return n;
}

int64_t suspicions_score(struct suspicions *s, const char *host, int64_t uid, uint64_t wall_ms,
                         uint64_t *ends_wall_ms) {
  const struct suspicion_user *u = judged(s, uid, wall_ms);
  bool certain;
  *ends_wall_ms = u && is_excluded(u, host, wall_ms) ? end_of_exclusion(u, host) : 0;
  return u ? score(u, host, wall_ms, &certain) : 0;
}

void suspicions_reason(const struct suspicions *s, const char *host, int64_t uid, struct buf *out) {
  const struct suspicion_user *u = find_user(s, uid);
  const char *jobs[SUSPICIONS_USER_MAX];
  size_t n = 0;
  for (size_t i = u ? u->n : 0; i-- > 0;) {
    bool is_new = !strcmp(u->v[i]->host, host);
    for (size_t k = 0; k < n && is_new; k++) is_new = strcmp(jobs[k], u->v[i]->job) != 0;
    if (is_new) jobs[n++] = u->v[i]->job;
  }
  buf_puts(out, n == 1 ? "failures of job " : "failures of jobs ");
  for (size_t i = 0; i < n && i < NAMED_MAX; i++) {
    if (i) buf_puts(out, i + 1 == n ? " and " : ", ");
    buf_put_escaped(out, jobs[i], strlen(jobs[i]), JOB_ID_MAX);
  }
  if (n > NAMED_MAX) buf_printf(out, " and %zu more", n - NAMED_MAX);
}

/* Events. ---------------------------------------------------------------------------------------------------------- */

void suspicions_failed(struct suspicions *s, const struct suspicion *f) {
  struct suspicion *one = put(s, f);
  one->node_rank = f->node_rank;
  one->nodes = f->nodes;
  one->wall_ms = f->wall_ms;
  one->failures++;
  one->unsaved = true;
}

void suspicions_passed(struct suspicions *s, const struct suspicion_pass *p) {
  struct suspicion_user *u = find_user(s, p->uid);
  for (size_t i = u ? u->n : 0; i-- > 0;) {
    struct suspicion *one = u->v[i];
    bool run = !strcmp(one->run, p->run), command = p->command[0] && !strcmp(one->command, p->command);
    if (!run && !command) continue;
    if (!p->took_part(p->ctx, one->host)) {
      if (one->passed) continue;
      one->passed = one->unsaved = true;
      u->judged = false;
    } else if (run && one->failures == 1) {
      one->failures = 0; /* which its line says */
      p->taken_back(p->ctx, one);
      remove_at(u, i);
    }
  }
}

static size_t clear_of(struct suspicion_user *u, const char *host) {
  size_t before = u->n;
  for (size_t i = u->n; i-- > 0;)
    if (!strcmp(u->v[i]->host, host)) remove_at(u, i);
  return before - u->n;
}

size_t suspicions_clear(struct suspicions *s, const char *host, int64_t uid, bool all) {
  struct suspicion_user *u = find_user(s, uid);
  size_t n = 0;
  if (!all) return u ? clear_of(u, host) : 0;
  for (struct map_entry *e = NULL; (e = map_next(&s->users, e));) n += clear_of(e->value, host);
  return n;
}

/* The state file. -------------------------------------------------------------------------------------------------- */

void *suspicion_json(const struct suspicion *one) {
  json_t *v = json_pack("{s:s,s:s,s:I,s:s,s:s,s:s,s:I,s:I,s:I,s:I}", "event", "suspect", "host", one->host, "uid",
                        (json_int_t)one->uid, "job", one->job, "run", one->run, "command", one->command, "node_rank",
                        (json_int_t)one->node_rank, "nodes", (json_int_t)one->nodes, "failures",
                        (json_int_t)one->failures, "wall_ms", (json_int_t)one->wall_ms);
  if (one->passed) json_object_set_new(v, "passed", json_true());
  return v;
}

void *suspicions_next_unsaved(struct suspicions *s, int64_t uid) {
  const struct suspicion_user *u = find_user(s, uid);
  for (size_t i = 0; u && i < u->n; i++) {
    if (!u->v[i]->unsaved) continue;
    u->v[i]->unsaved = false;
    return suspicion_json(u->v[i]);
  }
  return NULL;
}

void *suspicion_cleared_json(const char *host, int64_t uid, bool all) {
  return json_pack("{s:s,s:s,s:I,s:b}", "event", "cleared", "host", host, "uid", (json_int_t)uid, "all", all);
}

void suspicions_lines(const struct suspicions *s, struct buf *out) {
  for (struct map_entry *e = NULL; (e = map_next(&s->users, e));) {
    const struct suspicion_user *u = e->value;
    for (size_t i = 0; i < u->n; i++) {
      json_put(out, suspicion_json(u->v[i]));
      buf_putc(out, '\n');
    }
  }
}

bool suspicions_load(struct suspicions *s, const void *json, bool *ours) {
  const json_t *o = json;
  const char *event = json_read_text(o, "event", 8), *host = json_read_text(o, "host", HOST_MAX);
  const char *job = json_read_text(o, "job", JOB_ID_MAX), *run = json_read_text(o, "run", INCARNATION_MAX);
  const char *command = json_string_value(json_object_get(o, "command"));
  struct suspicion f = {0};
  int64_t at_ms;
  *ours = !strcmp(event, "suspect") || !strcmp(event, "cleared");
  if (!*ours || !host[0] || !json_read_int(o, "uid", -1, UINT32_MAX, &f.uid)) return false;
  if (!strcmp(event, "cleared")) {
    suspicions_clear(s, host, f.uid, json_is_true(json_object_get(o, "all")));
    return true;
  }
  if (!job[0] || !run[0] || !command || strlen(command) > COMMAND_HASH_MAX ||
      !json_read_int(o, "node_rank", -1, NODES_MAX, &f.node_rank) ||
      !json_read_int(o, "nodes", 0, NODES_MAX, &f.nodes) || !json_read_int(o, "failures", 0, INT32_MAX, &f.failures) ||
      !json_read_int(o, "wall_ms", 0, INT64_MAX, &at_ms))
    return false;
  f.host = (char *)(uintptr_t)host;
  f.job = (char *)(uintptr_t)job;
  memcpy(f.run, run, strlen(run));
  memcpy(f.command, command, strlen(command));
  f.wall_ms = (uint64_t)at_ms;
  struct suspicion *one = put(s, &f);
  one->node_rank = f.node_rank;
  one->nodes = f.nodes;
  one->failures = f.failures;
  one->wall_ms = f.wall_ms;
  one->passed = json_is_true(json_object_get(o, "passed"));
  struct suspicion_user *u = find_user(s, f.uid);
  if (!f.failures) remove_at(u, u->n - 1);
  return true;
}
