/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives of NCCL's stand-in, as work of a stream or of a graph. Every rank sends its part to rank 0, which adds
 * them in the order of ranks and sends the result to all. So all ranks get the same bytes.
 *
 * Stricter than the library: the memory of the result is NaN from the start of the collective until it is complete, so
 * reading it early shows. A call of a communicator that does not block returns "in progress" now and then, and enters
 * its stream only after polls. A collective whose peer is gone never ends. An aborted one leaves stale values and lets
 * the stream continue, here and perhaps on other ranks (fake_nccl_board.c). Ranks that call different collectives are
 * told apart, and never continue. If one rank has captured a collective and another has not, or in another capture, the
 * program ends. */

#include "tests/fakegpu/fake_nccl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { GROUP_MAX = 256, TALK_REGISTER = 2 };

enum kind { ALL_REDUCE, BROADCAST, SEND_RECV };

struct fake_coll {
  struct fake_work w;
  struct ncclComm *c;
  enum kind kind;
  const void *send;
  void *recv;
  size_t count, bytes;
  ncclDataType_t type;
  ncclRedOp_t op;
  int root;
  uint64_t ticket; /* 0: of a graph */
  uint32_t graph;  /* which capture of this communicator it is of; 0: none */
  struct CUstream_st *stream;
  struct fake_coll *next; /* pending */
};

#define HEADER_MAGIC UINT64_C(0x4c4c4f434b4146)

struct header {
  uint64_t magic, seq, count;
  uint32_t kind, type, op, root, graph, unused;
};

struct pipe {
  size_t sent, got;
};

struct flight {
  struct header h;
  size_t bytes;                 /* of header and data */
  char *mine, *result, *before; /* before: the memory of the result until now */
  double begun_ms;
  char **parts; /* rank 0: of each peer */
  struct pipe *pipes;
  bool reduced;
};

static struct fake_coll *group[GROUP_MAX];
static int group_depth, group_n;

static size_t type_size(ncclDataType_t t) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  if ((size_t)t >= sizeof sizes / sizeof *sizes) fake_die("a collective of type %d", (int)t);
  return sizes[t];
}

#define REDUCE(T)                                                                                                      \
  do {                                                                                                                 \
    T *x = (T *)to;                                                                                                    \
    const T *y = (const T *)from;                                                                                      \
    for (size_t i = 0; i < n; i++)                                                                                     \
      x[i] = op == ncclMax   ? (y[i] > x[i] ? y[i] : x[i])                                                             \
             : op == ncclMin ? (y[i] < x[i] ? y[i] : x[i])                                                             \
                             : (T)(x[i] + y[i]);                                                                       \
  } while (0)

static void reduce(void *to, const void *from, size_t n, ncclDataType_t type, ncclRedOp_t op) {
  if (op != ncclSum && op != ncclMax && op != ncclMin) fake_die("a reduction by operation %d", (int)op);
  switch (type) {
  case ncclFloat32: REDUCE(float); break;
  case ncclFloat64: REDUCE(double); break;
  case ncclInt32: REDUCE(int32_t); break;
  case ncclUint32: REDUCE(uint32_t); break;
  case ncclInt64: REDUCE(int64_t); break;
  case ncclUint64: REDUCE(uint64_t); break;
  case ncclUint8: REDUCE(uint8_t); break;
  default: fake_die("a sum of type %d", (int)type);
  }
}

static bool reads(const struct fake_coll *k) {
  return k->kind == ALL_REDUCE || k->c->rank == k->root;
}

static bool writes(const struct fake_coll *k) {
  return k->kind != SEND_RECV || k->c->rank != k->root;
}

/* FAKEGPU_WIRE, of sends and receives: "hang": they never end; "fail": the communicator fails; a number: bytes in a second. */
static bool wire_is_done(const struct fake_coll *k, double begun_ms) {
  const char *wire = getenv("FAKEGPU_WIRE");
  if (!wire || k->kind != SEND_RECV) return true;
  if (strcmp(wire, "fail") == 0) k->c->failed = ncclRemoteError;
  if (*wire < '0' || *wire > '9') return false;
  return fake_now_ms() - begun_ms >= (double)k->bytes * 1e3 / atof(wire);
}

