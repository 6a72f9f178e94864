/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_WORKERS_WORKER_SIGNS_H
#define AGENT_WORKERS_WORKER_SIGNS_H

/* The driver's side of hangs: looks for signs of workers in their output or files, and has the processes of workers
 * that hang looked at. Carries out SUP_LOOK and SUP_PROBE, and answers them; decides nothing. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>
#include "agent/workers/round.h"

struct hang_watch;

struct hang_watch *hang_watch_create(const struct round_options *o, struct relay *relay);
void hang_watch_destroy(struct hang_watch *h); /* NULL is fine; before the relay. No event follows */

/* The workers are stopped (SIGSTOP) on purpose; or no longer. */
void hang_watch_suspend(struct hang_watch *h, bool on);
void hang_watch_begin(struct hang_watch *h, const struct start *start);
/* For the workers' NCCL_RAS_ADDR; NULL: it is inherited, or there is none. */
const char *hang_watch_ras_addr(const struct hang_watch *h);
struct worker;
void hang_watch_look(struct hang_watch *h, struct worker *v); /* by local rank */
/* suspect: the local rank to begin with; -1: none. stacks: print those of the workers, unless an option says no. `v`
 * stays where it is. */
void hang_watch_probe(struct hang_watch *h, const struct worker *v, int64_t suspect, enum log_level level, bool stacks);
void hang_watch_end(struct hang_watch *h); /* the workers are being stopped: no tool may hold them now */

#endif
