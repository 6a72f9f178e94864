/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_PAIRS_EXCHANGE_H
#define AGENT_PAIRS_EXCHANGE_H

/* What two agents say to each other to measure the network between them. Pure: bytes and the time go in, bytes come out.
 *
 * The one that connects shows the first half of the secret, and the one that listens answers with the second. Then the first
 * asks, and the second answers, one question at a time:
 *
 *   's' and a size, as 8 bytes, then so many bytes   "k" when all of them are here
 *   'f' and a size                                   so many bytes
 *
 * Questions of size 0 measure the round trip. The sizes grow until a message takes long enough to be measured. The best of
 * three tries of the last size counts. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum {
  EXCHANGE_SECRET = 32,
  EXCHANGE_QUESTION = 9,
  EXCHANGE_BYTES_FIRST = 65536,
  EXCHANGE_GROWTH = 4,
  EXCHANGE_TRIPS = 8,
  EXCHANGE_TRIES = 3,
  EXCHANGE_LONG_US = 50000,     /* there and back: no larger size is needed, */
  EXCHANGE_LONGEST_US = 200000, /* nor another try */
  EXCHANGE_TOTAL = 8,           /* largest messages that the one that listens sends or takes */
};

struct exchange_times {
  int64_t bytes, out_us, in_us, rtt_us; /* bytes 0: nothing was measured */
};

struct exchange {
  bool connects;
  bool known; /* the peer has shown the secret */
  bool over;  /* of the one that connects: all is measured */
  unsigned char secret[EXCHANGE_SECRET];
  int64_t bytes_max;
  unsigned char head[EXCHANGE_SECRET / 2]; /* what has come of a half of the secret, or of a question */
  size_t n_head;
  int64_t left; /* bytes of a message that are still to come */
  /* The one that listens. */
  int64_t total;
  /* The one that connects. */
  enum exchange_step { EXCHANGE_SHOW, EXCHANGE_TRIP, EXCHANGE_OUT, EXCHANGE_IN } step;
  int n; /* of this step, or of this size */
  int64_t size, out_us;
  uint64_t asked_us;
  struct exchange_times times;
};

/* To be sent: the head, and then `fill` bytes whatever they are. */
struct exchange_send {
  unsigned char head[EXCHANGE_SECRET / 2];
  size_t n_head;
  int64_t fill;
};

void exchange_listen(struct exchange *x, const unsigned char *secret, int64_t bytes_max);
void exchange_connect(struct exchange *x, const unsigned char *secret, int64_t bytes_max, struct exchange_send *out);
/* Bytes came; *out has none or something to be sent. -EPROTO and a sentence: the peer is another program. */
int exchange_take(struct exchange *x, const unsigned char *data, size_t n, uint64_t now_us, struct exchange_send *out,
                  struct err *e);
/* How many bytes this end reads next. For a driver that has to know, as NCCL does; > 0 until x->over. */
int64_t exchange_wants(const struct exchange *x);
/* The time is over. What has been measured; a message that is not through counts as if it were now, if a smaller one was. */
struct exchange_times exchange_end(const struct exchange *x, uint64_t now_us);

#endif
