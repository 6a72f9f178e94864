/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_LISTENER_H
#define DAEMON_SERVER_LISTENER_H

/* The daemon's listening TCP sockets, from what --listen says. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/endpoint.h"
#include "common/err.h"

struct listener {
  int fd;                       /* bound and listening, close-on-exec, not blocking */
  uint16_t port;                /* the real one where 0 was asked for */
  char text[ENDPOINT_TEXT_MAX]; /* "[::]:29400", as bound */
};

/* Opens all of specs[0..n) ("ADDR:PORT", "ADDR", ":PORT", "PORT") or none. -EINVAL: a value is malformed or no
 * numeric address; -EADDRINUSE: a port is taken; other negative errno: the machine refused. The sentence names the
 * value, and who has a taken port; to find that out takes longer than a launch, so in_haste does not ask. */
int listeners_open(const char *const *specs, size_t n, bool in_haste, struct listener *out, struct err *e);
/* Listens on a TCP socket that its owner has bound (--listen-fd). -EINVAL: `fd` is none; other negative errno: the
 * machine refused. The descriptor is the caller's until this returns 0. */
int listener_adopt(int fd, struct listener *out, struct err *e);

#endif
