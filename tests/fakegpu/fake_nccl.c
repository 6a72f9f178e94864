/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators of NCCL's stand-in: how they come up, are polled, and end.
 *
 * Stricter than the library: no threads help, so a communicator comes up only while it is polled, and later than it
 * could. Between a call that returned "in progress" and a poll that returns "done", any other call on the communicator
 * ends the program, because the documentation forbids it. As with the library, an abort returns only when all graphs
 * that have captured the communicator are destroyed. fake_nccl_board.c says how ranks see deaths and aborts.
 *
 * It cannot show topologies, transports, algorithms and their speed, or differences of versions. */

#include "tests/fakegpu/fake_nccl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { GATHER_POLLS = 200 };

bool fake_nccl_enter(const char *name, struct ncclComm *c, ncclResult_t *rc) {
  fake_lock();
  *rc = ncclSuccess;
  if (fake_take_last(false) == cudaErrorIllegalAddress) *rc = ncclUnhandledCudaError;
  if (fake_injected(name)) *rc = ncclInternalError;
  if (*rc == ncclSuccess && c && c->failed != ncclSuccess) *rc = c->failed;
  if (*rc == ncclSuccess && c && fake_comm_in_progress(c))
    fake_die("%s on a communicator that is still in progress", name);
  if (*rc == ncclSuccess) return true;
  fake_unlock();
  return false;
}

ncclResult_t fake_nccl_leave(ncclResult_t rc) {
  fake_unlock();
  return rc;
}

/* While ranks connect, a rank may see a peer's death as a failed call of CUDA: of memory that the peer shared. */
static ncclResult_t peer_lost(const struct ncclComm *c) {
  return c->rank % 2 ? ncclUnhandledCudaError : ncclRemoteError;
}

static void close_fd(int *fd) {
  if (*fd >= 0) close(*fd);
  *fd = -1;
}

void fake_comm_close(struct ncclComm *c) {
  close_fd(&c->listener);
  for (int i = 0; i < FAKE_IDS_MAX; i++) close_fd(&c->roots[i]);
  for (int i = 0; i < FAKE_WORLD_MAX; i++) close_fd(&c->peers[i]);
}

void fake_comm_drop(struct ncclComm *c) {
  if (--c->refs) return;
  fake_comm_close(c);
  fake_talk_drop(c);
  fake_board_drop(c);
  for (struct fake_range *next; c->mapped; c->mapped = next) {
    next = c->mapped->next;
    free(c->mapped);
  }
  free(c);
}

static int dial(uint16_t port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
  if (connect(fd, (struct sockaddr *)&at, sizeof at))
    close_fd(&fd);
  else
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}

uint16_t fake_comm_listen(struct ncclComm *c) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof at;
  c->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (bind(c->listener, (struct sockaddr *)&at, sizeof at) || listen(c->listener, 128) ||
      getsockname(c->listener, (struct sockaddr *)&at, &size))
    return 0;
  return ntohs(at.sin_port);
}

static ncclResult_t start(struct ncclComm *c, const ncclUniqueId *ids) {
  uint16_t port = fake_comm_listen(c);
  if (!port) return ncclSystemError;
  for (int i = 0; i < c->n_ids; i++) {
    struct fake_id id;
    memcpy(&id, &ids[i], sizeof id);
    if (id.magic != FAKE_ID_MAGIC) return ncclInvalidArgument;
    struct fake_hello h = {.nonce = id.nonce, .world = (uint32_t)c->world, .rank = (uint32_t)c->rank, .port = port};
    c->roots[i] = dial(id.port);
    if (c->roots[i] < 0 || send(c->roots[i], &h, sizeof h, MSG_NOSIGNAL) != (ssize_t)sizeof h) return ncclRemoteError;
  }
  return ncclSuccess;
}

