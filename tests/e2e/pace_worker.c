/* SPDX-License-Identifier: Apache-2.0 */
/* A worker whose stand-in for NCCL loads $NCCL_PROFILER_PLUGIN: for test_slow_ranks.py.
 *
 *     pace-worker VERSION SLOW_RANK BY PERCENT [RECOVERS_AFTER_S [ENDS_AFTER_S CODE]]
 *
 * All ranks follow one timetable, as collectives would make them: in each step of 50 ms they work for half of it, the slow
 * one (BY work) for PERCENT longer, and leave the collective together. BY wire: its sends take longer, and so does all. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tests/rig/profiled_nccl.h"

enum { STEP_NS = 50000000, SEND_NS = 2000000 };

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void wait_until(uint64_t ns) {
  struct timespec t = {.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
  clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static volatile sig_atomic_t over;

static void on_term(int signo) {
  over = 1;
}

static int number(const char *name) {
  const char *text = getenv(name);
  return text ? atoi(text) : 0;
}

int main(int argc, char **argv) {
  const char *library = getenv("NCCL_PROFILER_PLUGIN");
  int rank = number("RANK"), size = number("WORLD_SIZE");
  if (argc < 5 || !library) {
    fprintf(stderr, argc < 5 ? "pace-worker VERSION SLOW_RANK BY PERCENT [RECOVERS_AFTER_S [ENDS_AFTER_S CODE]]\n"
                             : "NCCL_PROFILER_PLUGIN is not set\n");
    return 2;
  }
  int slow = atoi(argv[2]), percent = atoi(argv[4]);
  bool wire = strcmp(argv[3], "wire") == 0;
  uint64_t recovers_ns = argc > 5 ? now_ns() + (uint64_t)(atof(argv[5]) * 1e9) : UINT64_MAX;
  uint64_t ends_ns = argc > 7 ? now_ns() + (uint64_t)(atof(argv[6]) * 1e9) : UINT64_MAX;
  struct profiled_comm *c = profiled_open(library, atoi(argv[1]), 4711 + (uint64_t)number("RDZV_ROUND"), size, rank);
  if (!c) return 3;
  signal(SIGTERM, on_term);
  uint64_t longer_ns = (uint64_t)(wire ? SEND_NS : STEP_NS / 2) * (uint64_t)percent / 100;
  for (uint64_t step = now_ns() / STEP_NS + 1; !over && now_ns() < ends_ns; step = now_ns() / STEP_NS + 1) {
    bool slower = now_ns() < recovers_ns;
    uint64_t begin = step * STEP_NS;
    struct profiled_collective k = {.entered_ns =
                                        begin + STEP_NS / 2 + (rank == slow && !wire && slower ? longer_ns : 0),
                                    .left_ns = begin + STEP_NS - STEP_NS / 100,
                                    .channels = 2,
                                    .sends = 3,
                                    .send_ns = SEND_NS + (rank == slow && wire && slower ? longer_ns : 0),
                                    .send_bytes = 1 << 20,
                                    .wait_until = wait_until};
    profiled_collective(c, &k);
  }
  profiled_close(c);
  return over || argc < 8 ? 0 : atoi(argv[7]);
}
