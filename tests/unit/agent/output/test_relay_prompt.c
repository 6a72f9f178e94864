/* SPDX-License-Identifier: Apache-2.0 */
/* agent/output/relay.c: unfinished lines are shown after a moment, and neither torn nor tearing. */

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/system/clock.h"
#include "tests/rig/relay.h"
#include "tests/rig/unit.h"

UNIT_TEST_WITH(test_a_prompt_shows, NULL, relay_rig_close) {
  int out, err, master = open_desk(false);
  open_worker(0, "[0] ", &out, &err);
  put(out, "(Pdb) ");
  check_terminal(master, "(Pdb) ", "[0] (Pdb) ");
  put(out, "next: ");
  check_terminal(master, ": ", "next: "); /* it goes on where it was */
  put(out, "end\nanother\n");
  check_terminal(master, "another\n", "end\n[0] another\n");
  close_worker(0, out, err);
}

/* Another's line ends the prompt's first; what the prompt's program adds later has its prefix again. */
UNIT_TEST_WITH(test_a_line_comes_between, NULL, relay_rig_close) {
  int out[2], err[2], master = open_desk(false);
  for (uint32_t i = 0; i < 2; i++) open_worker(i, i ? "[1] " : "[0] ", &out[i], &err[i]);
  put(out[0], "name? ");
  check_terminal(master, "name? ", "[0] name? ");
  put(err[1], "whole\n");
  check_terminal(master, "whole\n", "\n[1] whole\n");
  relay_say(d.r, "the agent's");
  check_terminal(master, "agent's\n", "the agent's\n");
  put(out[0], "a rest\n");
  check_terminal(master, "rest\n", "[0] a rest\n");
  put(out[0], "once more ");
  check_terminal(master, "more ", "[0] once more ");
  relay_say(d.r, "the agent's");
  check_terminal(master, "agent's\n", "\nthe agent's\n");
  put(out[0], "\nnext\n"); /* its newline was there already */
  check_terminal(master, "next\n", "[0] next\n");
  for (uint32_t i = 0; i < 2; i++) close_worker(i, out[i], err[i]);
}

/* Two prompts: the second waits until the first has been still for a second, then both were seen. */
UNIT_TEST_WITH(test_two_prompts, NULL, relay_rig_close) {
  int out[2], err[2], master = open_desk(false);
  for (uint32_t i = 0; i < 2; i++) open_worker(i, i ? "[1] " : "[0] ", &out[i], &err[i]);
  uint64_t from = monotonic_ms();
  put(out[0], "first? ");
  check_terminal(master, "first? ", "[0] first? ");
  put(out[1], "second? ");
  check_terminal(master, "second? ", "\n[1] second? ");
  assert_true(monotonic_ms() - from >= 1000);
  put(out[0], "yes\n");
  check_terminal(master, "yes\n", "\n[0] yes\n");
  for (uint32_t i = 0; i < 2; i++) close_worker(i, out[i], err[i]);
}

UNIT_TEST_WITH(test_the_status_line_makes_room, NULL, relay_rig_close) {
  int out, err, master = open_desk(true);
  relay_status(d.r, "step 1");
  check_terminal(master, "step 1\x1b[K", "\rstep 1\x1b[K");
  open_worker(0, "", &out, &err);
  put(out, "(Pdb) ");
  check_terminal(master, "(Pdb) ", "\r\x1b[K(Pdb) ");
  put(out, "\n");
  check_terminal(master, "step 1\x1b[K", "\n\rstep 1\x1b[K");
  close_worker(0, out, err);
}

/* A worker's end, and the relay's, finish the line. */
UNIT_TEST_WITH(test_the_end, NULL, relay_rig_close) {
  int out, err, master = open_desk(false);
  open_worker(0, "[0] ", &out, &err);
  put(out, "half");
  check_terminal(master, "half", "[0] half");
  close_worker(0, out, err);
  check_terminal(master, "\n", "\n");
  open_worker(0, "[0] ", &out, &err);
  put(out, "half");
  check_terminal(master, "half", "[0] half");
  relay_destroy(d.r, DEADLINE_MS);
  d.r = NULL;
  check_terminal(master, "\n", "\n");
  close(out);
  close(err);
}

