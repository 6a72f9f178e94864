#ifndef AGENT_HOST_ADDRS_H
#define AGENT_HOST_ADDRS_H

/* The addresses of this machine's interfaces. */

#include <stddef.h>
#include "common/endpoint.h"
#include "proto/msg.h"

enum { HOST_ADDRS_MAX = 1024 };

/* All of them, loopback too; how many. */
size_t host_addrs(struct ipaddr out[HOST_ADDRS_MAX]);
/* For HELLO: those by which other machines may know this one, so neither loopback nor link-local; parted by blanks, whole
 * ones only, IPv4 first. */
void host_addrs_text(char out[ADDRS_MAX + 1]);

#endif
