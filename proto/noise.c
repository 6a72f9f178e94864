/* SPDX-License-Identifier: Apache-2.0 */
/* The names are the specification's: ck, h, k, MixHash, MixKey, MixKeyAndHash, Split. */

#include "proto/noise.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

static const char protocol[] = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";

/* SymmetricState, while a message is made or read. */
struct symmetric {
  uint8_t ck[NOISE_KEY], h[NOISE_KEY], k[NOISE_KEY];
};

/* CipherState -------------------------------------------------------------------------------------------------------- */

static void make_nonce(uint64_t n, uint8_t out[12]) {
  memset(out, 0, 4);
  for (int i = 0; i < 8; i++) out[4 + i] = (uint8_t)(n >> 8 * i);
}

static void encrypt(const uint8_t k[NOISE_KEY], uint64_t n, const uint8_t *ad, size_t ad_len, const void *data,
                    size_t len, uint8_t *out) {
  uint8_t nonce[12];
  make_nonce(n, nonce);
  crypto_aead_chacha20poly1305_ietf_encrypt(out, NULL, data, len, ad, ad_len, NULL, nonce, k);
}

static int decrypt(const uint8_t k[NOISE_KEY], uint64_t n, const uint8_t *ad, size_t ad_len, const uint8_t *in,
                   size_t len, uint8_t *out) {
  uint8_t nonce[12];
  make_nonce(n, nonce);
  return crypto_aead_chacha20poly1305_ietf_decrypt(out, NULL, NULL, in, len, ad, ad_len, nonce, k) ? -EBADMSG : 0;
}

/* SymmetricState ----------------------------------------------------------------------------------------------------- */

static void mix_hash(struct symmetric *s, const void *data, size_t len) {
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  crypto_hash_sha256_update(&state, s->h, sizeof(s->h));
  crypto_hash_sha256_update(&state, data, len);
  crypto_hash_sha256_final(&state, s->h);
}

static void hmac(const uint8_t key[NOISE_KEY], const void *a, size_t a_len, const void *b, size_t b_len,
                 uint8_t out[NOISE_KEY]) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key, NOISE_KEY);
  crypto_auth_hmacsha256_update(&state, a, a_len);
  crypto_auth_hmacsha256_update(&state, b, b_len);
  crypto_auth_hmacsha256_final(&state, out);
  sodium_memzero(&state, sizeof(state));
}

/* HKDF with n outputs of 32 bytes each, two or three. The first may be `ck`. */
static void hkdf(const uint8_t ck[NOISE_KEY], const void *ikm, size_t len, int n, uint8_t *const out[]) {
  uint8_t temp[NOISE_KEY], last[NOISE_KEY] = {0};
  hmac(ck, ikm, len, NULL, 0, temp);
  for (int i = 0; i < n; i++) {
    const uint8_t number = (uint8_t)(i + 1);
    hmac(temp, last, i ? NOISE_KEY : 0, &number, 1, last);
    memcpy(out[i], last, NOISE_KEY);
  }
  sodium_memzero(temp, sizeof(temp));
  sodium_memzero(last, sizeof(last));
}

static void mix_key(struct symmetric *s, const uint8_t ikm[NOISE_KEY]) {
  hkdf(s->ck, ikm, NOISE_KEY, 2, (uint8_t *const[]){s->ck, s->k});
}

static void mix_key_and_hash(struct symmetric *s, const uint8_t ikm[NOISE_KEY]) {
  uint8_t h[NOISE_KEY];
  hkdf(s->ck, ikm, NOISE_KEY, 3, (uint8_t *const[]){s->ck, h, s->k});
  mix_hash(s, h, sizeof(h));
}

/* A key is mixed in before each payload, so all have nonce 0. */
static void encrypt_and_hash(struct symmetric *s, const void *data, size_t len, uint8_t *out) {
  encrypt(s->k, 0, s->h, sizeof(s->h), data, len, out);
  mix_hash(s, out, len + NOISE_TAG);
}

