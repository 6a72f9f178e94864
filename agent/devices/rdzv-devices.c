/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-devices: this machine's GPUs as their drivers report them, as one JSON object on stdout: NVIDIA's by NVML, AMD's
 * and Intel's by the kernel's files (scan.c).
 *
 * The agent runs it with a deadline, because these calls have none: a GPU that fell off its bus, or a driver that is
 * loading, can hold a caller in the kernel for minutes, where not even SIGKILL reaches it. Then this process hangs,
 * not the agent. For the same reason this process reads /proc for the holder of a device. By hand: rdzv-devices |
 * python3 -m json.tool.
 *
 *   {"devices": [{"vendor": "nvidia", "uuid": "GPU-...", "pci": "00000000:65:00.0", "part": 1, "parts": 2,
 *                 "name": "NVIDIA H200", "total_mib": 143771, "used_mib": 0, "mig": ["MIG-...", ...],
 *                 "error": "GPU is lost",
 *                 "processes": [{"pid": 4711, "mib": 30512, "gone": false, "user": "ada", "command": "python train.py",
 *                                "job": "1234", "round": 2}], "more": 0}]}
 *
 * by vendor, in the order of its own tool. Unknown values are omitted. `error` of a device: it does not answer, or is
 * broken. No library or driver, and no other GPU: {"missing": "why"}; the library fails as a whole: {"error": "why"};
 * both exit with 0. A device lists at most GPU_PROCESSES_MAX processes; `more` counts the rest.
 *
 * RDZV_NVML_LIBRARY names another library, and RDZV_DEVICES_ROOT a folder with another /sys, for tests. The process dies
 * with its parent. */

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "agent/devices/devices.h"
#include "agent/devices/nvml.h"
#include "agent/devices/process_description.h"
#include "agent/devices/scan.h"
#include "common/err.h"
#include "common/exit_codes.h"
#include "common/json.h"

enum { PROCESSES_ASKED = 256 };
static const unsigned long long MIB = 1 << 20;

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

/* Devices. --------------------------------------------------------------------------------------------------------- */

static void read_processes(const struct nvml *n, nvmlDevice_t d, struct gpu *gpu) {
  static nvmlProcessInfo_v2_t v[PROCESSES_ASKED];
  unsigned count = PROCESSES_ASKED;
  nvmlReturn_t rc = n->processes_v3 ? n->processes_v3(d, &count, v) : NVML_ERROR_NOT_SUPPORTED;
  /* INSUFFICIENT_SIZE: there are more than can be shown. */
  if (rc != NVML_SUCCESS && rc != NVML_ERROR_INSUFFICIENT_SIZE) count = 0;
  if (count > PROCESSES_ASKED) count = PROCESSES_ASKED;
  for (unsigned i = 0; i < count && i < GPU_PROCESSES_MAX; i++) {
    bool known = v[i].usedGpuMemory != NVML_NOT_AVAILABLE;
    gpu->processes[gpu->n_processes++] =
        (struct gpu_process){.pid = v[i].pid, .mib = known ? (int64_t)(v[i].usedGpuMemory / MIB) : 0};
  }
  gpu->more = count - (unsigned)gpu->n_processes;
}

static nvmlReturn_t read_memory(const struct nvml *n, nvmlDevice_t d, struct gpu *gpu) {
  nvmlMemory_v2_t v2 = {.version = NVML_MEMORY_V2};
  nvmlMemory_t v1 = {0};
  nvmlReturn_t rc = n->memory_v2 ? n->memory_v2(d, &v2) : NVML_ERROR_NOT_SUPPORTED;
  if (rc != NVML_SUCCESS) {
    rc = n->memory(d, &v1);
    v2.total = v1.total;
    v2.used = v1.used;
  }
  if (rc != NVML_SUCCESS) return rc == NVML_ERROR_NOT_SUPPORTED ? NVML_SUCCESS : rc;
  gpu->total_mib = (int64_t)(v2.total / MIB);
  gpu->used_mib = (int64_t)(v2.used / MIB);
  return NVML_SUCCESS;
}

static void read_migs(const struct nvml *n, nvmlDevice_t d, struct gpu *gpu) {
  unsigned now = 0, pending = 0, max = 0;
  if (!n->mig_mode || !n->mig_max || !n->mig || n->mig_mode(d, &now, &pending) != NVML_SUCCESS || !now) return;
  gpu->mig = true;
  if (n->mig_max(d, &max) != NVML_SUCCESS) return;
  for (unsigned i = 0; i < max && gpu->n_migs < GPU_MIGS_MAX; i++) {
    nvmlDevice_t part;
    if (n->mig(d, i, &part) == NVML_SUCCESS && n->uuid(part, gpu->migs[gpu->n_migs], NVML_TEXT_MAX) == NVML_SUCCESS)
      gpu->n_migs++;
  }
}

