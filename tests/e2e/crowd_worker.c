/* SPDX-License-Identifier: Apache-2.0 */
/* A rank of a large job: opens CONNECTIONS connections to the round's store at once, greets on each, and waits on the
 * last until every rank has done so. A process of a few pages, so that hundreds of them fit on a small machine.
 *
 * usage: crowd-worker CONNECTIONS */

#include <arpa/inet.h>
#include <endian.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 16, BARRIER = 18 };

static int fail(const char *what) {
  perror(what);
  return 1;
}

static int say(int fd, const void *data, size_t n) {
  return send(fd, data, n, MSG_NOSIGNAL) == (ssize_t)n ? 0 : fail("send");
}

static int hear(int fd, char *data, size_t n) {
  return recv(fd, data, n, MSG_WAITALL) == (ssize_t)n ? 0 : fail("the store has closed the connection");
}

int main(int argc, char **argv) {
  static const char hello[] = "\x00\xce\xf7\x85\x3c\x0dping", key[] = "crowd";
  const char *addr = getenv("MASTER_ADDR"), *port = getenv("MASTER_PORT"), *world = getenv("WORLD_SIZE");
  int n = argc == 2 ? atoi(argv[1]) : 0, fds[CONNECTIONS_MAX];
  if (!addr || !port || !world || n < 1 || n > CONNECTIONS_MAX) return 2;
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
  if (inet_pton(AF_INET, addr, &at.sin_addr) != 1) return 2;
  for (int i = 0; i < n; i++) {
    fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fds[i], (struct sockaddr *)&at, sizeof at)) return fail("connect");
    if (say(fds[i], hello, sizeof hello - 1)) return 1;
  }
  for (int i = 0; i < n; i++) {
    char pong[4];
    if (hear(fds[i], pong, sizeof pong)) return 1;
    if (memcmp(pong, "ping", 4) != 0) return 1;
  }
  char request[1 + 8 + sizeof key - 1 + 8] = {BARRIER}, done;
  uint64_t len = htole64(sizeof key - 1), ranks = htole64((uint64_t)atoll(world));
  memcpy(request + 1, &len, 8);
  memcpy(request + 9, key, sizeof key - 1);
  memcpy(request + 9 + sizeof key - 1, &ranks, 8);
  return say(fds[n - 1], request, sizeof request) || hear(fds[n - 1], &done, 1);
}
