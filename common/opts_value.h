#ifndef COMMON_OPTS_VALUE_H
#define COMMON_OPTS_VALUE_H

/* Values of options by their type: what opts.c and opts_help.c share. For them alone. */

#include "common/opts.h"

/* Parses text into the row's field of target and checks its bounds. OPT_STRINGS: with `append` text is one more
 * element, else it is a list separated by commas that replaces what was there. */
int opt_value_set(const struct opt *row, const char *text, bool append, void *target, struct err *e);
/* The argument as the help shows it: the row's label, else one by type; "" for a flag. */
const char *opt_value_label(const struct opt *row);

static inline bool opt_is_end(const struct opt *row) {
  return !row->name && !row->group;
}

#endif
