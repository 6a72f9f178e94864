/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_SOCKET_OWNER_H
#define COMMON_SYSTEM_SOCKET_OWNER_H

/* The user at the other end of a TCP connection of this machine. PyTorch's protocol has no authentication, so the
 * kernel says who connects. Nothing here waits. */

#include <stdbool.h>
#include <stdint.h>
#include "common/endpoint.h"
#include "common/system/port_holder.h"

struct socket_end {
  struct ipaddr addr;
  uint16_t port;
};

enum socket_owner_answer {
  SOCKET_OWNER_FOUND,
  SOCKET_OWNER_GONE,    /* no process of this network name space has such a connection, now */
  SOCKET_OWNER_UNKNOWN, /* neither the kernel's interface nor /proc can be read here */
};

struct socket_owner {
  int64_t uid; /* as this process sees it: another user name space's unmapped user is the overflow uid, 65534 */
  unsigned long inode;
};

/* A netlink socket, which the first question opens, or -1 where the kernel has no such interface: then the tables of /proc
 * are read. */
struct socket_owners {
  int netlink;
  uint32_t seq;
  bool asked;
};

void socket_owners_init(struct socket_owners *o);
void socket_owners_close(struct socket_owners *o);
/* Of the connection from `from` to `to`: the owner of the end at `from`. An address of a dual-stack socket may be given
 * as IPv4. */
enum socket_owner_answer socket_owner_find(struct socket_owners *o, const struct socket_end *from,
                                           const struct socket_end *to, struct socket_owner *out);
/* A process that holds that end, as in port_holder_find. False: it cannot be seen. */
bool socket_owner_process(const struct socket_owner *owner, struct port_holder *h);

#endif
