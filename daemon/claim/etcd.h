/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CLAIM_ETCD_H
#define DAEMON_CLAIM_ETCD_H

/* Claims in an etcd cluster, over HTTP. Every call blocks until its deadline at most. */

#include <stdbool.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/claim_place.h"
#include "common/err.h"
#include "daemon/job/effects.h"

enum {
  ETCD_TRY_MS = 5000,  /* how long one request to one member may take */
  ETCD_PAUSE_MS = 250, /* after all members have failed */
  ETCD_CYCLES_MAX = 2, /* so often every member may fail */
};

/* Once. -ENOSYS: rdzv was built without libcurl. */
int etcd_init(struct err *e);
/* As folder_create or (run) folder_claim_run, and folder_end, until deadline_ms on the clock of monotonic_ms. */
enum claim_answer etcd_claim(const struct claim_place *place, bool run, const char *name, const char *content,
                             uint64_t deadline_ms, struct buf *text);
int etcd_end(const struct claim_place *place, const char *prefix, const char *content, uint64_t deadline_ms,
             struct err *e);

#endif
