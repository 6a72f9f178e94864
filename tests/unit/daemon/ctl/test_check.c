/* SPDX-License-Identifier: Apache-2.0 */
/* rdzvctl check: the table and the heat map. */

#include "daemon/ctl/check.h"

#include <stdio.h>
#include <string.h>
#include "tests/rig/unit.h"

static const char three[] =
    "{\"ok\":true,\"job\":\"a<b\",\"found\":true,\"complete\":true,\"took_ms\":1200,\"sentence\":\"host n2 has a network fault\",\"hosts\":"
    "[{\"host\":\"n0\",\"fault\":false},{\"host\":\"n1\",\"fault\":false},{\"host\":\"n2\",\"fault\":true}],\"pairs\":["
    "{\"a\":0,\"b\":1,\"is\":\"good\",\"over\":\"NCCL\",\"bytes\":16777216,\"out_us\":8000,\"in_us\":4000,\"rtt_us\":90},"
    "{\"a\":0,\"b\":2,\"is\":\"bad\",\"over\":\"NCCL\",\"bytes\":65536,\"out_us\":50000,\"in_us\":60000,\"rtt_us\":900},"
    "{\"a\":1,\"b\":2,\"is\":\"bad\",\"text\":\"no connection in 3.0 s\"}]}";

UNIT_TEST(test_the_table) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  assert_true(check_put_table(&out, three, sizeof three - 1));
  assert_string_equal(
      buf_text(&out),
      "#                                       from a to b                 from b to a\n"
      "# a     b          size      time    algbw    busbw      time    algbw    busbw     trip  over\n"
      "#                   (B)      (us)   (GB/s)   (GB/s)      (us)   (GB/s)   (GB/s)     (us)  \n"
      "  n0    n1     16777216      4000    4.194    4.194      8000    2.097    2.097       90  NCCL\n"
      "  n0    n2        65536     60000    0.001    0.001     50000    0.001    0.001      900  NCCL  <- host n2\n"
      "  n1    n2    no connection in 3.0 s  <- host n2\n"
      "# host n2 has a network fault\n"
      "# 3 hosts, 3 exchanges in 1.2 s\n");
}

static size_t count(const char *text, const char *part) {
  size_t n = 0;
  for (const char *at = text; (at = strstr(at, part)); at++) n++;
  return n;
}

UNIT_TEST(test_the_heat_map) {
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  assert_true(check_put_svg(&out, three, sizeof three - 1));
  const char *svg = buf_text(&out);
  assert_int_equal(count(svg, "<title>"), 6); /* both directions of each pair */
  assert_non_null(strstr(svg, "<title>n0 to n1: 4.194 GB/s over NCCL, round trip 90 us</title>"));
  assert_non_null(strstr(svg, "<title>n1 to n0: 2.097 GB/s over NCCL, round trip 90 us</title>"));
  assert_non_null(strstr(svg, "<title>n2 to n1: no connection in 3.0 s</title>"));
  assert_non_null(strstr(svg, ">a&lt;b: host n2 has a network fault</text>"));
  assert_int_equal(count(svg, "font-weight=\"bold\">n2</text>"), 2);
  assert_non_null(strstr(svg, "fill=\"#fff7d6\"><title>n0 to n1")); /* the best is the lightest */
  assert_non_null(strstr(svg, "fill=\"#a50026\"><title>n0 to n2"));
  assert_string_equal(svg + out.len - 7, "</svg>\n");
}

UNIT_TEST(test_answers_that_make_no_sense) {
  static const char *const bad[] = {"",
                                    "no JSON",
                                    "{}",
                                    "{\"hosts\":[],\"pairs\":3}",
                                    "{\"hosts\":[{\"host\":\"n0\"}],\"pairs\":[{\"a\":0,\"b\":1}]}",
                                    "{\"hosts\":[{\"host\":\"n0\"}],\"pairs\":[{\"a\":-1,\"b\":0}]}"};
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    assert_false(check_put_table(&out, bad[i], strlen(bad[i])));
    assert_false(check_put_svg(&out, bad[i], strlen(bad[i])));
  }
  assert_int_equal(out.len, 0);
}
