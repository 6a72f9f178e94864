/* SPDX-License-Identifier: Apache-2.0 */
/* agent/profiler: a stand-in for NCCL drives librdzv-nccl-profiler.so through each version of its interface, and the agent's
 * end of the socket gets the sums. */

#include "agent/sdk/server.h"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "agent/profiler/meter.h"
#include "agent/profiler/nccl_profiler.h"
#include "tests/rig/profiled_nccl.h"
#include "tests/rig/unit.h"

enum { MS = 1000000 };

static struct sdk_server *agent;
static uint64_t begun_ns;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void sleep_until(uint64_t ns) {
  struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void open_round(uint32_t round) {
  struct sdk_welcome workers[4];
  memset(workers, 0, sizeof(workers));
  for (uint32_t i = 0; i < 4; i++) workers[i] = (struct sdk_welcome){.rank = i, .local_rank = i, .round = round};
  sdk_server_open_round(agent, workers, 4);
}

static void open_agent(void) {
  struct err e;
  assert_int_equal(sdk_server_create(&agent, NULL, &e), 0);
  open_round(3);
  setenv("RDZV_AGENT_SOCKET", sdk_server_name(agent), 1);
  setenv("RDZV_ROUND", "3", 1);
  setenv("RDZV_LOCAL_RANK", "2", 1);
  begun_ns = now_ns();
}

/* The last PACE of the group, which the library has sent before it was closed. Zeros: none. */
static struct sdk_pace last_pace(uint64_t group) {
  struct sdk_pace last = {.group = 0};
  struct sdk_event ev;
  for (int i = 0; i < 100; i++) {
    sdk_server_work(agent);
    while (sdk_server_next(agent, &ev)) {
      assert_int_not_equal(ev.kind, SDK_EVENT_TROUBLE);
      if (ev.kind == SDK_EVENT_PACE) assert_int_equal(ev.local_rank, 2);
      if (ev.kind == SDK_EVENT_PACE && ev.pace.group == group) last = ev.pace;
    }
  }
  return last;
}

static void close_agent(void) {
  sdk_server_destroy(agent);
  agent = NULL;
}

/* NCCL crashes if events of kernels find no room in /dev/shm, as in a container with 64 MB: so none are asked for. */
UNIT_TEST(test_small_shared_memory) {
  int status = 0;
  pid_t pid = fork();
  if (pid == 0) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) || mount("shm", "/dev/shm", "tmpfs", 0, "size=64m")) _exit(77);
    setenv("RDZV_AGENT_SOCKET", "@nobody-listens-here", 1);
    setenv("RDZV_LOCAL_RANK", "0", 1);
    struct profiled_comm *c = profiled_open(PLUGIN, 4, 9, 2, 1);
    bool without_kernels = profiled_mask(c) != 0;
    profiled_close(c);
    c = profiled_open(PLUGIN, 6, 9, 2, 1);
    _exit(without_kernels && !profiled_mask(c) ? 0 : 1);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77)); /* 77: not allowed to */
}

UNIT_TEST(test_each_version) {
  for (int version = 1; version <= PROFILED_VERSIONS; version++) {
    open_agent();
    struct profiled_comm *c = profiled_open(PLUGIN, version, 77, 16, 5);
    assert_non_null(c);
    assert_true(profiled_mask(c) & 2);
    assert_int_equal(!!(profiled_mask(c) & 64), version >= 5); /* with 4, NCCL 2.27 fails in some jobs */
    bool by_calls = version < 5;                               /* then the time of a call counts */
    for (uint64_t i = 0; i < 16; i++) {
      uint64_t at = by_calls ? now_ns() : 5000000000 + i * 20 * MS;
      struct profiled_collective k = {.entered_ns = at + MS,
                                      .left_ns = at + 3 * MS,
                                      .channels = 4,
                                      .sends = 2,
                                      .send_ns = MS / 2,
                                      .send_bytes = 4096,
                                      .wait_until = by_calls ? sleep_until : NULL};
      profiled_collective(c, &k);
    }
    profiled_pair(c);
    profiled_close(c);
    struct sdk_pace p = last_pace(77);
    assert_int_equal(p.rank, 5);
    assert_int_equal(p.size, version >= 4 ? 16 : 0);
    assert_int_equal(p.collectives, 16);
    assert_true(p.pairs);
    if (by_calls)
      assert_true(p.waited_us >= 16 * 1500 && p.waited_us < (now_ns() - begun_ns) / 1000);
    else
      assert_int_equal(p.waited_us, 16 * 2000);
    assert_int_equal(p.sent_bytes, 2 * 2 * 4096); /* of two collectives of 16 */
    close_agent();
  }
}

