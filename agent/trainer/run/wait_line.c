/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of wait_log.c. The time left is that at the mean speed so far; it is left out before anything is done, and
 * while nothing moves. */

#include "agent/trainer/run/wait_log.h"

#include <inttypes.h>

static void put_seconds(struct buf *out, double s) {
  if (s < 9.95)
    buf_printf(out, "%.1f s", s);
  else if (s < 119.5)
    buf_printf(out, "%.0f s", s);
  else
    buf_printf(out, "%.0f min", s / 60);
}

/* Bytes of two amounts in the unit of the larger, so that they compare. */
static double byte_unit(uint64_t most, const char **name) {
  *name = most >= 1000000000 ? "GB" : most >= 1000000 ? "MB" : "KB";
  return most >= 1000000000 ? 1e9 : most >= 1000000 ? 1e6 : 1e3;
}

static void put_amount(struct buf *out, const struct wait_state *s) {
  const char *name = s->unit;
  if (s->unit) {
    buf_printf(out, "%" PRIu64 " of %" PRIu64 " %s", s->done, s->total, name);
    return;
  }
  double each = byte_unit(s->total, &name);
  buf_printf(out, "%.1f of %.1f %s", (double)s->done / each, (double)s->total / each, name);
}

void wait_log_line(const struct wait_state *s, struct buf *out) {
  buf_printf(out, "%s: ", s->what);
  if (s->total) {
    put_amount(out, s);
    buf_puts(out, " after ");
  }
  put_seconds(out, (double)s->ms / 1000);
  if (!s->total) buf_puts(out, " so far");
  if (!s->total || s->done >= s->total) return;
  if (s->still_ms >= s->every_ms) {
    buf_printf(out, ", none of them in the last ");
    put_seconds(out, (double)s->still_ms / 1000);
  } else if (s->done) {
    buf_puts(out, ", about ");
    put_seconds(out, (double)s->ms / 1000 * (double)(s->total - s->done) / (double)s->done);
    buf_puts(out, " left");
  }
}

void wait_log_last_line(const struct wait_state *s, struct buf *out) {
  const char *name;
  buf_printf(out, "%s ended after ", s->what);
  put_seconds(out, (double)s->ms / 1000);
  if (!s->total || s->unit || s->done < s->total || !s->ms) return;
  double each = byte_unit(s->total, &name), rate = (double)s->total * 1000 / (double)s->ms;
  buf_printf(out, ": %.1f %s, ", (double)s->total / each, name);
  each = byte_unit((uint64_t)rate, &name);
  buf_printf(out, "%.3g %s/s", rate / each, name);
}
