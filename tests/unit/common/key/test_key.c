/* SPDX-License-Identifier: Apache-2.0 */
/* key, secret: the text of a key, and memory that is wiped. */

#include "common/key/key.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "common/key/secret.h"
#include "tests/rig/unit.h"

#define DIGITS "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

static int parse(const char *text, struct key *k, struct err *e) {
  return key_parse(text, strlen(text), k, e);
}

UNIT_TEST(test_both_forms_are_read_and_written) {
  static const char *const texts[] = {DIGITS, "1000:" DIGITS, "0:" DIGITS, "4294967294:" DIGITS};
  static const int64_t uids[] = {KEY_OWN, 1000, 0, 4294967294};
  for (int i = 0; i < 4; i++) {
    struct key k;
    char padded[KEY_TEXT_MAX + 8], out[KEY_TEXT_MAX + 1];
    snprintf(padded, sizeof padded, " %s\r\n", texts[i]);
    assert_int_equal(parse(padded, &k, NULL), 0);
    assert_true(k.uid == uids[i] && k.bytes[0] == 0 && k.bytes[31] == 31);
    key_format(&k, out);
    assert_string_equal(out, texts[i]);
  }
}

UNIT_TEST(test_other_texts_are_refused_and_not_shown) {
  static const char *const texts[] = {"",
                                      "secret",
                                      DIGITS "0",
                                      "1000:",
                                      ":" DIGITS,
                                      "4294967295:" DIGITS,
                                      "4294967296:" DIGITS,
                                      "-1:" DIGITS,
                                      "x:" DIGITS,
                                      "1000:" DIGITS "0",
                                      "z00102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    struct key k;
    struct err e = ERR_INIT;
    assert_int_equal(parse(texts[i], &k, &e), -EINVAL);
    assert_null(strstr(e.text, "0102"));
    assert_non_null(strstr(e.text, "64 hex digits"));
    assert_true(k.bytes[1] == 0);
  }
}

/* The numbers are of Python's hmac: hmac.digest(bytes(range(32)), b"rdzv user key\0" + struct.pack("<I", 1000), "sha256"). */
UNIT_TEST(test_a_users_key_and_a_token_follow_from_the_key) {
  struct key own, user, again;
  char text[KEY_TEXT_MAX + 1];
  parse(DIGITS, &own, NULL);
  key_derive(&own, 1000, &user);
  key_format(&user, text);
  assert_string_equal(text, "1000:227c6f73e37c65a4f20fb30d8b8c4383156d89184d32fe1bf8748bd0f4fd91a0");
  key_derive(&own, 1000, &again);
  assert_true(key_equal(&user, &again));
  key_derive(&own, 1001, &again);
  assert_false(key_equal(&user, &again));
  key_token(&own, text);
  assert_string_equal(text, "d0d559b5a7c4b86e439f98b761acf520b9ebe37481b1c77ce0f43ebe54750b9d");
  key_wipe(&own);
  assert_true(own.uid == KEY_OWN && own.bytes[5] == 0);
}

UNIT_TEST(test_secrets_are_zeroed_and_used_again) {
  enum { MANY = 2000 };
  static char *pieces[MANY];
  for (int i = 0; i < MANY; i++) {
    pieces[i] = secret_alloc();
    for (int k = 0; k < SECRET_SIZE; k++) assert_int_equal(pieces[i][k], 0);
    memset(pieces[i], 0xA5, SECRET_SIZE);
  }
  char *last = pieces[MANY - 1];
  secret_free(last);
  assert_int_equal(last[SECRET_SIZE - 1], 0);
  assert_ptr_equal(secret_alloc(), last);
  for (int i = 0; i < MANY; i++) secret_free(pieces[i]);
  secret_free(NULL);
}
