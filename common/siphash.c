/* SPDX-License-Identifier: Apache-2.0 */
/* libsodium computes the hash. It takes the key, and returns the hash, as little-endian bytes.
 *
 * Peers choose the keys of our tables. With a plain hash a hundred chosen keys would fall into one slot and turn every
 * lookup into a walk; here they would have to know 128 bits. The seed belongs to the object and comes from outside, so
 * a run from the same seed is the same run. */

#include "common/siphash.h"

#include <sodium.h>
#include "common/buf.h"

struct siphash_key siphash_key_from(uint64_t seed) {
  return (struct siphash_key){{seed, seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03}};
}

uint64_t siphash(const struct siphash_key *key, const void *data, size_t len) {
  uint8_t k[crypto_shorthash_KEYBYTES], out[crypto_shorthash_BYTES];
  le64_put(k, key->k[0]);
  le64_put(k + 8, key->k[1]);
  crypto_shorthash(out, data, len, k);
  return le64_get(out);
}
