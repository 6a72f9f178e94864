/* One clock for all that agent, guard and workers tell each other. */

#include "common/clock.h"

#include <time.h>

uint64_t boot_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}
