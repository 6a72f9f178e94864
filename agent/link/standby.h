/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_STANDBY_H
#define AGENT_LINK_STANDBY_H

/* A TCP port that is reserved for an rdzvd of this agent: the other agents know it before that rdzvd runs. */

#include <stdint.h>
#include "common/endpoint.h"
#include "common/err.h"

struct standby {
  int fd; /* bound, not listening, close-on-exec; -1: no port is reserved */
  uint16_t port;
  char text[ENDPOINT_TEXT_MAX]; /* as rdzvd --listen takes it: "[::]:40123" */
};

/* Reserves a free port of the numeric address `addr`, or of all addresses if `addr` is NULL, "" or not one of this
 * machine's. Negative errno and a sentence: the machine refused, and fd is -1. */
int standby_reserve(const char *addr, struct standby *out, struct err *e);
/* Gives the port up. The text stays. */
void standby_close(struct standby *s);

#endif
