#ifndef COMMON_OPTS_COMPLETE_H
#define COMMON_OPTS_COMPLETE_H

/* What a shell's completion wants to know of an option table. How a shell is told, around these lines, is written by hand
 * (deploy/manual). Pure. */

#include "common/buf.h"
#include "common/opts/opts.h"

enum opt_wants {
  OPT_WANTS_WORD, /* `word` as it is */
  OPT_WANTS_TEXT, /* what nobody can guess */
  OPT_WANTS_FILE,
  OPT_WANTS_DIR,
  OPT_WANTS_HOST,
  OPT_WANTS_SIGNAL,
};

/* One of the alternatives that a label names (opts.h). */
struct opt_choice {
  enum opt_wants wants;
  const char *word; /* WORD: it; of another one: what the value begins with ("file:"), `len` may be 0 */
  size_t len;
  bool list; /* several of them, separated by commas */
};
enum { OPT_CHOICES_MAX = 12 };
/* How many of them there are; none for a flag. Borrowed from the row. */
size_t opt_choices(const struct opt *row, struct opt_choice out[OPT_CHOICES_MAX]);

/* What an option is about, in one line without a full stop: the beginning of its help, at most `max` columns. */
void opt_summary(const struct opt *row, size_t max, struct buf *out);

/* bash: a pattern of "case" for each option with a value, "--last-call)" and so on, with want='...' behind it. The words in want are
 * values, or @file @dir @host @signal, maybe behind a beginning ("file:@file"), with a comma behind where they are a list; "" is a
 * value that nobody can guess. */
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
/* fish: a complete command for each option, under the condition that `condition` is a command of. */
void opts_complete_fish_options(const struct opts_spec *spec, const char *condition, struct buf *out);
/* fish: names with dashes of options that take a value, separated by blanks. */
void opts_complete_fish_valued(const struct opts_spec *spec, struct buf *out);
/* fish: a complete command for each verb, under that condition. */
void opts_complete_fish_verbs(const struct opts_spec *spec, const char *condition, struct buf *out);

#endif
