/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/devices/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Finds NVML's functions by name. Functions that every relevant version has are required; later ones are optional. Each
 * is named with its version suffix, because without it a linked program gets the oldest struct: the header renames
 * functions. -ENOENT: there is no such library; -ENOSYS: it lacks a function. It stays loaded. */
static int open_library(struct nvml *n, const char *name, struct err *e) {
#define REQUIRED(field, symbol, arguments) {symbol, offsetof(struct nvml, field), false},
#define OPTIONAL(field, symbol, arguments) {symbol, offsetof(struct nvml, field), true},
  static const struct {
    const char *name;
    size_t offset;
    bool optional;
  } symbols[] = {NVML_LIST(REQUIRED, OPTIONAL){"nvmlErrorString", offsetof(struct nvml, error), false}};
#undef REQUIRED
#undef OPTIONAL
  memset(n, 0, sizeof *n);
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    return err_set(e, -ENOENT, "%s", why ? why : "the library cannot be loaded");
  }
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    void *found = dlsym(library, symbols[i].name);
    if (!found && !symbols[i].optional)
      return err_set(e, -ENOSYS, "%s has no function %s: is it NVML?", name, symbols[i].name);
    memcpy((char *)n + symbols[i].offset, &found, sizeof found);
  }
  return 0;
}

void nvml_pci(const struct nvml *n, nvmlDevice_t d, char out[GPU_TEXT_MAX]) {
  nvmlPciInfo_t pci = {.busId = ""};
  if (!n->pci || n->pci(d, &pci) != NVML_SUCCESS) pci.busId[0] = '\0';
  snprintf(out, GPU_TEXT_MAX, "%.*s", (int)sizeof pci.busId - 1, pci.busId);
  gpu_pci_as_kernel(out);
}

int nvml_begin(struct nvml *n, struct err *e) {
  const char *other = getenv("RDZV_NVML_LIBRARY");
  int rc = open_library(n, other && *other ? other : "libnvidia-ml.so.1", e);
  if (rc) return rc;
  nvmlReturn_t status = n->init();
  if (status == NVML_SUCCESS) return 0;
  return err_set(e, status == NVML_ERROR_DRIVER_NOT_LOADED ? -ENOENT : -EIO, "%s", n->error(status));
}
