/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_WORKERS_ROUND_H
#define AGENT_WORKERS_ROUND_H

/* The driver of the rounds on this node. It owns START, the workers' records, their parent (the guard), their output
 * (the relay), their socket to the agent, and the watch over their devices.
 *
 *   round_start -> the store is served -> the devices are free -> workers are spawned or adopted -> SPAWNED for each
 *   a death     -> EXITED, after the worker's last output is read
 *   round_stop  -> CLEAR, when nothing of the round is left
 *
 * The mind (agent/supervisor) decides when; each function here carries out one effect and answers with events. Of one
 * thing the driver decides alone: when a stop comes while START waits for devices, nothing of that round was
 * spawned. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "agent/devices/numa.h"
#include "agent/devices/gpus_free_before_round.h"
#include "agent/guard/guard.h"
#include "agent/options/options.h"
#include "agent/output/log_dir.h"
#include "agent/output/relay.h"
#include "agent/store/round_store.h"
#include "agent/supervisor/supervisor.h"
#include "agent/workers/env.h"
#include "common/err.h"

struct round_options {
  uv_loop_t *loop;
  uint32_t count;    /* local ranks */
  char *const *argv; /* the command */
  char *const *base_env;
  const struct env_job *env;           /* the job, for the workers' environment; socket, error_file are not filled */
  const struct numa *numa;             /* their CPUs */
  const struct agent_options *options; /* for where output goes */
  const char *host;                    /* this machine's name, for the prefix of output */
  struct log_dir *logs;                /* made at the first round if it is not made yet */
  struct device_watch_options devices; /* loop, env, workers and callbacks are not filled */
  struct round_store *store;           /* opened by START on node rank 0 */
  pid_t group;                         /* the process group that the shell knows as the job; 0: not known */
  void (*on_suspended)(void *ctx);     /* called after round_suspend, once the workers' output is on the terminal */
  void (*on_event)(void *ctx, struct supervisor_event *ev); /* now_ms is not filled */
  pid_t (*daemon_pid)(void *ctx); /* of the rdzvd that this agent has started: not a worker's process. 0: none */
  void *ctx;
};

struct round_driver;

/* The guard g must run already; it belongs to the driver from now on. After a failure the process must exit: nothing is
 * undone. */
int round_create(const struct round_options *o, const struct guard *g, struct round_driver **out, struct err *e);
struct relay *round_relay(struct round_driver *r);

/* SPAWN. Takes start. Workers in `stay` were kept by STOP_TREES and go on in this round; all others are spawned. */
void round_start(struct round_driver *r, struct start *start, const struct bytes *guests, const struct local_set *stay);
/* All other effects that concern the workers. STOP_TREES is carried out here if the guard does not do it
 * (agent/guard/watch.h). TOLD logs the time of the failure and the name of the error file. */
void round_carry_out(struct round_driver *r, const struct supervisor_effect *fx);
/* Stops all processes of the workers, or continues them. Time in between does not count as a hang. */
void round_suspend(struct round_driver *r, bool on);
/* Gives the workers' pseudo-terminals the new size of the terminal. */
void round_resize(struct round_driver *r);
/* AGENT_DIED: guard_death_report. */
void round_death_report(struct round_driver *r, const struct sockaddr *addr, socklen_t len, const struct key *key,
                        const struct bytes *b);
/* The worker's device; NULL: it has none, or it is not known. */
const struct device *round_device(const struct round_driver *r, uint32_t local_rank);
int round_devices(const struct round_driver *r, const struct device **v); /* device_watch_list */
/* How many GPUs the workers of the next round will have, as far as it is known; 0: none, or a worker lives, which is added to
 * `why`. */
int round_idle_gpus(const struct round_driver *r, struct buf *why);
/* MINT: the environment of worker 0 of that round, without its own files; NULL: START of that round is not here. The
 * caller's to env_destroy. */
char **round_env(const struct round_driver *r, uint32_t round);
/* Writes why the agent exits with `code` (not 0) to the error file of the program that started the agent
 * (TORCHELASTIC_ERROR_FILE), if there is one. */
void round_hand_up(struct round_driver *r, int code);

/* Asks the guard to end. No event follows. Lines still go to the terminal. */
void round_close(struct round_driver *r);
/* After round_close. Waits for the guard, at most deadline_ms, and kills what it leaves. Waits, bounded, for output
 * that is on its way. Memory is free when the loop has closed the handles. */
void round_destroy(struct round_driver *r, uint32_t deadline_ms);

#endif
