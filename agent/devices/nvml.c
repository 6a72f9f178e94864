/* SPDX-License-Identifier: Apache-2.0 */
/* Finds NVML's functions in the library by name.
 *
 * Functions that every relevant version has are required; later ones are optional. Each is named with its version
 * suffix, because without it a linked program gets the oldest struct: the header renames functions. */

#include "agent/devices/nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct symbol {
  const char *name;
  size_t offset;
  bool optional;
};

#define REQUIRED(field, symbol, arguments) {symbol, offsetof(struct nvml, field), false},
#define OPTIONAL(field, symbol, arguments) {symbol, offsetof(struct nvml, field), true},
static const struct symbol symbols[] = {
    NVML_LIST(REQUIRED, OPTIONAL){"nvmlErrorString", offsetof(struct nvml, error), false}};
#undef REQUIRED
#undef OPTIONAL

int nvml_open(struct nvml *n, const char *name, struct err *e) {
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
