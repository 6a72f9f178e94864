/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_LINK_HOST_ADDRS_H
#define AGENT_LINK_HOST_ADDRS_H

/* The addresses of this machine's interfaces. */

#include <stddef.h>
#include "common/endpoint.h"
#include "proto/msg.h"

enum { HOST_ADDRS_MAX = 1024 };

/* This machine's loopback address: 127.0.0.1, or ::1 in a name space without IPv4. The same in each call. */
const char *host_loopback(void);
/* All of them, with loopback; returns how many. */
size_t host_addrs(struct ipaddr out[HOST_ADDRS_MAX]);
/* For HELLO: addresses by which other machines may know this one, without loopback and link-local; separated by
 * blanks, IPv4 first. */
void host_addrs_text(char out[ADDRS_MAX + 1]);

#endif
