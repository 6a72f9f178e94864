/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-devices: this machine's GPUs as NVIDIA's driver reports them, as one JSON object on stdout.
 *
 * The agent runs it with a deadline, because these calls have none: a GPU that fell off its bus, or a driver that is
 * loading, can hold a caller in the kernel for minutes, where not even SIGKILL reaches it. Then this process hangs,
 * not the agent. For the same reason this process reads /proc for the holder of a device. By hand: rdzv-devices |
 * python3 -m json.tool.
 *
 *   {"devices": [{"uuid": "GPU-...", "pci": "00000000:65:00.0", "name": "NVIDIA H200", "total_mib": 143771,
 *                 "used_mib": 0, "mig": ["MIG-...", ...], "error": "GPU is lost",
 *                 "processes": [{"pid": 4711, "mib": 30512, "gone": false, "user": "ada", "command": "python train.py",
 *                                "job": "1234", "round": 2}], "more": 0}]}
 *
 * in the order of nvidia-smi. Unknown values are omitted. `error` of a device: it does not answer, or is broken. No
 * library or driver: {"missing": "why"}; the library fails as a whole: {"error": "why"}; both exit with 0. A device
 * lists at most GPU_PROCESSES_MAX processes; `more` counts the rest.
 *
 * RDZV_NVML_LIBRARY names another library, for tests. The process dies with its parent. */

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include "agent/devices/gpu_usage.h"
#include "agent/devices/process_description.h"
#include "agent/devices/nvml.h"
#include "common/err.h"
#include "common/exit_codes.h"
#include "common/json.h"

enum { PROCESSES_ASKED = 256 };
static const unsigned long long MIB = 1 << 20;

static void set_text(json_t *o, const char *key, const char *text) {
  if (text && text[0]) json_object_set_new(o, key, json_string(text)); /* text that is not UTF-8 is omitted */
}

static void set_number(json_t *o, const char *key, unsigned long long v) {
  json_object_set_new(o, key, json_integer((json_int_t)v));
}

/* The library. ----------------------------------------------------------------------------------------------------- */

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

/* Processes. ------------------------------------------------------------------------------------------------------- */

static void put_processes(const struct nvml *n, nvmlDevice_t d, json_t *device) {
  static nvmlProcessInfo_v2_t v[PROCESSES_ASKED];
  unsigned count = PROCESSES_ASKED;
  nvmlReturn_t rc = n->processes_v3 ? n->processes_v3(d, &count, v) : NVML_ERROR_NOT_SUPPORTED;
  /* INSUFFICIENT_SIZE: there are more than can be shown. */
  if (rc != NVML_SUCCESS && rc != NVML_ERROR_INSUFFICIENT_SIZE) count = 0;
  if (count > PROCESSES_ASKED) count = PROCESSES_ASKED;
  json_t *list = json_array();
  for (unsigned i = 0; i < count && i < GPU_PROCESSES_MAX; i++) {
    struct process_description who;
    json_t *o = json_object();
    process_description_read(&who, "/proc", (pid_t)v[i].pid);
    set_number(o, "pid", v[i].pid);
    if (v[i].usedGpuMemory != NVML_NOT_AVAILABLE) set_number(o, "mib", v[i].usedGpuMemory / MIB);
    if (who.gone) json_object_set_new(o, "gone", json_true());
    set_text(o, "user", who.user);
    set_text(o, "command", who.command);
    set_text(o, "job", who.job);
    if (who.round > 0) set_number(o, "round", (unsigned long long)who.round);
    json_array_append_new(list, o);
  }
  json_object_set_new(device, "processes", list);
  if (count > GPU_PROCESSES_MAX) set_number(device, "more", count - GPU_PROCESSES_MAX);
}

/* Devices. --------------------------------------------------------------------------------------------------------- */

static nvmlReturn_t put_memory(const struct nvml *n, nvmlDevice_t d, json_t *device) {
  nvmlMemory_v2_t v2 = {.version = NVML_MEMORY_V2};
  nvmlMemory_t v1 = {0};
  nvmlReturn_t rc = n->memory_v2 ? n->memory_v2(d, &v2) : NVML_ERROR_NOT_SUPPORTED;
  if (rc != NVML_SUCCESS) {
    rc = n->memory(d, &v1);
    v2.total = v1.total;
    v2.used = v1.used;
  }
  if (rc != NVML_SUCCESS) return rc == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : rc;
  set_number(device, "total_mib", v2.total / MIB);
  set_number(device, "used_mib", v2.used / MIB);
  return NVML_SUCCESS;
}

