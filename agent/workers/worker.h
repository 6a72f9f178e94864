/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_WORKERS_WORKER_H
#define AGENT_WORKERS_WORKER_H

/* The driver's record of one worker, by local rank. It stays where it is for the agent's whole life: pipes, files and
 * connections point at it. The guard and the mind keep a record each, in their own process and their own terms. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "agent/failures/failures.h"
#include "agent/failures/oom.h"
#include "agent/output/relay.h"

struct worker {
  pid_t pid;     /* 0: it has not started */
  bool adopting; /* it goes on from the round before, and STARTED has not come */

  /* Its death. */
  bool exited, reported; /* reported: to the mind */
  bool unasked;          /* it died before we killed it */
  int status;            /* as of waitpid */
  uint64_t when_ms;
  uint64_t words_by_ms, file_by_ms; /* the report waits for its output and its error file no longer than that */
  struct failure failure;
  struct oom_mark memory;

  /* Its output. */
  struct relay_pipes *pipes; /* NULL: none were made */
  uint64_t sign_ms;          /* when it last printed, as far as reported */
};

#endif