static struct flight *flight_create(struct fake_coll *k) {
  struct ncclComm *c = k->c;
  struct flight *f = calloc(1, sizeof *f);
  if (fake_comm_use && k->graph) fake_comm_use(c, k->recv, k->bytes);
  f->h = (struct header){.magic = HEADER_MAGIC,
                         .seq = c->seq++,
                         .count = k->count,
                         .kind = k->kind,
                         .type = (uint32_t)k->type,
                         .op = (uint32_t)k->op,
                         .root = (uint32_t)k->root,
                         .graph = k->graph};
  f->bytes = sizeof f->h + k->bytes;
  f->begun_ms = fake_now_ms();
  f->mine = calloc(1, f->bytes);
  f->result = calloc(1, f->bytes);
  memcpy(f->mine, &f->h, sizeof f->h);
  if (reads(k)) memcpy(f->mine + sizeof f->h, k->send, k->bytes);
  f->parts = calloc((size_t)c->world, sizeof *f->parts);
  f->pipes = calloc((size_t)c->world, sizeof *f->pipes);
  for (int i = 1; c->rank == 0 && i < c->world; i++) f->parts[i] = malloc(f->bytes);
  f->before = malloc(k->bytes);
  if (!writes(k)) return f;
  memcpy(f->before, k->recv, k->bytes);
  memset(k->recv, 0xff, k->bytes);
  return f;
}

static void flight_destroy(struct flight *f, int world) {
  for (int i = 0; i < world; i++) free(f->parts[i]);
  free(f->parts);
  free(f->pipes);
  free(f->mine);
  free(f->result);
  free(f->before);
  free(f);
}

static void check_same(struct ncclComm *c, const struct flight *f, const char *theirs, int rank) {
  struct header h;
  memcpy(&h, theirs, sizeof h);
  if (memcmp(&h, &f->h, sizeof h) == 0) return;
  if (h.seq == f->h.seq && h.graph != f->h.graph)
    fake_die("collective %llu is of capture %u on rank 0, of %u on rank %d (0: not captured): NCCL may hang, or worse",
             (unsigned long long)h.seq, f->h.graph, h.graph, rank);
  fake_say("rank 0 is in collective %llu (kind %u, %llu values), rank %d in %llu (kind %u, %llu values)",
           (unsigned long long)f->h.seq, f->h.kind, (unsigned long long)f->h.count, rank, (unsigned long long)h.seq,
           h.kind, (unsigned long long)h.count);
  c->failed = ncclInvalidUsage;
  c->torn = true;
}

static void combine(const struct fake_coll *k, struct flight *f) {
  size_t head = sizeof f->h;
  memcpy(f->result, f->mine, f->bytes);
  if (k->kind != ALL_REDUCE && k->root > 0) memcpy(f->result + head, f->parts[k->root] + head, k->bytes);
  for (int i = 1; i < k->c->world && k->kind == ALL_REDUCE; i++)
    reduce(f->result + head, f->parts[i] + head, k->bytes / type_size(k->type), k->type, k->op);
  f->reduced = true;
}

/* Rank 0: true when all ranks have the result. A peer's header comes before its data, so unexpected data is found
 * early. */
static bool middle(struct fake_coll *k, struct flight *f, bool *moved) {
  struct ncclComm *c = k->c;
  bool whole = true;
  for (int i = 1; i < c->world && !f->reduced; i++) {
    if (!fake_pull(c, i, f->parts[i], sizeof f->h, &f->pipes[i].got, moved)) {
      whole = false;
      continue;
    }
    check_same(c, f, f->parts[i], i);
    if (c->torn) return false;
    whole &= fake_pull(c, i, f->parts[i], f->bytes, &f->pipes[i].got, moved);
  }
  if (!whole) return false;
  if (!f->reduced) combine(k, f);
  for (int i = 1; i < c->world; i++) whole &= fake_push(c, i, f->result, f->bytes, &f->pipes[i].sent, moved);
  return whole;
}

static bool point(struct fake_coll *k, struct flight *f, bool *moved) {
  if (!fake_push(k->c, 0, f->mine, f->bytes, &f->pipes[0].sent, moved)) return false;
  return fake_pull(k->c, 0, f->result, f->bytes, &f->pipes[0].got, moved);
}

