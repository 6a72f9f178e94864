/* SPDX-License-Identifier: Apache-2.0 */
/* Manual pages in mdoc(7), from the table that parses.
 *
 * roff reads its input in two ways at once: a line that begins with a dot or an apostrophe is a request, and a
 * backslash begins an escape anywhere. So every character with a meaning to roff is escaped, and a dot or apostrophe at
 * the beginning of a line gets a mark of no width in front. Dashes are written as \-, apostrophes as \(aq and carets as
 * \(ha: plain ones may be printed as typographic characters, and a user would copy those.
 *
 * Sentences begin on lines of their own, because roff recognizes the end of a sentence only by a full stop at the end
 * of a line.
 *
 * Short names come first, as in the pages of other programs. A paragraph behind the help has the facts of the row:
 * default, bounds, variables. --help and --version have none. */

#include "deploy/manual/man.h"

#include <string.h>
#include "common/ascii.h"
#include "common/opts/value.h"

static void put_char(struct buf *out, char c) {
  switch (c) {
  case '\\': buf_puts(out, "\\e"); break;
  case '-': buf_puts(out, "\\-"); break;
  case '\'': buf_puts(out, "\\(aq"); break;
  case '`': buf_puts(out, "\\(ga"); break;
  case '^': buf_puts(out, "\\(ha"); break;
  case '~': buf_puts(out, "\\(ti"); break;
  default: buf_putc(out, c);
  }
}

static bool at_line_start(const struct buf *out) {
  return out->len == 0 || out->data[out->len - 1] == '\n';
}

static void put_safely(struct buf *out, const char *text, size_t n) {
  if (n > 0 && at_line_start(out) && (text[0] == '.' || text[0] == '\'')) buf_puts(out, "\\&");
  for (size_t i = 0; i < n; i++) put_char(out, text[i]);
}

static bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}

/* How long an option's name is that begins at p, or 0. */
static size_t option_length(const char *p) {
  size_t n = strncmp(p, "--", 2) == 0 && is_lower(p[2]) ? 2 : 0;
  while (n > 0 && (is_lower(p[n]) || ascii_is_digit(p[n]) || (p[n] == '-' && is_lower(p[n + 1])))) n++;
  return n;
}

/* A name, a path, an option: nothing that may be hyphenated. */
static bool is_name(const char *word, size_t n) {
  for (; n > 0 && strchr("(\"`", word[0]); n--) word++;
  while (n > 0 && strchr(".,;:?!)\"`", word[n - 1])) n--;
  for (size_t i = 0; i < n; i++)
    if (i > 0 && !is_lower(word[i]) && word[i] != '\'') return true;
  return n > 0 && word[0] == '-';
}

/* One word of a text; a backquote turns bold on or off. */
static void put_text_word(struct buf *out, const char *word, size_t n, bool *bold) {
  if (is_name(word, n)) buf_puts(out, "\\%");
  for (size_t i = 0, skip; i < n; i += skip) {
    size_t option = *bold ? 0 : option_length(word + i);
    skip = option ? option : 1;
    if (option) buf_puts(out, "\\fB");
    if (word[i] == '`')
      buf_puts(out, (*bold = !*bold) ? "\\fB" : "\\fR");
    else
      put_safely(out, word + i, skip);
    if (option) buf_puts(out, "\\fR");
  }
}

static bool ends_sentence(const char *word, size_t n) {
  while (n > 1 && strchr(")\"`", word[n - 1])) n--;
  return n > 0 && strchr(".?!", word[n - 1]) != NULL && (n == 1 || word[n - 2] != '.');
}

static bool is_paragraph(const char *blanks, size_t n) {
  size_t breaks = 0;
  for (size_t i = 0; i < n; i++) breaks += blanks[i] == '\n';
  return breaks > 1;
}

void man_put_text(struct buf *out, const char *text) {
  bool bold = false;
  while (*text) {
    size_t blanks = strspn(text, " \n"), n = strcspn(text + blanks, " \n");
    if (n > 0 && is_paragraph(text, blanks)) buf_puts(out, at_line_start(out) ? ".Pp\n" : "\n.Pp\n");
    if (n > 0 && !at_line_start(out)) buf_putc(out, ' ');
    text += blanks;
    put_text_word(out, text, n, &bold);
    if (ends_sentence(text, n)) buf_putc(out, '\n');
    text += n;
  }
  if (bold) buf_puts(out, "\\fR");
  if (!at_line_start(out)) buf_putc(out, '\n');
}

void man_put_phrase(struct buf *out, const char *text) {
  struct buf sentence = BUF_INIT;
  size_t n = 0;
  while (is_lower(text[n])) n++;
  bool is_word = n > 0 && (!text[n] || strchr(" ,;:", text[n])) && strncmp(text, "rdzv", 4) != 0;
  buf_puts(&sentence, text);
  if (is_word) sentence.data[0] = (char)(text[0] - 'a' + 'A');
  while (sentence.len > 0 && strchr(" \n", sentence.data[sentence.len - 1])) sentence.data[--sentence.len] = '\0';
  if (sentence.len > 0 && !ends_sentence(sentence.data, sentence.len)) buf_putc(&sentence, '.');
  man_put_text(out, buf_text(&sentence));
  buf_finish(&sentence);
}

