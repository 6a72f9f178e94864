/* SPDX-License-Identifier: Apache-2.0 */
/* What a key that comes by MUNGE is read from: the daemon's answer, and the payloads of both credentials. What is taken
 * is what was written; what is not has a sentence and leaves no key. */

#include <stdlib.h>
#include <string.h>
#include "common/key/munge_payload.h"
#include "proto/munge_ask.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_answer(const char *text, size_t len) {
  struct slice body = {0};
  struct err e = ERR_INIT;
  int rc = munge_ask_take(text, len, &body, &e);
  if ((rc < 0) != (e.text[0] != '\0') || rc > 1) abort();
  if (rc > 0 && (!body.len || body.len > MUNGE_ASK_BODY_MAX || body.data < text || body.data + body.len > text + len))
    abort();
}

static void check_request(const char *text, size_t len) {
  struct munge_nonce n;
  struct err e = ERR_INIT;
  char again[MUNGE_PAYLOAD_MAX + 1];
  int rc = munge_request_parse(text, len, &n, &e);
  if ((rc != 0) != (e.text[0] != '\0')) abort();
  if (rc == 0 && munge_request_format(&n, again) != len) abort();
}

/* The nonce is that of the input, so that what follows it is reached. */
static void check_key(const char *text, size_t len) {
  enum { NONCE_AT = 11, DIGITS = 2 * MUNGE_NONCE_BYTES };
  struct munge_nonce n = {{0}};
  struct key k;
  struct err e = ERR_INIT;
  char request[MUNGE_PAYLOAD_MAX + 1] = "rdzv-key-request 1 ";
  size_t used = strlen(request);
  if (len >= NONCE_AT + DIGITS) {
    memcpy(request + used, text + NONCE_AT, DIGITS);
    if (munge_request_parse(request, used + DIGITS, &n, NULL)) memset(&n, 0, sizeof n);
  }
  int rc = munge_answer_parse(text, len, &n, 1000, &k, &e);
  if ((rc != 0) != (e.text[0] != '\0') || k.uid != (rc ? KEY_OWN : 1000)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
  const char *text = (const char *)data;
  check_answer(text, len);
  check_request(text, len);
  check_key(text, len);
  return 0;
}
