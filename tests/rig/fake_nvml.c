/* SPDX-License-Identifier: Apache-2.0 */
/* A library that looks like NVML to rdzv-devices, and says what a script says.
 *
 * RDZV_FAKE_NVML names the script. Who loads the library and calls nvmlInit is a call; FILE.calls has a byte for
 * each, so that what a script says can change from one process to the next: FROM is the first call (from 0) at which
 * something is there, TO the first at which it is not any more. rdzv-devices facts and watch count elsewhere, in
 * FILE.looks, and each nvmlDeviceGetCount of theirs is a call too: the script is read again. Lines:
 *
 *   device UUID PCI NAME TOTAL USED     MiB; the lines below are of this device; "-" for a name that has none
 *   process PID MIB [FROM [TO]]         computes on it, and holds so much more
 *   held MIB [FROM [TO]]                is in use, by nobody
 *   lost [FROM [TO]]                    it fell off its bus
 *   hidden                              we may not use it
 *   damaged                             it cannot be repaired
 *   numa                                its memory is a NUMA node of the system, as on GH200
 *   mig UUID                            it is cut into parts, this is one
 *   recovery N [FROM [TO]]              its recovery action
 *   ecc N [FROM [TO]]                   uncorrectable errors
 *   remap_pending                       rows of its memory wait for a reset
 *   pcie WIDTH MAX                      lanes; without this line 16 of 16
 *   nvlinks N TOTAL                     so many of its links are active
 *   fabric STATE STATUS                 as numbers
 *   mute CODE                           a question about its memory fails
 *   stuck [FROM [TO]]                   a question about its PCIe link never returns
 *   init CODE [FROM [TO]]               nvmlInit fails
 *   hang [FROM [TO]]                    nvmlInit never returns
 *   chatter BYTES                       the library writes to stdout, as none should
 *   crash                               nvmlInit ends the process by SIGSEGV
 *
 * A line "INDEX XID" that is appended to FILE.events is an event of that device. */

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "agent/devices/nvml.h"

enum { DEVICES = 256, PROCESSES = 32, MIGS = 8 };

struct fake {
  char uuid[96], pci[32], name[96];
  unsigned long long total, used, processes_mib[PROCESSES];
  unsigned pids[PROCESSES];
  char migs[MIGS][96];
  int n_processes, n_migs;
  bool lost, hidden, damaged, numa, remap_pending, stuck;
  nvmlReturn_t mute;
  unsigned recovery, pcie[2], nvlinks[2], fabric[2];
  unsigned long long ecc;
};

static struct fake devices[DEVICES], fresh[DEVICES]; /* fresh: of a script that is being read; another thread looks */
static int n_devices, n_fresh;

/* Exported by these names, as rdzv-devices looks for them. */
#define EXPORT(name) __attribute__((visibility("default"))) nvmlReturn_t name
nvmlReturn_t nvmlInit_v2(void), nvmlShutdown(void), nvmlDeviceGetCount_v2(unsigned *);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char *, unsigned), nvmlDeviceGetName(nvmlDevice_t, char *, unsigned);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t *);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t *);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t, nvmlPciInfo_t *);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned *, nvmlProcessInfo_v2_t *);
nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t, unsigned *);
nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t, unsigned *, unsigned *, unsigned *, unsigned *);
nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t, unsigned *, unsigned *);
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t, unsigned *);
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t, unsigned, nvmlDevice_t *);
nvmlReturn_t nvmlSystemGetDriverVersion(char *, unsigned), nvmlSystemGetCudaDriverVersion_v2(int *);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int, nvmlFieldValue_t *);
nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t, int, int, unsigned long long *);
nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t, unsigned *);
nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t, unsigned *);
nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t, unsigned, int *);
nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t, nvmlGpuFabricInfo_v2_t *);
nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *);
nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t, unsigned long long, nvmlEventSet_t);
nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t, nvmlEventData_t *, unsigned);
const char *nvmlErrorString(nvmlReturn_t);

/* Whether rdzv-devices was called with a word. */
static bool is_session(void) {
  char words[256];
  FILE *f = fopen("/proc/self/cmdline", "re");
  size_t n = f ? fread(words, 1, sizeof words - 1, f) : 0;
  if (f) fclose(f);
  words[n] = '\0';
  return n > strlen(words) + 1;
}

static long count_call(const char *script) {
  char path[PATH_MAX];
  struct stat st = {0};
  snprintf(path, sizeof path, "%s.%s", script, is_session() ? "looks" : "calls");
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0 || fstat(fd, &st) != 0 || write(fd, ".", 1) != 1) abort();
  close(fd);
  return (long)st.st_size;
}

static bool is_now(const char *rest, long call) {
  long from = 0, to = LONG_MAX;
  sscanf(rest, "%ld %ld", &from, &to);
  return from <= call && call < to;
}

