/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_ADDRESSES_H
#define DAEMON_CTL_ADDRESSES_H

/* The addresses of --endpoint. */

#include <netdb.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum { ADDRESSES_MAX = 16 };

struct addresses {
  struct sockaddr_storage v[ADDRESSES_MAX];
  size_t n;
};

/* Takes them from a lookup, with the port. Returns whether one of them is this machine's. */
bool addresses_keep(struct addresses *all, const struct addrinfo *found, uint16_t port);

#endif
