#ifndef AGENT_OWN_ADDR_H
#define AGENT_OWN_ADDR_H

/* Addresses behind names, before there is a loop: --local-addr, where it is a name. */

#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"

/* Looks `name` up, at most deadline_ms long: into `out` the address under which other nodes reach this one, ""
 * where the name has only loopback addresses (as a machine's own name has on Debian). A numeric address is
 * returned as it is. *hung: the name server has not answered and exit() would wait for it: _exit then. */
int own_addr_find(const char *name, uint32_t deadline_ms, char out[ADDR_MAX + 1], bool *hung, struct err *e);
/* Whether one of its addresses, a name's or its own, is this machine's; true where that cannot be found out. */
bool own_addr_is(const char *name, uint32_t deadline_ms, bool *hung);

#endif