/* Where NCCL's own headers of 2.23.4 to 2.30.7 have each member that is used, compiled for x86-64: the same in all versions
 * of the interface that have it. */
UNIT_TEST(test_layouts) {
  typedef struct nccl_profiler_descr descr;
  static const struct {
    size_t ours, nccl;
  } places[] = {
      {offsetof(descr, type), 0},
      {offsetof(descr, parentObj), 8},
      {offsetof(descr, rank), 16},
      {offsetof(descr, of.coll.commHash), 32},
      {offsetof(descr, of.proxyOp.pid), 24},
      {offsetof(descr, of.proxyOp.chunkSize), 40},
      {offsetof(descr, of.proxyOp.isSend), 44},
      {offsetof(descr, of.kernelCh.pTimer), 32},
      {sizeof((descr *)0)->type.v1, 1},
      {sizeof((descr *)0)->type.v5, 8},
      {offsetof(union nccl_profiler_state_args, proxyStep.transSize), 0},
      {offsetof(union nccl_profiler_state_args, kernelCh.pTimer), 0},
      {offsetof(struct nccl_profiler, init), 8},
      {offsetof(struct nccl_profiler, startEvent), 16},
      {offsetof(struct nccl_profiler, stopEvent), 24},
      {offsetof(struct nccl_profiler, recordEventState), 32},
      {offsetof(struct nccl_profiler, finalize), 40},
      {sizeof(struct nccl_profiler), 48},
  };
  for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) assert_int_equal(places[i].ours, places[i].nccl);
  assert_int_equal(ncclProfileGroup | ncclProfileColl << 8 | ncclProfileP2p << 16 | ncclProfileProxyOp << 24,
                   1 | 2 << 8 | 4 << 16 | 8 << 24);
  assert_int_equal(ncclProfileProxyStep | ncclProfileKernelCh << 8, 16 | 64 << 8);
  assert_int_equal(ncclProfilerProxyStepSendWait | ncclProfilerKernelChStop << 8, 9 | 22 << 8);
}

/* RCCL's clock has ticks of 10 ns, or of 40 on older GPUs. */
UNIT_TEST(test_ticks) {
  static const struct {
    uint64_t gpu_ns, want; /* of the GPU's clock in 12 s */
  } cases[] = {{1, 1}, {10, 10}, {40, 40}, {3, 1}, {100, 1}};
  static struct meter_group g;
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    g.gpu_begun = 0;
    g.tick_ns = 1;
    g.clock_asked = true;
    uint64_t gpu = 5000000000000;
    meter_clock(&g, gpu, 7000000000);
    assert_false(g.clock_asked);
    meter_clock(&g, gpu + 9000000000 / cases[i].gpu_ns, 16000000000);
    assert_int_equal(g.tick_ns, 1);                                    /* too early to say */
    meter_clock(&g, gpu + 12000000000 / cases[i].gpu_ns, 20000000000); /* seen a second late */
    assert_int_equal(g.tick_ns, cases[i].want);
  }
  meter_clock(&g, 1, 30000000000); /* the GPU was reset */
  assert_int_equal(g.gpu_begun, 1);
}

