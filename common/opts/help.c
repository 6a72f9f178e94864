/* SPDX-License-Identifier: Apache-2.0 */
/* The help text, from the table that parses.
 *
 * Two columns: names and arguments on the left, sentences on the right. The left column is as wide as its widest entry,
 * but at most LEFT_MAX. A longer entry has a line of its own with its sentence below, so that one long name does not
 * move all sentences to the right.
 *
 * Text is wrapped at blanks; a word longer than the line is not broken. Columns count characters of UTF-8, without a
 * table of wide ones. */

#include <string.h>
#include "common/opts/opts.h"
#include "common/opts/value.h"

enum { LEFT_MAX = 29, GAP = 2, WIDTH_MIN = 40 };

static size_t columns(const char *s, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; i++) count += ((unsigned char)s[i] & 0xC0) != 0x80;
  return count;
}

static void pad(struct buf *out, size_t n) {
  for (size_t i = 0; i < n; i++) buf_putc(out, ' ');
}

/* Appends text at column `indent`, where the line already is, and continues there on further lines. Line breaks in text are kept. Ends the last line. */
static void wrap(struct buf *out, const char *text, size_t indent, size_t width) {
  size_t at = indent;
  while (*text) {
    size_t blanks = strspn(text, " "), n = strcspn(text + blanks, " \n");
    size_t w = columns(text + blanks, n);
    if (n > 0 && at > indent && at + 1 + w > width) {
      buf_putc(out, '\n');
      pad(out, indent);
      at = indent;
    }
    if (n > 0 && at > indent) {
      buf_putc(out, ' ');
      at++;
    }
    buf_append(out, text + blanks, n);
    at += w;
    text += blanks + n;
    if (*text == '\n') {
      buf_putc(out, '\n');
      if (text[1] && text[1] != '\n') pad(out, indent);
      at = indent;
      text++;
    }
  }
  if (out->len == 0 || out->data[out->len - 1] != '\n') buf_putc(out, '\n');
}

static void put_left(struct buf *out, const struct opt *row) {
  buf_printf(out, "  --%s", row->name);
  if (row->alias && !row->alias[1]) buf_printf(out, ", -%s", row->alias);
  const char *label = opt_value_label(row);
  if (*label) buf_printf(out, " %s", label);
}

/* short_help: of the options that it shows. */
static size_t left_width(const struct opts_spec *spec, bool short_help) {
  size_t widest = 0;
  struct buf left = BUF_INIT;
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name || (short_help && !row->brief)) continue;
    buf_clear(&left);
    put_left(&left, row);
    size_t w = columns(left.data, left.len);
    if (w > widest && w <= LEFT_MAX) widest = w;
  }
  buf_finish(&left);
  return widest + GAP;
}

static void put_columns(struct buf *out, const struct opt *row, const char *text, size_t column, size_t width) {
  struct buf left = BUF_INIT;
  put_left(&left, row);
  size_t w = columns(left.data, left.len);
  buf_append(out, left.data, left.len);
  if (w + GAP > column) {
    buf_putc(out, '\n');
    w = 0;
  }
  pad(out, column - w);
  wrap(out, text, column, width);
  buf_finish(&left);
}

/* A row that shows how a variable is named: one with a value, preferably with a dash in its name and a default. */
static const struct opt *example_row(const struct opts_spec *spec) {
  const struct opt *best = NULL;
  int most = 0;
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name || row->type == OPT_FLAG) continue;
    int score = 1 + (strchr(row->name, '-') ? 2 : 0) + (row->def && *row->def ? 4 : 0);
    if (score > most) {
      most = score;
      best = row;
    }
  }
  return best;
}

static bool has_label(const struct opts_spec *spec, const char *label) {
  for (const struct opt *row = spec->table; !opt_is_end(row); row++)
    if (row->name && strstr(opt_value_label(row), label)) return true;
  return false;
}

/* Applies to all options. */
static void put_notes(struct buf *out, const struct opts_spec *spec, size_t width) {
  const struct opt *row = spec->env_prefix ? example_row(spec) : NULL;
  if (!row) return;
  struct buf text = BUF_INIT;
  if (has_label(spec, "TIME")) buf_puts(&text, "TIME is 500ms, 30s, 5m or 2h. ");
  if (has_label(spec, "SIZE")) buf_puts(&text, "SIZE is bytes, or 64k, 25m, 1g. ");
  const char *value = row->def && *row->def ? row->def : opt_value_label(row);
  buf_printf(&text, "Every option can be set in the environment too: %s", spec->env_prefix);
  for (const char *p = row->name; *p; p++)
    buf_putc(&text, (char)(*p == '-' ? '_' : *p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p));
  buf_printf(&text, "=%s is --%s %s. The command line wins.", value, row->name, value);
  buf_putc(out, '\n');
  wrap(out, buf_text(&text), 0, width);
  buf_finish(&text);
}

