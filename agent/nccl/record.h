/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_NCCL_RECORD_H
#define AGENT_NCCL_RECORD_H

/* The report of rdzv-nccl to its agent, once, on its stdout: the ids, or why there are none. It is checked although
 * both run on one machine: NCCL runs in that process, and its output must never be taken for ids. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "proto/msg.h"

enum { NCCL_RECORD_MAX = 64 + REASON_MAX + NCCL_IDS_MAX * NCCL_ID_SIZE };

void nccl_record_put(struct buf *out, int64_t version, const void *ids, uint32_t count);
/* A failure with this reason (cut to REASON_MAX bytes); lasting: another try on this node would fail too. */
void nccl_record_put_failure(struct buf *out, const char *text, bool lasting);

/* Parses the bytes so far. 1: whole: *version and *ids, which points into data. 0: incomplete. -EIO, or -ENOENT if
 * lasting: the helper's failure; -EPROTO: not a record, or another number of ids than `count`. */
int nccl_record_parse(const void *data, size_t len, uint32_t count, int64_t *version, const void **ids, struct err *e);

#endif
