/* SPDX-License-Identifier: Apache-2.0 */
/* Which commands have a template. Only the word decides: the template itself proves that a Python runs behind it, and
 * that this Python can be a template (template.py). */

#include "agent/warm/warm.h"

#include <string.h>

bool warm_fits(char *const *argv) {
  const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];
  if (strncmp(name, "python", 6) != 0 || strspn(name + 6, "0123456789.") != strlen(name + 6) || !argv[1]) return false;
  for (size_t i = 1; argv[i]; i++)
    if (strstr(argv[i], "${local_rank}")) return false;
  return true;
}

size_t warm_own_words(char *const *argv) {
  size_t i = 1;
  for (; argv[i] && *argv[i] == '-'; i++) {
    const char *letters = argv[i] + 1 + strcspn(argv[i] + 1, "mcWX");
    if (*letters == 'm' || *letters == 'c') return letters[1] || !argv[i + 1] ? i + 1 : i + 2;
    if (*letters && !letters[1] && argv[i + 1]) i++;
  }
  return argv[i] ? i + 1 : i;
}
