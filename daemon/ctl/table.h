/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_TABLE_H
#define DAEMON_CTL_TABLE_H

/* A table of text that fits into a window. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

enum { TABLE_COLUMNS_MAX = 16, TABLE_CELL_MAX = 28 /* columns of the screen; of the last column: no limit */ };

struct table_column {
  const char *title;
  bool right; /* numbers */
  int rank;   /* 0: always there; the highest goes first when the window is narrow */
};

struct table {
  const struct table_column *columns;
  size_t n_columns, n_rows;
  struct buf *cells; /* n_rows * n_columns */
};

void table_init(struct table *t, const struct table_column *columns, size_t n_columns);
void table_finish(struct table *t);
/* A new row at the end: n_columns empty buffers to be filled, valid until the next row. Any text: it is made
 * printable. */
struct buf *table_add(struct table *t);
/* Titles, then rows in the order of `order` (indices of rows). A column without any text is left out. width 0: as wide
 * as it is. */
void table_put(const struct table *t, const size_t *order, size_t width, struct buf *out);

#endif
