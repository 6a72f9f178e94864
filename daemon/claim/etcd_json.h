/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CLAIM_ETCD_JSON_H
#define DAEMON_CLAIM_ETCD_JSON_H

/* What etcd is asked and answers, in the JSON of its v3 gateway. Pure. */

#include <stddef.h>
#include "common/buf.h"
#include "common/err.h"
#include "daemon/job/effects.h"

#define ETCD_PATH       "/v3/kv/txn"
#define ETCD_KEY_PREFIX "rdzv/claims/" /* an etcd serves other programs too */

enum { ETCD_ANSWER_MAX = 2 * CLAIM_CONTENT_MAX }; /* of a claim in base64, and what etcd says around it */

/* Append the body of a request. The name or prefix was checked. */
void etcd_put_create(struct buf *out, const char *name, const char *content);
void etcd_put_run(struct buf *out, const char *prefix, const char *content); /* read by etcd_read_create */
void etcd_put_end(struct buf *out, const char *prefix, const char *content);

/* The answers, with their HTTP status. 0; or negative and a sentence: this member did not do it.
 * CLAIM_TAKEN: appends the content that is there, of the end if there is one. */
int etcd_read_create(long status, const char *body, size_t len, const char *content, enum claim_answer *answer,
                     struct buf *text, struct err *e);
int etcd_read_end(long status, const char *body, size_t len, struct err *e);

#endif
