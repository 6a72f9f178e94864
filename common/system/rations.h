/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_RATIONS_H
#define COMMON_SYSTEM_RATIONS_H

/* The allowance of log lines of a peer address. */

#include <stdint.h>
#include "common/system/log.h"
#include "common/map.h"

enum {
  RATION_LINES_MAX = 16,   /* lines about one address in a window: a port scanner must not fill the log */
  RATIONS_LINES_MAX = 512, /* about all addresses: one user may have many */
  RATION_WINDOW_MS = 10000,
  RATIONS_MAX = 4096, /* addresses that are remembered */
};

struct rations {
  struct map map;
  uint64_t window_ms; /* when the window of all addresses began */
  unsigned lines, left_out;
};

void rations_init(struct rations *a, uint64_t seed);
void rations_finish(struct rations *a);

/* Logs a line about something that `addr` did. Beyond RATION_LINES_MAX per address or RATIONS_LINES_MAX in
 * RATION_WINDOW_MS it is left out and counted. */
void rations_log(struct rations *a, const char *addr, uint64_t now_ms, enum log_level level, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

#endif
