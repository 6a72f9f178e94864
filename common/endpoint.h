/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_ENDPOINT_H
#define COMMON_ENDPOINT_H

/* host:port as people write it: "node1", "node1:29400", "10.0.0.1:0", "[::1]:29400", "::1" (no port), "[fe80::1%eth0]".
 * Pure: no name is looked up here. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/err.h"

enum { ENDPOINT_HOST_MAX = 256, ENDPOINT_TEXT_MAX = ENDPOINT_HOST_MAX + 10, RDZV_DEFAULT_PORT = 29400 };

struct endpoint {
  char host[ENDPOINT_HOST_MAX]; /* without brackets; never empty */
  uint16_t port;
};

int endpoint_parse(const char *text, uint16_t default_port, struct endpoint *ep, struct err *e);
void endpoint_format(const struct endpoint *ep, char out[ENDPOINT_TEXT_MAX]); /* IPv6 in brackets */

/* A numeric address, comparable; IPv4-mapped IPv6 is IPv4. */
struct ipaddr {
  uint8_t family; /* 4, 6; 0: text is not a numeric address */
  uint8_t bytes[16];
};
struct ipaddr ipaddr_parse(const char *text);                       /* a scope (%eth0) is allowed and ignored */
int ipaddr_compare(const struct ipaddr *a, const struct ipaddr *b); /* IPv4 before IPv6, then by number */
/* All that one machine may have: of IPv6 the network of 64 bits. */
struct ipaddr ipaddr_network(const struct ipaddr *a);
bool ipaddr_is_loopback(const struct ipaddr *a);
bool ipaddr_is_linklocal(const struct ipaddr *a);

/* "node1:29400,node2,[fd00::1]:29400": several endpoints, in an order that counts. Pure. */

/* Fills list[0..*n), at most max. -EINVAL and a sentence: an element is missing or is no endpoint, there are more than
 * max, or one comes twice. */
int endpoint_list_parse(const char *text, uint16_t default_port, struct endpoint *list, size_t max, size_t *n,
                        struct err *e);

#endif
