/* SPDX-License-Identifier: Apache-2.0 */
/* agent/terminal/pty.c: a terminal that changes no byte, and one that edits and echoes. */

#include "agent/terminal/pty.h"

#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include "tests/rig/unit.h"

static void check_read(int fd, const char *expected) {
  char text[64];
  size_t n = 0, want = strlen(expected);
  while (n < want && poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 10000) == 1) {
    ssize_t got = read(fd, text + n, sizeof(text) - n);
    assert_true(got > 0);
    n += (size_t)got;
  }
  assert_int_equal(n, want);
  assert_memory_equal(text, expected, n);
}

static void put(int fd, const char *text) {
  assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void check_size(int fd, int rows, int columns) {
  struct winsize w;
  assert_int_equal(ioctl(fd, TIOCGWINSZ, &w), 0);
  assert_int_equal(w.ws_row, rows);
  assert_int_equal(w.ws_col, columns);
}

/* `like` is not a terminal. */
UNIT_TEST(test_output) {
  int master, slave, pipe_fds[2];
  assert_int_equal(pipe(pipe_fds), 0);
  assert_int_equal(pty_open(PTY_OUTPUT, pipe_fds[0], &master, &slave), 0);
  assert_true(isatty(slave));
  check_size(slave, 24, 80);
  put(slave, "one\ntwo\r\nthree\ttabs\x04");
  check_read(master, "one\ntwo\r\nthree\ttabs\x04");
  put(slave, "last");
  close(slave);
  check_read(master, "last"); /* is not lost */
  char byte;
  assert_true(read(master, &byte, 1) < 0);
  close(master);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

UNIT_TEST(test_keyboard) {
  int like[2], master, slave;
  struct termios modes;
  assert_int_equal(pty_open(PTY_KEYBOARD, -1, &like[0], &like[1]), 0);
  assert_int_equal(tcgetattr(like[1], &modes), 0);
  modes.c_cc[VERASE] = 'x';
  assert_int_equal(tcsetattr(like[1], TCSANOW, &modes), 0);
  assert_int_equal(ioctl(like[0], TIOCSWINSZ, &(struct winsize){.ws_row = 7, .ws_col = 9}), 0);
  assert_int_equal(pty_open(PTY_KEYBOARD, like[1], &master, &slave), 0);
  check_size(slave, 7, 9);
  put(master, "abx\r"); /* its erase character, and the Enter key */
  check_read(slave, "a\n");
  check_read(master, "ab\b \b\n");
  assert_int_equal(ioctl(like[0], TIOCSWINSZ, &(struct winsize){.ws_row = 5, .ws_col = 6}), 0);
  pty_resize(master, like[1]);
  check_size(slave, 5, 6);
  close(slave);
  close(master);
  close(like[0]);
  close(like[1]);
}
