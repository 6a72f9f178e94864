/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint: host:port as people write and miswrite it; several of them; numeric addresses. */

#include "common/endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static void check(const char *text, const char *host, unsigned port, const char *printed) {
  struct endpoint ep = {{0}, 0};
  struct err e = ERR_INIT;
  char out[ENDPOINT_TEXT_MAX];
  if (endpoint_parse(text, RDZV_DEFAULT_PORT, &ep, &e)) fail_msg("%s: %s", text, e.text);
  assert_string_equal(ep.host, host);
  assert_int_equal(ep.port, port);
  endpoint_format(&ep, out);
  assert_string_equal(out, printed);
}

static void check_refused(const char *text, const char *why) {
  struct endpoint ep = {"untouched", 7};
  struct err e = ERR_INIT;
  if (endpoint_parse(text, RDZV_DEFAULT_PORT, &ep, &e) != -EINVAL) fail_msg("'%s' was let in", text);
  if (!strstr(e.text, why)) fail_msg("'%s' does not say '%s'", e.text, why);
  assert_string_equal(ep.host, "untouched");
  assert_int_equal(ep.port, 7);
  assert_int_equal(endpoint_parse(text, 1, &ep, NULL), -EINVAL);
}

UNIT_TEST(test_names) {
  check("node1", "node1", 29400, "node1:29400");
  check("node1:1", "node1", 1, "node1:1");
  check("node-1.cluster_a.example.org.:65535", "node-1.cluster_a.example.org.", 65535,
        "node-1.cluster_a.example.org.:65535");
  check("fe80:1", "fe80", 1, "fe80:1");
  check("1node", "1node", 29400, "1node:29400");
}

UNIT_TEST(test_v4) {
  check("10.0.0.1", "10.0.0.1", 29400, "10.0.0.1:29400");
  check("10.0.0.1:0", "10.0.0.1", 0, "10.0.0.1:0");
  check("255.255.255.255:80", "255.255.255.255", 80, "255.255.255.255:80");
}

UNIT_TEST(test_v6) {
  check("[::1]:29500", "::1", 29500, "[::1]:29500");
  check("[::1]", "::1", 29400, "[::1]:29400");
  check("::1", "::1", 29400, "[::1]:29400");
  check("::", "::", 29400, "[::]:29400");
  check("[::]:0", "::", 0, "[::]:0");
  check("::1:2940", "::1:2940", 29400, "[::1:2940]:29400");
  check("2001:db8::1:2:3", "2001:db8::1:2:3", 29400, "[2001:db8::1:2:3]:29400");
  check("[fe80::1%eth0]:5", "fe80::1%eth0", 5, "[fe80::1%eth0]:5");
  check("fe80::1%bond0.12", "fe80::1%bond0.12", 29400, "[fe80::1%bond0.12]:29400");
  check("[::ffff:10.0.0.1]:5", "::ffff:10.0.0.1", 5, "[::ffff:10.0.0.1]:5");
}

UNIT_TEST(test_longest) {
  char text[ENDPOINT_HOST_MAX + 8], out[ENDPOINT_TEXT_MAX];
  struct endpoint ep;
  memset(text, 'a', sizeof(text));
  memcpy(text + ENDPOINT_HOST_MAX - 1, ":65535", 7);
  assert_int_equal(endpoint_parse(text, 1, &ep, NULL), 0);
  endpoint_format(&ep, out);
  assert_string_equal(out, text);
  memset(text, 'a', sizeof(text));
  text[ENDPOINT_HOST_MAX] = '\0';
  check_refused(text, "longer than 255");
}

