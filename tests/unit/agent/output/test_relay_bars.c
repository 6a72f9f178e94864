/* SPDX-License-Identifier: Apache-2.0 */
/* agent/output/relay.c, sink.c: progress bars, and workers that have the terminal to themselves. The terminal has 12
 * columns. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/output/sink.h"
#include "tests/rig/relay.h"
#include "tests/rig/unit.h"

/* Two bars are two rows; a line comes above them; a bar that ends becomes a line. */
UNIT_TEST_WITH(test_rows, NULL, relay_rig_close) {
  int out[2], err[2], master = open_desk(true);
  for (uint32_t i = 0; i < 2; i++) open_worker(i, i ? "[1] " : "[0] ", &out[i], &err[i]);
  put(err[0], "\r10%\r20%");
  check_terminal(master, "20%\x1b[K", "\r[0] 20%\x1b[K");
  put(err[1], "\r\x1b[32m30%\x1b[0m and more text");
  check_terminal(master, "and\x1b[0m\x1b[K", "\r\x1b[K\r[0] 20%\x1b[K\n\r[1] \x1b[32m30%\x1b[0m and\x1b[0m\x1b[K");
  put(out[1], "whole\n");
  check_terminal(master, "and\x1b[0m\x1b[K",
                 "\r\x1b[K\x1b[A\x1b[K[1] whole\n\r[0] 20%\x1b[K\n\r[1] \x1b[32m30%\x1b[0m and\x1b[0m\x1b[K");
  put(err[1], "\r99%\n");
  check_terminal(master, "20%\x1b[K", "\r\x1b[K\x1b[A\x1b[K[1] 99%\n\r[0] 20%\x1b[K");
  relay_status(d.r, "status");
  check_terminal(master, "status\x1b[K", "\r\x1b[K\r[0] 20%\x1b[K\n\rstatus\x1b[K");
  relay_hide(d.r, true); /* Ctrl-Z */
  check_terminal(master, "\x1b[A\x1b[K", "\r\x1b[K\x1b[A\x1b[K");
  relay_hide(d.r, false);
  check_terminal(master, "status\x1b[K", "\r[0] 20%\x1b[K\n\rstatus\x1b[K");
  close_worker(0, out[0], err[0]); /* its bar stays as a line */
  check_terminal(master, "status\x1b[K", "\r\x1b[K\x1b[A\x1b[K[0] 20%\n\rstatus\x1b[K");
  close_worker(1, out[1], err[1]);
}

/* Text that is shown as a prompt, and turns out to be the beginning of a bar. */
UNIT_TEST_WITH(test_a_prompt_becomes_a_bar, NULL, relay_rig_close) {
  int out, err, master = open_desk(true);
  open_worker(0, "[0] ", &out, &err);
  put(err, "load");
  check_terminal(master, "load", "[0] load");
  put(err, "\r10%");
  check_terminal(master, "10%\x1b[K", "\n\r[0] 10%\x1b[K");
  put(err, "\r99%\n");
  check_terminal(master, "99%\n", "\r\x1b[K[0] 99%\n");
  close_worker(0, out, err);
}

/* In a file the first state becomes a line, and the last; the worker's own file has all bytes. */
UNIT_TEST_WITH(test_no_terminal, NULL, relay_rig_close) {
  int out, err;
  char dir[] = "/tmp/relay_bars_XXXXXX", file[64];
  assert_non_null(mkdtemp(dir));
  snprintf(file, sizeof(file), "%s/stderr.log", dir);
  relay_rig_open((struct relay_options){0});
  open_any((struct relay_source){.prefix = "[0] ", .out.shown = true, .err = {.shown = true, .file = file}}, &out,
           &err);
  put(err, "\r10%");
  char *text = content(d.err);
  for (; !strstr(text, "10%"); text = content(d.err)) {
    free(text);
    usleep(1000);
  }
  free(text);
  put(err, "\r20%\r30%");
  put(err, "\r40%\nend\r\n");
  close_worker(0, out, err);
  check_content(d.err, "[0] 10%\n[0] 40%\n[0] end\r\n");
  check_file(dir, "stderr.log", "\r10%\r20%\r30%\r40%\nend\r\n");
  unlink(file);
  rmdir(dir);
}

/* A bar that never ends does not become a line because it grew long. */
UNIT_TEST_WITH(test_a_long_bar, NULL, relay_rig_close) {
  int out, err;
  relay_rig_open((struct relay_options){0});
  open_worker(0, "[0] ", &out, &err);
  for (int i = 0; i < 2 * RELAY_LINE_MAX / 8; i++) put(err, "\r 1234567");
  put(err, "\rdone\n");
  close_worker(0, out, err);
  char *text = content(d.err);
  size_t n = strlen(text);
  assert_true(n <= strlen("[0]  1234567\n[0] done\n") && strcmp(text + n - 9, "[0] done\n") == 0);
  free(text);
}

/* The only worker: its bytes come as they are, at once, and the agent's lines begin on a line of their own. */
UNIT_TEST_WITH(test_alone, NULL, relay_rig_close) {
  int out, err, master = open_desk(true);
  struct relay_place shown = {.shown = true, .pty = true};
  open_any((struct relay_source){.prefix = "", .alone = true, .out = shown, .err = shown}, &out, &err);
  assert_true(isatty(out) && isatty(err));
  put(err, "\r10%\x1b[31m");
  check_terminal(master, "31m", "\r10%\x1b[31m");
  put(out, "\x1b[A");
  check_terminal(master, "[A", "\x1b[A");
  relay_say(d.r, "agent");
  check_terminal(master, "agent\n", "\nagent\n");
  put(err, "\rlast\nwords");
  check_terminal(master, "words", "\rlast\nwords");
  close_worker(0, out, err);
  char tail[RELAY_TAIL_MAX + 1];
  relay_tail(d.r, d.pipes[0], tail);
  assert_string_equal(tail, "last\nwords\n");
}

int main(void) {
  alarm(100);
  return unit_run(NULL, NULL);
}
