/* agent/devices.c: which GPUs a worker would see, in made trees. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include "agent/devices.h"
#include "tree_help.h"

static struct device v[DEVICES_MAX];

static void put_gpu(const struct tree *t, const char *pci, const char *uuid) {
  char text[256];
  snprintf(text, sizeof(text),
           "Model: \t\t NVIDIA A100\nIRQ:   \t\t 71\nGPU UUID: \t %s\nBus Location: \t %s\n", uuid, pci);
  tree_put(t, text, "proc/driver/nvidia/gpus/%s/information", pci);
}

/* Four GPUs, put down in another order than PCI's. */
static void put_four(const struct tree *t) {
  put_gpu(t, "0000:C1:00.0", "GPU-dddd-4");
  put_gpu(t, "0000:01:00.0", "GPU-aaaa-1");
  put_gpu(t, "0000:81:00.0", "GPU-cccc-3");
  put_gpu(t, "0000:41:00.0", "GPU-bbbb-2");
}

static int list_with(const struct tree *t, const char *visible) {
  char word[128];
  char *env[] = {word, NULL};
  snprintf(word, sizeof(word), "CUDA_VISIBLE_DEVICES=%s", visible);
  return devices_list(t->root, env, v);
}

static void counts_none_where_there_is_none(void **state) {
  struct tree t;
  tree_init(&t);
  tree_put(&t, "", "dev/nvidiactl");
  tree_put(&t, "", "dev/nvidia-uvm");
  tree_put(&t, "", "dev/nvidia-caps/nvidia-cap1");
  assert_int_equal(devices_count(t.root, NULL), 0);
  tree_finish(&t);
}

static void counts_the_drivers_folder(void **state) {
  struct tree t;
  tree_init(&t);
  put_four(&t);
  assert_int_equal(devices_list(t.root, NULL, v), 4);
  assert_string_equal(v[0].pci, "0000:01:00.0");
  assert_string_equal(v[3].pci, "0000:c1:00.0"); /* as /sys writes it */
  assert_int_equal(devices_count(t.root, NULL), 4);
  tree_finish(&t);
}

static void counts_device_files(void **state) {
  struct tree t;
  tree_init(&t);
  tree_put(&t, "", "dev/nvidia0");
  tree_put(&t, "", "dev/nvidia11");
  tree_put(&t, "", "dev/nvidiactl");
  assert_int_equal(devices_list(t.root, NULL, v), 2);
  assert_string_equal(v[0].pci, "");
  tree_put(&t, "0x10de\n", "sys/bus/pci/devices/0000:41:00.0/vendor");
  tree_put(&t, "0x030200\n", "sys/bus/pci/devices/0000:41:00.0/class");
  tree_put(&t, "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/vendor");
  tree_put(&t, "0x030000\n", "sys/bus/pci/devices/0000:01:00.0/class");
  tree_put(&t, "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/vendor");
  tree_put(&t, "0x040300\n", "sys/bus/pci/devices/0000:01:00.1/class"); /* its sound */
  tree_put(&t, "0x8086\n", "sys/bus/pci/devices/0000:00:02.0/vendor");
  tree_put(&t, "0x030000\n", "sys/bus/pci/devices/0000:00:02.0/class");
  assert_int_equal(devices_list(t.root, NULL, v), 2);
  assert_string_equal(v[0].pci, "0000:01:00.0");
  assert_string_equal(v[1].pci, "0000:41:00.0");
  tree_finish(&t);
}

/* A container that was given one of the host's GPUs. */
static void believes_fewer_device_files(void **state) {
  struct tree t;
  tree_init(&t);
  put_four(&t);
  tree_put(&t, "", "dev/nvidia2");
  assert_int_equal(devices_list(t.root, NULL, v), 1);
  assert_string_equal(v[0].pci, "");
  tree_finish(&t);
}

static void takes_the_list_in_its_order(void **state) {
  struct tree t;
  tree_init(&t);
  put_four(&t);
  assert_int_equal(list_with(&t, "3, 0"), 2);
  assert_string_equal(v[0].pci, "0000:c1:00.0");
  assert_string_equal(v[1].pci, "0000:01:00.0");
  assert_int_equal(list_with(&t, "GPU-cccc-3,GPU-aa"), 2);
  assert_string_equal(v[0].pci, "0000:81:00.0");
  assert_string_equal(v[1].pci, "0000:01:00.0");
  tree_finish(&t);
}

static void ends_the_list_where_cuda_does(void **state) {
  struct tree t;
  tree_init(&t);
  put_four(&t);
  assert_int_equal(list_with(&t, ""), 0);
  assert_int_equal(list_with(&t, "-1"), 0);
  assert_int_equal(list_with(&t, "NoDevFiles"), 0);
  assert_int_equal(list_with(&t, "0,-1,1"), 1);
  assert_int_equal(list_with(&t, "0,1,x,2"), 2);
  assert_int_equal(list_with(&t, "0,4,1"), 1);
  assert_int_equal(list_with(&t, "0,1,0"), 0);
  assert_int_equal(list_with(&t, "GPU-aaaa-1,0"), 1);
  assert_int_equal(list_with(&t, "GPU-aaaa-1,GPU-aaaa-1"), 0);
  assert_int_equal(list_with(&t, "0,1,2,3"), 4);
  tree_finish(&t);
}

static void believes_the_list_where_it_sees_nothing(void **state) {
  struct tree t;
  tree_init(&t);
  assert_int_equal(list_with(&t, "0,1,2"), 3);
  assert_string_equal(v[2].pci, "");
  assert_int_equal(list_with(&t, "MIG-1,MIG-2"), 2);
  tree_finish(&t);
}

static void names_the_ith_entry(void **state) {
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_none_where_there_is_none),
      cmocka_unit_test(counts_the_drivers_folder),
      cmocka_unit_test(counts_device_files),
      cmocka_unit_test(believes_fewer_device_files),
      cmocka_unit_test(takes_the_list_in_its_order),
      cmocka_unit_test(ends_the_list_where_cuda_does),
      cmocka_unit_test(believes_the_list_where_it_sees_nothing),
      cmocka_unit_test(names_the_ith_entry),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
