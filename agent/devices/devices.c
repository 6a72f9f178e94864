/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPUs a worker sees.
 *
 * The machine's devices come from the drivers, if they were asked (rdzv-devices): only their list is right in every
 * container. Else they come from files (scan.c). A worker sees them through its runtime's filters, which are applied here
 * as the runtimes do:
 *
 *   NVIDIA  CUDA_VISIBLE_DEVICES: numbers, up to the first that is negative, not a number, or without a GPU; or UUIDs of
 *           GPUs or of their parts, up to the first of another kind. A repeated entry: no device.
 *   AMD     ROCR_VISIBLE_DEVICES: numbers and UUIDs, which may be shortened, up to the first that names no GPU or one
 *           that was named already. Then HIP_VISIBLE_DEVICES, or CUDA_VISIBLE_DEVICES if that is empty: numbers that count
 *           what ROCR leaves, and UUIDs, up to the first that names no GPU; a repeated one counts once. HIP does
 *           not read GPU_DEVICE_ORDINAL, which is OpenCL's. For HIP an empty list is none; PyTorch then sees no GPU.
 *   Intel   ZE_AFFINITY_MASK: a set of numbers; those without a device are skipped. With
 *           ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE a number is a card, and CARD.TILE one of its tiles; else a number is a tile.
 *           Then ONEAPI_DEVICE_SELECTOR, whose numbers count what the mask leaves.
 *
 * The first vendor with a visible GPU is used: NVIDIA, AMD, Intel. A worker's PyTorch is built for one of them, which
 * cannot be seen from here. If no GPU is visible on this machine, the lists are believed, since a worker in a container may
 * see more. Slurm may set several vendors' lists; the shortest counts, which a wrapper script has narrowed.
 *
 * CUDA numbers unequal GPUs by speed unless CUDA_DEVICE_ORDER is PCI_BUS_ID, so only UUIDs say which is which.
 *
 * devices_narrow writes such a list for the workers: by UUID if all are known and the runtime has always taken UUIDs,
 * since numbers change when a GPU is lost. */

#include "agent/devices/devices.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "agent/devices/scan.h"
#include "common/mem.h"

const char *const device_list_names[DEVICE_LIST_COUNT] = {
    [DEVICE_LIST_CUDA] = "CUDA_VISIBLE_DEVICES",
    [DEVICE_LIST_HIP] = "HIP_VISIBLE_DEVICES",
    [DEVICE_LIST_ZE] = "ZE_AFFINITY_MASK",
    [DEVICE_LIST_SELECTOR] = "ONEAPI_DEVICE_SELECTOR",
};

static const char *const vendor_names[GPU_VENDORS] = {"NVIDIA", "AMD", "Intel"};

static const char *variable(char *const *env, const char *name) {
  size_t n = strlen(name);
  for (; env && *env; env++)
    if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') return *env + n + 1;
  return NULL;
}

const char *devices_root(char *const *env) {
  const char *root = variable(env, "RDZV_DEVICES_ROOT");
  return root ? root : "";
}

bool devices_are_composite(char *const *env) {
  const char *hierarchy = variable(env, "ZE_FLAT_DEVICE_HIERARCHY");
  return hierarchy && strcmp(hierarchy, "COMPOSITE") == 0;
}

/* Lists. ----------------------------------------------------------------------------------------------------------- */

/* A filter at work. */
struct filter {
  char *const *env;
  const struct gpus *gpus; /* of the machine */
  struct devices *d;       /* seen so far; none and not known: the list is believed */
  struct devices old;      /* what this list selects from */
  const char *name, *list; /* of the variable */
  struct buf *said;
};

/* Begins a list: all that was seen until now can be selected. False: the variable is not set. */
static bool begin_list(struct filter *f, const char *name) {
  f->list = variable(f->env, name);
  if (!f->list) return false;
  f->name = name;
  f->old = *f->d;
  f->d->from = name;
  f->d->n = 0;
  return true;
}

