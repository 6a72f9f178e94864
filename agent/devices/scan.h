/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_SCAN_H
#define AGENT_DEVICES_SCAN_H

/* GPUs from the kernel's files, without a vendor's library. Pure: a root folder stands for /. */

#include <stdbool.h>
#include "agent/devices/gpu_usage.h"

/* Appends this machine's GPUs in the order in which their vendor's runtime counts them, those of NVIDIA first.
 * composite: the tiles of an Intel GPU are one device. */
void scan_gpus(struct gpus *g, const char *root, bool composite);
/* The same for AMD and Intel, with their memory and the processes that hold it, not yet described. These reads may hang
 * in the driver. */
void scan_gpus_in_use(struct gpus *g, const char *root, bool composite);

/* The text of a file, until the next call, NULL: unreadable; and a number at its start. */
const char *scan_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
bool scan_number(const char *text, long *v);
/* Calls fn for each name in a folder, in order. */
void scan_names(void (*fn)(void *ctx, const char *name), void *ctx, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
