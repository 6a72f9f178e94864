/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on their way to rdzv-claim, and its answers.
 *
 *   claims_add -> order, a line to the helper's stdin -> its answer -> fn
 *                                                    '-> it dies, or does not answer in time -> fn: CLAIM_FAILED
 *
 * The helper answers each request before its deadline unless it hangs in the kernel, is stopped, or lies. Then it is
 * killed, and all that it was asked has failed, which means: not known. The next request starts another one.
 *
 * A failed order is answered by claims_expire, never inside a call of the server: its deadline is in the past then. */

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
#include "daemon/claim/line.h"

struct order {
  struct order *next;
  uint64_t number; /* as the helper knows it */
  uint64_t serial; /* as the core knows it */
  uint64_t deadline_ms;
  size_t size;
  char *failed; /* why; its answer is due */
  bool ends;
};

struct claims {
  uv_loop_t *loop;
  char *where;
  struct helper *helper; /* NULL: none runs */
  char *last_words;      /* of this helper: it is not ready and will exit; why */
  bool ready;            /* this helper */
  uint64_t started_ms, numbers;
  struct order *first, **last; /* in the order of their deadlines, but for those that failed */
  size_t n, n_failed, bytes;
  struct err trouble; /* why there is no helper */
  bool closed;
  claims_fn fn;
  void *ctx;
};

/* Orders. ---------------------------------------------------------------------------------------------------------- */

static struct order *take_order(struct claims *c, struct order **at) {
  struct order *o = *at;
  *at = o->next;
  if (c->last == &o->next) c->last = at;
  c->n--;
  c->n_failed -= o->failed != NULL;
  c->bytes -= o->size;
  return o;
}

static void fail_order(struct claims *c, struct order *o, const char *why) {
  if (o->failed) return;
  o->failed = xstrdup(why);
  c->n_failed++;
}

static void free_order(struct order *o) {
  free(o->failed);
  free(o);
}

/* Calls fn, which may add orders. */
static void finish_order(struct claims *c, struct order *o, enum claim_answer answer, const char *text) {
  if (o->ends && answer != CLAIM_WON)
    log_warn("claim: the claims of a job that ended remain: %s", text);
  else if (!o->ends && !c->closed)
    c->fn(c->ctx, o->serial, answer, text);
  free_order(o);
}

/* The helper. ------------------------------------------------------------------------------------------------------ */

/* What it was asked has failed; a new one starts with the next request. */
static void lose_helper(struct claims *c, const struct err *why) {
  helper_destroy(c->helper);
  c->helper = NULL;
  c->trouble = *why;
  for (struct order *o = c->first; o; o = o->next) fail_order(c, o, why->text);
}

static void on_helper_end(void *ctx, const struct helper_end *end) {
  struct claims *c = ctx;
  struct err why = ERR_INIT;
  helper_explain_end(c->helper, end, &why);
  if (c->last_words) err_set(&why, -EIO, "%s", c->last_words);
  if (end->status == EXIT_CODE_USAGE) why.code = -EINVAL;
  if (c->ready && !c->closed) log_warn("claim: %s", why.text);
  lose_helper(c, &why);
}

static void on_line(void *ctx, enum helper_stream from, const char *line, size_t len) {
  struct claims *c = ctx;
  struct err e = ERR_INIT;
  struct claim_reply r;
  if (len > CLAIM_LINE_MAX) {
    err_set(&e, -EMSGSIZE, "a line has more than %d bytes", CLAIM_LINE_MAX);
  } else if (claim_read_reply(line, len, &r, &e) == 0) {
    struct order **at = &c->first;
    while (*at && (*at)->number != r.serial) at = &(*at)->next;
    if (r.serial == CLAIM_READY_SERIAL) { /* its first answer */
      c->ready = r.answer == CLAIM_WON;
      if (!c->ready && !c->last_words)
        c->last_words = xstrdup(r.text);
      else if (*r.text)
        log_warn("claim: %s", r.text);
    } else if (*at && !(*at)->failed) {
      finish_order(c, take_order(c, at), r.answer, r.text);
    }
    claim_reply_finish(&r);
    return;
  }
  err_wrap(&e, "what rdzv-claim (pid %d) answered cannot be read", (int)helper_pid(c->helper));
  log_error("claim: %s", e.text);
  lose_helper(c, &e);
}

static int start_helper(struct claims *c, struct err *e) {
  char name[] = "rdzv-claim", *argv[] = {name, c->where, NULL};
  const struct helper_options o = {
      .loop = c->loop,
      .built = "claim/",
      .argv = argv,
      .input = true,
      /* no stderr: one that hangs must not hold what reads our log */
      .output = {{.line_max = CLAIM_LINE_MAX + 1, .whole = true}},
      .on_line = on_line,
      .on_end = on_helper_end,
      .ctx = c,
  };
  c->started_ms = boot_ms();
  c->ready = false;
  free(c->last_words);
  c->last_words = NULL;
  int rc = helper_start(&o, &c->helper, e);
  if (rc == 0) log_debug("claim: rdzv-claim started pid=%d", (int)helper_pid(c->helper));
  return rc;
}

