/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's error file. What is taken stays within its limits and is text; what is handed on is taken again, and says
 * the same. */

#include <stdlib.h>
#include <string.h>
#include "agent/failures/error_file.h"
#include "common/buf.h"
#include "common/printable.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_text(const char *text, size_t max) {
  size_t n = strnlen(text, max + 1);
  uint32_t cp;
  if (n > max) abort();
  for (size_t at = 0, size; at < n; at += size)
    if (!(size = utf8_char((const unsigned char *)text + at, n - at, &cp))) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  struct error_file f, again;
  struct err e = ERR_INIT;
  char *copy = error_file_copy((const char *)data, len, 7);
  int rc = error_file_parse(&f, (const char *)data, len, &e);
  if ((rc == 0) != (copy != NULL) || (rc != 0) != (e.text[0] != '\0')) abort();
  check_text(f.message, ERROR_MESSAGE_MAX);
  check_text(f.callstack, ERROR_CALLSTACK_MAX);
  if (copy && strlen(copy) <= ERROR_FILE_MAX) {
    if (error_file_parse(&again, copy, strlen(copy), NULL)) abort();
    if (strcmp(f.message, again.message) != 0 || strcmp(f.callstack, again.callstack) != 0) abort();
  }
  free(copy);
  return 0;
}
