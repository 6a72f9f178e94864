#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

/* Milliseconds on CLOCK_BOOTTIME: as CLOCK_MONOTONIC, but it goes on while the machine is suspended. Leases are counted
 * on it by the agent and by its guard: whoever has slept past a deadline must know it. */
uint64_t boot_ms(void);

/* Milliseconds on CLOCK_MONOTONIC, as uv_hrtime: for waits that end in the process that began them. */
uint64_t monotonic_ms(void);

#endif
