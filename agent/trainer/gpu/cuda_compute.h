#ifndef AGENT_TRAINER_GPU_COMPUTE_CUDA_H
#define AGENT_TRAINER_GPU_COMPUTE_CUDA_H

/* What the files of CUDA's compute share, and what coll_nccl may know of it:
 *
 *   compute_cuda.c  the device: which, opened, closed; what it says when something fails
 *   cuda_mem.c      buffers, copies
 *   cuda_queue.c    marks, poison, capture, names for the profiler
 *   cuda_layer.c    layers: forward, backward;   cuda_matmul.c  one matrix product of cuBLASLt, with its algorithm
 *   cuda_rows.c     a data set that stays on the device
 *   cuda_opt.c      losses and the optimizer, which are kernels only
 *
 * There is one stream, to which everything is queued in the order of the calls; so one workspace and one scratch for sums are enough. Only
 * batches that are sent, and a state that is fetched, go beside it on streams of their own; it waits for the former. Who has
 * a stream of his own (coll_nccl) waits for events recorded in cuda_stream(), and makes it wait for his: both are captured along. */

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include "agent/trainer/compute/compute.h"
#include "agent/trainer/gpu/gpu.h"
#include "agent/trainer/gpu/kernels.h"
#include "agent/trainer/gpu/datasheet.h"

/* A mark of what is fetched: there is one at a time. */
#define CUDA_FETCH_MARK (UINT64_C(1) << 63)

enum { CUDA_MARKS = 64, CUDA_DEPTH = 2, CUDA_IDLE_MS = 10000 };

struct compute_buf {
  enum compute_use use;
  enum kernel_type type; /* of `data` */
  size_t n;
  void *data; /* device memory; of a stage: pinned host memory */
  void *low;  /* COMPUTE_PARAM in bf16, fp16: the copy that matrix products read */
  struct
  { /* COMPUTE_ACT: the layer whose forward wrote it last, whose mask is therefore right; serial 0: none */
    const struct compute_layer *layer;
    uint64_t serial;
    size_t at, rows;
  } made_by;
};

struct cuda {
  struct compute base;
  int device, sm; /* sm: 90 */
  bool deterministic, capturing;
  bool stuck; /* cuda_idle has waited in vain */
  bool
      held; /* some other stream of this device will not come to its end, perhaps never: nothing can be freed any more */
  enum rules_matmul matmul;
  enum kernel_type low; /* what activations are made of */
  cudaStream_t stream;
  cudaStream_t sends; /* copies to the device beside the other stream */
  cudaEvent_t sent;
  cudaStream_t fetches; /* copies to the host beside it */
  cudaEvent_t fetch_from, fetched;
  cublasLtHandle_t lt;
  void *workspace;
  size_t workspace_size;
  double *partials;
  unsigned *poison, *poison_dev; /* one word of mapped host memory, and its address on the device */
  cudaEvent_t events[CUDA_MARKS];
  uint64_t recorded, done; /* marks: the last one recorded; the last one known to be done */
  uint64_t serials;        /* of layers, to tell one from another at the same address */
  struct compute_layer *layers;
  const char *last; /* what was queued last, for people */
};

static inline struct cuda *cuda_of(struct compute *c) {
  return (struct cuda *)c; /* base comes first */
}

/* For coll_nccl. The pointer is valid until compute_free. */
static inline cudaStream_t cuda_stream(struct compute *c) {
  return cuda_of(c)->stream;
}
static inline int cuda_device(struct compute *c) {
  return cuda_of(c)->device;
}
static inline bool cuda_capturing(struct compute *c) {
  return cuda_of(c)->capturing;
}
static inline void *cuda_at(struct span s) {
  return (char *)s.buf->data + s.at * kernel_type_size(s.buf->type);
}

/* Sentences. `what` is what was to be done, "the copy": -EIO, or -ENOMEM; an error that came from what was queued before says what that was.
 * 0 for success. */
int cuda_check(struct compute *c, cudaError_t rc, const char *what, struct err *e);
/* The same for a kernel's launcher; `what` is remembered as the last thing that was queued. */
int cuda_launched(struct compute *c, int rc, const char *what, struct err *e);
/* -EINVAL if this cannot be captured and a capture is under way. */
int cuda_not_captured(struct compute *c, const char *what, struct err *e);
/* Waits until everything is done, CUDA_IDLE_MS at most, and only once: who frees a hundred buffers of a device that stands still does not
 * wait for each. False: it is not, or the device has failed, or it is held: cudaFree waits for all of the device. */
bool cuda_idle(struct compute *c);

int cuda_mem_alloc(struct compute *c, enum compute_use use, size_t n, struct compute_buf **out,
                   struct err *e);
