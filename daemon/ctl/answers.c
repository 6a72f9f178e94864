/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/answers.h"

void ctl_put_failure(struct buf *out, int exit_code, const char *text, json_t *more) {
  json_t *v = json_pack("{s:b,s:i,s:o}", "ok", 0, "code", exit_code, "text", json_text(text));
  if (more) json_object_update(v, more);
  json_put(out, v);
  buf_putc(out, '\n');
}

void ctl_put_sentence(struct buf *out, const char *answer, size_t len, bool json) {
  json_t *v = json ? json_loadb(answer, len, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
  const char *text = json_string_value(json_object_get(v, "text"));
  while (len > 0 && answer[len - 1] == '\n') len--;
  if (text)
    buf_puts(out, text);
  else
    buf_append(out, answer, len);
  json_decref(v);
}

enum ctl_standing ctl_standing_of(int code, const char *json, size_t len, struct buf *said) {
  json_t *answer = json_loadb(json, len, JSON_DISABLE_EOF_CHECK, NULL);
  const json_t *jobs = code ? NULL : json_object_get(answer, "jobs"), *job;
  const char *text = json_string_value(json_object_get(answer, "text"));
  enum ctl_standing found = CTL_NO_ANSWER;
  size_t i;
  const char *moved = NULL;
  json_array_foreach(jobs, i, job) {
    const char *to = json_string_value(json_object_get(job, "moved_to"));
    bool other = to || json_is_false(json_object_get(json_object_get(job, "daemon"), "in_charge"));
    if (to) moved = to;
    if (!other || found == CTL_NO_ANSWER) found = other ? CTL_NOT_IN_CHARGE : CTL_IN_CHARGE;
  }
  if (found == CTL_NO_ANSWER) buf_puts(said, text ? text : "its answer is not understood");
  if (found == CTL_NOT_IN_CHARGE && moved) buf_printf(said, "the job has moved to %s", moved);
  if (found == CTL_NOT_IN_CHARGE && !moved) buf_puts(said, "not in charge of the job");
  json_decref(answer);
  return found;
}
