/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_EPHEMERAL_H
#define PROTO_EPHEMERAL_H

/* The daemon's ephemeral key. One key answers many openings, because making one costs as much as using it: ten thousand
 * agents that join at once cost half. A recorded connection could be replayed under a key that is used again, so the
 * openings of its life are remembered, and each is answered once. Pure: time and random bytes come from the caller. */

#include <stdbool.h>
#include <stdint.h>
#include "proto/noise.h"

enum {
  EPHEMERAL_MS = 1000,       /* of life */
  EPHEMERAL_OPENINGS = 4096, /* answered in it */
};

struct ephemeral;

struct ephemeral *ephemeral_create(void);
void ephemeral_destroy(struct ephemeral *e); /* wipes it; NULL is fine */
/* Whether a new one must be set before the next opening. */
bool ephemeral_is_old(const struct ephemeral *e, uint64_t now_ms);
/* A new key from 32 random bytes. The old one is wiped. */
void ephemeral_renew(struct ephemeral *e, const uint8_t random[NOISE_KEY], uint64_t now_ms);
const struct noise_ephemeral *ephemeral_key(const struct ephemeral *e);
/* Notes the mark of a valid opening (channel_opening_mark); false: it has been answered under this key before. Only after
 * ephemeral_is_old was false. */
bool ephemeral_note(struct ephemeral *e, const uint8_t mark[8]);

#endif
