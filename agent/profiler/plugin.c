/* SPDX-License-Identifier: Apache-2.0 */
/* librdzv-nccl-profiler.so, which NCCL loads into a worker: NCCL's profiler interface in front of meter.c, and a thread
 * that sends the sums to the agent.
 *
 * NCCL's threads never wait here: an event is arithmetic, and the lock is taken only when communicators come and go. The
 * thread sends once a second, without waiting for room. If the agent is gone, or it refuses, events are counted and
 * nobody is told; a later communicator tries again. Without an agent's socket no events are asked for.
 *
 * The mask of events never changes while NCCL has a communicator. NCCL reads it before it calls startEvent, and counts a
 * kernel's events on the host and on the GPU: with a mask that changes in between, the counts differ and NCCL hangs.
 *
 * The thread lives as long as the process, and NCCL may close this library before: it is linked with -z nodelete. */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include "agent/profiler/meter.h"
#include "agent/profiler/nccl_profiler.h"
#include "agent/sdk/wire.h"

#define EXPORT __attribute__((visibility("default")))

enum { SEND_EVERY_MS = 1000, TRIES = 30 };

static struct plugin {
  pthread_mutex_t lock;                     /* of the members here; meters are read and written without it */
  struct meter_group *groups[METER_GROUPS]; /* never freed: a late event may name one */
  unsigned n_used;
  bool running;   /* the thread */
  int fd;         /* -1: not connected */
  unsigned tries; /* left */
  char socket[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
  uint32_t local_rank;
  uint64_t sent[METER_GROUPS]; /* the collectives in the last record */
} plugin = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* The agent. With the lock. ---------------------------------------------------------------------------------------- */

static struct sdk_head head_of(uint16_t type) {
  return (struct sdk_head){.magic = SDK_MAGIC, .version = SDK_VERSION, .type = type};
}

static void disconnect(void) {
  if (plugin.fd >= 0) close(plugin.fd);
  plugin.fd = -1;
}

static void connect_agent(void) {
  struct sockaddr_un addr;
  socklen_t len = sdk_address(plugin.socket, &addr);
  if (plugin.fd >= 0 || !plugin.tries || !len) return;
  plugin.tries--;
  plugin.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  struct sdk_hello hello = {.head = head_of(SDK_HELLO), .local_rank = plugin.local_rank};
  snprintf(hello.release, sizeof(hello.release), "%s", RDZV_VERSION);
  if (plugin.fd >= 0 && !connect(plugin.fd, (const struct sockaddr *)&addr, len) &&
      send(plugin.fd, &hello, sizeof(hello), MSG_NOSIGNAL) == sizeof(hello))
    memset(plugin.sent, 0, sizeof(plugin.sent));
  else
    disconnect();
}

/* Whatever the agent says is for others; its end is the round's. */
static void read_agent(void) {
  union sdk_record r;
  ssize_t n = 1;
  while (plugin.fd >= 0 && n > 0) n = recv(plugin.fd, &r, sizeof(r), MSG_DONTWAIT);
  if (plugin.fd < 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
  disconnect();
  plugin.tries = 0;
}

static void send_sums(void) {
  for (unsigned i = 0; i < METER_GROUPS && plugin.fd >= 0; i++) {
    struct meter_group *g = plugin.groups[i];
    if (!g || !g->used) continue;
    g->clock_asked = true;
    struct sdk_pace p = {.head = head_of(SDK_PACE),
                         .group = atomic_load(&g->sums.hash) & INT64_MAX,
                         .rank = atomic_load(&g->sums.rank),
                         .size = g->sums.size,
                         .collectives = atomic_load(&g->sums.collectives),
                         .waited_us = atomic_load(&g->sums.waited) * atomic_load(&g->tick_ns) / 1000,
                         .sent_bytes = atomic_load(&g->sums.sent_bytes),
                         .sending_us = atomic_load(&g->sums.sending_ns) / 1000};
    if (!p.group || p.collectives == plugin.sent[i] || g->miscounted) continue;
    p.pairs = atomic_exchange(&g->sums.pairs, false);
    if (send(plugin.fd, &p, sizeof(p), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(p))
      plugin.sent[i] = p.collectives;
    else if (p.pairs)
      atomic_store(&g->sums.pairs, true);
  }
}

static void *report(void *unused) {
  static const struct timespec every = {.tv_sec = SEND_EVERY_MS / 1000};
  for (;;) {
    nanosleep(&every, NULL);
    pthread_mutex_lock(&plugin.lock);
    if (plugin.n_used) {
      connect_agent();
      read_agent();
      send_sums();
    }
    pthread_mutex_unlock(&plugin.lock);
  }
  return NULL;
}

/* For events of kernels NCCL allocates 34 MB in /dev/shm for each communicator of a process, and crashes if it cannot. */
static bool has_room(void) {
  struct statvfs s;
  return statvfs("/dev/shm", &s) == 0 && s.f_bavail * s.f_frsize >= UINT64_C(1) << 30;
}

/* The environment is read in NCCL's call, where the program expects that; while there are communicators, what it said
 * before them holds. A round that is over has closed the connection. */
static void read_place(bool kernels) {
  const char *socket = getenv("RDZV_AGENT_SOCKET"), *rank = getenv("RDZV_LOCAL_RANK");
  if (!plugin.n_used) {
    bool wanted = socket && rank && (!kernels || has_room());
    snprintf(plugin.socket, sizeof(plugin.socket), "%s", wanted ? socket : "");
    plugin.local_rank = rank ? (uint32_t)strtoul(rank, NULL, 10) : 0;
  }
  read_agent();
  plugin.tries = TRIES;
}

static void begin_thread(void) {
  sigset_t all, before;
  pthread_attr_t attr;
  pthread_t thread;
  sigfillset(&all);
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, 128 * 1024);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's */
  plugin.running = pthread_create(&thread, &attr, report, NULL) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attr);
}

/* NCCL. ------------------------------------------------------------------------------------------------------------ */

static struct meter_group *group_of(unsigned index) {
  struct meter_group *g = index < METER_GROUPS ? __atomic_load_n(&plugin.groups[index], __ATOMIC_ACQUIRE) : NULL;
  return g && g->used ? g : NULL;
}

static struct meter_group *group_of_context(void *context, unsigned *index) {
  *index = (uintptr_t)context <= METER_GROUPS ? (unsigned)(uintptr_t)context - 1 : METER_GROUPS;
  return context ? group_of(*index) : NULL;
}

static ncclResult_t init_group(void **context, int *mask, bool kernels, uint64_t hash, int size, int rank) {
  pthread_mutex_lock(&plugin.lock);
  unsigned i = 0;
  while (i < METER_GROUPS && plugin.groups[i] && plugin.groups[i]->used) i++;
  struct meter_group *g = i == METER_GROUPS ? NULL : plugin.groups[i] ? plugin.groups[i] : calloc(1, sizeof(*g));
  *context = NULL;
  if (g) {
    uint64_t next_coll = g->next_coll, next_step = g->next_step; /* handles of the one before name nothing */
    memset(&g->sums, 0, sizeof(g->sums));
    g->kernels = kernels;
    g->clock_asked = false;
    g->gpu_begun = 0;
    g->miscounted = false;
    g->tick_ns = 1;
    g->next_coll = next_coll;
    g->next_step = next_step;
    g->sums.hash = hash;
    g->sums.rank = (uint32_t)rank;
    g->sums.size = (uint32_t)size;
    g->used = true;
    plugin.sent[i] = 0;
    __atomic_store_n(&plugin.groups[i], g, __ATOMIC_RELEASE);
    *context = (void *)(uintptr_t)(i + 1);
    read_place(kernels);
    plugin.n_used++;
    int wanted = ncclProfileColl | ncclProfileProxyOp | ncclProfileProxyStep;
    wanted |= kernels ? ncclProfileKernelCh : ncclProfileP2p;
    __atomic_store_n(mask, plugin.socket[0] ? wanted : 0, __ATOMIC_RELAXED);
    if (!plugin.running && plugin.socket[0]) begin_thread();
  }
  pthread_mutex_unlock(&plugin.lock);
  return 0;
}

static ncclResult_t finalize(void *context) {
  unsigned index;
  pthread_mutex_lock(&plugin.lock);
  struct meter_group *g = group_of_context(context, &index); /* NULL after an init of NCCL that failed */
  if (g) {
    connect_agent();
    send_sums(); /* its last ones */
    g->used = false;
    plugin.n_used--;
    if (!plugin.n_used) disconnect();
  }
  pthread_mutex_unlock(&plugin.lock);
  return 0;
}

/* Up to 2.27 NCCL starts no event of a collective whose group has no handle. It names no communicator. */
enum { GROUP_HANDLE = 1 };

/* What the versions have in common. A context or parent from another process (proxies work for each other) is told by
 * the pid: it must not be looked up. */
static ncclResult_t begin_event(void *context, void **out, uint64_t type, const struct nccl_profiler_descr *d) {
  unsigned index;
  uint64_t from = (uintptr_t)d->parentObj, h = 0;
  const union nccl_profiler_detail *of = &d->of;
  *out = NULL;
  if (type == ncclProfileProxyStep) { /* the most frequent one */
    struct meter_group *of_parent = from ? group_of(meter_index(from)) : NULL;
    if (of_parent) h = meter_step(of_parent, from);
    *out = (void *)(uintptr_t)h;
    return 0;
  }
  if (type == ncclProfileProxyOp && of->proxyOp.pid != getpid()) return 0;
  struct meter_group *g = group_of_context(context, &index);
  if (!g) return 0;
  switch (type) {
  case ncclProfileGroup: h = GROUP_HANDLE; break;
  case ncclProfileColl:
    if (!g->kernels && !atomic_load_explicit(&g->sums.hash, memory_order_relaxed)) {
      g->sums.rank = (uint32_t)d->rank;
      g->sums.hash = of->coll.commHash;
    }
    h = meter_collective(g, index);
    break;
  case ncclProfileP2p: g->sums.pairs = true; break;
  case ncclProfileKernelCh: h = meter_kernel(g, from, of->kernelCh.pTimer); break;
  case ncclProfileProxyOp:
    h = meter_proxy(g, from, of->proxyOp.isSend != 0, of->proxyOp.chunkSize > 0 ? (uint64_t)of->proxyOp.chunkSize : 0);
    break;
  default: break;
  }
  *out = (void *)(uintptr_t)h;
  return 0;
}

static ncclResult_t start_v1(void *context, void **out, struct nccl_profiler_descr *d) {
  return begin_event(context, out, d->type.v1, d);
}

static ncclResult_t start_v5(void *context, void **out, struct nccl_profiler_descr *d) {
  return begin_event(context, out, d->type.v5, d);
}

static ncclResult_t stop(void *event) {
  uint64_t h = (uintptr_t)event;
  struct meter_group *g = group_of(meter_index(h));
  if (g && meter_needs_stop(g, h)) meter_stop(g, h, now_ns());
  return 0;
}

static ncclResult_t record(void *event, int state, union nccl_profiler_state_args *args) {
  uint64_t h = (uintptr_t)event;
  struct meter_group *g = group_of(meter_index(h));
  if (!g) return 0;
  if (state == ncclProfilerProxyStepSendWait)
    meter_step_sends(g, h, args ? args->proxyStep.transSize : 0, now_ns());
  else if (state == ncclProfilerKernelChStop && g->kernels && args) {
    if (atomic_load_explicit(&g->clock_asked, memory_order_relaxed)) meter_clock(g, args->kernelCh.pTimer, now_ns());
    meter_stop(g, h, args->kernelCh.pTimer);
  }
  return 0;
}

/* Versions 3 and 4 have events of kernels. NCCL 2.26 miscounts them, and with them 2.27 fails in large groups of sends and
 * receives ("Proxy append out of bounds"). */
static ncclResult_t init_v1(void **context, int *mask) {
  return init_group(context, mask, false, 0, 0, 0);
}

static ncclResult_t init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int size, int rank,
                            void *log) {
  return init_group(context, mask, false, hash, size, rank);
}

static ncclResult_t init_v5(void **context, uint64_t hash, int *mask, const char *name, int nodes, int size, int rank,
                            void *log) {
  return init_group(context, mask, true, hash, size, rank);
}

#define VERSION(version, by_init, start)                                                                               \
  EXPORT struct nccl_profiler ncclProfiler_v##version = {"rdzv",  {.by_init = init_##by_init}, start, stop, record,    \
                                                         finalize}
VERSION(1, v1, start_v1);
VERSION(2, v1, start_v1);
VERSION(3, v1, start_v1);
VERSION(4, v4, start_v1);
VERSION(5, v5, start_v5);
VERSION(6, v5, start_v5);
