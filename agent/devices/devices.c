/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs there are, and where.
 *
 * A worker sees the machine's devices through a filter. The devices come from the driver's library, if it was asked
 * (rdzv-devices): only its list is right in every container. Else the driver's folder /proc/driver/nvidia/gpus has one
 * entry per GPU, named by PCI address, and CUDA counts equal GPUs in that order. In a container the folder may show
 * the host's GPUs although only some have a device file, so fewer device files count (none means nothing: the driver
 * makes them when first used). Without the folder the device files count, and PCI's list shows the vendor's display
 * controllers.
 *
 * The filter is CUDA_VISIBLE_DEVICES, read as CUDA and PyTorch read it. Either numbers, up to the first that is
 * negative, not a number, or without a GPU; or UUIDs of GPUs or of their parts, up to the first of another kind. A
 * repeated entry: no device. If no GPU is visible from here, the list is taken as it is, since a worker in a container
 * may see more.
 *
 * AMD's GPUs have two filters. ROCR_VISIBLE_DEVICES hides GPUs from the driver's library, and the numbers in
 * HIP_VISIBLE_DEVICES (or CUDA_VISIBLE_DEVICES) count those that are left. /sys/class/kfd lists the GPUs of the machine,
 * and hides the properties of those that a cgroup denies. Only their number is of interest here.
 *
 * devices_narrow writes such a list for the workers: by UUID if all are known, since numbers change when a GPU is
 * lost. */

#include "agent/devices/devices.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/mem.h"

enum { PATH_TEXT_MAX = 4096 };

struct there {
  struct device v[DEVICES_MAX];
  int n;
  const struct gpus *driver; /* the driver's answer that gave the list; NULL: from files */
};

static int by_pci(const void *a, const void *b) {
  return strcmp(((const struct device *)a)->pci, ((const struct device *)b)->pci);
}

/* The value of the first line of ROOT/DIR/NAME/FILE that begins with `key`; false: none. */
static bool read_field(const char *dir, const char *name, const char *file, const char *key, char *out, size_t size) {
  char path[PATH_TEXT_MAX], line[256];
  if (snprintf(path, sizeof(path), "%s/%s/%s", dir, name, file) >= (int)sizeof(path)) return false;
  FILE *f = fopen(path, "re");
  bool found = false;
  while (f && !found && fgets(line, sizeof(line), f)) {
    size_t n = strlen(key);
    if (strncmp(line, key, n) != 0) continue;
    const char *value = line + n + strspn(line + n, " \t");
    snprintf(out, size, "%.*s", (int)strcspn(value, " \t\n"), value);
    found = true;
  }
  if (f) fclose(f);
  return found;
}

static struct device *add_device(struct there *g, const char *pci) {
  if (g->n == DEVICES_MAX || strlen(pci) >= DEVICE_PCI_MAX) return NULL;
  struct device *gpu = &g->v[g->n++];
  *gpu = (struct device){.uuid = ""};
  for (size_t i = 0; pci[i]; i++) gpu->pci[i] = (char)tolower((unsigned char)pci[i]);
  return gpu;
}

static void read_driver(struct there *g, const char *root) {
  char dir[PATH_TEXT_MAX];
  snprintf(dir, sizeof(dir), "%s/proc/driver/nvidia/gpus", root);
  DIR *d = opendir(dir);
  for (struct dirent *e; d && (e = readdir(d));) {
    struct device *gpu = e->d_name[0] == '.' ? NULL : add_device(g, e->d_name);
    if (gpu) read_field(dir, e->d_name, "information", "GPU UUID:", gpu->uuid, sizeof(gpu->uuid));
  }
  if (d) closedir(d);
  qsort(g->v, (size_t)g->n, sizeof(*g->v), by_pci);
}

static void read_pci(struct there *g, const char *root) {
  char dir[PATH_TEXT_MAX];
  snprintf(dir, sizeof(dir), "%s/sys/bus/pci/devices", root);
  DIR *d = opendir(dir);
  for (struct dirent *e; d && (e = readdir(d));) {
    char vendor[16], class[16];
    if (e->d_name[0] != '.' && read_field(dir, e->d_name, "vendor", "0x", vendor, sizeof(vendor)) &&
        strcmp(vendor, "10de") == 0 && read_field(dir, e->d_name, "class", "0x", class, sizeof(class)) &&
        strncmp(class, "03", 2) == 0) /* NVIDIA's display controllers */
      add_device(g, e->d_name);
  }
  if (d) closedir(d);
  qsort(g->v, (size_t)g->n, sizeof(*g->v), by_pci);
}

