/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_DOCUMENTS_H
#define DAEMON_SERVER_DOCUMENTS_H

/* The documents that are served over HTTP to users who are known: /status, /metrics, the live page, and its table. */

#include "common/siphash.h"
#include "daemon/core/core.h"
#include "daemon/core/metrics.h"
#include "daemon/server/answer.h"
#include "daemon/server/http.h"

struct documents {
  struct core *core; /* borrowed */
  struct siphash_key tags;
  double started_wall_s; /* since 1970 */
  uint64_t changes;      /* the owner counts here what may have changed /status */
};

void documents_init(struct documents *all, struct core *core, uint64_t seed);
/* Opens the document for the user `uid`. It borrows the core, and nothing else. Or nothing is opened and *a is the
 * answer, because the user has this document already. */
void documents_open(struct documents *all, const struct http_request *r, enum http_resource resource, int64_t uid,
                    struct http_answer *a, struct answer_document *out);

/* The facts of this process, for /metrics. started_wall_s: when the daemon started, in seconds since 1970. */
struct process_facts process_facts(double started_wall_s);
/* The open descriptors, counted one by one: kernels before 6.2 only list them. -1: unknown. */
int64_t process_count_fds(void);

#endif
