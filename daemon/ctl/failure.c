/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/failure.h"

void ctl_put_failure(struct buf *out, int exit_code, const char *text, json_t *more) {
  json_t *v = json_pack("{s:b,s:i,s:o}", "ok", 0, "code", exit_code, "text", json_text(text));
  if (more) json_object_update(v, more);
  json_print(out, v);
  buf_putc(out, '\n');
  json_decref(v);
}
