/* SPDX-License-Identifier: Apache-2.0 */
/* agent/health/report.c: what proves that a host cannot work, and the table for a person. */

#include <stdio.h>
#include <string.h>
#include "agent/health/health.h"
#include "proto/facts.h"
#include "tests/rig/unit.h"

static void check(const char *at, const char *name, int64_t value, const char *text, const char *expected) {
  struct fact_list f = {0};
  SCOPED(buf_finish) struct buf why = BUF_INIT;
  facts_text(&f, "gpu0", "gpu_model", "NVIDIA H100");
  if (*text)
    facts_text(&f, at, name, text);
  else
    facts_number(&f, at, name, value);
  assert_int_equal(health_is_broken(&f, &why), *expected != '\0');
  assert_string_equal(buf_text(&why), expected);
  facts_finish(&f);
}

UNIT_TEST(what_is_certain) {
  check("gpu3", "gpu_error", 0, "GPU is lost", "gpu3: GPU is lost");
  check("gpu3", "recovery_action", 1, "", "gpu3: recovery action GPU reset");
  check("gpu3", "recovery_action", 2, "", "gpu3: recovery action node reboot");
  check("gpu3", "recovery_action", 9, "", "gpu3: recovery action 9");
  check("gpu3", "xid", 79, "", "gpu3: last XID 79 (GPU has fallen off the bus)");
  check("gpu3", "xid", 95, "", "gpu3: last XID 95 (uncontained memory error)");
  check("gpu3", "recovery_action", 0, "", "");
  static const int harmless[] = {13, 31, 43, 45, 94, 74};
  for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) check("gpu3", "xid", harmless[i], "", "");
  check("gpu3", "remap_pending", 1, "", ""); /* the daemon compares these with other nodes */
  check("gpu3", "pcie_width", 8, "", "");
  check("mlx5_0/1", "port_state", 0, "DOWN", "");
  check("gpu3", "remap_failed", 0, "", "");
  check("gpu3", "remap_failed", 1, "", "gpu3: failed row remaps 1");
}

UNIT_TEST(what_the_job_does_not_use) {
  for (int used = 0; used < 2; used++) {
    struct fact_list f = {0};
    SCOPED(buf_finish) struct buf why = BUF_INIT;
    facts_text(&f, "gpu3", "gpu_error", "GPU is lost");
    facts_number(&f, "gpu3", "gpu_used", used);
    assert_int_equal(health_is_broken(&f, &why), used);
    facts_finish(&f);
  }
}

/* Both sides have one opinion: whatever proves a host broken is certain in the daemon, and the other way round. */
UNIT_TEST(what_is_certain_has_one_table) {
  for (int id = 0; id < FACT_COUNT; id++)
    for (int64_t value = 0; value < 1000; value++) {
      struct fact_list f = {0};
      struct buf why = BUF_INIT;
      const char *text = fact_kinds[id].type == FACT_TEXT && value ? "x" : "";
      if (*text)
        facts_text(&f, "gpu0", fact_kinds[id].name, text);
      else
        facts_number(&f, "gpu0", fact_kinds[id].name, value);
      assert_int_equal(health_is_broken(&f, &why), fact_judge((enum fact_id)id, value, text) == FACT_CERTAIN);
      facts_finish(&f);
      buf_finish(&why);
    }
}

/* Whatever a healthy host says, nothing is made of it. */
UNIT_TEST(nothing_is_invented) {
  static const char *const names[] = {"pcie_width",    "pcie_width_max", "nvlinks",     "ecc_uncorrected",
                                      "remap_pending", "foreign_mib",    "link_downed", "port_rate",
                                      "device_node",   "shm_free_mib",   "gpus",        "memlock_kib"};
  enum { NAMES = sizeof names / sizeof *names };
  uint64_t x = 1;
  for (int i = 0; i < 1000; i++) {
    struct fact_list f = {0};
    struct buf why = BUF_INIT;
    for (int k = 0; k < 40; k++) {
      x = x * 6364136223846793005u + 1442695040888963407u;
      char at[8];
      snprintf(at, sizeof at, "gpu%d", (int)(x >> 60));
      facts_number(&f, at, names[(x >> 40) % NAMES], (int64_t)(x >> 33));
      facts_number(&f, at, "recovery_action", 0);
    }
    assert_false(health_is_broken(&f, &why));
    assert_int_equal(why.len, 0);
    facts_finish(&f);
    buf_finish(&why);
  }
}

UNIT_TEST(prints_a_table) {
  struct health_facts f = {.text = "the GPU driver gave no answer within 20 s"};
  SCOPED(buf_finish) struct buf out = BUF_INIT;
  facts_text(&f.list, "", "kernel", "6.1.0");
  facts_number(&f.list, "", "gpus", 2);
  facts_text(&f.list, "mlx5_0/1", "port_state", "ACTIVE");
  facts_text(&f.list, "gpu0", "gpu_model", "H100\x1b[2J");
  facts_number(&f.list, "gpu0", "pcie_width", 16);
  facts_text(&f.list, "gpu1", "gpu_error", "GPU is lost");
  health_print(&f, &out);
  assert_string_equal(buf_text(&out), "kernel          6.1.0\n"
                                      "gpus            2\n"
                                      "\n"
                                      "       gpu_model    pcie_width  gpu_error\n"
                                      "gpu0   H100\\x1b[2J  16          -\n"
                                      "gpu1   -            -           GPU is lost\n"
                                      "\n"
                                      "          port_state\n"
                                      "mlx5_0/1  ACTIVE\n"
                                      "\n"
                                      "not known: the GPU driver gave no answer within 20 s\n");
  health_facts_finish(&f);
}
