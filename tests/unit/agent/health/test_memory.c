/* SPDX-License-Identifier: Apache-2.0 */
/* agent/health/memory.c: what one look has seen and the next does not, and which GPUs the job uses. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/health/health.h"
#include "tests/rig/unit.h"

static struct health_memory m;
static struct fact_list f;

static int set_up(void **state) {
  memset(&m, 0, sizeof m);
  return 0;
}

static int tear_down(void **state) {
  facts_finish(&m.up);
  facts_finish(&f);
  return 0;
}

/* A look: GPUs by the last digit of their addresses, in the order of their numbers; '-' is one that does not answer. */
static void look(const char *gpus) {
  facts_finish(&f);
  facts_number(&f, "", "cpus", 8);
  facts_number(&f, "", "gpus", (int64_t)strlen(gpus));
  for (int i = 0; gpus[i]; i++) {
    char at[16], pci[24];
    snprintf(at, sizeof at, "gpu%d", i);
    snprintf(pci, sizeof pci, "0000:%c0:00.0", gpus[i]);
    facts_text(&f, at, gpus[i] == '-' ? "gpu_error" : "gpu_model", "GPU is lost");
    if (gpus[i] != '-') facts_text(&f, at, "gpu_pci", pci);
  }
}

static void recall(const char *devices) {
  struct device v[16] = {{0}};
  for (int i = 0; devices && devices[i]; i++) snprintf(v[i].pci, sizeof v[i].pci, "0000:%c0:00.0", devices[i]);
  health_recall(&m, v, devices ? (int)strlen(devices) : -1, &f);
}

/* By number: '1' used, '0' not, '?' not known. */
static void assert_used(const char *want) {
  for (int i = 0; want[i]; i++) {
    char at[16];
    snprintf(at, sizeof at, "gpu%d", i);
    const struct fact *used = facts_find(&f, at, "gpu_used");
    char is = !used ? '?' : used->value ? '1' : '0';
    if (is != want[i]) fail_msg("%s: %c instead of %c", at, is, want[i]);
  }
}

static void assert_fact(const char *at, const char *name, int64_t value, const char *text) {
  const struct fact *one = facts_find(&f, at, name);
  if (!one) fail_msg("no %s at %s", name, at);
  if (!one) return;
  assert_int_equal(one->value, value);
  assert_string_equal(one->text, text);
}

static void note_xid(int64_t xid, int gpu, const char *pci) {
  struct gpu_xid x = {.xid = xid, .gpu = gpu};
  snprintf(x.pci, sizeof x.pci, "%.100s", pci);
  health_note_xid(&m, &x);
}

UNIT_TEST_WITH(which_gpus_are_used, set_up, tear_down) {
  static const struct {
    const char *gpus, *devices, *used;
  } rows[] = {
      {"abcd", "abcd", "1111"},
      {"abcd", "cd", "0011"},
      {"abcd", "", "0000"},
      {"abcd", NULL, "????"},
      {"abcd", "x", "????"},   /* another container's view */
      {"ab-d", "ab", "1100"},  /* the lost one is not among the workers' */
      {"ab-d", "abc", "????"}, /* it may be theirs */
      {"aabb", "b", "0011"},   /* partitions of two GPUs */
      {"", "", ""},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    memset(&m, 0, sizeof m);
    look(rows[i].gpus);
    recall(rows[i].devices);
    assert_used(rows[i].used);
    assert_fact("", "cpus", 8, "");
  }
}

/* A worker may use more than the one of its local rank. */
UNIT_TEST_WITH(a_process_shows_what_is_used, set_up, tear_down) {
  look("abcd");
  facts_number(&f, "gpu2", "gpu_used", 1);
  recall("a");
  assert_used("1010");
  look("ab-d"); /* nobody is on it any more */
  recall("a");
  assert_used("1010");
  assert_fact("gpu2", "gpu_error", 0, "GPU is lost");
  look("abcd");
  facts_number(&f, "gpu2", "gpu_used", 1);
  recall(NULL);
  assert_used("????");
}

