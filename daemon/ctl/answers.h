/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_ANSWERS_H
#define DAEMON_CTL_ANSWERS_H

/* What the answers of daemons say. Pure. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"
#include "common/json.h"

/* The form of rdzvctl --json's failures, which a daemon's answers have too: appends {"ok":false,"code":69,"text":"..."} and a newline. more: an object with further fields, borrowed; or NULL. */
void ctl_put_failure(struct buf *out, int exit_code, const char *text, json_t *more);

/* Appends the sentence of a daemon's answer, without its newline: the answer itself, or `text` of a JSON object. */
void ctl_put_sentence(struct buf *out, const char *answer, size_t len, bool json);

/* What a daemon is to a job, as its answer to "status JOB" says in JSON. */
enum ctl_standing { CTL_IN_CHARGE, CTL_NOT_IN_CHARGE, CTL_NO_ANSWER };

/* code: of the answer. *said gets the daemon's sentence, or why it is not in charge. A daemon that does not say whether
 * it is in charge of a job that it has is. */
enum ctl_standing ctl_standing_of(int code, const char *json, size_t len, struct buf *said);

#endif