static void read_line_of_device(struct fake *d, const char *line, long call) {
  unsigned long long mib;
  unsigned pid;
  int n = 0;
  if (sscanf(line, "process %u %llu%n", &pid, &mib, &n) == 2 && is_now(line + n, call)) {
    d->pids[d->n_processes] = pid;
    d->processes_mib[d->n_processes++] = mib;
    d->used += mib;
  } else if (sscanf(line, "held %llu%n", &mib, &n) == 1 && is_now(line + n, call)) {
    d->used += mib;
  } else if (strncmp(line, "lost", 4) == 0) {
    d->lost = is_now(line + 4, call);
  } else if (strncmp(line, "hidden", 6) == 0) {
    d->hidden = true;
  } else if (strncmp(line, "damaged", 7) == 0) {
    d->damaged = true;
  } else if (strncmp(line, "numa", 4) == 0) {
    d->numa = true;
  } else if (strncmp(line, "remap_pending", 13) == 0) {
    d->remap_pending = true;
  } else if (sscanf(line, "mute %u", &pid) == 1) {
    d->mute = (nvmlReturn_t)pid;
  } else if (strncmp(line, "stuck", 5) == 0) {
    d->stuck = is_now(line + 5, call);
  } else if (sscanf(line, "recovery %u%n", &pid, &n) == 1 && is_now(line + n, call)) {
    d->recovery = pid;
  } else if (sscanf(line, "ecc %llu%n", &mib, &n) == 1 && is_now(line + n, call)) {
    d->ecc = mib;
  } else if (sscanf(line, "pcie %u %u", &d->pcie[0], &d->pcie[1]) == 2 ||
             sscanf(line, "nvlinks %u %u", &d->nvlinks[0], &d->nvlinks[1]) == 2 ||
             sscanf(line, "fabric %u %u", &d->fabric[0], &d->fabric[1]) == 2) {
    return;
  } else if (sscanf(line, "mig %95s", d->migs[d->n_migs]) == 1) {
    d->n_migs++;
  }
}

static void chatter(int n) {
  while (n-- > 0) putchar('x');
}

/* What nvmlInit returns. */
static nvmlReturn_t read_line(const char *line, long call) {
  int code, n = 0;
  struct fake *d = &fresh[n_fresh];
  if (sscanf(line, "device %95s %31s %95s %llu %llu", d->uuid, d->pci, d->name, &d->total, &d->used) == 5) {
    d->pcie[0] = d->pcie[1] = 16;
    n_fresh++;
  } else if (sscanf(line, "init %d%n", &code, &n) == 1)
    return is_now(line + n, call) ? code : NVML_SUCCESS;
  else if (strncmp(line, "hang", 4) == 0 && is_now(line + 4, call))
    for (;;) pause();
  else if (strncmp(line, "crash", 5) == 0)
    raise(SIGSEGV);
  else if (sscanf(line, "chatter %d", &n) == 1)
    chatter(n);
  else if (n_fresh > 0)
    read_line_of_device(&fresh[n_fresh - 1], line, call);
  return NVML_SUCCESS;
}

EXPORT(nvmlInit_v2)(void) {
  char line[512];
  const char *script = getenv("RDZV_FAKE_NVML");
  FILE *f = script ? fopen(script, "re") : NULL;
  nvmlReturn_t rc = NVML_SUCCESS;
  if (!f) return NVML_ERROR_DRIVER_NOT_LOADED;
  long call = count_call(script);
  memset(fresh, 0, sizeof fresh);
  n_fresh = 0;
  while (rc == NVML_SUCCESS && fgets(line, sizeof line, f)) rc = read_line(line, call);
  fclose(f);
  memcpy(devices, fresh, sizeof devices);
  n_devices = n_fresh;
  return rc;
}

