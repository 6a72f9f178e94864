#ifndef COMMON_ADDRESSES_H
#define COMMON_ADDRESSES_H

/* What is counted per peer address: connections that have not said who they are, and log lines. */

#include <stddef.h>
#include <stdint.h>
#include "common/log.h"
#include "common/map.h"

enum {
  ADDRESSES_MAX = 4096,   /* remembered for their log lines alone */
  ADDRESS_LOG_LINES = 16, /* about one address in one window: a port scanner must not fill the log */
  ADDRESS_WINDOW_MS = 10000,
};

struct addresses {
  struct map map;
  size_t sweep_at; /* entries at which idle ones are dropped next: doubles, so that sweeping stays cheap */
};

void addresses_init(struct addresses *a, uint64_t seed);
void addresses_finish(struct addresses *a);

size_t addresses_unidentified(const struct addresses *a, const char *addr);
void addresses_count(struct addresses *a, const char *addr, int change);
/* A log line about something that `addr` did; beyond ADDRESS_LOG_LINES in ADDRESS_WINDOW_MS they are left out and counted. */
void addresses_log(struct addresses *a, const char *addr, uint64_t now_ms, enum log_level level,
                   const char *fmt, ...) __attribute__((format(printf, 5, 6)));

#endif
