/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/ctl/warm.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "common/json.h"
#include "common/kept/kept.h"

enum { LOOK_MAX = 4 * KEPT_MAX, END_MS = 5000 /* of a large template */ };

static void put_json(const struct kept_facts *v, size_t n, struct buf *out) {
  json_t *all = json_array();
  for (size_t i = 0; i < n; i++)
    json_array_append_new(all, json_pack("{s:i, s:i, s:i, s:i, s:I, s:o}", "pid", (int)v[i].pid, "template",
                                         (int)v[i].template, "age_seconds", (int)(v[i].age_ms / 1000), "left_seconds",
                                         (int)(v[i].left_ms / 1000), "memory_bytes", (json_int_t)v[i].memory, "command",
                                         json_text(v[i].command)));
  json_t *object = json_pack("{s:b, s:o}", "ok", 1, "templates", all);
  json_print(out, object);
  json_decref(object);
  buf_putc(out, '\n');
}

void ctl_put_warm(struct buf *out, bool json) {
  struct kept_facts v[LOOK_MAX];
  size_t n = kept_list(v, LOOK_MAX);
  if (json) {
    put_json(v, n, out);
    return;
  }
  buf_puts(out, n ? "    PID     MEMORY  ENDS IN          COMMAND\n"
                  : "no template stays on this machine (rdzv-agent --warm-keep TIME)\n");
  for (size_t i = 0; i < n; i++) {
    struct buf left = BUF_INIT;
    buf_put_duration(&left, v[i].left_ms);
    buf_printf(out, "%7d %6llu MiB  %-15s  %s\n", (int)v[i].pid, (unsigned long long)(v[i].memory >> 20),
               buf_text(&left), v[i].command);
    buf_finish(&left);
  }
}

int ctl_end_warm(void) {
  struct kept_facts v[LOOK_MAX], f;
  size_t n = kept_list(v, LOOK_MAX);
  int ended = 0;
  for (size_t i = 0; i < n; i++) {
    int fd = kept_ask(v[i].pid, KEPT_END, NULL, -1, &f, NULL);
    if (fd < 0) continue;
    close(fd);
    int guard = (int)syscall(SYS_pidfd_open, f.pid, 0U);
    if (guard >= 0) {
      poll(&(struct pollfd){.fd = guard, .events = POLLIN}, 1, END_MS);
      close(guard);
    }
    ended++;
  }
  return ended;
}
