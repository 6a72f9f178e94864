/* SPDX-License-Identifier: Apache-2.0 */
/* A campaign plays many seeds of a family of random stories, shared among a few processes, because a core that loops or
 * aborts must not take the others' results with it. A failing seed is played again with its trace. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include "tests/sim/coverage.h"
#include "tests/sim/random.h"

enum { JOBS_MAX = 64 };

const char *random_family_name(enum random_family f) {
  return f == RANDOM_TAKEOVER ? "takeover" : "world";
}

struct sim *random_play(enum random_family f, uint64_t seed, bool trace, bool verbose) {
  return f == RANDOM_TAKEOVER ? random_takeover(seed, trace, verbose) : random_world(seed, trace, verbose);
}

static void put_rerun(enum random_family f, uint64_t seed) {
  printf("rerun: build/tests/sim/sim_random --family %s --seed %" PRIu64 " --verbose\n", random_family_name(f), seed);
}

struct board { /* shared with the children */
  uint64_t current[JOBS_MAX];
  struct random_summary sum[JOBS_MAX];
};

static void count(struct random_summary *sum, const struct sim *s, uint64_t seed) {
  sum->seeds++;
  sum->virtual_ms += s->now;
  sum->steps += s->steps;
  sum->agents += (uint64_t)s->n_agents;
  sum->digest += (s->digest ^ seed) * 0x9e3779b97f4a7c15u; /* whichever process played it */
  for (int i = 0; i < s->n_agents; i++) {
    sum->successes += s->agents[i]->exit_code == 0;
    sum->failed += s->agents[i]->exit_code > 0;
  }
  if (s->violated == INV_NONE) return;
  if (!sum->failures++ || seed < sum->first_failure) sum->first_failure = seed;
  printf("seed %" PRIu64 ": %s: %s\n", seed, invariant_name(s->violated), s->violation);
  fflush(stdout);
}

static void play_share(struct board *b, enum random_family f, int job, int jobs, bool trace, uint64_t from,
                       uint64_t to) {
  for (uint64_t seed = from + (uint64_t)job; seed < to; seed += (uint64_t)jobs) {
    b->current[job] = seed;
    struct sim *s = random_play(f, seed, trace, false);
    count(&b->sum[job], s, seed);
    sim_destroy(s);
    if (b->sum[job].failures >= 10) break;
  }
  coverage_publish();
}

static void add_up(struct random_summary *sum, const struct random_summary *r) {
  if (r->failures && (!sum->failures || r->first_failure < sum->first_failure)) sum->first_failure = r->first_failure;
  sum->seeds += r->seeds, sum->failures += r->failures, sum->virtual_ms += r->virtual_ms, sum->steps += r->steps;
  sum->agents += r->agents, sum->successes += r->successes, sum->failed += r->failed, sum->digest += r->digest;
}

static void show_failure(enum random_family f, uint64_t seed) {
  printf("\nseed %" PRIu64 " again, with its trace:\n", seed);
  struct sim *s = random_play(f, seed, true, false);
  sim_trace_print(s, 200);
  put_rerun(f, seed);
  sim_destroy(s);
}

bool random_campaign(enum random_family f, uint64_t from, uint64_t to, int jobs, bool trace,
                     struct random_summary *sum) {
  *sum = (struct random_summary){0};
  if (jobs > JOBS_MAX) jobs = JOBS_MAX;
  struct board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (b == MAP_FAILED) return false;
  coverage_share();
  pid_t pids[JOBS_MAX];
  fflush(stdout);
  for (int i = 0; i < jobs; i++) {
    pids[i] = fork();
    if (pids[i] == 0) {
      play_share(b, f, i, jobs, trace, from, to);
      exit(0); /* so that leaks are found */
    }
  }
  for (int i = 0; i < jobs; i++) {
    int status = 1;
    if (pids[i] > 0) waitpid(pids[i], &status, 0);
    if (status) {
      printf("CRASH in seed %" PRIu64 " (status %d)\n", b->current[i], status);
      put_rerun(f, b->current[i]);
      sum->crashed++;
    }
    add_up(sum, &b->sum[i]);
  }
  munmap(b, sizeof *b);
  if (sum->failures) show_failure(f, sum->first_failure);
  return !sum->failures && !sum->crashed;
}