/* NCCL 2.29 mistakes kernels for those of other collectives after a broadcast. An end before its begin gives that away. */
UNIT_TEST(test_miscounted) {
  open_agent();
  struct profiled_comm *a = profiled_open(PLUGIN, 6, 9, 2, 1), *b = profiled_open(PLUGIN, 6, 10, 2, 1);
  profiled_collective(a, &(struct profiled_collective){.entered_ns = 10 * MS, .left_ns = 11 * MS, .channels = 1});
  profiled_collective(a, &(struct profiled_collective){.entered_ns = 90 * MS, .left_ns = 20 * MS, .channels = 1});
  profiled_collective(b, &(struct profiled_collective){.entered_ns = 10 * MS, .left_ns = 11 * MS, .channels = 1});
  profiled_close(a);
  profiled_close(b);
  assert_int_equal(last_pace(9).collectives, 0); /* and it reports nothing any more */
  close_agent();
  open_agent();
  a = profiled_open(PLUGIN, 6, 9, 2, 1); /* in its place */
  profiled_collective(a, &(struct profiled_collective){.entered_ns = 10 * MS, .left_ns = 11 * MS, .channels = 1});
  profiled_close(a);
  assert_int_equal(last_pace(9).collectives, 1);
  close_agent();
}

/* Communicators come and go, and each has its own sums. */
UNIT_TEST(test_several_communicators) {
  open_agent();
  struct profiled_comm *a = profiled_open(PLUGIN, 6, 1, 4, 0), *b = profiled_open(PLUGIN, 6, UINT64_MAX, 8, 7);
  for (uint64_t i = 0; i < 3000; i++) {
    profiled_collective(a, &(struct profiled_collective){.entered_ns = i + 1, .left_ns = i + 1001, .channels = 1});
    profiled_collective(b, &(struct profiled_collective){.entered_ns = i + 1, .left_ns = i + 5001, .channels = 2});
  }
  profiled_close(a);
  struct profiled_comm *other = profiled_open(PLUGIN, 6, 3, 2, 1); /* in its place */
  profiled_collective(other, &(struct profiled_collective){.entered_ns = 1, .left_ns = 9000001, .channels = 1});
  profiled_close(other);
  profiled_close(b);
  struct sdk_pace p = last_pace(INT64_MAX);
  assert_int_equal(p.collectives, 3000);
  assert_int_equal(p.waited_us, 3000 * 5);
  close_agent();
}

UNIT_TEST(test_strays) {
  for (int version = 1; version <= PROFILED_VERSIONS; version++) {
    open_agent();
    struct profiled_comm *c = profiled_open(PLUGIN, version, 9, 2, 1);
    profiled_strays(c);
    profiled_close(c);
    assert_int_equal(last_pace(9).collectives, 0);
    close_agent();
  }
}

/* A flag is of the time since the record before. */
UNIT_TEST(test_pairs) {
  struct profiled_collective k = {.entered_ns = 1, .left_ns = 1001, .channels = 1};
  struct sdk_pace p = {.pairs = 0};
  open_agent();
  struct profiled_comm *c = profiled_open(PLUGIN, 6, 9, 2, 1);
  profiled_pair(c);
  profiled_collective(c, &k);
  for (int i = 0; i < 1000 && !p.group; i++) {
    sleep_until(now_ns() + 10 * MS);
    p = last_pace(9);
  }
  assert_true(p.pairs);
  profiled_collective(c, &k);
  profiled_close(c);
  p = last_pace(9);
  assert_int_equal(p.collectives, 2);
  assert_false(p.pairs);
  close_agent();
}

