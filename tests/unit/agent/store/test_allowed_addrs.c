/* SPDX-License-Identifier: Apache-2.0 */
/* allowed_addrs: who may connect to the round's store. */

#include "agent/store/allowed_addrs.h"

#include <stdio.h>
#include <string.h>
#include "common/buf.h"
#include "tests/rig/unit.h"

static bool has(const struct allowed_addrs *g, const char *text) {
  struct ipaddr a = ipaddr_parse(text);
  return allowed_addrs_has(g, &a);
}

UNIT_TEST(test_a_line_each) {
  static const char text[] = "10.0.0.2\nfd00::1\n10.0.0.10\n";
  struct allowed_addrs g;
  allowed_addrs_init(&g, text, strlen(text), NULL, 0);
  assert_int_equal(g.n, 3);
  assert_true(has(&g, "10.0.0.2"));
  assert_true(has(&g, "10.0.0.10"));
  assert_true(has(&g, "::ffff:10.0.0.10")); /* as a dual-stack socket shows it */
  assert_true(has(&g, "fd00:0::1"));
  assert_false(has(&g, "10.0.0.1"));
  assert_false(has(&g, "fd00::2"));
  assert_false(has(&g, "127.0.0.1"));
  allowed_addrs_finish(&g);
}

UNIT_TEST(test_nobody) {
  struct allowed_addrs g;
  allowed_addrs_init(&g, NULL, 0, NULL, 0);
  assert_false(has(&g, "10.0.0.1"));
  allowed_addrs_finish(&g);
  allowed_addrs_finish(&g);
}

UNIT_TEST(test_more_than_the_text) {
  struct ipaddr own[2] = {ipaddr_parse("192.0.2.1"), ipaddr_parse("10.0.0.1")};
  struct allowed_addrs g;
  allowed_addrs_init(&g, "10.0.0.5", 8, own, 2); /* the last line may lack its end */
  assert_true(has(&g, "10.0.0.5"));
  assert_true(has(&g, "192.0.2.1"));
  assert_true(has(&g, "10.0.0.1"));
  allowed_addrs_finish(&g);
}

/* What is no address lets in nobody, and spoils nothing. */
UNIT_TEST(test_lines_that_are_none) {
  static const char text[] = "\n\n10.0.0.1x\n10.0.0.3\nnode1\n\0\n10.0.0.300\n"
                             "1111111111111111111111111111111111111111111111111111111111111111111111\n10.0.0.4";
  struct allowed_addrs g;
  allowed_addrs_init(&g, text, sizeof text - 1, NULL, 0);
  assert_int_equal(g.n, 2);
  assert_true(has(&g, "10.0.0.3"));
  assert_true(has(&g, "10.0.0.4"));
  allowed_addrs_finish(&g);
}

UNIT_TEST(test_many) {
  struct buf text = BUF_INIT;
  struct allowed_addrs g;
  for (int i = 0; i < 65536; i++) buf_printf(&text, "10.1.%d.%d\n", (i * 7919 & 65535) >> 8, i * 7919 & 255);
  allowed_addrs_init(&g, text.data, text.len, NULL, 0);
  assert_int_equal(g.n, 65536);
  for (int i = 0; i < 65536; i += 13) {
    char one[32];
    snprintf(one, sizeof one, "10.1.%d.%d", i >> 8, i & 255);
    assert_true(has(&g, one));
    one[3] = '2';
    assert_false(has(&g, one));
  }
  allowed_addrs_finish(&g);
  buf_finish(&text);
}
