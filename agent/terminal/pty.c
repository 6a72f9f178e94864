/* SPDX-License-Identifier: Apache-2.0 */
/* The slave is opened through its master where the kernel can do that (4.13), since a container may lack /dev/pts. */

#include "agent/terminal/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

void pty_resize(int master, int like) {
  struct winsize size = {0};
  if (ioctl(like, TIOCGWINSZ, &size) || size.ws_row == 0 || size.ws_col == 0)
    size = (struct winsize){.ws_row = 24, .ws_col = 80};
  ioctl(master, TIOCSWINSZ, &size);
}

int pty_open(enum pty_kind kind, int like, int *master, int *slave) {
  const int flags = O_RDWR | O_NOCTTY | O_CLOEXEC;
  char name[64];
  *slave = -1;
  *master = posix_openpt(flags | O_NONBLOCK);
  if (*master < 0) return -errno;
  bool unlocked = !grantpt(*master) && !unlockpt(*master);
#ifdef TIOCGPTPEER
  if (unlocked) *slave = ioctl(*master, TIOCGPTPEER, flags);
#endif
  if (unlocked && *slave < 0 && !ptsname_r(*master, name, sizeof(name))) *slave = open(name, flags);
  if (*slave < 0) {
    int rc = -errno;
    close(*master);
    return rc;
  }
  struct termios modes;
  if (!tcgetattr(like, &modes) || !tcgetattr(*slave, &modes)) {
    modes.c_oflag &= ~(tcflag_t)OPOST; /* the real terminal does that */
    if (kind == PTY_OUTPUT) modes.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    tcsetattr(*slave, TCSANOW, &modes);
  }
  pty_resize(*master, like);
  return 0;
}
