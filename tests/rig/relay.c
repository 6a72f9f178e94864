/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rig/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include "common/buf.h"
#include "tests/rig/unit.h"

static void on_wake(void *ctx) {
  sem_post(ctx);
}

struct relay_rig d;

void relay_rig_open(struct relay_options o) {
  struct err e = ERR_INIT;
  d = (struct relay_rig){.master = -1};
  d.out = o.out ? o.out : memfd_create("out", MFD_CLOEXEC);
  d.err = o.err ? o.err : memfd_create("err", MFD_CLOEXEC);
  sem_init(&d.woken, 0, 0);
  o.out = d.out;
  o.err = d.err;
  o.wake = on_wake;
  o.ctx = &d.woken;
  if (relay_create(&d.r, &o, &e)) fail_msg("%s", e.text);
}

int open_desk(bool status) {
  int slave, master = open_terminal(&slave);
  relay_rig_open((struct relay_options){.out = slave, .err = dup(slave), .status = status});
  return d.master = master;
}

int relay_rig_close(void **state) {
  relay_destroy(d.r, DEADLINE_MS);
  close(d.out);
  close(d.err);
  if (d.master >= 0) close(d.master);
  sem_destroy(&d.woken);
  return 0;
}

void open_any(struct relay_source w, int *out, int *err) {
  struct err e = ERR_INIT;
  assert_in_range(w.local_rank, 0, RELAY_RIG_RANKS - 1);
  relay_release(d.r, d.pipes[w.local_rank]);
  if (relay_open(d.r, &w, &d.pipes[w.local_rank], out, err, &e)) fail_msg("%s", e.text);
}

void open_worker(uint32_t rank, const char *prefix, int *out, int *err) {
  open_any((struct relay_source){.local_rank = rank, .prefix = prefix, .out.shown = true, .err.shown = true}, out, err);
}

static void wait_for_wake(void) {
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  t.tv_sec += DEADLINE_MS / 1000;
  if (sem_timedwait(&d.woken, &t) && errno == ETIMEDOUT) fail_msg("the relay has not woken us");
}

void next_trouble(char text[RELAY_TROUBLE_MAX]) {
  while (!relay_next_trouble(d.r, text)) wait_for_wake();
}

void close_worker(uint32_t rank, int out, int err) {
  char text[RELAY_TROUBLE_MAX];
  close(out);
  close(err);
  while (!relay_is_drained(d.pipes[rank])) wait_for_wake();
  if (relay_next_trouble(d.r, text)) fail_msg("%s", text);
}

char *content(int fd) {
  struct buf b = BUF_INIT;
  ssize_t n;
  off_t at = 0;
  while ((n = pread(fd, buf_reserve(&b, 65536), 65536, at)) > 0) {
    buf_commit(&b, (size_t)n);
    at += n;
  }
  buf_puts(&b, "");
  return buf_steal(&b);
}

void check_content(int fd, const char *expected) {
  char *text = content(fd);
  assert_string_equal(text, expected);
  free(text);
}

void check_file(const char *dir, const char *name, const char *expected) {
  char path[512];
  snprintf(path, sizeof(path), "%s/%s", dir, name);
  int fd = open(path, O_RDONLY);
  if (fd < 0) fail_msg("%s: %s", path, strerror(errno));
  check_content(fd, expected);
  close(fd);
}

void put(int fd, const char *text) {
  size_t n = strlen(text);
  while (n > 0) {
    ssize_t done = write(fd, text, n);
    assert_true(done > 0);
    text += done;
    n -= (size_t)done;
  }
}

char *read_until(int fd, const char *end) {
  struct buf b = BUF_INIT;
  while (!b.len || !strstr(b.data, end)) {
    if (poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, DEADLINE_MS) != 1)
      fail_msg("\"%s\" without \"%s\"", buf_text(&b), end);
    ssize_t n = read(fd, buf_reserve(&b, 4096), 4096);
    assert_true(n > 0);
    buf_commit(&b, (size_t)n);
  }
  return buf_steal(&b);
}

void check_terminal(int fd, const char *end, const char *expected) {
  char *text = read_until(fd, end);
  assert_string_equal(text, expected);
  free(text);
}

int open_terminal(int *slave) {
  int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
  *slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  struct termios t;
  tcgetattr(*slave, &t);
  cfmakeraw(&t);
  tcsetattr(*slave, TCSANOW, &t);
  struct winsize w = {.ws_col = 12, .ws_row = 24};
  ioctl(*slave, TIOCSWINSZ, &w);
  return master;
}
