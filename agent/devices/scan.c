/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs there are, by vendor.
 *
 * NVIDIA: /proc/driver/nvidia/gpus has one entry per GPU, named by PCI address, and CUDA counts equal GPUs in that
 * order. In a container the folder may show the host's GPUs although only some have a device file, so fewer device files
 * count (none means nothing: the driver makes them when first used). Without the folder the device files count, and
 * PCI's list shows the vendor's display controllers. rdzv-devices asks NVML instead.
 *
 * AMD: /sys/class/kfd/kfd/topology/nodes/N/properties, in the order of N, as ROCm counts them. A node without "simd" is a
 * CPU. A node whose properties a cgroup hides, or whose /dev/dri/renderD* is not in this container, does not exist for
 * ROCm either. location_id is the PCI address. Its function, or its highest bits, number the partitions of a GPU that is
 * cut into parts. kfd/proc/PID/vram_GPUID is a process's memory.
 *
 * Intel: each display controller of PCI with a render node, in the order of PCI, as Level Zero counts them. 0000:00:02.0
 * is always the processor's own display: PyTorch uses that only if it was built for Intel and finds no other GPU, so
 * it is not counted here. A GPU of several tiles has folders tile0, tile1 (xe) or gt/gt0, gt/gt1 (i915); each tile
 * is a device unless ZE_FLAT_DEVICE_HIERARCHY is COMPOSITE. The kernel has no sum of the memory in use, so it is added up
 * from /proc/PID/fdinfo, as far as we may read it: for processes of this user.
 *
 * Each ROCm or Level Zero process opens every GPU that it sees, and keeps a little memory on it. So a process with less
 * than SCAN_HELD_MIB on a GPU does not hold that GPU. */

#include "agent/devices/scan.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/mem.h"

enum {
  SCAN_HELD_MIB = 64,
  FILE_MAX = 65536,
  KFD_NODES_MAX = 1024,
  TILES_MAX = 16,
  NVIDIA = 0x10de,
  INTEL = 0x8086,
};

__attribute__((format(printf, 1, 2))) static bool is_there(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  char *path = xvasprintf(fmt, ap);
  va_end(ap);
  bool there = access(path, F_OK) == 0;
  free(path);
  return there;
}

/* errno says why it is NULL. */
const char *scan_text(const char *fmt, ...) {
  static char text[FILE_MAX];
  va_list ap;
  va_start(ap, fmt);
  char *path = xvasprintf(fmt, ap);
  va_end(ap);
  FILE *f = fopen(path, "re");
  int why = errno;
  size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
  bool failed = f && ferror(f);
  if (failed) why = errno;
  text[n] = '\0';
  if (f) fclose(f);
  free(path);
  errno = why;
  return f && !failed ? text : NULL;
}

bool scan_number(const char *text, long *v) {
  char *end = NULL;
  if (text) *v = strtol(text, &end, 0);
  return text && end != text;
}

/* What follows `key` at the start of one of the text's lines; NULL: there is no such line. */
static const char *field(const char *text, const char *key) {
  size_t n = strlen(key);
  for (const char *line = text; line && *line; line = strchr(line, '\n')) {
    line += *line == '\n';
    if (strncmp(line, key, n) == 0) return line + n + strspn(line + n, " \t");
  }
  return NULL;
}

void scan_names(void (*fn)(void *ctx, const char *name), void *ctx, const char *fmt, ...) {
  struct dirent **v = NULL;
  va_list ap;
  va_start(ap, fmt);
  char *path = xvasprintf(fmt, ap);
  va_end(ap);
  int n = scandir(path, &v, NULL, alphasort);
  for (int i = 0; i < n; i++) {
    if (v[i]->d_name[0] != '.') fn(ctx, v[i]->d_name);
    free(v[i]);
  }
  free(v);
  free(path);
}

struct scan {
  struct gpus *g;
  const char *root;
  bool composite, in_use;
  /* Of a step: */
  long vendor;
  int number;
  char card[32];
  long pid;
  int first; /* in g, of this vendor */
  struct client {
    long id;
    int gpu;
  } * clients; /* of DRM, which were counted */
  size_t n_clients;
};

