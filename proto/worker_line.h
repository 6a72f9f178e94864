/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_WORKER_LINE_H
#define PROTO_WORKER_LINE_H

/* A line of a worker's output, as an agent keeps it, and as LOG and CONTROL_REPLY carry it. Pure.
 *
 * On the wire, little-endian: u64 number, u64 wall_ms, u32 rank, u32 round, u16 bytes of the text, u8 bytes of the
 * prefix, u8 flags (1: stderr); then the prefix, then the text. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/buf.h"
#include "common/err.h"

enum { WORKER_LINE_HEADER = 28, WORKER_LINE_TEXT_MAX = 16384, WORKER_LINE_PREFIX_MAX = 255 };

struct worker_line {
  uint64_t number;  /* counts the lines of one agent, from 1 */
  uint64_t wall_ms; /* since 1970 */
  uint32_t rank, round;
  bool is_err;
  const char *prefix, *text; /* any bytes, without a newline at the end; borrowed */
  size_t prefix_len, text_len;
};

/* Appends it. Longer texts and prefixes are a bug of the caller. */
void worker_line_put(struct buf *out, const struct worker_line *line);
/* Reads the line at the front of data, and returns its size; the texts borrow from data. 0: no data is left. -EPROTO
 * and a sentence: these are not such lines. */
long worker_line_get(const char *data, size_t len, struct worker_line *line, struct err *e);

#endif
