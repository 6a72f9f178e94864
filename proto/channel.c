/* SPDX-License-Identifier: Apache-2.0 */
/* The opening is checked before any Diffie-Hellman, because psk0 mixes the key in first: a stranger costs the daemon a
 * few hashes.
 *
 * The prologue of Noise is everything in front of its first message, so nobody can change the kind or the uid. The
 * header in front of the answer is not covered; only its refusals mean anything, and these are advice.
 *
 * A ticket costs a stranger's daemon even less: one decryption fails. What the daemon adds to a resumed channel is its
 * ephemeral public key, as in the other kind, because no opening is answered twice under one (below). */

#include "proto/channel.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include "common/key/secret.h"
#include "common/mem.h"
#include "proto/frame.h"

_Static_assert(sizeof(struct noise_open) <= SECRET_SIZE && sizeof(struct noise_session) <= SECRET_SIZE &&
                   sizeof(struct channel_ticket) <= SECRET_SIZE,
               "a channel's keys fit into one piece");

enum {
  PROLOGUE_SIZE = CHANNEL_PREFACE_SIZE + 4,
  RESUMING_PROLOGUE_SIZE = PROLOGUE_SIZE + CHANNEL_TICKET_SIZE,
  TICKET_NONCE_SIZE = 4 + CHANNEL_TICKET_RANDOM,
  LENGTH_SIZE = 2
};
#define UID_OWN UINT32_MAX

_Static_assert(TICKET_NONCE_SIZE == crypto_aead_chacha20poly1305_ietf_NPUBBYTES, "a ticket begins with a nonce");

void channel_finish(struct channel *c) {
  secret_free(c->secret);
  *c = (struct channel){.state = CHANNEL_IS_PLAIN};
}

/* Client ------------------------------------------------------------------------------------------------------------- */

static uint8_t *begin_opening(struct channel *c, enum channel_kind kind, uint32_t uid, struct buf *out) {
  uint8_t *at = buf_reserve(out, channel_opening_size(kind));
  memcpy(at, frame_preface, CHANNEL_PREFACE_SIZE);
  le16_put(at + CHANNEL_PREFACE_SIZE - 2, (uint16_t)kind);
  le32_put(at + CHANNEL_PREFACE_SIZE, uid);
  *c = (struct channel){.state = CHANNEL_IS_OPENING, .uid = uid, .secret = secret_alloc()};
  return at;
}

void channel_open(struct channel *c, const struct key *key, const uint8_t random[NOISE_KEY], struct buf *out) {
  struct noise_ephemeral *e = secret_alloc();
  uint8_t *at = begin_opening(c, CHANNEL_KIND_SEALED, key->uid == KEY_OWN ? UID_OWN : (uint32_t)key->uid, out);
  noise_ephemeral_set(e, random);
  noise_begin(c->secret, key->bytes, at, PROLOGUE_SIZE, e, NULL, 0, at + PROLOGUE_SIZE);
  buf_commit(out, CHANNEL_OPENING_SIZE);
  secret_free(e);
}

struct channel_ticket *channel_take_ticket(const struct channel *c, const char *text) {
  size_t n = 0;
  if (c->state != CHANNEL_IS_SEALED) return NULL;
  const struct noise_session *s = c->secret;
  struct channel_ticket *t = secret_alloc();
  if (sodium_hex2bin(t->ticket, sizeof(t->ticket), text, strlen(text), NULL, &n, NULL) != 0 || n != sizeof(t->ticket)) {
    secret_free(t);
    return NULL;
  }
  t->uid = c->uid;
  memcpy(t->secret, s->resumption, NOISE_KEY);
  return t;
}

void channel_resume(struct channel *c, const struct channel_ticket *t, struct buf *out) {
  uint8_t *at = begin_opening(c, CHANNEL_KIND_RESUMED, t->uid, out);
  memcpy(at + PROLOGUE_SIZE, t->ticket, CHANNEL_TICKET_SIZE);
  noise_resume(c->secret, t->secret, at, RESUMING_PROLOGUE_SIZE, at + RESUMING_PROLOGUE_SIZE);
  buf_commit(out, CHANNEL_RESUMING_SIZE);
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
  return kind <= CHANNEL_KIND_RESUMED ? (int)kind : -EPROTO;
}

size_t channel_opening_size(enum channel_kind kind) {
  return kind == CHANNEL_KIND_RESUMED ? CHANNEL_RESUMING_SIZE : CHANNEL_OPENING_SIZE;
}

int64_t channel_opening_uid(const char *opening) {
  uint32_t uid = le32_get(opening + CHANNEL_PREFACE_SIZE);
  return uid == UID_OWN ? KEY_OWN : (int64_t)uid;
}

const uint8_t *channel_opening_mark(const char *opening) {
  return (const uint8_t *)opening + PROLOGUE_SIZE + (channel_kind_of(opening) == CHANNEL_KIND_RESUMED ? 4 : 0);
}

