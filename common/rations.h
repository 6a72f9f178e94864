/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_RATIONS_H
#define COMMON_RATIONS_H

/* The allowance of log lines of a peer. Pure: common/system/rationed_log.h has the log. */

#include <stdbool.h>
#include <stdint.h>
#include "common/map.h"

enum {
  RATION_LINES_MAX = 16,   /* lines about one peer in a window: a port scanner must not fill the log */
  RATIONS_LINES_MAX = 512, /* about all peers: one user may have many addresses */
  RATION_WINDOW_MS = 10000,
  RATIONS_MAX = 4096, /* peers that are remembered */
};

struct rations {
  struct map map;
  uint64_t window_ms; /* when the window of all peers began */
  unsigned lines, left_out;
};

/* How many lines were left out in the window before; 0: none, or it is not to be said now. */
struct rations_left {
  unsigned of_peer, of_all;
};

void rations_init(struct rations *a, uint64_t seed);
void rations_finish(struct rations *a);
/* Whether one more line about `peer` may be written, an address or an account. Fills *left. */
bool rations_take(struct rations *a, const char *peer, uint64_t now_ms, struct rations_left *left);

#endif