static int decrypt_and_hash(struct symmetric *s, const uint8_t *in, size_t len, uint8_t *out) {
  uint8_t h[NOISE_KEY];
  memcpy(h, s->h, sizeof(h));
  mix_hash(s, in, len);
  return decrypt(s->k, 0, h, sizeof(h), in, len, out);
}

static void start(struct symmetric *s, const uint8_t psk[NOISE_KEY], const void *prologue, size_t len) {
  crypto_hash_sha256(s->h, (const uint8_t *)protocol, strlen(protocol));
  memcpy(s->ck, s->h, sizeof(s->ck));
  mix_hash(s, prologue, len);
  mix_key_and_hash(s, psk); /* psk0 */
}

/* The token e. With a psk the public key is mixed into the key as well. */
static void mix_public(struct symmetric *s, const uint8_t public[NOISE_KEY]) {
  mix_hash(s, public, NOISE_KEY);
  mix_key(s, public);
}

/* The token ee. A public key of low order has no secret. */
static int mix_shared(struct symmetric *s, const uint8_t secret[NOISE_KEY], const uint8_t public[NOISE_KEY]) {
  uint8_t shared[NOISE_KEY];
  if (crypto_scalarmult(shared, secret, public) != 0) return -EBADMSG;
  mix_key(s, shared);
  sodium_memzero(shared, sizeof(shared));
  return 0;
}

/* Split, and a third key that the specification does not have: it follows from the session and says nothing of it. */
static void split(const struct symmetric *state, bool initiator, struct noise_session *s) {
  uint8_t *first = initiator ? s->send_key : s->recv_key, *second = initiator ? s->recv_key : s->send_key;
  hkdf(state->ck, NULL, 0, 3, (uint8_t *const[]){first, second, s->resumption});
  s->sent = s->received = 0;
}

/* Resumption --------------------------------------------------------------------------------------------------------- */

/* A keyed hash that costs a third of one HMAC with SHA-256. Results of different lengths have nothing in common. */
static void derive(const uint8_t key[NOISE_KEY], const void *data, size_t len, uint8_t *out, size_t out_len) {
  crypto_generichash_blake2b(out, out_len, data, len, key, NOISE_KEY);
}

/* The key of the proof depends on all that it vouches for, so one nonce will do. */
static void derive_proof(const uint8_t secret[NOISE_KEY], const void *prologue, size_t len, struct symmetric *s) {
  uint8_t both[2 * NOISE_KEY];
  derive(secret, prologue, len, both, sizeof(both));
  memcpy(s->ck, both, NOISE_KEY);
  memcpy(s->k, both + NOISE_KEY, NOISE_KEY);
  sodium_memzero(both, sizeof(both));
}

static void begin_resumed(const uint8_t ck[NOISE_KEY], const uint8_t unique[NOISE_KEY], bool initiator,
                          struct noise_session *s) {
  uint8_t both[2 * NOISE_KEY];
  derive(ck, unique, NOISE_KEY, both, sizeof(both));
  memcpy(initiator ? s->send_key : s->recv_key, both, NOISE_KEY);
  memcpy(initiator ? s->recv_key : s->send_key, both + NOISE_KEY, NOISE_KEY);
  derive(ck, unique, NOISE_KEY, s->resumption, NOISE_KEY);
  s->sent = s->received = 0;
  sodium_memzero(both, sizeof(both));
}

void noise_resume(struct noise_open *o, const uint8_t secret[NOISE_KEY], const void *prologue, size_t prologue_len,
                  uint8_t proof[NOISE_TAG]) {
  struct symmetric s;
  derive_proof(secret, prologue, prologue_len, &s);
  encrypt(s.k, 0, NULL, 0, NULL, 0, proof);
  memcpy(o->ck, s.ck, NOISE_KEY);
  o->resumes = true;
  sodium_memzero(&s, sizeof(s));
}

