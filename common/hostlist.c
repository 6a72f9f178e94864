/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of hosts, short and long.
 *
 * The short form is Slurm's: names separated by commas. A bracket stands for each of its numbers and ranges. A name may
 * have several brackets: every combination is meant, and the last bracket changes fastest. A range pads its numbers
 * with zeros to the width of its first one: [08-10] is 08, 09, 10, and [8-10] is 8, 9, 10. Nothing is written beyond the
 * limits: twenty characters may ask for billions of names.
 *
 * The other direction sorts by the last number of each name ("r1n04-ib" is number 4 of "r1n*-ib"): first by the text
 * around it, then by its value. It joins only numbers that the rule of padding above would restore. */

#include "common/hostlist.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/ascii.h"
#include "common/mem.h"

static void cut_to(struct buf *b, size_t len) {
  if (!b->data) return;
  b->len = len;
  b->data[len] = '\0';
}

static bool is_name_char(char c) {
  return ascii_is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
}

/* Expanding. ------------------------------------------------------------------------------------------------------- */

struct expansion {
  const char *text;
  struct buf *names;
  size_t begin, n; /* the length of *names before, and the number of names now */
  char name[HOSTLIST_NAME_MAX + 1];
  struct err *e;
};

static int refuse(const struct expansion *x, int code, const char *why) {
  char shown[TEXT_SHOWN];
  return err_set(x->e, code, "\"%s\" is not a list of hosts: %s", text_shown(shown, x->text, strlen(x->text)), why);
}

static int put_char(struct expansion *x, size_t *len, char c) {
  if (*len == HOSTLIST_NAME_MAX) return refuse(x, -E2BIG, "a name is longer than 255 characters");
  x->name[(*len)++] = c;
  return 0;
}

/* Digits at *p; *width: how many, or 0. */
static int read_number(const struct expansion *x, const char **p, uint32_t *v, size_t *width) {
  const char *begin = *p;
  for (*v = 0; ascii_is_digit(**p) && *p - begin < HOSTLIST_DIGITS_MAX; ++*p) *v = *v * 10 + (uint32_t)(**p - '0');
  *width = (size_t)(*p - begin);
  if (ascii_is_digit(**p)) return refuse(x, -E2BIG, "a number in brackets has more than 9 digits");
  if (!*width) return refuse(x, -EINVAL, "brackets hold numbers and ranges, as in [1-4,7]");
  return 0;
}

static int expand_name(struct expansion *x, const char *p, size_t len, int brackets);

/* p is behind the bracket. The text behind the closing one is expanded for each number. */
static int expand_bracket(struct expansion *x, const char *p, size_t len, int brackets) {
  const char *end = strchr(p, ']');
  int rc = 0;
  if (!end) return refuse(x, -EINVAL, "a closing bracket is missing");
  if (brackets == HOSTLIST_BRACKETS_MAX) return refuse(x, -E2BIG, "a name has more than 8 brackets");
  for (;;) {
    uint32_t low, high;
    size_t width, width_high;
    if ((rc = read_number(x, &p, &low, &width))) return rc;
    high = low;
    if (*p == '-') {
      p++;
      if ((rc = read_number(x, &p, &high, &width_high))) return rc;
    }
    if (high < low) return refuse(x, -EINVAL, "a range goes down");
    if (p != end && *p != ',') return refuse(x, -EINVAL, "brackets hold numbers and ranges, as in [1-4,7]");
    for (uint32_t v = low; rc == 0 && v <= high; v++) {
      char digits[HOSTLIST_DIGITS_MAX + 2];
      size_t n = len;
      snprintf(digits, sizeof(digits), "%0*" PRIu32, (int)width, v);
      for (const char *d = digits; rc == 0 && *d; d++) rc = put_char(x, &n, *d);
      if (rc == 0) rc = expand_name(x, end + 1, n, brackets + 1);
    }
    if (rc || p++ == end) return rc;
  }
}

/* Expands from p to the comma or the end; len characters of the name are there already. */
static int expand_name(struct expansion *x, const char *p, size_t len, int brackets) {
  for (; *p && *p != ','; p++) {
    if (*p == '[') return expand_bracket(x, p + 1, len, brackets);
    if (*p == ']') return refuse(x, -EINVAL, "a closing bracket closes nothing");
    if (!is_name_char(*p)) return refuse(x, -EINVAL, "a host has letters, digits, dots and dashes only");
    int rc = put_char(x, &len, *p);
    if (rc) return rc;
  }
  if (!len) return refuse(x, -EINVAL, "a name between commas is missing");
  if (x->n == HOSTLIST_NAMES_MAX) return refuse(x, -E2BIG, "it has more than 65536 names");
  if (x->names->len - x->begin + len + 1 > HOSTLIST_BYTES_MAX)
    return refuse(x, -E2BIG, "its names take more than 4 MiB");
  x->name[len] = '\0';
  buf_append(x->names, x->name, len + 1);
  x->n++;
  return 0;
}

