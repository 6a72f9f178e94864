/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_KEY_MUNGE_PAYLOAD_H
#define COMMON_KEY_MUNGE_PAYLOAD_H

/* What two MUNGE credentials carry when a user asks a daemon for a key. Pure: text in, text out.
 *
 *   agent -> rdzvd    "rdzv-key-request 1 NONCE"       MUNGE vouches for the user who asks
 *   rdzvd -> agent    "rdzv-key 1 NONCE UID:KEY"       only that user can decode it; MUNGE vouches for the daemon's user
 *
 * NONCE is 64 hex digits. It ties the answer to this request, so a recorded answer is refused. */

#include <stddef.h>
#include <stdint.h>
#include "common/err.h"
#include "common/key/key.h"

enum {
  MUNGE_NONCE_BYTES = 32,
  MUNGE_PAYLOAD_MAX = 255, /* bytes of either text */
  MUNGE_NO_USER = -1,
  MUNGE_DEFAULT_USER = -2, /* not looked up yet: it costs a millisecond, and most jobs never ask MUNGE */
};

struct munge_nonce {
  uint8_t bytes[MUNGE_NONCE_BYTES];
};

/* Both return the length. */
size_t munge_request_format(const struct munge_nonce *n, char out[MUNGE_PAYLOAD_MAX + 1]);
size_t munge_answer_format(const struct munge_nonce *n, const struct key *k, char out[MUNGE_PAYLOAD_MAX + 1]);

/* -EPROTO and a sentence. */
int munge_request_parse(const char *payload, size_t len, struct munge_nonce *out, struct err *e);
/* The key of user `uid`. -EPROTO: not such an answer, or one to another nonce (compared in constant time); -EACCES: it
 * is the key of somebody else. *out is wiped then. */
int munge_answer_parse(const char *payload, size_t len, const struct munge_nonce *n, uint32_t uid, struct key *out,
                       struct err *e);

/* Whether a daemon of user `encoder` may give user `own` a key: root, the same user, and `trusted` (MUNGE_NO_USER:
 * no user) may. Otherwise -EACCES and a sentence. */
int munge_encoder_check(uint32_t encoder, uint32_t own, int64_t trusted, struct err *e);

#endif
