/* SPDX-License-Identifier: Apache-2.0 */
/* The host, RDMA ports, and GPUs from the kernel's files. */

#include "agent/devices/gather.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "agent/devices/process_description.h"
#include "agent/devices/scan.h"
#include "common/mem.h"

static const int64_t MIB = 1 << 20;

/* The host. -------------------------------------------------------------------------------------------------------- */

static void put_space(struct fact_list *f, const char *path, const char *size, const char *left) {
  struct statvfs fs;
  if (statvfs(path, &fs) != 0) return;
  int64_t block = (int64_t)fs.f_frsize;
  /* Hosts that are alike differ by a few MiB, which firmware keeps. */
  int64_t mib = (int64_t)fs.f_blocks * block / MIB;
  if (size) facts_number(f, "", size, mib < 10240 ? mib : (mib + 512) / 1024 * 1024);
  facts_number(f, "", left, facts_coarse((int64_t)fs.f_bavail * block / MIB));
}

void gather_host(struct fact_list *f, const char *root) {
  struct utsname u;
  struct rlimit limit;
  cpu_set_t cpus;
  const char *tmp = getenv("TMPDIR");
  facts_text(f, "", "rdzv", RDZV_VERSION);
  if (uname(&u) == 0) facts_text(f, "", "kernel", u.release);
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) facts_number(f, "", "cpus", CPU_COUNT(&cpus));
  int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages > 0) facts_number(f, "", "mem_mib", (pages * page / MIB + 512) / 1024 * 1024);
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
    facts_number(f, "", "memlock_kib", limit.rlim_cur == RLIM_INFINITY ? -1 : (int64_t)(limit.rlim_cur / 1024));
  char *shm = xasprintf("%s/dev/shm", root);
  put_space(f, shm, "shm_mib", "shm_free_mib");
  put_space(f, tmp && *tmp ? tmp : "/tmp", NULL, "tmp_free_mib");
  free(shm);
}

/* RDMA ports. ------------------------------------------------------------------------------------------------------ */

struct ports {
  struct fact_list *f;
  const char *root, *device;
  int node; /* 1: each device file that the device should have is there; 0: one is missing; -1: not known */
};

/* A line without its end; "4: ACTIVE" is read behind the colon. NULL: unreadable. */
static char *first_line(const char *text, bool behind_colon) {
  if (!text) return NULL;
  const char *colon = behind_colon ? strstr(text, ": ") : NULL;
  if (colon) text = colon + 2;
  return xstrndup(text, strcspn(text, "\n"));
}

static void read_uverbs(void *ctx, const char *name) {
  struct ports *p = ctx;
  char *path = xasprintf("%s/dev/infiniband/%s", p->root, name);
  bool there = access(path, F_OK) == 0;
  p->node = there && p->node != 0;
  free(path);
}

static void read_port(void *ctx, const char *port) {
  const struct ports *p = ctx;
  char at[FACT_AT_MAX + 1], dir[256];
  long v;
  snprintf(at, sizeof at, "%s/%s", p->device, port);
  snprintf(dir, sizeof dir, "sys/class/infiniband/%s/ports/%s", p->device, port);
  char *state = first_line(scan_text("%s/%s/state", p->root, dir), true);
  char *layer = first_line(scan_text("%s/%s/link_layer", p->root, dir), false);
  if (state) facts_text(p->f, at, "port_state", state);
  if (layer) facts_text(p->f, at, "port_layer", layer);
  if (scan_number(scan_text("%s/%s/rate", p->root, dir), &v)) facts_number(p->f, at, "port_rate", v);
  if (scan_number(scan_text("%s/%s/counters/link_downed", p->root, dir), &v)) facts_number(p->f, at, "link_downed", v);
  if (p->node >= 0) facts_number(p->f, at, "device_node", p->node);
  free(state);
  free(layer);
}

static void read_rdma_device(void *ctx, const char *name) {
  struct ports p = *(const struct ports *)ctx;
  p.device = name;
  p.node = -1;
  scan_names(read_uverbs, &p, "%s/sys/class/infiniband/%s/device/infiniband_verbs", p.root, name);
  char *physical = xasprintf("%s/sys/class/infiniband/%s/device/physfn", p.root, name);
  bool of_others = access(physical, F_OK) == 0 && p.node != 1; /* a virtual function of another machine or container */
  free(physical);
  if (of_others) return;
  scan_names(read_port, &p, "%s/sys/class/infiniband/%s/ports", p.root, name);
}

