/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_PRINTABLE_H
#define COMMON_PRINTABLE_H

/* Which characters may reach a terminal or a log as they are. This is the one place that decides it: buf_put_escaped,
 * buf_put_plain, the log, struct err and JSON for people use it. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PRINTABLE_ESCAPE_MAX = sizeof("\\U0010ffff") };

/* False for characters that move the cursor, end the line, or change how their neighbours look. */
bool is_printable(uint32_t c);

/* Writes the character at s[0..n), n > 0, as itself or as an escape such as \n, \x1b, \u202e. A byte that is not UTF-8
 * becomes \xff. Quotes and backslashes are printable. Returns how many bytes of s were used; `out` is a string. */
size_t printable_char(const char *s, size_t n, char out[PRINTABLE_ESCAPE_MAX]);

/* The length of the well-formed UTF-8 character at s[0..n), n > 0, and its code point; 0: there is none. */
size_t utf8_char(const unsigned char *s, size_t n, uint32_t *cp);

#endif