UNIT_TEST(test_garbage) {
  check_refused("", "host is missing");
  check_refused(":29400", "host is missing");
  check_refused("[]:29400", "host is missing");
  check_refused("node1:", "a port is a number");
  check_refused("node1:x", "a port is a number");
  check_refused("node1:65536", "a port is a number");
  check_refused("node1:999999999999", "a port is a number");
  check_refused("node1:-1", "a port is a number");
  check_refused("node1: 1", "a port is a number");
  check_refused("node1:29400:1", "IPv6");
  check_refused("::1:29400", "as in [::1]:29400");
  check_refused("10.0.0.1:1:2", "IPv6");
  check_refused("[::1", "bracket is missing");
  check_refused("[::1]29400", "only :port");
  check_refused("[::1]:", "a port is a number");
  check_refused("[node1]:5", "IPv6");
  check_refused("[10.0.0.1]:5", "IPv6");
  check_refused("::1]:5", "IPv6");
  check_refused("::g", "IPv6");
  check_refused("fe80::1%", "IPv6");
  check_refused("fe80::1%a/b", "IPv6");
  check_refused("fe80::1%sixteen-letters-", "IPv6");
  check_refused("10.0.0.256", "IPv4");
  check_refused("10.0.0", "IPv4");
  check_refused("29400", "IPv4");
  check_refused("10.0.0.01:5", "IPv4");
  check_refused("tcp://node1:29400", "scheme");
  check_refused("node 1", "letters");
  check_refused("node1/x", "letters");
  check_refused("no\xc3\xa9", "letters");
  check_refused("node1\n", "letters");
  check_refused("-node", "begin");
  check_refused(".node", "begin");
  check_refused("a..b", "begin");
}

UNIT_TEST(test_sentence_is_printable) {
  struct endpoint ep;
  struct err e = ERR_INIT;
  endpoint_parse("\x1b[31m", 1, &ep, &e);
  assert_non_null(strstr(e.text, "\\x1b[31m"));
}

UNIT_TEST(test_addresses) {
  static const char *const wrong[] = {"",
                                      "0",
                                      "1.2.3",
                                      "01.2.3.4",
                                      "1.2.3.4%lo",
                                      "::%",
                                      "1::2::3",
                                      "::1%e/h",
                                      "::1 ",
                                      "::1%sixteenletters12",
                                      "1:2:3:4:5:6:7:8:9"};
  static const struct {
    const char *text;
    uint8_t family, first, last;
  } right[] = {
      {"1.2.3.4", 4, 1, 4}, {"::ffff:1.2.3.4", 4, 1, 4}, {"::1.2.3.4", 6, 0, 4}, {"fe80::A%eth0.1", 6, 0xFE, 10}};
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) assert_int_equal(ipaddr_parse(wrong[i]).family, 0);
  for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
    struct ipaddr a = ipaddr_parse(right[i].text);
    assert_int_equal(a.family, right[i].family);
    assert_int_equal(a.bytes[0], right[i].first);
    assert_int_equal(a.bytes[a.family == 4 ? 3 : 15], right[i].last);
    for (int k = 4; k < 16 && a.family == 4; k++) assert_int_equal(a.bytes[k], 0); /* addresses are compared as bytes */
  }
}

static int order(const char *a, const char *b) {
  struct ipaddr x = ipaddr_parse(a), y = ipaddr_parse(b);
  int forth = ipaddr_compare(&x, &y), back = ipaddr_compare(&y, &x);
  assert_true((forth < 0 && back > 0) || (forth > 0 && back < 0) || (forth == 0 && back == 0));
  return (forth > 0) - (forth < 0);
}

UNIT_TEST(test_compare) {
  assert_int_equal(order("10.0.0.9", "10.0.0.10"), -1); /* numbers, not text */
  assert_int_equal(order("9.0.0.0", "10.0.0.0"), -1);
  assert_int_equal(order("10.0.0.1", "10.0.0.1"), 0);
  assert_int_equal(order("255.255.255.255", "::"), -1);
  assert_int_equal(order("::ffff:10.0.0.1", "10.0.0.1"), 0);
  assert_int_equal(order("fe80::1%eth0", "fe80::1"), 0);
  assert_int_equal(order("2001:db8::2", "2001:db8::10"), -1);
  assert_int_equal(order("node1", "0.0.0.0"), -1);
}

static bool same_network(const char *one, const char *other) {
  struct ipaddr a = ipaddr_parse(one), b = ipaddr_parse(other), of_a = ipaddr_network(&a), of_b = ipaddr_network(&b);
  return ipaddr_compare(&of_a, &of_b) == 0;
}

