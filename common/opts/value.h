/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_OPTS_VALUE_H
#define COMMON_OPTS_VALUE_H

/* Values of options by their type: shared by opts.c, help.c and the generators of deploy/manual. For them alone. */

#include "common/opts/opts.h"

/* Parses text into the row's field of target and checks its bounds. OPT_STRINGS: with `append` text is one more
 * element, else it is a list separated by commas that replaces what was there. */
int opt_value_set(const struct opt *row, const char *text, bool append, void *target, struct err *e);
/* The argument as the help shows it: the row's label, else one by type; "" for a flag. */
const char *opt_value_label(const struct opt *row);

/* Whether the default is worth telling: a flag's is to be off, and an empty one is none. */
bool opt_value_shows_default(const struct opt *row);
/* "from 1s to 10m", "at least 1", or "": no bounds. */
enum { OPT_BOUNDS_MAX = 80 };
void opt_value_bounds(const struct opt *row, char out[OPT_BOUNDS_MAX]);

static inline bool opt_is_end(const struct opt *row) {
  return !row->name && !row->group;
}

#endif
