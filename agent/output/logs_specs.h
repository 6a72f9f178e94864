/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_OUTPUT_LOGS_SPECS_H
#define AGENT_OUTPUT_LOGS_SPECS_H

/* --logs-specs NAME: torchrun refuses a name that no installed Python package offers (entry point
 * torchrun.logs_specs). */

#include "common/err.h"

/* Asks `python`, for some seconds at most. 0: the package exists, or Python could not be asked; else -EINVAL and a
 * sentence that begins with `option`. To be called before the first thread and child. */
int logs_specs_check(char *python, const char *option, char *name, struct err *e);

#endif
