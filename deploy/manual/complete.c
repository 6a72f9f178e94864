/* SPDX-License-Identifier: Apache-2.0 */
/* Completions, from the table that parses: the possible values of an option, in the form of three shells.
 *
 * An option's label is written for people ("N|cpu|gpu|auto", "DIR") and read here. Words in small letters are values;
 * words in capitals name the kind of a value. So a table needs no second list of its values, and a test holds each
 * value in a label against the parser of its row.
 *
 * Each shell quotes in its own way, and its completion system once more: zsh's _arguments gives a meaning to brackets
 * and colons, also within quotes. All text passes through the one function of its shell that knows that.
 *
 * bash shows names only. zsh and fish also show a line about each option: the beginning of its help, up to the first
 * full stop, semicolon or colon, or up to the end of the line. */

#include "deploy/manual/complete.h"

#include <string.h>
#include "common/opts/value.h"

/* Labels. ---------------------------------------------------------------------------------------------------------- */

static bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}

static bool begins(const char *text, size_t n, const char *with) {
  return strlen(with) <= n && strncmp(text, with, strlen(with)) == 0;
}

static enum opt_wants kind_of(const char *p, size_t n) {
  if (n == 0) return OPT_WANTS_WORD;
  if (begins(p, n, "FILE") || begins(p, n, "PATH")) return OPT_WANTS_FILE;
  if (begins(p, n, "DIR")) return OPT_WANTS_DIR;
  if (begins(p, n, "HOST") || begins(p, n, "ADDRESS")) return OPT_WANTS_HOST;
  if (begins(p, n, "SIGNAL")) return OPT_WANTS_SIGNAL;
  return OPT_WANTS_TEXT;
}

/* "HOSTS", "SIGNAL[,...]", "KEY=VALUE,..." */
static bool is_list(const char *p, size_t n) {
  if (n > 0 && p[n - 1] == ']') n--;
  return begins(p, n, "HOSTS") || (n >= 4 && memcmp(p + n - 4, ",...", 4) == 0);
}

static struct opt_choice read_choice(const char *p, size_t n) {
  size_t small = 0, bare = n;
  while (small < n && !is_upper(p[small])) small++;
  while (bare > 0 && strchr("[].,", p[bare - 1])) bare--;
  return (struct opt_choice){
      .wants = kind_of(p + small, n - small), .word = p, .len = small == n ? bare : small, .list = is_list(p, n)};
}

size_t opt_choices(const struct opt *row, struct opt_choice out[OPT_CHOICES_MAX]) {
  const char *p = opt_value_label(row);
  size_t n = 0;
  while (*p && n < OPT_CHOICES_MAX) {
    size_t len = strcspn(p, "|");
    if (len > 0) out[n++] = read_choice(p, len);
    p += len + (p[len] == '|');
  }
  return n;
}

enum { WORD_MAX = 12 }; /* "auto: as gpu ..." says no more than "auto" */

/* The end of the first clause, at most max characters from the start. */
static size_t clause_length(const char *help, size_t max) {
  size_t n = 0, blank = 0;
  for (; help[n] && n < max; n++) {
    bool over = help[n + 1] == ' ' || !help[n + 1];
    if (over && (strchr(".;", help[n]) || (help[n] == ':' && n > WORD_MAX))) return n;
    if (help[n] == ' ') blank = n;
  }
  if (!help[n]) return n;
  return blank;
}

void opt_summary(const struct opt *row, size_t max, struct buf *out) {
  const char *help = row->help ? row->help : "";
  size_t n = clause_length(help, max - 3);
  buf_append(out, help, n);
  if (help[n] && !strchr(".;:", help[n])) buf_puts(out, "...");
}

static bool is_short(const struct opt *row) {
  return row->alias && !row->alias[1];
}

/* bash. ------------------------------------------------------------------------------------------------------------ */

static const char *const bash_kinds[] = {
    [OPT_WANTS_WORD] = "",    [OPT_WANTS_TEXT] = "",      [OPT_WANTS_FILE] = "@file",
    [OPT_WANTS_DIR] = "@dir", [OPT_WANTS_HOST] = "@host", [OPT_WANTS_SIGNAL] = "@signal",
};

static void put_bash_want(struct buf *out, const struct opt *row) {
  struct opt_choice c[OPT_CHOICES_MAX];
  size_t n = opt_choices(row, c), said = 0;
  for (size_t i = 0; i < n; i++) {
    if (c[i].wants == OPT_WANTS_TEXT && c[i].len == 0) continue;
    if (said++) buf_putc(out, ' ');
    buf_append(out, c[i].word, c[i].len);
    buf_puts(out, bash_kinds[c[i].wants]);
    if (c[i].list) buf_putc(out, ',');
  }
}

void opts_complete_bash_wants(const struct opts_spec *spec, struct buf *out) {
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name || row->type == OPT_FLAG) continue;
    buf_printf(out, "    --%s", row->name);
    if (row->alias) buf_printf(out, " | -%s%s", is_short(row) ? "" : "-", row->alias);
    buf_puts(out, ") want='");
    put_bash_want(out, row);
    buf_puts(out, "' ;;\n");
  }
}

void opts_complete_bash_names(const struct opts_spec *spec, struct buf *out) {
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name) continue;
    buf_printf(out, "%s--%s", out->len ? " " : "", row->name);
    if (row->alias) buf_printf(out, " -%s%s", is_short(row) ? "" : "-", row->alias);
  }
}

void opts_complete_bash_verbs(const struct opts_spec *spec, struct buf *out) {
  for (const struct opts_verb *v = spec->verbs; v && v->name; v++)
    buf_printf(out, "    %s) what='%s' ;;\n", v->name, v->words);
}

void opts_complete_verb_names(const struct opts_spec *spec, struct buf *out) {
  for (const struct opts_verb *v = spec->verbs; v && v->name; v++)
    buf_printf(out, "%s%s", out->len ? " " : "", v->name);
}
