/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA is its driver, libcuda.so.1, which every machine with a GPU has at a place that the loader knows. NCCL uses the
 * primary context of a device, as everything in a process that is built on CUDA's runtime. */

#include "agent/nccl/rails.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "agent/nccl/library.h"
#include "agent/pairs/exchange.h"
#include "common/exit_codes.h"
#include "common/system/clock.h"

enum {
  CUDA_NOT_READY = 600,
  NCCL_IN_PROGRESS = 7,
  NCCL_UINT8 = 1,
  BLOCK = 65536,
  MEASURE_MS = 1500, /* with less than that no exchange begins: a host that is slow to start has no network fault */
  EXIT_MS = 500,     /* from the end of all that is measured to the limit, when the agent kills */
  LATE_MS = 100,     /* then a thread that still has not ended hangs */
  BYE_MS = 500,      /* for the other end's answer to BYE */
  LINGER_MS = 100,   /* from the last message to the exit, which may cut it */
  SPINS = 1000,      /* looks at a stream until there is a pause between two */
  SLEEP_US = 50,
  LOOK_EVERY = 256, /* looks at a stream between two at the communicator */
  HEAD = EXCHANGE_SECRET / 2,
};
static const char bye = 'e'; /* instead of a question: all is measured */

static struct {
  int (*init)(unsigned flags);
  int (*count)(int *n);
  int (*device)(int *device, int ordinal);
  int (*context)(void **context, int device);
  int (*use)(void *context);
  int (*allocate)(uint64_t *at, size_t n);
  int (*stream)(void **stream, unsigned flags);
  int (*query)(void *stream);
  int (*to_device)(uint64_t to, const void *from, size_t n, void *stream);
  int (*to_host)(void *to, uint64_t from, size_t n);
  int (*error)(int code, const char **text);
} cuda;

static struct {
  int (*id)(struct unique_id *id);
  int (*init)(void **comm, int ranks, struct unique_id id, int rank);
  int (*send)(const void *from, size_t n, int type, int peer, void *comm, void *stream);
  int (*recv)(void *to, size_t n, int type, int peer, void *comm, void *stream);
  int (*state)(void *comm, int *code);
  const char *(*error)(int code);
  const char *(*last_error)(void *comm); /* since 2.13; NULL: not there */
} nccl;

/* One GPU. */
struct rail {
  const struct rails_options *o;
  int gpu;
  uint64_t end_ms;
  void *context, *stream, *comm;
  uint64_t head, data; /* memory of the device */
  struct unique_id id;
  struct exchange exchange;
  struct exchange_times times;
  struct err e;
  pthread_t thread;
  atomic_bool done;
};

static int cuda_failed(struct rail *r, int code, const char *what) {
  const char *text = NULL;
  if (!code) return 0;
  cuda.error(code, &text);
  return err_set(&r->e, -EIO, "%s: %s", what, text ? text : "unknown error");
}

static int nccl_failed(struct rail *r, int code, const char *what) {
  if (!code || code == NCCL_IN_PROGRESS) return 0;
  const char *more = nccl.last_error ? nccl.last_error(NULL) : "";
  return err_set(&r->e, -EIO, "%s: %s%s%s", what, nccl.error(code), more && *more ? ": " : "", more ? more : "");
}

/* Before anything is sent. ----------------------------------------------------------------------------------------- */

