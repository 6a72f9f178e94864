/* SPDX-License-Identifier: Apache-2.0 */
/* The lines between rdzvd and its helper. */

#include "daemon/claim/line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

UNIT_TEST(test_requests) {
  static const char content[] = "{\"daemon\":\"\xc3\xbc\",\"line\":\"\n\"}";
  struct buf b = BUF_INIT;
  struct claim_request r;
  assert_int_equal(claim_put_request(&b, 7, false, "1000/j/i/3", content, strlen(content), NULL), 0);
  assert_ptr_equal(strchr(b.data, '\n'), b.data + b.len - 1);
  assert_int_equal(claim_read_request(b.data, b.len - 1, &r, NULL), 0);
  assert_true(r.serial == 7);
  assert_string_equal(r.name, "1000/j/i/3");
  assert_string_equal(r.content, content);
  claim_request_finish(&r);
  buf_clear(&b);
  assert_int_equal(claim_put_request(&b, 8, true, "1000/j/", "ended success 0", 15, NULL), 0);
  assert_string_equal(buf_text(&b), "{\"serial\":8,\"end\":\"1000/j/\",\"content\":\"ended success 0\"}\n");
  assert_int_equal(claim_read_request(b.data, b.len - 1, &r, NULL), 0);
  assert_true(r.ends && !r.run);
  assert_string_equal(r.content, "ended success 0");
  claim_request_finish(&r);
  static const char by_hand[] = "{\"serial\":8,\"end\":\"1000/j/\"}";
  assert_int_equal(claim_read_request(by_hand, strlen(by_hand), &r, NULL), 0);
  assert_string_equal(r.content, CLAIM_ENDED);
  claim_request_finish(&r);
  buf_clear(&b);
  assert_int_equal(claim_put_request(&b, 9, false, "1000/j/i/", "x", 1, NULL), 0);
  assert_string_equal(buf_text(&b), "{\"serial\":9,\"run\":\"1000/j/i/\",\"content\":\"x\"}\n");
  assert_int_equal(claim_read_request(b.data, b.len - 1, &r, NULL), 0);
  assert_true(r.run && !r.ends);
  assert_string_equal(r.name, "1000/j/i/");
  assert_string_equal(r.content, "x");
  claim_request_finish(&r);
  buf_finish(&b);
}

UNIT_TEST(test_the_longest_request) {
  static char name[CLAIM_NAME_MAX + 2], content[CLAIM_CONTENT_MAX + 1];
  struct buf b = BUF_INIT;
  struct claim_request r;
  memset(name, '\x01', CLAIM_NAME_MAX);
  memset(content, '\x01', CLAIM_CONTENT_MAX);
  assert_int_equal(claim_put_request(&b, UINT32_MAX, false, name, content, CLAIM_CONTENT_MAX, NULL), 0);
  assert_true(b.len <= CLAIM_LINE_MAX);
  assert_int_equal(claim_read_request(b.data, b.len - 1, &r, NULL), 0);
  assert_int_equal(strlen(r.content), CLAIM_CONTENT_MAX);
  claim_request_finish(&r);
  name[CLAIM_NAME_MAX] = 'x';
  assert_int_equal(claim_put_request(&b, 1, false, name, "", 0, NULL), -EINVAL);
  assert_int_equal(claim_put_request(&b, 1, false, "n", content, CLAIM_CONTENT_MAX + 1, NULL), -EINVAL);
  assert_int_equal(claim_put_request(&b, 1, false, "", "", 0, NULL), -EINVAL);
  assert_int_equal(claim_put_request(&b, 1, false, "n", "a\0b", 3, NULL), -EINVAL);
  assert_int_equal(claim_put_request(&b, 1, false, "n", "\xff", 1, NULL), -EINVAL);
  buf_finish(&b);
}

UNIT_TEST(test_replies) {
  static const enum claim_answer answers[] = {CLAIM_WON, CLAIM_TAKEN, CLAIM_FAILED};
  for (size_t i = 0; i < 3; i++) {
    struct buf b = BUF_INIT;
    struct claim_reply r;
    claim_put_reply(&b, i, answers[i], "a\n\xff");
    assert_int_equal(claim_read_reply(b.data, b.len - 1, &r, NULL), 0);
    assert_true(r.serial == i && r.answer == answers[i]);
    assert_string_equal(r.text, "a\n\xef\xbf\xbd");
    claim_reply_finish(&r);
    buf_finish(&b);
  }
}

UNIT_TEST(test_refused) {
  static const char *const requests[] = {"",
                                         "x",
                                         "[]",
                                         "{}",
                                         "{\"serial\":0,\"end\":\"a/\"}",
                                         "{\"serial\":-1,\"end\":\"a/\"}",
                                         "{\"serial\":1}",
                                         "{\"serial\":1,\"create\":\"a\"}",
                                         "{\"serial\":1,\"end\":\"a/\",\"content\":1}",
                                         "{\"serial\":1,\"create\":\"a\",\"end\":\"a/\",\"content\":\"x\"}",
                                         "{\"serial\":1,\"run\":\"a/\"}",
                                         "{\"serial\":1,\"run\":\"a/\",\"create\":\"a\",\"content\":\"x\"}",
                                         "{\"serial\":1,\"run\":\"a/\",\"end\":\"a/\",\"content\":\"x\"}",
                                         "{\"serial\":1,\"create\":7,\"content\":\"x\"}"};
  static const char *const replies[] = {"{}", "{\"serial\":1,\"answer\":\"lost\",\"text\":\"\"}",
                                        "{\"serial\":1,\"answer\":\"won\"}", "{\"answer\":\"won\",\"text\":\"\"}"};
  struct claim_request q;
  struct claim_reply r;
  struct err e;
  for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
    e = (struct err)ERR_INIT;
    if (claim_read_request(requests[i], strlen(requests[i]), &q, &e) != -EBADMSG) fail_msg("taken: %s", requests[i]);
    assert_true(e.text[0]);
  }
  for (size_t i = 0; i < sizeof replies / sizeof *replies; i++)
    assert_int_equal(claim_read_reply(replies[i], strlen(replies[i]), &r, &e), -EBADMSG);
}
