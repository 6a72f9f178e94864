/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NCCL's stand-in that needs no GPU: ids, and the thread behind each at which the ranks of a communicator
 * meet. It is also in a library of its own, libnccl.so.2, for the process that mints ids.
 *
 * As with NCCL the root lives in the process that made the id, until all ranks have connected. If that process exits
 * too early, no ranks meet. Everything is on loopback. */

#include "tests/fakegpu/fake_nccl.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

struct root {
  int listener;
  uint64_t nonce;
};

/* 0: all bytes were read. */
static int read_all(int fd, void *to, size_t n) {
  for (size_t got = 0; got < n;) {
    ssize_t k = read(fd, (char *)to + got, n - got);
    if (k <= 0) return -1;
    got += (size_t)k;
  }
  return 0;
}

static void *root_main(void *arg) {
  struct root *r = arg;
  int fds[FAKE_WORLD_MAX];
  uint16_t ports[FAKE_WORLD_MAX] = {0};
  uint32_t world = 1, here = 0;
  memset(fds, -1, sizeof fds);
  while (here < world) {
    struct fake_hello h;
    int fd = accept4(r->listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) break;
    if (read_all(fd, &h, sizeof h) || h.nonce != r->nonce || h.world > FAKE_WORLD_MAX || h.rank >= h.world) {
      close(fd);
      continue;
    }
    world = h.world;
    if (fds[h.rank] >= 0)
      close(fds[h.rank]); /* a second try of the same rank */
    else
      here++;
    fds[h.rank] = fd;
    ports[h.rank] = h.port;
  }
  for (uint32_t i = 0; i < world; i++) {
    if (fds[i] < 0) continue;
    if (send(fds[i], ports, world * sizeof *ports, MSG_NOSIGNAL) < 0) {
    }
    close(fds[i]);
  }
  close(r->listener);
  free(r);
  return NULL;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  struct root *r = malloc(sizeof *r);
  struct fake_id id = {.magic = FAKE_ID_MAGIC};
  pthread_t thread;
  _Static_assert(sizeof id <= sizeof *out, "an id has 128 bytes");
  r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(r->listener, (struct sockaddr *)&at, sizeof at) || listen(r->listener, 128) ||
      getsockname(r->listener, (struct sockaddr *)&at, &size) ||
      getrandom(&id.nonce, sizeof id.nonce, 0) != sizeof id.nonce) {
    close(r->listener);
    free(r);
    return ncclSystemError;
  }
  id.port = ntohs(at.sin_port);
  r->nonce = id.nonce;
  if (pthread_create(&thread, NULL, root_main, r)) return ncclSystemError;
  pthread_detach(thread);
  memset(out, 0, sizeof *out);
  memcpy(out, &id, sizeof id);
  return ncclSuccess;
}

/* FAKEGPU_NCCL_VERSION: for the module that lacks what is newer. */
ncclResult_t ncclGetVersion(int *version) {
  const char *text = getenv("FAKEGPU_NCCL_VERSION");
  *version = text ? atoi(text) : NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t rc) {
  static const char *const texts[] = {"no error",
                                      "unhandled cuda error",
                                      "unhandled system error",
                                      "internal error",
                                      "invalid argument",
                                      "invalid usage",
                                      "remote process exited or there was a network error",
                                      "NCCL operation in progress"};
  return (size_t)rc < sizeof texts / sizeof *texts ? texts[rc] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm) {
  return "";
}
