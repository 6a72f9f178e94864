/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_ASCII_H
#define COMMON_ASCII_H

/* Letters and digits of ASCII, in any locale. */

#include <stdbool.h>

static inline bool ascii_is_digit(char c) {
  return c >= '0' && c <= '9';
}

static inline char ascii_lower(char c) {
  return (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
}

#endif
