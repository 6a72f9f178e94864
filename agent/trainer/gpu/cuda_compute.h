/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_CUDA_COMPUTE_H
#define AGENT_TRAINER_GPU_CUDA_COMPUTE_H

/* Shared by the files of CUDA's compute and, in part, by the files of NCCL.
 *
 * Operations are queued on one stream in the order of the calls, so one workspace and one scratch buffer for sums
 * suffice. NCCL has its own stream. Each of the two waits for events of the other one, so both are captured together. */

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include "agent/trainer/compute/compute.h"
#include "agent/trainer/gpu/gpu.h"
#include "agent/trainer/gpu/kernels.h"

enum { CUDA_MARKS = 64, CUDA_DEPTH = 2, CUDA_IDLE_MS = 10000 };

struct compute_buf {
  enum compute_use use;
  enum kernel_type type; /* of `data` */
  size_t n;
  void *data; /* device memory; of a stage: pinned host memory */
  void *low;  /* COMPUTE_PARAM in bf16: the copy that matrix products read */
  struct {    /* COMPUTE_ACT: the layer whose forward wrote it last, so its mask fits; serial 0: none */
    const struct compute_layer *layer;
    uint64_t serial;
    size_t at, rows;
  } made_by;
};

struct cuda {
  struct compute base;
  int device, sm; /* sm: 90 */
  bool deterministic, capturing;
  bool stuck;           /* cuda_idle has timed out */
  enum kernel_type low; /* type of the activations */
  cudaStream_t stream;
  cublasLtHandle_t lt;
  void *workspace;
  size_t workspace_size;
  struct kernel_scratch *scratch;
  /* One word of mapped host memory, and its device address. Not 0: updates are blocked. */
  unsigned *blocked, *blocked_dev;
  cudaEvent_t events[CUDA_MARKS];
  uint64_t recorded, done; /* marks: the last one recorded; the last one known to be done */
  uint64_t serials;        /* of layers, to tell them apart at the same address */
  struct compute_layer *layers;
  const char *last; /* the operation queued last, for messages */
};

static inline struct cuda *cuda_of(struct compute *c) {
  return (struct cuda *)c; /* base comes first */
}

/* For the files of NCCL. Valid until compute_destroy. */
static inline cudaStream_t cuda_stream(struct compute *c) {
  return cuda_of(c)->stream;
}
static inline int cuda_device(struct compute *c) {
  return cuda_of(c)->device;
}
static inline void *cuda_at(struct span s) {
  return (char *)s.buf->data + s.at * kernel_type_size(s.buf->type);
}

/* 0 for success, else -EIO or -ENOMEM and a message. what: the operation, "a copy". If an earlier operation caused the
 * error, the message names the one queued last. */
int cuda_check(struct compute *c, cudaError_t rc, const char *what, struct err *e);
/* The same for the launcher of a kernel; remembers `what` as the operation queued last. */
int cuda_launched(struct compute *c, int rc, const char *what, struct err *e);
/* -EINVAL if a capture is in progress, because `what` cannot be captured. */
int cuda_not_captured(struct compute *c, const char *what, struct err *e);
/* Waits until the device is idle, CUDA_IDLE_MS at most, and only once: freeing a hundred buffers of a stuck device does
 * not wait for each. False: it is not idle, has failed, or is held. cudaFree waits for the whole device. */
bool cuda_idle(struct compute *c);

int cuda_mem_alloc(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out, struct err *e);
void cuda_mem_free(struct compute *c, struct compute_buf *b);
float *cuda_mem_host(struct compute *c, struct span s);
int cuda_mem_copy(struct compute *c, struct span dst, struct span src, struct err *e);
int cuda_mem_copy_and_stamp(struct compute *c, struct span dst, struct span src, struct span stamp, struct err *e);
/* Zeroed device memory. */
int cuda_mem_raw(struct compute *c, size_t bytes, void **out, struct err *e);

int cuda_rows_create(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out, struct err *e);
void cuda_rows_destroy(struct compute *c, struct compute_rows *r);
int cuda_rows_gather(struct compute *c, struct compute_rows *r, struct span dst, struct span numbers, struct err *e);

int cuda_layer_create(struct compute *c, const struct compute_layer_desc *d, struct compute_layer **out, struct err *e);
void cuda_layer_destroy(struct compute *c, struct compute_layer *l);
int cuda_layer_forward(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                       struct span y, size_t rows, struct err *e);
int cuda_layer_backward_weight(struct compute *c, struct compute_layer *l, struct compute_buf *grads, struct span x,
                               struct span dz, struct compute_part part, size_t rows, struct err *e);
int cuda_layer_backward_input(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                              struct span dz, struct span dx, size_t rows, struct err *e);

int cuda_opt_loss(struct compute *c, const struct compute_loss_desc *d, struct span y, struct span target,
                  struct span dz, struct span out, struct err *e);
int cuda_opt_create(struct compute *c, const struct compute_opt_desc *d, struct compute_opt **out, struct err *e);
void cuda_opt_destroy(struct compute *c, struct compute_opt *o);
struct compute_buf *cuda_opt_state(struct compute_opt *o, int i);
int cuda_opt_step(struct compute *c, struct compute_opt *o, const struct compute_update *update, struct err *e);
int cuda_opt_read(struct compute *c, struct compute_opt *o, struct span stage, struct err *e);
int cuda_opt_set(struct compute *c, struct compute_opt *o, const struct compute_opt_counters *v, struct err *e);
int cuda_opt_checksum(struct compute *c, struct span s, struct span out, struct err *e);

/* The module's compute_create. */
int cuda_create(const struct gpu_config *cfg, struct compute **out, struct err *e);

#endif
