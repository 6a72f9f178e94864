/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_BUF_H
#define COMMON_BUF_H

/* A byte buffer that grows at its end and is consumed from its front. Once anything was appended, a NUL stands behind
 * `len` bytes, so a buffer of text is a string. buf_text() is never NULL. */

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
  char *data;
  size_t len, cap;
};

#define BUF_INIT                                                                                                       \
  { 0 }

void buf_finish(struct buf *b);             /* frees; the buffer is empty and usable again */
void buf_wipe(struct buf *b);               /* as buf_finish, and nothing of it stays in memory */
void buf_clear(struct buf *b);              /* empty, memory kept */
void *buf_reserve(struct buf *b, size_t n); /* makes room for n bytes behind len; returns that place */
void buf_commit(struct buf *b, size_t n);   /* the n bytes that were written there belong to the buffer now */
void buf_append(struct buf *b, const void *data, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0), nonnull(2)));
void buf_consume(struct buf *b, size_t n); /* drops n <= len bytes from the front */
char *buf_steal(struct buf *b);            /* the caller owns the NUL-terminated bytes; the buffer is empty */
const char *buf_text(const struct buf *b); /* "" when empty */
/* Appends s with control characters, quotes and non-UTF-8 bytes as \n, \", \x1b; at most `max` bytes of s, then "..."
 * if there are more. For everything that came from a peer and is shown to a person. */
void buf_put_escaped(struct buf *b, const char *s, size_t n, size_t max);
/* The same of 80 bytes of s, for one sentence: returns `room`. */
enum { TEXT_SHOWN = 4 * 80 + sizeof("...") };
const char *text_shown(char room[TEXT_SHOWN], const char *s, size_t n);
void buf_put_duration(struct buf *b,
                      uint64_t ms); /* for people, rounded down: "41 s", "9 min", "4 h 12 min", "3 d 2 h" */
/* The same for text without quotes around it: quotes, backslashes and tabs are not escaped, so text that was escaped
 * before does not change. */
void buf_put_plain(struct buf *b, const char *s, size_t n, size_t max);

/* Little-endian integers at any address. */
uint16_t le16_get(const void *p);
uint32_t le32_get(const void *p);
uint64_t le64_get(const void *p);
void le16_put(void *p, uint16_t v);
void le32_put(void *p, uint32_t v);
void le64_put(void *p, uint64_t v);

#endif
