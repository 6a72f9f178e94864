#ifndef AGENT_GUESTS_H
#define AGENT_GUESTS_H

/* A set of numeric addresses: who may connect to the round's store. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/endpoint.h"

struct guests {
  struct ipaddr *v; /* sorted */
  size_t n;
};

/* What START's raw part says: an address a line. What is none, or too long for one, is left out. `more`: n more of them. */
void guests_init(struct guests *g, const char *text, size_t len, const struct ipaddr *more, size_t n);
void guests_finish(struct guests *g);
bool guests_has(const struct guests *g, const struct ipaddr *a);

#endif
