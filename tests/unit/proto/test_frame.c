/* SPDX-License-Identifier: Apache-2.0 */
/* frame: the header's layout, limits, truncation, flipped bytes, and whose first bytes these are. */

#include "proto/frame.h"
#include "tests/rig/frame.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static const struct frame sample = {
    .type = 0x0102, .flags = 0x0304, .id = 0x05060708, .json = "{}", .json_len = 2, .raw = "raw", .raw_len = 3};

static void put_sample(struct buf *b) {
  frame_put(b, &sample);
}

UNIT_TEST(test_layout) {
  static const char expected[] = "\x05\0\0\0\x02\x01\x04\x03\x08\x07\x06\x05\x02\0\0\0{}raw";
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  put_sample(&b);
  assert_int_equal(b.len, sizeof(expected) - 1);
  assert_memory_equal(b.data, expected, b.len);
}

UNIT_TEST(test_round_trip) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  put_sample(&b);
  put_sample(&b);
  struct frame f;
  size_t size;
  assert_int_equal(frame_parse(b.data, b.len, 5, &f, &size, NULL), 1);
  assert_int_equal(size, 21);
  assert_int_equal(f.type, sample.type);
  assert_int_equal(f.flags, sample.flags);
  assert_int_equal(f.id, sample.id);
  assert_int_equal(f.json_len, 2);
  assert_memory_equal(f.json, "{}", 2);
  assert_int_equal(f.raw_len, 3);
  assert_memory_equal(f.raw, "raw", 3);
}

UNIT_TEST(test_empty_body) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  frame_put(&b, &(struct frame){.type = 1});
  assert_int_equal(b.len, FRAME_HEADER_SIZE);
  struct frame f;
  size_t size;
  assert_int_equal(frame_parse(b.data, b.len, 0, &f, &size, NULL), 1);
  assert_int_equal(size, FRAME_HEADER_SIZE);
  assert_int_equal(f.json_len + f.raw_len, 0);
}

UNIT_TEST(test_every_truncation_asks_for_more) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  put_sample(&b);
  for (size_t n = 0; n < b.len; n++) {
    char *exact = malloc(n ? n : 1); /* so that ASan sees a read behind its end */
    memcpy(exact, b.data, n);
    struct frame f;
    size_t size = 0;
    assert_int_equal(frame_parse(exact, n, 5, &f, &size, NULL), 0);
    assert_int_equal(size, n < FRAME_HEADER_SIZE ? FRAME_HEADER_SIZE : b.len);
    free(exact);
  }
}

UNIT_TEST(test_limits) {
  char header[FRAME_HEADER_SIZE] = {0};
  struct frame f;
  struct err e = ERR_INIT;
  size_t size;
  le32_put(header, 101);
  assert_int_equal(frame_parse(header, sizeof(header), 100, &f, &size, &e), -EMSGSIZE);
  assert_string_equal(e.text, "a frame of 101 bytes is longer than the 100 allowed here");
  assert_int_equal(frame_parse(header, sizeof(header), 101, &f, &size, NULL), 0);
  assert_int_equal(size, FRAME_HEADER_SIZE + 101);
  le32_put(header, UINT32_MAX);
  assert_int_equal(frame_parse(header, sizeof(header), FRAME_MAX_TO_AGENT, &f, &size, &e), -EMSGSIZE);
  le32_put(header, 10);
  le32_put(header + 12, 11);
  assert_int_equal(frame_parse(header, sizeof(header), 100, &f, &size, &e), -EPROTO);
  assert_string_equal(e.text, "a frame's JSON (11 bytes) is longer than the frame (10 bytes)");
  le32_put(header + 12, UINT32_MAX);
  assert_int_equal(frame_parse(header, sizeof(header), 100, &f, &size, NULL), -EPROTO);
}

