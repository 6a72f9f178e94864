/* SPDX-License-Identifier: Apache-2.0 */
#ifndef COMMON_SYSTEM_PORT_HOLDER_H
#define COMMON_SYSTEM_PORT_HOLDER_H

/* The process that listens on a TCP port of this machine, for the message that a port is in use. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct port_holder {
  pid_t pid;
  char name[32]; /* as in /proc/PID/comm; "" if it could not be read */
};

/* Best effort, in bounded time. False: no process listens, or /proc does not show this user its descriptors. */
bool port_holder_find(uint16_t port, struct port_holder *h);
/* The same for the socket with that inode, which belongs to user `uid`; in a time that a loop can spare. */
bool port_holder_of(unsigned long inode, int64_t uid, struct port_holder *h);

#endif
