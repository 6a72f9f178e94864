#ifndef DAEMON_PORT_HOLDER_H
#define DAEMON_PORT_HOLDER_H

/* Who listens on a TCP port of this machine: for the sentence that tells a person why a port cannot be had. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct port_holder {
  pid_t pid;
  char name[32]; /* as in /proc/PID/comm; "" if it could not be read */
};

/* Best effort and bounded: false where nobody listens, or the holder belongs to somebody whose /proc is closed to us. */
bool port_holder_find(uint16_t port, struct port_holder *h);

#endif
