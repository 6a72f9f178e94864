/* SPDX-License-Identifier: Apache-2.0 */
/* zsh's side of complete.h. _arguments gets one word for each option, "--last-call=[summary]:TIME:action", between
 * apostrophes. Brackets, colons and backslashes in the text get a backslash for _arguments; apostrophes are escaped for
 * the shell. An action of more than one function call becomes a function of its own in the same file. */

#include <string.h>
#include "common/opts/value.h"
#include "deploy/manual/complete.h"

enum { SUMMARY_MAX = 72 };

/* Within apostrophes. */
static void put_quoted(struct buf *out, const char *text) {
  for (; *text; text++) {
    if (*text == '\'')
      buf_puts(out, "'\\''");
    else
      buf_printf(out, strchr("[]:\\", *text) ? "\\%c" : "%c", *text);
  }
}

static bool is_mixed(const struct opt_choice *c, size_t n) {
  for (size_t i = 0; i < n; i++)
    if ((c[i].wants != OPT_WANTS_WORD && c[i].len > 0) || c[i].wants != c[0].wants) return true;
  return false;
}

/* Those that something can be said of: "N|cpu|gpu" has two. */
static size_t known_choices(const struct opt *row, struct opt_choice out[OPT_CHOICES_MAX]) {
  struct opt_choice all[OPT_CHOICES_MAX];
  size_t n = opt_choices(row, all), known = 0;
  for (size_t i = 0; i < n; i++)
    if (all[i].wants != OPT_WANTS_TEXT || all[i].len > 0) out[known++] = all[i];
  return known;
}

static void put_words(struct buf *out, const struct opt_choice *c, size_t n) {
  const char *sep = "";
  for (size_t i = 0; i < n; i++) {
    if (c[i].wants != OPT_WANTS_WORD) continue;
    buf_printf(out, "%s%.*s", sep, (int)c[i].len, c[i].word);
    sep = " ";
  }
}

static const char *action(const struct opt_choice *c) {
  switch (c->wants) {
  case OPT_WANTS_FILE: return "_files";
  case OPT_WANTS_DIR: return "_files -/";
  case OPT_WANTS_HOST: return c->list ? "_sequence _hosts" : "_hosts";
  case OPT_WANTS_SIGNAL: return c->list ? "_sequence compadd - SIG${^signals[2,-3]}" : "compadd - SIG${^signals[2,-3]}";
  case OPT_WANTS_WORD:
  case OPT_WANTS_TEXT: break;
  }
  return " ";
}

static void put_action(struct buf *out, const struct opts_spec *spec, const struct opt *row) {
  struct opt_choice c[OPT_CHOICES_MAX];
  size_t n = known_choices(row, c);
  if (n > 0 && (is_mixed(c, n) || c[0].wants == OPT_WANTS_SIGNAL)) {
    buf_printf(out, "_%s_%s", spec->program, row->name);
  } else if (n > 0 && c[0].wants == OPT_WANTS_WORD) {
    buf_putc(out, '(');
    put_words(out, c, n);
    buf_putc(out, ')');
  } else {
    buf_puts(out, n > 0 ? action(&c[0]) : " ");
  }
}

static void put_argument(struct buf *out, const struct opts_spec *spec, const struct opt *row) {
  struct buf summary = BUF_INIT;
  opt_summary(row, SUMMARY_MAX, &summary);
  buf_putc(out, '[');
  put_quoted(out, buf_text(&summary));
  buf_putc(out, ']');
  buf_finish(&summary);
  if (row->type == OPT_FLAG) return;
  buf_putc(out, ':');
  put_quoted(out, opt_value_label(row));
  buf_putc(out, ':');
  put_action(out, spec, row);
}

static void put_name(struct buf *out, const struct opts_spec *spec, const struct opt *row, const char *name) {
  const char *dashes = name[1] ? "--" : "-";
  buf_puts(out, "    '");
  if (row->type == OPT_STRINGS)
    buf_putc(out, '*'); /* may be given several times */
  else if (row->alias)
    buf_printf(out, "(--%s %s%s)", row->name, row->alias[1] ? "--" : "-", row->alias);
  buf_printf(out, "%s%s", dashes, name);
  if (row->type != OPT_FLAG) buf_putc(out, name[1] ? '=' : '+');
  put_argument(out, spec, row);
  buf_puts(out, "' \\\n");
}

void opts_complete_zsh_options(const struct opts_spec *spec, struct buf *out) {
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name) continue;
    put_name(out, spec, row, row->name);
    if (row->alias) put_name(out, spec, row, row->alias);
  }
}

/* Beginnings first: behind "file:" only files are wanted. */
static void put_function(struct buf *out, const struct opts_spec *spec, const struct opt *row,
                         const struct opt_choice *c, size_t n) {
  struct buf words = BUF_INIT;
  put_words(&words, c, n);
  buf_printf(out, "_%s_%s() {\n", spec->program, row->name);
  for (size_t i = 0; i < n; i++)
    if (c[i].wants != OPT_WANTS_WORD && c[i].len > 0)
      buf_printf(out, "  if compset -P '%.*s'; then\n    %s\n    return\n  fi\n", (int)c[i].len, c[i].word,
                 c[i].wants == OPT_WANTS_TEXT ? "return 1" : action(&c[i]));
  buf_puts(out, "  local ret=1\n");
  if (words.len > 0) buf_printf(out, "  compadd - %s && ret=0\n", buf_text(&words));
  for (size_t i = 0; i < n; i++) {
    if (c[i].wants == OPT_WANTS_WORD) continue;
    if (c[i].len > 0)
      buf_printf(out, "  compadd -S '' - %.*s && ret=0\n", (int)c[i].len, c[i].word);
    else
      buf_printf(out, "  %s && ret=0\n", action(&c[i]));
  }
  buf_puts(out, "  return ret\n}\n\n");
  buf_finish(&words);
}

void opts_complete_zsh_functions(const struct opts_spec *spec, struct buf *out) {
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    struct opt_choice c[OPT_CHOICES_MAX];
    size_t n = row->name ? known_choices(row, c) : 0;
    if (n > 0 && (is_mixed(c, n) || c[0].wants == OPT_WANTS_SIGNAL)) put_function(out, spec, row, c, n);
  }
}

void opts_complete_zsh_verbs(const struct opts_spec *spec, struct buf *out) {
  for (const struct opts_verb *v = spec->verbs; v && v->name; v++) {
    struct opt row = {.help = v->help};
    struct buf summary = BUF_INIT;
    opt_summary(&row, SUMMARY_MAX, &summary);
    buf_printf(out, "    '%s:", v->name);
    put_quoted(out, buf_text(&summary));
    buf_puts(out, "'\n");
    buf_finish(&summary);
  }
}
