/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_GOODPUT_RECOVERY_TIMES_H
#define DAEMON_GOODPUT_RECOVERY_TIMES_H

/* How long the phases of a recovery take: from a failure to the next round's first step. Pure. */

#include <stddef.h>
#include <stdint.h>

#define RECOVERY_PHASE_LIST(X)                                                                                         \
  X(DETECT, "detect")         /* it happened -> this daemon knows */                                                   \
  X(STOP, "stop")             /* -> nothing of the round is left on any node */                                        \
  X(FORM, "form")             /* -> START of the next one */                                                           \
  X(START, "start")           /* -> all nodes have STARTED */                                                          \
  X(FIRST_STEP, "first_step") /* -> its first reported step */
#define X(name, word) RECOVERY_##name,
enum recovery_phase { RECOVERY_PHASE_LIST(X) RECOVERY_PHASE_COUNT };
#undef X
const char *recovery_phase_name(enum recovery_phase p);

enum { RECOVERY_BUCKETS = 15 };
extern const uint64_t recovery_bounds_ms[RECOVERY_BUCKETS]; /* upper bounds, inclusive; the last one: UINT64_MAX */

/* Of one phase, over all jobs of a daemon. A bucket counts what is above the bound before it; it does not include the
 * buckets before. */
struct recovery_histogram {
  uint64_t bucket[RECOVERY_BUCKETS], count, sum_ms;
};

void recovery_histogram_add(struct recovery_histogram *h, uint64_t ms);

#endif