void gather_ports(struct fact_list *f, const char *root) {
  scan_names(read_rdma_device, &(struct ports){.f = f, .root = root}, "%s/sys/class/infiniband", root);
}

/* GPUs. ------------------------------------------------------------------------------------------------------------ */

/* Only processes that are visible here: of others it is not known whose they are. */
static void put_use(struct fact_list *f, const char *at, const struct gpu_process *v, int n, const char *job) {
  int64_t foreign = 0;
  bool used = false;
  for (int i = 0; i < n; i++) {
    struct process_description who;
    process_description_read(&who, "/proc", (pid_t)v[i].pid);
    bool ours = job && strcmp(who.job, job) == 0;
    used |= ours;
    if (!who.gone && !ours) foreign += v[i].mib;
  }
  facts_number(f, at, "foreign_mib", facts_coarse(foreign));
  if (used) facts_number(f, at, "gpu_used", 1);
}

static void put_links(struct fact_list *f, const char *at, const struct nvml *n, nvmlDevice_t d) {
  unsigned width;
  if (n->pcie_width && n->pcie_width(d, &width) == NVML_SUCCESS) facts_number(f, at, "pcie_width", width);
  if (n->pcie_width_max && n->pcie_width_max(d, &width) == NVML_SUCCESS) facts_number(f, at, "pcie_width_max", width);
  int active = 0, known = 0;
  for (unsigned i = 0; n->nvlink && i < NVML_NVLINK_MAX_LINKS; i++) {
    int on = 0;
    if (n->nvlink(d, i, &on) != NVML_SUCCESS) continue;
    known++;
    active += on != 0;
  }
  if (known) facts_number(f, at, "nvlinks", active);
  nvmlGpuFabricInfo_v2_t fabric = {.version = NVML_FABRIC_V2};
  if (!n->fabric || n->fabric(d, &fabric) != NVML_SUCCESS) return;
  if (fabric.state == NVML_GPU_FABRIC_STATE_NOT_STARTED)
    facts_text(f, at, "fabric", "not started");
  else if (fabric.state == NVML_GPU_FABRIC_STATE_IN_PROGRESS)
    facts_text(f, at, "fabric", "in progress");
  else if (fabric.state == NVML_GPU_FABRIC_STATE_COMPLETED)
    facts_text(f, at, "fabric", fabric.status == NVML_SUCCESS ? "ready" : n->error(fabric.status));
}

static void put_memory(struct fact_list *f, const char *at, const struct nvml *n, nvmlDevice_t d, const char *job) {
  enum { ASKED = 256 };
  static nvmlProcessInfo_v2_t v[ASKED];
  struct gpu_process processes[ASKED];
  unsigned long long errors;
  unsigned corrected, uncorrected, pending, failed, count = ASKED;
  if (n->ecc_errors && n->ecc_errors(d, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, &errors) == NVML_SUCCESS)
    facts_number(f, at, "ecc_uncorrected", (int64_t)(errors & INT64_MAX));
  if (n->remapped && n->remapped(d, &corrected, &uncorrected, &pending, &failed) == NVML_SUCCESS) {
    facts_number(f, at, "remap_pending", pending != 0);
    facts_number(f, at, "remap_failed", failed != 0);
  }
  if (!n->processes_v3 || n->processes_v3(d, &count, v) != NVML_SUCCESS || count > ASKED) return;
  for (unsigned i = 0; i < count; i++)
    processes[i] = (struct gpu_process){
        .pid = v[i].pid, .mib = v[i].usedGpuMemory == NVML_NOT_AVAILABLE ? 0 : (int64_t)(v[i].usedGpuMemory >> 20)};
  put_use(f, at, processes, (int)count, job);
}

