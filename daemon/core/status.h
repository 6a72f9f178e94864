#ifndef DAEMON_STATUS_H
#define DAEMON_STATUS_H

/* What rdzvctl shows of jobs: daemon/status.c. Pure. */

#include "daemon/core/core.h"
#include "daemon/job/drain.h"
#include "proto/frame.h"

void status_put_name(struct buf *out, const char *s); /* escaped */
bool status_sees_drain(const struct core *c, int64_t uid, const struct drain *d);
void status_put_duration(struct buf *out, uint64_t ms);
/* All jobs that uid may see, or the one with that id; whole: with nodes and verdicts. The number of jobs. `store` may be NULL. Where *out
 * is longer than STATUS_MAX afterwards there was more to tell than one answer can take, and it is of no use. */
enum { STATUS_MAX = FRAME_MAX_TO_AGENT - 65536 };
size_t status_jobs_text(const struct core *c, int64_t uid, const char *id, bool whole,
                        const struct core_store_facts *store, struct buf *out);
size_t status_jobs_json(const struct core *c, int64_t uid, const char *id,
                        const struct core_store_facts *store, struct buf *out);

#endif