static int load(struct err *e) {
  const struct symbol of_cuda[] = {{"cuInit", &cuda.init, false},
                                   {"cuDeviceGetCount", &cuda.count, false},
                                   {"cuDeviceGet", &cuda.device, false},
                                   {"cuDevicePrimaryCtxRetain", &cuda.context, false},
                                   {"cuCtxSetCurrent", &cuda.use, false},
                                   {"cuMemAlloc_v2", &cuda.allocate, false},
                                   {"cuStreamCreate", &cuda.stream, false},
                                   {"cuStreamQuery", &cuda.query, false},
                                   {"cuMemcpyHtoDAsync_v2", &cuda.to_device, false},
                                   {"cuMemcpyDtoH_v2", &cuda.to_host, false},
                                   {"cuGetErrorString", &cuda.error, false}};
  const struct symbol of_nccl[] = {{"ncclGetUniqueId", &nccl.id, false},
                                   {"ncclCommInitRank", &nccl.init, false},
                                   {"ncclSend", &nccl.send, false},
                                   {"ncclRecv", &nccl.recv, false},
                                   {"ncclCommGetAsyncError", &nccl.state, false},
                                   {"ncclGetErrorString", &nccl.error, false},
                                   {"ncclGetLastError", &nccl.last_error, true}};
  const char *given = getenv("RDZV_CUDA_LIBRARY"), *file = given && *given ? given : "libcuda.so.1";
  void *driver = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (!driver) return err_set(e, -ENOENT, "%s", dlerror());
  int rc = library_find(driver, file, "CUDA's driver", of_cuda, sizeof of_cuda / sizeof *of_cuda, e);
  return rc ? rc : nccl_load(of_nccl, sizeof of_nccl / sizeof *of_nccl, e);
}

static void *prepare(void *arg) {
  struct rail *r = arg;
  int device;
  if (!cuda_failed(r, cuda.device(&device, r->o->first + r->gpu), "cuDeviceGet") &&
      !cuda_failed(r, cuda.context(&r->context, device), "cuDevicePrimaryCtxRetain") &&
      !cuda_failed(r, cuda.use(r->context), "cuCtxSetCurrent") &&
      !cuda_failed(r, cuda.allocate(&r->data, (size_t)r->o->bytes), "cuMemAlloc") &&
      !cuda_failed(r, cuda.allocate(&r->head, HEAD), "cuMemAlloc"))
    cuda_failed(r, cuda.stream(&r->stream, 1 /* it does not wait for others */), "cuStreamCreate");
  r->done = true;
  return NULL;
}

/* The exchange. ---------------------------------------------------------------------------------------------------- */

static void *address(uint64_t of_device) {
  return (void *)(uintptr_t)of_device;
}

static int put(struct rail *r, uint64_t from, int64_t n) {
  int peer = r->o->listens ? 1 : 0;
  return nccl_failed(r, nccl.send(address(from), (size_t)n, NCCL_UINT8, peer, r->comm, r->stream), "ncclSend");
}

static int put_head(struct rail *r, const void *head, size_t n) {
  if (cuda_failed(r, cuda.to_device(r->head, head, n, r->stream), "cuMemcpyHtoDAsync")) return r->e.code;
  return put(r, r->head, (int64_t)n);
}

static int await(struct rail *r, uint64_t end_ms) {
  for (unsigned i = 1;; i++) {
    int rc = cuda.query(r->stream), state = 0;
    if (rc != CUDA_NOT_READY) return cuda_failed(r, rc, "cuStreamQuery");
    if (i % LOOK_EVERY == 0) {
      rc = nccl.state(r->comm, &state);
      if (nccl_failed(r, rc ? rc : state, "NCCL")) return r->e.code;
      if (monotonic_ms() >= end_ms) return err_set(&r->e, -ETIMEDOUT, "nothing comes over NCCL");
    }
    i < SPINS ? (void)sched_yield() : (void)usleep(SLEEP_US);
  }
}

/* n bytes come; a head is left in `head`. */
static int get(struct rail *r, unsigned char head[HEAD], int64_t n, uint64_t end_ms) {
  uint64_t to = n <= HEAD ? r->head : r->data;
  int peer = r->o->listens ? 1 : 0;
  if (nccl_failed(r, nccl.recv(address(to), (size_t)n, NCCL_UINT8, peer, r->comm, r->stream), "ncclRecv") ||
      await(r, end_ms))
    return r->e.code;
  return n <= HEAD ? cuda_failed(r, cuda.to_host(head, to, (size_t)n), "cuMemcpyDtoH") : 0;
}