/* A helper that starts later does not list it, and gives its number to another one. */
UNIT_TEST_WITH(a_gpu_is_gone, set_up, tear_down) {
  look("abcd");
  recall("ab");
  look("acd");
  recall("ab");
  assert_used("100");
  assert_fact("0000:b0:00.0", "gpu_error", 0, "the driver no longer lists it");
  assert_fact("0000:b0:00.0", "gpu_used", 1, "");
  assert_null(facts_find(&f, "gpu1", "gpu_error"));
  look("abc");
  recall("ab");
  assert_used("110");
  assert_fact("0000:d0:00.0", "gpu_error", 0, "the driver no longer lists it"); /* it was number 2 at last */
  assert_fact("0000:d0:00.0", "gpu_used", 0, "");
}

/* The driver gives no answer: nothing is lost by that. */
UNIT_TEST_WITH(no_answer, set_up, tear_down) {
  look("ab");
  recall("a");
  facts_finish(&f);
  facts_number(&f, "", "cpus", 8);
  recall("a");
  assert_int_equal(f.n, 1);
}

UNIT_TEST_WITH(a_certain_xid_stays, set_up, tear_down) {
  static const int64_t harmless[] = {13, 31, 43, 45, 94, 119};
  note_xid(79, 1, "0000:b0:00.0");
  for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) note_xid(harmless[i], 0, "0000:a0:00.0");
  facts_number(&f, "", "cpus", 8); /* the helper was killed before it could look */
  recall("ab");
  assert_fact("gpu1", "xid", 79, "");
  assert_null(facts_find(&f, "gpu0", "xid"));
  for (int i = 0; i < 2; i++) { /* another helper knows nothing of it */
    look("ab");
    recall("a");
    assert_fact("gpu1", "xid", 79, "");
    assert_used("10");
  }
  look("acd");
  recall("a");
  assert_fact("0000:b0:00.0", "xid", 79, "");
  assert_fact("0000:b0:00.0", "gpu_used", 0, "");
  assert_null(facts_find(&f, "gpu1", "xid"));
}

UNIT_TEST_WITH(a_port_that_was_up, set_up, tear_down) {
  static const char *const looks[][4] = {{"DOWN", "DOWN", "ACTIVE", "ACTIVE"},
                                         {"ACTIVE", "ACTIVE", "DOWN", "DOWN, was ACTIVE"},
                                         {"DOWN", "DOWN, was ACTIVE", "INIT", "INIT, was ACTIVE"},
                                         {"ACTIVE", "ACTIVE", "ACTIVE_DEFER", "ACTIVE_DEFER"}};
  for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
    facts_finish(&f);
    facts_text(&f, "mlx5_0/1", "port_state", looks[i][0]);
    facts_number(&f, "mlx5_0/1", "port_rate", 400);
    facts_text(&f, "mlx5_1/1", "port_state", looks[i][2]);
    recall(NULL);
    assert_fact("mlx5_0/1", "port_state", 0, looks[i][1]);
    assert_fact("mlx5_1/1", "port_state", 0, looks[i][3]);
    assert_int_equal(f.n, 3);
  }
}

/* A helper that talks nonsense fills no memory. */
UNIT_TEST_WITH(more_gpus_than_can_be, set_up, tear_down) {
  for (int i = 0; i < 2 * GPUS_MAX; i++) {
    char pci[200];
    snprintf(pci, sizeof pci, "%d-%0*d", i, i % 180 + 1, i);
    note_xid(79, i % GPUS_MAX, pci);
  }
  assert_int_equal(m.n_gpus, GPUS_MAX);
  facts_text(&f, "gpu99999999999", "gpu_model", "x");
  facts_text(&f, "gpu", "gpu_model", "x");
  facts_text(&f, "gpu-1", "gpu_model", "x");
  facts_text(&f, "gpus", "gpu_model", "x");
  recall("a");
  assert_int_equal(m.n_gpus, GPUS_MAX);
}
