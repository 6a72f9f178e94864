/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_FAILURES_VERDICT_JSON_H
#define AGENT_FAILURES_VERDICT_JSON_H

/* The text of --verdict-file: how the job ended for this agent, as one JSON object. Pure. */

#include "agent/supervisor/supervisor.h"
#include "common/buf.h"

/* Appends the object and a newline. when: "2026-11-21T22:17:03Z". */
void verdict_json(const struct ending *end, const char *job, const char *host, const char *when, struct buf *out);

#endif
