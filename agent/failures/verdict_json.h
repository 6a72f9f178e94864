#ifndef AGENT_VERDICT_TEXT_H
#define AGENT_VERDICT_TEXT_H

/* What stands in --verdict-file: how the job ended for this agent, as one JSON object, for whoever started us. Pure. */

#include "agent/supervisor/supervisor.h"
#include "common/buf.h"

/* The object and a newline. when: "2026-11-21T22:17:03Z". */
void verdict_text(const struct ending *end, const char *job, const char *host, const char *when,
                  struct buf *out);

#endif
