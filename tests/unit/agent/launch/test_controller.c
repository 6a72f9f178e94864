/* SPDX-License-Identifier: Apache-2.0 */
/* agent/launch/controller.c: the job after a host fails, is lost, or its agent ends. Time is a number. */

#include "agent/launch/controller.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/exit_codes.h"
#include "tests/rig/unit.h"

static char names[4][4] = {"n1", "n2", "n3", "n4"};
static struct launch_seat seats[4];
static struct launch_controller *mind;
static struct buf did; /* "say ...", "signal 15", "kill", "exit 0": a line each */
static uint64_t now;

static void collect(void) {
  struct launch_effect fx;
  buf_clear(&did);
  while (launch_controller_next(mind, &fx)) {
    if (fx.kind == LAUNCH_SAY) buf_printf(&did, "say %s\n", fx.text);
    if (fx.kind == LAUNCH_SIGNAL) buf_printf(&did, "signal %d%s\n", fx.value, fx.own ? " own" : "");
    if (fx.kind == LAUNCH_PROBE) buf_puts(&did, "probe\n");
    if (fx.kind == LAUNCH_KILL) buf_puts(&did, "kill\n");
    if (fx.kind == LAUNCH_EXIT) buf_printf(&did, "exit %d\n", fx.value);
  }
}

static void begin(size_t n, int64_t need, bool serves) {
  for (size_t i = 0; i < 4; i++) seats[i] = (struct launch_seat){.host = names[i], .index = (uint32_t)i};
  launch_controller_destroy(mind);
  now = 1000;
  mind = launch_controller_create(
      &(struct launch_controller_config){.seats = seats, .n = n, .need = need, .serves = serves, .stop_ms = 30000},
      now);
}

/* want: all that follows; NULL: anything. */
static void expect(const char *want) {
  collect();
  if (want) assert_string_equal(buf_text(&did), want);
}

static void event(uint32_t index, enum launch_event what, int64_t code, const char *text, const char *want) {
  struct launch_report r = {.index = index, .event = what, .code = code};
  snprintf(r.text, sizeof(r.text), "%s", text);
  launch_controller_report(mind, &r, now);
  expect(want);
}

static void up(size_t n) {
  for (uint32_t i = 0; i < n; i++) event(i, LAUNCH_UP, 0, "", NULL);
}

static void tick_at_deadline(const char *want) {
  now = launch_controller_deadline(mind);
  assert_true(now != UINT64_MAX);
  launch_controller_tick(mind, now);
  expect(want);
}

static void signal_all(int signo, const char *want) {
  launch_controller_signal(mind, signo, now);
  expect(want);
}

UNIT_TEST(test_all_finish) {
  begin(3, 3, true);
  up(3);
  assert_true(launch_controller_deadline(mind) == UINT64_MAX);
  event(1, LAUNCH_ENDED, 0, "", "probe\n");
  event(0, LAUNCH_ENDED, 0, "", "");
  event(2, LAUNCH_ENDED, 0, "", "exit 0\n");
  assert_true(launch_controller_deadline(mind) == UINT64_MAX);
}

UNIT_TEST(test_programs_that_differ) {
  begin(4, 4, true);
  event(0, LAUNCH_UP, 0, "/opt/python3", NULL);
  event(1, LAUNCH_UP, 0, "/usr/bin/python3 (python3.11)", NULL);
  event(2, LAUNCH_UP, 0, "", "");
  event(3, LAUNCH_UP, 0, "/usr/bin/python3 (python3.11)",
        "say the command is not the same program on all hosts: /opt/python3 on n1, /usr/bin/python3 (python3.11) on "
        "n[2,4]; give a path that exists on all hosts\n");
  begin(3, 2, false);
  event(0, LAUNCH_UP, 0, "/opt/python3", NULL);
  event(1, LAUNCH_UP, 0, "/opt/python3", NULL);
  event(2, LAUNCH_FAILED, 0, "no such host", "say n3: no such host\n");
  begin(3, 2, false);
  event(0, LAUNCH_UP, 0, "/opt/python3", NULL);
  event(1, LAUNCH_UP, 0, "/usr/bin/python3", NULL);
  event(2, LAUNCH_FAILED, 0, "no such host",
        "say the command is not the same program on all hosts: /opt/python3 on n1, /usr/bin/python3 on n2; give a path "
        "that exists on all hosts\nsay n3: no such host\n");
}

