/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/version.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/printable.h"

#define X(name, word) " " word
static const char own[] = FEATURE_LIST(X);
#undef X
_Static_assert(sizeof(own) <= FEATURES_MAX + 2, "the words of all features have room");
_Static_assert((int)FEATURE_COUNT <= 64, "a feature is one bit");
_Static_assert((int)PROTO_OLDEST <= (int)PROTO_VERSION && (int)PROTO_VERSION - (int)PROTO_OLDEST <= 1, "neighbours");

const char *features_words(void) {
  return own + 1;
}

uint64_t features_of(const char *words) {
  static const char *const known[] = {
#define X(name, word) word,
      FEATURE_LIST(X)
#undef X
  };
  uint64_t bits = 0;
  for (size_t n; *words; words += n + (words[n] == ' ')) {
    n = strcspn(words, " ");
    for (int i = 0; i < FEATURE_COUNT; i++)
      if (strlen(known[i]) == n && memcmp(known[i], words, n) == 0) bits |= UINT64_C(1) << i;
  }
  return bits;
}

void release_put(struct buf *out) {
  buf_printf(out, "%s/%d/%d", RDZV_VERSION, PROTO_VERSION, PROTO_OLDEST);
}

enum { RELEASE_TEXT_MAX = RELEASE_MAX + 16 };

struct release release_parse(const char *text, size_t len, char name[RELEASE_MAX + 1]) {
  char copy[RELEASE_TEXT_MAX + 1] = "", *rest = copy;
  memcpy(copy, text, len < RELEASE_TEXT_MAX ? len : RELEASE_TEXT_MAX);
  snprintf(name, RELEASE_MAX + 1, "%s", strsep(&rest, "/"));
  long version = rest ? strtol(rest, &rest, 10) : 0, oldest = rest && *rest == '/' ? strtol(rest + 1, &rest, 10) : 0;
  bool good = rest && (!*rest || *rest == '/') && version >= oldest && oldest > 0 && version <= UINT16_MAX;
  return (struct release){.name = name, .version = good ? version : 0, .oldest = good ? oldest : 0};
}

static int64_t oldest_of(struct release r) {
  return r.oldest ? r.oldest : r.version;
}

bool release_fits(struct release peer) {
  return peer.version >= PROTO_OLDEST && oldest_of(peer) <= PROTO_VERSION;
}

static void put_release(struct buf *out, struct release r) {
  if (r.name[0]) buf_putc(out, ' ');
  buf_put_escaped(out, r.name, strlen(r.name), RELEASE_MAX);
  buf_printf(out, " (protocol %" PRId64, oldest_of(r));
  if (oldest_of(r) < r.version) buf_printf(out, " to %" PRId64, r.version);
  buf_putc(out, ')');
}

int release_check(struct release peer, const char *who, const char *ours, struct err *e) {
  if (release_fits(peer)) return 0;
  struct buf text = BUF_INIT;
  struct release own_release = {.name = RDZV_VERSION, .version = PROTO_VERSION, .oldest = PROTO_OLDEST};
  const char *older = peer.version < PROTO_OLDEST ? peer.name : RDZV_VERSION;
  buf_printf(&text, "%s has release", who);
  put_release(&text, peer);
  buf_printf(&text, ", and this %s", ours);
  put_release(&text, own_release);
  buf_puts(&text, ": upgrade rdzv where it is ");
  if (older[0])
    buf_put_escaped(&text, older, strlen(older), RELEASE_MAX);
  else
    buf_puts(&text, "older");
  int rc = err_set(e, -EPROTO, "%s", buf_text(&text));
  buf_finish(&text);
  return rc;
}
