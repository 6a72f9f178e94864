/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/worker_line.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

enum { FLAG_STDERR = 1 };

void worker_line_put(struct buf *out, const struct worker_line *line) {
  assert(line->text_len <= WORKER_LINE_TEXT_MAX && line->prefix_len <= WORKER_LINE_PREFIX_MAX);
  size_t size = WORKER_LINE_HEADER + line->prefix_len + line->text_len;
  char *at = buf_reserve(out, size);
  le64_put(at, line->number);
  le64_put(at + 8, line->wall_ms);
  le32_put(at + 16, line->rank);
  le32_put(at + 20, line->round);
  le16_put(at + 24, (uint16_t)line->text_len);
  at[26] = (char)(unsigned char)line->prefix_len;
  at[27] = line->is_err ? FLAG_STDERR : 0;
  if (line->prefix_len) memcpy(at + WORKER_LINE_HEADER, line->prefix, line->prefix_len);
  if (line->text_len) memcpy(at + WORKER_LINE_HEADER + line->prefix_len, line->text, line->text_len);
  buf_commit(out, size);
}

long worker_line_get(const char *data, size_t len, struct worker_line *line, struct err *e) {
  if (len == 0) return 0;
  if (len < WORKER_LINE_HEADER) return err_set(e, -EPROTO, "%zu bytes are too few for a worker's line", len);
  *line = (struct worker_line){.number = le64_get(data),
                               .wall_ms = le64_get(data + 8),
                               .rank = le32_get(data + 16),
                               .round = le32_get(data + 20),
                               .is_err = data[27] & FLAG_STDERR,
                               .prefix_len = (unsigned char)data[26],
                               .text_len = le16_get(data + 24)};
  size_t size = WORKER_LINE_HEADER + line->prefix_len + line->text_len;
  if (line->text_len > WORKER_LINE_TEXT_MAX || size > len)
    return err_set(e, -EPROTO, "a worker's line of %zu bytes does not fit into the %zu that came", size, len);
  line->prefix = data + WORKER_LINE_HEADER;
  line->text = line->prefix + line->prefix_len;
  return (long)size;
}