/* In a pipe others may write too: whole lines only, unless the worker is alone. */
UNIT_TEST_WITH(test_a_pipe, NULL, relay_rig_close) {
  int p[2], out, err;
  assert_int_equal(pipe2(p, O_CLOEXEC), 0);
  relay_rig_open((struct relay_options){.out = p[1]});
  open_worker(0, "", &out, &err);
  put(out, "one ");
  assert_int_equal(poll(&(struct pollfd){.fd = p[0], .events = POLLIN}, 1, 4 * RELAY_PROMPT_MS), 0);
  put(out, "line\n");
  check_terminal(p[0], "line\n", "one line\n");
  close_worker(0, out, err);
  struct relay_source alone = {.alone = true, .out.shown = true, .err.shown = true};
  open_any(alone, &out, &err);
  put(out, "one ");
  check_terminal(p[0], "one ", "one ");
  put(err, "stderr is elsewhere\n");
  put(out, "line\n");
  check_terminal(p[0], "line\n", "line\n");
  close_worker(0, out, err);
  close(p[0]);
}

/* Nothing that is not shown becomes shown because it has no newline. */
UNIT_TEST_WITH(test_not_shown, NULL, relay_rig_close) {
  int out, err, master = open_desk(false);
  open_any((struct relay_source){0}, &out, &err);
  put(out, "half");
  assert_int_equal(poll(&(struct pollfd){.fd = master, .events = POLLIN}, 1, 3 * RELAY_PROMPT_MS), 0);
  close_worker(0, out, err);
  assert_int_equal(poll(&(struct pollfd){.fd = master, .events = POLLIN}, 1, 0), 0);
}

enum { N_LINES = 400 };

static void *write_whole(void *arg) {
  char line[64];
  for (int i = 0; i < N_LINES; i++) {
    snprintf(line, sizeof(line), "line %d of many that are whole\n", i);
    put(*(const int *)arg, line);
    poll(NULL, 0, 2);
  }
  return NULL;
}

/* Two workers that leave lines unfinished, long enough to be shown, and end them late. */
static void *write_halves(void *arg) {
  for (int i = 0; i < 4; i++) {
    put(*(const int *)arg, "half ");
    poll(NULL, 0, RELAY_PROMPT_MS + 20);
    put(*(const int *)arg, i % 2 ? "and half\nthen " : "more ");
    poll(NULL, 0, 30);
  }
  return NULL;
}

/* Line by line: those of the first worker are all there, each with its prefix and to its end. */
static void check_whole(char *text) {
  int next = 0, halves = 0;
  char expected[64], *line;
  while ((line = strsep(&text, "\n"))) {
    snprintf(expected, sizeof(expected), "[0] line %d of many that are whole", next);
    if (strncmp(line, "[0]", 3) == 0) {
      assert_string_equal(line, expected);
      next++;
    } else {
      if (strstr(line, "whole")) fail_msg("torn: %s", line);
      halves += strstr(line, "half") != NULL;
    }
  }
  assert_int_equal(next, N_LINES);
  assert_true(halves > 4); /* they were shown before they were finished */
}

UNIT_TEST_WITH(test_nothing_is_torn, NULL, relay_rig_close) {
  int out[3], err[3], master = open_desk(false);
  pthread_t threads[3];
  for (uint32_t i = 0; i < 3; i++) {
    char prefix[8];
    snprintf(prefix, sizeof(prefix), "[%u] ", i);
    open_worker(i, prefix, &out[i], &err[i]);
    pthread_create(&threads[i], NULL, i ? write_halves : write_whole, &out[i]);
  }
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  for (uint32_t i = 0; i < 3; i++) close_worker(i, out[i], err[i]);
  relay_say(d.r, "the end");
  char *text = read_until(master, "the end\n");
  check_whole(text);
  free(text);
}

int main(void) {
  alarm(100);
  return unit_run(NULL, NULL);
}
