/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_TRAINER_GPU_DATASHEET_H
#define AGENT_TRAINER_GPU_DATASHEET_H

/* Facts about a device that follow from its name and its compute capability. Pure. */

#include "agent/trainer/compute/compute.h"

/* Dense matrix products per second, by the data sheet of the device with this name, in FLOP/s. 0: the device is not in
 * the table, or it is a part of a device (MIG). */
double datasheet_peak_flops(const char *name, enum compute_precision p);

/* NULL: a device of this compute capability has the precision. Else the reason, to follow the name of the device. */
const char *datasheet_precision_refused(int major, int minor, enum compute_precision p);

#endif
