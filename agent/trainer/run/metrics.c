/* SPDX-License-Identifier: Apache-2.0 */
/* Each line is built in one buffer and written at once to a descriptor in append mode. There is no JSON library: the
 * keys are ours, and so is the little text there is. */

#include "agent/trainer/run/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <time.h>
#include <unistd.h>

int metrics_open(struct metrics *m, const char *path, struct err *e) {
  *m = (struct metrics){.fd = -1, .path = path};
  if (!path) return 0;
  m->fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  return m->fd < 0 ? err_sys(e, -errno, "metrics file %s", path) : 0;
}

void metrics_finish(struct metrics *m) {
  if (m->fd >= 0) close(m->fd);
  m->fd = -1;
  buf_finish(&m->line);
}

void metrics_begin(struct metrics *m, const char *event) {
  struct timespec t;
  if (m->fd < 0) return;
  clock_gettime(CLOCK_REALTIME, &t);
  buf_clear(&m->line);
  buf_printf(&m->line, "{\"event\":\"%s\",\"time\":%lld.%06ld", event, (long long)t.tv_sec, t.tv_nsec / 1000);
}

void metrics_uint(struct metrics *m, const char *key, uint64_t v) {
  if (m->fd >= 0) buf_printf(&m->line, ",\"%s\":%" PRIu64, key, v);
}

void metrics_real(struct metrics *m, const char *key, double v) {
  if (m->fd < 0) return;
  if (isfinite(v))
    buf_printf(&m->line, ",\"%s\":%.9g", key, v);
  else
    buf_printf(&m->line, ",\"%s\":null", key);
}

void metrics_text(struct metrics *m, const char *key, const char *v) {
  if (m->fd < 0) return;
  buf_printf(&m->line, ",\"%s\":\"", key);
  for (; *v; v++)
    if ((unsigned char)*v >= ' ' && *v != '"' && *v != '\\')
      buf_putc(&m->line, *v);
    else
      buf_printf(&m->line, "\\u%04x", (unsigned char)*v);
  buf_putc(&m->line, '"');
}

int metrics_end(struct metrics *m, struct err *e) {
  if (m->fd < 0) return 0;
  buf_puts(&m->line, "}\n");
  for (size_t at = 0; at < m->line.len;) {
    ssize_t n = write(m->fd, m->line.data + at, m->line.len - at);
    if (n < 0 && errno != EINTR) return err_sys(e, -errno, "metrics file %s", m->path);
    if (n > 0) at += (size_t)n;
  }
  return 0;
}
