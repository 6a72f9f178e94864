/* SPDX-License-Identifier: Apache-2.0 */
/* The text of --verdict-file.
 *
 * One object for programs: the outcome of the job, this agent's exit code, and the last verdict with all its fields,
 * empty ones included, so that a reader need not know the defaults. "outcome" is null if this agent has not heard the
 * end of the job: it was refused, cut off, or left. After a success the verdict is that of the last round that was
 * given up, or has the cause "none". */

#include "agent/failures/verdict_json.h"

#include <jansson.h>
#include <signal.h>
#include "common/exit_codes.h"
#include "common/json.h"

static json_t *sentence_json(const struct ending *end) {
  struct buf text = BUF_INIT;
  verdict_sentence(&end->verdict, &text);
  const char *why = exit_code_text(end->code == 128 + SIGINT ? EXIT_CODE_PREEMPTED : (int)end->code);
  if (end->heard && end->outcome == OUTCOME_SUCCESS)
    why = "the job is done";
  else if (end->verdict.cause != CAUSE_NONE && (end->heard || !why))
    why = buf_text(&text);
  json_t *v = why ? json_text(why) : json_null();
  buf_finish(&text);
  return v;
}

void verdict_json(const struct ending *end, const char *job, const char *host, const char *when, struct buf *out) {
  /* The goodput is null if no account has come. */
  json_t *v =
      json_pack("{s:o, s:o, s:s, s:s?, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "job", json_text(job), "host",
                json_text(host), "time", when, "outcome", end->heard ? outcome_name(end->outcome) : NULL, "exit_code",
                (json_int_t)end->code, "round", (json_int_t)end->round, "restarts", (json_int_t)end->restarts_used,
                "max_restarts", (json_int_t)end->max_restarts, "repeats", (json_int_t)end->repeats, "sentence",
                sentence_json(end), "verdict", verdict_to_json(&end->verdict), "goodput",
                goodput_total_ms(&end->goodput) ? goodput_seconds_json(&end->goodput) : json_null());
  json_print(out, v);
  buf_putc(out, '\n');
  json_decref(v);
}
