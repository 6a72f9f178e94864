/* SPDX-License-Identifier: Apache-2.0 */
#include "common/system/rationed_log.h"

#include "common/buf.h"

void rations_log(struct rations *a, const char *addr, uint64_t now_ms, enum log_level level, const char *fmt, ...) {
  struct rations_left left;
  if (level > log_max_level()) return; /* a line that is not shown does not count */
  bool may = rations_take(a, addr, now_ms, &left);
  if (left.of_all) log_line(level, "%u more lines about many addresses were left out", left.of_all);
  if (left.of_peer) log_line(level, "%s: %u more such lines were left out", addr, left.of_peer);
  if (!may) return;
  struct buf text = BUF_INIT;
  va_list ap;
  va_start(ap, fmt);
  buf_vprintf(&text, fmt, ap);
  va_end(ap);
  log_line(level, "%s", buf_text(&text));
  buf_finish(&text);
}
