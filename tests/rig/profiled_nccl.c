/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rig/profiled_nccl.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum {
  PROFILE_GROUP = 1,
  PROFILE_COLL = 2,
  PROFILE_P2P = 4,
  PROFILE_PROXY_OP = 8,
  PROFILE_PROXY_STEP = 16,
  PROFILE_KERNEL_CH = 64,
  PROFILE_GROUP_API = 256,
  PROFILE_COLL_API = 512,
  PROXY_OP_SEND_POSTED = 0,
  PROXY_OP_IN_PROGRESS = 19,
  STEP_SEND_GPU_WAIT = 8,
  STEP_SEND_WAIT = 9,
  STEP_SEND_PEER_WAIT = 20,
  KERNEL_CH_STOP = 22,
};

/* The descriptors. ------------------------------------------------------------------------------------------------- */

struct proxy_op {
  pid_t pid;
  uint8_t channelId;
  int peer, nSteps, chunkSize, isSend;
};

struct descr_v1 {
  uint8_t type;
  void *parentObj;
  int rank;
  union {
    struct {
      const char *name;
      uint64_t commHash, seqNumber;
      uint8_t func;
      void const *sendBuff;
      void *recvBuff;
      size_t count;
      int root;
      uint8_t datatype;
      uint32_t op;
      size_t trafficBytes;
      uint8_t nMaxChannels, nWarps, algo, proto;
      int isCollnet, isNvls;
    } coll;
    struct {
      const char *name;
      uint64_t commHash;
      uint8_t func;
      void *buff;
      uint8_t datatype;
      size_t count;
      int peer;
    } p2p;
    struct proxy_op proxyOp;
    struct {
      int step;
    } proxyStep;
  };
};

struct descr_v3 { /* version 2 has no kernelCh, and one number more in coll */
  uint8_t type;
  void *parentObj;
  int rank;
  union {
    struct {
      const char *name;
      uint64_t commHash, seqNumber;
      const char *func;
      void const *sendBuff;
      void *recvBuff;
      size_t count;
      int root;
      const char *datatype;
      size_t trafficBytes; /* version 2 */
      uint8_t nMaxChannels, nWarps;
      const char *algo, *proto;
    } coll;
    struct proxy_op proxyOp;
    struct {
      int step;
    } proxyStep;
    struct {
      uint8_t channelId;
    } kernelCh;
  };
};

struct descr_v4 {
  uint8_t type;
  void *parentObj;
  int rank;
  union {
    struct {
      uint64_t seqNumber;
      const char *func;
      void const *sendBuff;
      void *recvBuff;
      size_t count;
      int root;
      const char *datatype;
      uint8_t nChannels, nWarps;
      const char *algo, *proto;
    } coll;
    struct proxy_op proxyOp;
    struct {
      int step;
    } proxyStep;
    struct {
      uint8_t channelId;
      uint64_t pTimer;
    } kernelCh;
  };
};

struct descr_v5 { /* and version 6 */
  uint64_t type;
  void *parentObj;
  int rank;
  union {
    struct {
      uint64_t seqNumber;
      const char *func;
      void const *sendBuff;
      void *recvBuff;
      size_t count;
      int root;
      const char *datatype;
      uint8_t nChannels, nWarps;
      const char *algo, *proto;
      void *parentGroup;
    } coll;
    struct proxy_op proxyOp;
    struct {
      int step;
    } proxyStep;
    struct {
      uint8_t channelId;
      uint64_t pTimer;
    } kernelCh;
  };
};

union state_args {
  struct {
    size_t transSize;
    int steps;
  } proxyOp; /* to version 3 */
  struct {
    size_t transSize;
  } proxyStep;
  struct {
    uint64_t pTimer;
  } kernelCh;
};

/* Sizes and places of NCCL's own headers, compiled for x86-64. */
_Static_assert(sizeof(struct descr_v1) == 120 && offsetof(struct descr_v1, coll.commHash) == 32, "v1");
_Static_assert(sizeof(struct descr_v3) == 128 && offsetof(struct descr_v3, proxyOp.isSend) == 44, "v2");
_Static_assert(sizeof(struct descr_v4) == 104 && offsetof(struct descr_v4, kernelCh.pTimer) == 32, "v4");
_Static_assert(sizeof(struct descr_v5) == 112 && offsetof(struct descr_v5, kernelCh.pTimer) == 32, "v5");

