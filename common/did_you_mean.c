/* SPDX-License-Identifier: Apache-2.0 */
#include "common/did_you_mean.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Insertions, deletions, replacements and swaps of neighbours from a to b; both at most NEAR_MAX long. */
static size_t edit_distance(const char *a, const char *b) {
  size_t n = strlen(a), m = strlen(b), row[3][NEAR_MAX + 1];
  size_t *before = row[0], *above = row[1], *now = row[2];
  for (size_t j = 0; j <= m; j++) above[j] = before[j] = j;
  for (size_t i = 1; i <= n; i++) {
    now[0] = i;
    for (size_t j = 1; j <= m; j++) {
      size_t best = above[j - 1] + (a[i - 1] != b[j - 1]);
      if (above[j] + 1 < best) best = above[j] + 1;
      if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
        best = before[j - 2] + 1;
      now[j] = best;
    }
    size_t *spare = before;
    before = above;
    above = now;
    now = spare;
  }
  return above[m];
}

/* "nproc-per-worker" and "nproc-per-node": all parts but the last are the same, and there are at least two. */
static bool has_same_head(const char *word, const char *name) {
  const char *last = strrchr(name, '-');
  size_t head = last ? (size_t)(last - name) + 1 : 0;
  return head > 0 && memchr(name, '-', head - 1) && strncmp(word, name, head) == 0;
}

size_t near_distance(const char *word, const char *name) {
  size_t n = strlen(word), m = strlen(name);
  if (n > NEAR_MAX || m > NEAR_MAX) return SIZE_MAX;
  if (n >= 2 && n < m && strncmp(word, name, n) == 0) return 1;
  if (has_same_head(word, name)) return 1;
  if (n > m && word[m] == '-' && strncmp(word, name, m) == 0) return 2;
  size_t d = edit_distance(word, name);
  return d <= 1 + n / 4 && d < m ? d : SIZE_MAX;
}
