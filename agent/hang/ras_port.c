/* SPDX-License-Identifier: Apache-2.0 */
/* Every process with NCCL listens at NCCL_RAS_ADDR: with SO_REUSEADDR and SO_REUSEPORT, so the kernel hands each
 * connection to one of them. A socket that is bound with both options, and does not listen, lets them. It keeps the port
 * away from programs that take any free port. Those are all that may come, since nobody else asks for this number. */

#include "agent/hang/ras_port.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void ras_port_close(struct ras_port *p) {
  if (p->fd >= 0) close(p->fd);
  *p = (struct ras_port){.fd = -1};
}

void ras_port_open(struct ras_port *p) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  const int on = 1;
  *p = (struct ras_port){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (p->fd < 0) return;
  /* The port is chosen before the options are set: the kernel may give out a port twice to sockets that share. */
  if (bind(p->fd, (struct sockaddr *)&a, sizeof a) || getsockname(p->fd, (struct sockaddr *)&a, &len) ||
      setsockopt(p->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) ||
      setsockopt(p->fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on)) {
    ras_port_close(p);
    return;
  }
  snprintf(p->addr, sizeof p->addr, "127.0.0.1:%u", (unsigned)ntohs(a.sin_port));
}

uint16_t ras_port_parse(const char *addr, int *v6) {
  static const char *const hosts[] = {"localhost:", "127.0.0.1:", "[::1]:"};
  *v6 = 0;
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
    size_t n = strlen(hosts[i]);
    if (strncmp(addr, hosts[i], n) != 0) continue;
    char *end;
    long port = strtol(addr + n, &end, 10);
    *v6 = i == 2;
    return end != addr + n && !*end && port > 0 && port < 65536 ? (uint16_t)port : 0;
  }
  return 0;
}
