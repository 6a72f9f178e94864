/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_TALLY_H
#define COMMON_TALLY_H

/* How much of a long piece of work is done. One thread counts, and another may look at any time. */

#include <stdatomic.h>
#include <stdint.h>

struct tally {
  _Atomic uint64_t done, total; /* total 0: unknown */
};

/* NULL is fine: the caller of a function that counts does not have to ask for it. */
static inline void tally_begin(struct tally *t, uint64_t total) {
  if (!t) return;
  atomic_store(&t->done, 0);
  atomic_store(&t->total, total);
}
static inline void tally_add(struct tally *t, uint64_t n) {
  if (t) atomic_fetch_add(&t->done, n);
}

#endif