static void put_usage(struct buf *out, const struct opts_spec *spec, size_t cols) {
  buf_puts(out, "usage: ");
  for (const char *p = spec->usage; *p; p++) {
    buf_putc(out, *p);
    if (*p == '\n' && p[1]) pad(out, strlen("usage: "));
  }
  if (out->data[out->len - 1] != '\n') buf_putc(out, '\n');
  if (spec->intro) {
    buf_putc(out, '\n');
    wrap(out, spec->intro, 0, cols);
  }
  size_t column = 0;
  for (const struct opts_verb *v = spec->verbs; v && v->name; v++) {
    size_t w = strlen("  ") + strlen(v->name) + 1 + strlen(v->words) + GAP;
    if (w > column) column = w;
  }
  if (spec->verbs) buf_puts(out, "\nCommands:\n");
  for (const struct opts_verb *v = spec->verbs; v && v->name; v++) {
    size_t from = out->len;
    buf_printf(out, "  %s %s", v->name, v->words);
    pad(out, column - (out->len - from));
    wrap(out, v->help, column, cols);
  }
}

void opts_help(const struct opts_spec *spec, int width, struct buf *out) {
  size_t cols = width < WIDTH_MIN ? WIDTH_MIN : (size_t)width, column = left_width(spec, false);
  put_usage(out, spec, cols);
  bool begun = false; /* options ahead of the first heading */
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    if (!row->name)
      buf_printf(out, "\n%s:\n", row->group);
    else if (!begun)
      buf_puts(out, "\nOptions:\n");
    begun = true;
    if (row->name) {
      struct buf right = BUF_INIT;
      buf_puts(&right, row->help ? row->help : "");
      const char *sep = " (";
      if (row->alias && row->alias[1]) {
        buf_printf(&right, "%salso --%s", sep, row->alias);
        sep = "; ";
      }
      if (opt_value_shows_default(row)) {
        buf_printf(&right, "%sdefault: %s", sep, row->def);
        sep = "; ";
      }
      if (sep[0] == ';') buf_putc(&right, ')');
      put_columns(out, row, buf_text(&right), column, cols);
      buf_finish(&right);
    }
  }
  put_notes(out, spec, cols);
  if (spec->outro) buf_printf(out, "\n%s", spec->outro);
  if (spec->examples) buf_printf(out, "\n%s", spec->examples);
  if (out->data[out->len - 1] != '\n') buf_putc(out, '\n');
  const char *intro = spec->exits_intro;
  if (!spec->exits) return;
  buf_puts(out, intro ? "\nExit status: " : "\nExit status:\n");
  if (intro) {
    struct buf text = BUF_INIT; /* the first line is begun */
    wrap(&text, intro, strlen("Exit status: "), cols);
    buf_puts(out, buf_text(&text));
    buf_finish(&text);
  }
  for (const struct opts_exit *x = spec->exits; x->text; x++) {
    if (x->code < 0) continue;
    buf_printf(out, "%5d  ", x->code);
    wrap(out, x->text, 7, cols);
  }
}

void opts_help_short(const struct opts_spec *spec, int width, struct buf *out) {
  size_t cols = width < WIDTH_MIN ? WIDTH_MIN : (size_t)width, column = left_width(spec, true);
  int shown = 0, all = 0;
  for (const struct opt *row = spec->table; !opt_is_end(row); row++) {
    all += row->name != NULL;
    shown += row->brief != NULL;
  }
  if (!shown) {
    opts_help(spec, width, out);
    return;
  }
  put_usage(out, spec, cols);
  buf_puts(out, "\nOptions that are used most:\n");
  for (const struct opt *row = spec->table; !opt_is_end(row); row++)
    if (row->brief) put_columns(out, row, row->brief, column, cols);
  buf_printf(out, "\n%s --help prints all %d options.\n", spec->program, all);
  if (spec->examples) buf_printf(out, "\n%s", spec->examples);
}
