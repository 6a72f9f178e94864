/* SPDX-License-Identifier: Apache-2.0 */
/* The coverage of the job's table (daemon/job/job.c) and of the agent's (agent/supervisor/table.inc) by everything the
 * simulation does.
 *
 * A cell that was never taken is a hole. Either a story is missing, or the cell cannot be reached, and then a reason
 * must say so: for a job in holes.inc, for the agent in its table (NEVER). A reason for a cell that was taken is an
 * error too. agent_holes.inc has the agent's cells that may come, but that the simulation lacks or takes too seldom. */

#include "tests/sim/coverage.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "daemon/job/jobs.h"

enum { AGENT_ROWS_MAX = 64 };

struct counts {
  uint64_t job[JOB_STATE_COUNT][JOB_EV_COUNT];
  uint64_t agent[AGENT_ROWS_MAX][SUPERVISOR_STATE_COUNT];
};

static struct counts here, *shared;

static const struct hole {
  enum job_state state;
  enum job_event_kind event;
  const char *reason;
} explained[] = {
#include "tests/sim/holes.inc"
};

static const struct agent_hole {
  const char *event;
  unsigned states; /* a bit each */
  const char *reason;
} agent_explained[] = {
#define IN(state) (1u << SUPERVISOR_##state)
#define BETWEEN   (IN(JOINING) | IN(FINISHED) | IN(STOPPED))
#define ALL       (~0u)
#include "tests/sim/agent_holes.inc"
};

void coverage_jobs(const struct jobs *jobs) {
  for (size_t s = 0; s < JOB_STATE_COUNT; s++)
    for (size_t e = 0; e < JOB_EV_COUNT; e++) here.job[s][e] += jobs->coverage[s * JOB_EV_COUNT + e];
}

void coverage_agent(const struct supervisor *sup) {
  const uint32_t *counts = supervisor_coverage(sup);
  for (size_t e = 0; e < supervisor_table_size(); e++)
    for (size_t s = 0; s < SUPERVISOR_STATE_COUNT; s++) here.agent[e][s] += counts[e * SUPERVISOR_STATE_COUNT + s];
}

static void add(uint64_t *to, const uint64_t *from, size_t n) {
  for (size_t i = 0; i < n; i++) __atomic_fetch_add(&to[i], from[i], __ATOMIC_RELAXED);
}

static void merge(struct counts *to, const struct counts *from) {
  add(&to->job[0][0], &from->job[0][0], sizeof from->job / sizeof(uint64_t));
  add(&to->agent[0][0], &from->agent[0][0], sizeof from->agent / sizeof(uint64_t));
}

void coverage_share(void) {
  if (shared) { /* of the campaign before */
    merge(&here, shared);
    munmap(shared, sizeof *shared);
  }
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) shared = NULL;
}

void coverage_publish(void) {
  if (shared) merge(shared, &here);
  memset(&here, 0, sizeof here);
}

static void collect(void) {
  if (!shared) return;
  merge(&here, shared);
  memset(shared, 0, sizeof *shared);
}

void coverage_print(void) {
  collect();
  printf("\nThe job's table, times taken:\n%-10s", "");
  for (size_t s = 0; s < JOB_STATE_COUNT; s++) printf(" %10s", job_state_name((enum job_state)s));
  for (size_t e = 0; e < JOB_EV_COUNT; e++) {
    printf("\n%-10s", job_event_name((enum job_event_kind)e));
    for (size_t s = 0; s < JOB_STATE_COUNT; s++) printf(" %10" PRIu64, here.job[s][e]);
  }
  printf("\n\nThe agent's table, times taken:\n%-14s", "");
  for (size_t s = 0; s < SUPERVISOR_STATE_COUNT; s++) printf(" %9s", supervisor_state_name((enum supervisor_state)s));
  for (size_t e = 0; e < supervisor_table_size(); e++) {
    printf("\n%-14s", supervisor_table_event(e));
    for (size_t s = 0; s < SUPERVISOR_STATE_COUNT; s++) printf(" %9" PRIu64, here.agent[e][s]);
  }
  printf("\n\n");
}

static bool is_impossible(size_t e, size_t s) {
  bool impossible;
  supervisor_table_reason(e, (enum supervisor_state)s, &impossible);
  return impossible;
}

