/* SPDX-License-Identifier: Apache-2.0 */
/* claim_place: folders and etcd clusters as people write and miswrite them. */

#include "common/claim_place.h"

#include <errno.h>
#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_folder) {
  struct claim_place p;
  const char *text = "/shared/rdzv claims";
  assert_int_equal(claim_place_parse(text, &p, NULL), 0);
  assert_ptr_equal(p.folder, text);
  assert_int_equal(p.n, 0);
}

UNIT_TEST(test_etcd) {
  struct claim_place p;
  assert_int_equal(claim_place_parse("etcd://a:1,[fd00::1],10.0.0.1:2379", &p, NULL), 0);
  assert_null(p.folder);
  assert_int_equal(p.n, 3);
  assert_string_equal(p.etcd[0].host, "a");
  assert_int_equal(p.etcd[0].port, 1);
  assert_string_equal(p.etcd[1].host, "fd00::1");
  assert_int_equal(p.etcd[1].port, CLAIM_ETCD_PORT);
  assert_int_equal(p.etcd[2].port, 2379);
}

static void check_refused(const char *text, const char *why) {
  struct claim_place p = {.n = 7};
  struct err e = ERR_INIT;
  if (claim_place_parse(text, &p, &e) != -EINVAL) fail_msg("'%s' was let in", text);
  if (!strstr(e.text, why)) fail_msg("'%s' does not say '%s'", e.text, why);
  assert_int_equal(p.n, 7);
}

UNIT_TEST(test_refused) {
  char longest[CLAIM_PLACE_MAX + 2];
  struct claim_place p;
  check_refused("", "give the absolute path of a folder");
  check_refused("claims", "\"claims\" is neither: give the absolute path of a folder");
  check_refused("~/claims", "absolute path");
  check_refused("http://a:2379", "etcd://HOST:PORT");
  check_refused("etcd:/a", "etcd://HOST:PORT");
  check_refused("etcd://", "an address is missing");
  check_refused("etcd://a:1,", "an address is missing beside a comma");
  check_refused("etcd://:2379", "the host in front of the colon is missing");
  check_refused("etcd://a:0", "port 0 cannot be connected to");
  check_refused("etcd://a,a:2379", "a:2379 is named twice");
  check_refused("etcd://a/x", "letters, digits");
  check_refused("etcd://a,b,c,d,e,f,g,h,i", "more than 8 addresses");
  check_refused("/a\nb", "a control character is in it");
  memset(longest, 'x', sizeof(longest));
  longest[0] = '/';
  longest[CLAIM_PLACE_MAX + 1] = '\0';
  check_refused(longest, "longer than 1023 characters");
  longest[CLAIM_PLACE_MAX] = '\0';
  assert_int_equal(claim_place_parse(longest, &p, NULL), 0);
}
