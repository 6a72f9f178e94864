/* SPDX-License-Identifier: Apache-2.0 */
/* agent/devices/devices.c: the GPUs that a worker sees, in trees of the test. */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "agent/devices/devices.h"
#include "common/mem.h"
#include "tests/rig/tree.h"
#include "tests/rig/unit.h"

static struct device v[DEVICES_MAX];
static const char *from;
static struct tree t;

static int set_up(void **state) {
  tree_init(&t);
  return 0;
}

static int tear_down(void **state) {
  tree_finish(&t);
  return 0;
}

static int devices_list(const char *root, char *const *env, const struct gpus *known) {
  struct devices *d = devices_find(root, env, known, GPU_VENDORS, NULL);
  int n = d->n;
  memcpy(v, d->v, (size_t)n * sizeof(*v));
  from = d->from;
  free(d);
  return n;
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
  return devices_list(t.root, env, NULL);
}

UNIT_TEST_WITH(counts_none_where_there_is_none, set_up, tear_down) {
  tree_put(&t, "", "dev/nvidiactl");
  tree_put(&t, "", "dev/nvidia-uvm");
  tree_put(&t, "", "dev/nvidia-caps/nvidia-cap1");
  assert_int_equal(devices_list(t.root, NULL, NULL), 0);
}

UNIT_TEST_WITH(counts_the_drivers_folder, set_up, tear_down) {
  put_four();
  assert_int_equal(devices_list(t.root, NULL, NULL), 4);
  assert_string_equal(v[0].pci, "0000:01:00.0");
  assert_string_equal(v[3].pci, "0000:c1:00.0"); /* as /sys writes it */
  assert_int_equal(devices_list(t.root, NULL, NULL), 4);
}

UNIT_TEST_WITH(counts_device_files, set_up, tear_down) {
  tree_put(&t, "", "dev/nvidia0");
  tree_put(&t, "", "dev/nvidia11");
  tree_put(&t, "", "dev/nvidiactl");
  assert_int_equal(devices_list(t.root, NULL, NULL), 2);
  assert_string_equal(v[0].pci, "");
  tree_put(&t, "0x10de\n", "sys/bus/pci/devices/0000:41:00.0/vendor");
  tree_put(&t, "0x030200\n", "sys/bus/pci/devices/0000:41:00.0/class");
  tree_put(&t, "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/vendor");
  tree_put(&t, "0x030000\n", "sys/bus/pci/devices/0000:01:00.0/class");
  tree_put(&t, "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/vendor");
  tree_put(&t, "0x040300\n", "sys/bus/pci/devices/0000:01:00.1/class"); /* its sound */
  tree_put(&t, "0x8086\n", "sys/bus/pci/devices/0000:00:02.0/vendor");
  tree_put(&t, "0x030000\n", "sys/bus/pci/devices/0000:00:02.0/class");
  assert_int_equal(devices_list(t.root, NULL, NULL), 2);
  assert_string_equal(v[0].pci, "0000:01:00.0");
  assert_string_equal(v[1].pci, "0000:41:00.0");
}

