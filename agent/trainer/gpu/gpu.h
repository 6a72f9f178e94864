/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_GPU_H
#define AGENT_TRAINER_GPU_GPU_H

/* The module rdzv-cuda.so, which rdzv-trainer opens at run time. So one trainer runs with and without CUDA on the
 * machine, and a message names what is missing. The module exports one symbol, `rdzv_gpu`. Both sides are built from
 * one tree, and `abi` detects a module of another build.
 *
 * Files outside gpu/ do not use CUDA or NCCL. */

#include <stdint.h>
#include "agent/trainer/coll/coll.h"
#include "agent/trainer/compute/compute.h"

enum { GPU_ABI = 12, GPU_ID_SIZE = 128, GPU_IDS_MAX = 64 };

struct gpu_config {
  int device; /* index among those that CUDA shows to this process */
  enum compute_precision precision;
  bool deterministic; /* the same bytes on every run, on the same device and versions, at some cost */
};

/* A board that the ranks of a round share, under a key. post appends bytes. peek returns all of them, for the caller to
 * free, or none (*all NULL, *size 0). Neither waits for another rank. rdzv_store_append and rdzv_store_try_get do
 * both. */
typedef int (*gpu_post_fn)(void *ctx, const char *key, const void *bytes, size_t size, int timeout_ms, struct err *e);
typedef int (*gpu_peek_fn)(void *ctx, const char *key, char **all, size_t *size, int timeout_ms, struct err *e);

struct nccl_config {
  struct coll_config ranks; /* the time for the communicator to come up, and for any collective */
  const void *ids;          /* n_ids ncclUniqueIds of GPU_ID_SIZE bytes each, equal on every rank */
  int n_ids;
  bool in_place;    /* survivors cut this communicator off, and go on with another one */
  int ids_version;  /* version of the NCCL that created the ids, as of ncclGetVersion; 0: unknown */
  gpu_post_fn post; /* where ranks post their positions when one of them is missing; NULL: nowhere */
  gpu_peek_fn peek;
  void *board_ctx;
};

struct gpu_module {
  uint32_t abi; /* GPU_ABI */
  int (*compute_create)(const struct gpu_config *cfg, struct compute **out, struct err *e);
  /* On the device of `c`, which must outlive it. A world of one is fine. */
  int (*coll_create)(const struct nccl_config *cfg, struct compute *c, struct coll **out, struct err *e);
  /* For a world of one, or a caller that distributes the id itself. This process must live until all ranks are
   * connected. */
  int (*unique_id)(void *id, struct err *e);
  int (*nccl_version)(void); /* as of ncclGetVersion: 22803 */
  /* Before any other function of NCCL: gives an environment variable of NCCL this value. false: the user has set it, in
   * the environment or in an nccl.conf, and it stays. */
  bool (*nccl_prefer)(const char *name, const char *value);
};

#endif