UNIT_TEST(test_the_verdicts_code) {
  begin(2, 2, true);
  up(2);
  event(0, LAUNCH_ENDED, 3, "", NULL);
  event(1, LAUNCH_ENDED, 3, "", "exit 3\n");
}

UNIT_TEST(test_a_host_that_refuses_ends_a_fixed_job) {
  begin(3, 3, true);
  event(0, LAUNCH_UP, 0, "", NULL);
  event(1, LAUNCH_FAILED, 0, "Connection refused",
        "say n2: Connection refused\nsay the job needs 3 hosts, but only 2 are left: stopping them\nsignal 15 own\n");
  event(2, LAUNCH_FAILED, 0, "", "");
  event(0, LAUNCH_ENDED, 75, "", "exit 85\n");
}

UNIT_TEST(test_an_elastic_job_goes_on) {
  begin(3, 2, true);
  event(0, LAUNCH_UP, 0, "", NULL);
  event(1, LAUNCH_UP, 0, "", NULL);
  event(2, LAUNCH_FAILED, 0, "no such host", "say n3: no such host\n");
  event(0, LAUNCH_ENDED, 0, "", NULL);
  event(1, LAUNCH_ENDED, 0, "", "exit 0\n");
}

UNIT_TEST(test_and_ends_below_its_minimum) {
  begin(3, 2, true);
  up(3);
  event(2, LAUNCH_LOST, 0, "its connection ended", "say n3 was lost: its connection ended\n");
  event(1, LAUNCH_LOST, 0, "its connection ended",
        "say n2 was lost: its connection ended\nsay the job needs 2 hosts, but only 1 is left: stopping it\nsignal 15 "
        "own\n");
  event(0, LAUNCH_ENDED, 75, "", "exit 78\n");
}

UNIT_TEST(test_without_the_daemons_host_nothing_begins) {
  begin(3, 1, true);
  event(0, LAUNCH_FAILED, 0, "no such host",
        "say n1: no such host\nsay rdzvd was to run on n1: stopping the other agents\nsignal 15 own\n");
  begin(3, 1, false);
  event(0, LAUNCH_FAILED, 0, "no such host", "say n1: no such host\n");
}

UNIT_TEST(test_goes_on_without_the_daemons_host) {
  begin(3, 1, true);
  up(3);
  event(0, LAUNCH_LOST, 0, "gone", "say n1 was lost: gone\n");
}

UNIT_TEST(test_the_only_host) {
  begin(1, 1, false);
  event(0, LAUNCH_FAILED, 0, "no such host", "say n1: no such host\nexit 85\n");
}

/* It had a reason of its own; the others would wait for --join-timeout. */
UNIT_TEST(test_an_agent_that_cannot) {
  begin(2, 2, true);
  up(2);
  event(1, LAUNCH_ENDED, 79, "", "probe\n");
  assert_int_equal(launch_controller_deadline(mind), now + LAUNCH_LINGER_MS);
  tick_at_deadline(
      "say an agent exited with code 79, and the job cannot continue without it: stopping n1\nsignal 15 own\n");
  event(0, LAUNCH_ENDED, 75, "", "exit 79\n");
}

/* The job is done where it runs; the launcher does not wait for a host that is dead, and its death changes nothing. */
UNIT_TEST(test_a_host_that_died_before_the_end) {
  begin(3, 2, true);
  up(3);
  event(0, LAUNCH_ENDED, 0, "", "probe\n");
  event(1, LAUNCH_ENDED, 0, "", NULL);
  event(2, LAUNCH_LOST, 0, "it was silent for 5 s", "say n3 was lost: it was silent for 5 s\nexit 0\n");
}