UNIT_TEST(test_networks_of_one_machine) {
  assert_true(same_network("2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff"));
  assert_false(same_network("2001:db8:1:2::1", "2001:db8:1:3::1"));
  assert_true(same_network("10.0.0.1", "10.0.0.1"));
  assert_false(same_network("10.0.0.1", "10.0.0.2"));
}

static bool loopback(const char *text) {
  struct ipaddr a = ipaddr_parse(text);
  return ipaddr_is_loopback(&a);
}

static bool linklocal(const char *text) {
  struct ipaddr a = ipaddr_parse(text);
  return ipaddr_is_linklocal(&a);
}

UNIT_TEST(test_kinds) {
  assert_true(loopback("127.0.0.1"));
  assert_true(loopback("127.0.1.1"));
  assert_true(loopback("::1"));
  assert_true(loopback("::ffff:127.0.0.1"));
  assert_false(loopback("128.0.0.1"));
  assert_false(loopback("::2"));
  assert_false(loopback("localhost"));
  assert_true(linklocal("169.254.7.7"));
  assert_true(linklocal("fe80::1%eth0"));
  assert_true(linklocal("febf::1"));
  assert_false(linklocal("fec0::1"));
  assert_false(linklocal("169.253.0.1"));
  assert_false(linklocal("10.0.0.1"));
  assert_false(linklocal("x"));
}

enum { MOST = 3 };

static void check_list(const char *text, const char *printed) {
  struct endpoint list[MOST];
  struct err e = ERR_INIT;
  char all[MOST * ENDPOINT_TEXT_MAX] = "", one[ENDPOINT_TEXT_MAX];
  size_t n;
  if (endpoint_list_parse(text, 29400, list, MOST, &n, &e)) fail_msg("%s: %s", text, e.text);
  for (size_t i = 0, len = 0; i < n; i++) {
    endpoint_format(&list[i], one);
    len += (size_t)snprintf(all + len, sizeof(all) - len, "%s%s", i ? "," : "", one);
  }
  assert_string_equal(all, printed);
}

UNIT_TEST(test_lists) {
  check_list("node1", "node1:29400");
  check_list("node1:1,node2,[::1]:5", "node1:1,node2:29400,[::1]:5");
  check_list("node1:1,node1:2,::1", "node1:1,node1:2,[::1]:29400");
  check_list("127.0.0.2,127.0.0.1", "127.0.0.2:29400,127.0.0.1:29400");
}

static void check_list_refused(const char *text, const char *why) {
  struct endpoint list[MOST];
  struct err e = ERR_INIT;
  size_t n = 7;
  if (endpoint_list_parse(text, 29400, list, MOST, &n, &e) != -EINVAL) fail_msg("'%s' was let in", text);
  if (!strstr(e.text, why)) fail_msg("'%s' does not say '%s'", e.text, why);
  assert_int_equal(n, 7);
}

UNIT_TEST(test_refused_lists) {
  char longest[2 * ENDPOINT_TEXT_MAX];
  check_list_refused("", "an address is missing");
  check_list_refused("a,", "an address is missing beside a comma");
  check_list_refused(",a", "an address is missing beside a comma");
  check_list_refused("a,,b", "an address is missing beside a comma");
  check_list_refused("a, b", "\" b\" is not host:port");
  check_list_refused("a,:29400", "the host in front of the colon is missing");
  check_list_refused("a,b:", "the port behind the colon is missing");
  check_list_refused("a,b:x", "\"b:x\" is not host:port");
  check_list_refused("a,b,c,d", "more than 3 addresses");
  check_list_refused("a,A:29400", "A:29400 is named twice");
  check_list_refused("::1,[0:0:0:0:0:0:0:1]:29400", "is named twice");
  check_list_refused("10.0.0.1,::ffff:10.0.0.1", "is named twice");
  memset(longest, 'x', sizeof(longest));
  longest[sizeof(longest) - 1] = '\0';
  check_list_refused(longest, "longer than 265 characters");
}
