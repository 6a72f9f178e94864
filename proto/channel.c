/* SPDX-License-Identifier: Apache-2.0 */
/* The opening is checked before any Diffie-Hellman, because psk0 mixes the key in first: a stranger costs the daemon a
 * few hashes.
 *
 * The prologue of Noise is everything in front of its first message, so nobody can change the kind or the uid. The
 * header in front of the answer is not covered; only its refusals mean anything, and these are advice. */

#include "proto/channel.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include "common/key/secret.h"
#include "proto/frame.h"

_Static_assert(sizeof(struct noise_open) <= SECRET_SIZE && sizeof(struct noise_session) <= SECRET_SIZE,
               "a channel's keys fit into one piece");

enum { PROLOGUE_SIZE = CHANNEL_PREFACE_SIZE + 4, LENGTH_SIZE = 2 };
#define UID_OWN UINT32_MAX

void channel_finish(struct channel *c) {
  secret_free(c->secret);
  *c = (struct channel){.state = CHANNEL_IS_PLAIN};
}

/* Client ------------------------------------------------------------------------------------------------------------- */

void channel_open(struct channel *c, const struct key *key, const uint8_t random[NOISE_KEY], struct buf *out) {
  struct noise_ephemeral *e = secret_alloc();
  uint8_t *at = buf_reserve(out, CHANNEL_OPENING_SIZE);
  memcpy(at, frame_preface, CHANNEL_PREFACE_SIZE);
  le16_put(at + CHANNEL_PREFACE_SIZE - 2, CHANNEL_KIND_SEALED);
  le32_put(at + CHANNEL_PREFACE_SIZE, key->uid == KEY_OWN ? UID_OWN : (uint32_t)key->uid);
  noise_ephemeral_set(e, random);
  c->secret = secret_alloc();
  noise_begin(c->secret, key->bytes, at, PROLOGUE_SIZE, e, NULL, 0, at + PROLOGUE_SIZE);
  buf_commit(out, CHANNEL_OPENING_SIZE);
  c->state = CHANNEL_IS_OPENING;
  secret_free(e);
}

int channel_take_answer(struct channel *c, const char *data, size_t len, size_t *used, enum channel_status *status,
                        enum channel_source *source) {
  size_t known = len < 6 ? len : 6;
  if (memcmp(data, frame_preface, known) != 0) return -EPROTO;
  if (len < CHANNEL_HEADER_SIZE) return 0;
  uint8_t told = (uint8_t)data[6], from = (uint8_t)data[7];
  if (told >= CHANNEL_STATUS_COUNT) return -EPROTO;
  *status = told;
  *source = from < CHANNEL_SOURCE_COUNT ? from : CHANNEL_SOURCE_OTHER;
  if (told != CHANNEL_OK) return -EACCES;
  if (len < CHANNEL_ANSWER_SIZE) return 0;
  struct noise_session *s = secret_alloc();
  uint8_t nothing[1];
  int rc = noise_finish(c->secret, (const uint8_t *)data + CHANNEL_HEADER_SIZE, NOISE_OVERHEAD, nothing, s);
  if (rc < 0) {
    secret_free(s);
    return rc;
  }
  secret_free(c->secret);
  c->secret = s;
  c->state = CHANNEL_IS_SEALED;
  *used = CHANNEL_ANSWER_SIZE;
  return 1;
}

/* Daemon ------------------------------------------------------------------------------------------------------------- */

int channel_kind_of(const char *data) {
  unsigned kind = le16_get(data + CHANNEL_PREFACE_SIZE - 2);
  return kind <= CHANNEL_KIND_MUNGE ? (int)kind : -EPROTO;
}

int64_t channel_opening_uid(const char opening[CHANNEL_OPENING_SIZE]) {
  uint32_t uid = le32_get(opening + CHANNEL_PREFACE_SIZE);
  return uid == UID_OWN ? KEY_OWN : (int64_t)uid;
}

const uint8_t *channel_opening_public(const char opening[CHANNEL_OPENING_SIZE]) {
  return (const uint8_t *)opening + PROLOGUE_SIZE;
}

int channel_accept(struct channel *c, const struct key *key, const struct noise_ephemeral *e,
                   enum channel_source source, const char opening[CHANNEL_OPENING_SIZE], struct buf *out) {
  struct noise_session *s = secret_alloc();
  uint8_t nothing[1], message[NOISE_OVERHEAD];
  int rc = noise_answer(key->bytes, opening, PROLOGUE_SIZE, e, (const uint8_t *)opening + PROLOGUE_SIZE, NOISE_OVERHEAD,
                        nothing, NULL, 0, message, s);
  if (rc < 0) {
    secret_free(s);
    return rc;
  }
  channel_put_header(out, CHANNEL_OK, source);
  buf_append(out, message, sizeof(message));
  c->secret = s;
  c->state = CHANNEL_IS_SEALED;
  return 0;
}

void channel_put_header(struct buf *out, enum channel_status status, enum channel_source source) {
  buf_append(out, frame_preface, 6);
  buf_putc(out, (char)status);
  buf_putc(out, (char)source);
}

/* Both --------------------------------------------------------------------------------------------------------------- */

size_t channel_sealed_size(size_t len) {
  size_t records = (len + CHANNEL_PLAIN_MAX - 1) / CHANNEL_PLAIN_MAX;
  return len + records * (LENGTH_SIZE + NOISE_TAG);
}

void channel_seal(struct channel *c, const void *data, size_t len, struct buf *out) {
  assert(c->state == CHANNEL_IS_SEALED);
  const char *from = data;
  uint8_t *at = buf_reserve(out, channel_sealed_size(len));
  size_t total = 0;
  for (size_t n; len; from += n, len -= n) {
    n = len < CHANNEL_PLAIN_MAX ? len : CHANNEL_PLAIN_MAX;
    le16_put(at + total, (uint16_t)(n + NOISE_TAG));
    noise_seal(c->secret, from, n, at + total + LENGTH_SIZE);
    total += LENGTH_SIZE + n + NOISE_TAG;
  }
  buf_commit(out, total);
}

int channel_unseal(struct channel *c, const char *data, size_t len, size_t *used, struct buf *out, struct err *e) {
  assert(c->state == CHANNEL_IS_SEALED);
  if (len < LENGTH_SIZE) return 0;
  size_t n = le16_get(data);
  if (n <= NOISE_TAG || n > CHANNEL_RECORD_MAX)
    return err_set(e, -EMSGSIZE, "sent a record of %zu bytes; a record has %d to %d", n, NOISE_TAG + 1,
                   CHANNEL_RECORD_MAX);
  if (len < LENGTH_SIZE + n) return 0;
  uint8_t *at = buf_reserve(out, n - NOISE_TAG);
  if (noise_unseal(c->secret, (const uint8_t *)data + LENGTH_SIZE, n, at) < 0)
    return err_set(e, -EBADMSG, "a record was changed on its way, or came twice");
  buf_commit(out, n - NOISE_TAG);
  *used = LENGTH_SIZE + n;
  return 1;
}
