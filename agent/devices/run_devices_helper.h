/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_DEVICES_RUN_DEVICES_HELPER_H
#define AGENT_DEVICES_RUN_DEVICES_HELPER_H

/* Asks the driver for this machine's GPUs: runs rdzv-devices, with a deadline. */

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>
#include "agent/devices/gpu_usage.h"
#include "common/err.h"

/* g: the callee's to gpus_finish; e NULL: success. -ENOENT: no driver, library or rdzv-devices here, not worth a
 * warning; -ETIMEDOUT: no answer in time; others as gpus_parse, or of a process that could not run. */
typedef void (*device_probe_fn)(void *ctx, struct gpus *g, const struct err *e);

struct device_probe;
/* Calls fn once, never inside the call. Not NULL. */
struct device_probe *device_probe_start(uv_loop_t *loop, uint32_t deadline_ms, device_probe_fn fn, void *ctx);
/* After the answer, or before: then fn is not called. Memory is freed when the loop has closed its handles. */
void device_probe_destroy(struct device_probe *p);

/* For other runs of rdzv-devices. One that was destroyed alive may hang in the driver, where another one would hang too:
 * false until it is gone. */
struct helper;
bool devices_helper_may_start(void);
void devices_helper_destroy(struct helper *h); /* NULL is fine */

/* device_probe_start, but waits. */
int device_probe_now(uint32_t deadline_ms, struct gpus *g, struct err *e);

#endif
