/* Finds NVML's functions in the library, by name.
 *
 * A table of names and pointers: what every version that matters has is required, what came later may be missing, and
 * its callers do without. Versions count: nvmlDeviceGetComputeRunningProcesses means the oldest struct to a linked
 * program, since the header renames it, so here each is named with its suffix. */

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
