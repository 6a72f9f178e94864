/* SPDX-License-Identifier: Apache-2.0 */
/* The register of claims, as a shared file system or etcd keeps it: who creates a name first has it. The register
 * itself is always right; what is between it and a daemon is not. A question takes time there, and its answer takes time
 * back. Either can be lost, and then the daemon's helper says CLAIM_FAILED when its time is over, although the name may
 * have been created, or is created later still.
 *
 * The run of a job is a name of its incarnation, JOB/run/INCARNATION, and only one such name of a job exists at a time.
 *
 * The end of an incarnation is a name too. It is created first and stays; behind it nobody wins anything. */

#include "tests/sim/sim.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { LATE_MS = 15000 }; /* a request that hangs can still be carried out within this */

struct claim {
  char *name, *content;
};

struct asked {
  char *name, *content;
  uint64_t serial, deadline_ms;
  int side, machine;
  uint32_t life;
  bool lost, answered, granted;
};

struct sim_register {
  struct claim *v;
  size_t n;
  struct asked *asked;
  size_t n_asked;
  uint32_t walls; /* machines that it does not hear */
};

static struct sim_register *claims_of(struct sim *s) {
  if (!s->claims) s->claims = xcalloc(1, sizeof *s->claims);
  return s->claims;
}

void claim_finish(struct sim *s) {
  struct sim_register *r = s->claims;
  for (size_t i = 0; r && i < r->n; i++) free(r->v[i].name), free(r->v[i].content);
  for (size_t i = 0; r && i < r->n_asked; i++) free(r->asked[i].name), free(r->asked[i].content);
  if (r) free(r->v), free(r->asked);
  free(r);
  s->claims = NULL;
}

const char *claim_holder(const struct sim *s, const char *name) {
  for (size_t i = 0; s->claims && i < s->claims->n; i++)
    if (!strcmp(s->claims->v[i].name, name)) return s->claims->v[i].content;
  return NULL;
}

const char *claim_holder_of(const struct sim *s, const char *end) {
  for (size_t i = 0; s->claims && i < s->claims->n; i++) {
    const char *name = s->claims->v[i].name;
    size_t n = strlen(name), m = strlen(end);
    if (n >= m && !strcmp(name + n - m, end)) return s->claims->v[i].content;
  }
  return NULL;
}

void claim_wall(struct sim *s, int machine, bool up) {
  struct sim_register *r = claims_of(s);
  if ((r->walls >> machine & 1) == up) return;
  s->harmless = false;
  sim_trace(s, "the register %s machine %d", up ? "no longer hears" : "hears", machine);
  r->walls ^= 1u << machine;
}

static struct sim_event *push(struct sim *s, uint64_t at, enum event_kind kind, size_t i) {
  struct sim_event *ev = sim_push(s, at, kind);
  ev->a = i;
  ev->b = (uint64_t)claims_of(s)->asked[i].side;
  return ev;
}

void claim_ask(struct sim *s, const struct job_effect *fx) {
  struct sim_register *r = claims_of(s);
  size_t i = r->n_asked++;
  r->asked = xrealloc(r->asked, r->n_asked * sizeof *r->asked);
  r->asked[i] = (struct asked){.name = xstrdup(fx->text),
                               .content = xmemdup(fx->bytes->data, fx->bytes->len),
                               .serial = fx->value,
                               .deadline_ms = s->now + JOB_CLAIM_MS,
                               .side = s->side,
                               .machine = s->d.machine,
                               .life = s->d.life};
  struct asked *q = &r->asked[i];
  q->content[fx->bytes->len] = '\0';
  q->lost = !s->calm && sim_chance(s, s->config.claim_fails);
  bool late = q->lost && sim_chance(s, 50);
  push(s, s->now + sim_between(s, 0, s->config.claim_max) + (late ? sim_below(s, LATE_MS) : 0), EV_CLAIM, i);
  push(s, q->deadline_ms, EV_CLAIMED, i);
}

void claim_grant(struct sim *s, const struct job_effect *fx) {
  claim_ask(s, fx);
  s->claims->asked[s->claims->n_asked - 1].granted = true;
}

static void trace_claim(struct sim *s, const struct asked *q, const char *how) {
  sim_trace(s, "claim %s of %s: %s", q->name, daemon_name(s, q->side), how);
}

