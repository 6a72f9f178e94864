/* SPDX-License-Identifier: Apache-2.0 */
/* c10d_session: what PyTorch's clients send and are answered, byte for byte as PyTorch 2.13's own server answers (it
 * was asked; where we differ, PROTOCOL.md says so), in every numbering; requests cut at every byte; what is refused. */

#include "proto/c10d_session.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/c10d.h"
#include "tests/rig/unit.h"

static struct c10d_test t;

static int setup(void **state) {
  c10d_test_init(&t, NULL);
  return 0;
}

static int setup_greeted(void **state) {
  c10d_test_init(&t, NULL);
  for (int n = 0; n < 8; n++) c10d_greet(&t, n);
  return 0;
}

static int teardown(void **state) {
  c10d_test_finish(&t);
  return 0;
}

static void ask(int n, const char *request, const char *reply) {
  c10d_ask(&t, n, request, reply);
}

static void refused(int n, const char *request, int rc, const char *sentence) {
  assert_int_equal(c10d_send_text(&t, n, request), rc);
  assert_non_null(strstr(t.err.text, sentence));
}

/* A new client in place of n, greeted. */
static void renew(int n) {
  c10d_session_finish(&t.sessions[n], 0);
  c10d_session_init(&t.sessions[n], t.store, &t.sessions[n]);
  buf_clear(&t.in[n]);
  buf_clear(&t.out[n]);
  c10d_greet(&t, n);
}

/* As PyTorch 2.6's client and server were seen to talk. */
UNIT_TEST_WITH(test_golden_trace, setup, teardown) {
  ask(0, "00cef7853c 0d 31580000", "31580000");
  ask(0, "01 02000000000000002f6b 02000000000000007631", "");
  ask(0, "06 0100000000000000 02000000000000002f6b", "00");
  ask(0, "03 02000000000000002f6b", "0200000000000000 7631");
  ask(0, "01 02000000000000002f6e 010000000000000035", "");
  ask(0, "04 02000000000000002f6e f9ffffffffffffff", "feffffffffffffff");
  ask(0, "02 02000000000000002f63 0000000000000000 010000000000000058", "010000000000000058");
  ask(0, "05 0200000000000000 02000000000000002f6b 03000000000000002f7a7a", "01");
  ask(0, "09 02000000000000002f61 02000000000000003132", "");
  ask(0, "0b 0200000000000000 '/m1' 'A' '/m2' 'B'", "");
  ask(0, "06 0200000000000000 '/m1' '/m2'", "00");
  ask(0, "0a 0200000000000000 '/m1' '/m2'", "'A' 'B'");
  ask(0, "07", "0600000000000000");
  ask(0, "08 02000000000000002f6b", "0100000000000000");
  ask(0, "06 0100000000000000 '/late'", "");
  ask(0, "0c", "01");
  ask(0, "04 0500000000000000 696e69742f 0100000000000000", "0100000000000000");
}

UNIT_TEST_WITH(test_keys, setup_greeted, teardown) {
  ask(0, "03 '/none'", "''");
  ask(0, "01 '' 'v' 03 ''", "'v'"); /* the empty key is one */
  ask(0, "01 '/k' 'longer than it was' 01 '/k' '' 03 '/k'", "''");
  ask(0, "0a #2 '/none' ''", "'' 'v'");
  ask(0, "0a #0 0b #0 0d 61626364", "61626364");
  ask(0, "07", "#2");
  ask(0, "11", "#2 '' '/k'");
  ask(0, "08 '/k' 08 '/k'", "#1 #0");
  ask(0, "09 '/a' '' 05 #1 '/a'", "00"); /* APPEND of nothing makes a key */
  ask(0, "09 '/a' '12' 09 '/a' '3' 03 '/a'", "'123'");
  ask(0, "05 #0 06 #0", "00 00");
}

UNIT_TEST_WITH(test_compare_set, setup_greeted, teardown) {
  ask(0, "02 '/c' 'e' 'd'", "'e'"); /* absent, expected something: nothing is stored and that is the answer */
  ask(0, "05 #1 '/c'", "01");
  ask(0, "02 '/c' '' 'd'", "'d'");
  ask(0, "02 '/c' 'e' 'f'", "'d'");
  ask(0, "02 '/c' 'd' 'f'", "'f'");
  ask(0, "02 '/c' '' 'g'", "'f'");
  ask(0, "01 '/c' '' 02 '/c' '' 'g'", "'g'");
}

