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

void rfc3339(int64_t at, char out[RFC3339_MAX]) {
  struct tm tm;
  strftime(out, RFC3339_MAX, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&(time_t){(time_t)at}, &tm));
}
