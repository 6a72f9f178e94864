#ifndef COMMON_SLICE_H
#define COMMON_SLICE_H

/* Bytes that belong to somebody else: any bytes, no NUL behind them. */

#include <stddef.h>

struct slice {
  const char *data;
  size_t len;
};

#endif
