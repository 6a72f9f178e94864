/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SIPHASH_H
#define COMMON_SIPHASH_H

/* SipHash-2-4 (Aumasson and Bernstein): a hash of any bytes. Colliding inputs cannot be chosen without the key. */

#include <stddef.h>
#include <stdint.h>

struct siphash_key {
  uint64_t k[2];
};

struct siphash_key siphash_key_from(uint64_t seed);
uint64_t siphash(const struct siphash_key *key, const void *data, size_t len);

#endif