UNIT_TEST_WITH(test_compare_set_wakes_always, setup_greeted, teardown) {
  ask(1, "06 #1 '/c'", "");
  ask(0, "02 '/c' 'e' 'd'", "'e'");
  c10d_expect(&t, 1, "00");
  ask(0, "07", "#0");
}

UNIT_TEST_WITH(test_add, setup_greeted, teardown) {
  static const struct {
    const char *value, *total, *stored;
  } good[] = {{"' 12abc'", "#13", "'13'"},
              {"'+5'", "#6", "'6'"},
              {"'-1'", "#0", "'0'"},
              {"0400000000000000 0b0c0d35", "#6", "'6'"},
              {"0400000000000000 090a2037", "#8", "'8'"},
              {"0300000000000000 310032", "#2", "'2'"},
              {"'0x10'", "#1", "'1'"},
              {"'0000000000000000000000000000007'", "#8", "'8'"},
              {"'9223372036854775807'", "0000000000000080", "'-9223372036854775808'"},
              {"'-9223372036854775808'", "0100000000000080", "'-9223372036854775807'"}};
  static const char *const bad[] = {"''",
                                    "'abc'",
                                    "'-'",
                                    "'+'",
                                    "'- 5'",
                                    "'--5'",
                                    "' '",
                                    "0200000000000000 0032",
                                    "0300000000000000 c2a035",
                                    "'9223372036854775808'",
                                    "'-9223372036854775809'",
                                    "'99999999999999999999'"};
  char text[256];
  for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
    snprintf(text, sizeof(text), "01 '/n' %s", good[i].value);
    char reply[128];
    ask(0, text, "");
    snprintf(reply, sizeof(reply), "%s %s", good[i].total, good[i].stored);
    ask(0, "04 '/n' #1 03 '/n'", reply);
  }
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    snprintf(text, sizeof(text), "01 '/n' %s", bad[i]);
    ask(0, text, "");
    refused(0, "04 '/n' #1", -EINVAL, "ADD: ADD to a key whose value is not a number");
    renew(0);
  }
  ask(0, "01 '/n' '9223372036854775807' 04 '/n' #2 04 '/n' #-3", "0100000000000080 feffffffffffff7f");
  ask(0, "04 '/fresh' #0 03 '/fresh' 04 '/fresh' #-5 03 '/fresh'", "#0 '0' #-5 '-5'");
}

UNIT_TEST_WITH(test_wait, setup_greeted, teardown) {
  ask(0, "06 #2 '/a' '/b'", "");
  ask(1, "01 '/a' ''", "");
  ask(1, "08 '/a'", "#1"); /* deleted again: it was seen */
  c10d_expect(&t, 0, "");
  ask(0, "0d 61626364", "61626364"); /* others are served meanwhile */
  ask(1, "09 '/b' 'x'", "");
  c10d_expect(&t, 0, "00");
  ask(0, "06 #1 '/b'", "00");
  ask(0, "06 #3 '/d' '/b' '/d'", ""); /* named twice: counted twice, seen twice at once */
  ask(1, "04 '/d' #1", "#1");
  c10d_expect(&t, 0, "00");
}

UNIT_TEST_WITH(test_several_waits, setup_greeted, teardown) {
  ask(0, "06 #1 '/a' 06 #1 '/b' 06 #1 '/a'", "");
  ask(1, "01 '/b' ''", "");
  c10d_expect(&t, 0, "00");
  ask(1, "01 '/a' ''", "");
  c10d_expect(&t, 0, "00 00");
  ask(0, "06 #1 '/c' 06 #1 '/d' 0c", "01"); /* one CANCEL_WAIT for all */
  ask(1, "01 '/c' '' 01 '/d' ''", "");
  c10d_expect(&t, 0, "");
}