static enum fake_ran end(struct fake_coll *k, void **state) {
  struct flight *f = *state;
  if (f) flight_destroy(f, k->c->world);
  if (k->c->in_flight == f) k->c->in_flight = NULL;
  *state = NULL;
  if (k->ticket) k->c->serving++;
  k->c->outstanding -= k->ticket != 0;
  return FAKE_DONE;
}

/* What an abort leaves where the result should be: finite, and plausible. */
static void leave_stale(const struct fake_coll *k, const struct flight *f) {
  if (k->kind == ALL_REDUCE)
    memmove(k->recv, f ? f->mine + sizeof f->h : k->send, k->bytes);
  else if (f && writes(k))
    memcpy(k->recv, f->before, k->bytes);
}

/* The bytes of the connections: 1 with the result, 0 not yet. */
static bool proceed(struct fake_coll *k, struct flight *f, bool *moved) {
  if (k->c->torn || !wire_is_done(k, f->begun_ms) || !(k->c->rank == 0 ? middle(k, f, moved) : point(k, f, moved)))
    return false;
  if (writes(k)) memcpy(k->recv, f->result + sizeof f->h, k->bytes);
  return true;
}

static enum fake_ran run_coll(struct fake_work *w, void **state) {
  struct fake_coll *k = (struct fake_coll *)w;
  struct ncclComm *c = k->c;
  bool moved = false;
  if (c->state == FAKE_ABORTED) {
    if (!*state) fake_board_reach(c);
    leave_stale(k, *state);
    return end(k, state);
  }
  if (fake_talk_begun(c) || (!*state && c->in_flight) || (k->ticket && k->ticket - 1 != c->serving))
    return FAKE_BLOCKED;
  if (!*state) {
    *state = c->in_flight = flight_create(k);
    moved = true;
  }
  struct flight *f = *state;
  if (proceed(k, f, &moved)) return end(k, state);
  if (!fake_board_tears(c, f->h.seq)) return moved ? FAKE_MOVED : FAKE_BLOCKED;
  c->torn = true;
  leave_stale(k, f);
  return end(k, state);
}

static void destroy_coll(struct fake_work *w) {
  struct fake_coll *k = (struct fake_coll *)w;
  fake_comm_drop(k->c);
  free(k);
}

/* NCCL keeps the order of a communicator's collectives across streams, in a capture by edges. */
static void put_in_stream(struct fake_coll *k) {
  struct ncclComm *c = k->c;
  struct fake_capture *capture = fake_capture_of(k->stream);
  if (!capture) {
    k->ticket = ++c->tickets;
    c->outstanding++;
    if (fake_queue(k->stream, &k->w)) fake_die("a collective cannot be queued");
    return;
  }
  if (c->capture_id == fake_capture_id(capture))
    fake_capture_follow(k->stream, c->capture_node);
  else
    c->captures++;
  c->capture_id = fake_capture_id(capture);
  k->graph = c->captures;
  if (fake_capture_add(k->stream, &k->w, &c->capture_node)) fake_say("a collective in a capture that is invalid");
}

void fake_comm_queue_pending(struct ncclComm *c) {
  while (c->pending) {
    struct fake_coll *k = c->pending;
    c->pending = k->next;
    put_in_stream(k);
  }
}

/* FAKEGPU_NVLS=1: the ranks share NVLink's switches, so NCCL registers what is captured with NVLS. */
static bool registers(const struct fake_coll *k) {
  const char *machine = getenv("FAKEGPU_NVLS"), *enable = getenv("NCCL_NVLS_ENABLE");
  bool nvls = machine && *machine == '1' && !(enable && *enable == '0');
  return nvls && k->c->world > 1 && !k->c->blocking && fake_capture_of(k->stream);
}

static bool end_registration(struct ncclComm *c, const struct fake_card *all, void *ctx) {
  struct fake_coll **k = ctx;
  c->registering = false;
  put_in_stream(*k);
  *k = NULL;
  return true;
}

static void drop_registration(void *ctx) {
  struct fake_coll **k = ctx;
  if (*k) destroy_coll(&(*k)->w);
  free(k);
}

