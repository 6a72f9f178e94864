/* SPDX-License-Identifier: Apache-2.0 */
/* The page of rdzvctl --watch, on a pseudo terminal and in a pipe. */

#include "daemon/ctl/watch_screen.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include "tests/rig/unit.h"

static int side, main_side;

/* Raw, so that what is read is what was written. */
static void open_terminal(unsigned short rows, unsigned short columns) {
  main_side = posix_openpt(O_RDWR | O_NOCTTY);
  assert_true(main_side >= 0 && grantpt(main_side) == 0 && unlockpt(main_side) == 0);
  side = open(ptsname(main_side), O_RDWR | O_NOCTTY);
  assert_true(side >= 0);
  struct termios t;
  tcgetattr(side, &t);
  cfmakeraw(&t);
  tcsetattr(side, TCSANOW, &t);
  struct winsize size = {.ws_row = rows, .ws_col = columns};
  ioctl(side, TIOCSWINSZ, &size);
}

static void close_both(void) {
  close(side);
  close(main_side);
}

static const char *written(void) {
  static char text[65536];
  ssize_t n = read(main_side, text, sizeof text - 1);
  text[n > 0 ? n : 0] = '\0';
  return text;
}

UNIT_TEST(test_page) {
  struct ctl_screen s;
  open_terminal(24, 80);
  ctl_screen_init(&s, side, false);
  assert_true(ctl_screen_show(&s, "head", "a\nb\n", 4));
  const char *page = written();
  assert_int_equal(strncmp(page, "\x1b[?1049h\x1b[?25l\x1b[H", 17), 0);
  assert_non_null(strstr(page, "  head\x1b[K\r\na\x1b[K\r\nb\x1b[K\r\n\x1b[J"));
  assert_true(ctl_screen_show(&s, "head", "c\n", 2)); /* over itself: not opened again, nothing cleared before */
  page = written();
  assert_int_equal(strncmp(page, "\x1b[H", 3), 0);
  assert_null(strstr(page, "1049"));
  ctl_screen_close(&s);
  ctl_screen_close(&s);
  assert_string_equal(written(), "\x1b[?25h\x1b[?1049l");
  close_both();
}

UNIT_TEST(test_what_does_not_fit) {
  struct ctl_screen s;
  open_terminal(5, 20);
  ctl_screen_init(&s, side, false);
  ctl_screen_show(&s, "head",
                  "\xc3\xa4\xc3\xa4"
                  "345678901234567890123\n2\n3\n4\n5\n",
                  34);
  const char *page = written();
  assert_non_null(strstr(page, "\r\n\xc3\xa4\xc3\xa4"
                               "345678901234567890\x1b[K\r\n2\x1b[K\r\n... 3 more lines\x1b[K\x1b[J"));
  struct winsize size = {.ws_row = 8, .ws_col = 40};
  ioctl(side, TIOCSWINSZ, &size);
  ctl_screen_show(&s, "head", "1\n2\n3\n4\n5\n", 10); /* the window has grown */
  assert_non_null(strstr(written(), "5\x1b[K\r\n\x1b[J"));
  close_both();
}

UNIT_TEST(test_blocks) {
  struct ctl_screen s;
  int fds[2];
  const char *text;
  assert_int_equal(pipe(fds), 0);
  main_side = fds[0];
  ctl_screen_init(&s, fds[1], false);
  ctl_screen_show(&s, "head", "a\n", 2);
  ctl_screen_show(&s, "head", "b\n", 2);
  text = written();
  assert_int_equal(strlen(text), 9 + 2 + 1 + 9 + 2); /* "12:00:01\na\n\n12:00:02\nb\n" */
  assert_int_equal(strncmp(text + 8, "\na\n\n", 4), 0);
  ctl_screen_init(&s, fds[1], true);
  ctl_screen_show(&s, "head", "{}\n", 3);
  ctl_screen_show(&s, "head", "{}\n", 3);
  assert_string_equal(written(), "{}\n{}\n");
  close(fds[0]);
  signal(SIGPIPE, SIG_IGN);
  assert_false(ctl_screen_show(&s, "head", "{}\n", 3)); /* nobody reads */
  ctl_screen_close(&s);
  close(fds[1]);
}
