/* SPDX-License-Identifier: Apache-2.0 */
/* Names of hosts and users are not all ASCII, so UTF-8 stays readable. A terminal obeys more than ESC: U+009B is CSI in
 * one character, and many terminals accept it in UTF-8. A direction override shows text in another order than it has. A
 * line separator adds a line that this program did not print. An invisible character makes two names look the same. All
 * of these are escaped.
 *
 * The table lists code points and does not ask the locale: a daemon runs in "C", where iswprint() refuses every letter
 * that is not ASCII. */

#include "common/printable.h"

#include <stdio.h>
#include <string.h>

/* In order. */
static const struct {
  uint32_t first, last;
} unprintable[] = {
    {0x0000, 0x001F},   /* C0 controls */
    {0x007F, 0x009F},   /* DEL, C1 controls */
    {0x00AD, 0x00AD},   /* soft hyphen */
    {0x034F, 0x034F},   /* grapheme joiner */
    {0x061C, 0x061C},   /* Arabic letter mark: a direction */
    {0x115F, 0x1160},   /* fillers: letters without a shape */
    {0x17B4, 0x17B5},   /* vowels without a shape */
    {0x180B, 0x180F},   /* Mongolian selectors and separator */
    {0x200B, 0x200F},   /* zero width, direction marks */
    {0x2028, 0x202E},   /* line and paragraph separator, direction overrides */
    {0x2060, 0x206F},   /* word joiner, invisible operators, direction isolates */
    {0x3164, 0x3164},   /* filler */
    {0xD800, 0xDFFF},   /* surrogates */
    {0xFDD0, 0xFDEF},   /* noncharacters */
    {0xFEFF, 0xFEFF},   /* byte order mark */
    {0xFFA0, 0xFFA0},   /* filler */
    {0xFFF0, 0xFFFB},   /* interlinear annotation */
    {0x1BCA0, 0x1BCA3}, /* shorthand format controls */
    {0x1D173, 0x1D17A}, /* musical format controls */
    {0xE0000, 0xE0FFF}, /* tags: text without a shape */
};

bool is_printable(uint32_t c) {
  if (c > 0x10FFFF || (c & 0xFFFE) == 0xFFFE) return false; /* the last two of each plane are noncharacters */
  size_t i = 0;
  while (i < sizeof(unprintable) / sizeof(unprintable[0]) && c > unprintable[i].last) i++;
  return i == sizeof(unprintable) / sizeof(unprintable[0]) || c < unprintable[i].first;
}

/* As RFC 3629 has it: no overlong forms, no surrogates. */
size_t utf8_char(const unsigned char *s, size_t n, uint32_t *cp) {
  static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  size_t len = s[0] < 0x80 ? 1 : s[0] < 0xC0 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : s[0] < 0xF8 ? 4 : 0;
  if (len == 0 || len > n) return 0;
  uint32_t c = len == 1 ? s[0] : s[0] & (0x7Fu >> len);
  for (size_t i = 1; i < len; i++) {
    if ((s[i] & 0xC0) != 0x80) return 0;
    c = c << 6 | (s[i] & 0x3F);
  }
  if (c < least[len] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0;
  *cp = c;
  return len;
}

size_t printable_char(const char *s, size_t n, char out[PRINTABLE_ESCAPE_MAX]) {
  static const char from[] = "\n\r\t", to[] = "nrt";
  const unsigned char *u = (const unsigned char *)s;
  uint32_t c = 0;
  size_t len = utf8_char(u, n, &c);
  const char *p = c > 0 && c < 0x80 ? strchr(from, (int)c) : NULL;
  if (len > 0 && is_printable(c)) {
    memcpy(out, s, len);
    out[len] = '\0';
  } else if (p) {
    snprintf(out, PRINTABLE_ESCAPE_MAX, "\\%c", to[p - from]);
  } else if (len <= 1) {
    snprintf(out, PRINTABLE_ESCAPE_MAX, "\\x%02x", u[0]);
  } else {
    snprintf(out, PRINTABLE_ESCAPE_MAX, c > 0xFFFF ? "\\U%08x" : "\\u%04x", (unsigned)c);
  }
  return len ? len : 1;
}
