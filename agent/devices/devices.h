/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_DEVICES_H
#define AGENT_DEVICES_DEVICES_H

/* GPUs of this machine that its workers would see. Pure: a root folder, an environment and the drivers' answer are
 * parameters. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/devices/gpu_usage.h"
#include "common/buf.h"

enum {
  DEVICES_MAX = GPUS_MAX, /* of one machine */
  DEVICE_ID_MAX = 128,    /* an entry of CUDA_VISIBLE_DEVICES, with its NUL */
  DEVICE_PCI_MAX = 24,    /* "0000:65:00.0", with its NUL */
};

struct device {
  enum gpu_vendor vendor;
  int index;                 /* its runtime's number without any list, as nvidia-smi has it; -1: not known */
  bool known;                /* this machine has a device with this `index` */
  int part, parts;           /* as of struct gpu */
  char pci[DEVICE_PCI_MAX];  /* as in /sys/bus/pci/devices; "": not known */
  char uuid[DEVICE_ID_MAX];  /* its own, or that of the listed MIG part; "": not known */
  char entry[DEVICE_ID_MAX]; /* what its vendor's list has to be, so that a worker sees this device alone */
};

struct devices {
  enum gpu_vendor vendor; /* of all of them */
  int n;
  bool known;       /* they are this machine's: no list had to be believed */
  bool unordered;   /* CUDA may number them otherwise */
  const char *from; /* the variable that decided; NULL: the machine */
  struct device v[DEVICES_MAX];
};

/* The devices in the order in which a worker counts them; free() them. root: "" or a folder that stands for /; known: the
 * drivers' answer; NULL: not asked. wish: GPU_VENDORS for any vendor, as CUDA, HIP and PyTorch's "gpu" and "xpu". said:
 * sentences about lists that do not make sense and about several vendors, a line each; NULL: nobody reads them. */
struct devices *devices_find(const char *root, char *const *env, const struct gpus *known, enum gpu_vendor wish,
                             struct buf *said);
/* *v: those of `workers` local ranks, of which the first has device `first`. Returns how many; -1: not known. */
int devices_of_workers(struct devices *d, uint32_t first, uint32_t workers, const struct device **v);
/* Facts about a device; NULL: none. */
const struct gpu *devices_gpu(const struct gpus *g, const struct device *d);

/* RDZV_DEVICES_ROOT, for tests, or "". */
const char *devices_root(char *const *env);
bool devices_are_composite(char *const *env); /* ZE_FLAT_DEVICE_HIERARCHY */

/* Variables that let a worker see only some devices. */
enum device_list { DEVICE_LIST_CUDA, DEVICE_LIST_HIP, DEVICE_LIST_ZE, DEVICE_LIST_SELECTOR, DEVICE_LIST_COUNT };
extern const char *const device_list_names[DEVICE_LIST_COUNT];

/* Their values so that a worker sees only these entries of a vendor's list; NULL: stays as it is in env. */
struct device_lists {
  const char *v[DEVICE_LIST_COUNT];
};
struct device_lists devices_show(enum gpu_vendor vendor, const char *entries, char *const *env);

/* Whether a variable names devices for this job. */
bool devices_are_named(char *const *env);

/* For a verdict: "2, GPU-8f2c...", as far as known. */
void devices_name(const struct device *d, struct buf *out);

/* The entries of only the good ones of d, for devices_show. */
void devices_narrow(const struct devices *d, const bool *good, struct buf *out);

#endif
