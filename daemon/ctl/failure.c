/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/failure.h"

void ctl_put_failure(struct buf *out, int exit_code, const char *text, json_t *more) {
  json_t *v = json_pack("{s:b,s:i,s:o}", "ok", 0, "code", exit_code, "text", json_text(text));
  if (more) json_object_update(v, more);
  json_print(out, v);
  buf_putc(out, '\n');
  json_decref(v);
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
