/* SPDX-License-Identifier: Apache-2.0 */
/* rdzv-devices: this machine's GPUs as their drivers report them, as one JSON object on stdout: NVIDIA's by NVML, AMD's
 * and Intel's by the kernel's files (scan.c).
 *
 * The agent runs it with a deadline, because these calls have none: a GPU that fell off its bus, or a driver that is
 * loading, can hold a caller in the kernel for minutes, where not even SIGKILL reaches it. Then this process hangs,
 * not the agent. For the same reason this process reads /proc for the holder of a device. By hand: rdzv-devices |
 * python3 -m json.tool.
 *
 *   {"devices": [{"vendor": "nvidia", "uuid": "GPU-...", "pci": "0000:65:00.0", "part": 1, "parts": 2,
 *                 "name": "NVIDIA H200", "total_mib": 143771, "used_mib": 0, "mig": ["MIG-...", ...],
 *                 "error": "GPU is lost",
 *                 "processes": [{"pid": 4711, "mib": 30512, "gone": false, "user": "ada", "command": "python train.py",
 *                                "job": "1234", "round": 2}], "more": 0}]}
 *
 * by vendor, in the order of its own tool. Unknown values are omitted. `error` of a device: it does not answer, or is
 * broken. No library or driver, and no other GPU: {"missing": "why"}; the library fails as a whole: {"error": "why"};
 * both exit with 0. A device lists at most GPU_PROCESSES_MAX processes; `more` counts the rest.
 *
 * rdzv-devices facts [JOB] prints what facts.h describes, once; processes of that job are not foreign.
 * rdzv-devices watch [JOB] goes on: it looks again every LOOK_MS, at each line on stdin, and after an XID, which it
 * prints when NVML reports it. It keeps NVML open, since without persistence mode the driver of a GPU that nobody uses
 * is loaded anew for each question. It ends with its stdin, and runs at low priority. A thread waits for the events.
 *
 * RDZV_NVML_LIBRARY names another library, and RDZV_DEVICES_ROOT a folder with another /sys, for tests. The process dies
 * with its parent. */

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>
#include "agent/devices/devices.h"
#include "agent/devices/facts.h"
#include "agent/devices/gather.h"
#include "agent/devices/nvml.h"
#include "agent/devices/process_description.h"
#include "agent/devices/scan.h"
#include "common/err.h"
#include "common/exit_codes.h"
#include "common/json.h"
#include "common/mem.h"

enum {
  PROCESSES_ASKED = 256,
  LOOK_MS = 60000,
  EVENT_WAIT_MS = 600000, /* any: the wait begins again */
  EVENT_RETRY_S = 10,     /* after a failed wait */
  NICE = 10,
};
static const unsigned long long MIB = 1 << 20;

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
    nvml_pci(n, d, gpu->pci);
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