/* "Ar", "Fl": a macro, wherever it stands in a line of macros. A lone full stop or bracket is not text either. */
static bool is_macro_or_mark(const char *word) {
  size_t n = strlen(word);
  return n == 0 || (n == 1 && strchr(".,:;()[]?!|", word[0])) ||
         (n < 4 && word[0] >= 'A' && word[0] <= 'Z' && is_lower(word[1]));
}

void man_put_word(struct buf *out, const char *word) {
  bool quoted = strpbrk(word, " \t\"") != NULL;
  if (quoted) buf_putc(out, '"');
  if (is_macro_or_mark(word)) buf_puts(out, "\\&");
  for (; *word; word++) {
    if (*word == '"')
      buf_puts(out, "\\(dq");
    else
      put_char(out, *word);
  }
  if (quoted) buf_putc(out, '"');
}

void man_put_literal(struct buf *out, const char *text) {
  while (*text) {
    size_t n = strcspn(text, "\n");
    put_safely(out, text, n);
    buf_putc(out, '\n');
    text += n + (text[n] == '\n');
  }
}

static void put_variable(struct buf *out, const char *prefix, const char *name) {
  buf_printf(out, "`%s", prefix);
  for (; *name; name++) buf_putc(out, (char)(*name == '-' ? '_' : is_lower(*name) ? *name - 'a' + 'A' : *name));
  buf_putc(out, '`');
}

/* The bounds, but for those that are there only because there must be some. */
static void put_bounds(const struct opt *row, char out[OPT_BOUNDS_MAX]) {
  static const double beyond[] = {[OPT_INT] = 1e6, [OPT_FLOAT] = 1e6, [OPT_DURATION] = 1e9, [OPT_CUSTOM] = 0};
  struct opt told = *row;
  if (beyond[row->type] > 0 && row->max >= beyond[row->type]) {
    told.max = 0;
    if (told.min < 0) told.min = 0;
  }
  opt_value_bounds(&told, out);
}

/* "Default: 30s, from 0 to 24h. Variable: `X_LAST_CALL`, `Y_LAST_CALL`." */
static void put_row_facts(struct buf *out, const struct opts_spec *spec, const struct opt *row) {
  char bounds[OPT_BOUNDS_MAX];
  bool shows = opt_value_shows_default(row),
       quits = row->type == OPT_FLAG && (strcmp(row->name, "help") == 0 || strcmp(row->name, "version") == 0);
  struct buf text = BUF_INIT;
  put_bounds(row, bounds);
  if (shows) buf_printf(&text, "Default: %s", row->def);
  if (*bounds) buf_printf(&text, "%s %s", shows ? "," : "Allowed:", bounds);
  if (shows || *bounds) buf_puts(&text, ". ");
  if (spec->env_prefix && !quits) {
    buf_puts(&text, "Variable: ");
    put_variable(&text, spec->env_prefix, row->name);
    if (spec->env_foreign && row->foreign && !row->foreign_no_env) {
      buf_puts(&text, ", ");
      put_variable(&text, spec->env_foreign, row->foreign);
    }
    buf_putc(&text, '.');
  }
  if (text.len > 0) buf_puts(out, ".br\n");
  man_put_text(out, buf_text(&text));
  buf_finish(&text);
}

static void put_row(struct buf *out, const struct opts_spec *spec, const struct opt *row) {
  buf_puts(out, ".It");
  if (row->alias && !row->alias[1]) buf_printf(out, " Fl %s ,", row->alias);
  const char *names[2] = {row->name, row->alias && row->alias[1] ? row->alias : NULL};
  for (int i = 0; i < 2 && names[i]; i++) {
    buf_puts(out, i ? " , Fl \\-" : " Fl \\-");
    man_put_word(out, names[i]);
  }
  const char *label = opt_value_label(row);
  if (*label) {
    buf_puts(out, " Ar ");
    man_put_word(out, label);
  }
  buf_putc(out, '\n');
  man_put_text(out, row->help ? row->help : "");
  put_row_facts(out, spec, row);
}

void opts_man_options(const struct opts_spec *spec, struct buf *out) {
  bool open = false;
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name && open) buf_puts(out, ".El\n");
    if (!row->name) {
      buf_puts(out, ".Ss ");
      man_put_literal(out, row->group);
    }
    if (!row->name || !open) buf_puts(out, ".Bl -tag -width Ds\n");
    open = true;
    if (row->name) put_row(out, spec, row);
  }
  if (open) buf_puts(out, ".El\n");
}

void opts_man_verbs(const struct opts_spec *spec, struct buf *out) {
  if (!spec->verbs) return;
  buf_puts(out, ".Bl -tag -width Ds\n");
  for (const struct opts_verb *v = spec->verbs; v->name; v++) {
    buf_puts(out, ".It Cm ");
    man_put_word(out, v->name);
    if (*v->words) {
      buf_puts(out, " Ar ");
      man_put_literal(out, v->words);
    } else {
      buf_putc(out, '\n');
    }
    man_put_text(out, v->help);
  }
  buf_puts(out, ".El\n");
}

void opts_man_exits(const struct opts_spec *spec, struct buf *out) {
  buf_puts(out, ".Bl -tag -width Ds -compact\n");
  for (const struct opts_exit *x = spec->exits; x && x->text; x++) {
    if (x->code < 0) continue;
    buf_printf(out, ".It %d\n", x->code);
    man_put_phrase(out, x->text);
  }
  buf_puts(out, ".El\n");
}