/* Returns how many GPUs the host has: those that a scheduler hides count too, since an allocation may be uneven. */
static int gather_nvidia(struct fact_list *f, const struct nvml *n, struct gather_gpus *g, const char *job) {
  char text[NVML_TEXT_MAX], at[FACT_AT_MAX + 1], pci[GPU_TEXT_MAX];
  unsigned count = 0;
  int cuda;
  if (n->driver_version && n->driver_version(text, sizeof text) == NVML_SUCCESS) facts_text(f, "", "driver", text);
  if (n->cuda_version && n->cuda_version(&cuda) == NVML_SUCCESS) {
    snprintf(text, sizeof text, "%d.%d", cuda / 1000, cuda % 1000 / 10);
    facts_text(f, "", "cuda", text);
  }
  nvmlReturn_t status = n->count(&count);
  if (count > GPUS_MAX) count = GPUS_MAX;
  if (count > g->seen) g->seen = count;
  for (unsigned i = 0; i < g->seen; i++) {
    nvmlDevice_t d = NULL;
    snprintf(at, sizeof at, "gpu%u", i);
    nvmlReturn_t rc = status;
    if (rc == NVML_SUCCESS && i < count) rc = n->handle(i, &d);
    if (rc == NVML_ERROR_NO_PERMISSION) continue; /* outside of our container: CUDA does not use it either */
    if (rc != NVML_SUCCESS || !d) {
      facts_text(f, at, "gpu_error", rc == NVML_SUCCESS ? "the driver no longer lists it" : n->error(rc));
      continue;
    }
    if (n->name(d, text, sizeof text) == NVML_SUCCESS) facts_text(f, at, "gpu_model", text);
    nvml_pci(n, d, pci);
    facts_text(f, at, "gpu_pci", pci);
    nvmlMemory_t memory;
    rc = n->memory(d, &memory);
    if (rc != NVML_SUCCESS && rc != NVML_ERROR_NOT_SUPPORTED && rc != NVML_ERROR_NO_PERMISSION)
      facts_text(f, at, "gpu_error", n->error(rc));
    nvmlFieldValue_t action = {.fieldId = NVML_FI_DEV_GET_GPU_RECOVERY_ACTION};
    if (n->field_values && n->field_values(d, 1, &action) == NVML_SUCCESS && action.nvmlReturn == NVML_SUCCESS)
      facts_number(f, at, "recovery_action", action.value.uiVal);
    put_memory(f, at, n, d, job);
    put_links(f, at, n, d);
  }
  return status == NVML_SUCCESS || g->seen ? (int)g->seen : -1;
}

/* The kernel's files of AMD's and Intel's drivers. */
static void gather_gpu_files(struct fact_list *f, const char *at, const char *root, const char *pci) {
  long v;
  const char *errors = scan_text("%s/sys/bus/pci/devices/%s/ras/umc_err_count", root, pci);
  if (errors && strncmp(errors, "ue: ", 4) == 0 && scan_number(errors + 4, &v))
    facts_number(f, at, "ecc_uncorrected", v);
  if (scan_number(scan_text("%s/sys/bus/pci/devices/%s/current_link_width", root, pci), &v))
    facts_number(f, at, "pcie_width", v);
  long slot = LONG_MAX; /* the end of the link above it; ".." is that of where the name links to */
  scan_number(scan_text("%s/sys/bus/pci/devices/%s/../max_link_width", root, pci), &slot);
  if (scan_number(scan_text("%s/sys/bus/pci/devices/%s/max_link_width", root, pci), &v))
    facts_number(f, at, "pcie_width_max", v < slot || slot <= 0 ? v : slot);
}

void gather_gpus(struct fact_list *f, const struct nvml *n, struct gather_gpus *g, const char *root, bool composite,
                 const char *job) {
  struct gpus others = {0};
  int counted = n ? gather_nvidia(f, n, g, job) : 0, first = counted < 0 ? 0 : counted;
  scan_gpus_in_use(&others, root, composite);
  for (int i = 0; i < others.n; i++) {
    const struct gpu *gpu = &others.v[i];
    char at[FACT_AT_MAX + 1];
    snprintf(at, sizeof at, "gpu%d", first + i);
    facts_text(f, at, "gpu_model", gpu->name);
    facts_text(f, at, "gpu_pci", gpu->pci);
    facts_text(f, at, "gpu_error", gpu->error);
    if (gpu->pci[0]) gather_gpu_files(f, at, root, gpu->pci);
    put_use(f, at, gpu->processes, gpu->n_processes, job);
  }
  if (counted >= 0 && !g->unknown) facts_number(f, "", "gpus", first + others.n);
  gpus_finish(&others);
}