int hostlist_expand(const char *text, struct buf *names, size_t *n, struct err *e) {
  struct expansion x = {.text = text, .names = names, .begin = names->len, .e = e};
  int rc = 0;
  for (const char *p = text; rc == 0; p++) {
    rc = expand_name(&x, p, 0, 0);
    /* To the comma behind the name. A comma in brackets does not count. */
    for (bool inside = false; *p && (inside || *p != ','); p++) inside = *p == '[' || (inside && *p != ']');
    if (!*p) break;
  }
  if (rc) cut_to(names, x.begin);
  *n = rc ? 0 : x.n;
  return rc;
}

/* Compressing. ----------------------------------------------------------------------------------------------------- */

struct split {
  const char *name;
  size_t prefix, digits, suffix; /* suffix: its offset; digits 0: the name has no number */
  uint32_t v;
};

static void split_name(struct split *s, const char *name) {
  size_t n = strlen(name), end = n;
  *s = (struct split){.name = name, .prefix = n, .suffix = n};
  for (size_t i = 0; i < n; i++)
    if (!is_name_char(name[i])) return;
  while (end > 0 && !ascii_is_digit(name[end - 1])) end--;
  size_t begin = end;
  while (begin > 0 && ascii_is_digit(name[begin - 1]) && end - begin < HOSTLIST_DIGITS_MAX) begin--;
  if (begin == end) return;
  s->prefix = begin;
  s->digits = end - begin;
  s->suffix = end;
  for (size_t i = begin; i < end; i++) s->v = s->v * 10 + (uint32_t)(name[i] - '0');
}

/* Names that differ only in the number. */
static int compare_kind(const struct split *a, const struct split *b) {
  int c = memcmp(a->name, b->name, a->prefix < b->prefix ? a->prefix : b->prefix);
  if (!c) c = (a->prefix > b->prefix) - (a->prefix < b->prefix);
  if (!c) c = strcmp(a->name + a->suffix, b->name + b->suffix);
  return c ? c : (a->digits > 0) - (b->digits > 0);
}

static int compare_split(const void *pa, const void *pb) {
  const struct split *a = pa, *b = pb;
  int c = compare_kind(a, b);
  if (!c) c = (a->v > b->v) - (a->v < b->v);
  return c ? c : (a->digits > b->digits) - (a->digits < b->digits);
}

/* How many of s[0..n) form one range with the first; *last: its end. Repeated names are passed over. */
static size_t take_run(const struct split *s, size_t n, size_t *last) {
  size_t i = 1;
  for (*last = 0; i < n; i++) {
    if (!compare_split(&s[*last], &s[i])) continue;
    size_t natural = (size_t)snprintf(NULL, 0, "%" PRIu32, s[i].v);
    if (compare_kind(&s[0], &s[i]) || !s[0].digits || s[i].v != s[*last].v + 1) break;
    if (s[i].digits != (natural > s[0].digits ? natural : s[0].digits)) break;
    *last = i;
  }
  return i;
}

static void put_digits(struct buf *out, const struct split *s) {
  buf_append(out, s->name + s->prefix, s->digits);
}

/* Appends the names of one kind, as far as they fit into `room` bytes. Returns how many. */
static size_t put_kind(const struct split *s, size_t n, size_t room, struct buf *out) {
  size_t begin = out->len, told = 0, last, runs = 0;
  size_t behind = strlen(s->name + s->suffix);
  bool one = take_run(s, n, &last) == n && last == 0;
  struct buf run = BUF_INIT;
  buf_put_escaped(out, s->name, s->prefix, HOSTLIST_NAME_MAX);
  if (!one) buf_putc(out, '[');
  while (told < n) {
    size_t took = take_run(s + told, n - told, &last);
    buf_clear(&run);
    if (runs++) buf_putc(&run, ',');
    put_digits(&run, &s[told]);
    if (last) buf_putc(&run, '-');
    if (last) put_digits(&run, &s[told + last]);
    if (out->len - begin + run.len + behind + !one > room) break;
    buf_append(out, buf_text(&run), run.len);
    told += took;
  }
  if (!one) buf_putc(out, ']');
  buf_puts(out, s->name + s->suffix);
  if (!told) cut_to(out, begin);
  buf_finish(&run);
  return told;
}

size_t hostlist_compress(const char *const *names, size_t n, size_t max, struct buf *out) {
  struct split *s = xcalloc(n ? n : 1, sizeof *s);
  size_t begin = out->len, told = 0, kind, took;
  for (size_t i = 0; i < n; i++) split_name(&s[i], names[i]);
  qsort(s, n, sizeof *s, compare_split);
  for (size_t i = 0; i < n; i += kind) {
    size_t before = out->len;
    for (kind = 1; i + kind < n && !compare_kind(&s[i], &s[i + kind]);) kind++;
    if (i) buf_putc(out, ',');
    size_t used = out->len - begin;
    told += took = put_kind(&s[i], kind, max > used ? max - used : 0, out);
    if (took == kind) continue;
    if (!took) cut_to(out, before);
    break;
  }
  free(s);
  return told;
}

/* Hosts. ----------------------------------------------------------------------------------------------------------- */

size_t hostlist_short(const char *name) {
  size_t n = strcspn(name, ".");
  bool address = name[strspn(name, "0123456789.")] == '\0' || strchr(name, ':');
  return address || n == 0 ? strlen(name) : n;
}
