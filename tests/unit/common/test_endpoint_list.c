/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_list: several endpoints, their order, and the mistakes in them. */

#include "common/endpoint.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

enum { MOST = 3 };

static void check(const char *text, const char *printed) {
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
  check("node1", "node1:29400");
  check("node1:1,node2,[::1]:5", "node1:1,node2:29400,[::1]:5");
  check("node1:1,node1:2,::1", "node1:1,node1:2,[::1]:29400");
  check("127.0.0.2,127.0.0.1", "127.0.0.2:29400,127.0.0.1:29400");
}

static void check_refused(const char *text, const char *why) {
  struct endpoint list[MOST];
  struct err e = ERR_INIT;
  size_t n = 7;
  if (endpoint_list_parse(text, 29400, list, MOST, &n, &e) != -EINVAL) fail_msg("'%s' was let in", text);
  if (!strstr(e.text, why)) fail_msg("'%s' does not say '%s'", e.text, why);
  assert_int_equal(n, 7);
}

UNIT_TEST(test_refused) {
  char longest[2 * ENDPOINT_TEXT_MAX];
  check_refused("", "an address is missing");
  check_refused("a,", "an address is missing beside a comma");
  check_refused(",a", "an address is missing beside a comma");
  check_refused("a,,b", "an address is missing beside a comma");
  check_refused("a, b", "\" b\" is not host:port");
  check_refused("a,:29400", "the host in front of the colon is missing");
  check_refused("a,b:", "the port behind the colon is missing");
  check_refused("a,b:x", "\"b:x\" is not host:port");
  check_refused("a,b,c,d", "more than 3 addresses");
  check_refused("a,A:29400", "A:29400 is named twice");
  check_refused("::1,[0:0:0:0:0:0:0:1]:29400", "is named twice");
  check_refused("10.0.0.1,::ffff:10.0.0.1", "is named twice");
  memset(longest, 'x', sizeof(longest));
  longest[sizeof(longest) - 1] = '\0';
  check_refused(longest, "longer than 265 characters");
}