UNIT_TEST_WITH(test_own_answers_are_in_order, setup_greeted, teardown) {
  ask(0, "06 #1 '/a' 01 '/a' '' 0d 61626364", "00 61626364");
  ask(0, "06 #1 '/b' 01 '/b' '' 0c 06 #0", "00 01 00");
  ask(0, "06 #1 '/n' 04 '/n' #1 0d 61626364", "00 #1 61626364"); /* before the reply of what ended it */
  ask(0, "0c", "01");
}

/* Another's SET and this one's CANCEL_WAIT cross: the answer to the wait stands first, even if the owner was late to
 * ask for it. */
UNIT_TEST_WITH(test_release_stands_before_cancel, setup_greeted, teardown) {
  ask(0, "06 #1 '/a'", "");
  size_t used;
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  c10d_bytes(&b, "01 '/a' ''");
  assert_int_equal(c10d_session_feed(&t.sessions[1], b.data, b.len, &used, &t.out[1], SIZE_MAX - 1, &t.err), 0);
  ask(0, "0c", "00 01");
  assert_null(store_next_released(t.store));
}

UNIT_TEST_WITH(test_queues, setup_greeted, teardown) {
  ask(0, "0f '/q' 10 '/q'", "#0 #0");
  ask(0, "0e '/q' 'one' 0e '/q' '' 10 '/q'", "#2");
  ask(0, "05 #1 '/q' 06 #1 '/q'", "00 00");                  /* present for CHECK and WAIT */
  ask(0, "07 11 03 '/q' 08 '/q' 10 '/q'", "#0 #0 '' #0 #2"); /* and for nothing else */
  ask(0, "01 '/q' 'key' 0f '/q' 0f '/q' 0f '/q' 03 '/q'", "#2 'one' #1 '' #0 'key'");
  ask(0, "08 '/q' 05 #1 '/q'", "#1 01");
}

UNIT_TEST_WITH(test_push_wakes_one, setup_greeted, teardown) {
  ask(0, "06 #1 '/q'", "");
  ask(1, "06 #1 '/q'", "");
  ask(2, "0e '/q' 'v'", "");
  c10d_expect(&t, 0, "00");
  c10d_expect(&t, 1, "");
  ask(2, "0e '/q' 'v'", "");
  c10d_expect(&t, 0, "");
  c10d_expect(&t, 1, "00");
  /* Who waits for more than the queue has seen it and goes on waiting; the element goes to the next. */
  ask(0, "06 #2 '/r' '/z'", "");
  ask(1, "06 #1 '/r'", "");
  ask(2, "0e '/r' 'v'", "");
  c10d_expect(&t, 1, "00");
  ask(2, "0e '/r' 'v'", "");
  c10d_expect(&t, 0, "");
  ask(2, "01 '/z' ''", "");
  c10d_expect(&t, 0, "00");
  ask(0, "06 #2 '/d' '/d'", "");
  ask(2, "0e '/d' 'v'", "");
  c10d_expect(&t, 0, "00");
}

UNIT_TEST_WITH(test_barrier, setup_greeted, teardown) {
  ask(0, "12 '/b' #2", "");
  ask(2, "03 '/b'", "'1'");
  ask(1, "12 '/b' #2", "00");
  c10d_expect(&t, 0, "00");
  ask(2, "12 '/b' #2 03 '/b'", "00 '3'"); /* never reset */
  ask(0, "12 '/zero' #0 12 '/minus' #-1", "00 00");
  ask(0, "12 '/c' #3", "");
  ask(1, "12 '/c' #3", "");
  c10d_expect(&t, 0, "");
  ask(0, "0c", "01"); /* who gives up was counted */
  ask(2, "12 '/c' #3", "00");
  c10d_expect(&t, 0, "");
  c10d_expect(&t, 1, "00");
}

/* It waits for its key as any other: whoever stores there releases, and the last of a smaller one too; its own
 * counting does not. */
