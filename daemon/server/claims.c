/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on their way to rdzv-claim, and its answers.
 *
 *   claims_add -> order, a line to the helper's stdin -> its answer -> fn
 *                                                    '-> it dies, or does not answer in time -> fn: CLAIM_FAILED
 *
 * The helper answers each request before its deadline unless it hangs in the kernel, is stopped, or lies. Then it is
 * killed, and all that it was asked has failed, which means: not known. The next request starts another one. A process
 * that hangs in the kernel does not die at once. It blocks nothing until the daemon exits, which then gives up after
 * SERVER_STOP_MS.
 *
 * A failed order is answered by claims_expire, never inside a call of the server: its deadline is in the past then. */

#include "daemon/server/claims.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "common/mem.h"
#include "common/system/clock.h"
#include "common/system/command.h"
#include "common/system/log.h"
#include "daemon/claim/line.h"

enum { READ_SIZE = 65536 };

struct order {
  struct order *next;
  uint64_t number; /* as the helper knows it */
  uint64_t serial; /* as the core knows it */
  uint64_t deadline_ms;
  size_t size;
  char *failed; /* why; its answer is due */
  bool ends;
};

struct helper {
  struct claims *of; /* NULL: it is not listened to any more */
  uv_process_t process;
  uv_pipe_t in, out;
  struct buf text;
  char *last_words; /* it is not ready and will exit; why */
  bool ready, exited, closing;
  int64_t status;
  int signo, open_handles;
  char room[READ_SIZE];
};

struct claims {
  uv_loop_t *loop;
  char *where;
  struct helper *helper; /* NULL: none runs */
  uint64_t started_ms, numbers;
  struct order *first, **last; /* in the order of their deadlines, but for those that failed */
  size_t n, n_failed, bytes;
  struct err trouble; /* why there is no helper */
  bool closed;
  claims_fn fn;
  void *ctx;
};

struct line {
  uv_write_t write;
  char *data;
};

/* Orders. ---------------------------------------------------------------------------------------------------------- */

static struct order *add_order(struct claims *c, uint64_t serial, bool ends) {
  struct order *o = xcalloc(1, sizeof *o);
  *o = (struct order){.number = ++c->numbers, .serial = serial, .ends = ends, .deadline_ms = boot_ms() + JOB_CLAIM_MS};
  *c->last = o;
  c->last = &o->next;
  c->n++;
  return o;
}

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

