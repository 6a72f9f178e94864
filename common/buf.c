/* SPDX-License-Identifier: Apache-2.0 */
/* One allocation that doubles; a large one grows by half, and never to less than what is asked for. Consuming moves the
 * rest to the front. A ring or an offset would save that move, but then every user would have to know of two pieces or
 * of a begin. Frames are small here, and readers of large streams consume once per read, not once per byte.
 *
 * Escaping is for text that a stranger sent and a person reads; common/printable.h decides which characters need it.
 * The result is one line of printable text for any input. */

#include "common/buf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"
#include "common/printable.h"

enum { BIG = 1 << 20 };

void buf_finish(struct buf *b) {
  free(b->data);
  *b = (struct buf)BUF_INIT;
}

void buf_wipe(struct buf *b) {
  if (b->data) explicit_bzero(b->data, b->cap);
  buf_finish(b);
}

void buf_clear(struct buf *b) {
  b->len = 0;
  if (b->data) b->data[0] = '\0';
}

void *buf_reserve(struct buf *b, size_t n) {
  if (n >= SIZE_MAX / 4 - b->len) xmalloc(SIZE_MAX); /* reports it and aborts: only a bug asks for such a size */
  size_t need = b->len + n + 1;
  if (need > b->cap) {
    size_t cap = b->cap ? b->cap : 64;
    if (need >= BIG) cap = cap + cap / 2 > need ? cap + cap / 2 : need;
    while (cap < need) cap *= 2;
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

static void put_shown(struct buf *b, const char *s, size_t n, size_t max, const char *slashed, const char *kept) {
  size_t limit = n < max ? n : max, i = 0;
  while (i < limit) {
    char shown[PRINTABLE_ESCAPE_MAX];
    size_t len = printable_char(s + i, n - i, shown);
    if (len > limit - i) break; /* a character that `max` would split is left out */
    if (s[i] && strchr(slashed, s[i])) buf_putc(b, '\\');
    if (s[i] && strchr(kept, s[i]))
      buf_putc(b, s[i]);
    else
      buf_puts(b, shown);
    i += len;
  }
  if (i < n) buf_puts(b, "...");
}

void buf_put_escaped(struct buf *b, const char *s, size_t n, size_t max) {
  put_shown(b, s, n, max, "\"\\", "");
}

const char *text_shown(char room[TEXT_SHOWN], const char *s, size_t n) {
  struct buf b = BUF_INIT;
  buf_put_escaped(&b, s, n, 80);
  snprintf(room, TEXT_SHOWN, "%s", buf_text(&b));
  buf_finish(&b);
  return room;
}

void buf_put_plain(struct buf *b, const char *s, size_t n, size_t max) {
  put_shown(b, s, n, max, "", "\t");
}

void buf_put_duration(struct buf *b, uint64_t ms) {
  uint64_t s = ms / 1000;
  if (s < 120)
    buf_printf(b, "%" PRIu64 " s", s);
  else if (s < 7200)
    buf_printf(b, "%" PRIu64 " min", s / 60);
  else if (s < 172800)
    buf_printf(b, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s / 60 % 60);
  else
    buf_printf(b, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s / 3600 % 24);
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