EXPORT(nvmlShutdown)(void) {
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetCount_v2)(unsigned *n) {
  if (is_session()) nvmlInit_v2();
  *n = (unsigned)n_devices;
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetHandleByIndex_v2)(unsigned i, nvmlDevice_t *d) {
  *d = &devices[i];
  return devices[i].lost ? NVML_ERROR_GPU_IS_LOST : devices[i].hidden ? NVML_ERROR_NO_PERMISSION : NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetUUID)(nvmlDevice_t d, char *out, unsigned size) {
  char *text = d;
  bool part = true; /* a part's handle is its UUID */
  for (int i = 0; i < n_devices; i++) part = part && d != &devices[i];
  snprintf(out, size, "%s", part ? text : ((struct fake *)d)->uuid);
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetName)(nvmlDevice_t d, char *out, unsigned size) {
  struct fake *f = d;
  if (f->name[0] == '-') return NVML_ERROR_NOT_SUPPORTED;
  snprintf(out, size, "%s", f->name);
  for (char *p = out; *p; p++)
    if (*p == '_') *p = ' ';
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetMemoryInfo)(nvmlDevice_t d, nvmlMemory_t *m) {
  struct fake *f = d;
  if (f->mute) return f->mute;
  *m = (nvmlMemory_t){.total = f->total << 20, .used = (f->used + 300) << 20};
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetMemoryInfo_v2)(nvmlDevice_t d, nvmlMemory_v2_t *m) {
  struct fake *f = d;
  if (f->mute) return f->mute;
  if (m->version != 0x02000028) return 25; /* the header's nvmlMemory_v2 */
  m->total = f->total << 20;
  m->used = f->used << 20;
  m->reserved = 300 << 20;
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetPciInfo_v3)(nvmlDevice_t d, nvmlPciInfo_t *pci) {
  struct fake *f = d;
  memset(pci, 0, sizeof *pci);
  snprintf(pci->busId, sizeof pci->busId, "%s", f->pci);
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetComputeRunningProcesses_v3)(nvmlDevice_t d, unsigned *n, nvmlProcessInfo_v2_t *v) {
  struct fake *f = d;
  unsigned room = *n;
  *n = (unsigned)f->n_processes;
  if (room < *n) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < *n; i++)
    v[i] = (nvmlProcessInfo_v2_t){.pid = f->pids[i], .usedGpuMemory = f->processes_mib[i] << 20};
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetNumaNodeId)(nvmlDevice_t d, unsigned *node) {
  *node = 2;
  return ((struct fake *)d)->numa ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT(nvmlDeviceGetRemappedRows)
(nvmlDevice_t d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
  struct fake *f = d;
  *corrected = *uncorrected = 0;
  *pending = f->remap_pending;
  *failed = f->damaged;
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetMigMode)(nvmlDevice_t d, unsigned *now, unsigned *pending) {
  struct fake *f = d;
  *now = *pending = f->n_migs > 0;
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetMaxMigDeviceCount)(nvmlDevice_t d, unsigned *n) {
  *n = MIGS;
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetMigDeviceHandleByIndex)(nvmlDevice_t d, unsigned i, nvmlDevice_t *part) {
  struct fake *f = d;
  if (i >= (unsigned)f->n_migs) return 6;
  *part = f->migs[i];
  return NVML_SUCCESS;
}

EXPORT(nvmlSystemGetDriverVersion)(char *out, unsigned size) {
  snprintf(out, size, "580.95.05");
  return NVML_SUCCESS;
}

EXPORT(nvmlSystemGetCudaDriverVersion_v2)(int *version) {
  *version = 13000;
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetFieldValues)(nvmlDevice_t d, int n, nvmlFieldValue_t *v) {
  struct fake *f = d;
  for (int i = 0; i < n; i++) {
    v[i].nvmlReturn = v[i].fieldId == 230 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    v[i].value.uiVal = f->recovery;
  }
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetTotalEccErrors)(nvmlDevice_t d, int type, int counter, unsigned long long *n) {
  struct fake *f = d;
  *n = type == 1 && counter == 0 ? f->ecc : 0; /* uncorrected, volatile */
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetCurrPcieLinkWidth)(nvmlDevice_t d, unsigned *width) {
  struct fake *f = d;
  while (f->stuck) pause();
  *width = f->pcie[0];
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetMaxPcieLinkWidth)(nvmlDevice_t d, unsigned *width) {
  struct fake *f = d;
  *width = f->pcie[1];
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceGetNvLinkState)(nvmlDevice_t d, unsigned link, int *on) {
  struct fake *f = d;
  *on = link < f->nvlinks[0];
  return link < f->nvlinks[1] ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT(nvmlDeviceGetGpuFabricInfoV)(nvmlDevice_t d, nvmlGpuFabricInfo_v2_t *info) {
  struct fake *f = d;
  if (info->version != 0x02000024) return 25; /* the header's nvmlGpuFabricInfo_v2 */
  info->state = (unsigned char)f->fabric[0];
  info->status = (nvmlReturn_t)f->fabric[1];
  return NVML_SUCCESS;
}

static long events_read; /* bytes of FILE.events */

static FILE *open_events(void) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s.events", getenv("RDZV_FAKE_NVML"));
  return fopen(path, "re");
}

EXPORT(nvmlEventSetCreate)(nvmlEventSet_t *set) {
  FILE *f = open_events();
  if (f && fseek(f, 0, SEEK_END) == 0) events_read = ftell(f);
  if (f) fclose(f);
  *set = &events_read;
  return NVML_SUCCESS;
}

EXPORT(nvmlDeviceRegisterEvents)(nvmlDevice_t d, unsigned long long types, nvmlEventSet_t set) {
  return types == 8 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

EXPORT(nvmlEventSetWait_v2)(nvmlEventSet_t set, nvmlEventData_t *event, unsigned ms) {
  unsigned index;
  unsigned long long xid;
  for (;; ms -= ms < 10 ? ms : 10) {
    FILE *f = open_events();
    int got = f && fseek(f, events_read, SEEK_SET) == 0 ? fscanf(f, "%u %llu\n", &index, &xid) : 0;
    if (got == 2) events_read = ftell(f);
    if (f) fclose(f);
    if (got == 2 && index < DEVICES) {
      *event = (nvmlEventData_t){.device = &devices[index], .eventType = 8, .eventData = xid};
      return NVML_SUCCESS;
    }
    if (!ms) return 10; /* NVML_ERROR_TIMEOUT */
    usleep(10000);
  }
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t code) {
  return code == NVML_ERROR_GPU_IS_LOST         ? "GPU is lost"
         : code == NVML_ERROR_DRIVER_NOT_LOADED ? "Driver Not Loaded"
         : code == 18                           ? "Driver/library version mismatch"
                                                : "Unknown Error";
}
