/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_OPTS_VALUE_H
#define COMMON_OPTS_VALUE_H

/* Names and values of options: shared by opts.c, file.c, help.c and deploy/manual. For them alone. */

#include "common/opts/opts.h"

/* The row of a name or second name with dashes or underscores, of n bytes; NULL: there is none. */
const struct opt *opt_find(const struct opts_spec *spec, const char *word, size_t n);
/* The name nearest to a misspelt one, or NULL if none is near. */
const char *opt_nearest(const struct opts_spec *spec, const char *text, size_t n);

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
