/* SPDX-License-Identifier: Apache-2.0 */
/* exchange: two ends speak over a wire with a delay and a speed, and measure just these. */

#include "agent/pairs/exchange.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static unsigned char secret[EXCHANGE_SECRET] = "0123456789abcdef0123456789abcde";
enum { BYTES = 16 << 20, STEPS_MAX = 100000 };

/* Bytes per microsecond there and back, and half a round trip. */
struct wire {
  double out, in;
  uint64_t delay_us;
  size_t piece; /* what arrives at once, at most */
};

/* Until the one that connects has measured all, or until the time. */
static struct exchange_times play(const struct wire *w, uint64_t limit_us, uint64_t *took_us) {
  struct exchange a, b, *to = &a, *from = &b;
  struct exchange_send send, answer;
  struct err e = ERR_INIT;
  uint64_t now_us = 1000;
  static unsigned char filler[1 << 16];
  exchange_listen(&a, secret, BYTES);
  exchange_connect(&b, secret, BYTES, &send);
  for (int step = 0; step < STEPS_MAX && !b.over; step++) {
    bool out = from == &b;
    int64_t size = (int64_t)send.n_head + send.fill;
    double speed = out ? w->out : w->in;
    now_us += w->delay_us;
    memset(&answer, 0, sizeof answer);
    for (int64_t at = 0; at < size;) {
      assert_true(answer.n_head == 0 && answer.fill == 0); /* the answer comes with the last byte */
      const unsigned char *data = at < (int64_t)send.n_head ? send.head + at : filler;
      int64_t n = at < (int64_t)send.n_head ? (int64_t)send.n_head - at : size - at;
      if (n > (int64_t)w->piece) n = (int64_t)w->piece;
      now_us += (uint64_t)((double)n / speed);
      if (now_us > 1000 + limit_us) return exchange_end(&b, now_us);
      assert_true(n <= exchange_wants(to)); /* never more comes than an end waits for */
      if (exchange_take(to, data, (size_t)n, now_us, &answer, &e) < 0) fail_msg("%s", e.text);
      at += n;
    }
    send = answer;
    struct exchange *other = to;
    to = from;
    from = other;
  }
  *took_us = now_us - 1000;
  assert_true(a.known && b.known && b.over);
  return exchange_end(&b, now_us);
}

static double near(double got, double want) {
  return got > want * 0.9 && got < want * 1.1;
}

UNIT_TEST(test_it_measures_the_wire) {
  static const double speeds[] = {1, 10, 100, 1000, 10000}; /* MB/s */
  for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
    for (size_t k = 0; k < sizeof speeds / sizeof *speeds; k++) {
      struct wire w = {.out = speeds[i], .in = speeds[k], .delay_us = 20, .piece = 65536};
      uint64_t took_us = 0;
      struct exchange_times t = play(&w, UINT64_MAX / 2, &took_us);
      assert_true(t.bytes >= EXCHANGE_BYTES_FIRST && t.bytes <= BYTES);
      if (took_us > 1000000) fail_msg("%g and %g MB/s took %llu us", speeds[i], speeds[k], (unsigned long long)took_us);
      assert_true(near((double)t.bytes / (double)t.out_us, speeds[i]) || t.out_us < 1000);
      assert_true(near((double)t.bytes / (double)t.in_us, speeds[k]) || t.in_us < 1000);
      assert_true(t.rtt_us >= 40 && t.rtt_us < 60);
    }
}

UNIT_TEST(test_bytes_come_one_by_one) {
  struct wire w = {.out = 0.1, .in = 0.1, .delay_us = 20, .piece = 1};
  uint64_t took_us;
  assert_int_equal(play(&w, UINT64_MAX / 2, &took_us).bytes, EXCHANGE_BYTES_FIRST);
}

