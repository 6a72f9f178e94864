/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SLICE_H
#define COMMON_SLICE_H

/* Borrowed bytes: any bytes, without a NUL behind them. */

#include <stddef.h>

struct slice {
  const char *data;
  size_t len;
};

#endif
