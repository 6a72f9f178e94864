/* SPDX-License-Identifier: Apache-2.0 */
/* What MUNGE credentials carry between an agent and rdzvd. */

#include "common/key/munge_payload.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

#define NONCE "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
#define KEY   "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
#define OTHER "ff0102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static struct munge_nonce nonce(void) {
  struct munge_nonce n;
  for (uint8_t i = 0; i < MUNGE_NONCE_BYTES; i++) n.bytes[i] = i;
  return n;
}

static struct key user_key(int64_t uid) {
  struct key k = {.uid = uid};
  for (uint8_t i = 0; i < KEY_BYTES; i++) k.bytes[i] = (uint8_t)(0x20 + i);
  return k;
}

UNIT_TEST(test_a_request_is_read_as_it_was_written) {
  struct munge_nonce n = nonce(), found;
  char text[MUNGE_PAYLOAD_MAX + 1];
  size_t len = munge_request_format(&n, text);
  assert_string_equal(text, "rdzv-key-request 1 " NONCE);
  assert_int_equal(len, strlen(text));
  assert_int_equal(munge_request_parse(text, len, &found, NULL), 0);
  assert_memory_equal(&found, &n, sizeof n);
}

UNIT_TEST(test_an_answer_is_read_as_it_was_written) {
  struct munge_nonce n = nonce();
  struct key k = user_key(1000), found;
  char text[MUNGE_PAYLOAD_MAX + 1];
  size_t len = munge_answer_format(&n, &k, text);
  assert_string_equal(text, "rdzv-key 1 " NONCE " 1000:" KEY);
  assert_int_equal(len, strlen(text));
  assert_int_equal(munge_answer_parse(text, len, &n, 1000, &found, NULL), 0);
  assert_true(key_equal(&k, &found));
}

UNIT_TEST(test_the_longest_answer_fits) {
  struct munge_nonce n = nonce();
  struct key k = user_key(UINT32_MAX);
  char text[MUNGE_PAYLOAD_MAX + 1];
  assert_in_range(munge_answer_format(&n, &k, text), 1, MUNGE_PAYLOAD_MAX);
}

UNIT_TEST(test_other_requests_are_refused) {
  static const char *const texts[] = {
      "",
      "rdzv-key-request 1 ",
      "rdzv-key-request 2 " NONCE,
      "rdzv-key-request 1 " NONCE " ",
      "rdzv-key-request 1 " NONCE "00",
      "rdzv-key-request 1  " NONCE,
      "rdzv-key 1 " NONCE " 1000:" KEY,
      "rdzv-key-request 1 000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1g",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    struct munge_nonce n;
    struct err e = ERR_INIT;
    assert_int_equal(munge_request_parse(texts[i], strlen(texts[i]), &n, &e), -EPROTO);
    assert_non_null(strstr(e.text, "does not ask for a key"));
  }
}

UNIT_TEST(test_other_answers_are_refused_and_leave_no_key) {
  static const struct {
    const char *text, *why;
    int code;
  } cases[] = {
      {"", "holds no key", -EPROTO},
      {"rdzv-key 1 " NONCE, "holds no key", -EPROTO},
      {"rdzv-key 1 " NONCE " ", "holds no key", -EPROTO},
      {"rdzv-key 2 " NONCE " 1000:" KEY, "holds no key", -EPROTO},
      {"rdzv-key 1 " NONCE "x1000:" KEY, "holds no key", -EPROTO},
      {"rdzv-key 1 " NONCE " 1000:" KEY "00", "holds no key", -EPROTO},
      {"rdzv-key 1 " NONCE " 1000:secret", "holds no key", -EPROTO},
      {"rdzv-key 1 " OTHER " 1000:" KEY, "answers another request", -EPROTO},
      {"rdzv-key 1 " NONCE " 1001:" KEY, "key of another user", -EACCES},
      {"rdzv-key 1 " NONCE " " KEY, "key of another user", -EACCES}, /* the daemon's own */
  };
  struct munge_nonce n = nonce();
  const struct key none = {.uid = KEY_OWN};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct key k = user_key(7);
    struct err e = ERR_INIT;
    assert_int_equal(munge_answer_parse(cases[i].text, strlen(cases[i].text), &n, 1000, &k, &e), cases[i].code);
    assert_non_null(strstr(e.text, cases[i].why));
    assert_null(strstr(e.text, "2021222324")); /* the key itself */
    assert_true(key_equal(&k, &none));
  }
}

UNIT_TEST(test_only_root_the_same_user_and_the_service_may_give_keys) {
  struct err e = ERR_INIT;
  assert_int_equal(munge_encoder_check(0, 1000, MUNGE_NO_USER, &e), 0);
  assert_int_equal(munge_encoder_check(1000, 1000, MUNGE_NO_USER, &e), 0);
  assert_int_equal(munge_encoder_check(990, 1000, 990, &e), 0);
  assert_int_equal(e.code, 0);
  assert_int_equal(munge_encoder_check(1001, 1000, 990, &e), -EACCES);
  assert_non_null(strstr(e.text, "uid 1001"));
  assert_non_null(strstr(e.text, "--munge-user"));
  assert_int_equal(munge_encoder_check(UINT32_MAX, 1000, MUNGE_NO_USER, NULL), -EACCES);
}