/* Whatever a header says: refused, or parts that lie within the data. */
UNIT_TEST(test_every_header_byte_to_every_value) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  put_sample(&b);
  for (size_t at = 0; at < FRAME_HEADER_SIZE; at++) {
    for (int v = 0; v < 256; v++) {
      char was = b.data[at];
      b.data[at] = (char)v;
      struct frame f;
      struct err e = ERR_INIT;
      size_t size = 0;
      int rc = frame_parse(b.data, b.len, FRAME_MAX_UNIDENTIFIED, &f, &size, &e);
      assert_true(rc == 1 || rc == 0 || rc == -EPROTO || rc == -EMSGSIZE);
      if (rc < 0) assert_true(e.text[0] != '\0');
      if (rc == 0) assert_true(size > b.len && size <= FRAME_HEADER_SIZE + FRAME_MAX_UNIDENTIFIED);
      if (rc == 1) {
        assert_true(size <= b.len);
        assert_ptr_equal(f.json, b.data + FRAME_HEADER_SIZE);
        assert_ptr_equal(f.raw, f.json + f.json_len);
        assert_ptr_equal(f.raw + f.raw_len, b.data + size);
      }
      b.data[at] = was;
    }
  }
}

static const struct {
  const char *bytes;
  size_t len;
  enum frame_protocol protocol;
  size_t decided_at; /* with fewer bytes: MORE */
} firsts[] = {
    {"RDZV\x01\0\0\0", 8, FRAME_PROTOCOL_RDZV, 4},
    {"RDZV\x02\0\0\0", 8, FRAME_PROTOCOL_RDZV, 4},
    {"\x00\xce\xf7\x85\x3c", 5, FRAME_PROTOCOL_C10D, 5},
    {"\x00\x05\0\0\0\0\0\0\0", 9, FRAME_PROTOCOL_C10D_OLD, 2},
    {"\x00\xce\xf7\0\0", 5, FRAME_PROTOCOL_C10D_OLD, 4},
    {"\x01\x05", 2, FRAME_PROTOCOL_C10D_OLD, 1},
    {"\x0b", 1, FRAME_PROTOCOL_C10D_OLD, 1},
    {"\x0c", 1, FRAME_PROTOCOL_UNKNOWN, 1},
    {"GET / HTTP/1.1", 14, FRAME_PROTOCOL_HTTP, 4},
    {"HEAD /", 6, FRAME_PROTOCOL_HTTP, 5},
    {"POST /", 6, FRAME_PROTOCOL_HTTP, 5},
    {"PUT /", 5, FRAME_PROTOCOL_HTTP, 4},
    {"DELETE /", 8, FRAME_PROTOCOL_HTTP, 7},
    {"OPTIONS *", 9, FRAME_PROTOCOL_HTTP, 8},
    {"GETTING", 7, FRAME_PROTOCOL_UNKNOWN, 4},
    {"get /", 5, FRAME_PROTOCOL_UNKNOWN, 1},
    {"RDZX", 4, FRAME_PROTOCOL_UNKNOWN, 4},
    {"SSH-2.0-x", 9, FRAME_PROTOCOL_UNKNOWN, 1},
    {"\x16\x03\x01", 3, FRAME_PROTOCOL_UNKNOWN, 1},
    {"\xff", 1, FRAME_PROTOCOL_UNKNOWN, 1},
};

UNIT_TEST(test_detect) {
  assert_int_equal(frame_detect("", 0), FRAME_PROTOCOL_MORE);
  for (size_t i = 0; i < sizeof(firsts) / sizeof(firsts[0]); i++)
    for (size_t n = 1; n <= firsts[i].len; n++) {
      enum frame_protocol expected = n < firsts[i].decided_at ? FRAME_PROTOCOL_MORE : firsts[i].protocol;
      assert_int_equal(frame_detect(firsts[i].bytes, n), expected);
    }
  assert_memory_equal(frame_preface, "RDZV\x01\0\0\0", FRAME_PREFACE_SIZE);
}

UNIT_TEST(test_protocol_names_differ) {
  for (int p = FRAME_PROTOCOL_UNKNOWN; p <= FRAME_PROTOCOL_HTTP; p++)
    for (int q = FRAME_PROTOCOL_UNKNOWN; q < p; q++)
      assert_string_not_equal(frame_protocol_name((enum frame_protocol)p), frame_protocol_name((enum frame_protocol)q));
}
