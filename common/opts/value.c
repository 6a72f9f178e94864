/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options: text to number, or a sentence with what was expected.
 *
 * Numbers are read strictly and to the end: no blanks, no "0x", no silent wrap, nothing behind. strtoll and strtod
 * accept all of these, and the locale's comma, so whole and scaled numbers are read by hand. A duration and a size have
 * the same form: a decimal number with a unit out of a short table. A fraction ("1.5s") is rounded to the smallest unit.
 *
 * Bounds are shown in the notation of values: "must be from 1s to 10m", not "1000 to 600000". Bounds in the table are
 * doubles, exact for every integer up to 2^53, which is more than any row needs. */

#include "common/opts/value.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/ascii.h"

struct unit {
  const char *name;
  int64_t scale;
};

/* Smallest first; the last one that divides a number is used to print it. */
static const struct unit time_units[] = {{"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}, {NULL, 0}};
static const struct unit size_units[] = {{"", 1},        {"k", 1 << 10},   {"m", 1 << 20},
                                         {"g", 1 << 30}, {"t", 1LL << 40}, {NULL, 0}};

int parse_int(const char *text, int64_t min, int64_t max, int64_t *value, struct err *e) {
  bool negative = text[0] == '-', overflow = false;
  const char *p = text + negative;
  int64_t v = 0;
  if (!ascii_is_digit(*p)) return err_set(e, -EINVAL, "not a whole number");
  for (; ascii_is_digit(*p); p++) {
    int digit = negative ? -(*p - '0') : *p - '0';
    overflow = overflow || __builtin_mul_overflow(v, (int64_t)10, &v) || __builtin_add_overflow(v, digit, &v);
  }
  if (*p) return err_set(e, -EINVAL, "not a whole number");
  if (!overflow && v >= min && v <= max) {
    *value = v;
    return 0;
  }
  bool below = overflow ? negative : v < min;
  if (below && min == INT64_MIN) return err_set(e, -EINVAL, "the number is too small");
  if (!below && max == INT64_MAX) return err_set(e, -EINVAL, "the number is too large");
  if (max == INT64_MAX) return err_set(e, -EINVAL, "must be at least %" PRId64, min);
  if (min == INT64_MIN) return err_set(e, -EINVAL, "must be at most %" PRId64, max);
  return err_set(e, -EINVAL, "must be from %" PRId64 " to %" PRId64, min, max);
}

/* "12", "1.5k": a number and a unit (`bare` where none is written). */
static int parse_scaled(const char *text, const struct unit *units, int64_t bare, int64_t *value) {
  const char *p = text;
  int64_t whole = 0, scale = 0;
  double fraction = 0, weight = 1;
  if (!ascii_is_digit(*p)) return -EINVAL;
  for (; ascii_is_digit(*p); p++)
    if (__builtin_mul_overflow(whole, (int64_t)10, &whole) || __builtin_add_overflow(whole, *p - '0', &whole))
      return -ERANGE;
  if (*p == '.') {
    if (!ascii_is_digit(*++p)) return -EINVAL;
    for (; ascii_is_digit(*p); p++) fraction += (*p - '0') * (weight /= 10);
  }
  if (*p == '\0') scale = bare;
  for (; !scale && units->name; units++)
    if (strcasecmp(p, units->name) == 0) scale = units->scale;
  if (!scale) return -EINVAL;
  int64_t part = (int64_t)(fraction * (double)scale + 0.5);
  if (__builtin_mul_overflow(whole, scale, &whole) || __builtin_add_overflow(whole, part, value)) return -ERANGE;
  return 0;
}

int parse_duration_ms(const char *text, int64_t *ms, struct err *e) {
  int rc = parse_scaled(text, time_units, 1000, ms);
  if (rc == -ERANGE) return err_set(e, -EINVAL, "the time is too long");
  return rc ? err_set(e, -EINVAL, "not a time: write 500ms, 30s, 5m or 2h") : 0;
}

int parse_size(const char *text, int64_t *bytes, struct err *e) {
  int rc = parse_scaled(text, size_units, 1, bytes);
  if (rc == -ERANGE) return err_set(e, -EINVAL, "the size is too large");
  return rc ? err_set(e, -EINVAL, "not a size: write bytes, or 64k, 25m, 1g") : 0;
}

int parse_bool(const char *text, bool *value, struct err *e) {
  static const char *const words[] = {"0", "1", "false", "true", "no", "yes"};
  for (int i = 0; i < 6; i++) {
    if (strcasecmp(text, words[i]) == 0) {
      *value = i % 2;
      return 0;
    }
  }
  return err_set(e, -EINVAL, "write yes or no (or 1, 0, true, false)");
}

static int parse_float(const char *text, double *value, struct err *e) {
  char *end = NULL;
  errno = 0;
  double v = strtod(text, &end);
  if (!*text || strspn(text, "0123456789+-.eE") != strlen(text) || *end) return err_set(e, -EINVAL, "not a number");
  if (errno == ERANGE && (v > 1 || v < -1)) return err_set(e, -EINVAL, "the number is too large");
  *value = v;
  return 0;
}

static void format_scaled(int64_t v, const struct unit *units, char out[32]) {
  const struct unit *best = units;
  for (const struct unit *u = units; u->name; u++)
    if (v != 0 && v % u->scale == 0) best = u;
  snprintf(out, 32, "%" PRId64 "%s", v, v ? best->name : "");
  if (best->scale != 1) snprintf(out, 32, "%" PRId64 "%s", v / best->scale, best->name);
}

static void format_bound(const struct opt *row, double v, char out[32]) {
  if (row->type == OPT_DURATION)
    format_scaled((int64_t)v, time_units, out);
  else if (row->type == OPT_SIZE)
    format_scaled((int64_t)v, size_units, out);
  else
    snprintf(out, 32, row->type == OPT_INT ? "%.0f" : "%g", v);
}

void opt_value_bounds(const struct opt *row, char out[OPT_BOUNDS_MAX]) {
  char min[32], max[32];
  out[0] = '\0';
  if (row->type == OPT_WORD || (row->min == 0 && row->max == 0)) return;
  format_bound(row, row->min, min);
  format_bound(row, row->max, max);
  if (row->max < row->min)
    snprintf(out, OPT_BOUNDS_MAX, "at least %s", min);
  else
    snprintf(out, OPT_BOUNDS_MAX, "from %s to %s", min, max);
}

static int check_bounds(const struct opt *row, double v, struct err *e) {
  bool bounded = row->min != 0 || row->max != 0, open = row->max < row->min;
  char bounds[OPT_BOUNDS_MAX];
  if (!bounded || (v >= row->min && (open || v <= row->max))) return 0;
  opt_value_bounds(row, bounds);
  return err_set(e, -EINVAL, "must be %s", bounds);
}

static bool is_whole(const char *text) {
  const char *digits = text + (text[0] == '-');
  return *digits && strspn(digits, "0123456789") == strlen(digits);
}

static int set_number(const struct opt *row, const char *text, void *field, struct err *e) {
  int64_t v = 0;
  double d = 0;
  int rc = 0;
  if (row->type == OPT_FLOAT) {
    rc = parse_float(text, &d, e);
  } else {
    rc = row->type == OPT_DURATION ? parse_duration_ms(text, &v, e)
         : row->type == OPT_SIZE   ? parse_size(text, &v, e)
                                   : parse_int(text, INT64_MIN, INT64_MAX, &v, e);
    d = (double)v;
  }
  if (row->type == OPT_INT && row->max > row->min && !is_whole(text)) {
    char bounds[OPT_BOUNDS_MAX];
    opt_value_bounds(row, bounds);
    return err_set(e, -EINVAL, "not a whole number %s", bounds);
  }
  if (rc == 0) rc = check_bounds(row, d, e);
  if (rc) return rc;
  if (row->type == OPT_FLOAT)
    memcpy(field, &d, sizeof(d));
  else
    memcpy(field, &v, sizeof(v));
  return 0;
}

static int add_string(struct opt_strings *list, const char *text, struct err *e) {
  if (!*text) return err_set(e, -EINVAL, "an element is empty");
  if (list->n == OPT_STRINGS_MAX) return err_set(e, -EINVAL, "more than %d of them", OPT_STRINGS_MAX);
  list->v[list->n++] = text;
  return 0;
}

static int split_strings(struct opt_strings *list, const char *text, struct err *e) {
  size_t n = strlen(text);
  list->n = 0;
  if (n == 0) return 0;
  if (n >= OPT_STRINGS_TEXT_MAX) return err_set(e, -EINVAL, "longer than %d characters", OPT_STRINGS_TEXT_MAX - 1);
  memcpy(list->text, text, n + 1);
  for (char *piece = list->text, *comma; piece; piece = comma ? comma + 1 : NULL) {
    comma = strchr(piece, ',');
    if (comma) *comma = '\0';
    int rc = add_string(list, piece, e);
    if (rc) return rc;
  }
  return 0;
}

static int set_word(const struct opt *row, const char *text, void *field, struct err *e) {
  struct buf all = BUF_INIT;
  int number = (int)row->min;
  for (const char *p = row->label; *p; number++) {
    size_t n = strcspn(p, "|");
    if (strlen(text) == n && strncmp(text, p, n) == 0) {
      memcpy(field, &number, sizeof(number));
      buf_finish(&all);
      return 0;
    }
    buf_printf(&all, "%s%.*s", p == row->label ? "" : p[n] ? ", " : " or ", (int)n, p);
    p += n + (p[n] == '|');
  }
  err_set(e, -EINVAL, "must be %s", buf_text(&all));
  buf_finish(&all);
  return -EINVAL;
}

int opt_value_set(const struct opt *row, const char *text, bool append, void *target, struct err *e) {
  void *field = (char *)target + row->offset;
  switch (row->type) {
  case OPT_FLAG: return parse_bool(text, field, e);
  case OPT_INT:
  case OPT_DURATION:
  case OPT_SIZE:
  case OPT_FLOAT: return set_number(row, text, field, e);
  case OPT_STRING: memcpy(field, &text, sizeof(text)); return 0;
  case OPT_STRINGS: return append ? add_string(field, text, e) : split_strings(field, text, e);
  case OPT_WORD: return set_word(row, text, field, e);
  case OPT_CUSTOM: return row->parse(text, field, e);
  }
  return err_set(e, -EINVAL, "an option of unknown type %d", (int)row->type);
}

bool opt_value_shows_default(const struct opt *row) {
  bool on = false;
  if (!row->def || !*row->def) return false;
  return row->type != OPT_FLAG || (parse_bool(row->def, &on, NULL) == 0 && on);
}

const char *opt_value_label(const struct opt *row) {
  if (row->type == OPT_FLAG) return "";
  if (row->label) return row->label;
  switch (row->type) {
  case OPT_FLAG: return "";
  case OPT_INT: return "N";
  case OPT_DURATION: return "TIME";
  case OPT_SIZE: return "SIZE";
  case OPT_FLOAT: return "X";
  case OPT_STRING:
  case OPT_STRINGS: return "TEXT";
  case OPT_WORD:
  case OPT_CUSTOM: return "VALUE";
  }
  return "VALUE";
}
