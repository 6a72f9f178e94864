/* SPDX-License-Identifier: Apache-2.0 */
/* fish's side of complete.h: one complete command a line. Between apostrophes only the apostrophe and the backslash
 * have a meaning. -x: a value must follow, and it is not a file; -r -F: a file. */

#include <string.h>
#include "common/opts/value.h"
#include "deploy/manual/complete.h"

enum { SUMMARY_MAX = 60 };

static void put_quoted(struct buf *out, const char *text) {
  buf_putc(out, '\'');
  for (; *text; text++) buf_printf(out, *text == '\'' || *text == '\\' ? "\\%c" : "%c", *text);
  buf_putc(out, '\'');
}

static const char *command_for(enum opt_wants wants) {
  switch (wants) {
  case OPT_WANTS_DIR: return "(__fish_complete_directories)";
  case OPT_WANTS_HOST: return "(__fish_print_hostnames)";
  case OPT_WANTS_SIGNAL: return "SIG(kill -l | string split -n ' ')";
  case OPT_WANTS_FILE:
  case OPT_WANTS_WORD:
  case OPT_WANTS_TEXT: break;
  }
  return NULL;
}

static void put_values(struct buf *out, const struct opt *row) {
  struct opt_choice c[OPT_CHOICES_MAX];
  size_t n = opt_choices(row, c);
  struct buf words = BUF_INIT;
  bool files = false;
  for (size_t i = 0; i < n; i++) {
    const char *command = command_for(c[i].wants), *sep = words.len ? " " : "";
    files |= c[i].wants == OPT_WANTS_FILE;
    if (c[i].len > 0)
      buf_printf(&words, "%s%.*s", sep, (int)c[i].len, c[i].word);
    else if (command && c[i].list)
      buf_printf(&words, "%s(__fish_append , %s)", sep, command);
    else if (command)
      buf_printf(&words, "%s%s", sep, command);
  }
  buf_puts(out, files ? " -r -F" : " -x");
  if (words.len > 0) {
    buf_puts(out, " -a ");
    put_quoted(out, buf_text(&words));
  }
  buf_finish(&words);
}

static void put_summary(struct buf *out, const char *help) {
  struct opt row = {.help = help};
  struct buf summary = BUF_INIT;
  opt_summary(&row, SUMMARY_MAX, &summary);
  buf_puts(out, " -d ");
  put_quoted(out, buf_text(&summary));
  buf_finish(&summary);
}

static void put_command(struct buf *out, const struct opts_spec *spec, const char *condition) {
  buf_printf(out, "complete -c %s -n ", spec->program);
  put_quoted(out, condition);
}

void opts_complete_fish_options(const struct opts_spec *spec, const char *condition, struct buf *out) {
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name) continue;
    put_command(out, spec, condition);
    buf_printf(out, " -l %s", row->name);
    if (row->alias) buf_printf(out, " -%s %s", row->alias[1] ? "l" : "s", row->alias);
    if (row->type != OPT_FLAG) put_values(out, row);
    put_summary(out, row->help);
    buf_putc(out, '\n');
  }
}

void opts_complete_fish_valued(const struct opts_spec *spec, struct buf *out) {
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name || row->type == OPT_FLAG) continue;
    buf_printf(out, "%s--%s", out->len ? " " : "", row->name);
    if (row->alias) buf_printf(out, " -%s%s", row->alias[1] ? "-" : "", row->alias);
  }
}

void opts_complete_fish_verbs(const struct opts_spec *spec, const char *condition, struct buf *out) {
  for (const struct opts_verb *v = spec->verbs; v && v->name; v++) {
    put_command(out, spec, condition);
    buf_printf(out, " -a %s", v->name);
    put_summary(out, v->help);
    buf_putc(out, '\n');
  }
}
