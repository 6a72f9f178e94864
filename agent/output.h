#ifndef AGENT_OUTPUT_H
#define AGENT_OUTPUT_H

/* Which output of which local rank goes where: the values of --redirects, --tee and --local-ranks-filter. */

#include <stdbool.h>
#include <stdint.h>
#include "proto/msg.h"

enum { STD_NONE = 0, STD_OUT = 1, STD_ERR = 2, STD_ALL = 3 };

struct std_map {
  uint8_t of[WORKERS_MAX]; /* by local rank: STD_* */
};

struct rank_set {
  bool some; /* false: all ranks are in it */
  bool in[WORKERS_MAX];
};

#endif