/* The name that says that the incarnation is over, next to this one. */
static const char *end_beside(const struct sim *s, const char *name) {
  const char *slash = strrchr(name, '/');
  struct buf end = BUF_INIT;
  buf_append(&end, name, slash ? (size_t)(slash + 1 - name) : 0);
  buf_puts(&end, "end");
  const char *has = claim_holder(s, buf_text(&end));
  buf_finish(&end);
  return has;
}

/* "1000/job/5f2e-1/" -> "1000/job/run/5f2e-1". Its part that all incarnations of the job have in common: returned. */
static size_t put_run_name(const char *prefix, struct buf *out) {
  size_t len = strlen(prefix) - 1, job = len;
  while (job > 0 && prefix[job - 1] != '/') job--;
  buf_append(out, prefix, job);
  buf_puts(out, "run/");
  size_t common = out->len;
  buf_append(out, prefix + job, len - job);
  return common;
}

static bool is_run(const char *name) {
  return name[0] && name[strlen(name) - 1] == '/';
}

/* What decides: the end of its incarnation, or who has the name. NULL: it is free. */
static const char *holder_for(const struct sim *s, const char *name) {
  const char *has = end_beside(s, name);
  struct buf run = BUF_INIT;
  if (has || !is_run(name)) return has ? has : claim_holder(s, name);
  size_t common = put_run_name(name, &run);
  for (size_t i = 0; i < s->claims->n && !has; i++)
    if (!strncmp(s->claims->v[i].name, buf_text(&run), common)) has = s->claims->v[i].content;
  buf_finish(&run);
  return has;
}

static void create(struct sim_register *r, const char *name, const char *content) {
  r->v = xrealloc(r->v, (r->n + 1) * sizeof *r->v);
  r->v[r->n++] = (struct claim){xstrdup(name), xstrdup(content)};
}

/* It may reach the register after its daemon was lost. */
void claim_on_arrival(struct sim *s, struct sim_event *ev) {
  struct sim_register *r = claims_of(s);
  struct asked *q = &r->asked[ev->a];
  bool deaf = r->walls >> q->machine & 1;
  if (deaf) return;
  const char *has = holder_for(s, q->name);
  bool won = !has || !strcmp(has, q->content);
  struct buf run = BUF_INIT;
  if (is_run(q->name)) put_run_name(q->name, &run);
  if (!has) create(r, run.len ? buf_text(&run) : q->name, q->content);
  buf_finish(&run);
  trace_claim(s, q, won ? "won" : "taken");
  if (!q->lost) push(s, s->now + sim_between(s, 0, s->config.claim_max), EV_CLAIMED, ev->a);
}

void claim_on_answer(struct sim *s, struct sim_event *ev) {
  struct asked *q = &claims_of(s)->asked[ev->a];
  if (q->answered || !s->d.core || s->side != q->side || s->d.life != q->life) return;
  q->answered = true;
  const char *has = holder_for(s, q->name);
  bool late = s->now >= q->deadline_ms, won = has && (!strcmp(has, q->content) || q->granted);
  if (late) trace_claim(s, q, "not answered");
  /* The driver's copies: asking again moves the array. */
  char *text = xstrdup(late ? "the register does not answer" : won ? "" : has ? has : "");
  daemon_on_claimed(s, q->serial, late || !has ? CLAIM_FAILED : won ? CLAIM_WON : CLAIM_TAKEN, text);
  free(text);
}

void claim_withdraw(struct sim *s, const struct job_effect *fx) {
  struct sim_register *r = claims_of(s);
  const char *prefix = fx->text;
  if (r->walls >> s->d.machine & 1) return;
  struct buf end = BUF_INIT, run = BUF_INIT;
  buf_printf(&end, "%send", prefix);
  put_run_name(prefix, &run);
  char *content = xmemdup(fx->bytes->data, fx->bytes->len);
  if (!claim_holder(s, buf_text(&end))) create(r, buf_text(&end), content); /* for good, and first */
  free(content);
  size_t kept = 0;
  for (size_t i = 0; i < r->n; i++) {
    bool below = !strncmp(r->v[i].name, prefix, strlen(prefix)) && strcmp(r->v[i].name, buf_text(&end)) != 0;
    if (!below && strcmp(r->v[i].name, buf_text(&run)) != 0) {
      r->v[kept++] = r->v[i];
      continue;
    }
    free(r->v[i].name);
    free(r->v[i].content);
  }
  r->n = kept;
  buf_finish(&end);
  buf_finish(&run);
}
