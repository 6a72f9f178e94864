/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_GUESTS_H
#define AGENT_STORE_GUESTS_H

/* The set of numeric addresses that may connect to the round's store. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/endpoint.h"

struct guests {
  struct ipaddr *v; /* sorted */
  size_t n;
};

/* START's raw part has one address per line; a line that is not an address is left out. `more`: n more addresses. */
void guests_init(struct guests *g, const char *text, size_t len, const struct ipaddr *more, size_t n);
void guests_finish(struct guests *g);
bool guests_has(const struct guests *g, const struct ipaddr *a);

#endif