UNIT_TEST_WITH(test_barrier_is_a_wait, setup_greeted, teardown) {
  ask(0, "12 '/a' #3", "");
  ask(2, "01 '/a' '1'", "");
  c10d_expect(&t, 0, "00");
  ask(0, "12 '/b' #3", "");
  ask(2, "04 '/b' #1", "#2");
  c10d_expect(&t, 0, "00");
  ask(0, "12 '/c' #3", "");
  ask(1, "12 '/c' #2", "00");
  c10d_expect(&t, 0, "00");
  ask(0, "06 #1 '/d'", "");
  ask(1, "12 '/d' #2", "");
  c10d_expect(&t, 0, "");
  ask(2, "12 '/d' #2", "00");
  c10d_expect(&t, 0, "00");
  c10d_expect(&t, 1, "00");
  ask(2, "01 '/text' 'abc'", "");
  refused(2, "12 '/text' #2", -EINVAL, "BARRIER: ADD to a key");
}

UNIT_TEST_WITH(test_numbering_2_1, setup, teardown) {
  ask(0, "00 '/k' 'v1' 02 '/k' 01 '/c' '' 'x' 03 '/n' #4 04 #1 '/k' 05 #1 '/k' 06", "'v1' 'x' #4 00 00 #3");
  ask(0, "07 '/k' 08 '/a' 'b' 0a #1 '/m' '1' 09 #2 '/a' '/m' 05 #1 '/w' 0b", "#1 'b' '1' 01");
  refused(0, "0c", -EPROTO, "no operation has this number");
}

UNIT_TEST_WITH(test_numbering_1_13, setup, teardown) {
  t.sessions[0].companion = true;
  ask(0, "00 '/k' 'v1' 08 '/k' 02 '/k' 07 '/watched' 06", "#1 '' #0");
  refused(0, "09 #0", -EPROTO, "no operation has this number");
}

UNIT_TEST_WITH(test_first_bytes, setup, teardown) {
  static const struct {
    const char *bytes;
    int rc;
    const char *sentence;
  } strangers[] = {
      {"474554202f20485454502f312e310d0a", -EPROTO, "the first bytes are not a TCPStore client's"},
      {"0d61626364", -EPROTO, "the first bytes are not a TCPStore client's"},
      {"0c", -EPROTO, "the first bytes are not a TCPStore client's"},
      {"ff", -EPROTO, "the first bytes are not a TCPStore client's"},
      {"00cef7853d", -EPROTO, "neither VALIDATE with its number nor SET as before 2.2"},
      {"0011111111", -EPROTO, "neither VALIDATE with its number nor SET as before 2.2"},
      {"0000000000000001 00", -EMSGSIZE, "not a handshake"},
      {"01 ffffffffffffffff", -EMSGSIZE, "not a handshake"},
  };
  for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++) {
    refused(0, strangers[i].bytes, strangers[i].rc, strangers[i].sentence);
    assert_int_equal(t.out[0].len, 0);
    c10d_session_finish(&t.sessions[0], 0);
    c10d_session_init(&t.sessions[0], t.store, &t.sessions[0]);
    buf_clear(&t.in[0]);
  }
}

UNIT_TEST_WITH(test_handshake, setup, teardown) {
  ask(0, "00", "");
  ask(0, "cef7", "");
  ask(0, "853c", "");
  ask(0, "0d61626364", "61626364");
  refused(0, "00cef7853c", -EPROTO, "VALIDATE: a second VALIDATE");
  ask(1, "00cef7853c", "");
  refused(1, "13", -EPROTO, "no operation has this number");
}

/* Every request cut at every byte is answered as the whole is. */
UNIT_TEST(test_cut_everywhere) {
  static const char *const stories[] = {
      "00cef7853c 0d61626364 01 '/k' 'value' 03 '/k' 02 '/k' 'value' 'w' 04 '/n' #-7 05 #2 '/k' '/zz' 06 #2 "
      "'/k' '/n' 07",
      "00cef7853c 09 '/a' '12' 0b #2 '/x' '1' '' '22' 0a #3 '/x' '' '/none' 08 '/x' 06 #2 '/w' '/w' 0c 0c",
      "00cef7853c 0e '/q' 'e' 0e '/q' '' 10 '/q' 0f '/q' 0f '/q' 0f '/q' 01 '/k' '' 11 12 '/b' #2 12 '/b' #2",
      "00 '/k' 'v1' 02 '/k' 01 '/c' '' 'x' 03 '/n' #4 04 #1 '/k' 05 #1 '/k' 0a #1 '/m' '1' 09 #2 '/k' '/m' "
      "0b"};
  for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++) {
    SCOPED(buf_finish) struct buf all = BUF_INIT, whole = BUF_INIT;
    c10d_bytes(&all, stories[i]);
    for (size_t cut = 0; cut <= all.len + 1; cut++) { /* 0: whole; the last: byte by byte */
      c10d_test_init(&t, NULL);
      size_t step = cut > all.len ? 1 : cut ? cut : all.len;
      for (size_t at = 0; at<all.len; step = cut> all.len ? 1 : all.len - at) {
        assert_int_equal(c10d_send(&t, 0, all.data + at, step), 0);
        at += step;
      }
      assert_int_equal(t.in[0].len, 0);
      if (cut == 0) buf_append(&whole, t.out[0].data, t.out[0].len);
      assert_int_equal(t.out[0].len, whole.len);
      assert_memory_equal(t.out[0].data, whole.data, whole.len);
      c10d_test_finish(&t);
    }
  }
}

