/* SPDX-License-Identifier: Apache-2.0 */
/* A line of mpiexec's, and Open MPI's number. A value lies within its line and its room; a refusal has a sentence. */

#include <stdlib.h>
#include <string.h>
#include "agent/key/pmi.h"
#include "common/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  const char *line = (const char *)data;
  struct err e = ERR_INIT;
  struct key key;
  char out[KEY_TEXT_MAX + 1];
  if (pmi_value(line, len, "value", out, sizeof out) &&
      (strlen(out) > len || (out[0] && !memmem(line, len, out, strlen(out)))))
    abort();
  int rc = pmi_check(line, len, "get_result", &e);
  if ((rc != 0) != (e.text[0] != '\0')) abort();
  char *number = xstrndup(line, len);
  if (open_mpi_key(number, &key) && (strlen(number) != 33 || key.uid != KEY_OWN)) abort();
  free(number);
  return 0;
}
