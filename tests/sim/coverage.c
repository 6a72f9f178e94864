/* The coverage of the job's table (daemon/rdzv.c, PROTOCOL.md 5) by everything the simulation does, and of the
 * supervisor's, which has no table in the open: there the cells are its state and the event or message that came in.
 *
 * A cell of the daemon's table that was never taken is a hole: either a story is missing, or the cell cannot be reached,
 * and then it is listed below with the reason. A listed cell that was taken after all is an error too, since then the
 * reason is wrong. */

#include "tests/sim/coverage.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "daemon/core/internal.h"

enum { AGENT_EVENTS = SUP_TICK + MSG_COUNT };

struct counts {
  uint64_t job[JOB_STATE_COUNT][JOB_EV_COUNT];
  uint64_t agent[SUPERVISOR_STATE_COUNT][AGENT_EVENTS + 1];
};

static struct counts here, *shared;

static const struct hole {
  enum job_state state;
  enum job_event_kind event;
  const char *reason;
} explained[] = {
#include "tests/sim/holes.inc"
};

void coverage_add(const uint32_t *counts, size_t states, size_t events) {
  for (size_t s = 0; s < states && s < JOB_STATE_COUNT; s++)
    for (size_t e = 0; e < events && e < JOB_EV_COUNT; e++) here.job[s][e] += counts[s * events + e];
}

void coverage_agent(const struct supervisor *sup, const struct supervisor_event *ev) {
  size_t event = ev->kind == SUP_MSG ? (size_t)SUP_TICK + ev->msg->type : (size_t)ev->kind;
  here.agent[supervisor_state(sup)][event]++;
}

void coverage_share(void) {
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) shared = NULL;
}

static void add(uint64_t *to, const uint64_t *from, size_t n) {
  for (size_t i = 0; i < n; i++) __atomic_fetch_add(&to[i], from[i], __ATOMIC_RELAXED);
}

static void merge(struct counts *to, const struct counts *from) {
  add(&to->job[0][0], &from->job[0][0], sizeof from->job / sizeof(uint64_t));
  add(&to->agent[0][0], &from->agent[0][0], sizeof from->agent / sizeof(uint64_t));
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

static const char *agent_event_name(size_t e) {
  static const char *const names[] = {[SUP_STORE] = "store",
                                      [SUP_START] = "start",
                                      [SUP_LINK_UP] = "link-up",
                                      [SUP_LINK_DOWN] = "link-down",
                                      [SUP_MSG] = "msg",
                                      [SUP_SPAWNED] = "spawned",
                                      [SUP_EXEC_FAILED] = "exec-failed",
                                      [SUP_DEVICE_HELD] = "device-held",
                                      [SUP_EXITED] = "exited",
                                      [SUP_CLEAR] = "clear",
                                      [SUP_FENCED] = "fenced",
                                      [SUP_STUCK] = "stuck",
                                      [SUP_GUARD_GONE] = "guard-gone",
                                      [SUP_SIGNAL] = "signal",
                                      [SUP_PROGRESS] = "progress",
                                      [SUP_CAN_CHECKPOINT] = "can-ckpt",
                                      [SUP_CHECKPOINTED] = "checkpointed",
                                      [SUP_CAN_REJOIN] = "can-rejoin",
                                      [SUP_PARKED] = "parked",
                                      [SUP_LOOKED] = "looked",
                                      [SUP_PROBED] = "probed",
                                      [SUP_PROBE_DONE] = "probe-done",
                                      [SUP_PROBE_FACTS] = "probe-facts",
                                      [SUP_SIGN] = "sign",
                                      [SUP_MINTED] = "minted",
                                      [SUP_MINT_FAILED] = "mint-failed",
                                      [SUP_NCCL_UP] = "nccl-up",
                                      [SUP_TICK] = "tick"};
  return e <= SUP_TICK ? names[e] : msg_name((enum msg_type)(e - SUP_TICK));
}

void coverage_print(void) {
  collect();
  printf("\nThe job's table, times taken:\n%-10s", "");
  for (size_t s = 0; s < JOB_STATE_COUNT; s++) printf(" %10s", job_state_name((enum job_state)s));
  for (size_t e = 0; e < JOB_EV_COUNT; e++) {
    printf("\n%-10s", job_event_name((enum job_event_kind)e));
    for (size_t s = 0; s < JOB_STATE_COUNT; s++) printf(" %10" PRIu64, here.job[s][e]);
  }
  printf("\n\nThe agent's events by state:\n%-14s", "");
  for (size_t s = 0; s < SUPERVISOR_STATE_COUNT; s++)
    printf(" %9s", supervisor_state_name((enum supervisor_state)s));
  for (size_t e = 0; e <= AGENT_EVENTS; e++) {
    if (e == SUP_MSG) continue;
    if (e > SUP_TICK &&
        (e - SUP_TICK >= MSG_COUNT || msg_direction((enum msg_type)(e - SUP_TICK)) != TO_AGENT))
      continue;
    if (e == SUP_TICK + MSG_CONTROL_REPLY) continue;
    printf("\n%-14s", agent_event_name(e));
    for (size_t s = 0; s < SUPERVISOR_STATE_COUNT; s++) printf(" %9" PRIu64, here.agent[s][e]);
  }
  printf("\n\n");
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
}

bool coverage_check(void) {
  collect();
  bool good = true;
  for (size_t s = 0; s < JOB_STATE_COUNT; s++) {
    for (size_t e = 0; e < JOB_EV_COUNT; e++) {
      const char *reason = reason_of(s, e), *state = job_state_name((enum job_state)s);
      const char *event = job_event_name((enum job_event_kind)e);
      if (!here.job[s][e] && reason) {
        printf("hole: %s in %s: %s\n", event, state, reason);
      } else if (!here.job[s][e]) {
        printf("UNEXPLAINED HOLE: %s in %s was never taken\n", event, state);
        good = false;
      } else if (reason) {
        printf("WRONG REASON: %s in %s was taken %" PRIu64 " times, but is said to be: %s\n", event, state,
               here.job[s][e], reason);
        good = false;
      }
    }
  }
  return good;
}