static int read_nvidia(struct gpus *g, struct err *e) {
  struct nvml n;
  unsigned count = 0;
  int rc = nvml_begin(&n, e);
  if (rc) return rc;
  nvmlReturn_t status = n.count(&count);
  for (unsigned i = 0; status == NVML_SUCCESS && i < count; i++) read_device(&n, i, g);
  if (status != NVML_SUCCESS) rc = err_set(e, -EIO, "%s", n.error(status));
  n.shutdown();
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

/* Facts. ----------------------------------------------------------------------------------------------------------- */

static struct watch {
  const char *job; /* NULL: none is given */
  struct nvml nvml;
  bool begun;
  struct gather_gpus gpus;
  nvmlEventSet_t events; /* NULL: none */
  nvmlDevice_t devices[GPUS_MAX];
  unsigned n_devices;
  int poke[2]; /* a byte: look again. -1: nobody waits for events */
} watch = {.poke = {-1, -1}};

/* One write, so that the lines of two threads do not mix. */
static bool print_line(const struct facts_line *line) {
  struct buf text = BUF_INIT;
  facts_print(line, &text);
  bool written = fwrite(text.data, 1, text.len, stdout) == text.len && fflush(stdout) == 0;
  buf_finish(&text);
  return written;
}

/* No library is not worth a word where there is no driver either. */
static void begin_nvidia(struct watch *w, struct facts_line *line) {
  struct err e = ERR_INIT;
  if (w->begun) return;
  int rc = nvml_begin(&w->nvml, &e);
  w->begun = rc == 0;
  const char *root = devices_root(environ);
  /* A container without GPUs has the first file, but not the second. */
  char *file = xasprintf("%s/dev/nvidiactl", root);
  bool driver = scan_text("%s/proc/driver/nvidia/version", root) && access(file, F_OK) == 0;
  free(file);
  w->gpus.unknown = rc && (rc != -ENOENT || driver);
  if (w->gpus.unknown) snprintf(line->missing, sizeof line->missing, "NVML: %.200s", e.text);
}

static void report_xid(struct watch *w, const nvmlEventData_t *event) {
  struct facts_line line = {.part = FACTS_PARTS};
  struct gpu_xid *x = &line.xid;
  while (x->gpu < (int)w->n_devices && w->devices[x->gpu] != event->device) x->gpu++;
  x->xid = event->eventData > 0 && event->eventData <= XID_MAX ? (int64_t)event->eventData : XID_MAX;
  if (x->gpu == (int)w->n_devices) return;
  if (w->nvml.uuid(event->device, x->uuid, NVML_TEXT_MAX) != NVML_SUCCESS) x->uuid[0] = '\0';
  nvml_pci(&w->nvml, event->device, x->pci);
  print_line(&line);
}

static void *wait_for_events(void *ctx) {
  struct watch *w = ctx;
  for (;;) {
    nvmlEventData_t event = {0};
    nvmlReturn_t rc = w->nvml.event_wait(w->events, &event, EVENT_WAIT_MS);
    if (rc == NVML_ERROR_TIMEOUT) continue;
    if (rc == NVML_SUCCESS && event.eventType == NVML_EVENT_XID) report_xid(w, &event);
    if (write(w->poke[1], "x", 1) != 1) return NULL;
    if (rc != NVML_SUCCESS) sleep(EVENT_RETRY_S); /* a GPU is lost */
  }
}

/* Where events are not supported, the looks have to do. */
static void begin_events(struct watch *w) {
  pthread_t thread;
  const struct nvml *n = &w->nvml;
  unsigned count = 0;
  if (!w->begun || w->events || !n->event_set || !n->event_register || !n->event_wait) return;
  if (n->count(&count) != NVML_SUCCESS || n->event_set(&w->events) != NVML_SUCCESS) return;
  w->n_devices = count < GPUS_MAX ? count : GPUS_MAX;
  int registered = 0;
  for (unsigned i = 0; i < w->n_devices; i++)
    if (n->handle(i, &w->devices[i]) == NVML_SUCCESS)
      registered += n->event_register(w->devices[i], NVML_EVENT_XID, w->events) == NVML_SUCCESS;
  if (!registered || pipe(w->poke) != 0) return;
  if (pthread_create(&thread, NULL, wait_for_events, w) == 0) pthread_detach(thread);
}

/* False: nobody reads the lines. */
static bool look(struct watch *w, bool watches) {
  const char *root = devices_root(environ);
  struct facts_line lines[FACTS_PARTS] = {{.part = FACTS_HOST}, {.part = FACTS_PORTS}, {.part = FACTS_GPUS}};
  bool written = true;
  for (int i = 0; i < FACTS_PARTS && written; i++) {
    struct facts_line *line = &lines[i];
    if (i == FACTS_HOST) gather_host(&line->facts, root);
    if (i == FACTS_PORTS) gather_ports(&line->facts, root);
    if (i == FACTS_GPUS) {
      begin_nvidia(w, line);
      if (watches) begin_events(w);
      gather_gpus(&line->facts, w->begun ? &w->nvml : NULL, &w->gpus, root, devices_are_composite(environ), w->job);
    }
    written = print_line(line);
    facts_finish(&line->facts);
  }
  return written;
}

static int run_watch(struct watch *w) {
  char room[256];
  setpriority(PRIO_PROCESS, 0, NICE);
  while (look(w, true)) {
    struct pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = w->poke[0], .events = POLLIN}};
    if (poll(fds, 2, LOOK_MS) <= 0) continue;
    for (int i = 0; i < 2; i++)
      if (fds[i].revents && read(fds[i].fd, room, sizeof room) <= 0) _exit(0);
  }
  _exit(1); /* the other thread may be in the driver */
}

static const char help[] =
    "usage: rdzv-devices [facts [JOB] | watch [JOB]]\n\n"
    "Prints this machine's GPUs, their memory and the processes that use them, as one JSON object.\n"
    "facts: prints facts about this machine, its RDMA ports and GPUs, as lines of JSON. Processes of JOB are not foreign.\n"
    "watch: the same, again every minute and at each line on stdin, and XIDs. It ends with stdin.\n"
    "rdzv-agent runs it. By hand: rdzv-devices | python3 -m json.tool. A driver that hangs, hangs this program.\n"
    "RDZV_NVML_LIBRARY names another libnvidia-ml.so.1, RDZV_DEVICES_ROOT a folder that stands for /.\n";

int main(int argc, char **argv) {
  const char *verb = argc > 1 ? argv[1] : "";
  bool facts = strcmp(verb, "facts") == 0, watches = strcmp(verb, "watch") == 0;
  if (argc > 1 && ((!facts && !watches) || argc > 3)) {
    bool asked = strcmp(verb, "--help") == 0 || strcmp(verb, "-h") == 0;
    if (!asked)
      fprintf(stderr, "rdzv-devices: it takes facts, watch, or nothing; rdzv-devices --help says what they are for\n");
    return asked ? fputs(help, stdout) < 0 : EXIT_CODE_USAGE;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  watch.job = argc > 2 ? argv[2] : NULL;
  if (watches) return run_watch(&watch);
  if (facts) return look(&watch, false) ? 0 : 1;
  struct buf text = BUF_INIT;
  put_answer(&text);
  buf_putc(&text, '\n');
  bool written = fwrite(text.data, 1, text.len, stdout) == text.len && fflush(stdout) == 0;
  buf_finish(&text);
  return written ? 0 : 1;
}
