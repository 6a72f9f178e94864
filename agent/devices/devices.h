#ifndef AGENT_DEVICES_H
#define AGENT_DEVICES_H

/* GPUs of this machine that its workers would see. Pure over a root folder, an environment, and what the driver's
 * library has said, where it was asked. */

#include <stdbool.h>
#include <stdint.h>
#include "agent/devices/gpus.h"
#include "common/buf.h"

enum {
  DEVICES_MAX = GPUS_MAX, /* of one machine */
  DEVICE_ID_MAX = 128,    /* an entry of CUDA_VISIBLE_DEVICES, with its NUL */
  DEVICE_PCI_MAX = 24,    /* "0000:65:00.0", with its NUL */
};

struct device {
  int index;  /* as nvidia-smi counts; -1: not known */
  bool known; /* `index` was found among what is there, so it is that of gpus->v where there are any */
  char pci[DEVICE_PCI_MAX]; /* as in /sys/bus/pci/devices; "": not known */
  char uuid[DEVICE_ID_MAX]; /* its own, or of the part that the list names; "": not known */
};

/* The devices in the order in which a worker counts them; `root` is "" or a folder that stands for /; known: what the
 * driver's library says, NULL: it was not asked. At most DEVICES_MAX; returns how many. */
int devices_list(const char *root, char *const *env, const struct gpus *known, struct device v[DEVICES_MAX]);
int devices_count(const char *root, char *const *env, const struct gpus *known);

/* What the worker with this local rank finds in CUDA_VISIBLE_DEVICES with --virtual-local-rank: the i-th entry of the
 * inherited list, without blanks, or i where there is no list. False (and ""): the list is shorter, or the entry too
 * long. */
bool devices_visible(char *const *env, uint32_t i, char id[DEVICE_ID_MAX]);

/* Whether CUDA_VISIBLE_DEVICES names any: somebody gave this job its devices. */
bool devices_are_named(char *const *env);

/* For a verdict: "2, GPU-8f2c...", as far as it is known. */
void devices_name(const struct device *d, struct buf *out);

/* CUDA_VISIBLE_DEVICES with those alone of v[0..n), as devices_list gave them for env, that are good. */
void devices_narrow(char *const *env, const struct device *v, int n, const bool *good, struct buf *out);

#endif
