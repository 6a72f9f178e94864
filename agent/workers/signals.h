/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_WORKERS_SIGNALS_H
#define AGENT_WORKERS_SIGNALS_H

/* Which signals make this agent leave. A signal may be ignored when the agent starts: nohup, trap '' and the background
 * jobs of a shell do that. SIGTERM, and every signal that --signals-to-handle names, is handled even then. Of the
 * defaults, those that are ignored stay ignored. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/options/options.h"

bool signal_is_ignored(int signo);
/* Bit n: signal n is to be handled. Logs the defaults that stay ignored, in one line. */
uint64_t signals_to_watch(const struct agent_options *o);

#endif
