#ifndef AGENT_NCCL_RECORD_H
#define AGENT_NCCL_RECORD_H

/* What rdzv-nccl says to its agent, once, on its stdout: the ids that it has minted, or why it could not. Both ends are of one
 * machine, and still it is checked: NCCL lives in that process, and what NCCL prints must never be taken for ids. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"
#include "proto/msg.h"

enum { NCCL_RECORD_MAX = 64 + REASON_MAX + NCCL_IDS_MAX * NCCL_ID_SIZE };

void nccl_record_put(struct buf *out, int64_t version, const void *ids, uint32_t count);
/* There are none, for this reason (cut to REASON_MAX bytes); lasting: another try on this node would find the same. */
void nccl_record_put_failure(struct buf *out, const char *text, bool lasting);

/* What has come of it. 1: it is whole: *version and *ids, which points into data. 0: more is to come. -EIO, or -ENOENT where it is lasting: the helper's own sentence;
 * -EPROTO: this is no such record, or has another number of ids than `count`. */
int nccl_record_parse(const void *data, size_t len, uint32_t count, int64_t *version, const void **ids,
                      struct err *e);

#endif
