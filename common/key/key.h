/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_KEY_KEY_H
#define COMMON_KEY_KEY_H

/* A job's key: 32 random bytes. Whoever holds it may join the job, and control it. Pure.
 *
 * A daemon has one key of its own. From it, it derives one key for each user, so it stores none of them and knows, of
 * every peer, whose it is. A program holds either the daemon's own key or one that the daemon derived for its user:
 *
 *   text                                     holder
 *   64 hex digits                            acts as the daemon's own user: the administrator of a shared daemon
 *   UID:64 hex digits                        acts as that user
 *
 * There are no passwords: a short or guessable key could be found from one recorded connection. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum {
  KEY_BYTES = 32,
  KEY_TEXT_MAX = 75, /* "4294967294:" and 64 digits */
  KEY_OWN = -1,      /* uid of a daemon's own key */
};

struct key {
  uint8_t bytes[KEY_BYTES];
  int64_t uid; /* KEY_OWN, or the user for whom the daemon derived it */
};

/* Reads the text form; blanks and line ends around it are ignored. -EINVAL and a sentence that does not show the key. */
int key_parse(const char *text, size_t len, struct key *out, struct err *e);
void key_format(const struct key *k, char out[KEY_TEXT_MAX + 1]);
/* The key of a user, from the daemon's own: the same each time. */
void key_derive(const struct key *own, uint32_t uid, struct key *out);
/* What a holder shows to read over HTTP: it follows from the key, and the key does not follow from it. Text like that of
 * a key. */
void key_token(const struct key *k, char out[KEY_TEXT_MAX + 1]);
/* With which a daemon wraps the tickets of channels (proto/channel.h): only holders of its own key have it. */
void key_of_tickets(const struct key *own, struct key *out);
/* In constant time. */
bool key_equal(const struct key *a, const struct key *b);
void key_wipe(struct key *k);

#endif