UNIT_TEST(test_who_does_not_end_when_the_job_is_done) {
  begin(2, 2, true);
  up(2);
  event(1, LAUNCH_ENDED, 0, "", NULL);
  now += LAUNCH_LINGER_DONE_MS;
  launch_controller_unread(mind, now);
  launch_controller_tick(mind, now);
  expect("");
  tick_at_deadline("say the job is done, but not all agents have exited: stopping n1\nsignal 15 own\n");
  event(0, LAUNCH_ENDED, 75, "", "exit 0\n");
}

UNIT_TEST(test_an_agent_that_left_a_job_that_goes_on) {
  begin(3, 2, true);
  up(3);
  event(1, LAUNCH_ENDED, 75, "", "say the agent on n2 exited with code 75\n");
  assert_true(launch_controller_deadline(mind) == UINT64_MAX);
  event(0, LAUNCH_ENDED, 0, "", NULL);
  event(2, LAUNCH_ENDED, 0, "", "exit 0\n");
}

UNIT_TEST(test_signals) {
  begin(2, 2, true);
  up(2);
  signal_all(SIGINT, "signal 2\n");
  event(0, LAUNCH_ENDED, 130, "", NULL);
  event(1, LAUNCH_ENDED, 130, "", "exit 130\n");
}

UNIT_TEST(test_a_second_signal_kills) {
  begin(2, 2, true);
  up(2);
  signal_all(SIGINT, NULL);
  signal_all(SIGINT, "say second signal: killing everything\nkill\n");
  signal_all(SIGINT, "");
  event(0, LAUNCH_LOST, 0, "killed", "");
  tick_at_deadline("say n2 no longer answer: look for leftover processes there\nexit 130\n");
}

UNIT_TEST(test_who_does_not_stop_is_killed) {
  begin(2, 2, true);
  up(2);
  signal_all(SIGTERM, NULL);
  event(0, LAUNCH_ENDED, 75, "", NULL);
  assert_int_equal(launch_controller_deadline(mind), now + 30000 + LAUNCH_STOP_MORE_MS);
  tick_at_deadline("say 1 agent has not stopped: killing everything\nkill\n");
  event(1, LAUNCH_LOST, 0, "killed", "exit 75\n");
}

UNIT_TEST(test_a_signal_before_anybody_is_up) {
  begin(2, 2, true);
  signal_all(SIGINT, NULL);
  event(0, LAUNCH_FAILED, 0, "", NULL);
  event(1, LAUNCH_FAILED, 0, "", "exit 130\n");
}

UNIT_TEST(test_who_is_missing_is_named) {
  begin(4, 4, true);
  event(1, LAUNCH_UP, 0, "", NULL);
  tick_at_deadline(NULL);
  assert_int_equal(now, 1000 + LAUNCH_SAY_FIRST_MS);
  assert_string_equal(buf_text(&did), "say 3 of 4 hosts have not answered yet: n[1,3-4]\n");
  tick_at_deadline(NULL);
  assert_int_equal(now, 1000 + LAUNCH_SAY_FIRST_MS + LAUNCH_SAY_AGAIN_MS);
}

UNIT_TEST(test_what_is_said_twice_counts_once) {
  begin(2, 2, true);
  up(2);
  up(2);
  event(0, LAUNCH_ENDED, 0, "", NULL);
  event(0, LAUNCH_ENDED, 0, "", NULL);
  event(0, LAUNCH_LOST, 0, "x", NULL);
  event(9, LAUNCH_ENDED, 0, "", "");
  event(1, LAUNCH_ENDED, 0, "", "exit 0\n");
}

static int end(void **state) {
  launch_controller_destroy(mind);
  buf_finish(&did);
  return 0;
}

int main(void) {
  return unit_run(NULL, end);
}
