#ifndef AGENT_TRAINER_GPU_GPU_H
#define AGENT_TRAINER_GPU_GPU_H

/* What rdzv-cuda.so gives to rdzv-trainer, which opens it at run time: so that one trainer runs with and without CUDA on the machine, and
 * says in a sentence what is missing. The module exports one symbol, `rdzv_gpu`. Both sides are built from one tree; `abi` finds a module
 * that was left behind by another one.
 *
 * No other file outside gpu/ knows of CUDA or NCCL. */

#include <stdint.h>
#include "agent/trainer/coll/coll.h"
#include "agent/trainer/compute/compute.h"

enum { GPU_ABI = 4, GPU_ID_SIZE = 128, GPU_IDS_MAX = 64 };

struct gpu_config {
  int device; /* among those that CUDA shows to this process */
  enum compute_precision precision;
  bool deterministic; /* the same bytes on every run, on the same device and versions, at some cost */
};

/* A board that the ranks of a round share, below a key. post puts bytes behind those that are there; peek gives all of them, for the caller
 * to free, or none (*all NULL, *size 0). Neither waits for another rank: rdzv_store_append and rdzv_store_try_get do both. */
typedef int (*gpu_post_fn)(void *ctx, const char *key, const void *bytes, size_t size, int timeout_ms,
                           struct err *e);
typedef int (*gpu_peek_fn)(void *ctx, const char *key, char **all, size_t *size, int timeout_ms,
                           struct err *e);

struct coll_nccl_config {
  int rank, world;
  uint32_t round;
  const void *ids; /* n_ids ncclUniqueIds of GPU_ID_SIZE bytes each, the same on every rank */
  int n_ids;
  uint64_t timeout_ms;   /* for the communicators to come up, and for any collective */
  uint64_t stop_wait_ms; /* the same once *stop is set */
  int ids_version;       /* of the NCCL that minted the ids, as ncclGetVersion has it; 0: not known */
  const volatile sig_atomic_t *stop; /* or NULL */
  coll_exchange_fn exchange;         /* all ranks, once, before there is a communicator */
  void *exchange_ctx;
  gpu_post_fn
      post; /* where ranks tell each other how far they are when one of them is missed; NULL: nowhere */
  gpu_peek_fn peek;
  void *board_ctx;
};

struct gpu_module {
  uint32_t abi; /* GPU_ABI */
  int (*compute_create)(const struct gpu_config *cfg, struct compute **out, struct err *e);
  /* On the device of `c`, which must outlive it. A world of one is fine. */
  int (*coll_create)(const struct coll_nccl_config *cfg, struct compute *c, struct coll **out, struct err *e);
  /* For who is alone, or meets the others by itself. The process that asked must live until all are connected. */
  int (*unique_id)(void *id, struct err *e);
  int (*nccl_version)(void); /* as ncclGetVersion has it: 22803 */
};

#endif
