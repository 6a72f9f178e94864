/* SPDX-License-Identifier: Apache-2.0 */
/* agent/devices/devices.c: the GPUs that a worker sees, in trees of the test. */

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "agent/devices/devices.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

static struct device v[DEVICES_MAX];
static struct tree t;

static int set_up(void **state) {
  tree_init(&t);
  return 0;
}

static int tear_down(void **state) {
  tree_finish(&t);
  return 0;
}

static void put_gpu(const char *pci, const char *uuid) {
  char text[256];
  snprintf(text, sizeof(text), "Model: \t\t NVIDIA A100\nIRQ:   \t\t 71\nGPU UUID: \t %s\nBus Location: \t %s\n", uuid,
           pci);
  tree_put(&t, text, "proc/driver/nvidia/gpus/%s/information", pci);
}

/* Four GPUs, put down in another order than PCI's. */
static void put_four(void) {
  put_gpu("0000:C1:00.0", "GPU-dddd-4");
  put_gpu("0000:01:00.0", "GPU-aaaa-1");
  put_gpu("0000:81:00.0", "GPU-cccc-3");
  put_gpu("0000:41:00.0", "GPU-bbbb-2");
}

static int list_with(const char *visible) {
  char word[128];
  char *env[] = {word, NULL};
  snprintf(word, sizeof(word), "CUDA_VISIBLE_DEVICES=%s", visible);
  return devices_list(t.root, env, NULL, v);
}

UNIT_TEST_WITH(counts_none_where_there_is_none, set_up, tear_down) {
  tree_put(&t, "", "dev/nvidiactl");
  tree_put(&t, "", "dev/nvidia-uvm");
  tree_put(&t, "", "dev/nvidia-caps/nvidia-cap1");
  assert_int_equal(devices_count(t.root, NULL, NULL), 0);
}

UNIT_TEST_WITH(counts_the_drivers_folder, set_up, tear_down) {
  put_four();
  assert_int_equal(devices_list(t.root, NULL, NULL, v), 4);
  assert_string_equal(v[0].pci, "0000:01:00.0");
  assert_string_equal(v[3].pci, "0000:c1:00.0"); /* as /sys writes it */
  assert_int_equal(devices_count(t.root, NULL, NULL), 4);
}

UNIT_TEST_WITH(counts_device_files, set_up, tear_down) {
  tree_put(&t, "", "dev/nvidia0");
  tree_put(&t, "", "dev/nvidia11");
  tree_put(&t, "", "dev/nvidiactl");
  assert_int_equal(devices_list(t.root, NULL, NULL, v), 2);
  assert_string_equal(v[0].pci, "");
  tree_put(&t, "0x10de\n", "sys/bus/pci/devices/0000:41:00.0/vendor");
  tree_put(&t, "0x030200\n", "sys/bus/pci/devices/0000:41:00.0/class");
  tree_put(&t, "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/vendor");
  tree_put(&t, "0x030000\n", "sys/bus/pci/devices/0000:01:00.0/class");
  tree_put(&t, "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/vendor");
  tree_put(&t, "0x040300\n", "sys/bus/pci/devices/0000:01:00.1/class"); /* its sound */
  tree_put(&t, "0x8086\n", "sys/bus/pci/devices/0000:00:02.0/vendor");
  tree_put(&t, "0x030000\n", "sys/bus/pci/devices/0000:00:02.0/class");
  assert_int_equal(devices_list(t.root, NULL, NULL, v), 2);
  assert_string_equal(v[0].pci, "0000:01:00.0");
  assert_string_equal(v[1].pci, "0000:41:00.0");
}

/* A container that was given one of the host's GPUs. */
UNIT_TEST_WITH(believes_fewer_device_files, set_up, tear_down) {
  put_four();
  tree_put(&t, "", "dev/nvidia2");
  assert_int_equal(devices_list(t.root, NULL, NULL, v), 1);
  assert_string_equal(v[0].pci, "");
}

UNIT_TEST_WITH(takes_the_list_in_its_order, set_up, tear_down) {
  put_four();
  assert_int_equal(list_with("3, 0"), 2);
  assert_string_equal(v[0].pci, "0000:c1:00.0");
  assert_string_equal(v[1].pci, "0000:01:00.0");
  assert_int_equal(list_with("GPU-cccc-3,GPU-aa"), 2);
  assert_string_equal(v[0].pci, "0000:81:00.0");
  assert_string_equal(v[1].pci, "0000:01:00.0");
}

