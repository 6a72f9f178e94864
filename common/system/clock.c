/* SPDX-License-Identifier: Apache-2.0 */
/* Two clocks: one for times that agent, guard and workers share, and one for what a process measures by itself. */

#include "common/system/clock.h"

#include <time.h>

static uint64_t read_us(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

uint64_t boot_ms(void) {
  return read_us(CLOCK_BOOTTIME) / 1000;
}

uint64_t monotonic_ms(void) {
  return monotonic_us() / 1000;
}

uint64_t monotonic_us(void) {
  return read_us(CLOCK_MONOTONIC);
}
