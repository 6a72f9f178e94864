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

enum fake_comm_state { FAKE_MEETING, FAKE_READY, FAKE_FINALIZED, FAKE_ABORTED };

struct fake_coll;

/* Memory that was registered; its own handle. */
struct fake_range {
  struct fake_range *next;
  const char *at;
  size_t n;
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
  bool bye[FAKE_WORLD_MAX];
  uint64_t nonces[FAKE_IDS_MAX];
  int delay;                 /* polls until the last request is done */
  struct fake_coll *pending; /* not yet in their streams */
  void *in_flight;           /* one at a time */
  int outstanding;
  struct fake_range *registered;
  uint64_t seq, tickets, serving;
  uint64_t capture_id; /* the collective captured last */
  int capture_node;
};

bool fake_comm_registered(const struct ncclComm *c, const void *at, size_t n);
void fake_comm_drop(struct ncclComm *c);
/* One step of meeting and of delayed work, and a check of the peers. */
void fake_comm_poll(struct ncclComm *c);
void fake_comm_queue_pending(struct ncclComm *c); /* fake_nccl_ops.c */
/* false and *rc: the call fails. Locks. */
bool fake_nccl_enter(const char *name, struct ncclComm *c, ncclResult_t *rc);
ncclResult_t fake_nccl_leave(ncclResult_t rc);

#endif
