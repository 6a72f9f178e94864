/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DEPLOY_MANUAL_MAN_H
#define DEPLOY_MANUAL_MAN_H

/* The parts of a manual page that come from an option table, in mdoc(7). The text around them is written by hand.
 * Pure. */

#include "common/buf.h"
#include "common/opts/opts.h"

/* Running text, ended by a line break. Special characters are escaped, each sentence has a line of its own, and an
 * empty line begins a new paragraph. Options (--x) and text between backquotes are bold. "" appends nothing. */
void man_put_text(struct buf *out, const char *text);
/* The same for a short phrase, which gets a capital and a full stop. */
void man_put_phrase(struct buf *out, const char *text);
/* One argument of a macro, quoted if necessary. */
void man_put_word(struct buf *out, const char *text);
/* Literal text between .Bd -literal and .Ed: line by line, escaped. */
void man_put_literal(struct buf *out, const char *text);

/* A subsection for each group, with a list of its options: names, argument, help, default, bounds and variables. */
void opts_man_options(const struct opts_spec *spec, struct buf *out);
/* A list of verbs, if there are any. */
void opts_man_verbs(const struct opts_spec *spec, struct buf *out);
/* A list of exit codes. */
void opts_man_exits(const struct opts_spec *spec, struct buf *out);

#endif