/* Requests. -------------------------------------------------------------------------------------------------------- */

static void add_order(struct claims *c, uint64_t serial, bool ends, const char *name, const struct bytes *content) {
  struct err e = ERR_INIT;
  struct buf text = BUF_INIT;
  struct order *o = xcalloc(1, sizeof *o);
  *o = (struct order){.number = ++c->numbers, .serial = serial, .ends = ends, .deadline_ms = boot_ms() + JOB_CLAIM_MS};
  *c->last = o;
  c->last = &o->next;
  c->n++;
  bool crowded = c->n > CLAIMS_MAX || c->bytes > CLAIMS_BYTES_MAX;
  if (crowded) {
    err_set(&e, -EBUSY, "too many claims wait for %s", c->where);
  } else if (!c->helper) {
    if (boot_ms() - c->started_ms < CLAIMS_AGAIN_MS)
      e = c->trouble;
    else
      start_helper(c, &e);
    if (!c->helper) c->trouble = e;
  }
  if (!crowded && c->helper &&
      claim_put_request(&text, o->number, o->ends, name, content->data, content->len, &e) == 0) {
    o->size = text.len;
    c->bytes += text.len;
    helper_send(c->helper, &text);
  }
  if (e.code) fail_order(c, o, e.text);
  buf_finish(&text);
}

void claims_add(struct claims *c, uint64_t serial, const char *name, const struct bytes *content) {
  add_order(c, serial, false, name, content);
}

void claims_end(struct claims *c, const char *prefix, const struct bytes *content) {
  add_order(c, 0, true, prefix, content);
}

uint64_t claims_deadline(const struct claims *c) {
  return c->n_failed ? 0 : c->first ? c->first->deadline_ms : UINT64_MAX;
}

/* Those that fn adds meanwhile wait for the next call. */
void claims_expire(struct claims *c, uint64_t now_ms) {
  uint64_t last = c->numbers;
  struct err why = ERR_INIT;
  if (!c->n_failed && c->helper && now_ms >= claims_deadline(c)) {
    err_set(&why, -ETIMEDOUT, "%.300s did not answer within %g s", c->where, JOB_CLAIM_MS / 1000.0);
    log_warn("claim: %s; killed rdzv-claim (pid %d)", why.text, (int)helper_pid(c->helper));
    lose_helper(c, &why);
  }
  for (struct order **at = &c->first; *at && (*at)->number <= last;) {
    if (!(*at)->failed) {
      at = &(*at)->next;
      continue;
    }
    struct order *o = take_order(c, at);
    finish_order(c, o, CLAIM_FAILED, o->failed);
  }
}

/* Beginning and end. ----------------------------------------------------------------------------------------------- */

void claims_answer_to(struct claims *c, claims_fn fn, void *ctx) {
  c->fn = fn;
  c->ctx = ctx;
}

static void on_start_timer(uv_timer_t *timer) {
  *(bool *)timer->data = true;
}

static void on_timer_closed(uv_handle_t *handle) {
  free(handle);
}

/* Until it is ready, or has exited. One that hangs is waited for by jobs, as later: its file server may be away. */
static int wait_for_helper(struct claims *c, struct err *e) {
  uv_timer_t *timer = xcalloc(1, sizeof *timer);
  bool late = false;
  uv_timer_init(c->loop, timer);
  timer->data = &late;
  uv_timer_start(timer, on_start_timer, CLAIMS_START_MS, 0);
  while (c->helper && !c->ready && !late) uv_run(c->loop, UV_RUN_ONCE);
  uv_close((uv_handle_t *)timer, on_timer_closed);
  if (c->helper && c->ready) return 0;
  if (c->helper) {
    struct err why = ERR_INIT;
    err_set(&why, -ETIMEDOUT, "%.300s did not answer within %g s", c->where, CLAIMS_START_MS / 1000.0);
    log_warn("claim: %s; killed rdzv-claim (pid %d), jobs wait until that has changed", why.text,
             (int)helper_pid(c->helper));
    lose_helper(c, &why);
    return 0;
  }
  *e = c->trouble;
  return e->code;
}

int claims_create(uv_loop_t *loop, const char *where, struct claims **out, struct err *e) {
  struct claims *c = xcalloc(1, sizeof *c);
  c->loop = loop;
  c->where = xstrdup(where);
  c->last = &c->first;
  int rc = start_helper(c, e);
  if (rc == 0) rc = wait_for_helper(c, e);
  if (rc)
    claims_destroy(c);
  else
    *out = c;
  return rc;
}

void claims_close(struct claims *c) {
  if (!c || c->closed) return;
  c->closed = true;
  if (c->helper) helper_end_input(c->helper);
}

void claims_destroy(struct claims *c) {
  if (!c) return;
  helper_destroy(c->helper);
  while (c->first) free_order(take_order(c, &c->first));
  free(c->last_words);
  free(c->where);
  free(c);
}