static void read_device(const struct nvml *n, unsigned i, struct gpus *g) {
  nvmlDevice_t d = NULL;
  nvmlReturn_t rc = n->handle(i, &d);
  if (rc == NVML_ERROR_NO_PERMISSION) return; /* outside of our container or cgroup: CUDA does not use it either */
  struct gpu *gpu = gpus_add(g);
  if (!gpu) return;
  if (rc == NVML_SUCCESS) {
    if (n->uuid(d, gpu->uuid, NVML_TEXT_MAX) != NVML_SUCCESS) gpu->uuid[0] = '\0';
    if (n->name(d, gpu->name, NVML_TEXT_MAX) != NVML_SUCCESS) gpu->name[0] = '\0';
    nvmlPciInfo_t pci = {.busId = ""};
    if (n->pci && n->pci(d, &pci) == NVML_SUCCESS)
      snprintf(gpu->pci, sizeof gpu->pci, "%.*s", (int)sizeof pci.busId - 1, pci.busId);
    rc = read_memory(n, d, gpu);
  }
  if (rc != NVML_SUCCESS) {
    snprintf(gpu->error, sizeof gpu->error, "%s", n->error(rc));
    return;
  }
  unsigned corrected, uncorrected, pending = 0, failed = 0;
  if (n->remapped && n->remapped(d, &corrected, &uncorrected, &pending, &failed) == NVML_SUCCESS && failed)
    snprintf(gpu->error, sizeof gpu->error,
             "its memory is damaged and can no longer be repaired (row remapping failed)");
  read_migs(n, d, gpu);
  read_processes(n, d, gpu);
  /* Where the device's memory is a NUMA node of the system (GH200, GB200), "used" includes the system's own pages, such
   * as cached files, and they stay. With CDMM it is no such node. */
  unsigned node;
  if (n->numa_node && n->numa_node(d, &node) == NVML_SUCCESS) {
    gpu->used_mib = 0;
    for (int k = 0; k < gpu->n_processes; k++) gpu->used_mib += gpu->processes[k].mib;
  }
}

/* -ENOENT: there is no library or driver; -EIO: it fails. */
static int read_nvidia(struct gpus *g, struct err *e) {
  struct nvml n;
  const char *other = getenv("RDZV_NVML_LIBRARY");
  int rc = open_library(&n, other && *other ? other : "libnvidia-ml.so.1", e);
  if (rc) return rc;
  unsigned count = 0;
  nvmlReturn_t status = n.init();
  bool begun = status == NVML_SUCCESS;
  if (begun) status = n.count(&count);
  for (unsigned i = 0; status == NVML_SUCCESS && i < count; i++) read_device(&n, i, g);
  if (status != NVML_SUCCESS)
    rc = err_set(e, status == NVML_ERROR_DRIVER_NOT_LOADED ? -ENOENT : -EIO, "%s", n.error(status));
  if (begun) n.shutdown();
  return rc;
}

static void put_answer(struct buf *out) {
  struct gpus g = {0};
  struct err e = ERR_INIT;
  int rc = read_nvidia(&g, &e);
  scan_gpus_in_use(&g, devices_root(environ), devices_are_composite(environ));
  for (int i = 0; i < g.n; i++)
    for (int k = 0; k < g.v[i].n_processes; k++) {
      struct gpu_process *p = &g.v[i].processes[k];
      struct process_description who;
      process_description_read(&who, "/proc", (pid_t)p->pid);
      p->gone = who.gone;
      p->round = who.round;
      memcpy(p->user, who.user, sizeof p->user);
      memcpy(p->command, who.command, sizeof p->command);
      memcpy(p->job, who.job, sizeof p->job);
    }
  if (rc == 0 || (rc == -ENOENT && g.n)) {
    gpus_print(&g, out);
  } else {
    json_t *o = json_object();
    json_object_set_new(o, rc == -ENOENT ? "missing" : "error", json_string(e.text));
    json_print(out, o);
    json_decref(o);
  }
  gpus_finish(&g);
}

static const char help[] =
    "usage: rdzv-devices\n\n"
    "Prints this machine's GPUs, their memory and the processes that use them, as one JSON object.\n"
    "rdzv-agent runs it. By hand: rdzv-devices | python3 -m json.tool. A driver that hangs, hangs this program.\n"
    "RDZV_NVML_LIBRARY names another libnvidia-ml.so.1, RDZV_DEVICES_ROOT a folder that stands for /.\n";

int main(int argc, char **argv) {
  if (argc > 1) {
    bool asked = strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0;
    if (!asked) fprintf(stderr, "rdzv-devices: it takes no arguments; rdzv-devices --help says what it is for\n");
    return asked ? fputs(help, stdout) < 0 : EXIT_CODE_USAGE;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  struct buf text = BUF_INIT;
  put_answer(&text);
  buf_putc(&text, '\n');
  bool written = fwrite(text.data, 1, text.len, stdout) == text.len && fflush(stdout) == 0;
  buf_finish(&text);
  return written ? 0 : 1;
}