struct profiler {
  const char *name;
  union {
    int (*v1)(void **context, int *mask);
    int (*v4)(void **context, int *mask, const char *name, uint64_t hash, int nodes, int size, int rank, void *log);
    int (*v5)(void **context, uint64_t id, int *mask, const char *name, int nodes, int size, int rank, void *log);
  } init;
  int (*startEvent)(void *context, void **handle, void *descr);
  int (*stopEvent)(void *handle);
  int (*recordEventState)(void *handle, int state, union state_args *args);
  int (*finalize)(void *context);
};

struct profiled_comm {
  void *library;
  struct profiler *p;
  int version, rank, mask;
  uint64_t hash, seq;
  void *context;
};

struct profiled_comm *profiled_open(const char *library, int version, uint64_t hash, int size, int rank) {
  char name[32];
  struct profiled_comm *c = calloc(1, sizeof(*c));
  *c = (struct profiled_comm){
      .library = dlopen(library, RTLD_NOW | RTLD_LOCAL), .version = version, .rank = rank, .hash = hash};
  snprintf(name, sizeof(name), "ncclProfiler_v%d", version);
  if (c->library) c->p = dlsym(c->library, name);
  if (!c->p) {
    if (!c->library) fprintf(stderr, "%s\n", dlerror());
    free(c);
    return NULL;
  }
  if (version <= 3)
    c->p->init.v1(&c->context, &c->mask);
  else if (version == 4)
    c->p->init.v4(&c->context, &c->mask, "world", hash, 2, size, rank, NULL);
  else
    c->p->init.v5(&c->context, hash, &c->mask, "world", 2, size, rank, NULL);
  return c;
}

void profiled_close(struct profiled_comm *c) {
  if (c->context) c->p->finalize(c->context);
  profiled_unload(c);
  free(c);
}

void profiled_unload(struct profiled_comm *c) {
  if (c->library) dlclose(c->library);
  c->library = NULL;
}

int profiled_mask(const struct profiled_comm *c) {
  return __atomic_load_n(&c->mask, __ATOMIC_RELAXED);
}

/* One event, in the layout of the version. */
static void *start(struct profiled_comm *c, unsigned type, void *parent, uint64_t p_timer, const struct proxy_op *op) {
  void *handle = NULL;
  struct descr_v1 v1;
  struct descr_v3 v3;
  struct descr_v4 v4;
  struct descr_v5 v5;
  void *descr;
#define FILL(d)                                                                                                        \
  memset(&d, 0xa5, sizeof(d)); /* what is not set is anything */                                                       \
  d.type = (__typeof__(d.type))type;                                                                                   \
  d.parentObj = parent;                                                                                                \
  d.rank = c->rank;                                                                                                    \
  if (op) d.proxyOp = *op;                                                                                             \
  descr = &d
  if (c->version == 1) {
    FILL(v1);
    if (type == PROFILE_COLL) v1.coll.commHash = c->hash;
    if (type == PROFILE_P2P) v1.p2p.commHash = c->hash;
  } else if (c->version <= 3) {
    FILL(v3);
    if (type == PROFILE_COLL) v3.coll.commHash = c->hash;
    if (type == PROFILE_KERNEL_CH) v3.kernelCh.channelId = 0;
  } else if (c->version == 4) {
    FILL(v4);
    if (type == PROFILE_KERNEL_CH) v4.kernelCh.pTimer = p_timer;
  } else {
    FILL(v5);
    if (type == PROFILE_KERNEL_CH) v5.kernelCh.pTimer = p_timer;
    if (op) v5.proxyOp = *op;
  }
#undef FILL
  c->p->startEvent(c->context, &handle, descr);
  return handle;
}

static void stop(struct profiled_comm *c, void *handle) {
  if (handle) c->p->stopEvent(handle);
}

/* Up to version 3 a step's state comes without anything. */
static void record(struct profiled_comm *c, void *handle, int state, union state_args *args) {
  if (handle) c->p->recordEventState(handle, state, args);
}

static void wait_until(const struct profiled_collective *k, uint64_t ns) {
  if (k->wait_until) k->wait_until(ns);
}

static struct proxy_op op_of(const struct profiled_collective *k, bool sends) {
  return (struct proxy_op){
      .pid = getpid(), .peer = 1, .nSteps = k->sends, .chunkSize = (int)k->send_bytes, .isSend = sends};
}

/* The program's thread, or a thread of CUDA's for a graph. Up to version 4 NCCL names no collective to a profiler that has
 * returned no handle for its group. */
