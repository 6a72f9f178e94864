/* SPDX-License-Identifier: Apache-2.0 */
/* Deaths and aborts, as other ranks see them.
 *
 * A death is seen by nobody, by some or by all ranks (FAKEGPU_DEATHS=none|some|all; each communicator of each process
 * draws one of them otherwise): between GPUs of one node NCCL sees nothing, over a network only a neighbour does. The
 * same holds for an abort. A rank that sees it gets the asynchronous error. For the others collectives never complete.
 *
 * An aborted kernel of NCCL leaves its waits, runs through its loops on whatever is in the buffers, and publishes each
 * step. So a peer that has not aborted can complete the same collective, with stale but finite data, and with no error.
 * Here it does so with two of three seeds, as long as the aborted rank had queued that collective. */

#include "tests/fakegpu/fake_nccl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LOOK_MS = 2 };

static uint32_t get(const uint32_t *at) {
  return __atomic_load_n(at, __ATOMIC_ACQUIRE);
}

static void set(uint32_t *at) {
  __atomic_store_n(at, 1, __ATOMIC_RELEASE);
}

static struct flock lock_of(int rank) {
  return (struct flock){.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

static void draw_sight(struct ncclComm *c) {
  const char *how = getenv("FAKEGPU_DEATHS");
  uint64_t drawn = fake_random(3);
  bool all = how ? strcmp(how, "all") == 0 : drawn == 2, some = how ? strcmp(how, "some") == 0 : drawn == 1;
  if (how && !all && !some && strcmp(how, "none") != 0) fake_die("FAKEGPU_DEATHS=%s: not none, some or all", how);
  for (int i = 0; i < c->world; i++) c->blind[i] = all ? false : some ? fake_random(2) : true;
}

/* Takes the descriptor. */
static bool join(struct ncclComm *c, int fd) {
  struct flock lock = lock_of(c->rank);
  void *at = fd >= 0 ? mmap(NULL, sizeof *c->board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (at == MAP_FAILED || fcntl(fd, F_OFD_SETLK, &lock)) {
    if (fd >= 0) close(fd);
    return false;
  }
  c->board = at;
  c->board_fd = fd;
  set(&c->board->joined[c->rank]);
  draw_sight(c);
  return true;
}

void fake_board_create(struct ncclComm *c, struct fake_go *go) {
  int fd = memfd_create("fakegpu", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, sizeof *c->board) || !join(c, fd)) fake_die("no memory that ranks can share");
  *go = (struct fake_go){(int32_t)getpid(), fd};
}

void fake_board_open(struct ncclComm *c, const struct fake_go *go) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)go->pid, (int)go->fd);
  if (!join(c, open(path, O_RDWR | O_CLOEXEC))) c->failed = ncclRemoteError; /* rank 0 has died */
}

void fake_board_drop(struct ncclComm *c) {
  if (!c->board) return;
  munmap(c->board, sizeof *c->board);
  close(c->board_fd);
  c->board = NULL;
}

void fake_board_leave(struct ncclComm *c) {
  if (c->board) set(&c->board->left[c->rank]);
}

void fake_board_abort(struct ncclComm *c) {
  if (!c->board) return;
  __atomic_store_n(&c->board->reach[c->rank], c->seq, __ATOMIC_RELEASE);
  set(&c->board->aborted[c->rank]);
}

void fake_board_reach(struct ncclComm *c) {
  c->seq++;
  if (c->board) __atomic_store_n(&c->board->reach[c->rank], c->seq, __ATOMIC_RELEASE);
}

static bool is_dead(const struct ncclComm *c, int rank) {
  struct flock lock = lock_of(rank);
  return get(&c->board->joined[rank]) && fcntl(c->board_fd, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK &&
         !get(&c->board->left[rank]);
}

void fake_board_look(struct ncclComm *c) {
  uint64_t now = (uint64_t)fake_now_ms();
  if (!c->board || now - c->looked_ms < LOOK_MS) return;
  c->looked_ms = now;
  for (int i = 0; i < c->world; i++)
    if (i != c->rank && !c->blind[i] && (get(&c->board->aborted[i]) || is_dead(c, i))) c->failed = ncclRemoteError;
}

bool fake_board_tears(struct ncclComm *c, uint64_t seq) {
  for (int i = 0; c->board && i < c->world; i++) {
    if (i == c->rank || !get(&c->board->aborted[i])) continue;
    if (__atomic_load_n(&c->board->reach[i], __ATOMIC_ACQUIRE) <= seq) continue;
    if (!c->tears[i]) c->tears[i] = fake_random(3) ? 'y' : 'n';
    if (c->tears[i] == 'y') return true;
  }
  return false;
}
