/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks: one for times that agent, guard and workers share, one for what a process measures by itself, one for people. */

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

uint64_t wall_ms(void) {
  return read_us(CLOCK_REALTIME) / 1000;
}
