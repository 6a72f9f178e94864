/* SPDX-License-Identifier: Apache-2.0 */
/* Claims, and the processes that make them.
 *
 *   claims_add -> order -> one of CLAIMS_AT_ONCE places: rdzv-claim, the content on its stdin -> its answer -> fn
 *                                                      '-> it dies, or does not answer in time -> fn: CLAIM_FAILED
 *
 * A claim comes with each round of a job, so the time of a process does not matter, and one that hangs in the kernel holds
 * nothing but its own claim and its place. A failed claim means: not known.
 *
 * An order that failed before it had a process is answered by claims_expire, never inside a call of the server: its
 * deadline is in the past then. */

#include "daemon/server/claims.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/helper.h"
#include "common/system/log.h"

struct order {
  struct order *next;
  struct claims *of;
  struct helper *helper; /* NULL: it waits for a place */
  const char *verb;
  char *name;
  struct buf content;
  uint64_t serial; /* as the core knows it */
  uint64_t deadline_ms;
  char *failed; /* why; its answer is due */
  bool ends;
};

struct claims {
  uv_loop_t *loop;
  char *where;
  bool made;                   /* the place was there once */
  struct order *first, **last; /* in the order of their deadlines */
  size_t n, n_failed, running, bytes;
  struct err checked; /* why the place cannot be used */
  bool check_is_over;
  bool closed;
  claims_fn fn;
  void *ctx;
};

static void free_order(struct order *o) {
  struct claims *c = o->of;
  struct order **at = &c->first;
  while (*at && *at != o) at = &(*at)->next;
  if (*at) {
    *at = o->next;
    if (c->last == &o->next) c->last = at;
    c->n--;
    c->n_failed -= o->failed != NULL;
    c->bytes -= o->content.len;
  }
  c->running -= o->helper != NULL;
  helper_destroy(o->helper);
  buf_finish(&o->content);
  free(o->failed);
  free(o->name);
  free(o);
}

/* Calls fn, which may add orders. */
static void finish_order(const struct order *o, enum claim_answer answer, const char *text) {
  struct claims *c = o->of;
  if (o->ends && answer != CLAIM_WON)
    log_warn("claim: the claims of a job that ended remain: %s", text);
  else if (!o->ends && !c->closed)
    c->fn(c->ctx, o->serial, answer, text);
}

/* A process. ------------------------------------------------------------------------------------------------------- */

/* What it has said; *text: the lines behind the first one. CLAIM_FAILED with a sentence in *e: nothing that counts. */
static enum claim_answer read_answer(const struct order *o, const struct helper_end *end, uint32_t ms,
                                     const char **text, struct err *e) {
  static const char *const words[] = {CLAIM_ANSWER_WORDS};
  const struct claims *c = o->of;
  const char *said = buf_text(helper_text(o->helper, HELPER_OUT));
  size_t n = strcspn(said, "\n");
  if (end->late) {
    err_set(e, -ETIMEDOUT, "%.300s did not answer within %g s", c->where, ms / 1000.0);
    log_warn("claim: %s; killed rdzv-claim (pid %d)", e->text, (int)helper_pid(o->helper));
    return CLAIM_FAILED;
  }
  for (int a = 0; said[n] && a <= CLAIM_FAILED; a++) {
    if (n != strlen(words[a]) || strncmp(said, words[a], n) != 0) continue;
    *text = said + n + 1;
    if (end->status == EXIT_CODE_USAGE || end->status == EXIT_CODE_SYSTEM)
      err_set(e, end->status == EXIT_CODE_USAGE ? -EINVAL : -EIO, "%s", *text);
    return (enum claim_answer)a;
  }
  if (end->status || end->signo)
    helper_explain_end(o->helper, end, e);
  else
    err_set(e, -EBADMSG, "rdzv-claim (pid %d) gave no answer", (int)helper_pid(o->helper));
  log_warn("claim: %s", e->text);
  return CLAIM_FAILED;
}

static void start_orders(struct claims *c);

static void on_claim_end(void *ctx, const struct helper_end *end) {
  struct order *o = ctx;
  struct claims *c = o->of;
  struct err e = ERR_INIT;
  const char *text = NULL;
  enum claim_answer a = read_answer(o, end, JOB_CLAIM_MS, &text, &e);
  c->made = c->made || (text && a != CLAIM_FAILED);
  const struct order done = {.of = c, .serial = o->serial, .ends = o->ends};
  char *said = xstrdup(text ? text : e.text);
  free_order(o);
  start_orders(c); /* before fn, behind which the server looks when the next answer is due */
  finish_order(&done, a, said);
  free(said);
}

static int start(struct order *o, uint32_t ms, void (*on_end)(void *ctx, const struct helper_end *end), struct err *e) {
  struct claims *c = o->of;
  char name[] = "rdzv-claim", made[] = "made";
  char *argv[] = {name, c->where, (char *)(uintptr_t)o->verb, o->name, o->name && !c->made ? made : NULL, NULL};
  const struct helper_options options = {
      .loop = c->loop,
      .built = "claim/",
      .argv = argv,
      .input = true,
      .deadline_ms = ms ? ms : 1,
      /* no stderr: one that hangs must not hold what reads our log */
      .output = {{.text_max = CLAIM_CONTENT_MAX + 64}},
      .on_end = on_end,
      .ctx = o,
  };
  int rc = helper_start(&options, &o->helper, e);
  if (rc) return rc;
  c->running++;
  struct buf content = BUF_INIT;
  buf_append(&content, o->content.data, o->content.len);
  helper_send(o->helper, &content);
  helper_end_input(o->helper);
  return 0;
}

