/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that a restart cannot mend.
 *
 * The most common failure is a misspelt option of the training script. Each restart of it imports a few seconds of
 * libraries on every node, only to print the same sentence again, and the sentence scrolls away among its copies.
 *
 * An exit status alone proves little, because a script may use any number for failures that a restart does mend. So the
 * status of a foreign program counts only together with its words: 2 with the text that argparse and click print for a
 * wrong command line, and Python's own 2 or 1 where there is no such script or module. rdzv-trainer's 64 and 65
 * (sysexits.h: usage, bad data) are our own. Every other failure is tried again. */

#include "agent/supervisor/usage_error.h"
#include "common/exit_codes.h"

#include <string.h>

enum { EXIT_BAD_DATA = 65, EXIT_PYTHON_USAGE = 2 };

static bool line_begins(const char *text, const char *words) {
  size_t n = strlen(words);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (!strncmp(line, words, n)) return true;
  }
  return false;
}

bool is_usage_error(int code, const char *text, bool trainer) {
  if (trainer) return code == EXIT_CODE_USAGE || code == EXIT_BAD_DATA;
  if (code == EXIT_PYTHON_USAGE)
    return strstr(text, ": error: ") || line_begins(text, "usage: ") || line_begins(text, "Usage: ") ||
           strstr(text, ": can't open file '");
  return code == 1 && (strstr(text, ": Error while finding module specification for '") ||
                       (strstr(text, ": No module named ") && !strstr(text, "Error: No module named ")));
}
