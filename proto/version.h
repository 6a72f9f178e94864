/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_VERSION_H
#define PROTO_VERSION_H

/* How programs of neighbouring releases work together (PROTOCOL.md 11). Pure.
 *
 * Each side states three things in its first message: the version of the messages that it speaks, the oldest version
 * that it works with, and the words of the features that it knows. Two sides work together if each version is at least
 * the oldest of the other side. They speak the lower version. A message that belongs to a feature goes only to a peer
 * that has said the feature's word. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"

enum {
  PROTO_VERSION = 1, /* increases with a change that no feature can express; PROTOCOL.md 11 */
  PROTO_OLDEST = 1,  /* that of the release before this one: not more than PROTO_VERSION, and not less than one below */
  RELEASE_MAX = 40,  /* bytes of a release's name, as in "0.1.0" */
  FEATURES_MAX = 1023, /* bytes of the words of all features */
};

/* Features: X(NAME, word). At most 64. proto/msg.c names the messages of each. */
#define FEATURE_LIST(X)                                                                                                \
  X(FACTS, "facts")   /* FACTS */                                                                                      \
  X(NOTICE, "notice") /* NOTICE */                                                                                     \
  X(PAIRS, "pairs")   /* PAIR, PAIRED */                                                                               \
  X(PACE, "pace")     /* PACE */

#define X(name, word) FEATURE_BIT_##name,
enum { FEATURE_LIST(X) FEATURE_COUNT };
#undef X
#define X(name, word) FEATURE_##name = UINT64_C(1) << FEATURE_BIT_##name,
enum feature { FEATURE_NONE, FEATURE_LIST(X) };
#undef X

const char *features_words(void); /* of this program: "facts notice ..." */
/* The bits of the words that this program knows too. */
uint64_t features_of(const char *words);

/* What a program says of itself. */
struct release {
  const char *name; /* "" before 0.1.0 */
  int64_t version;
  int64_t oldest; /* 0: its own version alone */
};

/* "0.1.0/2/1": name, version, oldest. A later release may add more behind another slash. */
void release_put(struct buf *out); /* of this program */
/* Of a peer. What is malformed has version 0, which fits nothing. */
struct release release_parse(const char *text, size_t len, char name[RELEASE_MAX + 1]);

/* Whether this program works with such a peer. */
bool release_fits(struct release peer);
/* The same, with a sentence: 0; or -EPROTO and "rdzvd at node1:29400 has release 0.4.0 (protocol 3 to 4), and this
 * rdzv-agent 0.1.0 (protocol 1): upgrade rdzv where it is 0.1.0". who: the peer; ours: this program. */
int release_check(struct release peer, const char *who, const char *ours, struct err *e);

#endif