static void fail_order(struct order *o, const char *why) {
  o->failed = xstrdup(why);
  o->of->n_failed++;
}

static void start_orders(struct claims *c) {
  uint64_t now_ms = boot_ms();
  for (struct order *o = c->first; o && c->running + helper_left() < CLAIMS_AT_ONCE; o = o->next) {
    struct err e = ERR_INIT;
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): free_order has taken out what it freed */
    if (o->helper || o->failed || (c->closed && !o->ends)) continue;
    uint32_t ms = o->deadline_ms > now_ms ? (uint32_t)(o->deadline_ms - now_ms) : 0;
    if (start(o, ms, on_claim_end, &e)) fail_order(o, e.text);
  }
}

/* Orders. ---------------------------------------------------------------------------------------------------------- */

static struct order *new_order(struct claims *c, const char *verb, const char *name) {
  struct order *o = xcalloc(1, sizeof *o);
  *o = (struct order){.of = c, .verb = verb, .name = name ? xstrdup(name) : NULL};
  return o;
}

static void add_order(struct claims *c, uint64_t serial, bool ends, const char *name, const struct bytes *content) {
  size_t n = strlen(name);
  bool run = n && name[n - 1] == '/';
  struct order *o = new_order(c, ends ? "end" : run ? "run" : "create", name);
  struct err e = ERR_INIT;
  o->ends = ends;
  o->serial = serial;
  o->deadline_ms = boot_ms() + JOB_CLAIM_MS;
  *c->last = o;
  c->last = &o->next;
  if (++c->n > CLAIMS_MAX || c->bytes > CLAIMS_BYTES_MAX)
    err_set(&e, -EBUSY, "too many claims wait for %s", c->where);
  else if (content->len > CLAIM_CONTENT_MAX)
    err_set(&e, -EINVAL, "a claim has at most %d bytes of content", CLAIM_CONTENT_MAX);
  else
    buf_append(&o->content, content->data, content->len);
  c->bytes += o->content.len;
  if (e.code) fail_order(o, e.text);
  start_orders(c);
}

void claims_add(struct claims *c, uint64_t serial, const char *name, const struct bytes *content) {
  add_order(c, serial, false, name, content);
}

void claims_end(struct claims *c, const char *prefix, const struct bytes *content) {
  add_order(c, 0, true, prefix, content);
}

/* Those that have a process have its deadline. */
uint64_t claims_deadline(const struct claims *c) {
  if (c->n_failed) return 0;
  for (const struct order *o = c->first; o; o = o->next)
    if (!o->helper) return o->deadline_ms;
  return UINT64_MAX;
}

/* Those that fn adds meanwhile have a later deadline, or wait for the next call. */
void claims_expire(struct claims *c, uint64_t now_ms) {
  struct order *due = NULL, **last = &due;
  for (struct order **at = &c->first, *o; (o = *at);) {
    if (o->helper || (!o->failed && now_ms < o->deadline_ms)) {
      at = &o->next;
      continue;
    }
    if (!o->failed) fail_order(o, "too many claims wait for their turn");
    *at = o->next;
    if (c->last == &o->next) c->last = at;
    c->n--;
    c->n_failed--;
    c->bytes -= o->content.len;
    o->next = NULL;
    *last = o;
    last = &o->next;
  }
  for (struct order *o; (o = due);) {
    due = o->next;
    finish_order(o, CLAIM_FAILED, o->failed);
    o->next = NULL;
    free_order(o);
  }
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

void claims_answer_to(struct claims *c, claims_fn fn, void *ctx) {
  c->fn = fn;
  c->ctx = ctx;
}

/* A place that hangs is waited for by jobs, as later: its file server may be away. */
static void on_check_end(void *ctx, const struct helper_end *end) {
  struct order *o = ctx;
  struct claims *c = o->of;
  const char *text = NULL;
  c->made = read_answer(o, end, CLAIMS_START_MS, &text, &c->checked) == CLAIM_WON;
  if (end->late) {
    log_warn("claim: jobs wait until that has changed");
    c->checked = (struct err)ERR_INIT;
  } else if (text && *text && !c->checked.code) {
    log_warn("claim: %s", text);
  }
  c->check_is_over = true;
}

int claims_create(uv_loop_t *loop, const char *where, struct claims **out, struct err *e) {
  struct claims *c = xcalloc(1, sizeof *c);
  c->loop = loop;
  c->where = xstrdup(where);
  c->last = &c->first;
  struct order *check = new_order(c, "check", NULL);
  int rc = start(check, CLAIMS_START_MS, on_check_end, e);
  while (rc == 0 && !c->check_is_over) uv_run(c->loop, UV_RUN_ONCE);
  free_order(check);
  if (rc == 0 && c->checked.code) rc = (*e = c->checked).code;
  if (rc)
    claims_destroy(c);
  else
    *out = c;
  return rc;
}

void claims_close(struct claims *c) {
  if (!c || c->closed) return;
  c->closed = true;
  for (struct order *o = c->first, *next; o; o = next) {
    next = o->next;
    if (!o->ends) free_order(o);
  }
  start_orders(c);
}

void claims_destroy(struct claims *c) {
  if (!c) return;
  while (c->first) free_order(c->first);
  free(c->where);
  free(c);
}
