/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RIG_RANDOM_MSG_H
#define TESTS_RIG_RANDOM_MSG_H

/* Random valid messages, made from the same tables as the codec: for round trips, and as seeds for the fuzzers. */

#include <stdbool.h>
#include <stdint.h>
#include "proto/codec.h"
#include "proto/msg.h"

struct random_msg {
  struct msg m;
  uint64_t state; /* of the generator */
  void **owned;   /* strings and lists */
  size_t n_owned;
};

/* Every field within its bounds, and often on one. The same seed gives the same message. */
void random_msg_init(struct random_msg *r, enum msg_type t, uint64_t seed);
void random_msg_finish(struct random_msg *r);
uint64_t random_next(uint64_t *state);

/* Field by field; NaN equals NaN. */
bool object_equal(const struct object *o, const void *a, const void *b);
bool msg_equal(const struct msg *a, const struct msg *b);

#endif
