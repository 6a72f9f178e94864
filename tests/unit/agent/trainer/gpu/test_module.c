/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-cuda.so as the trainer opens it: the installed libraries have all its symbols (RTLD_NOW), it belongs to this
 * tree, and it reports what is missing. Needs cuBLASLt and NCCL, but no driver and no device; with a device it is
 * opened and closed. */

#include "agent/trainer/gpu/gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "tests/rig/unit.h"

static const struct gpu_module *module;

static int open_module(void **state) {
  void *so = dlopen(getenv("RDZV_CUDA_MODULE"), RTLD_NOW | RTLD_LOCAL);
  if (!so) {
    print_error("%s\n", dlerror());
    return -1;
  }
  module = dlsym(so, "rdzv_gpu");
  return module ? 0 : -1;
}

UNIT_TEST(test_is_of_this_tree) {
  assert_int_equal(module->abi, GPU_ABI);
  assert_non_null(module->compute_create);
  assert_non_null(module->unique_id);
}

UNIT_TEST(test_says_what_is_missing) {
  struct gpu_config cfg = {.precision = COMPUTE_BF16};
  struct compute *c = NULL;
  struct err e = ERR_INIT;
  int rc = module->compute_create(&cfg, &c, &e);
  if (rc == 0) {
    assert_non_null(strstr(c->device, "sm_"));
    compute_destroy(c);
    return;
  }
  assert_null(c);
  assert_int_equal(rc, e.code);
  assert_true(rc == -ENODEV || rc == -ENOTSUP);
  assert_true(strstr(e.text, "driver") || strstr(e.text, "device"));
}

UNIT_TEST(test_nccl_answers_without_a_device) {
  assert_true(module->nccl_version() >= 20000);
}

int main(void) {
  return unit_run(open_module, NULL);
}
