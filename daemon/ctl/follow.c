/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl logs: asks what logs.c wants to know, one question per connection, and prints what came before it asks for
 * more. A terminal that is stopped, or a pipe that nobody reads, stops the questions, and nothing piles up anywhere.
 *
 * The daemon that has the job is looked for with the question for the list; the others go to the same one. */

#include <string.h>
#include <unistd.h>
#include "common/exit_codes.h"
#include "common/system/clock.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/answers.h"

static void take_step(struct client *c);

static void print_note(const struct client *c, const char *text) {
  struct buf shown = BUF_INIT;
  buf_puts(&shown, "rdzvctl: ");
  buf_put_plain(&shown, text, strlen(text), strlen(text));
  buf_putc(&shown, '\n');
  ctl_write_all(STDERR_FILENO, shown.data, shown.len);
  buf_finish(&shown);
}

static void on_pause(uv_timer_t *timer) {
  take_step(timer->data);
}

static void take_step(struct client *c) {
  struct buf text = BUF_INIT;
  while (ctl_logs_note(c->logs, &text)) {
    print_note(c, buf_text(&text));
    buf_clear(&text);
  }
  buf_finish(&text);
  c->step = ctl_logs_next(c->logs, monotonic_ms());
  switch (c->step.kind) {
  case LOGS_LIST: ctl_begin_again(c); break;
  case LOGS_FETCH: ctl_start_again(c); break;
  case LOGS_PAUSE: uv_timer_start(&c->again, on_pause, c->step.pause_ms, 0); break;
  case LOGS_END: {
    const struct logs_step *s = &c->step;
    if (s->text[0] && s->code)
      ctl_complain(c, s->code, "%s", s->text);
    else if (s->text[0])
      print_note(c, s->text);
    ctl_finish(c, s->code);
    break;
  }
  }
}

/* The connection of the last question is closed first. */
static void go_on(struct client *c) {
  if (c->finished) return;
  uv_timer_stop(&c->timer);
  ctl_cancel_munge(c);
  c->then = take_step;
  if (c->has_conn)
    conn_close(&c->conn);
  else
    take_step(c);
}

void ctl_begin_logs(struct client *c) {
  const struct ctl_request *r = &c->request;
  c->logs = ctl_logs_create(&(struct ctl_logs_options){.job = r->job,
                                                       .rank = r->rank,
                                                       .tail = r->tail,
                                                       .follow = r->follow,
                                                       .json = r->json,
                                                       .out_is_terminal = isatty(STDOUT_FILENO),
                                                       .err_is_terminal = isatty(STDERR_FILENO)});
  c->step = ctl_logs_next(c->logs, monotonic_ms());
}

void ctl_logs_put_question(const struct client *c, struct control *q) {
  bool lists = c->step.kind == LOGS_LIST;
  q->verb = lists ? "status" : "logs";
  q->json = lists;
  if (lists) return;
  q->agent = c->step.agent;
  q->from = c->step.from;
  q->from_round = c->step.from_round;
  q->tail = c->step.tail;
  q->wait_ms = c->step.wait_ms;
}

void ctl_logs_on_reply(struct client *c, const struct msg *m) {
  int code = (int)m->control_reply.code;
  struct buf out = BUF_INIT, err = BUF_INIT;
  bool good = true;
  if (code) {
    bool is_json = c->step.kind == LOGS_LIST;
    ctl_put_sentence(&out, m->raw, m->raw_len, is_json);
    ctl_logs_on_failure(c->logs, code, buf_text(&out), true, monotonic_ms());
  } else if (c->step.kind == LOGS_LIST) {
    ctl_logs_on_list(c->logs, m->raw, m->raw_len, monotonic_ms());
  } else {
    ctl_logs_on_lines(c->logs, m, monotonic_ms(), &out, &err);
    good = ctl_write_all(STDOUT_FILENO, out.data, out.len) && ctl_write_all(STDERR_FILENO, err.data, err.len);
  }
  buf_finish(&out);
  buf_finish(&err);
  if (good)
    go_on(c);
  else
    ctl_finish(c, EXIT_CODE_OK); /* the reader is gone */
}

void ctl_logs_on_silence(struct client *c, int code, const char *text) {
  ctl_logs_on_failure(c->logs, code, text, false, monotonic_ms());
  go_on(c);
}
