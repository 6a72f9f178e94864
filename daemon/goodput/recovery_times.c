/* SPDX-License-Identifier: Apache-2.0 */
/* How long the phases of recoveries take, for /metrics. The bounds are those of the times that matter: a restart takes
 * tens of milliseconds, workers start in seconds, a missing node is replaced in minutes. */

#include "daemon/goodput/recovery_times.h"

const uint64_t recovery_bounds_ms[RECOVERY_BUCKETS] = {10,    30,    100,    300,    1000,   2000,    5000,      10000,
                                                       30000, 60000, 120000, 300000, 600000, 1800000, UINT64_MAX};

const char *recovery_phase_name(enum recovery_phase p) {
#define X(name, word) word,
  static const char *const names[RECOVERY_PHASE_COUNT] = {RECOVERY_PHASE_LIST(X)};
#undef X
  return p < RECOVERY_PHASE_COUNT ? names[p] : "?";
}

void recovery_histogram_add(struct recovery_histogram *h, uint64_t ms) {
  size_t i = 0;
  while (ms > recovery_bounds_ms[i]) i++;
  h->bucket[i]++;
  h->count++;
  h->sum_ms += ms;
}