UNIT_TEST_WITH(ends_the_list_where_cuda_does, set_up, tear_down) {
  put_four();
  assert_int_equal(list_with(""), 0);
  assert_int_equal(list_with("-1"), 0);
  assert_int_equal(list_with("NoDevFiles"), 0);
  assert_int_equal(list_with("0,-1,1"), 1);
  assert_int_equal(list_with("0,1,x,2"), 2);
  assert_int_equal(list_with("0,4,1"), 1);
  assert_int_equal(list_with("0,1,0"), 0);
  assert_int_equal(list_with("GPU-aaaa-1,0"), 1);
  assert_int_equal(list_with("GPU-aaaa-1,GPU-aaaa-1"), 0);
  assert_int_equal(list_with("0,1,2,3"), 4);
}

UNIT_TEST_WITH(believes_the_list_where_it_sees_nothing, set_up, tear_down) {
  assert_int_equal(list_with("0,1,2"), 3);
  assert_string_equal(v[2].pci, "");
  assert_int_equal(list_with("MIG-1,MIG-2"), 2);
}

UNIT_TEST_WITH(names_the_ith_entry, set_up, tear_down) {
  char id[DEVICE_ID_MAX], word[] = "CUDA_VISIBLE_DEVICES=7, GPU-a ,", empty[] = "CUDA_VISIBLE_DEVICES=";
  char *env[] = {word, NULL}, *nothing[] = {empty, NULL};
  assert_true(devices_visible(NULL, 5, id));
  assert_string_equal(id, "5");
  assert_true(devices_visible(env, 1, id));
  assert_string_equal(id, "GPU-a");
  assert_false(devices_visible(env, 3, id));
  assert_string_equal(id, "");
  assert_true(devices_visible(nothing, 0, id));
  assert_string_equal(id, "");
  assert_false(devices_visible(nothing, 1, id));
}

/* What the driver's library says counts before any file, and names parts too. */
UNIT_TEST_WITH(believes_the_driver, set_up, tear_down) {
  static struct gpu known[3] = {{.uuid = "GPU-x", .pci = "0000:01:00.0"},
                                {.uuid = "GPU-y", .pci = "0000:02:00.0", .n_migs = 1, .migs = {"MIG-m"}},
                                {.error = "GPU is lost"}};
  const struct gpus gpus = {.n = 3, .v = known};
  char word[64];
  char *env[] = {word, NULL};
  put_four();
  assert_int_equal(devices_list(t.root, NULL, &gpus, v), 3);
  assert_string_equal(v[1].uuid, "GPU-y");
  assert_string_equal(v[1].pci, "0000:02:00.0");
  assert_int_equal(v[2].index, 2);
  assert_string_equal(v[2].uuid, "");
  snprintf(word, sizeof(word), "CUDA_VISIBLE_DEVICES=GPU-y,GPU-z,GPU-x");
  assert_int_equal(devices_list(t.root, env, &gpus, v), 3);
  assert_int_equal(v[0].index, 1);
  assert_true(v[0].known);
  assert_int_equal(v[1].index, -1); /* nobody knows it: it is believed */
  assert_string_equal(v[1].uuid, "GPU-z");
  assert_int_equal(v[2].index, 0);
  snprintf(word, sizeof(word), "CUDA_VISIBLE_DEVICES=MIG-m");
  assert_int_equal(devices_list(t.root, env, &gpus, v), 1);
  assert_int_equal(v[0].index, 1);
  assert_string_equal(v[0].uuid, "MIG-m");
  snprintf(word, sizeof(word), "CUDA_VISIBLE_DEVICES=2,3,0");
  assert_int_equal(devices_list(t.root, env, &gpus, v), 1);
  assert_int_equal(devices_count(t.root, NULL, &(struct gpus){.n = 0}), 0);
}

