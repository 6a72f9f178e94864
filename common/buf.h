#ifndef COMMON_BUF_H
#define COMMON_BUF_H

/* A byte buffer that grows at its end and is consumed from its front. `data` is always NUL-terminated behind
 * `len` (so that a buffer of text is a string) once anything was appended; buf_text() is never NULL. */

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
  char *data;
  size_t len, cap;
};

#define BUF_INIT                                                                                             \
  { 0 }

void buf_finish(struct buf *b); /* frees; the buffer is empty and usable again */
void buf_clear(struct buf *b);  /* empty, memory kept */
void *buf_reserve(struct buf *b,
                  size_t n);              /* at least n writable bytes behind len; returns where they begin */
void buf_commit(struct buf *b, size_t n); /* n bytes written to what buf_reserve gave are part of it now */
void buf_append(struct buf *b, const void *data, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap)
    __attribute__((format(printf, 2, 0), nonnull(2)));
void buf_consume(struct buf *b, size_t n); /* drops n <= len bytes from the front */
char *buf_steal(struct buf *b);            /* the caller owns the NUL-terminated bytes; the buffer is empty */
const char *buf_text(const struct buf *b); /* "" when empty */
/* Appends s with control characters, quotes and non-UTF-8 bytes as \n, \", \x1b; at most `max` bytes of s, then "..."
 * where s goes on. For everything that came from a peer and is shown to a person. */
void buf_put_escaped(struct buf *b, const char *s, size_t n, size_t max);

/* Bytes of the well-formed UTF-8 character at s[0..n), n > 0, and its code point; 0 where there is none. */
size_t utf8_char(const unsigned char *s, size_t n, uint32_t *cp);

/* Little-endian integers at any address. */
uint16_t le16_get(const void *p);
uint32_t le32_get(const void *p);
uint64_t le64_get(const void *p);
void le16_put(void *p, uint16_t v);
void le32_put(void *p, uint32_t v);
void le64_put(void *p, uint64_t v);

#endif
