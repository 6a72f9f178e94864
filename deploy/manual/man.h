#ifndef COMMON_OPTS_MAN_H
#define COMMON_OPTS_MAN_H

/* What a manual page says that an option table knows, in mdoc(7). Prose around it is written by hand (deploy/manual). Pure. */

#include "common/buf.h"
#include "common/opts/opts.h"

/* Running text, ended by a line break: every special character escaped, each sentence on a line of its own, an empty line is a new
 * paragraph; options (--x) and what stands between backquotes are bold. "" appends nothing. */
void man_put_text(struct buf *out, const char *text);
/* The same of a few words that stand alone: with a capital and a full stop. */
void man_put_phrase(struct buf *out, const char *text);
/* One argument of a macro, quoted where it must be. */
void man_put_word(struct buf *out, const char *text);
/* Text that is shown as it is, between .Bd -literal and .Ed: line by line, escaped. */
void man_put_literal(struct buf *out, const char *text);

/* A subsection for each group, with a list of its options: names, argument, help, default, bounds and variables. */
void opts_man_options(const struct opts_spec *spec, struct buf *out);
/* A list of verbs; nothing where there are none. */
void opts_man_verbs(const struct opts_spec *spec, struct buf *out);
/* A list of exit codes. */
void opts_man_exits(const struct opts_spec *spec, struct buf *out);

#endif
