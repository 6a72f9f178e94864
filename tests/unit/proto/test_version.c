/* SPDX-License-Identifier: Apache-2.0 */
/* Which releases work together, what is not sent to whom, and how an unknown word reads. */
#include "proto/version.h"

#include <errno.h>
#include <string.h>
#include "common/json.h"
#include "proto/codec.h"
#include "proto/msg.h"
#include "tests/rig/unit.h"

UNIT_TEST(test_neighbours_fit) {
  enum { V = PROTO_VERSION, O = PROTO_OLDEST };
  static const struct {
    int version, oldest;
    bool fits;
  } cases[] = {{V, O, true},      {V, 0, true},          {V + 1, V, true}, {V + 1, V + 1, false},
               {V + 1, 0, false}, {V + 2, V + 1, false}, {O, O, true},     {O - 1, 0, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    assert_int_equal(release_fits((struct release){"", cases[i].version, cases[i].oldest}), cases[i].fits);
}

static const char *sentence(struct release peer, const char *who, const char *ours) {
  static struct err e;
  e = (struct err)ERR_INIT;
  assert_int_equal(release_check(peer, who, ours, &e), -EPROTO);
  return e.text;
}

UNIT_TEST(test_a_sentence_names_both_releases) {
  assert_string_equal(sentence((struct release){"0.4.0", 4, 3}, "rdzvd at gpu1:29400", "rdzvctl"),
                      "rdzvd at gpu1:29400 has release 0.4.0 (protocol 3 to 4), and this rdzvctl " RDZV_VERSION
                      " (protocol 1): upgrade rdzv where it is " RDZV_VERSION);
  assert_string_equal(sentence((struct release){"0.0.1", 0, 0}, "its rdzv-agent", "rdzvd"),
                      "its rdzv-agent has release 0.0.1 (protocol 0), and this rdzvd " RDZV_VERSION
                      " (protocol 1): upgrade rdzv where it is 0.0.1");
  assert_string_equal(sentence((struct release){"", 0, 0}, "its rdzv-agent", "rdzvd"),
                      "its rdzv-agent has release (protocol 0), and this rdzvd " RDZV_VERSION
                      " (protocol 1): upgrade rdzv where it is older");
  assert_int_equal(release_check((struct release){"", PROTO_VERSION, PROTO_OLDEST}, "it", "rdzvd", NULL), 0);
}

UNIT_TEST(test_a_release_as_a_word) {
  SCOPED(buf_finish) struct buf own = BUF_INIT;
  char name[RELEASE_MAX + 1];
  release_put(&own);
  struct release r = release_parse(own.data, own.len, name);
  assert_true(release_fits(r));
  assert_string_equal(r.name, RDZV_VERSION);
  r = release_parse("0.4.0/4/3 and more", 9, name);
  assert_int_equal(r.version, 4);
  assert_int_equal(r.oldest, 3);
  assert_string_equal(name, "0.4.0");
  static const char more[] =
      "0.4.0/2/1/tidings and much that this release does not know, for example words of features";
  r = release_parse(more, strlen(more), name);
  assert_int_equal(r.version, 2);
  assert_true(release_fits(r));
  static const char *const bad[] = {"",
                                    "0.1.0",
                                    "0.1.0/",
                                    "0.1.0/1",
                                    "0.1.0/1/",
                                    "0.1.0/1/2",
                                    "0.1.0/1/0",
                                    "0.1.0/x/1",
                                    "0.1.0/1/1x",
                                    "0.1.0/65536/1",
                                    "0.1.0/99999999999999999999/1",
                                    "0123456789012345678901234567890123456789012345678901234567890123456789/1/1"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_false(release_fits(release_parse(bad[i], strlen(bad[i]), name)));
}

UNIT_TEST(test_words_of_features) {
  assert_int_equal(features_of(features_words()), (UINT64_C(1) << FEATURE_COUNT) - 1);
  assert_int_equal(features_of(""), 0);
  assert_int_equal(features_of("tidings pace  factsfacts pairs"), FEATURE_PACE | FEATURE_PAIRS);
  assert_int_equal(features_of("fact "), 0);
}

UNIT_TEST(test_a_message_goes_to_a_peer_that_knows_it) {
  static const struct {
    enum msg_type type;
    uint64_t needs;
  } cases[] = {
      {MSG_FACTS, FEATURE_FACTS}, {MSG_NOTICE, FEATURE_NOTICE}, {MSG_PAIR, FEATURE_PAIRS}, {MSG_PAIRED, FEATURE_PAIRS},
      {MSG_PACE, FEATURE_PACE},   {MSG_HEARTBEAT, 0},           {MSG_GREETING, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct frame f = {.type = (uint16_t)cases[i].type};
    char header[FRAME_HEADER_SIZE];
    frame_put_header(header, &f);
    struct bytes *b = bytes_create(header, sizeof header);
    assert_true(msg_is_known(b, cases[i].needs));
    assert_int_equal(msg_is_known(b, ~cases[i].needs), cases[i].needs == 0);
    bytes_unref(b);
  }
}

static int read_settings(const char *scale_up, struct settings *s) {
  SCOPED(buf_finish) struct buf text = BUF_INIT;
  buf_printf(&text,
             "{\"min_nodes\":1,\"max_nodes\":1,\"lease_ms\":1000,\"join_timeout_ms\":1,\"max_restarts\":0,"
             "\"last_call_ms\":0,\"stop_timeout_ms\":0,\"scale_up\":\"%s\"}",
             scale_up);
  json_t *json = json_parse_object(text.data, text.len, NULL);
  int rc = settings_from_json(json, s, NULL);
  json_decref(json);
  return rc;
}

/* A cause of a later release is shown as one that this release does not know. A setting of one cannot be kept. */
UNIT_TEST(test_a_word_of_a_later_release) {
  struct verdict v;
  struct settings s;
  json_t *json = json_pack("{s:s, s:s, s:s}", "cause", "worker-melted", "lasting", "melted", "text", "the GPU melted");
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  assert_int_equal(verdict_from_json(json, &v, NULL), 0);
  assert_int_equal(v.cause, CAUSE_OTHER);
  assert_int_equal(v.lasting, LASTING_NO);
  assert_true(cause_costs_restart(v.cause));
  verdict_sentence(&v, &out);
  assert_string_equal(buf_text(&out), "the GPU melted");
  json_decref(json);
  assert_int_equal(read_settings("now", &s), 0);
  assert_true(read_settings("tomorrow", &s) < 0);
}