/* A round begins while the process stays: its environment names the old one. */
UNIT_TEST(test_the_next_round_in_place) {
  struct profiled_collective k = {.entered_ns = 1, .left_ns = 1001, .channels = 1};
  open_agent();
  struct profiled_comm *c = profiled_open(PLUGIN, 6, 9, 2, 1);
  profiled_collective(c, &k);
  assert_int_equal(last_pace(9).collectives, 0); /* nothing is sent yet */
  sdk_server_close_round(agent);
  struct profiled_comm *early = profiled_open(PLUGIN, 6, 10, 2, 1);
  assert_int_equal(last_pace(10).collectives, 0);
  open_round(4);
  struct profiled_comm *other = profiled_open(PLUGIN, 6, 11, 2, 1);
  profiled_collective(other, &k);
  profiled_close(other);
  assert_int_equal(last_pace(11).collectives, 1);
  profiled_close(early);
  profiled_close(c);
  close_agent();
}

static int count_threads(void) {
  int n = 0;
  DIR *d = opendir("/proc/self/task");
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
  closedir(d);
  return n;
}

/* A thread that was joined is listed for a moment. */
static void check_threads(int n) {
  for (int i = 0; i < 1000 && count_threads() != n; i++) sleep_until(now_ns() + MS);
  assert_int_equal(count_threads(), n);
}

static void *open_and_close(void *hash) {
  struct profiled_collective k = {.entered_ns = 1, .left_ns = 1001, .channels = 1};
  for (int i = 0; i < 300; i++) {
    struct profiled_comm *c = profiled_open(PLUGIN, 6, (uintptr_t)hash, 2, 1);
    profiled_collective(c, &k);
    profiled_close(c);
  }
  return NULL;
}

/* Communicators come and go on several threads: the last one goes while another comes. One thread is left. */
UNIT_TEST(test_several_threads) {
  pthread_t threads[4];
  open_agent();
  for (uintptr_t i = 0; i < 4; i++)
    assert_int_equal(pthread_create(&threads[i], NULL, open_and_close, (void *)(i + 1)), 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  check_threads(2);
  close_agent();
  open_agent();
  open_and_close((void *)(uintptr_t)7);
  assert_int_equal(last_pace(7).collectives, 1);
  check_threads(2);
  close_agent();
}

/* NCCL closes the library while a communicator lives, and after the last one, when the thread is still there. */
UNIT_TEST(test_the_library_is_closed) {
  struct profiled_collective k = {.entered_ns = 1, .left_ns = 1001, .channels = 1};
  open_agent();
  struct profiled_comm *a = profiled_open(PLUGIN, 6, 9, 2, 1), *b = profiled_open(PLUGIN, 6, 10, 2, 1);
  profiled_failed_init(a);
  profiled_unload(a);
  profiled_close(b);
  profiled_failed_init(a);
  profiled_collective(a, &k);
  profiled_close(a);
  assert_int_equal(last_pace(9).collectives, 1);
  sleep_until(now_ns() + 1500 * (uint64_t)MS); /* it has woken in between */
  check_threads(2);
  close_agent();
}

/* Without an agent nothing is asked for; with one that is gone or has no round, training goes on and nothing is told. */
UNIT_TEST(test_without_an_agent) {
  static const char *const sockets[] = {"@nobody-listens-here", "x", "", NULL};
  struct profiled_collective k = {.entered_ns = 1, .left_ns = 1001, .channels = 1};
  open_agent();
  sdk_server_close_round(agent);
  struct profiled_comm *c = profiled_open(PLUGIN, 6, 9, 2, 1);
  profiled_collective(c, &k);
  profiled_close(c);
  assert_int_equal(last_pace(9).collectives, 0);
  close_agent();
  for (size_t i = 0; i < sizeof(sockets) / sizeof(*sockets); i++) {
    if (sockets[i])
      setenv("RDZV_AGENT_SOCKET", sockets[i], 1);
    else
      unsetenv("RDZV_AGENT_SOCKET");
    c = profiled_open(PLUGIN, 5, 9, 2, 1);
    assert_int_equal(profiled_mask(c) != 0, sockets[i] && sockets[i][0]);
    profiled_collective(c, &k);
    profiled_close(c);
  }
}