static int count_files(const char *root) {
  static const char prefix[] = "nvidia";
  char dir[PATH_TEXT_MAX];
  int n = 0;
  snprintf(dir, sizeof(dir), "%s/dev", root);
  DIR *d = opendir(dir);
  for (struct dirent *e; d && (e = readdir(d));) {
    const char *number = e->d_name + strlen(prefix);
    if (strncmp(e->d_name, prefix, strlen(prefix)) == 0 && *number && !number[strspn(number, "0123456789")]) n++;
  }
  if (d) closedir(d);
  return n < DEVICES_MAX ? n : DEVICES_MAX;
}

/* Finds the devices in CUDA's order. Addresses are omitted if only the number is certain. */
static void find_devices(struct there *g, const char *root, const struct gpus *known) {
  int files = count_files(root);
  if (known) {
    g->driver = known;
    for (; g->n < known->n && g->n < DEVICES_MAX; g->n++) {
      struct device *d = &g->v[g->n];
      snprintf(d->uuid, sizeof(d->uuid), "%.*s", DEVICE_ID_MAX - 1, known->v[g->n].uuid);
      snprintf(d->pci, sizeof(d->pci), "%.*s", DEVICE_PCI_MAX - 1, known->v[g->n].pci);
    }
    return;
  }
  read_driver(g, root);
  bool driver = g->n > 0;
  if (!driver && files) read_pci(g, root);
  if (!files || files == g->n || (driver && files > g->n)) return;
  memset(g->v, 0, sizeof(g->v));
  g->n = files;
}

/* The list's entries. ---------------------------------------------------------------------------------------------- */

static const char *variable(char *const *env, const char *name) {
  size_t n = strlen(name);
  for (; env && *env; env++)
    if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') return *env + n + 1;
  return NULL;
}

static const char *list_of(char *const *env) {
  return variable(env, "CUDA_VISIBLE_DEVICES");
}

/* Reads the entry at *at, without blanks; false: there is none, or it is too long. */
static bool next_entry(const char **at, char id[DEVICE_ID_MAX]) {
  id[0] = '\0';
  if (!*at) return false;
  size_t n = strcspn(*at, ",");
  const char *p = *at;
  *at = p[n] ? p + n + 1 : NULL;
  while (n && isspace((unsigned char)*p)) p++, n--;
  while (n && isspace((unsigned char)p[n - 1])) n--;
  if (n >= DEVICE_ID_MAX) return false;
  memcpy(id, p, n);
  id[n] = '\0';
  return true;
}

bool devices_visible(char *const *env, uint32_t i, char id[DEVICE_ID_MAX]) {
  const char *at = list_of(env);
  if (!at) return snprintf(id, DEVICE_ID_MAX, "%u", i) > 0;
  while (next_entry(&at, id))
    if (i-- == 0) return true;
  id[0] = '\0';
  return false;
}

/* The index of the GPU that an entry names; -1: not found here; -2: the list ends before it. */
static int resolve(const struct there *g, const char *kind, const char *id) {
  if (*kind) {
    if (strncmp(id, kind, strlen(kind)) != 0) return -2;
    if (g->driver) return gpus_find(g->driver, id);
    for (int i = 0; i < g->n; i++) /* CUDA accepts a prefix too */
      if (g->v[i].uuid[0] && strncmp(g->v[i].uuid, id, strlen(id)) == 0) return i;
    return -1;
  }
  if (!isdigit((unsigned char)id[id[0] == '+'])) return -2;
  long n = strtol(id, NULL, 10);
  if (g->n == 0) return n < DEVICES_MAX ? -1 : -2;
  return n < g->n ? (int)n : -2;
}

static bool is_repeated(const char *list, const char *kind, int count, const char *id) {
  char other[DEVICE_ID_MAX];
  for (int i = 0; i < count && next_entry(&list, other); i++)
    if (*kind ? strcmp(other, id) == 0 : strtol(other, NULL, 10) == strtol(id, NULL, 10)) return true;
  return false;
}

