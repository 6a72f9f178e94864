#ifndef AGENT_DEVICES_H
#define AGENT_DEVICES_H

/* GPUs of this machine that its workers would see, without any driver library. Pure over a root folder and an
 * environment. */

#include <stdbool.h>
#include <stdint.h>

enum {
  DEVICES_MAX = 256,   /* of one machine */
  DEVICE_ID_MAX = 128, /* an entry of CUDA_VISIBLE_DEVICES, with its NUL */
  DEVICE_PCI_MAX = 24, /* "0000:65:00.0", with its NUL */
};

struct device {
  char pci[DEVICE_PCI_MAX]; /* as in /sys/bus/pci/devices; "": not known */
};

/* The devices in the order in which a worker counts them; `root` is "" or a folder that stands for /. At most
 * DEVICES_MAX; returns how many. */
int devices_list(const char *root, char *const *env, struct device v[DEVICES_MAX]);
int devices_count(const char *root, char *const *env);

/* What the worker with this local rank finds in CUDA_VISIBLE_DEVICES with --virtual-local-rank: the i-th entry of the
 * inherited list, without blanks, or i where there is no list. False (and ""): the list is shorter, or the entry too
 * long. */
bool devices_visible(char *const *env, uint32_t i, char id[DEVICE_ID_MAX]);

#endif
