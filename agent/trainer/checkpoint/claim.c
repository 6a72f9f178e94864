/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/trainer/checkpoint/codec.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void ckpt_owner_format(const struct ckpt_owner *o, char out[CKPT_OWNER_MAX]) {
  snprintf(out, CKPT_OWNER_MAX,
           "rdzv-trainer job %s incarnation %s round %" PRIu32 " generation %" PRIu32 " host %s boot %s space %" PRIu64
           " pid %" PRIu64 " started %" PRIu64,
           o->job, o->incarnation, o->round, o->generation, o->host, o->boot, o->pid_space, o->pid, o->started);
}

bool ckpt_owner_parse(const char *text, struct ckpt_owner *out) {
  struct ckpt_owner o = {0};
  char again[CKPT_OWNER_MAX];
  int n = sscanf(text,
                 "rdzv-trainer job %131s incarnation %63s round %9" SCNu32 " generation %9" SCNu32
                 " host %63s boot %39s space %19" SCNu64 " pid %19" SCNu64 " started %19" SCNu64,
                 o.job, o.incarnation, &o.round, &o.generation, o.host, o.boot, &o.pid_space, &o.pid, &o.started);
  if (n != 9) return false;
  ckpt_owner_format(&o, again);
  if (strcmp(again, text) != 0) return false;
  *out = o;
  return true;
}

static bool has_job(const struct ckpt_owner *o) {
  return strcmp(o->incarnation, CKPT_ALONE) != 0;
}

void ckpt_owner_describe(const struct ckpt_owner *o, char *out, size_t size) {
  if (has_job(o))
    snprintf(out, size, "job %s, round %" PRIu32 ", pid %" PRIu64 " on %s", o->job, o->round, o->pid, o->host);
  else
    snprintf(out, size, "a trainer without an agent, pid %" PRIu64 " on %s", o->pid, o->host);
}

static bool same_life(const struct ckpt_owner *a, const struct ckpt_owner *b) {
  return has_job(a) && has_job(b) && !strcmp(a->job, b->job) && !strcmp(a->incarnation, b->incarnation);
}

bool ckpt_owner_same_job(const struct ckpt_owner *a, const struct ckpt_owner *b) {
  return has_job(a) && has_job(b) && !strcmp(a->job, b->job);
}

/* A daemon that restarts with its clock behind creates an incarnation that sorts below the old one. So the older
 * incarnation gives way only when it is gone, and its agents see to that. */
enum ckpt_claim ckpt_claim_decide(const struct ckpt_owner *me, const struct ckpt_owner *held, enum ckpt_life life) {
  if (held && same_life(me, held)) return held->round > me->round ? CKPT_FENCED : CKPT_TAKE;
  bool same_process = held && !strcmp(me->boot, held->boot) && me->pid_space == held->pid_space &&
                      me->pid == held->pid && me->started == held->started;
  if (!held || life == CKPT_GONE || same_process) return CKPT_TAKE;
  bool same_job = ckpt_owner_same_job(me, held);
  if (same_job && strcmp(me->incarnation, held->incarnation) > 0) return CKPT_TAKE;
  if (same_job || life == CKPT_UNKNOWN) return CKPT_WAIT;
  return CKPT_BUSY;
}

uint32_t ckpt_claim_generation(const struct ckpt_owner *me, const struct ckpt_owner *held, const struct ckpt_id *v,
                               size_t n) {
  uint32_t top = held ? held->generation : 0, mine = held && same_life(me, held) ? held->generation : 0;
  for (size_t i = 0; i < n; i++) {
    if (v[i].generation > top) top = v[i].generation;
    if (has_job(me) && v[i].generation > mine && !strcmp(v[i].incarnation, me->incarnation)) mine = v[i].generation;
  }
  return mine && mine == top ? mine : top + 1;
}

int ckpt_fit(const struct ckpt_marker *have, const struct ckpt_kind *had, const char *job, const struct ckpt_kind *want,
             struct err *e) {
  char text[320];
  int rc = ckpt_kind_check(had, want, e);
  if (rc || !ckpt_options_differ(had, want, text, sizeof text)) return rc;
  err_set(e, -EPERM, "was made with other options (%s)", text);
  bool same_job = strcmp(job, "-") != 0 && strcmp(job, have->job) == 0;
  return same_job ? 1 : -EPERM;
}

void ckpt_claim_prune(const struct ckpt_id *v, const struct ckpt_marker *const *whole, size_t n,
                      const struct ckpt_marker *mine, int keep, bool *goes) {
  int seen = 0;
  for (size_t i = 0; i < n; i++) {
    goes[i] = false;
    if (!whole[i])
      goes[i] = ckpt_id_compare(&v[i], &mine->id) < 0;
    else if (whole[i]->origin == mine->origin)
      goes[i] = seen++ >= keep && ckpt_id_compare(&v[i], &mine->id) < 0;
  }
}