/* All roots have answered, so all ranks are there. */
static void hear_roots(struct ncclComm *c) {
  uint16_t ports[FAKE_WORLD_MAX];
  size_t want = (size_t)c->world * sizeof *ports;
  for (int i = 0; i < c->n_ids; i++) {
    ssize_t n = recv(c->roots[i], ports, want, MSG_PEEK | MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) c->failed = peer_lost(c);
    if (n != (ssize_t)want) return;
  }
  for (int i = 0; i < c->n_ids; i++) close_fd(&c->roots[i]);
  c->phase = FAKE_STAR;
  if (c->rank > 0) fake_comm_dial(c, ports[0]);
}

void fake_comm_dial(struct ncclComm *c, uint16_t port) {
  uint32_t rank = (uint32_t)c->rank;
  c->peers[0] = dial(port);
  if (c->peers[0] < 0 || send(c->peers[0], &rank, sizeof rank, MSG_NOSIGNAL) != (ssize_t)sizeof rank)
    c->failed = peer_lost(c);
  c->phase = FAKE_GO;
}

static void take_peers(struct ncclComm *c) {
  int here = 1;
  for (int fd; (fd = accept4(c->listener, NULL, NULL, SOCK_CLOEXEC)) >= 0;) {
    uint32_t rank = 0;
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (recv(fd, &rank, sizeof rank, MSG_WAITALL) == (ssize_t)sizeof rank && rank < (uint32_t)c->world)
      c->peers[rank] = fd;
    else
      close(fd);
  }
  for (int i = 1; i < c->world; i++) here += c->peers[i] >= 0;
  if (here < c->world) return;
  struct fake_go go;
  fake_board_create(c, &go);
  for (int i = 1; i < c->world; i++)
    if (send(c->peers[i], &go, sizeof go, MSG_NOSIGNAL) != (ssize_t)sizeof go) c->failed = peer_lost(c);
  c->phase = FAKE_LATE;
}

static void await_go(struct ncclComm *c) {
  struct fake_go go;
  ssize_t n = recv(c->peers[0], &go, sizeof go, MSG_PEEK | MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN)) c->failed = peer_lost(c);
  if (n != (ssize_t)sizeof go) return;
  (void)recv(c->peers[0], &go, sizeof go, MSG_DONTWAIT);
  fake_board_open(c, &go);
  c->phase = FAKE_LATE;
}

static void meet(struct ncclComm *c) {
  if (c->phase == FAKE_ROOTS) hear_roots(c);
  if (c->phase == FAKE_STAR && !c->failed) take_peers(c);
  if (c->phase == FAKE_GO && !c->failed) await_go(c);
  if (c->phase == FAKE_LATE && !c->failed && fake_random(3) == 0) c->state = FAKE_READY;
}

void fake_comm_poll(struct ncclComm *c) {
  if (c->failed != ncclSuccess) return;
  if (c->state == FAKE_MEETING)
    meet(c);
  else if (c->state == FAKE_READY)
    fake_board_look(c);
  if (c->talk) fake_talk_poll(c);
  if (c->delay > 0) c->delay--;
  if (c->delay == 0 && c->pending) fake_comm_queue_pending(c);
}

bool fake_comm_in_progress(const struct ncclComm *c) {
  return c->state == FAKE_MEETING || c->pending || c->talk;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *out) {
  fake_lock();
  fake_comm_poll(c);
  fake_poll();
  *out = c->failed                                          ? c->failed
         : fake_comm_in_progress(c) || c->delay > 0         ? ncclInProgress
         : c->state == FAKE_FINALIZED && c->outstanding > 0 ? ncclInProgress
         : fake_take_last(false) == cudaErrorIllegalAddress ? ncclUnhandledCudaError
                                                            : ncclSuccess;
  fake_unlock();
  return ncclSuccess;
}

static ncclResult_t wait_ready(struct ncclComm *c) {
  while (c->state == FAKE_MEETING && !c->failed) {
    fake_comm_poll(c);
    fake_unlock();
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    fake_lock();
  }
  return c->failed;
}

struct ncclComm *fake_comm_create(int world, int rank, const ncclConfig_t *config) {
  struct ncclComm *c = calloc(1, sizeof *c);
  *c = (struct ncclComm){.refs = 1, .rank = rank, .world = world, .listener = -1};
  c->blocking = !config || config->blocking != 0;
  memset(c->roots, -1, sizeof c->roots);
  memset(c->peers, -1, sizeof c->peers);
  return c;
}

