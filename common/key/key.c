/* SPDX-License-Identifier: Apache-2.0 */
#include "common/key/key.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include "common/ascii.h"
#include "common/buf.h"

enum { HEX_DIGITS = 2 * KEY_BYTES };

static const char derive_context[] = "rdzv user key", token_context[] = "rdzv http token",
                  ticket_context[] = "rdzv ticket key";

static bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* "1000:". Returns its length; 0: it is none. */
static size_t parse_uid(const char *text, size_t len, int64_t *uid) {
  int64_t v = 0;
  size_t n = 0;
  for (; n < len && n <= 10 && ascii_is_digit(text[n]); n++) v = 10 * v + (text[n] - '0');
  if (n == 0 || n > 10 || n == len || text[n] != ':' || v >= UINT32_MAX) return 0; /* no user has the last */
  *uid = v;
  return n + 1;
}

int key_parse(const char *text, size_t len, struct key *out, struct err *e) {
  while (len && is_blank(text[len - 1])) len--;
  while (len && is_blank(*text)) text++, len--;
  out->uid = KEY_OWN;
  size_t used = len > HEX_DIGITS ? parse_uid(text, len, &out->uid) : 0, n = 0;
  text += used;
  len -= used;
  if (len == HEX_DIGITS && sodium_hex2bin(out->bytes, KEY_BYTES, text, len, NULL, &n, NULL) == 0 && n == KEY_BYTES)
    return 0;
  key_wipe(out);
  return err_set(e, -EINVAL, "a key is %d hex digits, or UID: and %d hex digits; this has %zu characters%s", HEX_DIGITS,
                 HEX_DIGITS, len + used, len == HEX_DIGITS ? ", and not all are hex digits" : "");
}

static void format(int64_t uid, const uint8_t bytes[KEY_BYTES], char out[KEY_TEXT_MAX + 1]) {
  int n = uid == KEY_OWN ? 0 : snprintf(out, KEY_TEXT_MAX + 1, "%u:", (unsigned)uid);
  sodium_bin2hex(out + n, HEX_DIGITS + 1, bytes, KEY_BYTES);
}

void key_format(const struct key *k, char out[KEY_TEXT_MAX + 1]) {
  format(k->uid, k->bytes, out);
}

static void keyed_hash(const struct key *k, const char *context, uint32_t number, uint8_t out[KEY_BYTES]) {
  crypto_auth_hmacsha256_state state;
  uint8_t le[4];
  le32_put(le, number);
  crypto_auth_hmacsha256_init(&state, k->bytes, KEY_BYTES);
  crypto_auth_hmacsha256_update(&state, (const uint8_t *)context, strlen(context) + 1);
  crypto_auth_hmacsha256_update(&state, le, sizeof(le));
  crypto_auth_hmacsha256_final(&state, out);
  sodium_memzero(&state, sizeof(state));
}

void key_derive(const struct key *own, uint32_t uid, struct key *out) {
  keyed_hash(own, derive_context, uid, out->bytes);
  out->uid = uid;
}

void key_token(const struct key *k, char out[KEY_TEXT_MAX + 1]) {
  uint8_t bytes[KEY_BYTES];
  keyed_hash(k, token_context, 0, bytes);
  format(k->uid, bytes, out);
}

void key_of_tickets(const struct key *own, struct key *out) {
  keyed_hash(own, ticket_context, 0, out->bytes);
  out->uid = KEY_OWN;
}

bool key_equal(const struct key *a, const struct key *b) {
  return a->uid == b->uid && sodium_memcmp(a->bytes, b->bytes, KEY_BYTES) == 0;
}

void key_wipe(struct key *k) {
  sodium_memzero(k, sizeof(*k));
  k->uid = KEY_OWN;
}