static void *enqueue(struct profiled_comm *c, unsigned type) {
  bool by_api = c->version >= 5;
  void *api = by_api ? start(c, PROFILE_GROUP_API, NULL, 0, NULL) : NULL;
  void *call = by_api && type == PROFILE_COLL ? start(c, PROFILE_COLL_API, api, 0, NULL) : NULL;
  stop(c, call);
  stop(c, api);
  void *group = start(c, PROFILE_GROUP, NULL, 0, NULL);
  void *task = group || by_api ? start(c, type, by_api ? call : group, 0, NULL) : NULL;
  stop(c, task); /* long before the GPU begins */
  stop(c, group);
  return task;
}

/* Up to version 4 a step comes only with an operation that has a handle. */
static void *start_step(struct profiled_comm *c, void *op) {
  return op || c->version >= 5 ? start(c, PROFILE_PROXY_STEP, op, 0, NULL) : NULL;
}

void profiled_collective(struct profiled_comm *c, const struct profiled_collective *k) {
  int mask = profiled_mask(c);
  bool proxies = (mask & (PROFILE_PROXY_OP | PROFILE_PROXY_STEP)) && k->sends, by_state = c->version >= 4;
  void *kernels[64] = {NULL}, *op = NULL, *receive = NULL;
  struct proxy_op send_op = op_of(k, true), receive_op = op_of(k, false);
  if (!(mask & (PROFILE_COLL | PROFILE_PROXY_OP | PROFILE_PROXY_STEP | PROFILE_KERNEL_CH))) return;
  void *coll = enqueue(c, PROFILE_COLL);
  if (proxies) {
    op = start(c, PROFILE_PROXY_OP, coll, 0, &send_op);
    receive = start(c, PROFILE_PROXY_OP, coll, 0, &receive_op);
    union state_args args = {.proxyOp = {0}};
    record(c, op, by_state ? PROXY_OP_IN_PROGRESS : PROXY_OP_SEND_POSTED, &args);
  }
  wait_until(k, k->entered_ns);
  for (int i = 0; (mask & PROFILE_KERNEL_CH) && i < k->channels; i++) /* the first channel begins first */
    kernels[i] = start(c, PROFILE_KERNEL_CH, coll, k->entered_ns + (uint64_t)i * 100, NULL);
  for (int i = 0; proxies && i < k->sends; i++) {
    void *step = start_step(c, op), *other = start_step(c, receive);
    union state_args args = {.proxyStep = {k->send_bytes}};
    record(c, step, STEP_SEND_GPU_WAIT, by_state ? &args : NULL);
    if (by_state) record(c, step, STEP_SEND_PEER_WAIT, &args);
    record(c, step, STEP_SEND_WAIT, by_state ? &args : NULL);
    wait_until(k, k->entered_ns + (uint64_t)(i + 1) * k->send_ns);
    stop(c, step);
    stop(c, other);
  }
  wait_until(k, k->left_ns);
  for (int i = k->channels; (mask & PROFILE_KERNEL_CH) && i-- > 0;) { /* and ends last */
    union state_args args = {.kernelCh = {k->left_ns - (uint64_t)i * 100}};
    if (by_state) record(c, kernels[i], KERNEL_CH_STOP, &args);
    stop(c, kernels[i]);
  }
  stop(c, op);
  stop(c, receive);
}

void profiled_pair(struct profiled_comm *c) {
  enqueue(c, PROFILE_P2P);
}

void profiled_failed_init(struct profiled_comm *c) {
  c->p->finalize(NULL);
}

void profiled_strays(struct profiled_comm *c) {
  struct proxy_op foreign = {.pid = getppid(), .isSend = 1, .chunkSize = 1};
  void *coll = start(c, PROFILE_COLL, NULL, 0, NULL), *mine = c->context;
  void *values[] = {NULL, (void *)1, (void *)&foreign, (void *)UINTPTR_MAX, (void *)(UINTPTR_MAX >> 4), coll};
  for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
    c->context = i % 2 ? values[i] : mine; /* of a proxy of another process */
    void *op = start(c, PROFILE_PROXY_OP, values[i], 0, &foreign);
    stop(c, start(c, PROFILE_PROXY_STEP, op, 0, NULL));
    stop(c, op);
    c->context = mine;
    if (values[i] != coll) start(c, PROFILE_KERNEL_CH, values[i], 5, NULL);
    start(c, PROFILE_PROXY_STEP, values[i], 0, NULL);
    record(c, values[i], STEP_SEND_WAIT, &(union state_args){.proxyStep = {1}});
    if (values[i] != coll) record(c, values[i], KERNEL_CH_STOP, &(union state_args){.kernelCh = {5}});
    stop(c, values[i]);
    start(c, 1u << 14, values[i], 0, NULL); /* of a later NCCL */
  }
}