/* A buffer on the way makes the first messages fast. What is not through when the time is over counts. */
UNIT_TEST(test_the_time_is_over) {
  struct exchange x;
  struct exchange_send send;
  struct err e = ERR_INIT;
  unsigned char k = 'k', filler[4096] = {0};
  exchange_connect(&x, secret, BYTES, &send);
  assert_int_equal(exchange_take(&x, secret + EXCHANGE_SECRET / 2, EXCHANGE_SECRET / 2, 0, &send, &e), 0);
  for (int i = 0; i < EXCHANGE_TRIPS; i++) assert_int_equal(exchange_take(&x, &k, 1, 100, &send, &e), 0);
  assert_int_equal(exchange_end(&x, 3000000).bytes, 0);
  assert_int_equal(send.fill, EXCHANGE_BYTES_FIRST);
  assert_int_equal(exchange_take(&x, &k, 1, 200, &send, &e), 0);
  for (int left = EXCHANGE_BYTES_FIRST; left > 0; left -= (int)sizeof filler)
    assert_int_equal(exchange_take(&x, filler, sizeof filler, 300, &send, &e), 0);
  struct exchange_times t = exchange_end(&x, 3000300);
  assert_int_equal(t.bytes, EXCHANGE_BYTES_FIRST * EXCHANGE_GROWTH);
  assert_int_equal(t.out_us, 3000000);
  t = exchange_end(&x, 310); /* not slower than before: the smaller one counts */
  assert_int_equal(t.bytes, EXCHANGE_BYTES_FIRST);
}

static int take(struct exchange *x, const void *data, size_t n, struct err *e) {
  struct exchange_send send;
  return exchange_take(x, data, n, 0, &send, e);
}

UNIT_TEST(test_strangers) {
  struct exchange x;
  struct err e = ERR_INIT;
  struct exchange_send send;
  exchange_listen(&x, secret, BYTES);
  assert_int_equal(take(&x, "GET / HTTP/1.1\r\n", 16, &e), -EPROTO);
  assert_string_equal(e.text, "the other end does not know the secret");
  assert_false(x.known);
  exchange_connect(&x, secret, BYTES, &send);
  assert_int_equal(take(&x, secret, EXCHANGE_SECRET / 2, &e), -EPROTO); /* an echo does not know the second half */
  for (int i = 0; i < 5; i++) {
    unsigned char question[5][9] = {
        {'x'}, {'s', 0, 0, 0, 0, 0, 0, 0, 0x80}, {'f', 1, 0, 0, 1}, {'f', 0, 0, 0, 1, 0, 0, 0, 0}, {0}};
    exchange_listen(&x, secret, BYTES);
    assert_int_equal(take(&x, secret, EXCHANGE_SECRET / 2, &e), 0);
    assert_true(x.known);
    int rc = take(&x, question[i], 9, &e);
    assert_int_equal(rc, i == 3 ? 0 : -EPROTO); /* 16 MiB is allowed, and one byte more is not */
  }
}

UNIT_TEST(test_who_asks_for_too_much) {
  struct exchange x;
  struct err e = ERR_INIT;
  unsigned char question[9] = {'f', 0, 0, 0, 1};
  int n = 0;
  exchange_listen(&x, secret, BYTES);
  assert_int_equal(take(&x, secret, EXCHANGE_SECRET / 2, &e), 0);
  while (take(&x, question, 9, &e) == 0) n++;
  assert_int_equal(n, EXCHANGE_TOTAL);
  assert_string_equal(e.text, "the other end asks for too much");
}

UNIT_TEST(test_who_speaks_out_of_turn) {
  struct exchange x;
  struct exchange_send send;
  struct err e = ERR_INIT;
  unsigned char two[18] = {'f', 0, 0, 1, 0, 0, 0, 0, 0, 'f', 0, 0, 1};
  exchange_listen(&x, secret, BYTES);
  assert_int_equal(take(&x, secret, EXCHANGE_SECRET / 2, &e), 0);
  assert_int_equal(exchange_take(&x, two, sizeof two, 0, &send, &e), -EPROTO);
  assert_string_equal(e.text, "the other end speaks out of turn");
}
