/* SPDX-License-Identifier: Apache-2.0 */
/* agent/devices/gather.c: facts in the kernel's files, in trees of the test. GPUs of NVIDIA: tests/e2e/test_health.py. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "agent/devices/gather.h"
#include "common/mem.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

static struct tree t;
static struct fact_list f;

static int set_up(void **state) {
  tree_init(&t);
  return 0;
}

static int tear_down(void **state) {
  facts_finish(&f);
  tree_finish(&t);
  return 0;
}

static void put_port(const char *port, const char *state, const char *layer) {
  tree_put(&t, state, "sys/class/infiniband/%s/state", port);
  tree_put(&t, layer, "sys/class/infiniband/%s/link_layer", port);
  tree_put(&t, "400 Gb/sec (4X NDR)\n", "sys/class/infiniband/%s/rate", port);
  tree_put(&t, "3\n", "sys/class/infiniband/%s/counters/link_downed", port);
}

static void assert_text(const char *at, const char *name, const char *text) {
  const struct fact *one = facts_find(&f, at, name);
  assert_non_null(one);
  assert_string_equal(one->text, text);
}

static void assert_number(const char *at, const char *name, int64_t value) {
  const struct fact *one = facts_find(&f, at, name);
  assert_non_null(one);
  assert_int_equal(one->value, value);
}

UNIT_TEST_WITH(reads_the_host, set_up, tear_down) {
  tree_put(&t, "", "dev/shm/x");
  gather_host(&f, t.root);
  assert_text("", "rdzv", RDZV_VERSION);
  assert_true(facts_find(&f, "", "kernel")->text[0] != '\0');
  assert_true(facts_find(&f, "", "cpus")->value > 0);
  assert_int_equal(facts_find(&f, "", "mem_mib")->value % 1024, 0);
  assert_non_null(facts_find(&f, "", "memlock_kib"));
  assert_non_null(facts_find(&f, "", "shm_free_mib"));
  assert_non_null(facts_find(&f, "", "tmp_free_mib"));
}

UNIT_TEST_WITH(a_folder_that_is_missing_is_left_out, set_up, tear_down) {
  gather_host(&f, t.root);
  assert_null(facts_find(&f, "", "shm_mib"));
  gather_ports(&f, t.root);
  gather_gpus(&f, NULL, &(struct gather_gpus){0}, t.root, false, NULL);
  assert_number("", "gpus", 0);
}

UNIT_TEST_WITH(reads_ports, set_up, tear_down) {
  put_port("mlx5_0/ports/1", "4: ACTIVE\n", "InfiniBand\n");
  put_port("mlx5_1/ports/1", "1: DOWN\n", "Ethernet\n");
  put_port("mlx5_1/ports/2", "2: INIT\n", "Ethernet\n");
  tree_put(&t, "", "sys/class/infiniband/mlx5_0/device/infiniband_verbs/uverbs0/dev");
  tree_put(&t, "", "sys/class/infiniband/mlx5_1/device/infiniband_verbs/uverbs1/dev");
  tree_put(&t, "", "dev/infiniband/uverbs0");
  /* Virtual functions: one is ours. */
  put_port("mlx5_2/ports/1", "4: ACTIVE\n", "InfiniBand\n");
  put_port("mlx5_3/ports/1", "1: DOWN\n", "InfiniBand\n");
  put_port("mlx5_4/ports/1", "1: DOWN\n", "InfiniBand\n");
  for (int i = 2; i < 5; i++) tree_put(&t, "", "sys/class/infiniband/mlx5_%d/device/physfn/vendor", i);
  tree_put(&t, "", "sys/class/infiniband/mlx5_2/device/infiniband_verbs/uverbs2/dev");
  tree_put(&t, "", "sys/class/infiniband/mlx5_3/device/infiniband_verbs/uverbs3/dev");
  tree_put(&t, "", "dev/infiniband/uverbs2");
  gather_ports(&f, t.root);
  assert_text("mlx5_2/1", "port_state", "ACTIVE");
  assert_text("mlx5_0/1", "port_state", "ACTIVE");
  assert_text("mlx5_0/1", "port_layer", "InfiniBand");
  assert_number("mlx5_0/1", "port_rate", 400);
  assert_number("mlx5_0/1", "link_downed", 3);
  assert_number("mlx5_0/1", "device_node", 1);
  assert_text("mlx5_1/1", "port_state", "DOWN");
  assert_text("mlx5_1/2", "port_state", "INIT");
  assert_number("mlx5_1/2", "device_node", 0); /* it reads ACTIVE, perhaps, but nobody can open it */
  assert_int_equal(f.n, 20);
}

UNIT_TEST_WITH(reads_gpus_of_amd, set_up, tear_down) {
  for (int i = 0; i < 2; i++) {
    char pci[32];
    snprintf(pci, sizeof pci, "0000:c%d:00.0", i);
    char properties[200];
    snprintf(properties, sizeof properties, "simd_count 304\nlocation_id %d\ndomain 0\ngfx_target_version 90402\n",
             0xc000 + i * 256);
    tree_put(&t, properties, "sys/class/kfd/kfd/topology/nodes/%d/properties", i);
    tree_put(&t, i ? "8\n" : "16\n", "sys/devices/%d/%s/current_link_width", i, pci);
    tree_put(&t, "16\n", "sys/devices/%d/%s/max_link_width", i, pci);
    char *name = xasprintf("%s/sys/bus/pci/devices/%s", t.root, pci),
         *target = xasprintf("../../../devices/%d/%s", i, pci);
    tree_put(&t, "", "sys/bus/pci/devices/none");
    assert_int_equal(symlink(target, name), 0);
    free(name);
    free(target);
    tree_put(&t, "ue: 2\nce: 7\n", "sys/devices/%d/%s/ras/umc_err_count", i, pci);
  }
  tree_put(&t, "8\n", "sys/devices/1/max_link_width"); /* of the slot */
  gather_gpus(&f, NULL, &(struct gather_gpus){0}, t.root, false, NULL);
  assert_number("", "gpus", 2);
  assert_text("gpu0", "gpu_model", "AMD gfx942");
  assert_number("gpu0", "ecc_uncorrected", 2);
  assert_number("gpu0", "pcie_width", 16);
  assert_number("gpu1", "pcie_width", 8);
  assert_number("gpu0", "pcie_width_max", 16);
  assert_number("gpu1", "pcie_width_max", 8);
  assert_text("gpu1", "gpu_pci", "0000:c1:00.0");
  assert_number("gpu1", "foreign_mib", 0);
}