/* The device that an entry names. */
static void describe_entry(struct device *d, const struct there *g, const char *kind, const char *id, int which) {
  *d = which >= 0 ? g->v[which] : (struct device){.uuid = ""};
  d->index = which >= 0 ? which : *kind ? -1 : (int)strtol(id, NULL, 10);
  d->known = which >= 0;
  if (*kind && (which < 0 || strcmp(kind, "MIG-") == 0)) snprintf(d->uuid, sizeof(d->uuid), "%s", id);
}

static int filter_devices(const struct there *g, const char *list, struct device v[DEVICES_MAX]) {
  const char *at = list;
  const char *kind = strncmp(list, "GPU-", 4) == 0 ? "GPU-" : strncmp(list, "MIG-", 4) == 0 ? "MIG-" : "";
  char id[DEVICE_ID_MAX];
  int n = 0;
  while (n < DEVICES_MAX && next_entry(&at, id)) {
    int which = resolve(g, kind, id);
    if (which == -2) break;
    if (is_repeated(list, kind, n, id)) return 0;
    describe_entry(&v[n++], g, kind, id, which);
  }
  return n;
}

int devices_list(const char *root, char *const *env, const struct gpus *known, struct device v[DEVICES_MAX]) {
  const char *list = list_of(env);
  struct there *g = xcalloc(1, sizeof(*g));
  find_devices(g, root, known);
  int n = list ? filter_devices(g, list, v) : g->n;
  for (int i = 0; !list && i < n; i++) describe_entry(&v[i], g, "", "", i);
  free(g);
  return n;
}

int devices_count(const char *root, char *const *env, const struct gpus *known) {
  struct device *v = xcalloc(DEVICES_MAX, sizeof(*v));
  int n = devices_list(root, env, known, v);
  free(v);
  return n;
}

/* A CPU is a node without "simd". */
static int count_kfd(const char *root) {
  char dir[PATH_TEXT_MAX], simd[16];
  int n = 0;
  snprintf(dir, sizeof(dir), "%s/sys/class/kfd/kfd/topology/nodes", root);
  DIR *d = opendir(dir);
  for (struct dirent *e; d && (e = readdir(d));)
    if (e->d_name[0] != '.' && read_field(dir, e->d_name, "properties", "simd_count", simd, sizeof(simd)))
      n += strcmp(simd, "0") != 0;
  if (d) closedir(d);
  return n < DEVICES_MAX ? n : DEVICES_MAX;
}

int devices_count_amd(const char *root, char *const *env, const char **from) {
  const char *rocr = variable(env, "ROCR_VISIBLE_DEVICES"), *hip = variable(env, "HIP_VISIBLE_DEVICES");
  const char *list = hip ? hip : list_of(env);
  struct there *g = xcalloc(1, sizeof(*g));
  struct device *v = xcalloc(DEVICES_MAX, sizeof(*v));
  int n = g->n = count_kfd(root);
  bool amd = n || rocr || hip;
  *from = hip ? "HIP_VISIBLE_DEVICES" : rocr ? "ROCR_VISIBLE_DEVICES" : NULL;
  if (rocr) n = g->n = filter_devices(g, rocr, v);
  memset(g->v, 0, sizeof(g->v)); /* numbers count what is left */
  if (amd && list && (n || !rocr)) n = filter_devices(g, list, v);
  free(v);
  free(g);
  return amd ? n : 0;
}

bool devices_are_named(char *const *env) {
  const char *list = list_of(env);
  return list && (isdigit((unsigned char)*list) || strncmp(list, "GPU-", 4) == 0 || strncmp(list, "MIG-", 4) == 0);
}

void devices_name(const struct device *d, struct buf *out) {
  if (d->index >= 0) buf_printf(out, "%d", d->index);
  if (d->index >= 0 && d->uuid[0]) buf_puts(out, ", ");
  buf_puts(out, d->uuid);
}

void devices_narrow(char *const *env, const struct device *v, int n, const bool *good, struct buf *out) {
  bool by_uuid = true;
  for (int i = 0; i < n; i++) by_uuid = by_uuid && (!good[i] || v[i].uuid[0]);
  for (int i = 0; i < n; i++) {
    char id[DEVICE_ID_MAX];
    if (!good[i]) continue;
    if (out->len) buf_putc(out, ',');
    devices_visible(env, (uint32_t)i, id);
    buf_puts(out, by_uuid ? v[i].uuid : id);
  }
}
