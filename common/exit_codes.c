/* SPDX-License-Identifier: Apache-2.0 */
/* The texts of the exit codes. The header has the list and its meaning. */

#include "common/exit_codes.h"

#include <stddef.h>

const char *exit_code_text(int code) {
  switch (code) {
#define X(name, number, help)                                                                                          \
  case number: return help;
    EXIT_CODE_LIST(X)
#undef X
  default: return NULL;
  }
}
