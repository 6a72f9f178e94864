/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_DEADLINE_H
#define COMMON_DEADLINE_H

/* Deadlines: milliseconds on the clock of the one who sets them; UINT64_MAX: none. */

#include <stdint.h>

static inline uint64_t earliest(uint64_t a_ms, uint64_t b_ms) {
  return a_ms < b_ms ? a_ms : b_ms;
}

static inline uint64_t latest(uint64_t a_ms, uint64_t b_ms) {
  return a_ms > b_ms ? a_ms : b_ms;
}

#endif
