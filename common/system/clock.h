/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_CLOCK_H
#define COMMON_SYSTEM_CLOCK_H

#include <stdint.h>

/* Milliseconds on CLOCK_BOOTTIME, which goes on while the machine is suspended. The agent and its guard count leases on
 * it: a process that has slept past a deadline must notice. */
uint64_t boot_ms(void);

/* CLOCK_MONOTONIC, as uv_hrtime: for waits that begin and end in one process. */
uint64_t monotonic_ms(void);
uint64_t monotonic_us(void);

uint64_t wall_ms(void); /* since 1970 */

enum { RFC3339_MAX = 32 };
/* "2026-11-29T12:00:00Z". at: seconds since 1970. */
void rfc3339(int64_t at, char out[RFC3339_MAX]);

#endif
