/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_HOST_ADDRS_H
#define AGENT_LINK_HOST_ADDRS_H

/* The addresses of this machine's interfaces. */

#include "common/net/socket.h"
#include "proto/msg.h"

/* This machine's loopback address: 127.0.0.1, or ::1 in a name space without IPv4. The same in each call. */
const char *host_loopback(void);
/* For HELLO: addresses by which other machines may know this one, without loopback and link-local; separated by
 * blanks, IPv4 first. */
void host_addrs_text(char out[ADDRS_MAX + 1]);

#endif
