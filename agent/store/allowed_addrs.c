/* SPDX-License-Identifier: Apache-2.0 */
/* The list may be as long as a job is large, and every connection asks, so it is sorted once and then searched.
 * Addresses are compared as numbers: IPv4-mapped IPv6 is IPv4, as a dual-stack socket shows its peers. A line that is
 * not an address is left out: it admits no peer. */

#include "agent/store/allowed_addrs.h"

#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { TEXT_MAX_OF_ONE = 64 };

static int by_number(const void *a, const void *b) {
  return ipaddr_compare(a, b);
}

void allowed_addrs_init(struct allowed_addrs *g, const char *text, size_t len, const struct ipaddr *more, size_t n) {
  size_t lines = 1;
  for (size_t i = 0; i < len; i++) lines += text[i] == '\n';
  g->n = 0;
  g->v = xcalloc(lines + n, sizeof *g->v);
  for (size_t at = 0; at < len;) {
    const char *nl = memchr(text + at, '\n', len - at);
    size_t end = nl ? (size_t)(nl - text) : len;
    char one[TEXT_MAX_OF_ONE] = "";
    if (end - at < sizeof one) memcpy(one, text + at, end - at);
    struct ipaddr a = ipaddr_parse(one);
    if (a.family) g->v[g->n++] = a;
    at = end + 1;
  }
  for (size_t i = 0; i < n; i++) g->v[g->n++] = more[i];
  qsort(g->v, g->n, sizeof *g->v, by_number);
}

void allowed_addrs_finish(struct allowed_addrs *g) {
  free(g->v);
  memset(g, 0, sizeof *g);
}

bool allowed_addrs_has(const struct allowed_addrs *g, const struct ipaddr *a) {
  return g->n && bsearch(a, g->v, g->n, sizeof *g->v, by_number);
}
