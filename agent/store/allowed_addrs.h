/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_ALLOWED_ADDRS_H
#define AGENT_STORE_ALLOWED_ADDRS_H

/* The set of numeric addresses that may connect to the round's store. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/endpoint.h"

struct allowed_addrs {
  struct ipaddr *v; /* sorted */
  size_t n;
};

/* START's raw part has one address per line; a line that is not an address is left out. `more`: n more addresses. */
void allowed_addrs_init(struct allowed_addrs *g, const char *text, size_t len, const struct ipaddr *more, size_t n);
void allowed_addrs_finish(struct allowed_addrs *g);
bool allowed_addrs_has(const struct allowed_addrs *g, const struct ipaddr *a);

#endif
