/* SPDX-License-Identifier: Apache-2.0 */
/* sim_random: plays many seeds of each family of random stories, or one of them to be read.
 *
 *   sim_random                         RDZV_SIM_SEEDS seeds from 1 on (default 2,000)
 *   sim_random --seeds 1:100001        from, to (the last is not played)
 *   sim_random --pairs                 nodes exchange data in pairs after network faults
 *   sim_random --digest                also a digest of all traces: is the behaviour the same as before?
 *   sim_random --family takeover       this family only: world, or takeover
 *   sim_random --family world --seed 4711 --verbose   one, with every message and every word that is said
 *   sim_random --seeds 1:301 --model-trace FILE       small worlds, for tests/model/replay.py; --without HOLD: as if
 *                                                     daemons did not have that rule
 *
 * --jobs N: processes (default: the processors that may be used, at most 8). */

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "tests/sim/coverage.h"
#include "tests/sim/random.h"

static int default_jobs(void) {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set)) return 1;
  int n = CPU_COUNT(&set);
  return n > 8 ? 8 : n;
}

static double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int play_one(enum random_family f, uint64_t seed, bool verbose) {
  struct sim *s = random_play(f, seed, true, verbose);
  if (!verbose) sim_trace_print(s, SIM_TRACE_MAX);
  bool good = s->violated == INV_NONE;
  if (!good) printf("seed %" PRIu64 ": %s: %s\n", seed, invariant_name(s->violated), s->violation);
  sim_destroy(s);
  return good ? 0 : 1;
}

static bool play_many(enum random_family f, uint64_t from, uint64_t to, int jobs, bool digest) {
  double t0 = seconds();
  struct random_summary sum;
  bool good = random_campaign(f, from, to, jobs, digest, &sum);
  double t = seconds() - t0;
  printf("%s: %" PRIu64 " seeds in %.1f s (%.0f/s), %d jobs: %.0f virtual hours, %.1f million steps, %" PRIu64
         " agents "
         "(%" PRIu64 " ended with 0, %" PRIu64 " otherwise, the rest were killed), %" PRIu64 " failures\n",
         random_family_name(f), sum.seeds, t, (double)sum.seeds / t, jobs, (double)sum.virtual_ms / 3.6e6,
         (double)sum.steps / 1e6, sum.agents, sum.successes, sum.failed, sum.failures + sum.crashed);
  if (digest) printf("digest of all traces: %016" PRIx64 "\n", sum.digest);
  fflush(stdout);
  return good;
}

/* RANDOM_FAMILIES: there is none of that name. */
static enum random_family family_of(const char *name) {
  enum random_family f = RANDOM_WORLD;
  while (f < RANDOM_FAMILIES && strcmp(random_family_name(f), name) != 0) f++;
  return f;
}

int main(int argc, char **argv) {
  const char *n = getenv("RDZV_SIM_SEEDS");
  uint64_t from = 1, to = 1 + (n ? strtoull(n, NULL, 10) : 2000), one = 0;
  enum random_family only = RANDOM_FAMILIES;
  bool verbose = false, single = false, digest = false;
  int jobs = default_jobs();
  FILE *traces = NULL;
  const char *without = NULL;
  for (int i = 1; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (!strcmp(argv[i], "--verbose")) {
      verbose = true;
    } else if (!strcmp(argv[i], "--pairs")) {
      random_pairs = true;
    } else if (!strcmp(argv[i], "--digest")) {
      digest = true;
    } else if (!strcmp(argv[i], "--family") && value && family_of(value) < RANDOM_FAMILIES) {
      only = family_of(argv[++i]);
    } else if (!strcmp(argv[i], "--seed") && value) {
      one = strtoull(argv[++i], NULL, 10);
      single = true;
    } else if (!strcmp(argv[i], "--seeds") && value && strchr(value, ':')) {
      from = strtoull(value, NULL, 10);
      to = strtoull(strchr(argv[++i], ':') + 1, NULL, 10);
    } else if (!strcmp(argv[i], "--model-trace") && value) {
      traces = fopen(argv[++i], "w");
      if (!traces) return perror(argv[i]), 1;
    } else if (!strcmp(argv[i], "--without") && value) {
      without = argv[++i];
    } else if (!strcmp(argv[i], "--jobs") && value && atoi(value) > 0) {
      jobs = atoi(argv[++i]);
    } else {
      fprintf(
          stderr,
          "usage: sim_random [--family NAME] [--seeds FROM:TO] [--jobs N] [--pairs] [--digest] | --family NAME --seed N "
          "[--verbose] | --seeds FROM:TO --model-trace FILE [--without RULE] [--verbose]\n");
      return 64;
    }
  }
  if (traces) {
    for (uint64_t seed = from; seed < to; seed++) model_trace(seed, without, verbose, traces);
    return fclose(traces) ? 1 : 0;
  }
  if (single) return play_one(only == RANDOM_FAMILIES ? RANDOM_WORLD : only, one, verbose);
  bool good = true;
  for (enum random_family f = RANDOM_WORLD; f < RANDOM_FAMILIES; f++)
    if (only == RANDOM_FAMILIES || only == f) good = play_many(f, from, to, jobs, digest) && good;
  return good ? 0 : 1;
}
