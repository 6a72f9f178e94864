/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { GAP = 2, LAST_MIN = 12 };

struct layout {
  bool shown[TABLE_COLUMNS_MAX];
  size_t width[TABLE_COLUMNS_MAX];
};

void table_init(struct table *t, const struct table_column *columns, size_t n_columns) {
  *t = (struct table){.columns = columns, .n_columns = n_columns};
}

void table_finish(struct table *t) {
  for (size_t i = 0; i < t->n_rows * t->n_columns; i++) buf_finish(&t->cells[i]);
  free(t->cells);
}

struct buf *table_add(struct table *t) {
  t->cells = xrealloc(t->cells, (t->n_rows + 1) * t->n_columns * sizeof(*t->cells));
  struct buf *row = &t->cells[t->n_rows++ * t->n_columns];
  for (size_t i = 0; i < t->n_columns; i++) row[i] = (struct buf)BUF_INIT;
  return row;
}

static bool is_continued(char c) {
  return ((unsigned char)c & 0xC0) == 0x80;
}

static size_t columns_of(const char *s) {
  size_t n = 0;
  for (; *s; s++) n += !is_continued(*s);
  return n;
}

/* Appends at most `max` columns of the text, made printable, and blanks up to `width`. */
static void put_cell(struct buf *out, const char *text, size_t width, size_t max, bool right) {
  struct buf plain = BUF_INIT;
  buf_put_plain(&plain, text, strlen(text), strlen(text));
  size_t n = columns_of(buf_text(&plain)), blanks;
  bool cut = n > max;
  if (cut) n = max;
  blanks = n < width ? width - n : 0;
  for (size_t i = 0; right && i < blanks; i++) buf_putc(out, ' ');
  size_t seen = 0, allowed = cut ? max - 1 : n;
  for (const char *s = buf_text(&plain); *s; s++) {
    if (!is_continued(*s) && seen++ == allowed) break;
    buf_putc(out, *s);
  }
  if (cut) buf_putc(out, '~');
  for (size_t i = 0; !right && i < blanks; i++) buf_putc(out, ' ');
  buf_finish(&plain);
}

static size_t width_of_cell(const char *text) {
  struct buf plain = BUF_INIT;
  buf_put_plain(&plain, text, strlen(text), strlen(text));
  size_t n = columns_of(buf_text(&plain));
  buf_finish(&plain);
  return n;
}

/* The last column takes what is left. */
static size_t total(const struct table *t, const struct layout *l) {
  size_t sum = 0;
  for (size_t c = 0; c < t->n_columns; c++)
    if (l->shown[c]) sum += (c + 1 == t->n_columns && l->width[c] > LAST_MIN ? LAST_MIN : l->width[c]) + GAP;
  return sum > GAP ? sum - GAP : 0;
}

/* Leaves out columns until the table fits. */
static void fit(const struct table *t, struct layout *l, size_t width) {
  while (width && total(t, l) > width) {
    size_t least = SIZE_MAX;
    for (size_t c = 0; c < t->n_columns; c++) {
      if (!l->shown[c] || !t->columns[c].rank) continue;
      if (least == SIZE_MAX || t->columns[c].rank > t->columns[least].rank) least = c;
    }
    if (least == SIZE_MAX) return; /* the screen cuts the lines */
    l->shown[least] = false;
  }
}

static void put_row(const struct table *t, const struct layout *l, const struct buf *cells, size_t width,
                    struct buf *out) {
  size_t begin = out->len, at = 0;
  for (size_t c = 0; c < t->n_columns; c++) {
    if (!l->shown[c]) continue;
    bool last = c + 1 == t->n_columns;
    size_t max = !last ? TABLE_CELL_MAX : width > at ? width - at : width ? 1 : SIZE_MAX;
    const char *text = cells ? buf_text(&cells[c]) : t->columns[c].title;
    put_cell(out, text, last ? 0 : l->width[c], max, t->columns[c].right);
    for (int i = 0; !last && i < GAP; i++) buf_putc(out, ' ');
    at += l->width[c] + GAP;
  }
  while (out->len > begin && out->data[out->len - 1] == ' ') out->len--;
  buf_putc(out, '\n');
}

void table_put(const struct table *t, const size_t *order, size_t width, struct buf *out) {
  struct layout l;
  for (size_t c = 0; c < t->n_columns; c++) {
    size_t widest = 0;
    for (size_t r = 0; r < t->n_rows; r++) {
      size_t n = width_of_cell(buf_text(&t->cells[r * t->n_columns + c]));
      if (n > widest) widest = n;
    }
    if (c + 1 < t->n_columns && widest > TABLE_CELL_MAX) widest = TABLE_CELL_MAX;
    l.shown[c] = widest > 0;
    l.width[c] = widest > strlen(t->columns[c].title) ? widest : strlen(t->columns[c].title);
  }
  fit(t, &l, width);
  put_row(t, &l, NULL, width, out);
  for (size_t r = 0; r < t->n_rows; r++) put_row(t, &l, &t->cells[order[r] * t->n_columns], width, out);
}
