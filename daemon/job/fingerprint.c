/* SPDX-License-Identifier: Apache-2.0 */
/* The line of a worker decides whether it failed the same way, and a worker writes what differs from run to run into
 * that line: "[rank3]: RuntimeError: CUDA error at 0x7f32a0 in /tmp/tmpab12_x/k.cu:17 (20:39:09.113)". So each of these
 * becomes '#', and blanks become one:
 *
 *   a number, with sign, fraction, exponent, and what joins numbers: 1e-5  3,000  20:39:09  2026-11-22  10.0.0.3:2940
 *   an address or another hexadecimal number: 0x7f32a0, fcf44a4417eb0347 (8 digits or more), a UUID
 *   a word in which letters and digits take turns: 8f3k2j (6 characters or more)
 *   the first name below /tmp, /var/tmp or /dev/shm, and Python's tmpab12_x anywhere
 *
 * A digit within any other word is a number too: "cuda:1" is "cuda:#". Only the first bytes of the result count: where the
 * agent cuts a long line depends on how long the numbers in front are. Two failures that differ only in a name
 * ("KeyError: 'a'", "KeyError: 'b'") are different: in doubt a job is restarted, and the budget ends it. */

#include "daemon/job/fingerprint.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>
#include "common/ascii.h"
#include "common/siphash.h"

enum { HEX_MIN = 8, MIXED_MIN = 6, TMP_MIN = 9 };

static bool is_letter(char c) {
  return ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z';
}

static bool is_word(char c) {
  return ascii_is_digit(c) || is_letter(c) || c == '_';
}

static bool is_hex(char c) {
  return ascii_is_digit(c) || (ascii_lower(c) >= 'a' && ascii_lower(c) <= 'f');
}

/* An escape sequence of a terminal: ESC [ ... letter. */
static size_t escape_len(const char *s, size_t n) {
  if (n < 2 || s[0] != '\x1b' || s[1] != '[') return 0;
  size_t i = 2;
  while (i < n && !is_letter(s[i])) i++;
  return i < n ? i + 1 : n;
}

static size_t begins_with(const char *s, size_t n, const char *prefix) {
  size_t len = strlen(prefix);
  return n > len && !memcmp(s, prefix, len) ? len : 0;
}

static size_t uuid_len(const char *s, size_t n) {
  static const char form[] = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx";
  if (n < sizeof form - 1) return 0;
  for (size_t i = 0; form[i]; i++)
    if (form[i] == '-' ? s[i] != '-' : !is_hex(s[i])) return 0;
  return sizeof form - 1;
}

/* The word has no meaning of its own: a hexadecimal number, a random name. */
static bool is_id(const char *s, size_t n) {
  size_t hex = 0, runs = 0;
  bool plain = true;
  for (size_t i = 0; i < n; i++) {
    hex += is_hex(s[i]);
    plain &= s[i] != '_';
    if (ascii_is_digit(s[i]) && (i == 0 || !ascii_is_digit(s[i - 1]))) runs++;
  }
  if (n > 2 && s[0] == '0' && ascii_lower(s[1]) == 'x' && hex == n - 1) return true;
  if (hex == n && n >= HEX_MIN && runs) return true;
  if (n >= TMP_MIN && !memcmp(s, "tmp", 3)) return true;
  return plain && n >= MIXED_MIN && runs >= 2;
}

/* The number at s, which is a digit, with all that joins it to further numbers. */
static size_t number_len(const char *s, size_t n) {
  size_t i = 0;
  while (i < n) {
    if (ascii_is_digit(s[i])) {
      i++;
    } else if (i + 1 < n && strchr(".,:-+", s[i]) && ascii_is_digit(s[i + 1])) {
      i += 2;
    } else if (i + 2 < n && ascii_lower(s[i]) == 'e' && strchr("+-", s[i + 1]) && ascii_is_digit(s[i + 2])) {
      i += 3;
    } else {
      break;
    }
  }
  return i;
}

/* A word: as it is, but for its digits. */
static size_t put_word(const char *s, size_t n, struct buf *out) {
  size_t len = 0, i = 0;
  while (len < n && is_word(s[len])) len++;
  if (is_id(s, len)) {
    buf_putc(out, '#');
    return len;
  }
  while (i < len) {
    if (ascii_is_digit(s[i])) {
      i += number_len(s + i, n - i); /* it may go on behind the word: 3.5 */
      buf_putc(out, '#');
    } else {
      buf_putc(out, s[i++]);
    }
  }
  return i;
}

void fingerprint_line(const char *line, size_t len, struct buf *out) {
  size_t n = len < FINGERPRINT_LINE_MAX ? len : FINGERPRINT_LINE_MAX, used;
  for (size_t i = 0; i < n; i += used) {
    const char *s = line + i;
    size_t left = n - i, folder = begins_with(s, left, "/tmp/");
    if (!folder) folder = begins_with(s, left, "/var/tmp/");
    if (!folder) folder = begins_with(s, left, "/dev/shm/");
    bool sign = left > 1 && strchr("+-", *s) && ascii_is_digit(s[1]) && (i == 0 || !is_word(s[-1]));
    if ((used = escape_len(s, left))) continue;
    if (folder) {
      buf_append(out, s, folder);
      buf_putc(out, '#');
      used = folder;
      while (used < left && (is_word(s[used]) || s[used] == '.' || s[used] == '-')) used++;
    } else if ((used = uuid_len(s, left))) {
      buf_putc(out, '#');
    } else if (is_word(*s)) {
      used = put_word(s, left, out);
    } else if ((unsigned char)*s <= ' ') {
      while (used < left && (unsigned char)s[used] <= ' ' && !escape_len(s + used, left - used)) used++;
      if (out->len && used < left) buf_putc(out, ' ');
    } else {
      used = 1;
      if (!sign) buf_putc(out, *s);
    }
  }
}

int64_t fingerprint(const struct verdict *v) {
  static const struct siphash_key key = {{0x66696e6765727072, 0x696e742d6f662d61}}; /* the same in every daemon */
  struct buf text = BUF_INIT;
  /* The first line of the error, or the last line of stderr that is not blank. */
  const char *line = v->error[0] ? v->error : v->text;
  size_t len = strcspn(line, "\n");
  if (!v->error[0] && v->cause != CAUSE_WORKER_EXEC) {
    bool stderr_counts = v->cause == CAUSE_WORKER_EXIT || v->cause == CAUSE_WORKER_SIGNAL;
    const char *end = stderr_counts ? v->text + strlen(v->text) : v->text;
    while (end > v->text && (unsigned char)end[-1] <= ' ') end--;
    for (line = end; line > v->text && line[-1] != '\n';) line--;
    len = (size_t)(end - line);
  }
  buf_printf(&text, "%s %" PRId64 " %" PRId64 " ", cause_name(v->cause), v->code, v->signal);
  size_t max = text.len + FINGERPRINT_TEXT_MAX;
  fingerprint_line(line, len, &text);
  uint64_t h = siphash(&key, text.data, text.len < max ? text.len : max) & INT64_MAX;
  buf_finish(&text);
  return h ? (int64_t)h : 1;
}
