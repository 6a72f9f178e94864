/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_RESERVED_PORT_H
#define AGENT_LINK_RESERVED_PORT_H

/* A TCP port that is reserved for an rdzvd of this agent: the other agents know it before that rdzvd runs. */

#include <stdint.h>
#include "common/endpoint.h"
#include "common/err.h"

struct reserved_port {
  int fd; /* bound, not listening, close-on-exec; -1: no port is reserved */
  uint16_t port;
  char text[ENDPOINT_TEXT_MAX]; /* as rdzvd --listen takes it: "[::]:40123" */
};

/* Reserves a free port of the numeric address `addr`, or of all addresses if `addr` is NULL, "" or not one of this
 * machine's. Negative errno and a sentence: the machine refused, and fd is -1. */
int reserve_port(const char *addr, struct reserved_port *out, struct err *e);
/* Gives the port up. The text stays. */
void reserved_port_close(struct reserved_port *s);

#endif
