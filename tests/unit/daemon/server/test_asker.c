/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/server/asker.c: whose token it is, and when a process speaks for its user. */

#include "daemon/server/asker.h"

#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

enum { DAEMON = 500, OWNER = 1234 };

static struct key own = {{1, 2, 3}, KEY_OWN};

static int64_t find_owner(void *ctx, const struct asker_end *from, const struct asker_end *to) {
  *(int *)ctx += 1;
  return from->port == 4000 && to->port == 29400 ? OWNER : ASKER_NOBODY;
}

static int64_t ask(const struct key *key, const char *token) {
  return asker_of_token(&(struct asker_config){.key = key, .uid = DAEMON}, token, strlen(token));
}

UNIT_TEST(test_tokens) {
  struct key user, other = {{9}, KEY_OWN};
  char token[KEY_TEXT_MAX + 1], key[KEY_TEXT_MAX + 1];
  key_token(&own, token);
  assert_int_equal(ask(&own, token), DAEMON);
  assert_int_equal(ask(&other, token), ASKER_NOBODY);
  assert_int_equal(ask(NULL, token), ASKER_NOBODY);
  key_format(&own, key);
  assert_int_equal(ask(&own, key), ASKER_NOBODY); /* the key is not a token */
  key_derive(&own, 1000, &user);
  key_token(&user, token);
  assert_int_equal(ask(&own, token), 1000);
  assert_int_equal(ask(&user, token), DAEMON); /* a daemon that was given a user's key */
  assert_int_equal(ask(&other, token), ASKER_NOBODY);
  key_derive(&own, 0, &user);
  key_token(&user, token);
  assert_int_equal(ask(&own, token), 0);
  token[0] = '1'; /* another user's name on it */
  assert_int_equal(ask(&own, token), ASKER_NOBODY);
  key_derive(&other, 1000, &other);
  key_token(&user, token);
  assert_int_equal(ask(&other, token), ASKER_NOBODY); /* it cannot derive another user's */
}

UNIT_TEST(test_any_digit_counts) {
  char token[KEY_TEXT_MAX + 1];
  key_token(&own, token);
  for (size_t i = 0; token[i]; i++) {
    char was = token[i];
    token[i] = was == '0' ? '1' : '0';
    assert_int_equal(ask(&own, token), ASKER_NOBODY);
    token[i] = was;
  }
}

UNIT_TEST(test_text_that_is_no_token) {
  static const char *const texts[] = {"", "x", "1000:", "-1:00", ":", "a b", "\t"};
  char longer[8000];
  memset(longer, '0', sizeof(longer) - 1);
  longer[sizeof(longer) - 1] = 0;
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) assert_int_equal(ask(&own, texts[i]), ASKER_NOBODY);
  assert_int_equal(ask(&own, longer), ASKER_NOBODY);
}

static int64_t request(const char *from, const char *to, const char *fields, int *lookups) {
  struct asker_config c = {.key = &own, .uid = DAEMON, .find_owner = find_owner, .ctx = lookups};
  struct asker_end a = {ipaddr_parse(from), 4000}, b = {ipaddr_parse(to), 29400};
  struct http_request r;
  char text[400];
  size_t seen = 0;
  snprintf(text, sizeof(text), "GET /status HTTP/1.0\r\n%s\r\n", fields);
  assert_int_equal(http_parse(text, strlen(text), &seen, &r), HTTP_OK);
  return asker_find(&c, &r, &a, &b);
}

UNIT_TEST(test_a_process_of_this_machine) {
  int lookups = 0;
  assert_int_equal(request("127.0.0.1", "127.0.0.1", "", &lookups), OWNER);
  assert_int_equal(request("127.0.0.2", "127.0.0.1", "Host: localhost:29400\r\n", &lookups), OWNER);
  assert_int_equal(request("::1", "::1", "", &lookups), OWNER);
  assert_int_equal(request("10.0.0.1", "10.0.0.1", "", &lookups), OWNER);
  assert_int_equal(lookups, 4);
}

UNIT_TEST(test_others_need_a_token) {
  int lookups = 0;
  struct key user;
  char fields[200], token[KEY_TEXT_MAX + 1];
  assert_int_equal(request("10.0.0.2", "10.0.0.1", "", &lookups), ASKER_NOBODY);
  assert_int_equal(request("127.0.0.1", "127.0.0.1", "Host: evil.example\r\n", &lookups), ASKER_NOBODY);
  assert_int_equal(request("127.0.0.1", "127.0.0.1", "X-Forwarded-For: 10.0.0.9\r\n", &lookups), ASKER_NOBODY);
  key_derive(&own, 1000, &user);
  key_token(&user, token);
  snprintf(fields, sizeof(fields), "Host: node1\r\nAuthorization: Bearer %s\r\n", token);
  assert_int_equal(request("10.0.0.2", "10.0.0.1", fields, &lookups), 1000);
  assert_int_equal(request("127.0.0.1", "127.0.0.1", fields, &lookups), 1000);
  token[strlen(token) - 1] ^= 1;
  snprintf(fields, sizeof(fields), "Authorization: Bearer %s\r\n", token);
  assert_int_equal(request("127.0.0.1", "127.0.0.1", fields, &lookups), ASKER_NOBODY);
  assert_int_equal(lookups, 0); /* a wrong token is not made up for */
}