/* Who sends a request in many pieces is not looked at anew for each. */
UNIT_TEST_WITH(test_need, setup_greeted, teardown) {
  ask(0, "01 '/k'", "");
  assert_int_equal(t.sessions[0].need, 1 + 10 + 8);
  ask(0, "#1000", "");
  assert_int_equal(t.sessions[0].need, 1 + 10 + 8 + 1000);
  ask(1, "06 #3 '/k' '/l'", "");
  assert_int_equal(t.sessions[1].progress.strings, 2);
  assert_int_equal(t.sessions[1].need, 9 + 20 + 8);
  ask(1, "'' 0c", "01");
  assert_int_equal(t.sessions[1].progress.strings, 0);
  assert_int_equal(t.sessions[1].need, 0);
}

UNIT_TEST_WITH(test_out_max, setup, teardown) {
  SCOPED(buf_finish) struct buf in = BUF_INIT, out = BUF_INIT;
  c10d_bytes(&in, "00cef7853c 01 '/k' '0123456789'");
  for (int i = 0; i < 10; i++) c10d_bytes(&in, "03 '/k'");
  size_t at = 0, used;
  for (int turn = 0; turn < 5; turn++) { /* two replies of 18 bytes are more than 20 */
    assert_int_equal(c10d_session_feed(&t.sessions[0], in.data + at, in.len - at, &used, &out, 20, &t.err), 0);
    at += used;
    assert_int_equal(out.len, 36);
    size_t none;
    assert_int_equal(c10d_session_feed(&t.sessions[0], in.data + at, in.len - at, &none, &out, 20, &t.err), 0);
    assert_int_equal(none, 0);
    buf_clear(&out);
  }
  assert_int_equal(at, in.len);
}

static void put_string(struct buf *b, char fill, size_t len) {
  char n[8];
  le64_put(n, len);
  buf_append(b, n, 8);
  memset(buf_reserve(b, len), fill, len);
  buf_commit(b, len);
}

UNIT_TEST_WITH(test_limits_of_a_request, setup_greeted, teardown) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_putc(&b, C10D_SET);
  put_string(&b, 'k', C10D_KEY_MAX);
  put_string(&b, 'v', C10D_VALUE_MAX);
  buf_puts(&b, "\rabcd"); /* PING */
  assert_int_equal(c10d_send(&t, 0, b.data, b.len), 0);
  c10d_expect(&t, 0, "61626364");
  refused(0, "01 #8193", -EMSGSIZE, "a key of more than 8192 bytes");
  refused(1, "01 '/k' #8388609", -EMSGSIZE, "a value of more than 8388608 bytes");
  refused(2, "02 '/k' #8388609", -EMSGSIZE, "a value of more than 8388608 bytes");
  refused(3, "06 #131073", -EMSGSIZE, "more than 131072 keys in one request");
  refused(4, "0b #-1", -EMSGSIZE, "more than 131072 keys in one request");
  refused(5, "01 #-8", -EMSGSIZE, "a key of more than 8192 bytes");
  refused(6, "0b #2 '/k' #-9", -EMSGSIZE, "a value of more than 8388608 bytes");
}