/* What is in a large message does not matter. */
static int take(struct rail *r, const unsigned char *head, int64_t n, struct exchange_send *out) {
  static const unsigned char block[BLOCK];
  int rc = n <= HEAD ? exchange_take(&r->exchange, head, (size_t)n, monotonic_us(), out, &r->e) : 0;
  for (int64_t left = n <= HEAD ? 0 : n; left > 0 && rc == 0; left -= BLOCK)
    rc = exchange_take(&r->exchange, block, left < BLOCK ? (size_t)left : BLOCK, monotonic_us(), out, &r->e);
  return rc;
}

static int exchange(struct rail *r) {
  static const unsigned char secret[EXCHANGE_SECRET]; /* whoever is here has the id */
  unsigned char head[HEAD] = {0};
  struct exchange_send out = {.fill = 0};
  if (r->o->listens)
    exchange_listen(&r->exchange, secret, r->o->bytes);
  else
    exchange_connect(&r->exchange, secret, r->o->bytes, &out);
  while (!r->exchange.over) {
    if ((out.n_head && put_head(r, out.head, out.n_head)) || (out.fill && put(r, r->data, out.fill))) break;
    int64_t n = exchange_wants(&r->exchange);
    if (get(r, head, n, r->end_ms)) break;
    if (r->o->listens && n == EXCHANGE_QUESTION && head[0] == bye) return put_head(r, &bye, 1) || await(r, r->end_ms);
    if (take(r, head, n, &out)) break;
  }
  if (r->o->listens || (r->e.code && r->e.code != -ETIMEDOUT)) return r->e.code;
  r->times = exchange_end(&r->exchange, monotonic_us());
  if (r->exchange.over) { /* the other end may leave; without its answer as well */
    memset(head, bye, sizeof head);
    if (!put_head(r, head, EXCHANGE_QUESTION)) get(r, head, 1, monotonic_ms() + BYE_MS);
  }
  return r->times.bytes ? 0 : r->e.code;
}

static void *measure(void *arg) {
  struct rail *r = arg;
  if (!cuda_failed(r, cuda.use(r->context), "cuCtxSetCurrent") &&
      !nccl_failed(r, nccl.init(&r->comm, 2, r->id, r->o->listens ? 0 : 1), "ncclCommInitRank") && !exchange(r))
    r->e.code = 0;
  r->done = true;
  return NULL;
}

/* All. ------------------------------------------------------------------------------------------------------------- */

/* Until the limit. A thread that hangs is left behind. */
static bool run_threads(struct rail *v, int n, void *(*run)(void *arg), uint64_t end_ms) {
  bool all = false;
  for (int i = 0; i < n; i++) {
    v[i].done = false;
    if (pthread_create(&v[i].thread, NULL, run, &v[i])) return false;
  }
  while (!all && monotonic_ms() < end_ms + LATE_MS) {
    usleep(1000);
    all = true;
    for (int i = 0; i < n; i++) all = all && v[i].done;
  }
  return all;
}

static bool is_slower(const struct exchange_times *a, const struct exchange_times *b) {
  int64_t us_a = a->out_us > a->in_us ? a->out_us : a->in_us, us_b = b->out_us > b->in_us ? b->out_us : b->in_us;
  return (double)a->bytes * (double)us_b < (double)b->bytes * (double)us_a;
}