/* Until now each counts as it stands. */
static void number_entries(struct devices *d) {
  for (int i = 0; i < d->n; i++) snprintf(d->v[i].entry, sizeof(d->v[i].entry), "%d", i);
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

/* Reports an entry that ends a list or is skipped, unless it hides GPUs on purpose: "", "-1", Slurm's "NoDevFiles". */
static void complain(const struct filter *f, const char *id, bool twice, const char *effect) {
  static const char *const hiding[] = {"", "none", "void", "NoDevFiles"};
  char list[TEXT_SHOWN], shown[TEXT_SHOWN];
  for (size_t i = 0; i < sizeof(hiding) / sizeof(*hiding); i++)
    if (*id == '-' || strcasecmp(id, hiding[i]) == 0) return;
  buf_printf(f->said, "%s=%s: \"%s\" ", f->name, text_shown(list, f->list, strlen(f->list)),
             text_shown(shown, id, strlen(id)));
  if (twice)
    buf_puts(f->said, "is there twice");
  else if (f->old.from)
    buf_printf(f->said, "is none of the %d that %s leaves", f->old.n, f->old.from);
  else if (f->d->known)
    buf_printf(f->said, "is none of this machine's %d", f->old.n);
  else
    buf_puts(f->said, "is no GPU's number or UUID");
  buf_printf(f->said, "; %s\n", effect);
}

/* Selects old.v[which]; below 0: a device that is not seen here, with this number (-1: none) or UUID. */
static struct device *add_device(struct filter *f, int which, int index, const char *uuid) {
  if (f->d->n == DEVICES_MAX) return NULL;
  struct device *d = &f->d->v[f->d->n++];
  *d = which >= 0 ? f->old.v[which] : (struct device){.vendor = f->d->vendor, .index = index, .parts = 1};
  if (which < 0) snprintf(d->uuid, sizeof(d->uuid), "%s", uuid);
  return d;
}

static bool is_selected(const struct filter *f, int which, int index, const char *uuid) {
  if (which >= 0) index = f->old.v[which].index, uuid = f->old.v[which].uuid;
  for (int i = 0; i < f->d->n; i++)
    if (f->d->v[i].index == index && strcmp(f->d->v[i].uuid, uuid) == 0) return true;
  return false;
}

/* NVIDIA. ---------------------------------------------------------------------------------------------------------- */

/* The index of the GPU that an entry names; -1: not found here; -2: the list ends before it. */
static int resolve_cuda(const struct filter *f, const char *kind, const char *id) {
  if (*kind) {
    if (strncmp(id, kind, strlen(kind)) != 0) return -2;
    int at = gpus_find(f->gpus, id); /* NVIDIA's come first */
    return at < f->old.n ? at : -1;
  }
  if (!isdigit((unsigned char)id[id[0] == '+'])) return -2;
  long n = strtol(id, NULL, 10);
  if (!f->d->known) return n < DEVICES_MAX ? -1 : -2;
  return n < f->old.n ? (int)n : -2;
}

static void filter_nvidia(struct filter *f) {
  char id[DEVICE_ID_MAX];
  number_entries(f->d);
  if (!begin_list(f, "CUDA_VISIBLE_DEVICES")) return;
  const char *at = f->list;
  const char *kind = strncmp(at, "GPU-", 4) == 0 ? "GPU-" : strncmp(at, "MIG-", 4) == 0 ? "MIG-" : "";
  bool by_number = !*kind;
  f->d->unordered = f->d->unordered && by_number;
  while (next_entry(&at, id)) {
    int which = resolve_cuda(f, kind, id), number = by_number ? (int)strtol(id, NULL, 10) : -1;
    if (which == -2) return complain(f, id, false, "CUDA ignores it and what follows");
    for (int i = 0; i < f->d->n; i++)
      if (by_number ? f->d->v[i].index == number : strcmp(f->d->v[i].entry, id) == 0) {
        f->d->n = 0;
        return complain(f, id, true, "CUDA then shows no GPU");
      }
    if (f->d->unordered && by_number) which = -1;
    struct device *d = add_device(f, which, number, by_number ? "" : id);
    if (!d) return;
    if (strcmp(kind, "MIG-") == 0) snprintf(d->uuid, sizeof(d->uuid), "%s", id);
    snprintf(d->entry, sizeof(d->entry), "%s", id);
  }
}

/* AMD. ------------------------------------------------------------------------------------------------------------- */

static bool begins_with(const char *text, const char *start) {
  return strncasecmp(text, start, strlen(start)) == 0;
}

/* ROCR's: what an entry names of old.v, -1: it is believed; -2: the list ends. */
static int resolve_rocr(const struct filter *f, const char *id, int *number) {
  char *end;
  int found = -2;
  *number = -1;
  if (!begins_with(id, "G")) {
    long n = *id ? strtol(id, &end, 0) : -1;
    if (n < 0 || *end || n >= (f->d->known ? f->old.n : DEVICES_MAX)) return -2;
    *number = (int)n;
    return f->d->known ? (int)n : -1;
  }
  size_t len = strlen(id);
  if (len < sizeof("GPU-") || len > sizeof("GPU-") - 1 + 16) return -2;
  if (!f->d->known) return -1;
  for (int i = 0; i < f->old.n; i++) {
    if (!f->old.v[i].uuid[0] || !begins_with(f->old.v[i].uuid, id)) continue;
    if (found >= 0) return -2; /* of two GPUs */
    found = i;
  }
  return found;
}

/* HIP's: a number is written as HIP would print it, so without blanks. */
static int resolve_hip(const struct filter *f, const char *id, int *number) {
  bool counted = f->d->known || f->old.from;
  char *end, again[16];
  *number = -1;
  if (strstr(id, "GPU-")) {
    if (!f->d->known) return -1;
    for (int i = 0; i < f->old.n; i++)
      if (strstr(f->old.v[i].uuid, id)) return i;
    return -2;
  }
  long n = strtol(id, &end, 10);
  if (n < 0 || n >= (counted ? f->old.n : DEVICES_MAX)) return -2;
  snprintf(again, sizeof(again), "%ld", n);
  if (strcmp(id, again) != 0) return -2;
  *number = (int)n;
  return counted ? (int)n : -1;
}

static void filter_amd(struct filter *f) {
  char id[DEVICE_ID_MAX];
  int which, number;
  if (begin_list(f, "ROCR_VISIBLE_DEVICES")) {
    const char *at = *f->list ? f->list : NULL;
    while (next_entry(&at, id)) {
      which = resolve_rocr(f, id, &number);
      bool twice = which != -2 && is_selected(f, which, number, number < 0 ? id : "");
      if (which == -2 || twice) {
        complain(f, id, twice, "ROCm ignores it and what follows");
        break;
      }
      add_device(f, which, number, number < 0 ? id : "");
    }
  }
  number_entries(f->d);
  const char *hip = variable(f->env, "HIP_VISIBLE_DEVICES"), *cuda = variable(f->env, "CUDA_VISIBLE_DEVICES");
  if (!f->d->known && !f->d->from && !hip) return; /* CUDA's own */
  if (!begin_list(f, (hip && *hip) || !cuda ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES")) return;
  for (const char *at = f->list; at && *at;) {
    size_t n = strcspn(at, ",");
    snprintf(id, sizeof(id), "%.*s", (int)n, at);
    at = at[n] ? at + n + 1 : NULL;
    which = resolve_hip(f, id, &number);
    if (which == -2) {
      complain(f, id + strspn(id, " "), false, "HIP ignores it and what follows");
      return;
    }
    if (is_selected(f, which, number, number < 0 ? id : "")) continue;
    struct device *d = add_device(f, which, number, number < 0 ? id : "");
    if (d && which < 0) snprintf(d->entry, sizeof(d->entry), "%s", id);
  }
}

/* Intel. ----------------------------------------------------------------------------------------------------------- */

/* A set, so the devices stay in Level Zero's order. Tiles that a mask takes from one card are one device. */
static void filter_mask(struct filter *f, bool composite) {
  char id[DEVICE_ID_MAX], *end;
  uint32_t tiles[DEVICES_MAX] = {0}; /* of each that the mask names */
  int named = 0;
  for (const char *at = f->list; next_entry(&at, id);) {
    long n = isdigit((unsigned char)*id) ? strtol(id, &end, 10) : -1, tile = -1;
    bool dotted = n >= 0 && *end == '.' && isdigit((unsigned char)end[1]) && composite;
    if (dotted) tile = strtol(end + 1, &end, 10);
    bool whole = n >= 0 && !*end && n < (f->d->known ? f->old.n : DEVICES_MAX);
    if (!whole || tile >= (f->d->known ? f->old.v[n].parts : 32)) {
      complain(f, id, false, "Level Zero skips it");
      continue;
    }
    tiles[n] |= tile < 0 ? UINT32_MAX : UINT32_C(1) << tile;
    if (n >= named) named = (int)n + 1;
  }
  for (int i = 0; i < named; i++) {
    struct device *d = tiles[i] ? add_device(f, f->d->known ? i : -1, i, "") : NULL;
    if (!d) continue;
    snprintf(d->entry, sizeof(d->entry), "%d", i);
    if (tiles[i] == UINT32_MAX) continue;
    size_t at = 0;
    for (int k = 0; k < 32 && at + 16 < sizeof(d->entry); k++)
      if (tiles[i] >> k & 1)
        at += (size_t)snprintf(d->entry + at, sizeof(d->entry) - at, "%s%d.%d", at ? "," : "", i, k);
  }
}

/* Whether a term of the selector has device i; -1: it cannot be read. */
static int term_has(const char *devices, size_t len, int i) {
  char text[DEVICE_ID_MAX], id[DEVICE_ID_MAX], *end;
  int has = 0;
  snprintf(text, sizeof(text), "%.*s", (int)len, devices);
  for (const char *at = text; next_entry(&at, id);) {
    long n = strtol(id, &end, 10);
    if (strcmp(id, "*") == 0 || strcmp(id, "gpu") == 0)
      has = 1;
    else if (isdigit((unsigned char)*id) && !*end)
      has |= n == i;
    else if (strcmp(id, "cpu") != 0 && strcmp(id, "fpga") != 0)
      return -1;
  }
  return has;
}

/* BACKEND:DEVICES;...;!BACKEND:DEVICES. */
static void filter_selector(struct filter *f) {
  for (int i = 0; i < f->old.n; i++) {
    bool has = false, any = false, out = false;
    for (const char *term = f->list; term && *term;) {
      size_t n = strcspn(term, ";"), k = strcspn(term, ":");
      bool discards = *term == '!';
      const char *backend = term + discards;
      bool ours = strncmp(backend, "level_zero:", 11) == 0 || strncmp(backend, "*:", 2) == 0;
      int found = k < n && ours ? term_has(term + k + 1, n - k - 1, i) : k < n ? 0 : -1;
      if (found < 0) {
        char shown[TEXT_SHOWN];
        buf_printf(f->said, "%s: the part \"%s\" is not understood here, so it hides no GPU\n", f->name,
                   text_shown(shown, term, n));
        f->d->n = f->old.n;
        memcpy(f->d->v, f->old.v, sizeof(f->old.v));
        return;
      }
      any |= !discards;
      has |= !discards && found;
      out |= discards && found;
      term = term[n] ? term + n + 1 : NULL;
    }
    if ((has || !any) && !out) add_device(f, i, -1, "");
  }
}

static void filter_intel(struct filter *f) {
  bool composite = devices_are_composite(f->env);
  const char *mask = variable(f->env, "ZE_AFFINITY_MASK"), *selector = variable(f->env, "ONEAPI_DEVICE_SELECTOR");
  number_entries(f->d);
  if (mask && *mask && strcmp(mask, "default") != 0 && begin_list(f, "ZE_AFFINITY_MASK")) filter_mask(f, composite);
  if (selector && *selector && f->d->n && begin_list(f, "ONEAPI_DEVICE_SELECTOR")) filter_selector(f);
}

/* All. ------------------------------------------------------------------------------------------------------------- */

/* A vendor's GPUs on this machine, before its lists. */
static void take_vendor(struct devices *d, enum gpu_vendor vendor, const struct gpus *g, char *const *env) {
  const char *order = variable(env, "CUDA_DEVICE_ORDER"), *name = NULL;
  d->vendor = vendor;
  d->n = 0;
  d->unordered = false;
  d->from = NULL;
  for (int i = 0; i < g->n && d->n < DEVICES_MAX; i++) {
    const struct gpu *gpu = &g->v[i];
    if (gpu->vendor != vendor) continue;
    struct device *one = &d->v[d->n];
    *one = (struct device){.vendor = vendor, .index = d->n++, .known = true, .part = gpu->part, .parts = gpu->parts};
    snprintf(one->uuid, sizeof(one->uuid), "%.*s", DEVICE_ID_MAX - 1, gpu->uuid);
    snprintf(one->pci, sizeof(one->pci), "%.*s", DEVICE_PCI_MAX - 1, gpu->pci);
    if (name && gpu->name[0] && strcmp(name, gpu->name) != 0)
      d->unordered = vendor == GPU_NVIDIA && !(order && strcmp(order, "PCI_BUS_ID") == 0);
    if (gpu->name[0]) name = gpu->name;
  }
  d->known = d->n > 0;
}

static void say_others(const struct devices *d, const int counts[GPU_VENDORS], struct buf *said) {
  static const char *const remedies[GPU_VENDORS] = {
      NULL, "CUDA_VISIBLE_DEVICES= with HIP_VISIBLE_DEVICES=0,1,... selects AMD's", "--nproc xpu selects Intel's"};
  const char *comma = "";
  int n = 0;
  for (int i = 0; i < GPU_VENDORS; i++) n += counts[i] > 0;
  if (n < 2 || !said) return;
  buf_puts(said, "this host has GPUs of several vendors (");
  for (int i = 0; i < GPU_VENDORS; i++)
    if (counts[i]) buf_printf(said, "%s%s %d", comma, vendor_names[i], counts[i]), comma = ", ";
  buf_printf(said, "): workers use %s's", vendor_names[d->vendor]);
  for (int i = d->vendor + 1; i < GPU_VENDORS; i++)
    if (counts[i]) buf_printf(said, "; %s", remedies[i]);
  buf_putc(said, '\n');
}

struct devices *devices_find(const char *root, char *const *env, const struct gpus *known, enum gpu_vendor wish,
                             struct buf *said) {
  /* Of these large structs only what is used is written, so that an agent without GPUs keeps no pages for them. */
  static void (*const filters[GPU_VENDORS])(struct filter * f) = {filter_nvidia, filter_amd, filter_intel};
  struct gpus own = {0};
  struct devices *best = xcalloc(1, sizeof(*best)), *d = xcalloc(1, sizeof(*d));
  struct filter *f = xcalloc(1, sizeof(*f));
  int counts[GPU_VENDORS] = {0};
  if (!known) scan_gpus(&own, root, devices_are_composite(env));
  if (!known) known = &own;
  bool machine = known->n > 0;
  f->env = env;
  f->gpus = known;
  best->vendor = wish == GPU_VENDORS ? GPU_NVIDIA : wish;
  for (int i = 0; i < GPU_VENDORS; i++) {
    if (wish != GPU_VENDORS && (int)wish != i) continue;
    struct buf own_said = BUF_INIT;
    take_vendor(d, (enum gpu_vendor)i, known, env);
    if (machine && !d->known) continue;
    f->d = d;
    f->said = &own_said;
    filters[i](f);
    counts[i] = machine ? d->n : 0;
    bool better = d->n && (!best->n || (!machine && d->n < best->n));
    if (said && (better || (!d->n && !best->n))) buf_puts(said, buf_text(&own_said));
    if (better || (!best->n && !best->from && d->from)) {
      struct devices *other = best;
      best = d;
      d = other;
    }
    buf_finish(&own_said);
  }
  if (said && best->unordered && best->n)
    buf_puts(said, "this host's GPUs differ, and CUDA numbers them by speed: CUDA_DEVICE_ORDER=PCI_BUS_ID makes their "
                   "numbers known\n");
  say_others(best, counts, said);
  free(f);
  free(d);
  gpus_finish(&own);
  return best;
}

int devices_of_workers(struct devices *d, uint32_t first, uint32_t workers, const struct device **v) {
  uint32_t all = (uint32_t)d->n, from = first < all ? first : all;
  for (int i = 0; d->unordered && i < d->n; i++) {
    d->v[i].known = false;
    d->v[i].uuid[0] = d->v[i].pci[0] = '\0';
  }
  *v = &d->v[from];
  if (!all && !d->from) return -1;
  return (int)(all - from < workers ? all - from : workers);
}

const struct gpu *devices_gpu(const struct gpus *g, const struct device *d) {
  int at = d->uuid[0] ? gpus_find(g, d->uuid) : -1, number = 0;
  for (int i = 0; i < g->n && !d->uuid[0] && at < 0; i++) {
    if (g->v[i].vendor != d->vendor) continue;
    bool same = d->pci[0] && g->v[i].pci[0] ? strcmp(d->pci, g->v[i].pci) == 0 && d->part == g->v[i].part
                                            : d->known && number == d->index;
    if (same) at = i;
    number++;
  }
  return at < 0 ? NULL : &g->v[at];
}

bool devices_are_named(char *const *env) {
  static const char *const names[] = {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
                                      "ZE_AFFINITY_MASK"};
  for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
    const char *list = variable(env, names[i]);
    if (list && (isdigit((unsigned char)*list) || strncmp(list, "GPU-", 4) == 0 || strncmp(list, "MIG-", 4) == 0))
      return true;
  }
  return false;
}

void devices_name(const struct device *d, struct buf *out) {
  const char *address = d->vendor == GPU_INTEL ? d->pci : d->uuid;
  if (d->index >= 0) buf_printf(out, "%d", d->index);
  if (d->index >= 0 && *address) buf_puts(out, ", ");
  buf_puts(out, address);
  if (d->vendor == GPU_INTEL && d->part) buf_printf(out, " tile %d", d->part);
}

void devices_narrow(const struct devices *d, const bool *good, struct buf *out) {
  bool by_uuid = d->vendor == GPU_NVIDIA;
  for (int i = 0; i < d->n; i++) by_uuid = by_uuid && (!good[i] || d->v[i].uuid[0]);
  for (int i = 0; i < d->n; i++) {
    if (!good[i]) continue;
    if (out->len) buf_putc(out, ',');
    buf_puts(out, by_uuid ? d->v[i].uuid : d->v[i].entry);
  }
}

/* HIP's list has precedence over CUDA's, and some programs refuse two that differ. A selector's numbers count what the mask
 * leaves, so it goes. */
struct device_lists devices_show(enum gpu_vendor vendor, const char *entries, char *const *env) {
  const char *selector = variable(env, device_list_names[DEVICE_LIST_SELECTOR]);
  struct device_lists l = {{NULL}};
  if (vendor != GPU_INTEL) l.v[DEVICE_LIST_CUDA] = entries;
  if (vendor == GPU_AMD) l.v[DEVICE_LIST_HIP] = entries;
  if (vendor == GPU_INTEL) l.v[DEVICE_LIST_ZE] = entries;
  if (vendor == GPU_INTEL && selector && selector[strcspn(selector, "0123456789")])
    l.v[DEVICE_LIST_SELECTOR] = "level_zero:gpu";
  return l;
}
