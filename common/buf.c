/* A byte buffer: grows at its end, is consumed from its front.
 *
 * One allocation that doubles, or, once it is large, grows by half and never to less than what is asked for; consuming
 * moves what is left to the front. A ring or an offset would save that
 * move, but then every user would have to know of two pieces or of a begin; frames here are small, and those who
 * read big streams consume once per read, not once per byte.
 *
 * One byte more than asked for is always allocated, so that a NUL stands behind the content and text in a
 * buffer is a string without a copy.
 *
 * Escaping is for what a stranger sent and a person reads. It keeps good UTF-8, because names of hosts and users
 * are not all ASCII, and turns into \x1b or \u202e everything that could move a cursor, end a line, reverse text or
 * close our quotes. The result is one line of printable text for any input. */

#include "common/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { BIG = 1 << 20 };

void buf_finish(struct buf *b) {
  free(b->data);
  *b = (struct buf)BUF_INIT;
}

void buf_clear(struct buf *b) {
  b->len = 0;
  if (b->data) b->data[0] = '\0';
}

static size_t grown(size_t cap, size_t need) {
  if (need >= BIG) return cap + cap / 2 > need ? cap + cap / 2 : need;
  if (cap == 0) cap = 64;
  while (cap < need) cap *= 2;
  return cap;
}

void *buf_reserve(struct buf *b, size_t n) {
  if (n >= SIZE_MAX / 4 - b->len) xmalloc(SIZE_MAX); /* says so and aborts: no such size is ever meant */
  size_t need = b->len + n + 1;
  if (need > b->cap) {
    size_t cap = grown(b->cap, need);
    b->data = xrealloc(b->data, cap);
    b->cap = cap;
  }
  return b->data + b->len;
}

void buf_commit(struct buf *b, size_t n) {
  b->len += n;
  b->data[b->len] = '\0';
}

void buf_append(struct buf *b, const void *data, size_t n) {
  void *end = buf_reserve(b, n);
  if (n > 0) memcpy(end, data, n);
  buf_commit(b, n);
}

void buf_puts(struct buf *b, const char *s) {
  buf_append(b, s, strlen(s));
}

void buf_putc(struct buf *b, char c) {
  buf_append(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(b, fmt, ap);
  va_end(ap);
}

void buf_vprintf(struct buf *b, const char *fmt, va_list ap) {
  va_list again;
  va_copy(again, ap);
  char *end = buf_reserve(b, 80);
  size_t room = b->cap - b->len;
  int n = vsnprintf(end, room, fmt, ap);
  if (n >= 0 && (size_t)n >= room) {
    end = buf_reserve(b, (size_t)n);
    n = vsnprintf(end, (size_t)n + 1, fmt, again);
  }
  va_end(again);
  buf_commit(b, n > 0 ? (size_t)n : 0);
}

void buf_consume(struct buf *b, size_t n) {
  if (n >= b->len) {
    buf_clear(b);
    return;
  }
  memmove(b->data, b->data + n, b->len - n);
  b->len -= n;
  b->data[b->len] = '\0';
}

char *buf_steal(struct buf *b) {
  buf_reserve(b, 0);
  char *data = b->data;
  data[b->len] = '\0';
  *b = (struct buf)BUF_INIT;
  return data;
}

const char *buf_text(const struct buf *b) {
  return b->data ? b->data : "";
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

/* Characters that change how the rest of the line is shown: C1 controls, line separators, direction marks, BOM. */
static bool is_unsafe(uint32_t c) {
  return (c >= 0x80 && c < 0xA0) || (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2060 && c <= 0x206F) || c == 0x061C || c == 0xFEFF;
}

static void put_ascii(struct buf *b, char c) {
  static const char from[] = "\n\r\t\"\\", to[] = "nrt\"\\";
  const char *p = c ? strchr(from, c) : NULL;
  if (p)
    buf_printf(b, "\\%c", to[p - from]);
  else if ((unsigned char)c < 0x20 || c == 0x7F)
    buf_printf(b, "\\x%02x", (unsigned char)c);
  else
    buf_putc(b, c);
}

void buf_put_escaped(struct buf *b, const char *s, size_t n, size_t max) {
  const unsigned char *u = (const unsigned char *)s;
  size_t limit = n < max ? n : max, i = 0;
  while (i < limit) {
    uint32_t c = 0;
    size_t len = utf8_char(u + i, n - i, &c);
    if (len > limit - i) break; /* a character that `max` would split is left out */
    if (len == 0)
      buf_printf(b, "\\x%02x", u[i]);
    else if (len == 1)
      put_ascii(b, s[i]);
    else if (is_unsafe(c))
      buf_printf(b, "\\u%04x", c);
    else
      buf_append(b, s + i, len);
    i += len ? len : 1;
  }
  if (i < n) buf_puts(b, "...");
}

/* Byte by byte: right on every machine and at every address; compilers make one load or store of it. */
uint16_t le16_get(const void *p) {
  const uint8_t *b = p;
  return (uint16_t)(b[0] | b[1] << 8);
}

uint32_t le32_get(const void *p) {
  const uint8_t *b = p;
  return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint64_t le64_get(const void *p) {
  const uint8_t *b = p;
  return le32_get(b) | (uint64_t)le32_get(b + 4) << 32;
}

void le16_put(void *p, uint16_t v) {
  uint8_t *b = p;
  b[0] = (uint8_t)v;
  b[1] = (uint8_t)(v >> 8);
}

void le32_put(void *p, uint32_t v) {
  uint8_t *b = p;
  le16_put(b, (uint16_t)v);
  le16_put(b + 2, (uint16_t)(v >> 16));
}

void le64_put(void *p, uint64_t v) {
  uint8_t *b = p;
  le32_put(b, (uint32_t)v);
  le32_put(b + 4, (uint32_t)(v >> 32));
}