static void fail_all(struct claims *c, const char *why) {
  for (struct order *o = c->first; o; o = o->next) fail_order(c, o, why);
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

static void on_closed(uv_handle_t *handle) {
  struct helper *h = handle->data;
  if (--h->open_handles > 0) return;
  buf_finish(&h->text);
  free(h->last_words);
  free(h);
}

static void close_pipes(struct helper *h) {
  if (h->closing) return;
  h->closing = true;
  uv_close((uv_handle_t *)&h->in, on_closed);
  uv_close((uv_handle_t *)&h->out, on_closed);
}

static void close_helper(struct helper *h) {
  close_pipes(h);
  uv_close((uv_handle_t *)&h->process, on_closed);
}

/* What it was asked has failed; a new one starts with the next request. A killed process is reaped by the loop. */
static void lose_helper(struct claims *c, const struct err *why) {
  struct helper *h = c->helper;
  c->helper = NULL;
  c->trouble = *why;
  fail_all(c, why->text);
  h->of = NULL;
  if (h->exited) return close_helper(h);
  close_pipes(h);
  uv_process_kill(&h->process, SIGKILL);
}

static void say_death(struct helper *h) {
  struct err why = ERR_INIT;
  int code = h->status == EXIT_CODE_USAGE ? -EINVAL : -EIO;
  if (h->last_words)
    err_set(&why, code, "%s", h->last_words);
  else if (h->signo)
    err_set(&why, code, "rdzv-claim (pid %d) was killed by signal %d", (int)h->process.pid, h->signo);
  else
    err_set(&why, code, "rdzv-claim (pid %d) exited with code %d", (int)h->process.pid, (int)h->status);
  if (h->ready && !h->of->closed) log_warn("claim: %s", why.text);
  lose_helper(h->of, &why);
}

static void on_exit_process(uv_process_t *process, int64_t status, int signo) {
  struct helper *h = process->data;
  h->exited = true;
  h->status = status;
  h->signo = signo;
  if (!h->of)
    close_helper(h);
  else if (!uv_is_active((uv_handle_t *)&h->out)) /* its pipe may still hold its last words */
    say_death(h);
}

/* Its first answer. */
static void take_ready(struct helper *h, const struct claim_reply *r) {
  h->ready = r->answer == CLAIM_WON;
  if (!h->ready && !h->last_words)
    h->last_words = xstrdup(r->text);
  else if (*r->text)
    log_warn("claim: %s", r->text);
}

static void take_reply(struct claims *c, const struct claim_reply *r) {
  if (r->serial == CLAIM_READY_SERIAL) return take_ready(c->helper, r);
  struct order **at = &c->first;
  while (*at && (*at)->number != r->serial) at = &(*at)->next;
  if (*at && !(*at)->failed) finish_order(c, take_order(c, at), r->answer, r->text);
}

/* The helper may be lost in here. */
static void read_lines(struct helper *h) {
  struct err e = ERR_INIT;
  struct claim_reply r;
  size_t done = 0;
  for (char *nl; h->of && done < h->text.len && (nl = memchr(h->text.data + done, '\n', h->text.len - done));) {
    const char *line = h->text.data + done;
    done = (size_t)(nl - h->text.data) + 1;
    if (claim_read_reply(line, (size_t)(nl - line), &r, &e) < 0) break;
    take_reply(h->of, &r);
    claim_reply_finish(&r);
  }
  if (!h->of) return;
  buf_consume(&h->text, done);
  if (!e.code && h->text.len <= CLAIM_LINE_MAX) return;
  if (!e.code) err_set(&e, -EMSGSIZE, "a line has more than %d bytes", CLAIM_LINE_MAX);
  err_wrap(&e, "what rdzv-claim (pid %d) answered cannot be read", (int)h->process.pid);
  log_error("claim: %s", e.text);
  lose_helper(h->of, &e);
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
  struct helper *h = handle->data;
  *out = uv_buf_init(h->room, sizeof h->room);
}

static void on_out(uv_stream_t *stream, ssize_t n, const uv_buf_t *b) {
  struct helper *h = stream->data;
  if (!h->of) return;
  if (n > 0) {
    buf_append(&h->text, b->base, (size_t)n);
    read_lines(h);
  }
  if (n >= 0 || !h->of) return;
  uv_read_stop(stream);
  if (h->exited) say_death(h);
}

static struct helper *create_helper(struct claims *c) {
  struct helper *h = xcalloc(1, sizeof *h);
  h->of = c;
  h->process.data = h->in.data = h->out.data = h;
  uv_pipe_init(c->loop, &h->in, 0);
  uv_pipe_init(c->loop, &h->out, 0);
  h->open_handles = 3;
  return h;
}

static int start_helper(struct claims *c, struct err *e) {
  char name[] = "rdzv-claim", *argv[] = {name, c->where, NULL};
  char *program = command_companion(name, "claim/", getenv("PATH"), e);
  c->started_ms = boot_ms();
  if (!program) return e->code;
  struct helper *h = c->helper = create_helper(c);
  uv_stdio_container_t stdio[] = {
      {.flags = UV_CREATE_PIPE | UV_READABLE_PIPE, .data.stream = (uv_stream_t *)&h->in},
      {.flags = UV_CREATE_PIPE | UV_WRITABLE_PIPE, .data.stream = (uv_stream_t *)&h->out},
      {.flags = UV_IGNORE}, /* one that hangs must not hold what reads our log */
  };
  uv_process_options_t options = {
      .file = program, .args = argv, .exit_cb = on_exit_process, .stdio = stdio, .stdio_count = 3};
  int rc = uv_spawn(c->loop, &h->process, &options);
  if (rc) {
    err_sys(e, rc, "rdzv-claim (%s) cannot be started", program);
    c->helper = NULL;
    close_helper(h);
  } else {
    uv_read_start((uv_stream_t *)&h->out, on_alloc, on_out);
    log_debug("claim: rdzv-claim started pid=%d", (int)h->process.pid);
  }
  free(program);
  return rc;
}

/* Requests. -------------------------------------------------------------------------------------------------------- */

static void on_written(uv_write_t *write, int status) {
  struct line *l = write->data; /* a failure shows as the helper's death */
  free(l->data);
  free(l);
}

static void send_line(struct claims *c, struct buf *text) {
  struct line *l = xcalloc(1, sizeof *l);
  uv_buf_t b = uv_buf_init(text->data, (unsigned)text->len);
  l->data = buf_steal(text);
  l->write.data = l;
  if (uv_write(&l->write, (uv_stream_t *)&c->helper->in, &b, 1, on_written) < 0) on_written(&l->write, 0);
}

/* A helper runs, or a sentence says why not. */
static bool have_helper(struct claims *c, struct err *e) {
  if (c->helper) return true;
  if (boot_ms() - c->started_ms < CLAIMS_AGAIN_MS)
    *e = c->trouble;
  else if (start_helper(c, e) == 0)
    return true;
  c->trouble = *e;
  return false;
}

static void send_order(struct claims *c, struct order *o, const char *name, const char *content, size_t len) {
  struct err e = ERR_INIT;
  struct buf text = BUF_INIT;
  if (c->n > CLAIMS_MAX || c->bytes > CLAIMS_BYTES_MAX) {
    err_set(&e, -EBUSY, "too many claims wait for %s", c->where);
  } else if (have_helper(c, &e) && claim_put_request(&text, o->number, o->ends, name, content, len, &e) == 0) {
    o->size = text.len;
    c->bytes += text.len;
    send_line(c, &text);
  }
  if (e.code) fail_order(c, o, e.text);
  buf_finish(&text);
}

void claims_add(struct claims *c, uint64_t serial, const char *name, const struct bytes *content) {
  send_order(c, add_order(c, serial, false), name, content->data, content->len);
}

void claims_end(struct claims *c, const char *prefix, const struct bytes *content) {
  send_order(c, add_order(c, 0, true), prefix, content->data, content->len);
}

uint64_t claims_deadline(const struct claims *c) {
  return c->n_failed ? 0 : c->first ? c->first->deadline_ms : UINT64_MAX;
}

static void kill_if_late(struct claims *c, uint64_t now_ms) {
  struct err why = ERR_INIT;
  if (c->n_failed || !c->helper || now_ms < claims_deadline(c)) return;
  err_set(&why, -ETIMEDOUT, "%.300s did not answer within %g s", c->where, JOB_CLAIM_MS / 1000.0);
  log_warn("claim: %s; killed rdzv-claim (pid %d)", why.text, (int)c->helper->process.pid);
  lose_helper(c, &why);
}

/* Those that fn adds meanwhile wait for the next call. */
void claims_expire(struct claims *c, uint64_t now_ms) {
  uint64_t last = c->numbers;
  kill_if_late(c, now_ms);
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
  while (c->helper && !c->helper->ready && !late) uv_run(c->loop, UV_RUN_ONCE);
  uv_close((uv_handle_t *)timer, on_timer_closed);
  if (c->helper && c->helper->ready) return 0;
  if (c->helper) {
    struct err why = ERR_INIT;
    err_set(&why, -ETIMEDOUT, "%.300s did not answer within %g s", c->where, CLAIMS_START_MS / 1000.0);
    log_warn("claim: %s; killed rdzv-claim (pid %d), jobs wait until that has changed", why.text,
             (int)c->helper->process.pid);
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

static void on_shut_down(uv_shutdown_t *shutdown, int status) {
  free(shutdown);
}

/* Behind what was written. */
static void end_input(struct helper *h) {
  uv_shutdown_t *shutdown = xcalloc(1, sizeof *shutdown);
  if (uv_shutdown(shutdown, (uv_stream_t *)&h->in, on_shut_down) < 0) free(shutdown);
}

void claims_close(struct claims *c) {
  if (!c || c->closed) return;
  c->closed = true;
  if (c->helper) end_input(c->helper);
}

void claims_destroy(struct claims *c) {
  if (!c) return;
  if (c->helper) {
    c->helper->of = NULL;
    if (!c->helper->exited) uv_process_kill(&c->helper->process, SIGKILL);
    close_helper(c->helper);
  }
  while (c->first) free_order(take_order(c, &c->first));
  free(c->where);
  free(c);
}