UNIT_TEST_WITH(test_131072_keys, setup_greeted, teardown) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  char n[8];
  le64_put(n, C10D_KEYS_MAX);
  for (int op = C10D_CHECK; op <= C10D_WAIT; op++) {
    buf_clear(&b);
    buf_putc(&b, (char)op);
    buf_append(&b, n, 8);
    for (int i = 0; i < C10D_KEYS_MAX; i++) {
      char key[16];
      size_t len = (size_t)snprintf(key, sizeof(key), "/%d", i);
      put_string(&b, 0, len);
      memcpy(b.data + b.len - len, key, len);
    }
    assert_int_equal(c10d_send(&t, op == C10D_WAIT, b.data, b.len), 0);
  }
  c10d_expect(&t, 0, "01");
  c10d_expect(&t, 1, "");
  b.data[0] = C10D_MULTI_GET;
  assert_int_equal(c10d_send(&t, 2, b.data, b.len), 0);
  assert_int_equal(t.out[2].len, 8 * C10D_KEYS_MAX);
  for (int i = 0; i < C10D_KEYS_MAX; i++) {
    char set[32];
    snprintf(set, sizeof(set), "01 '/%d' ''", i);
    ask(3, set, "");
    if (i < C10D_KEYS_MAX - 1) assert_int_equal(t.out[1].len, 0);
  }
  c10d_expect(&t, 1, "00");
}

UNIT_TEST_WITH(test_reply_limit, setup_greeted, teardown) {
  SCOPED(buf_finish) struct buf b = BUF_INIT;
  buf_putc(&b, C10D_SET);
  put_string(&b, 'k', 1);
  put_string(&b, 'v', C10D_VALUE_MAX - 8);
  assert_int_equal(c10d_send(&t, 0, b.data, b.len), 0);
  char n[8];
  for (unsigned i = 32; i <= 33; i++) { /* of 8 MiB each, with its length: as much as may be, and more */
    buf_clear(&b);
    buf_putc(&b, C10D_MULTI_GET);
    le64_put(n, i);
    buf_append(&b, n, 8);
    for (unsigned k = 0; k < i; k++) put_string(&b, 'k', 1);
    int rc = c10d_send(&t, 0, b.data, b.len);
    assert_int_equal(rc, i == 32 ? 0 : -EMSGSIZE);
    if (i == 32) assert_int_equal(t.out[0].len, C10D_REPLY_MAX);
    if (i == 33) assert_int_equal(t.out[0].len, 0);
    buf_finish(&t.out[0]);
  }
  assert_string_equal(t.err.text, "MULTI_GET: the reply to MULTI_GET would take 276824064 bytes, more than 268435456");
}

UNIT_TEST_WITH(test_quota_names_the_operation, setup_greeted, teardown) {
  c10d_test_finish(&t);
  c10d_test_init(&t, &(struct store_config){.max_keys = 2, .max_value = 4});
  c10d_greet(&t, 0);
  c10d_greet(&t, 1);
  refused(0, "01 '/a' '1' 01 '/b' '2' 01 '/a' '3' 0d 61626364 01 '/c' '4'", -ENOSPC,
          "SET: the store is full: it holds 2 keys and queue elements, which is the limit");
  c10d_expect(&t, 0, "61626364"); /* what was answered before is to be written */
  refused(1, "09 '/a' '1234'", -ENOSPC, "APPEND: a value of 5 bytes is longer than the limit of 4");
}

/* Clients go with waits pending, with releases that nobody asked for, and with half a request. */
UNIT_TEST_WITH(test_going, setup_greeted, teardown) {
  ask(0, "06 #3 '/a' '/b' '/a' 06 #1 '/a' 12 '/z' #9", "");
  ask(1, "06 #2 '/a' '/b' 01 #6 2f68", "");
  size_t used;
  struct buf b = BUF_INIT;
  c10d_bytes(&b, "06 #1 '/c' 01 '/c' '' 01 '/a' ''");
  c10d_session_feed(&t.sessions[2], b.data, b.len, &used, &t.out[2], SIZE_MAX - 1, &t.err);
  buf_finish(&b);
  c10d_session_finish(&t.sessions[2], 0);
  c10d_session_finish(&t.sessions[0], 0);
  assert_null(store_next_released(t.store));
  ask(3, "01 '/b' ''", "");
  c10d_expect(&t, 1, "00");
}
