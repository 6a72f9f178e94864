/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "agent/health/health.h"
#include "proto/facts.h"

void health_facts_finish(struct health_facts *f) {
  facts_finish(&f->list);
  f->text[0] = '\0';
}

bool health_is_broken(const struct fact_list *list, struct buf *why) {
  for (size_t i = 0; i < list->n; i++) {
    const struct fact *f = &list->v[i];
    enum fact_id id = fact_find(f->name);
    if (id == FACT_COUNT || fact_judge(id, f->value, f->text) != FACT_CERTAIN) continue;
    const struct fact *used = facts_find(list, f->at, fact_kinds[FACT_GPU_USED].name);
    if (used && !used->value) continue;
    struct buf value = BUF_INIT;
    fact_put_value(id, f->value, f->text, &value);
    buf_printf(why, "%s: ", f->at);
    if (id != FACT_GPU_ERROR) buf_printf(why, "%s ", fact_kinds[id].label);
    buf_put_plain(why, buf_text(&value), value.len, REASON_MAX);
    buf_finish(&value);
    return true;
  }
  return false;
}

/* The table. ------------------------------------------------------------------------------------------------------- */

enum { WIDTH_MAX = 48, COLUMNS_MAX = 24 };

static void put_value(const struct fact *f, struct buf *out) {
  if (!f)
    buf_putc(out, '-');
  else if (f->text[0])
    buf_put_plain(out, f->text, strlen(f->text), WIDTH_MAX);
  else
    buf_printf(out, "%" PRId64, f->value);
}

static void put_padded(const char *text, int width, struct buf *out) {
  buf_printf(out, "%s%-*s", out->len && out->data[out->len - 1] != '\n' ? "  " : "", width, text);
}

static void end_line(struct buf *out) {
  while (out->len && out->data[out->len - 1] == ' ') out->data[--out->len] = '\0';
  buf_putc(out, '\n');
}

static bool is_gpu(const struct fact *f) {
  return strncmp(f->at, "gpu", 3) == 0;
}

/* A row for each place, a column for each name. */
static void put_places(const struct fact_list *list, bool gpus, struct buf *out) {
  const char *names[COLUMNS_MAX];
  int widths[COLUMNS_MAX], place_width = 5;
  size_t n = 0;
  struct buf value = BUF_INIT;
  for (size_t i = 0; i < list->n; i++) {
    const struct fact *f = &list->v[i];
    if (!f->at[0] || is_gpu(f) != gpus) continue;
    size_t k = 0;
    while (k < n && strcmp(names[k], f->name) != 0) k++;
    if (k == COLUMNS_MAX) continue;
    if (k == n) {
      names[n] = f->name;
      widths[n++] = (int)strlen(f->name);
    }
    buf_clear(&value);
    put_value(f, &value);
    if ((int)value.len > widths[k]) widths[k] = (int)value.len;
    if ((int)strlen(f->at) > place_width) place_width = (int)strlen(f->at);
  }
  if (n) {
    buf_putc(out, '\n');
    put_padded("", place_width, out);
    for (size_t k = 0; k < n; k++) put_padded(names[k], widths[k], out);
    end_line(out);
  }
  const char *last = "";
  for (size_t i = 0; i < list->n; i++) { /* facts of a place stand together */
    const struct fact *f = &list->v[i];
    if (!f->at[0] || is_gpu(f) != gpus || strcmp(f->at, last) == 0) continue;
    last = f->at;
    put_padded(f->at, place_width, out);
    for (size_t k = 0; k < n; k++) {
      buf_clear(&value);
      put_value(facts_find(list, f->at, names[k]), &value);
      put_padded(buf_text(&value), widths[k], out);
    }
    end_line(out);
  }
  buf_finish(&value);
}

void health_print(const struct health_facts *f, struct buf *out) {
  for (size_t i = 0; i < f->list.n; i++) {
    const struct fact *one = &f->list.v[i];
    if (one->at[0]) continue;
    put_padded(one->name, 14, out);
    buf_puts(out, "  ");
    put_value(one, out);
    buf_putc(out, '\n');
  }
  put_places(&f->list, true, out);
  put_places(&f->list, false, out);
  if (!f->text[0]) return;
  buf_puts(out, "\nnot known: ");
  buf_put_plain(out, f->text, strlen(f->text), REASON_MAX);
  buf_putc(out, '\n');
}
