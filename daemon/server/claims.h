/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_SERVER_CLAIMS_H
#define DAEMON_SERVER_CLAIMS_H

/* The claims of this daemon (--claim): runs rdzv-claim for each. Every claim is answered once, within JOB_CLAIM_MS. Nothing
 * here blocks but claims_create. Decides nothing. */

#include <stdint.h>
#include <uv.h>
#include "common/bytes.h"
#include "common/err.h"
#include "daemon/core/core.h"

enum {
  CLAIMS_MAX = 1024,                   /* that are not answered; one more fails at once */
  CLAIMS_BYTES_MAX = 16 * 1024 * 1024, /* of them */
  CLAIMS_AT_ONCE = 16,                 /* processes */
  CLAIMS_START_MS = 8000,              /* until the place is checked; an agent waits 10 s for its daemon */
};

/* text: as core_event.claim_text; valid in the call. */
typedef void (*claims_fn)(void *ctx, uint64_t serial, enum claim_answer answer, const char *text);

struct claims;

/* Runs the loop until the place is checked. -EINVAL: `where` is wrong, or rdzv-claim was built without what it needs. A
 * sentence that does not name the option. */
int claims_create(uv_loop_t *loop, const char *where, struct claims **out, struct err *e);
/* Kills the helpers. The memory is freed once the loop has closed the handles. NULL is fine. */
void claims_destroy(struct claims *c);
void claims_answer_to(struct claims *c, claims_fn fn, void *ctx);

/* fn is never called in here. */
void claims_add(struct claims *c, uint64_t serial, const char *name, const struct bytes *content);
void claims_end(struct claims *c, const char *prefix, const struct bytes *content);
/* When to call claims_expire, on the clock of boot_ms; UINT64_MAX: never. claims_expire may call fn. */
uint64_t claims_deadline(const struct claims *c);
void claims_expire(struct claims *c, uint64_t now_ms);
/* No claim follows, and none is answered. Ends are created; the loop lives until their helpers have exited. */
void claims_close(struct claims *c);

#endif
