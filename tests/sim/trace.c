/* SPDX-License-Identifier: Apache-2.0 */
/* Each expected line takes the next unused line of its subject as its partner. */

#include "tests/sim/trace.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

struct line {
  double s;
  const char *text; /* behind the time */
  size_t len, subject;
  bool used;
};

static size_t parse(const char *trace, struct line **out) {
  size_t n = 0, room = 1;
  for (const char *c = trace; *c; c++) room += *c == '\n';
  *out = xcalloc(room, sizeof **out);
  for (const char *at = trace, *end; (end = strchr(at, '\n')); at = end + 1) {
    const char *text = memchr(at, ']', (size_t)(end - at));
    text = text && at[0] == '[' ? text + 1 : at;
    const char *colon = memchr(text, ':', (size_t)(end - text));
    (*out)[n++] = (struct line){.s = text > at ? strtod(at + 1, NULL) : 0,
                                .text = text,
                                .len = (size_t)(end - text),
                                .subject = (size_t)((colon ? colon : end) - text)};
  }
  return n;
}

static bool has_subject_of(const struct line *a, const struct line *b) {
  return a->subject == b->subject && !memcmp(a->text, b->text, a->subject);
}

static bool is_close(double expected_s, double got_s) {
  double slack_s = fmax(TRACE_SLACK_MS / 1000.0, expected_s * TRACE_SLACK_PERCENT / 100.0);
  return fabs(expected_s - got_s) <= slack_s + 1e-9;
}

size_t trace_difference(const char *expected, const char *got) {
  struct line *want, *have;
  size_t n_want = parse(expected, &want), n_have = parse(got, &have), bad = 0;
  for (size_t i = 0; i < n_want && !bad; i++) {
    size_t k = 0;
    while (k < n_have && (have[k].used || !has_subject_of(&want[i], &have[k]))) k++;
    bool same = k < n_have && want[i].len == have[k].len && !memcmp(want[i].text, have[k].text, want[i].len) &&
                is_close(want[i].s, have[k].s);
    if (same)
      have[k].used = true;
    else
      bad = i + 1;
  }
  for (size_t k = 0; k < n_have && !bad; k++)
    if (!have[k].used) bad = k + 1;
  free(want);
  free(have);
  return bad;
}