ncclResult_t fake_comm_init(ncclComm_t *out, int world, int rank, int n_ids, const ncclUniqueId *ids,
                            const ncclConfig_t *config) {
  ncclResult_t rc;
  *out = NULL;
  if (!fake_nccl_enter("ncclCommInitRank", NULL, &rc)) return rc;
  if (world < 1 || world > FAKE_WORLD_MAX || rank < 0 || rank >= world || n_ids < 1 || n_ids > world)
    return fake_nccl_leave(ncclInvalidArgument);
  if (config && (config->magic != (unsigned)NCCL_API_MAGIC || config->size > sizeof *config))
    return fake_nccl_leave(ncclInvalidArgument);
  struct ncclComm *c = fake_comm_create(world, rank, config);
  c->n_ids = n_ids;
  rc = start(c, ids);
  if (rc != ncclSuccess) {
    fake_comm_drop(c);
    return fake_nccl_leave(rc);
  }
  *out = c;
  return fake_nccl_leave(c->blocking ? wait_ready(c) : ncclInProgress);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int world, ncclUniqueId id, int rank, ncclConfig_t *config) {
  return fake_comm_init(out, world, rank, 1, &id, config);
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int world, ncclUniqueId id, int rank) {
  return fake_comm_init(out, world, rank, 1, &id, NULL);
}

ncclResult_t ncclCommFinalize(ncclComm_t c) {
  ncclResult_t rc;
  if (!fake_nccl_enter("ncclCommFinalize", c, &rc)) return rc;
  c->state = FAKE_FINALIZED;
  c->delay = c->blocking ? 0 : 1 + (int)fake_random(4);
  return fake_nccl_leave(c->blocking ? ncclSuccess : ncclInProgress);
}

static bool all_done(void *ctx) {
  return ((struct ncclComm *)ctx)->outstanding == 0;
}

static _Noreturn void never_return(void) {
  fake_unlock();
  for (;;) pause();
}

/* NCCL returns only when the graphs that have captured the communicator are gone: another thread must destroy them. */
static void await_graphs(struct ncclComm *c) {
  while (c->refs > 1) {
    fake_poll();
    fake_unlock();
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    fake_lock();
  }
}

/* Waits for the work in progress. The peers do not take it for a death. */
ncclResult_t ncclCommDestroy(ncclComm_t c) {
  ncclResult_t rc;
  if (!fake_nccl_enter("ncclCommDestroy", NULL, &rc)) return rc;
  if (fake_comm_in_progress(c)) fake_die("a communicator is destroyed that is still in progress");
  if (c->failed) fake_die("a communicator that has failed is destroyed, not aborted: this may wait for ever");
  fake_until(all_done, c);
  fake_board_leave(c);
  fake_comm_close(c);
  c->state = FAKE_ABORTED;
  await_graphs(c);
  fake_comm_drop(c);
  return fake_nccl_leave(ncclSuccess);
}

/* Never returns with FAKEGPU_FAIL, and where NCCL joins a thread that gathers the ranks for NVLS: that wait (nvls.cc,
 * shmutils.cc) does not read the abort flag. */
ncclResult_t ncclCommAbort(ncclComm_t c) {
  fake_lock();
  for (int i = 0; c->registering && i < GATHER_POLLS; i++) {
    fake_comm_poll(c);
    fake_poll();
    fake_unlock();
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    fake_lock();
  }
  bool stuck = c->registering || fake_injected("ncclCommAbort");
  if (fake_comm_give_away) fake_comm_give_away(c);
  fake_board_abort(c);
  c->state = FAKE_ABORTED;
  fake_talk_drop(c);
  fake_comm_queue_pending(c);
  fake_comm_close(c);
  if (stuck) never_return(); /* the kernels have left */
  await_graphs(c);
  fake_comm_drop(c);
  return fake_nccl_leave(ncclSuccess);
}

ncclResult_t ncclCommCount(const ncclComm_t c, int *n) {
  *n = c->world;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank) {
  *rank = c->rank;
  return ncclSuccess;
}
