/* SPDX-License-Identifier: Apache-2.0 */
/* A list of hosts. What can be expanded stays within its limits, and its names, compressed, are the same names again;
 * what cannot has a sentence and leaves nothing. */

#include <stdlib.h>
#include <string.h>
#include "common/hostlist.h"
#include "common/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static int compare(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorted, each once. */
static size_t index_names(const struct buf *names, size_t n, const char **v) {
  const char *p = buf_text(names);
  for (size_t i = 0; i < n; i++, p += strlen(p) + 1) {
    if (!*p || strlen(p) > HOSTLIST_NAME_MAX) abort();
    v[i] = p;
  }
  if (p != buf_text(names) + names->len) abort();
  qsort(v, n, sizeof *v, compare);
  size_t kept = 0;
  for (size_t i = 0; i < n; i++)
    if (!i || strcmp(v[i], v[kept - 1]) != 0) v[kept++] = v[i];
  return kept;
}

static void check_back(const struct buf *names, size_t n) {
  struct buf text = BUF_INIT, again = BUF_INIT;
  const char **v = xcalloc(n, sizeof *v), **w = xcalloc(n, sizeof *w);
  size_t n_again, kept = index_names(names, n, v);
  if (hostlist_compress(v, kept, SIZE_MAX / 2, &text) != kept) abort();
  if (hostlist_expand(buf_text(&text), &again, &n_again, NULL) || n_again != kept) abort();
  if (index_names(&again, n_again, w) != kept) abort();
  for (size_t i = 0; i < kept; i++)
    if (strcmp(v[i], w[i]) != 0) abort();
  size_t whole = text.len, room = whole / 2;
  buf_clear(&text);
  if (hostlist_compress(v, kept, room, &text) > kept || text.len > room) abort();
  free(v);
  free(w);
  buf_finish(&text);
  buf_finish(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  struct buf text = BUF_INIT, names = BUF_INIT;
  struct err e = ERR_INIT;
  size_t n = 7;
  buf_append(&text, data, len);
  int rc = hostlist_expand(buf_text(&text), &names, &n, &e);
  if ((rc != 0) != (e.text[0] != '\0') || (rc != 0 && (names.len || n))) abort();
  if (names.len > HOSTLIST_BYTES_MAX || n > HOSTLIST_NAMES_MAX) abort();
  if (rc == 0) check_back(&names, n);
  buf_finish(&text);
  buf_finish(&names);
  return 0;
}
