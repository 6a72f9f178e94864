/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash-2-4, as its authors wrote it: four words of state, two rounds for every eight bytes, four at the end.
 *
 * Peers choose the keys of our tables. With a plain hash a hundred chosen keys would fall into one slot and turn every
 * lookup into a walk; here they would have to know 128 bits. The seed belongs to the object and comes from outside, so
 * a run from the same seed is the same run. */

#include "common/siphash.h"

#include <string.h>

static uint64_t rotl(uint64_t x, int n) {
  return x << n | x >> (64 - n);
}

static inline void sip_round(uint64_t v[4]) {
  v[0] += v[1];
  v[1] = rotl(v[1], 13) ^ v[0];
  v[0] = rotl(v[0], 32);
  v[2] += v[3];
  v[3] = rotl(v[3], 16) ^ v[2];
  v[0] += v[3];
  v[3] = rotl(v[3], 21) ^ v[0];
  v[2] += v[1];
  v[1] = rotl(v[1], 17) ^ v[2];
  v[2] = rotl(v[2], 32);
}

static inline uint64_t word(const uint8_t *p) {
  uint64_t m;
  memcpy(&m, p, sizeof(m));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  m = __builtin_bswap64(m);
#endif
  return m;
}

struct siphash_key siphash_key_from(uint64_t seed) {
  return (struct siphash_key){{seed, seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03}};
}

uint64_t siphash(const struct siphash_key *key, const void *data, size_t len) {
  uint64_t v[4] = {key->k[0] ^ 0x736f6d6570736575, key->k[1] ^ 0x646f72616e646f6d, key->k[0] ^ 0x6c7967656e657261,
                   key->k[1] ^ 0x7465646279746573};
  uint64_t last = (uint64_t)len << 56;
  const uint8_t *p = data;
  for (; len >= 8; p += 8, len -= 8) {
    uint64_t m = word(p);
    v[3] ^= m;
    sip_round(v);
    sip_round(v);
    v[0] ^= m;
  }
  for (size_t i = 0; i < len; i++) last |= (uint64_t)p[i] << (8 * i);
  v[3] ^= last;
  sip_round(v);
  sip_round(v);
  v[0] ^= last;
  v[2] ^= 0xFF;
  for (int i = 0; i < 4; i++) sip_round(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}