static int report(const struct rails_options *o, const struct rail *v, int n, bool all) {
  const struct rail *slowest = &v[0];
  char text[ERR_TEXT_MAX + 64];
  for (int i = 0; i < n; i++) {
    bool hangs = !all && !v[i].done;
    if (o->listens && (hangs || v[i].e.code == -ETIMEDOUT)) continue; /* for the other end to say */
    if (hangs || v[i].e.code) {
      snprintf(text, sizeof text, "GPU %d: %s", i, hangs ? "NCCL does not return" : v[i].e.text);
      nccl_say(o->out, "failed", text);
      return EXIT_CODE_NCCL;
    }
    if (is_slower(&v[i].times, &slowest->times)) slowest = &v[i];
  }
  const struct exchange_times *t = &slowest->times;
  snprintf(text, sizeof text, "%d %lld %lld %lld %lld", slowest->gpu, (long long)t->bytes, (long long)t->out_us,
           (long long)t->in_us, (long long)t->rtt_us);
  if (!o->listens) nccl_say(o->out, "times", text);
  usleep(LINGER_MS * 1000);
  return EXIT_CODE_OK;
}

/* n ids: made, and reported; or read. Their number, or a negative code. */
static int share_ids(const struct rails_options *o, struct unique_id *ids, int n, struct err *e) {
  char hex[PAIR_IDS_HEX + 2] = "";
  size_t len = 0;
  if (o->listens) {
    for (int i = 0; i < n; i++) {
      int rc = nccl.id(&ids[i]);
      if (rc) return err_set(e, -EIO, "ncclGetUniqueId: %s", nccl.error(rc));
    }
    nccl_say(o->out, "ids", sodium_bin2hex(hex, sizeof hex, (unsigned char *)ids, (size_t)n * sizeof *ids));
    return n;
  }
  if (!fgets(hex, sizeof hex, stdin) ||
      sodium_hex2bin((unsigned char *)ids, PAIR_GPUS_MAX * sizeof *ids, hex, strcspn(hex, "\n"), NULL, &len, NULL) <
          0 ||
      !len || len % sizeof *ids)
    return err_set(e, -EPROTO, "the daemon's NCCL ids are not ids");
  int theirs = (int)(len / sizeof *ids);
  if (theirs > n) return err_set(e, -ENODEV, "%d of its GPUs are visible, and %d there", n, theirs);
  return theirs;
}

int rails_run(const struct rails_options *o) {
  static struct rail v[PAIR_GPUS_MAX];
  static struct unique_id ids[PAIR_GPUS_MAX];
  uint64_t begun_ms = monotonic_ms(), end_ms = begun_ms + (uint64_t)o->limit_ms - EXIT_MS;
  uint64_t ready_ms =
      o->listens ? begun_ms + (uint64_t)o->limit_ms * 2 / 5 : end_ms - MEASURE_MS; /* then the other end begins */
  struct err e = ERR_INIT;
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  int n = 0, rc = load(&e);
  if (!rc && cuda_failed(&v[0], (rc = cuda.init(0)) ? rc : cuda.count(&n), "cuInit")) rc = (e = v[0].e).code;
  n -= o->first;
  if (n > o->gpus) n = o->gpus;
  if (!rc && n < 1) rc = err_set(&e, -ENODEV, "CUDA sees no GPU for its workers");
  int used = rc ? rc : n;
  for (int i = 0; i < used; i++) v[i] = (struct rail){.o = o, .gpu = i, .end_ms = end_ms};
  bool all = used > 0 && run_threads(v, used, prepare, ready_ms);
  double took_s = (double)(monotonic_ms() - begun_ms) / 1000;
  if (used > 0 && (!all || monotonic_ms() > ready_ms))
    used = err_set(&e, -ETIMEDOUT, "CUDA was not ready after %.1f s", took_s);
  for (int i = 0; i < used; i++)
    if (v[i].e.code) used = (e = v[i].e).code;
  if (used > 0) used = share_ids(o, ids, used, &e);
  if (used < 0) {
    nccl_say(o->out, "lacks", e.text);
    return EXIT_CODE_NCCL;
  }
  for (int i = 0; i < used; i++) v[i].id = ids[i];
  all = run_threads(v, used, measure, end_ms);
  return report(o, v, used, all);
}