/* A container that was given one of the host's GPUs. */
UNIT_TEST_WITH(believes_fewer_device_files, set_up, tear_down) {
  put_four();
  tree_put(&t, "", "dev/nvidia2");
  assert_int_equal(devices_list(t.root, NULL, NULL), 1);
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

/* What a worker's own list has to be. */
UNIT_TEST_WITH(knows_each_ones_entry, set_up, tear_down) {
  put_four();
  assert_int_equal(devices_list(t.root, NULL, NULL), 4);
  assert_string_equal(v[3].entry, "3");
  assert_int_equal(list_with("3, GPU-a ,"), 1);
  assert_string_equal(v[0].entry, "3");
  assert_int_equal(list_with(" GPU-cccc-3"), 0); /* CUDA takes no blank before the first UUID */
  assert_int_equal(list_with("GPU-cccc-3, GPU-b ,"), 2);
  assert_string_equal(v[1].entry, "GPU-b");
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
  assert_int_equal(devices_list(t.root, NULL, &gpus), 3);
  assert_string_equal(v[1].uuid, "GPU-y");
  assert_string_equal(v[1].pci, "0000:02:00.0");
  assert_int_equal(v[2].index, 2);
  assert_string_equal(v[2].uuid, "");
  snprintf(word, sizeof(word), "CUDA_VISIBLE_DEVICES=GPU-y,GPU-z,GPU-x");
  assert_int_equal(devices_list(t.root, env, &gpus), 3);
  assert_int_equal(v[0].index, 1);
  assert_true(v[0].known);
  assert_int_equal(v[1].index, -1); /* nobody knows it: it is believed */
  assert_string_equal(v[1].uuid, "GPU-z");
  assert_int_equal(v[2].index, 0);
  snprintf(word, sizeof(word), "CUDA_VISIBLE_DEVICES=MIG-m");
  assert_int_equal(devices_list(t.root, env, &gpus), 1);
  assert_int_equal(v[0].index, 1);
  assert_string_equal(v[0].uuid, "MIG-m");
  snprintf(word, sizeof(word), "CUDA_VISIBLE_DEVICES=2,3,0");
  assert_int_equal(devices_list(t.root, env, &gpus), 1);
  assert_int_equal(devices_list(t.root, NULL, &(struct gpus){.n = 0}), 0);
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

static void assert_narrowed(enum gpu_vendor vendor, const char *uuids, const char *good, const char *expected) {
  struct devices *d = calloc(1, sizeof(*d));
  bool ok[4];
  struct buf out = BUF_INIT;
  assert_non_null(d);
  d->n = 4;
  d->vendor = vendor;
  for (int i = 0; i < 4; i++) {
    if (uuids[i] != '-') snprintf(d->v[i].uuid, sizeof(d->v[i].uuid), "GPU-%c", uuids[i]);
    snprintf(d->v[i].entry, sizeof(d->v[i].entry), "%d", i + 4);
    ok[i] = good[i] == '+';
  }
  devices_narrow(d, ok, &out);
  assert_string_equal(buf_text(&out), expected);
  buf_finish(&out);
  free(d);
}

UNIT_TEST_WITH(narrows_to_the_good, set_up, tear_down) {
  assert_narrowed(GPU_NVIDIA, "abcd", "+-+-", "GPU-a,GPU-c");
  assert_narrowed(GPU_NVIDIA, "ab-d", "+--+", "GPU-a,GPU-d");
  assert_narrowed(GPU_NVIDIA, "abc-", "+--+", "4,7"); /* CUDA does not take both kinds */
  assert_narrowed(GPU_AMD, "abcd", "-+-+", "5,7");    /* old HIP takes numbers only */
  assert_narrowed(GPU_INTEL, "----", "-+-+", "5,7");
  assert_narrowed(GPU_NVIDIA, "abcd", "----", "");
}

UNIT_TEST_WITH(names_a_device, set_up, tear_down) {
  static const struct {
    struct device d;
    const char *text;
  } cases[] = {{{.index = 2, .uuid = "GPU-8f"}, "2, GPU-8f"},
               {{.index = 2}, "2"},
               {{.index = -1, .uuid = "MIG-1"}, "MIG-1"},
               {{.index = 3, .vendor = GPU_INTEL, .pci = "0000:3a:00.0", .part = 1}, "3, 0000:3a:00.0 tile 1"}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
    struct buf out = BUF_INIT;
    devices_name(&cases[i].d, &out);
    assert_string_equal(buf_text(&out), cases[i].text);
    buf_finish(&out);
  }
}

UNIT_TEST(which_are_the_workers) {
  static const struct {
    int n;
    uint32_t first, workers;
    const char *from;
    int count, at; /* at: of the first one */
  } cases[] = {{8, 0, 8, NULL, 8, 0},  {8, 0, 2, NULL, 2, 0}, {8, 6, 4, NULL, 2, 6},
               {8, 9, 1, NULL, 0, 8},  {2, 0, 5, NULL, 2, 0}, {0, 0, 2, "CUDA_VISIBLE_DEVICES", 0, 0},
               {0, 0, 2, NULL, -1, 0}, {0, 3, 2, NULL, -1, 0}};
  for (int unordered = 0; unordered < 2; unordered++)
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
      struct devices *d = xcalloc(1, sizeof(*d));
      const struct device *first;
      d->n = cases[i].n;
      d->from = cases[i].from;
      d->unordered = unordered;
      for (int k = 0; k < d->n; k++) d->v[k] = (struct device){.index = k, .known = true, .pci = "p", .uuid = "u"};
      assert_int_equal(devices_of_workers(d, cases[i].first, cases[i].workers, &first), cases[i].count);
      assert_ptr_equal(first, &d->v[cases[i].at]);
      if (cases[i].count > 0) assert_int_equal(first->known && first->pci[0] && first->uuid[0], !unordered);
      free(d);
    }
}
