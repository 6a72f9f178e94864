/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_SDK_RDZV_TFEVENTS_H
#define AGENT_SDK_RDZV_TFEVENTS_H

/* The bytes of TensorBoard's event files: pure. A file is a row of records, and each holds one Event in the encoding of
 * protocol buffers (tensorflow/core/util/event.proto, tensorflow/core/lib/io/record_writer.h).
 *
 *   record    u64 length, u32 crc of these 8 bytes, the Event, u32 crc of it; little-endian, CRC-32C, masked
 *   Event     1 double wall_time, 2 int64 step, and one of 3 string file_version, 5 Summary, 7 SessionLog
 *   Summary   1 repeated Value: 1 string tag, 2 float simple_value
 *   SessionLog  1 status: 1 is START
 *
 * Each function appends one record to `out`. They return 0 or -ENOMEM; then `out` is as before. */

#include "agent/sdk/rdzv_internal.h"

/* The first record of a file. */
int rdzv_tfevents_version(struct rdzv_bytes *out, double wall_time);
/* TensorBoard forgets all points of this folder from `step` on that come before this record. */
int rdzv_tfevents_start(struct rdzv_bytes *out, double wall_time, int64_t step);
/* n values of one step. The tags are UTF-8. */
int rdzv_tfevents_scalars(struct rdzv_bytes *out, double wall_time, int64_t step, const char *const *tags,
                          const double *values, size_t n);
/* CRC-32C (Castagnoli), as RFC 3720 has it. */
uint32_t rdzv_crc32c(const void *data, size_t n);

#endif
