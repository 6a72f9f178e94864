/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SLICE_H
#define COMMON_SLICE_H

/* Borrowed bytes: any bytes, without a NUL behind them. */

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct slice {
  const char *data;
  size_t len;
};

static inline bool slice_equal(struct slice a, struct slice b) {
  return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

#endif
