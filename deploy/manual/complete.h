/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DEPLOY_MANUAL_COMPLETE_H
#define DEPLOY_MANUAL_COMPLETE_H

/* Shell completions from an option table. The rest of a completion, around these lines, is written by hand
 * (completion.bash, .zsh, .fish). Pure. */

#include "common/buf.h"
#include "common/opts/opts.h"

enum opt_wants {
  OPT_WANTS_WORD, /* `word` as it is */
  OPT_WANTS_TEXT, /* a value that cannot be guessed */
  OPT_WANTS_FILE,
  OPT_WANTS_DIR,
  OPT_WANTS_HOST,
  OPT_WANTS_SIGNAL,
};

/* One of the alternatives that a label names (opts.h). */
struct opt_choice {
  enum opt_wants wants;
  const char *word; /* for WORD the word itself; else the beginning of the value ("file:"), `len` may be 0 */
  size_t len;
  bool list; /* several of them, separated by commas */
};
enum { OPT_CHOICES_MAX = 12 };
/* Returns how many; 0 for a flag. They borrow from the row. */
size_t opt_choices(const struct opt *row, struct opt_choice out[OPT_CHOICES_MAX]);

/* A summary of an option in one line without a full stop: the beginning of its help, at most `max` columns. */
void opt_summary(const struct opt *row, size_t max, struct buf *out);

/* bash: a pattern of "case" for each option with a value, "--last-call)" and so on, followed by want='...'. The words
 * in want are values, or @file @dir @host @signal, possibly behind a beginning ("file:@file"), and followed by a comma
 * if they are a list. "" is a value that cannot be guessed. */
void opts_complete_bash_wants(const struct opts_spec *spec, struct buf *out);
/* bash: all names with their dashes, separated by blanks. */
void opts_complete_bash_names(const struct opts_spec *spec, struct buf *out);
/* bash: a pattern of "case" for each verb: what='JOB RANK'. */
void opts_complete_bash_verbs(const struct opts_spec *spec, struct buf *out);
/* All verbs, separated by blanks. */
void opts_complete_verb_names(const struct opts_spec *spec, struct buf *out);
/* zsh: a specification of _arguments for each name, each ended by a backslash and a line break. */
void opts_complete_zsh_options(const struct opts_spec *spec, struct buf *out);
/* zsh: a function for each option whose values are not of one kind, as opts_complete_zsh_options calls them. */
void opts_complete_zsh_functions(const struct opts_spec *spec, struct buf *out);
/* zsh: 'verb:what it does', one a line. */
void opts_complete_zsh_verbs(const struct opts_spec *spec, struct buf *out);
/* fish: a complete command for each option, with `condition` as its condition. */
void opts_complete_fish_options(const struct opts_spec *spec, const char *condition, struct buf *out);
/* fish: the names with dashes of options that take a value, separated by blanks. */
void opts_complete_fish_valued(const struct opts_spec *spec, struct buf *out);
/* fish: a complete command for each verb, with that condition. */
void opts_complete_fish_verbs(const struct opts_spec *spec, const char *condition, struct buf *out);

#endif
