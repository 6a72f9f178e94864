/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_NET_SOCKET_H
#define COMMON_NET_SOCKET_H

/* TCP sockets as every program of this project sets them up: how one is bound, which options a connection has, and its
 * addresses. No loop is needed. */

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include "common/endpoint.h"

union socket_address {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
  struct sockaddr_storage room;
};

/* The numeric address and the port, in host order. An IPv4-mapped address is IPv4. Family 0 and port 0: not an internet
 * address. */
void socket_address_read(const union socket_address *a, struct ipaddr *addr, uint16_t *port);
/* The reverse. Family 0: the address of all, [::]. */
union socket_address socket_address_make(const struct ipaddr *addr, uint16_t port);
socklen_t socket_address_size(const union socket_address *a);
bool socket_address_is_local(const union socket_address *a); /* an address of this machine */
/* The addresses of this machine's interfaces that have these flags (IFF_UP ...), with loopback; returns how many. */
enum { HOST_ADDRS_MAX = 1024 };
size_t socket_host_addrs(unsigned flags, struct ipaddr out[HOST_ADDRS_MAX]);
/* This end of a socket, and the other end of a connection. Family 0 and port 0 if there is none. */
void socket_local(int fd, struct ipaddr *addr, uint16_t *port);
void socket_peer(int fd, struct ipaddr *addr, uint16_t *port);

/* Whether a TCP connection is over without having been closed in turn. Then it no longer holds its two addresses and ports: another connection may
 * have them. Bytes that came before can still be read. */
bool socket_was_reset(int fd);

/* The text of a numeric address; "" for family 0. */
void socket_format(const struct ipaddr *addr, char out[INET6_ADDRSTRLEN]);

enum socket_flags {
  SOCKET_LISTEN = 1,  /* the kernel queues connections from now on */
  SOCKET_REUSE = 2,   /* also while connections of an earlier listener are closing */
  SOCKET_V6_ONLY = 4, /* an IPv6 socket leaves IPv4 to another one */
};
enum { SOCKET_BACKLOG = 65535 }; /* the kernel lowers it to net.core.somaxconn */

/* A bound socket, non-blocking and close-on-exec, or a negative errno. Without SOCKET_V6_ONLY [::] includes IPv4. */
int socket_bind(const union socket_address *a, unsigned flags);

/* No delay, keepalive (a peer that vanished is noticed after half a minute), and TCP_USER_TIMEOUT unless it is 0. A
 * connection inherits them from its listening socket. An option that the kernel does not know is skipped; else a
 * negative errno of the first that failed. */
int socket_set_options(int fd, unsigned user_timeout_ms);

#endif
