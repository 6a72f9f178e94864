/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_DEVICES_H
#define AGENT_DEVICES_DEVICES_H

/* GPUs of this machine that its workers would see. Pure: a root folder, an environment and the driver's answer are
 * parameters.
 *
 *     devices.c                  which GPUs there are, and CUDA_VISIBLE_DEVICES
 *     gpu_usage.c                the answer of rdzv-devices, and who holds a GPU
 *     run_devices_helper.c       runs rdzv-devices with a deadline
 *     gpus_free_before_round.c   the devices between rounds
 *     numa.c                     --numa-binding
 *     rdzv-devices.c             the helper that asks NVML (nvml.h), which may hang, and names holders
 *                                (process_description.c) */

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
  int index;                /* nvidia-smi's index; -1: not known */
  bool known;               /* this machine has a device with this `index`, and so has gpus->v unless it is empty */
  char pci[DEVICE_PCI_MAX]; /* as in /sys/bus/pci/devices; "": not known */
  char uuid[DEVICE_ID_MAX]; /* its own, or that of the listed MIG part; "": not known */
};

/* Fills v with at most DEVICES_MAX devices in the order in which a worker counts them; returns how many. root: "" or a
 * folder that stands for /; known: the driver's answer; NULL: not asked. */
int devices_list(const char *root, char *const *env, const struct gpus *known, struct device v[DEVICES_MAX]);
int devices_count(const char *root, char *const *env, const struct gpus *known);

/* AMD's GPUs that a worker would see. *from: the variable that decides; NULL: the machine. */
int devices_count_amd(const char *root, char *const *env, const char **from);

/* CUDA_VISIBLE_DEVICES of the worker with this local rank under --virtual-local-rank: the i-th entry of the inherited
 * list, without blanks, or i without a list. False (and ""): the list is shorter, or the entry is too long. */
bool devices_visible(char *const *env, uint32_t i, char id[DEVICE_ID_MAX]);

/* Whether CUDA_VISIBLE_DEVICES names devices for this job. */
bool devices_are_named(char *const *env);

/* For a verdict: "2, GPU-8f2c...", as far as known. */
void devices_name(const struct device *d, struct buf *out);

/* CUDA_VISIBLE_DEVICES with only the good ones of v[0..n), as devices_list returned them for env. */
void devices_narrow(char *const *env, const struct device *v, int n, const bool *good, struct buf *out);

#endif