/* A CPU and four GPUs, the last of which a cgroup denies. */
UNIT_TEST_WITH(counts_amds, set_up, tear_down) {
  static const struct {
    const char *rocr, *hip, *cuda;
    int n;
    const char *from;
  } cases[] = {
      {NULL, NULL, NULL, 3, NULL},
      {"ROCR_VISIBLE_DEVICES=1", NULL, NULL, 1, "ROCR_VISIBLE_DEVICES"},
      {"ROCR_VISIBLE_DEVICES=", NULL, NULL, 0, "ROCR_VISIBLE_DEVICES"},
      {"ROCR_VISIBLE_DEVICES=1,2", "HIP_VISIBLE_DEVICES=0", NULL, 1, "HIP_VISIBLE_DEVICES"},
      {"ROCR_VISIBLE_DEVICES=1,2", "HIP_VISIBLE_DEVICES=0,2", NULL, 1, "HIP_VISIBLE_DEVICES"},
      {NULL, NULL, "CUDA_VISIBLE_DEVICES=0,1", 2, NULL},
  };
  const char *from;
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    char *env[4], word[3][64];
    const char *words[] = {cases[i].rocr, cases[i].hip, cases[i].cuda};
    size_t n = 0;
    for (int k = 0; k < 3; k++)
      if (words[k]) snprintf(word[k], sizeof(word[k]), "%s", words[k]), env[n++] = word[k];
    env[n] = NULL;
    tree_put(&t, "cpu_cores_count 64\nsimd_count 0\n", "sys/class/kfd/kfd/topology/nodes/0/properties");
    for (int node = 1; node <= 3; node++)
      tree_put(&t, "cpu_cores_count 0\nsimd_count 440\n", "sys/class/kfd/kfd/topology/nodes/%d/properties", node);
    tree_put(&t, "", "sys/class/kfd/kfd/topology/nodes/4/gpu_id");
    assert_int_equal(devices_count_amd(t.root, env, &from), cases[i].n);
    assert_string_equal(from ? from : "-", cases[i].from ? cases[i].from : "-");
  }
  char visible[] = "CUDA_VISIBLE_DEVICES=0,1", *nvidias[] = {visible, NULL};
  assert_int_equal(devices_count_amd("/nowhere", nvidias, &from), 0);
}

UNIT_TEST_WITH(knows_uuids_of_files, set_up, tear_down) {
  put_four();
  assert_int_equal(list_with("3"), 1);
  assert_string_equal(v[0].uuid, "GPU-dddd-4");
  assert_int_equal(v[0].index, 3);
  tear_down(state);
  set_up(state);
  assert_int_equal(list_with("5,7"), 2);
  assert_int_equal(v[1].index, 7);
  assert_false(v[1].known);
}

static void assert_narrowed(const char *visible, const char *uuids, const char *good, const char *expected) {
  struct device d[4] = {{.index = 0}};
  bool ok[4];
  char word[128];
  char *env[] = {word, NULL};
  struct buf out = BUF_INIT;
  for (int i = 0; i < 4; i++) {
    if (uuids[i] != '-') snprintf(d[i].uuid, sizeof(d[i].uuid), "GPU-%c", uuids[i]);
    ok[i] = good[i] == '+';
  }
  snprintf(word, sizeof(word), "CUDA_VISIBLE_DEVICES=%s", visible ? visible : "");
  devices_narrow(visible ? env : NULL, d, 4, ok, &out);
  assert_string_equal(buf_text(&out), expected);
  buf_finish(&out);
}

UNIT_TEST_WITH(narrows_to_the_good, set_up, tear_down) {
  assert_narrowed(NULL, "abcd", "+-+-", "GPU-a,GPU-c");
  assert_narrowed(NULL, "ab-d", "+--+", "GPU-a,GPU-d");
  assert_narrowed(NULL, "abc-", "+--+", "0,3"); /* CUDA does not take both kinds */
  assert_narrowed("4,5,6,7", "----", "-+-+", "5,7");
  assert_narrowed("4,5,6,7", "abcd", "-+-+", "GPU-b,GPU-d");
  assert_narrowed(NULL, "abcd", "----", "");
}

UNIT_TEST_WITH(names_a_device, set_up, tear_down) {
  static const struct {
    struct device d;
    const char *text;
  } cases[] = {
      {{.index = 2, .uuid = "GPU-8f"}, "2, GPU-8f"}, {{.index = 2}, "2"}, {{.index = -1, .uuid = "MIG-1"}, "MIG-1"}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    struct buf out = BUF_INIT;
    devices_name(&cases[i].d, &out);
    assert_string_equal(buf_text(&out), cases[i].text);
    buf_finish(&out);
  }
}
