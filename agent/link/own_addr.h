/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_OWN_ADDR_H
#define AGENT_LINK_OWN_ADDR_H

/* Addresses of names, before there is a loop: --local-addr and --endpoint. */

#include <stdbool.h>
#include <stdint.h>
#include "common/err.h"
#include "proto/msg.h"

/* Resolves `name`, within deadline_ms: `out` becomes the address at which other nodes reach this one; "": the name has
 * only loopback addresses (as a machine's own name has on Debian). A numeric address is returned as it is. *hung: the
 * name server has not answered and exit() would wait for it: the caller must _exit. */
int own_addr_find(const char *name, uint32_t deadline_ms, char out[ADDR_MAX + 1], bool *hung, struct err *e);
/* Whether an address of `name` is this machine's; true if unknown. */
bool own_addr_is(const char *name, uint32_t deadline_ms, bool *hung);

#endif
