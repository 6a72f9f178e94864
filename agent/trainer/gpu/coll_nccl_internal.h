#ifndef AGENT_TRAINER_GPU_COLL_NCCL_INTERNAL_H
#define AGENT_TRAINER_GPU_COLL_NCCL_INTERNAL_H

/* What the files of NCCL's collectives share:
 *
 *   coll_nccl.c        collectives: queueing, waiting, watching
 *   coll_nccl_init.c   how the communicator comes about
 *   coll_nccl_fail.c   what is said when it fails, and how it ends
 *   coll_nccl_id.c     ids and versions, which need no device */

#include <nccl.h>
#include "agent/trainer/gpu/nccl_coll.h"
#include "agent/trainer/gpu/cuda_compute.h"
#include "agent/trainer/gpu/trace.h"
#include "agent/trainer/gpu/board.h"

/* What the library at run time may be too old to have: NULL then. */
#pragma weak ncclCommInitRankScalable /* 2.23 */
#pragma weak ncclCommRegister         /* 2.19 */
#pragma weak ncclCommDeregister

enum {
  NCCL_OLDEST = 21800,  /* the oldest NCCL that this was written for: as ncclGetVersion has it */
  NCCL_STAGE = 1 << 20, /* bytes of a broadcast that go at once */
  NCCL_REGS_MAX = 16,   /* registered buffers */
  NCCL_LOOK_MS =
      250, /* who has waited so long looks at the board, and again when he has waited half as long again */
  NCCL_LOOK_MAX_MS = 2000, /* and at least so often */
  NCCL_BOARD_MS = 1000, /* how long to wait for the board; how much longer than they need for others' posts */
  NCCL_END_MS = 10000,  /* how long an end may take: of a communicator, of the stream */
  NCCL_TEXT = 200,      /* bytes of NCCL's own words */
};

struct nccl_end; /* a thread that ends a communicator */

struct nccl {
  struct coll base;
  struct coll_nccl_config cfg;
  struct compute *c;
  ncclComm_t comm; /* NULL: not there, or given to `end` */
  struct nccl_end *end;
  bool running; /* the communicator came up */

  cudaStream_t stream;
  cudaEvent_t ready, done[COLL_TICKETS_MAX], host_done;
  uint64_t tickets; /* begun */
  uint32_t bucket;  /* of the next all-reduce */
  void *stage, *stage_dev;
  void *regs[NCCL_REGS_MAX];
  int n_regs;

  struct where *where, *where_dev; /* the same memory, as the host and as the device see it */
  uint64_t *counts;
  uint64_t seen_begun, seen_done, moved_ms;   /* the last change of `where`, and when it was seen */
  uint64_t looked_ms, board_ms, stop_seen_ms; /* board_ms: when the board was looked at */
  struct where last;                          /* as it was when this rank failed; before, not used */

  struct err failed;
};

static inline struct nccl *nccl_of(struct coll *l) {
  return (struct nccl *)l; /* base comes first */
}
static inline int nccl_failed(struct nccl *n, struct err *e) {
  return n->failed.code ? err_set(e, n->failed.code, "%s", n->failed.text) : 0;
}

/* coll_nccl.c */
/* "all-reduce of bucket 3 (elements 1200..2400)" */
enum { NCCL_CALL_TEXT = 128 };
void nccl_call_text(const struct where_call *call, char out[NCCL_CALL_TEXT]);
/* Cheap: has something gone wrong, is something late? */
int nccl_watch(struct nccl *n, struct err *e);
/* Until when to wait for something that has not moved since then. */
uint64_t nccl_deadline(struct nccl *n, uint64_t since_ms);

/* coll_nccl_fail.c */
/* All of these are the end: the sentence is remembered, updates that are queued are poisoned, the others are told as far as there is
 * a board, the communicator is aborted. */
int nccl_fail_late(struct nccl *n, const char *what, uint64_t waited_ms, struct err *e);
int nccl_fail_result(struct nccl *n, ncclResult_t rc, const char *what, struct err *e);
/* e holds a sentence about this rank itself. */
int nccl_fail_own(struct nccl *n, struct err *e);
/* Says on the board where this rank is. */
void nccl_post(struct nccl *n, enum whom_state state, const char *why);
/* Called all the time while this rank waits, for so long already: looks at the board now and then. If somebody has failed, that is the
 * end here too; `what` is what this rank waits for. */
int nccl_look(struct nccl *n, const char *what, uint64_t waited_ms, struct err *e);
void nccl_abort(struct coll *l, const char *why);
void nccl_destroy(struct coll *l);
/* NCCL's words in one line. */
void nccl_words(char out[NCCL_TEXT]);

/* coll_nccl_init.c */
extern const struct coll_ops nccl_ops; /* coll_nccl.c */

#endif