static struct gpu *add_gpu(struct scan *s, enum gpu_vendor vendor, const char *pci) {
  struct gpu *gpu = gpus_add(s->g);
  if (!gpu) return NULL;
  gpu->vendor = vendor;
  snprintf(gpu->pci, sizeof(gpu->pci), "%s", pci);
  for (char *p = gpu->pci; *p; p++) *p = (char)tolower((unsigned char)*p);
  return gpu;
}

static void add_process(struct gpu *gpu, long pid, int64_t mib) {
  if (mib < SCAN_HELD_MIB) return;
  if (gpu->n_processes == GPU_PROCESSES_MAX)
    gpu->more++;
  else
    gpu->processes[gpu->n_processes++] = (struct gpu_process){.pid = pid, .mib = mib};
}

/* NVIDIA. ---------------------------------------------------------------------------------------------------------- */

static void read_nvidia(void *ctx, const char *pci) {
  const struct scan *s = ctx;
  struct gpu *gpu = add_gpu(ctx, GPU_NVIDIA, pci);
  const char *text = gpu ? scan_text("%s/proc/driver/nvidia/gpus/%s/information", s->root, pci) : NULL;
  const char *uuid = field(text, "GPU UUID:"), *name = field(text, "Model:");
  if (uuid) snprintf(gpu->uuid, sizeof(gpu->uuid), "%.*s", (int)strcspn(uuid, " \t\n"), uuid);
  if (name) snprintf(gpu->name, sizeof(gpu->name), "%.*s", (int)strcspn(name, "\n"), name);
}

/* Whether it is a display controller of s->vendor. */
static bool is_display(const struct scan *s, const char *pci) {
  long vendor = 0, class = 0;
  return scan_number(scan_text("%s/sys/bus/pci/devices/%s/vendor", s->root, pci), &vendor) && vendor == s->vendor &&
         scan_number(scan_text("%s/sys/bus/pci/devices/%s/class", s->root, pci), &class) && class >> 16 == 3;
}

static void read_nvidia_pci(void *ctx, const char *pci) {
  if (is_display(ctx, pci)) add_gpu(ctx, GPU_NVIDIA, pci);
}

static void count_file(void *ctx, const char *name) {
  struct scan *s = ctx;
  static const char prefix[] = "nvidia";
  const char *number = name + strlen(prefix);
  s->number += strncmp(name, prefix, strlen(prefix)) == 0 && *number && !number[strspn(number, "0123456789")];
}

/* Addresses are omitted if only the number is certain. */
static void scan_nvidia(struct scan *s) {
  scan_names(count_file, s, "%s/dev", s->root);
  scan_names(read_nvidia, s, "%s/proc/driver/nvidia/gpus", s->root);
  bool driver = s->g->n > 0;
  s->vendor = NVIDIA;
  if (!driver && s->number) scan_names(read_nvidia_pci, s, "%s/sys/bus/pci/devices", s->root);
  if (!s->number || s->number == s->g->n || (driver && s->number > s->g->n)) return;
  gpus_finish(s->g);
  for (int i = 0; i < s->number; i++) gpus_add(s->g);
}

/* AMD. ------------------------------------------------------------------------------------------------------------- */

static void read_kfd_process(void *ctx, const char *name) {
  const struct scan *s = ctx;
  long bytes, pid = strtol(name, NULL, 10);
  if (!scan_number(scan_text("%s/sys/class/kfd/kfd/proc/%ld/vram_%d", s->root, pid, s->number), &bytes)) return;
  add_process(&s->g->v[s->g->n - 1], pid, bytes >> 20);
}