void cuda_mem_free(struct compute *c, struct compute_buf *b);
float *cuda_mem_host(struct compute *c, struct span s);
int cuda_mem_copy(struct compute *c, struct span dst, struct span src, struct err *e);
int cuda_mem_tell(struct compute *c, const struct compute_pair *v, int n, struct span stamp, struct err *e);
int cuda_mem_fetch(struct compute *c, struct span dst, struct span src, struct compute_mark *mark,
                   struct err *e);
int cuda_mem_send(struct compute *c, struct span dst, struct span src, struct err *e);
int cuda_mem_fill(struct compute *c, struct span dst, float value, struct err *e);
/* Plain device memory, zero. */
int cuda_mem_raw(struct compute *c, size_t bytes, void **out, struct err *e);

int cuda_rows_create(struct compute *c, const struct compute_rows_desc *d, struct compute_rows **out,
                     struct err *e);
void cuda_rows_destroy(struct compute *c, struct compute_rows *r);
int cuda_rows_take(struct compute *c, struct compute_rows *r, struct span dst, struct span numbers,
                   struct err *e);

int cuda_queue_init(struct compute *c, struct err *e);
void cuda_queue_finish(struct compute *c);
int cuda_queue_record(struct compute *c, struct compute_mark *mark, struct err *e);
int cuda_queue_done(struct compute *c, struct compute_mark mark, struct err *e);
void cuda_queue_poison(struct compute *c, bool on);
int cuda_queue_capture_begin(struct compute *c, struct err *e);
int cuda_queue_capture_end(struct compute *c, struct compute_graph **out, struct err *e);
int cuda_queue_launch(struct compute *c, struct compute_graph *g, struct err *e);
void cuda_queue_graph_destroy(struct compute *c, struct compute_graph *g);
void cuda_queue_range_push(struct compute *c, const char *name);
void cuda_queue_range_pop(struct compute *c);

/* One product, column-major as cuBLAS has it: D[m][n] = op(A) op(B) + (add ? D : 0). A and B are in the precision, D in `d`. */
struct cuda_product {
  struct kernel_gemm g;
  const void *a, *b;
  void *d;
  cublasLtEpilogue_t epilogue;
  void *bias;         /* in the type of D; for epilogues that have one */
  void *mask;         /* for epilogues that have one */
  int64_t mask_ld;    /* bits */
  struct rules_key k; /* product and rows are given, the rest is filled in */
};

enum { CUDA_PLANS = 24 }; /* per layer: three products, two ways, four numbers of rows */

/* An algorithm, or that there is none. */
struct cuda_plan {
  struct rules_key key;
  bool known, found;
  cublasLtMatmulAlgo_t algo;
  uint64_t used; /* when, to find the oldest */
};

struct cuda_plans {
  struct cuda_plan v[CUDA_PLANS];
  uint64_t uses;
};

/* 1: queued. 0: cuBLASLt has no algorithm for it. */
int cuda_matmul(struct compute *c, struct cuda_plans *plans, struct cuda_product *p, const char *what,
                struct err *e);

int cuda_layer_create(struct compute *c, const struct compute_layer_desc *d, struct compute_layer **out,
                      struct err *e);
void cuda_layer_destroy(struct compute *c, struct compute_layer *l);
int cuda_layer_forward(struct compute *c, struct compute_layer *l, struct compute_buf *params, struct span x,
                       struct span y, size_t rows, struct err *e);
int cuda_layer_backward(struct compute *c, struct compute_layer *l, struct compute_buf *params,
                        struct compute_buf *grads, struct span x, struct span dz, struct span dx, size_t rows,
                        bool add, struct err *e);

int cuda_opt_loss(struct compute *c, const struct compute_loss_desc *d, struct span y, struct span target,
                  struct span dz, struct span out, struct err *e);
int cuda_opt_correct(struct compute *c, struct span y, struct span target, struct span out, size_t rows,
                     size_t cols, struct err *e);
int cuda_opt_create(struct compute *c, const struct compute_opt_desc *d, struct compute_opt **out,
                    struct err *e);
void cuda_opt_destroy(struct compute *c, struct compute_opt *o);
struct compute_buf *cuda_opt_state(struct compute_opt *o, int i);
int cuda_opt_step(struct compute *c, struct compute_opt *o, struct span param, struct span grad,
                  struct span lr, struct span bad, struct err *e);
int cuda_opt_read(struct compute *c, struct compute_opt *o, struct span stage, struct err *e);
int cuda_opt_set(struct compute *c, struct compute_opt *o, const struct compute_opt_counters *v,
                 struct err *e);

/* The module's compute_create. */
int cuda_create(const struct gpu_config *cfg, struct compute **out, struct err *e);

#endif