/* Answers, if the session that *s has become is one: rc is 0. */
static int finish_answer(struct channel *c, int rc, struct noise_session *s, enum channel_source source,
                         const char *opening, const uint8_t message[NOISE_OVERHEAD], struct buf *out) {
  if (rc < 0) {
    secret_free(s);
    return rc;
  }
  channel_put_header(out, CHANNEL_OK, source);
  buf_append(out, message, NOISE_OVERHEAD);
  *c = (struct channel){.state = CHANNEL_IS_SEALED, .uid = le32_get(opening + CHANNEL_PREFACE_SIZE), .secret = s};
  return 0;
}

int channel_accept(struct channel *c, const struct key *key, const struct noise_ephemeral *e,
                   enum channel_source source, const char opening[CHANNEL_OPENING_SIZE], struct buf *out) {
  struct noise_session *s = secret_alloc();
  uint8_t nothing[1], message[NOISE_OVERHEAD];
  int rc = noise_answer(key->bytes, opening, PROLOGUE_SIZE, e, (const uint8_t *)opening + PROLOGUE_SIZE, NOISE_OVERHEAD,
                        nothing, NULL, 0, message, s);
  return finish_answer(c, rc, s, source, opening, message, out);
}

int channel_accept_ticket(struct channel *c, const struct key *tickets, const struct noise_ephemeral *e, uint32_t now_s,
                          enum channel_source source, const char opening[CHANNEL_RESUMING_SIZE], struct buf *out) {
  const uint8_t *ticket = (const uint8_t *)opening + PROLOGUE_SIZE;
  struct noise_session *s = secret_alloc();
  uint8_t message[NOISE_OVERHEAD], *secret = s->resumption; /* until the session has one of its own */
  int rc = -EBADMSG;
  /* Clocks of two machines differ, so an issue in the future is no reason. Nobody can change the time: the nonce has it. */
  if (now_s - le32_get(ticket) + CHANNEL_TICKET_S < 2u * CHANNEL_TICKET_S &&
      crypto_aead_chacha20poly1305_ietf_decrypt(secret, NULL, NULL, ticket + TICKET_NONCE_SIZE, NOISE_KEY + NOISE_TAG,
                                                (const uint8_t *)opening + CHANNEL_PREFACE_SIZE, 4, ticket,
                                                tickets->bytes) == 0)
    rc = noise_answer_resumed(secret, opening, RESUMING_PROLOGUE_SIZE, ticket + CHANNEL_TICKET_SIZE, e->public, message,
                              s);
  return finish_answer(c, rc, s, source, opening, message, out);
}

void channel_put_ticket(const struct channel *c, const struct key *tickets, uint32_t now_s,
                        const uint8_t random[CHANNEL_TICKET_RANDOM], char text[CHANNEL_TICKET_TEXT + 1]) {
  assert(c->state == CHANNEL_IS_SEALED);
  const struct noise_session *s = c->secret;
  uint8_t ticket[CHANNEL_TICKET_SIZE], uid[4];
  le32_put(uid, c->uid);
  le32_put(ticket, now_s);
  memcpy(ticket + 4, random, CHANNEL_TICKET_RANDOM);
  crypto_aead_chacha20poly1305_ietf_encrypt(ticket + TICKET_NONCE_SIZE, NULL, s->resumption, NOISE_KEY, uid,
                                            sizeof(uid), NULL, ticket, tickets->bytes);
  sodium_bin2hex(text, CHANNEL_TICKET_TEXT + 1, ticket, sizeof(ticket));
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

/* The daemon's ephemeral key. -------------------------------------------------------------------------------------- */

/* A table of the marks of openings, at most half full. Only holders of the key get into it, so nobody else can choose
 * what collides. */

enum { SLOTS = 2 * EPHEMERAL_OPENINGS };

struct ephemeral {
  struct noise_ephemeral *key;
  uint64_t born_ms;
  size_t n;
  bool is_set;
  uint64_t seen[SLOTS]; /* 0: unused */
};

struct ephemeral *ephemeral_create(void) {
  struct ephemeral *e = xcalloc(1, sizeof(*e));
  e->key = secret_alloc();
  return e;
}

void ephemeral_destroy(struct ephemeral *e) {
  if (!e) return;
  secret_free(e->key);
  free(e);
}

bool ephemeral_is_old(const struct ephemeral *e, uint64_t now_ms) {
  return !e->is_set || e->n >= EPHEMERAL_OPENINGS || now_ms - e->born_ms >= EPHEMERAL_MS;
}

void ephemeral_renew(struct ephemeral *e, const uint8_t random[NOISE_KEY], uint64_t now_ms) {
  noise_ephemeral_set(e->key, random);
  if (e->n) memset(e->seen, 0, sizeof(e->seen));
  e->n = 0;
  e->born_ms = now_ms;
  e->is_set = true;
}

const struct noise_ephemeral *ephemeral_key(const struct ephemeral *e) {
  return e->key;
}

bool ephemeral_note(struct ephemeral *e, const uint8_t mark[8]) {
  uint64_t number = le64_get(mark);
  if (number == 0) number = 1;
  for (size_t i = number % SLOTS;; i = (i + 1) % SLOTS) {
    if (e->seen[i] == number) return false;
    if (e->seen[i]) continue;
    e->seen[i] = number;
    e->n++;
    return true;
  }
}