int noise_answer_resumed(const uint8_t secret[NOISE_KEY], const void *prologue, size_t prologue_len,
                         const uint8_t proof[NOISE_TAG], const uint8_t unique[NOISE_KEY], uint8_t out[NOISE_OVERHEAD],
                         struct noise_session *s) {
  struct symmetric state;
  uint8_t nothing[1];
  derive_proof(secret, prologue, prologue_len, &state);
  int rc = decrypt(state.k, 0, NULL, 0, proof, NOISE_TAG, nothing);
  if (rc == 0) {
    begin_resumed(state.ck, unique, false, s);
    memcpy(out, unique, NOISE_KEY);
    noise_seal(s, NULL, 0, out + NOISE_KEY);
  }
  sodium_memzero(&state, sizeof(state));
  return rc;
}

/* Handshake ---------------------------------------------------------------------------------------------------------- */

void noise_ephemeral_set(struct noise_ephemeral *e, const uint8_t secret[NOISE_KEY]) {
  memcpy(e->secret, secret, NOISE_KEY);
  crypto_scalarmult_base(e->public, e->secret);
}

void noise_begin(struct noise_open *o, const uint8_t psk[NOISE_KEY], const void *prologue, size_t prologue_len,
                 const struct noise_ephemeral *e, const void *payload, size_t len, uint8_t *out) {
  struct symmetric s;
  start(&s, psk, prologue, prologue_len);
  mix_public(&s, e->public);
  memcpy(out, e->public, NOISE_KEY);
  encrypt_and_hash(&s, payload, len, out + NOISE_KEY);
  memcpy(o->ck, s.ck, NOISE_KEY);
  memcpy(o->h, s.h, NOISE_KEY);
  memcpy(o->e, e->secret, NOISE_KEY);
  o->resumes = false;
  sodium_memzero(&s, sizeof(s));
}

int noise_answer(const uint8_t psk[NOISE_KEY], const void *prologue, size_t prologue_len,
                 const struct noise_ephemeral *e, const uint8_t *in, size_t in_len, uint8_t *payload_in,
                 const void *payload, size_t len, uint8_t *out, struct noise_session *s) {
  if (in_len < NOISE_OVERHEAD) return -EBADMSG;
  struct symmetric state;
  start(&state, psk, prologue, prologue_len);
  mix_public(&state, in);
  int rc = decrypt_and_hash(&state, in + NOISE_KEY, in_len - NOISE_KEY, payload_in);
  if (rc == 0) {
    mix_public(&state, e->public);
    rc = mix_shared(&state, e->secret, in);
  }
  if (rc == 0) {
    memcpy(out, e->public, NOISE_KEY);
    encrypt_and_hash(&state, payload, len, out + NOISE_KEY);
    split(&state, false, s);
  }
  sodium_memzero(&state, sizeof(state));
  return rc;
}

int noise_finish(const struct noise_open *o, const uint8_t *in, size_t in_len, uint8_t *payload_in,
                 struct noise_session *s) {
  if (in_len < NOISE_OVERHEAD) return -EBADMSG;
  if (o->resumes) {
    begin_resumed(o->ck, in, true, s);
    return noise_unseal(s, in + NOISE_KEY, in_len - NOISE_KEY, payload_in);
  }
  struct symmetric state;
  memcpy(state.ck, o->ck, NOISE_KEY);
  memcpy(state.h, o->h, NOISE_KEY);
  mix_public(&state, in);
  int rc = mix_shared(&state, o->e, in);
  if (rc == 0) rc = decrypt_and_hash(&state, in + NOISE_KEY, in_len - NOISE_KEY, payload_in);
  if (rc == 0) split(&state, true, s);
  sodium_memzero(&state, sizeof(state));
  return rc;
}

/* Transport ---------------------------------------------------------------------------------------------------------- */

void noise_seal(struct noise_session *s, const void *data, size_t len, uint8_t *out) {
  encrypt(s->send_key, s->sent++, NULL, 0, data, len, out);
}

int noise_unseal(struct noise_session *s, const uint8_t *in, size_t len, uint8_t *out) {
  if (len < NOISE_TAG) return -EBADMSG;
  int rc = decrypt(s->recv_key, s->received, NULL, 0, in, len, out);
  if (rc == 0) s->received++;
  return rc;
}
