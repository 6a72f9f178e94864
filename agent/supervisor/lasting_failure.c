/* SPDX-License-Identifier: Apache-2.0 */
/* Failures that a restart cannot mend.
 *
 * The most common failure is a mistake of the person who types: an option of the script, a package that is not
 * installed. Each restart of it imports a few seconds of libraries on every node, only to print the same sentence
 * again.
 *
 * An exit status alone proves little, because a script may use any number for failures that a restart does mend. So the
 * status of a foreign program counts only together with its words:
 *
 *   2     the text that argparse and click print for a wrong command line; a script that Python or a shell cannot open
 *   1     an exception of a file that cannot be compiled or imported; Python's "No module named" of -m
 *   127   a shell's "not found", a library that the loader does not find; 126 a shell's "Permission denied"
 *
 * rdzv-trainer's 64 and 65 (sysexits.h: usage, bad data) are our own, and true in any round. A foreign program that has
 * worked before is tried again: the caller asks in the first round alone. */

#include "agent/supervisor/internal.h"

#include <string.h>
#include "common/exit_codes.h"

enum { EXIT_BAD_DATA = 65, EXIT_PYTHON_USAGE = 2, EXIT_NOT_EXECUTABLE = 126, EXIT_NOT_FOUND = 127 };

static bool line_begins(const char *text, const char *words) {
  size_t n = strlen(words);
  for (const char *line = text; line; line = strchr(line, '\n')) {
    if (*line == '\n') line++;
    if (!strncmp(line, words, n)) return true;
  }
  return false;
}

static bool is_exception(const char *error, const char *name) {
  size_t n = strlen(name);
  return !strncmp(error, name, n) && (error[n] == ':' || error[n] == '\0');
}

static enum lasting of_exception(const char *error) {
  static const char *const syntax[] = {"SyntaxError", "IndentationError", "TabError"};
  static const char *const import[] = {"ImportError", "ModuleNotFoundError"};
  for (size_t i = 0; i < sizeof syntax / sizeof *syntax; i++)
    if (is_exception(error, syntax[i])) return LASTING_SYNTAX;
  for (size_t i = 0; i < sizeof import / sizeof *import; i++)
    if (is_exception(error, import[i])) return LASTING_IMPORT;
  return LASTING_NO;
}

/* Python's -m prints one line, and no traceback. */
static bool is_missing_module(const char *text) {
  return strstr(text, ": Error while finding module specification for '") ||
         (strstr(text, ": No module named ") && !strstr(text, "Error: No module named "));
}

static bool is_missing_script(const char *text) {
  bool opened = strstr(text, ": can't open file '") || strstr(text, ": cannot open ") || strstr(text, ": Can't open ");
  return opened && strstr(text, "No such file");
}

enum lasting find_lasting(int code, const char *text, const char *error, bool trainer) {
  if (trainer) return code == EXIT_CODE_USAGE || code == EXIT_BAD_DATA ? LASTING_TRAINER : LASTING_NO;
  switch (code) {
  case 1: return is_missing_module(text) ? LASTING_SCRIPT : of_exception(error);
  case EXIT_PYTHON_USAGE:
    if (is_missing_script(text)) return LASTING_SCRIPT;
    return strstr(text, ": error: ") || line_begins(text, "usage: ") || line_begins(text, "Usage: ") ? LASTING_USAGE
                                                                                                     : LASTING_NO;
  case EXIT_NOT_FOUND:
    if (is_missing_script(text)) return LASTING_SCRIPT;
    return strstr(text, "not found") || strstr(text, "No such file") ||
                   strstr(text, "error while loading shared libraries")
               ? LASTING_COMMAND
               : LASTING_NO;
  case EXIT_NOT_EXECUTABLE:
    return strstr(text, "ermission denied") || strstr(text, "annot execute") || strstr(text, "s a directory")
               ? LASTING_COMMAND
               : LASTING_NO;
  default: return LASTING_NO;
  }
}