static void read_amd_memory(struct scan *s, struct gpu *gpu, long node) {
  static const struct {
    const char *file;
    size_t at;
  } files[] = {{"mem_info_vram_total", offsetof(struct gpu, total_mib)},
               {"mem_info_vram_used", offsetof(struct gpu, used_mib)}};
  long v;
  for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
    const char *text = scan_text("%s/sys/bus/pci/devices/%s/%s", s->root, gpu->pci, files[i].file);
    if (scan_number(text, &v))
      *(int64_t *)(void *)((char *)gpu + files[i].at) = v >> 20;
    else if (!text && errno != ENOENT) /* it fell off its bus, or is being reset */
      snprintf(gpu->error, sizeof(gpu->error), "%s cannot be read: %s", files[i].file, strerror(errno));
  }
  if (!scan_number(scan_text("%s/sys/class/kfd/kfd/topology/nodes/%ld/gpu_id", s->root, node), &v)) return;
  s->number = (int)v;
  scan_names(read_kfd_process, s, "%s/sys/class/kfd/kfd/proc", s->root);
}

static void read_kfd_node(struct scan *s, long node) {
  const char *text = scan_text("%s/sys/class/kfd/kfd/topology/nodes/%ld/properties", s->root, node);
  long simd = 0, minor = 0, location = 0, domain = 0, version = 0;
  if (!scan_number(field(text, "simd_count "), &simd) || simd == 0) return;
  scan_number(field(text, "drm_render_minor "), &minor);
  scan_number(field(text, "location_id "), &location);
  scan_number(field(text, "domain "), &domain);
  scan_number(field(text, "gfx_target_version "), &version);
  const char *unique = field(text, "unique_id ");
  unsigned long long id = unique ? strtoull(unique, NULL, 10) : 0;
  if (minor && !is_there("%s/dev/dri/renderD%ld", s->root, minor)) return;
  char pci[32];
  snprintf(pci, sizeof(pci), "%04lx:%02lx:%02lx.%ld", domain, location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
  if (!is_there("%s/sys/bus/pci/devices/%s", s->root, pci)) pci[strlen(pci) - 1] = '0';
  struct gpu *gpu = add_gpu(s, GPU_AMD, location ? pci : "");
  if (!gpu) return;
  if (id) snprintf(gpu->uuid, sizeof(gpu->uuid), "GPU-%016llx", id);
  for (struct gpu *other = &s->g->v[s->first]; location && other < gpu; other++) {
    if (strcmp(other->pci, pci) != 0) continue;
    gpu->part = other->part + 1;
    gpu->mig = other->mig = true;
  }
  const char *name = scan_text("%s/sys/bus/pci/devices/%s/product_name", s->root, pci);
  if (name && name[strcspn(name, "\n")] && *name != '\n')
    snprintf(gpu->name, sizeof(gpu->name), "%.*s", (int)strcspn(name, "\n"), name);
  else
    snprintf(gpu->name, sizeof(gpu->name), "AMD gfx%ld%ld%lx", version / 10000, version / 100 % 100, version % 100);
  if (s->in_use) read_amd_memory(s, gpu, node);
}

static void scan_amd(struct scan *s) {
  s->first = s->g->n;
  for (long node = 0; node < KFD_NODES_MAX; node++) {
    if (!is_there("%s/sys/class/kfd/kfd/topology/nodes/%ld", s->root, node)) return;
    read_kfd_node(s, node);
  }
}

/* Intel. ----------------------------------------------------------------------------------------------------------- */

static void read_drm_name(void *ctx, const char *name) {
  struct scan *s = ctx;
  if (strncmp(name, "card", 4) == 0) snprintf(s->card, sizeof(s->card), "%s", name);
  if (strncmp(name, "renderD", 7) == 0) s->number = is_there("%s/dev/dri/%s", s->root, name);
}

static void read_intel(void *ctx, const char *pci) {
  struct scan *s = ctx;
  if (!is_display(s, pci) || strcmp(pci, "0000:00:02.0") == 0) return;
  s->number = 0;
  s->card[0] = '\0';
  scan_names(read_drm_name, s, "%s/sys/bus/pci/devices/%s/drm", s->root, pci);
  if (!s->number) return;
  int tiles = 1;
  while (tiles < TILES_MAX && (is_there("%s/sys/bus/pci/devices/%s/tile%d", s->root, pci, tiles) ||
                               is_there("%s/sys/bus/pci/devices/%s/drm/%s/gt/gt%d", s->root, pci, s->card, tiles)))
    tiles++;
  long id = 0;
  scan_number(scan_text("%s/sys/bus/pci/devices/%s/device", s->root, pci), &id);
  for (int i = 0; i < (s->composite ? 1 : tiles); i++) {
    struct gpu *gpu = add_gpu(s, GPU_INTEL, pci);
    if (!gpu) return;
    gpu->part = i;
    gpu->parts = s->composite ? tiles : 1;
    snprintf(gpu->name, sizeof(gpu->name), "Intel %04lx", id);
  }
}

/* The memory of a region in a client's text, in bytes; 0: it has none. */
static int64_t region_bytes(const char *text, int tile) {
  static const char *const regions[] = {"drm-resident-vram", "drm-resident-local"};
  char key[64], *unit;
  for (size_t i = 0; i < sizeof(regions) / sizeof(*regions); i++) {
    snprintf(key, sizeof(key), "%s%d:", regions[i], tile);
    const char *value = field(text, key);
    if (!value) continue;
    int64_t n = strtoll(value, &unit, 10);
    unit += strspn(unit, " ");
    int shift = *unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0;
    return n < 0 || n > (INT64_C(1) << 50) >> shift ? 0 : n << shift; /* more is not memory */
  }
  return 0;
}

/* A forked process has its parent's files, and the same client on them, which counts once. */
static void read_fdinfo(void *ctx, const char *name) {
  struct scan *s = ctx;
  const char *text = scan_text("%s/proc/%ld/fdinfo/%s", s->root, s->pid, name), *pci = field(text, "drm-pdev:");
  long id;
  if (!pci || !scan_number(field(text, "drm-client-id:"), &id)) return;
  for (int i = s->first; i < s->g->n; i++) {
    struct gpu *gpu = &s->g->v[i];
    size_t n = strlen(gpu->pci), k = 0;
    if (strncmp(pci, gpu->pci, n) != 0 || !isspace((unsigned char)pci[n])) continue;
    while (k < s->n_clients && (s->clients[k].id != id || s->clients[k].gpu != i)) k++;
    if (k < s->n_clients) continue;
    s->clients = xrealloc(s->clients, (s->n_clients + 1) * sizeof(*s->clients));
    s->clients[s->n_clients++] = (struct client){id, i};
    int64_t bytes = 0;
    for (int part = gpu->part; part < gpu->part + gpu->parts; part++) bytes += region_bytes(text, part);
    gpu->used_mib += bytes >> 20;
    add_process(gpu, s->pid, bytes >> 20);
  }
}

static void read_proc(void *ctx, const char *name) {
  struct scan *s = ctx;
  if (!isdigit((unsigned char)*name)) return;
  s->pid = strtol(name, NULL, 10);
  scan_names(read_fdinfo, s, "%s/proc/%ld/fdinfo", s->root, s->pid);
}

static void count_intel_node(void *ctx, const char *name) {
  struct scan *s = ctx;
  long vendor = INTEL;
  if (strncmp(name, "renderD", 7) != 0) return;
  scan_number(scan_text("%s/sys/class/drm/%s/device/vendor", s->root, name), &vendor);
  s->number += vendor == INTEL;
}

/* PCI's list is long on a server, and read only where a render node may be Intel's. */
static void scan_intel(struct scan *s) {
  s->first = s->g->n;
  s->vendor = INTEL;
  s->number = 0;
  scan_names(count_intel_node, s, "%s/dev/dri", s->root);
  if (!s->number) return;
  scan_names(read_intel, s, "%s/sys/bus/pci/devices", s->root);
  if (s->in_use && s->g->n > s->first) scan_names(read_proc, s, "%s/proc", s->root);
  free(s->clients);
}

void scan_gpus(struct gpus *g, const char *root, bool composite) {
  struct scan s = {.g = g, .root = root, .composite = composite};
  scan_nvidia(&s);
  scan_amd(&s);
  scan_intel(&s);
}

void scan_gpus_in_use(struct gpus *g, const char *root, bool composite) {
  struct scan s = {.g = g, .root = root, .composite = composite, .in_use = true};
  scan_amd(&s);
  scan_intel(&s);
}
