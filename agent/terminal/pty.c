/* SPDX-License-Identifier: Apache-2.0 */
/* The slave is opened through its master where the kernel can do that (4.13), since a container may lack /dev/pts. */

#include "agent/terminal/pty.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static int open_slave(int master) {
  const int flags = O_RDWR | O_NOCTTY | O_CLOEXEC;
  char name[64];
#ifdef TIOCGPTPEER
  int fd = ioctl(master, TIOCGPTPEER, flags);
  if (fd >= 0) return fd;
#endif
  return ptsname_r(master, name, sizeof(name)) ? -1 : open(name, flags);
}

void pty_resize(int master, int like) {
  struct winsize size = {0};
  if (ioctl(like, TIOCGWINSZ, &size) || size.ws_row == 0 || size.ws_col == 0)
    size = (struct winsize){.ws_row = 24, .ws_col = 80};
  ioctl(master, TIOCSWINSZ, &size);
}

int pty_open(enum pty_kind kind, int like, int *master, int *slave) {
  int rc = 0;
  *slave = -1;
  *master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (*master < 0) return -errno;
  if (grantpt(*master) || unlockpt(*master) || (*slave = open_slave(*master)) < 0) rc = -errno;
  if (rc) {
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
