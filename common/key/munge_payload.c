/* SPDX-License-Identifier: Apache-2.0 */
#include "common/key/munge_payload.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>

enum { NONCE_DIGITS = 2 * MUNGE_NONCE_BYTES };

static const char request_word[] = "rdzv-key-request 1 ", answer_word[] = "rdzv-key 1 ";

size_t munge_request_format(const struct munge_nonce *n, char out[MUNGE_PAYLOAD_MAX + 1]) {
  size_t len = sizeof(request_word) - 1;
  memcpy(out, request_word, len);
  sodium_bin2hex(out + len, NONCE_DIGITS + 1, n->bytes, MUNGE_NONCE_BYTES);
  return len + NONCE_DIGITS;
}

size_t munge_answer_format(const struct munge_nonce *n, const struct key *k, char out[MUNGE_PAYLOAD_MAX + 1]) {
  size_t len = sizeof(answer_word) - 1;
  memcpy(out, answer_word, len);
  sodium_bin2hex(out + len, NONCE_DIGITS + 1, n->bytes, MUNGE_NONCE_BYTES);
  len += NONCE_DIGITS;
  out[len++] = ' ';
  key_format(k, out + len);
  return len + strlen(out + len);
}

/* The word and the nonce at the beginning. Returns their length; 0: it begins otherwise. */
static size_t parse_head(const char *payload, size_t len, const char *word, struct munge_nonce *out) {
  size_t n = strlen(word), used = 0;
  if (len < n + NONCE_DIGITS || len > MUNGE_PAYLOAD_MAX || memcmp(payload, word, n) != 0) return 0;
  if (sodium_hex2bin(out->bytes, MUNGE_NONCE_BYTES, payload + n, NONCE_DIGITS, NULL, &used, NULL)) return 0;
  return used == MUNGE_NONCE_BYTES ? n + NONCE_DIGITS : 0;
}

int munge_request_parse(const char *payload, size_t len, struct munge_nonce *out, struct err *e) {
  if (len && parse_head(payload, len, request_word, out) == len) return 0;
  return err_set(e, -EPROTO, "the MUNGE credential does not ask for a key: rdzv-agent and rdzvd may differ in version");
}

static int parse_answer(const char *payload, size_t len, const struct munge_nonce *n, uint32_t uid, struct key *out,
                        struct err *e) {
  struct munge_nonce found;
  size_t used = parse_head(payload, len, answer_word, &found);
  if (!used || used == len || payload[used] != ' ')
    return err_set(e, -EPROTO, "the MUNGE credential holds no key: rdzv-agent and rdzvd may differ in version");
  if (sodium_memcmp(found.bytes, n->bytes, MUNGE_NONCE_BYTES) != 0)
    return err_set(e, -EPROTO, "the MUNGE credential answers another request: somebody may have sent an old one again");
  if (key_parse(payload + used + 1, len - used - 1, out, e))
    return err_wrap(e, "the MUNGE credential holds no key"), -EPROTO;
  if (out->uid != (int64_t)uid) return err_set(e, -EACCES, "the MUNGE credential holds the key of another user");
  return 0;
}

int munge_answer_parse(const char *payload, size_t len, const struct munge_nonce *n, uint32_t uid, struct key *out,
                       struct err *e) {
  int rc = parse_answer(payload, len, n, uid, out, e);
  if (rc) key_wipe(out);
  return rc;
}

int munge_encoder_check(uint32_t encoder, uint32_t own, int64_t trusted, struct err *e) {
  if (encoder == 0 || encoder == own || (int64_t)encoder == trusted) return 0;
  return err_set(e, -EACCES,
                 "a program of uid %u answers there, and not one of root, of uid %u or of a trusted service user: if "
                 "you trust that user with your jobs, give --munge-user",
                 (unsigned)encoder, (unsigned)own);
}
