/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_METRICS_H
#define DAEMON_CORE_METRICS_H

/* /metrics: what Prometheus scrapes, in its text format 0.0.4. Pure.
 *
 * No series exists per rank or per node, so their number does not depend on the size of a job. Odd facts alone name their
 * node: the first ODD_SERIES_MAX of a job. */

#include <stdint.h>
#include "common/buf.h"

struct core;
struct job;
struct member;

/* M(NAME, name, type, labels, meaning). deploy/guide/monitoring.md has the same as a table. Metrics of one job have the
 * labels job and uid too; "-": of the daemon. */
#define METRIC_LIST(M)                                                                                                 \
  M(JOB_INFO, rdzv_job_info, gauge, "incarnation min_nodes max_nodes max_restarts", "1 for each job.")                 \
  M(JOB_STATE, rdzv_job_state, gauge, "state", "1 for the state that the job is in.")                                  \
  M(ROUND, rdzv_round, gauge, "", "Number of the current or last round. 0: none has begun.")                           \
  M(NODES, rdzv_nodes, gauge, "state", "Nodes of the job in each state. A state without nodes has no series.")         \
  M(FAILURES, rdzv_failures_total, counter, "cause",                                                                   \
    "Rounds that ended, by the cause in their verdict. A cause that never occurred has no series.")                    \
  M(RESTARTS, rdzv_restarts_total, counter, "", "Rounds that began after the first one.")                              \
  M(JOB_SECONDS, rdzv_job_seconds_total, counter, "bucket", "What the time of the job since its first node went to.")  \
  M(STEP, rdzv_step, gauge, "", "Step of the node that is furthest behind, if workers report steps.")                  \
  M(SAMPLES, rdzv_samples_per_second, gauge, "",                                                                       \
    "Samples per second of the nodes that are not late, if workers report them.")                                      \
  M(PROGRESS_AGE, rdzv_progress_age_seconds, gauge, "",                                                                \
    "While a round runs: the time since the last step of the worker that has reported none for longest.")              \
  M(PROGRESS, rdzv_progress, gauge, "judgement",                                                                       \
    "1 for how the progress is judged: up to date, slowing, late, stuck.")                                             \
  M(LEFT, rdzv_time_left_seconds, gauge, "", "Time to the last step at the usual pace. None while a node is late.")    \
  M(ODD, rdzv_node_odd_facts, gauge, "host fact class",                                                                \
    "Places on the node where this fact is odd. Nodes that are like the others have no series.")                       \
  M(SLOW_RANKS, rdzv_slow_ranks, gauge, "", "Ranks for which the others wait, while a round runs.")                    \
  M(SLOW_COST, rdzv_slow_rank_cost_ratio, gauge, "",                                                                   \
    "The part of the time that the others wait for the slowest rank.")                                                 \
  M(RECOVERY, rdzv_recovery_seconds, histogram, "phase -", "Time from a failure to the next round, by phase.")         \
  M(EXCLUDED, rdzv_excluded_hosts, gauge, "-",                                                                         \
    "Hosts that new rounds leave out where they can, because several jobs have failed there.")                         \
  M(CPU, process_cpu_seconds_total, counter, "-", "Processor time of the daemon.")                                     \
  M(RESIDENT, process_resident_memory_bytes, gauge, "-", "Resident memory of the daemon.")                             \
  M(VIRTUAL, process_virtual_memory_bytes, gauge, "-", "Virtual memory of the daemon.")                                \
  M(STARTED, process_start_time_seconds, gauge, "-", "When the daemon started, in seconds since 1970.")                \
  M(OPEN_FDS, process_open_fds, gauge, "-", "Open file descriptors of the daemon.")                                    \
  M(MAX_FDS, process_max_fds, gauge, "-", "Limit of open file descriptors of the daemon.")

enum { ODD_SERIES_MAX = 64 };

/* The states of rdzv_nodes: N(NAME, word, meaning). */
#define NODE_STATE_LIST(N)                                                                                             \
  N(MISSING, "missing", "expected or needed for the next round, and not here")                                         \
  N(WAITING, "waiting", "waits for the next round")                                                                    \
  N(SPARE, "spare", "waits while a round runs without it")                                                             \
  N(HELD, "held", "was lost too often, or failed several jobs, and is used only if needed")                            \
  N(DRAINED, "drained", "its host is drained")                                                                         \
  N(STARTING, "starting", "starts its workers")                                                                        \
  N(RUNNING, "running", "its workers run")                                                                             \
  N(CHECKPOINTING, "checkpointing", "its workers write the checkpoint before a planned end of the round")              \
  N(STOPPING, "stopping", "stops its workers")                                                                         \
  N(STOPPED, "stopped", "has stopped its workers; others of the round have not")                                       \
  N(FINISHED, "finished", "its workers are done")                                                                      \
  N(AWAY, "away", "its connection is gone, and its time to come back has not passed")                                  \
  N(ENDING, "ending", "the job has ended, and the node has not acknowledged it")

#define N(NAME, word, meaning) NODE_##NAME,
enum node_state { NODE_STATE_LIST(N) NODE_STATE_COUNT };
#undef N
const char *node_state_name(enum node_state s); /* "?": of COUNT */
/* COUNT: it is not counted any more. */
enum node_state node_state(const struct job *j, const struct member *m);

/* What the driver knows of the daemon's process; below 0: unknown. */
struct process_facts {
  double cpu_s, started_wall_s;
  int64_t resident_bytes, virtual_bytes, open_fds, max_fds;
};

/* Appends the text for the user `uid`, who sees what control_may allows. */
void metrics_put(struct core *c, int64_t uid, const struct process_facts *process, uint64_t now_ms, struct buf *out);

#endif