/* A gathering in host memory, which ends when all ranks have come, and never before. */
static ncclResult_t begin_registration(struct fake_coll *k) {
  struct fake_coll **ctx = malloc(sizeof *ctx);
  *ctx = k;
  k->c->registering = true;
  fake_talk_begin(k->c, TALK_REGISTER, (struct fake_card){0}, end_registration, drop_registration, ctx);
  return ncclInProgress;
}

/* All of a group, now or later. */
static ncclResult_t submit(struct fake_coll **list, int n) {
  ncclResult_t rc = ncclSuccess;
  if (n == 1 && registers(list[0])) return begin_registration(list[0]);
  for (int i = 0; i < n; i++) {
    struct fake_coll *k = list[i], **last = &k->c->pending;
    if (!k->c->blocking && (k->c->pending || fake_random(3) == 0)) {
      while (*last) last = &(*last)->next;
      *last = k;
      k->c->delay = 1 + (int)fake_random(4);
      rc = ncclInProgress;
    } else
      put_in_stream(k);
  }
  return rc;
}

/* In place is one exact address; any other overlap is undefined. */
static void check_overlap(const char *name, const struct fake_coll *k) {
  const char *from = k->send, *to = k->recv;
  if (reads(k) && writes(k) && from != to && from < to + k->bytes && to < from + k->bytes)
    fake_die("%s: the memory of what is sent and of the result overlap", name);
}

static ncclResult_t collective(const char *name, const struct fake_coll *what, cudaStream_t stream) {
  ncclResult_t rc;
  if (!fake_nccl_enter(name, what->c, &rc)) return rc;
  if (what->c->state != FAKE_READY) return fake_nccl_leave(ncclInvalidUsage);
  struct fake_coll *k = malloc(sizeof *k);
  *k = *what;
  k->bytes = k->count * type_size(k->type);
  if ((reads(k) && fake_place_of(k->send, k->bytes) != FAKE_DEVICE) ||
      (writes(k) && fake_place_of(k->recv, k->bytes) != FAKE_DEVICE)) {
    fake_say("%s: not memory of the device", name);
    free(k);
    return fake_nccl_leave(ncclInvalidArgument);
  }
  check_overlap(name, k);
  if (k->bytes == 0) {
    free(k);
    return fake_nccl_leave(ncclSuccess);
  }
  k->w = (struct fake_work){1, name, run_coll, destroy_coll, true};
  k->stream = fake_stream_of(stream);
  k->c->refs++;
  if (group_depth == 0) return fake_nccl_leave(submit(&k, 1));
  if (group_n == GROUP_MAX) fake_die("more than %d collectives in a group", GROUP_MAX);
  group[group_n++] = k;
  return fake_nccl_leave(ncclSuccess);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  struct fake_coll k = {
      .c = comm, .kind = ALL_REDUCE, .send = send, .recv = recv, .count = count, .type = type, .op = op};
  return collective("ncclAllReduce", &k, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  struct fake_coll k = {
      .c = comm, .kind = BROADCAST, .send = send, .recv = recv, .count = count, .type = type, .root = root};
  return collective("ncclBroadcast", &k, stream);
}

/* Of communicators of two ranks, and one at a time: there the other rank makes the other call. */
static ncclResult_t send_or_recv(const char *name, const struct fake_coll *what, int peer, cudaStream_t stream) {
  if (what->c->world != 2 || peer != 1 - what->c->rank) fake_die("%s: only between two ranks", name);
  return collective(name, what, stream);
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  struct fake_coll k = {.c = comm, .kind = SEND_RECV, .send = from, .count = count, .type = type, .root = comm->rank};
  return send_or_recv("ncclSend", &k, peer, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  struct fake_coll k = {.c = comm, .kind = SEND_RECV, .recv = to, .count = count, .type = type, .root = peer};
  return send_or_recv("ncclRecv", &k, peer, stream);
}

ncclResult_t ncclGroupStart(void) {
  fake_lock();
  group_depth++;
  return fake_nccl_leave(ncclSuccess);
}

ncclResult_t ncclGroupEnd(void) {
  fake_lock();
  if (group_depth == 0) return fake_nccl_leave(ncclInvalidUsage);
  if (--group_depth > 0) return fake_nccl_leave(ncclSuccess);
  ncclResult_t rc = submit(group, group_n);
  group_n = 0;
  return fake_nccl_leave(rc);
}
