#ifndef DAEMON_CTL_SCREEN_H
#define DAEMON_CTL_SCREEN_H

/* What rdzvctl --watch shows: a page that is drawn anew on a terminal, a block that is appended anywhere else. */

#include <stdbool.h>
#include <stddef.h>

struct ctl_screen {
  int fd;
  bool terminal, open, json, begun;
};

void ctl_screen_init(struct ctl_screen *s, int fd, bool json);
/* Shows `text`, below a head line ("rdzvctl status, every second ..., 12:00:01") on a terminal. False: nobody reads any more. */
bool ctl_screen_show(struct ctl_screen *s, const char *head, const char *text, size_t len);
/* The terminal as it was. Safe in a signal handler, and when it was never opened. */
void ctl_screen_close(struct ctl_screen *s);

#endif
