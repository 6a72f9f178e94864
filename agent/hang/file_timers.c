/* SPDX-License-Identifier: Apache-2.0 */
/* A handful of timers per worker: an array, looked through from its beginning. */

#include "agent/hang/file_timers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "common/json.h"
#include "common/mem.h"

enum { SIGNO_MAX = 64 };

struct held {
  struct file_timer timer;
  uint32_t owner;
};

struct file_timers {
  struct held *v;
  size_t n, cap;
};

int file_timer_parse(const char *line, size_t n, struct file_timer *out, struct err *e) {
  json_int_t pid = 0, signo = 0;
  const char *scope = NULL;
  double expires = 0;
  json_error_t why;
  json_t *o = json_parse_object(line, n, e);
  if (!o) return -EINVAL;
  int rc = json_unpack_ex(o, &why, 0, "{s:I, s:s, s:F, s:I}", "pid", &pid, "scope_id", &scope, "expiration_time",
                          &expires, "signal", &signo);
  if (rc)
    err_set(e, -EINVAL, "%s", why.text);
  else if (pid <= 0 || pid > INT32_MAX || signo > SIGNO_MAX)
    rc = err_set(e, -EINVAL, "no process has this pid, or there is no such signal");
  else
    *out = (struct file_timer){
        .pid = (pid_t)pid, .signo = signo > 0 ? (int)signo : 0, .expires_s = expires, .scope = xstrdup(scope)};
  json_decref(o);
  return rc ? -EINVAL : 0;
}

void file_timer_finish(struct file_timer *t) {
  free(t->scope);
  t->scope = NULL;
}

struct file_timers *file_timers_create(void) {
  return xcalloc(1, sizeof(struct file_timers));
}

static void drop(struct file_timers *t, size_t i) {
  file_timer_finish(&t->v[i].timer);
  t->v[i] = t->v[--t->n];
}

void file_timers_destroy(struct file_timers *t) {
  if (!t) return;
  while (t->n) drop(t, t->n - 1);
  free(t->v);
  free(t);
}

static size_t find(const struct file_timers *t, const struct file_timer *request) {
  size_t i = 0;
  while (i < t->n && (t->v[i].timer.pid != request->pid || strcmp(t->v[i].timer.scope, request->scope) != 0)) i++;
  return i;
}

int file_timers_take(struct file_timers *t, struct file_timer *request, uint32_t owner, struct err *e) {
  size_t i = find(t, request);
  bool release = request->expires_s < 0;
  int rc = 0;
  if (i < t->n) drop(t, i);
  if (!release && t->n == FILE_TIMERS_MAX) rc = err_set(e, -ENOSPC, "there are %d timers already", FILE_TIMERS_MAX);
  if (release || rc) {
    file_timer_finish(request);
    return rc;
  }
  if (t->n == t->cap) {
    t->cap = t->cap ? 2 * t->cap : 8;
    t->v = xrealloc(t->v, t->cap * sizeof(*t->v));
  }
  t->v[t->n++] = (struct held){.timer = *request, .owner = owner};
  request->scope = NULL;
  return 0;
}

void file_timers_extend(struct file_timers *t, double seconds) {
  for (size_t i = 0; i < t->n; i++) t->v[i].timer.expires_s += seconds;
}

void file_timers_keep(struct file_timers *t, const struct local_set *owners) {
  for (size_t i = t->n; i > 0; i--)
    if (!local_set_has(owners, t->v[i - 1].owner)) drop(t, i - 1);
}

bool file_timers_next(const struct file_timers *t, double *expires_s) {
  for (size_t i = 0; i < t->n; i++)
    if (i == 0 || t->v[i].timer.expires_s < *expires_s) *expires_s = t->v[i].timer.expires_s;
  return t->n > 0;
}

/* The one that counts: a signal comes before none, then the earlier one. */
static bool outweighs(const struct file_timer *a, const struct file_timer *b) {
  if ((a->signo > 0) != (b->signo > 0)) return a->signo > 0;
  return a->expires_s < b->expires_s;
}

bool file_timers_expired(struct file_timers *t, double now_s, struct file_timer *out, uint32_t *owner) {
  size_t first = 0, best;
  while (first < t->n && t->v[first].timer.expires_s > now_s) first++;
  if (first == t->n) return false;
  pid_t pid = t->v[first].timer.pid;
  best = first;
  for (size_t i = first + 1; i < t->n; i++) {
    const struct file_timer *a = &t->v[i].timer;
    if (a->pid == pid && a->expires_s <= now_s && outweighs(a, &t->v[best].timer)) best = i;
  }
  *out = t->v[best].timer;
  *owner = t->v[best].owner;
  t->v[best].timer.scope = NULL;
  for (size_t i = t->n; i > 0; i--)
    if (t->v[i - 1].timer.pid == pid) drop(t, i - 1);
  return true;
}
