/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAKEGPU_FAKE_NCCL_H
#define TESTS_FAKEGPU_FAKE_NCCL_H

/* Shared by the files of NCCL's stand-in. An id names a port, at which a thread of the process that made it, the root,
 * lets the ranks meet. After that rank 0 is the center of a star. */

#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include "tests/fakegpu/fake.h"

enum { FAKE_IDS_MAX = 64, FAKE_WORLD_MAX = 64 };

struct fake_id {
  uint64_t magic, nonce;
  uint16_t port;
};
#define FAKE_ID_MAGIC UINT64_C(0x31414b4146434c4e)

/* What a rank sends to the root; the answer is `world` ports. */
struct fake_hello {
  uint64_t nonce;
  uint32_t world, rank;
  uint16_t port;
};

/* What ranks see of each other beside the bytes of collectives, in memory that all map. All are read and written by
 * atomic operations. Each rank also holds a lock on one byte of the file behind it, which the kernel drops when the
 * rank's process ends, however it ends. */
struct fake_board {
  uint32_t joined[FAKE_WORLD_MAX]; /* it holds its lock */
  uint32_t left[FAKE_WORLD_MAX];   /* ended in order */
  uint32_t aborted[FAKE_WORLD_MAX];
  uint64_t reach[FAKE_WORLD_MAX]; /* of a rank that has aborted: collectives that its kernels have run through */
};

enum fake_comm_state { FAKE_MEETING, FAKE_READY, FAKE_FINALIZED, FAKE_ABORTED };

struct fake_coll;

/* What ranks tell each other on the host, outside of any stream: each sends a card, and gets those of all. */
struct fake_card {
  uint64_t word[8]; /* the first three are set by fake_talk_begin */
};

struct fake_talk;
typedef bool fake_talk_end_fn(struct ncclComm *c, const struct fake_card *all, void *ctx);

/* Memory of a captured collective. */
struct fake_range {
  struct fake_range *next;
  char *at;
  size_t n;
  uint64_t serial; /* of the allocation */
};

struct ncclComm {
  int refs; /* the caller's, and of each piece of work */
  int rank, world, n_ids;
  enum fake_comm_state state;
  int phase;
  ncclResult_t failed;
  bool blocking;
  int listener, roots[FAKE_IDS_MAX];
  int peers[FAKE_WORLD_MAX]; /* of rank 0: to all; of others: to 0 at [0] */
  struct fake_board *board;
  int board_fd;
  uint64_t looked_ms;
  bool blind[FAKE_WORLD_MAX]; /* does not see the end of this rank */
  char tears[FAKE_WORLD_MAX]; /* the abort of this rank completes a collective here with stale data: 'y', 'n', 0 */
  bool torn;                  /* it has done so: no byte of the connections has a meaning any more */
  uint64_t nonces[FAKE_IDS_MAX];
  struct fake_talk *talk; /* in progress, or NULL */
  uint64_t talks;
  bool registering;          /* the talk is of a captured collective beside NVLink's switches */
  int delay;                 /* polls until the last request is done */
  struct fake_coll *pending; /* not yet in their streams */
  void *in_flight;           /* one at a time */
  int outstanding;
  struct fake_range *mapped;
  uint64_t seq, tickets, serving;
  uint64_t capture_id; /* the collective captured last */
  int capture_node;
  uint32_t captures;
};

/* fake_nccl.c. How a communicator comes up. */
enum fake_phase { FAKE_ROOTS, FAKE_STAR, FAKE_GO, FAKE_LATE };
ncclResult_t fake_comm_init(ncclComm_t *out, int world, int rank, int n_ids, const ncclUniqueId *ids,
                            const ncclConfig_t *config);
struct ncclComm *fake_comm_create(int world, int rank, const ncclConfig_t *config);
/* Opens c->listener, or returns 0. */
uint16_t fake_comm_listen(struct ncclComm *c);
void fake_comm_dial(struct ncclComm *c, uint16_t port); /* rank 0; sets c->failed */
void fake_comm_close(struct ncclComm *c);
/* true: the caller must poll until the communicator leaves its progress. */
bool fake_comm_in_progress(const struct ncclComm *c);
/* fake_nccl_board.c. Rank 0 creates a board, the others open it by what rank 0 tells them. */
struct fake_go {
  int32_t pid, fd;
};
void fake_board_create(struct ncclComm *c, struct fake_go *go);
void fake_board_open(struct ncclComm *c, const struct fake_go *go);
void fake_board_drop(struct ncclComm *c);
void fake_board_leave(struct ncclComm *c);
void fake_board_abort(struct ncclComm *c);
void fake_board_reach(struct ncclComm *c); /* one more collective */
/* Fails the communicator if a peer has died or aborted, and this rank is one that sees it. */
void fake_board_look(struct ncclComm *c);
/* true: collective `seq` completes here although a rank has aborted in it. */
bool fake_board_tears(struct ncclComm *c, uint64_t seq);

/* fake_nccl_talk.c. `end` is called with all cards, at each poll until it returns true. `drop` frees ctx, also where a
 * failure or an abort ends the talk. */
void fake_talk_begin(struct ncclComm *c, uint64_t kind, struct fake_card mine, fake_talk_end_fn *end,
                     void (*drop)(void *ctx), void *ctx);
bool fake_talk_begun(const struct ncclComm *c);
void fake_talk_poll(struct ncclComm *c);
void fake_talk_drop(struct ncclComm *c);
/* How far bytes to and from a peer are: true when all are there. *moved is set where some went. */
bool fake_push(struct ncclComm *c, int peer, const void *from, size_t n, size_t *at, bool *moved);
bool fake_pull(struct ncclComm *c, int peer, void *to, size_t n, size_t *at, bool *moved);
/* true: work that waits for other ranks is in a stream, or about to be. */
bool fake_comm_busy(const struct ncclComm *c);

/* fake_nccl_new.c, which may be absent. */
#pragma weak fake_comm_give_away
#pragma weak fake_comm_use
/* The communicator is aborted, and the memory that it has used may be written later. */
void fake_comm_give_away(struct ncclComm *c);
/* A captured collective writes this memory. Now and then one of a communicator that was aborted does too. */
void fake_comm_use(struct ncclComm *c, void *at, size_t n);
void fake_comm_drop(struct ncclComm *c);
/* One step of meeting and of delayed work, and a check of the peers. */
void fake_comm_poll(struct ncclComm *c);
void fake_comm_queue_pending(struct ncclComm *c); /* fake_nccl_ops.c */
/* false and *rc: the call fails. Locks. */
bool fake_nccl_enter(const char *name, struct ncclComm *c, ncclResult_t *rc);
ncclResult_t fake_nccl_leave(ncclResult_t rc);

#endif
