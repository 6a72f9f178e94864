/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_FAILURE_H
#define DAEMON_CTL_FAILURE_H

/* The form of rdzvctl --json's failures, which a daemon's answers have too. Pure. */

#include <stdbool.h>
#include "common/buf.h"
#include "common/json.h"

/* Appends {"ok":false,"code":69,"text":"..."} and a newline. more: an object with further fields, borrowed; or NULL. */
void ctl_put_failure(struct buf *out, int exit_code, const char *text, json_t *more);

/* Appends the sentence of a daemon's answer, without its newline: the answer itself, or `text` of a JSON object. */
void ctl_put_sentence(struct buf *out, const char *answer, size_t len, bool json);

#endif
