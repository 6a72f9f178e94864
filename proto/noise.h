/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_NOISE_H
#define PROTO_NOISE_H

/* Noise_NNpsk0_25519_ChaChaPoly_SHA256 of the Noise Protocol Framework, revision 34, on libsodium. Pure: ephemeral
 * secrets come from the caller.
 *
 *   -> psk, e     noise_begin     noise_answer
 *   <- e, ee      noise_finish    noise_answer
 *
 * Both messages prove that their sender holds the pre-shared key. Each carries a payload, which may be empty.
 *
 * A session that resumes an earlier one is not of the specification. It has no Diffie-Hellman: its keys follow from a
 * secret of the earlier session and from what each side says now.
 *
 *   -> prologue, proof   noise_resume   noise_answer_resumed
 *   <- unique, tag       noise_finish   noise_answer_resumed
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  NOISE_KEY = 32,
  NOISE_TAG = 16,
  NOISE_OVERHEAD = NOISE_KEY + NOISE_TAG, /* of a handshake message beyond its payload */
};

/* An ephemeral key of X25519. */
struct noise_ephemeral {
  uint8_t secret[NOISE_KEY], public[NOISE_KEY];
};
void noise_ephemeral_set(struct noise_ephemeral *e, const uint8_t secret[NOISE_KEY]);

/* What the initiator keeps between its message and the answer. */
struct noise_open {
  uint8_t ck[NOISE_KEY], h[NOISE_KEY], e[NOISE_KEY];
  bool resumes; /* only ck is used */
};

/* Both directions of an established channel. */
struct noise_session {
  uint8_t send_key[NOISE_KEY], recv_key[NOISE_KEY];
  uint8_t resumption[NOISE_KEY]; /* the secret of a session that resumes this one */
  uint64_t sent, received;       /* the next nonces */
};

/* The initiator's message: `out` has room for len + NOISE_OVERHEAD bytes. */
void noise_begin(struct noise_open *o, const uint8_t psk[NOISE_KEY], const void *prologue, size_t prologue_len,
                 const struct noise_ephemeral *e, const void *payload, size_t len, uint8_t *out);
/* The responder: checks the initiator's message of in_len bytes and writes the answer. payload_in has room for in_len -
 * NOISE_OVERHEAD bytes, out for len + NOISE_OVERHEAD. -EBADMSG: not made with this key and prologue; nothing is
 * written. */
int noise_answer(const uint8_t psk[NOISE_KEY], const void *prologue, size_t prologue_len,
                 const struct noise_ephemeral *e, const uint8_t *in, size_t in_len, uint8_t *payload_in,
                 const void *payload, size_t len, uint8_t *out, struct noise_session *s);
/* The initiator again, with the answer to noise_begin or noise_resume. -EBADMSG: not made with this key. The answer to
 * noise_resume has no payload. */
int noise_finish(const struct noise_open *o, const uint8_t *in, size_t in_len, uint8_t *payload_in,
                 struct noise_session *s);

/* The initiator of a session that resumes the one with this secret. The prologue is all that stands in front of the
 * proof; with one secret it is never used twice. */
void noise_resume(struct noise_open *o, const uint8_t secret[NOISE_KEY], const void *prologue, size_t prologue_len,
                  uint8_t proof[NOISE_TAG]);
/* The responder. One prologue and one `unique` must meet only once: then no key is used twice, and a repeated opening is
 * of no use. -EBADMSG: the initiator does not have the secret; nothing is written. */
int noise_answer_resumed(const uint8_t secret[NOISE_KEY], const void *prologue, size_t prologue_len,
                         const uint8_t proof[NOISE_TAG], const uint8_t unique[NOISE_KEY], uint8_t out[NOISE_OVERHEAD],
                         struct noise_session *s);

/* A transport message: `out` has room for len + NOISE_TAG bytes, and may be `data`. */
void noise_seal(struct noise_session *s, const void *data, size_t len, uint8_t *out);
/* `out` has room for len - NOISE_TAG bytes, and may be `in`. -EBADMSG: changed, repeated, or out of order. */
int noise_unseal(struct noise_session *s, const uint8_t *in, size_t len, uint8_t *out);

#endif
