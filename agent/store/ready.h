/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_STORE_READY_H
#define AGENT_STORE_READY_H

/* The sockets that are ready for the store of the next round: one port, on this node's address alone. */

#include <stddef.h>
#include <stdint.h>
#include "common/endpoint.h"

enum { READY_MAX = 64 };

struct ready {
  uint16_t port; /* 0: there is none */
  struct ready_socket {
    struct ipaddr addr; /* family 0: all addresses */
    int fd;
  } v[READY_MAX]; /* the first one listens */
  size_t n;
};

/* A socket that listens on `addr` at a free port, and sockets that hold the same port on the others. 0 or a negative
 * errno. */
int ready_open(struct ready *r, const struct ipaddr *addr, const struct ipaddr *others, size_t n_others);
/* One that holds a free port on all addresses, for another process. */
int ready_hold(struct ready *r);
/* The descriptor of a socket that listens on `addr`, or on what the kernel uses towards it; a negative errno. All
 * others are closed. */
int ready_take(struct ready *r, const struct ipaddr *addr);
void ready_close(struct ready *r);

/* A socket that listens there, also while connections of an earlier one are closing. A negative errno. */
int ready_listen(const struct ipaddr *addr, uint16_t port);
/* Our own address on the way to that one, which is the same if it is ours. Family 0: there is no way. */
struct ipaddr ready_own_towards(const struct ipaddr *addr);

#endif
