/* SPDX-License-Identifier: Apache-2.0 */
/* The last lines of a worker's stderr: the exception line and the last line stay within their limit and are one line,
 * and what is compared has no number left. */

#include <stdlib.h>
#include <string.h>
#include "agent/failures/exception.h"
#include "common/ascii.h"
#include "common/mem.h"
#include "daemon/job/fingerprint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_line(bool found, struct buf *line) {
  if (found != (line->len > 0) || line->len > EXCEPTION_LINE_MAX + 3 || strchr(buf_text(line), '\n')) abort();
  buf_clear(line);
}

static void check_print(const char *text) {
  struct buf out = BUF_INIT;
  struct verdict v;
  fingerprint_line(text, strlen(text), &out);
  if (out.len > FINGERPRINT_LINE_MAX) abort();
  for (size_t i = 0; i < out.len; i++)
    if (ascii_is_digit(out.data[i])) abort();
  verdict_init(&v);
  v.cause = CAUSE_WORKER_EXIT;
  v.text = text;
  if (fingerprint(&v) < 1) abort();
  v.error = text;
  if (fingerprint(&v) < 1) abort();
  buf_finish(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  char *text = xstrndup((const char *)data, len); /* ends at a NUL */
  struct buf line = BUF_INIT;
  check_line(exception_line(text, &line), &line);
  check_line(last_line(text, &line), &line);
  check_print(text);
  buf_finish(&line);
  free(text);
  return 0;
}
