/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_WORKERS_SIGNALS_H
#define AGENT_WORKERS_SIGNALS_H

/* Which signals make this agent leave. A signal may be ignored when the agent starts: nohup, trap '' and the background
 * jobs of a shell do that. SIGTERM, and every signal that --signals-to-handle names, is handled even then. Of the
 * defaults, those that are ignored stay ignored.
 *
 * A second signal means that somebody insists, and kills the workers. But one event may send the same signal twice:
 * timeout(1) signals its child and then the child's process group; when a terminal is closed, the kernel signals the
 * foreground job and its shell, which signals the job again; a batch system signals every process of a job, so an agent
 * gets the signal itself and from its front. They come together. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/options/options.h"

enum { SIGNAL_ECHO_MS = 250 };

/* The last signal that counted. */
struct last_signal {
  int signo; /* 0: none */
  uint64_t at_ms;
};

/* The signal belongs to the event of the last one. Otherwise it counts, and is remembered. Pure. */
bool signal_is_echo(struct last_signal *last, int signo, uint64_t now_ms);
bool signal_is_ignored(int signo);
/* Bit n: signal n is to be handled. Logs the defaults that stay ignored, in one line. */
uint64_t signals_to_watch(const struct agent_options *o);

#endif