/* Why nothing has taken the agent's cell; NULL: nobody knows. */
static const char *agent_reason_of(size_t e, size_t s) {
  bool impossible;
  const char *reason = supervisor_table_reason(e, (enum supervisor_state)s, &impossible);
  if (impossible) return reason;
  if (here.agent[e][s]) return NULL;
  for (size_t i = 0; i < sizeof agent_explained / sizeof *agent_explained; i++)
    if (!strcmp(agent_explained[i].event, supervisor_table_event(e)) && agent_explained[i].states >> s & 1)
      return agent_explained[i].reason;
  return NULL;
}

static const char *reason_of(size_t s, size_t e) {
  for (size_t i = 0; i < sizeof explained / sizeof explained[0]; i++)
    if (explained[i].state == s && explained[i].event == e) return explained[i].reason;
  return NULL;
}

static void put_short(FILE *out, int width, uint64_t n) {
  if (n < 10000)
    fprintf(out, "%*" PRIu64, width, n);
  else
    fprintf(out, "%*" PRIu64 "k", width - 1, n / 1000);
}

static void put_agent_summary(FILE *out) {
  enum { WIDTH = 9 };
  int taken = 0;
  for (size_t e = 0; e < supervisor_table_size(); e++)
    for (size_t s = 0; s < SUPERVISOR_DONE; s++) taken += here.agent[e][s] > 0;
  fprintf(out,
          "\nan agent's events by its states, and how often all stories took them: %d of %zu cells; - cannot be "
          "(agent/supervisor/table.inc)\n%-14s",
          taken, supervisor_table_size() * SUPERVISOR_DONE, "");
  for (size_t s = 0; s < SUPERVISOR_DONE; s++)
    fprintf(out, "%*s", WIDTH, supervisor_state_name((enum supervisor_state)s));
  for (size_t e = 0; e < supervisor_table_size(); e++) {
    fprintf(out, "\n%-14s", supervisor_table_event(e));
    for (size_t s = 0; s < SUPERVISOR_DONE; s++)
      if (is_impossible(e, s))
        fprintf(out, "%*s", WIDTH, "-");
      else
        put_short(out, WIDTH, here.agent[e][s]);
  }
  fputc('\n', out);
}

void coverage_summary(FILE *out) {
  enum { NARROWEST = 6 };
  int width[JOB_STATE_COUNT], taken = 0;
  collect();
  for (size_t s = 0; s < JOB_STATE_COUNT; s++)
    for (size_t e = 0; e < JOB_EV_COUNT; e++) taken += here.job[s][e] > 0;
  fprintf(out,
          "a job's events by its states, and how often all stories took them: %d of %d cells; - cannot be "
          "(tests/sim/holes.inc)\n%-12s",
          taken, JOB_STATE_COUNT * JOB_EV_COUNT, "");
  for (size_t s = 0; s < JOB_STATE_COUNT; s++) {
    const char *name = job_state_name((enum job_state)s);
    width[s] = 1 + (int)(strlen(name) > NARROWEST ? strlen(name) : NARROWEST);
    fprintf(out, "%*s", width[s], name);
  }
  for (size_t e = 0; e < JOB_EV_COUNT; e++) {
    fprintf(out, "\n%-12s", job_event_name((enum job_event_kind)e));
    for (size_t s = 0; s < JOB_STATE_COUNT; s++)
      if (!here.job[s][e] && reason_of(s, e))
        fprintf(out, "%*s", width[s], "-");
      else
        put_short(out, width[s], here.job[s][e]);
  }
  fputc('\n', out);
  put_agent_summary(out);
}

static bool check_cell(const char *event, const char *state, uint64_t taken, const char *reason) {
  if (!taken && reason) {
    printf("hole: %s in %s: %s\n", event, state, reason);
  } else if (!taken) {
    printf("UNEXPLAINED HOLE: %s in %s was never taken\n", event, state);
  } else if (reason) {
    printf("WRONG REASON: %s in %s was taken %" PRIu64 " times, but is said to be: %s\n", event, state, taken, reason);
  }
  return !taken == !!reason;
}

bool coverage_check(void) {
  collect();
  bool good = true;
  for (size_t s = 0; s < JOB_STATE_COUNT; s++)
    for (size_t e = 0; e < JOB_EV_COUNT; e++)
      good &= check_cell(job_event_name((enum job_event_kind)e), job_state_name((enum job_state)s), here.job[s][e],
                         reason_of(s, e));
  for (size_t e = 0; e < supervisor_table_size(); e++)
    for (size_t s = 0; s < SUPERVISOR_DONE; s++)
      good &= check_cell(supervisor_table_event(e), supervisor_state_name((enum supervisor_state)s), here.agent[e][s],
                         agent_reason_of(e, s));
  return good;
}
