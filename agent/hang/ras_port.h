/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_HANG_RAS_PORT_H
#define AGENT_HANG_RAS_PORT_H

/* The port at which NCCL's RAS of this agent's workers answers (NCCL_RAS_ADDR). NCCL's own default, 28028, would be
 * that of all jobs of a host. */

#include <stdint.h>

enum { RAS_ADDR_MAX = 31 };

struct ras_port {
  int fd;                      /* -1: none */
  char addr[RAS_ADDR_MAX + 1]; /* "127.0.0.1:4711"; "": none */
};

/* Holds a free port until ras_port_close. No other program gets it by chance, and NCCL in processes of the same user
 * can listen there. Without a free port there is none. */
void ras_port_open(struct ras_port *p);
void ras_port_close(struct ras_port *p);

/* The port of NCCL_RAS_ADDR where it leads to this host ("localhost:28028", "127.0.0.1:1", "[::1]:1"); 0: elsewhere, or
 * not numeric. v6: it is that of ::1. */
uint16_t ras_port_parse(const char *addr, int *v6);

#endif