static void put_migs(const struct nvml *n, nvmlDevice_t d, json_t *device) {
  unsigned now = 0, pending = 0, max = 0;
  if (!n->mig_mode || !n->mig_max || !n->mig || n->mig_mode(d, &now, &pending) != NVML_SUCCESS || !now) return;
  json_t *list = json_array();
  json_object_set_new(device, "mig", list);
  if (n->mig_max(d, &max) != NVML_SUCCESS) return;
  for (unsigned i = 0; i < max && i < GPU_MIGS_MAX; i++) {
    nvmlDevice_t part;
    char uuid[NVML_TEXT_MAX] = "";
    if (n->mig(d, i, &part) != NVML_SUCCESS || n->uuid(part, uuid, sizeof uuid) != NVML_SUCCESS) continue;
    json_array_append_new(list, json_string(uuid));
  }
}

/* NULL: a device outside of our container or cgroup, which CUDA does not use either. */
static json_t *describe_device(const struct nvml *n, unsigned i) {
  nvmlDevice_t d = NULL;
  char text[NVML_TEXT_MAX] = "";
  nvmlReturn_t rc = n->handle(i, &d);
  if (rc == NVML_ERROR_NO_PERMISSION) return NULL;
  json_t *o = json_object();
  if (rc == NVML_SUCCESS) {
    if (n->uuid(d, text, sizeof text) == NVML_SUCCESS) set_text(o, "uuid", text);
    if (n->name(d, text, sizeof text) == NVML_SUCCESS) set_text(o, "name", text);
    nvmlPciInfo_t pci = {.busId = ""};
    if (n->pci && n->pci(d, &pci) == NVML_SUCCESS) {
      pci.busId[sizeof pci.busId - 1] = '\0';
      set_text(o, "pci", pci.busId);
    }
    rc = put_memory(n, d, o);
  }
  if (rc != NVML_SUCCESS) {
    set_text(o, "error", n->error(rc));
    return o;
  }
  unsigned corrected, uncorrected, pending = 0, failed = 0;
  if (n->remapped && n->remapped(d, &corrected, &uncorrected, &pending, &failed) == NVML_SUCCESS && failed)
    set_text(o, "error", "its memory is damaged and can no longer be repaired (row remapping failed)");
  put_migs(n, d, o);
  put_processes(n, d, o);
  return o;
}

static json_t *answer(void) {
  struct nvml n;
  struct err e = ERR_INIT;
  const char *other = getenv("RDZV_NVML_LIBRARY");
  json_t *o = json_object();
  int rc = open_library(&n, other && *other ? other : "libnvidia-ml.so.1", &e);
  if (rc) {
    set_text(o, rc == -ENOENT ? "missing" : "error", e.text);
    return o;
  }
  unsigned count = 0;
  nvmlReturn_t status = n.init();
  bool begun = status == NVML_SUCCESS;
  if (begun) status = n.count(&count);
  if (status == NVML_SUCCESS) {
    json_t *list = json_array();
    json_object_set_new(o, "devices", list);
    for (unsigned i = 0; i < count && i < GPUS_MAX; i++) {
      json_t *device = describe_device(&n, i);
      if (device) json_array_append_new(list, device);
    }
  } else {
    set_text(o, status == NVML_ERROR_DRIVER_NOT_LOADED ? "missing" : "error", n.error(status));
  }
  if (begun) n.shutdown();
  return o;
}

static const char help[] =
    "usage: rdzv-devices\n\n"
    "Prints this machine's NVIDIA GPUs, their memory and the processes that use them, as one JSON object.\n"
    "rdzv-agent runs it. By hand: rdzv-devices | python3 -m json.tool. A driver that hangs, hangs this program.\n"
    "RDZV_NVML_LIBRARY names another libnvidia-ml.so.1.\n";

int main(int argc, char **argv) {
  if (argc > 1) {
    bool asked = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
    if (!asked) fprintf(stderr, "rdzv-devices: it takes no arguments; rdzv-devices --help says what it is for\n");
    return asked ? fputs(help, stdout) < 0 : EXIT_CODE_USAGE;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  json_t *o = answer();
  struct buf text = BUF_INIT;
  json_print(&text, o);
  buf_putc(&text, '\n');
  bool written = fwrite(text.data, 1, text.len, stdout) == text.len && fflush(stdout) == 0;
  buf_finish(&text);
  json_decref(o);
  return written ? 0 : 1;
}
