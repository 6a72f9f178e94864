/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CTL_WATCH_SCREEN_H
#define DAEMON_CTL_WATCH_SCREEN_H

/* The output of rdzvctl --watch: a page that is redrawn on a terminal, a block that is appended anywhere else. */

#include <stdbool.h>
#include <stddef.h>
#include "common/buf.h"

struct ctl_screen {
  int fd;
  bool terminal, open, json, begun;
};

void ctl_screen_init(struct ctl_screen *s, int fd, bool json);
/* Makes text of a daemon safe for a terminal: line breaks stay, the rest becomes printable. JSON keeps its meaning. */
void ctl_screen_put_printable(struct buf *out, const char *text, size_t len, bool json);
/* The same, and red what begins with "!" behind two blanks or at the begin of a line, up to two blanks or its end. */
void ctl_screen_put_marked(struct buf *out, const char *text, size_t len);
/* Of the window; 0 without a terminal. */
size_t ctl_screen_width(const struct ctl_screen *s);
/* Shows `text`, made printable; on a terminal below a head line ("12:00:01  rdzvctl status, every second ...").
 * False: the reader is gone. */
bool ctl_screen_show(struct ctl_screen *s, const char *head, const char *text, size_t len);
/* Restores the terminal. Safe in a signal handler, and if it was never opened. */
void ctl_screen_close(struct ctl_screen *s);

#endif
